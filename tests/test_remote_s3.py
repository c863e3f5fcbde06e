"""Objects of a real S3 server as sources and targets: every format, every verb, few requests, nothing half-visible."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from counting import Proxy, proxy_of
from gallery import same
from peers import needs
from seaweed import KEY, SECRET, Seaweed
from test_ztensor_2 import shard_of
from ztensor_builder import file2, part, tensor

pytestmark = pytest.mark.remote

CORPUS = Path(__file__).parent / "corpus"
RANDOM = np.random.default_rng(12)
TENSORS: dict[str, Any] = {
    "embed": RANDOM.standard_normal((600, 512)).astype(np.float32),
    "layer.0": RANDOM.standard_normal((40, 50)).astype(ml_dtypes.bfloat16),
    "layer.1": np.arange(1000, dtype=np.int64),
    "flags": RANDOM.integers(0, 2, 77).astype(np.bool_),
    "empty": np.zeros((0, 4), np.float16),
}
FORMATS = [f"{spec.name}@{version}" for spec in tg.formats() for version in spec.writes]
MATRIX = {"data": RANDOM.standard_normal((700, 64)).astype(np.float32)}


def values(format: str) -> dict[str, Any]:
    """What every format can store."""
    return MATRIX if format.startswith(("bson", "gguf", "npy@")) else TENSORS


@pytest.fixture
def options(s3_server: Seaweed) -> dict[str, Any]:
    return s3_server.options


@pytest.fixture
def base(request: pytest.FixtureRequest) -> str:
    """A folder of its own for each test."""
    safe = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"s3://tests/{request.module.__name__}/{safe}-{RANDOM.integers(1 << 40)}"


class TestFormats:
    @pytest.mark.parametrize("format", FORMATS)
    def test_written_read_sliced_listed_verified_and_converted(
        self, format: str, base: str, options: dict[str, Any], tmp_path: Path
    ) -> None:
        name = format.partition("@")[0]
        suffix = next(spec.suffixes[0] for spec in tg.formats() if spec.name == name)
        url, tensors = f"{base}/model{suffix}", values(format)
        tg.save(url, tensors, format=format, storage_options=options)
        first = next(iter(tensors))
        with tg.open(url, storage_options=options) as archive:
            assert archive.format.startswith(name)
            assert set(archive) == set(tensors)
            assert (archive[first][3:9, 2:5] == tensors[first][3:9, 2:5]).all()
            assert (archive[first][::50, ::-7] == tensors[first][::50, ::-7]).all()
            assert (archive[first].numpy() == tensors[first]).all()
        assert same(tg.load(url, storage_options=options), tensors)
        assert tg.verify(url, deep=True, storage_options=options).ok
        report = tg.convert(url, f"{base}/other.zt", storage_options=options, on_loss="drop")
        assert report.ok
        assert tg.diff(url, f"{base}/other.zt", storage_options=options).same
        local = tmp_path / f"model{suffix}"
        tg.convert(f"{base}/other.zt", local, format=format, storage_options=options, on_loss="drop")
        assert same(tg.load(local), tensors)

    @pytest.mark.parametrize(
        "file",
        sorted(path for path in CORPUS.rglob("*") if path.suffix in (".pt", ".gguf", ".npz", ".h5")),
        ids=str,
    )
    def test_formats_that_are_only_read(
        self, file: Path, base: str, options: dict[str, Any], s3_server: Seaweed
    ) -> None:
        url = f"{base}/{file.name}"
        needs("obstore").put(s3_server.client(), url.removeprefix("s3://tests/"), file.read_bytes())
        assert tg.identify(url, storage_options=options) == tg.identify(file)

    def test_onnx(self, base: str, options: dict[str, Any], s3_server: Seaweed) -> None:
        """A model with its weights in another object beside it."""
        onnx = needs("onnx")
        weights = onnx.numpy_helper.from_array(TENSORS["embed"], "embed")
        graph = onnx.helper.make_graph([], "graph", [], [], [weights])
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(onnx.helper.make_model(graph), f"{folder}/m.onnx", save_as_external_data=True, location="m.data")
            for name in ("m.onnx", "m.data"):
                key = f"{base.removeprefix('s3://tests/')}/{name}"
                needs("obstore").put(s3_server.client(), key, Path(folder, name).read_bytes())
        with tg.open(f"{base}/m.onnx", storage_options=options) as archive:
            assert (archive["embed"][5:9, ::3] == TENSORS["embed"][5:9, ::3]).all()
        assert same(tg.load(f"{base}/m.onnx", storage_options=options), {"embed": TENSORS["embed"]})

    @pytest.mark.parametrize("ranks", ["ranks2", "ranks4"])
    def test_directories_of_pytorch(self, ranks: str, base: str, options: dict[str, Any], s3_server: Seaweed) -> None:
        """Opened by the folder, with a slash and without; the reader of DCP finds them, too."""
        folder = CORPUS / "dcp" / ranks
        for file in folder.iterdir():
            needs("obstore").put(
                s3_server.client(), f"{base.removeprefix('s3://tests/')}/{file.name}", file.read_bytes()
            )
        for url in (base, f"{base}/"):
            assert tg.identify(url, storage_options=options).cid == tg.identify(folder).cid
            assert tg.verify(url, storage_options=options).ok
        with tg.open(base, storage_options=options) as archive:
            assert archive.format == "dcp@torch"
            name = "model.rows to columns"
            assert (archive[name][3:9, 1:3] == tg.load(folder)[name][3:9, 1:3]).all()
        tg.convert(base, f"{base}.safetensors", on_loss="drop", storage_options=options)
        assert tg.diff(folder, f"{base}.safetensors", storage_options=options).equal == len(tg.load(folder))


class TestVerbs:
    @pytest.fixture
    def url(self, base: str, options: dict[str, Any]) -> str:
        tg.save(f"{base}/model.zt", TENSORS, metadata={"step": "10"}, storage_options=options)
        return f"{base}/model.zt"

    def test_identify_stats_and_select(self, url: str, options: dict[str, Any]) -> None:
        assert tg.identify(url, storage_options=options).cid == tg.identify(TENSORS).cid
        found = tg.stats(url, "embed", storage_options=options)
        assert found.rows == tg.stats(TENSORS, "embed").rows

    def test_some_names_into_memory_of_the_caller(self, url: str, options: dict[str, Any]) -> None:
        out = {"layer.1": np.zeros(1000, np.int64)}
        loaded = tg.load(url, names=["flags", "layer.1"], out=out, storage_options=options)
        assert same(loaded, {name: TENSORS[name] for name in ("layer.1", "flags")})
        assert loaded["layer.1"] is out["layer.1"]

    def test_a_writer(self, base: str, options: dict[str, Any]) -> None:
        with tg.Writer(f"{base}/big.bt", storage_options=options) as out:
            out.add("layer.1", TENSORS["layer.1"])
            with out.stream("embed", "float32", (600, 512)) as sink:
                for row in range(0, 600, 100):
                    sink.write(TENSORS["embed"][row : row + 100])
        assert same(tg.load(f"{base}/big.bt", storage_options=options), {n: TENSORS[n] for n in ("layer.1", "embed")})

    def test_split_open_and_merge(self, url: str, base: str, options: dict[str, Any], tmp_path: Path) -> None:
        written = tg.split(url, f"{base}/shards", shard_nbytes=100_000, storage_options=options)
        assert all(str(file).startswith(f"{base}/shards/model") for file in written)
        assert len(written) > 2
        for place in (f"{base}/shards", f"{base}/shards/", str(written[-1])):
            with tg.open(place, storage_options=options) as archive:
                assert same({name: tensor.numpy() for name, tensor in archive.items()}, TENSORS)
        assert tg.verify(f"{base}/shards/", storage_options=options).ok
        tg.merge(f"{base}/shards", tmp_path / "merged.zt", storage_options=options)
        assert same(tg.load(tmp_path / "merged.zt"), TENSORS)
        with pytest.raises(tg.InputError, match="not empty"):
            tg.split(url, f"{base}/shards", storage_options=options)

    def test_a_split_that_fails_leaves_nothing(
        self, url: str, base: str, options: dict[str, Any], s3_server: Seaweed
    ) -> None:
        calls: list[int] = []

        def fail(done: int, total: int) -> None:
            calls.append(done)
            if len(calls) == 3:
                raise RuntimeError("enough")

        with pytest.raises(RuntimeError, match="enough"):
            tg.split(url, f"{base}/half", shard_nbytes=2000, progress=fail, storage_options=options)
        assert s3_server.keys(f"{base.removeprefix('s3://tests/')}/half") == []

    def test_shards_of_ztensor_2(self, base: str, options: dict[str, Any], s3_server: Seaweed, tmp_path: Path) -> None:
        """A root that names another file, which is opened by its name beside it."""
        root = tmp_path / "model.zt"
        table = {"00001": shard_of(root, "00001", b"abcd")}
        root.write_bytes(file2({"objects": {"one": tensor(parts={"data": part(shard="00001")})}, "shards": table}))
        for file in tmp_path.glob("*.zt"):
            key = f"{base.removeprefix('s3://tests/')}/{file.name}"
            needs("obstore").put(s3_server.client(), key, file.read_bytes())
        with tg.open(f"{base}/model.zt", storage_options=options) as archive:
            assert archive["one"].numpy().tobytes() == b"abcd"
        needs("obstore").delete(s3_server.client(), f"{base.removeprefix('s3://tests/')}/model-00001.zt")
        with pytest.raises(tg.FormatError, match=r"model-00001\.zt is missing"):
            tg.load(f"{base}/model.zt", storage_options=options)

    def test_sidecars(self, base: str, options: dict[str, Any], s3_server: Seaweed) -> None:
        url = f"{base}/model.safetensors"
        tg.convert(TENSORS, url, sums=True, storage_options=options)
        assert f"{url.removeprefix('s3://tests/')}.sums" in s3_server.keys(base.removeprefix("s3://tests/"))
        assert tg.verify(url, storage_options=options).checksums == len(TENSORS) + 1
        assert same(tg.load(url, verify="require", storage_options=options), TENSORS)
        key = url.removeprefix("s3://tests/")
        data = bytearray(needs("obstore").get(s3_server.client(), key).bytes())
        data[-1] ^= 1
        needs("obstore").put(s3_server.client(), key, bytes(data))
        assert not tg.verify(url, storage_options=options).ok
        with pytest.raises(tg.IntegrityError):
            tg.load(url, verify="require", storage_options=options)

    def test_a_conversion_onto_its_own_source(self, url: str, options: dict[str, Any]) -> None:
        tg.convert(url, url, compression="zstd", storage_options=options)
        with tg.open(url, storage_options=options) as archive:
            assert archive["embed"].encoding == "zstd"
            assert (archive["embed"].numpy() == TENSORS["embed"]).all()
            tg.save(url, {"w": np.arange(3)}, storage_options=options)
            with pytest.raises(tg.InputError, match="changed"):
                tg.convert(archive, url, storage_options=options)
        assert list(tg.load(url, storage_options=options)) == ["w"]

    def test_options_are_for_urls(self, tmp_path: Path, options: dict[str, Any]) -> None:
        tg.save(tmp_path / "model.zt", TENSORS)
        for call in (tg.open, tg.load, tg.verify, tg.identify, tg.stats):
            with pytest.raises(tg.InputError, match="storage_options need a URL"):
                call(tmp_path / "model.zt", storage_options=options)  # type: ignore[operator]
        assert same(tg.load(f"file://{tmp_path}/model.zt", storage_options=options), TENSORS)
        tg.save(f"file://{tmp_path}/other.zt", TENSORS)
        assert same(tg.load(tmp_path / "other.zt"), TENSORS)


class TestCommandLine:
    @pytest.fixture
    def url(self, base: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
        for name, value in (
            ("AWS_ENDPOINT_URL", options["endpoint"]),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        tg.save(f"{base}/model.zt", TENSORS)
        return f"{base}/model.zt"

    def test_every_command_with_the_environment(self, url: str, base: str, tmp_path: Path) -> None:
        assert "layer.1" in run("ls", url).output
        assert json.loads(run("info", url, "--json").output)["tensors"] == len(TENSORS)
        assert run("cat", url, "layer.1", "[5:8]").output.split() == ["5", "6", "7"]
        assert json.loads(run("verify", url, "--json").output)["ok"]
        assert "embed" in run("stats", url).output
        run("convert", url, f"{base}/model.safetensors", "--on-loss", "drop")
        assert str(tg.identify(TENSORS).cid) in run("hash", url).output
        run("diff", url, f"{base}/model.safetensors")
        run("split", url, f"{base}/shards", "--shard-size", "100KB")
        run("merge", f"{base}/shards", tmp_path / "merged.zt")
        assert same(tg.load(tmp_path / "merged.zt"), TENSORS)

    def test_every_command_with_options(
        self, base: str, options: dict[str, Any], s3_server: Seaweed, tmp_path: Path
    ) -> None:
        """`--storage-option` is `storage_options`: nothing is in the environment."""
        url, names = f"{base}/model.zt", ("endpoint", "access_key_id", "secret_access_key", "region")
        given = [word for name in names for word in ("--storage-option", f"{name}={options[name]}")]
        tg.save(tmp_path / "model.zt", TENSORS)
        run("convert", tmp_path / "model.zt", url, *given)
        for words in (
            ("ls", url), ("info", url), ("cat", url, "layer.1", "[5:8]"), ("verify", url), ("stats", url),
            ("hash", url),
            ("diff", url, tmp_path / "model.zt"), ("split", url, f"{base}/shards", "--shard-size", "100KB"),
            ("merge", f"{base}/shards", tmp_path / "merged.zt"), ("report", url, "-o", tmp_path / "page.html"),
            ("report", url, "-o", f"{base}/page.html"),
            ("report", tmp_path / "model.zt", "-o", f"{base}/page.html"), ("report", "-o", f"{base}/open.html"),
            ("store", "init", f"{base}/run"), ("store", "commit", f"{base}/run", url), ("store", "log", f"{base}/run"),
            ("store", "checkout", f"{base}/run", "main", f"{base}/restored.zt"),
            ("store", "init", tmp_path / "run"), ("store", "pull", tmp_path / "run", f"{base}/run"),
            ("store", "push", tmp_path / "run", f"{base}/run"),
            ("store", "bundle", f"{base}/run", "main", f"{base}/run.car"),
            ("store", "unbundle", tmp_path / "run", f"{base}/run.car"),
            ("store", "delta", url, f"{base}/restored.zt", tmp_path / "step.tgdelta"),
            ("store", "apply", tmp_path / "step.tgdelta", url, "-o", f"{base}/new.zt"),
        ):  # fmt: skip
            run(*words, *given)
        assert same(tg.load(f"{base}/new.zt", storage_options=options), TENSORS)
        assert same(tg.load(tmp_path / "merged.zt"), TENSORS)
        for name in ("page", "open"):
            page = needs("obstore").get(s3_server.client(), f"{base}/{name}.html".removeprefix("s3://tests/"))
            assert bytes(page.bytes()).startswith(b"<!doctype html>")

    def test_edit_vectors_and_dynd_with_options(self, base: str, options: dict[str, Any], tmp_path: Path) -> None:
        """What is beside the file of `edit`, every place of vectors, the input and output of `dynd`."""
        names = ("endpoint", "access_key_id", "secret_access_key", "region")
        given = [word for name in names for word in ("--storage-option", f"{name}={options[name]}")]
        values = np.random.default_rng(3).standard_normal((50, 8), np.float32)
        tg.save(f"{base}/new.npy", {"data": values}, storage_options=options)
        tg.save(f"{base}/some.zt", {"a/b": values, "c": values[:1]}, storage_options=options)
        file = tmp_path / "model.zt"
        tg.save(file, TENSORS)
        run("edit", file, "--add", f"x={base}/new.npy", "--replace", f"layer.1={base}/some.zt:a/b", *given)
        with tg.open(file) as archive:
            assert (archive["x"].numpy() == values).all()
            assert (archive["layer.1"].numpy() == values).all()
        for source, target in (
            ("new.npy", "v.bson"), ("v.bson", "v.zt"), ("v.zt", "v.npz"), ("v.npz", "again.bson"),
            ("again.bson", "v.parquet"), ("v.parquet", "last.bson"),
        ):  # fmt: skip
            run("vectors", "import", f"{base}/{source}", f"{base}/{target}", *given)
            found = tg.bson.read_embeddings(f"{base}/{target}", storage_options=options)
            assert (found.matrix == values).all(), target
        small, ranges = f"{base}/small.npz", f"{base}/ranges.zt"
        run("vectors", "export", f"{base}/v.bson", f"{base}/w.npz", *given)
        run("vectors", "quantize", f"{base}/v.bson", small, "--ranges", ranges, *given)
        run("vectors", "quantize", f"{base}/new.npy", f"{base}/q.bson", "--use-ranges", ranges, *given)
        assert (
            tg.bson.read_embeddings(small, storage_options=options).matrix
            == tg.bson.read_embeddings(f"{base}/q.bson", storage_options=options).matrix
        ).all()
        assert "50" in run("vectors", "inspect", f"{base}/v.bson", *given).output
        run("vectors", "recall", f"{base}/new.npy", "--queries", f"{base}/v.zt", "-k", "1", *given)
        run("dynd", "encode", f"{base}/new.npy", "--pack", "-o", f"{base}/new.dynd", *given)
        assert (tg.load(f"{base}/new.dynd", storage_options=options)["data"] == values).all()
        run("dynd", "decode", f"{base}/new.dynd", "-o", f"{base}/new.json", *given)
        assert run("dynd", "type", "--of", f"{base}/new.json", *given).output == "50 * 8 * float64\n"
        run("dynd", "cbor", f"{base}/new.npy", "-o", f"{base}/new.cbor", *given)
        run("dynd", "cbor", "--decode", f"{base}/new.cbor", *given)
        run("dynd", "decode", f"{base}/new.dynd", "-o", f"{base}/new.parquet", *given)
        run("dynd", "encode", f"{base}/new.parquet", "--pack", "-o", f"{base}/same.dynd", *given)
        assert (tg.load(f"{base}/same.dynd", storage_options=options)["data"] == values).all()

    def test_options_of_these_commands_need_a_url(self, options: dict[str, Any], tmp_path: Path) -> None:
        tg.save(tmp_path / "v.npy", {"data": np.zeros((3, 2), np.float32)})
        secret = ("--storage-option", "secret_access_key=s3cr3t")
        for words, code in (
            (("edit", tmp_path / "v.zt", "--set", "a=b"), 2),
            (("vectors", "import", tmp_path / "v.npy", tmp_path / "v.bson"), 2),
            (("vectors", "recall", tmp_path / "v.npy"), 2),
            (("vectors", "inspect", tmp_path / "v.bson"), 2),
            (("vectors", "export", "mongodb://localhost:1/a.b", tmp_path / "v.npz"), 2),
            (("dynd", "encode", tmp_path / "v.npy", "--hex"), 2),
        ):
            found = run(*words, *secret, code=code)
            assert "s3cr3t" not in found.output + found.stderr
        assert not (tmp_path / "v.bson").exists()

    def test_an_option_is_never_shown(self, base: str, options: dict[str, Any], tmp_path: Path) -> None:
        """Not one that is malformed, wrong, unknown, or given for a file."""
        tg.save(tmp_path / "model.zt", TENSORS)
        reachable = (f"endpoint={options['endpoint']}", f"access_key_id={KEY}", "secret_access_key=s3cr3t")
        wrong = [word for option in reachable for word in ("--storage-option", option)]
        for words, code in (
            ([f"{base}/model.zt", "--storage-option", "s3cr3t"], 2),
            ([tmp_path / "model.zt", "--storage-option", "secret_access_key=s3cr3t"], 2),
            ([f"{base}/x.zt", "--storage-option", "unknown_option=s3cr3t"], 2),
            ([f"{base}/x.zt", *wrong], 5),
        ):  # fmt: skip
            for more in ((), ("--json",)):
                found = run("ls", *words, *more, code=code)
                assert "s3cr3t" not in found.output + found.stderr

    def test_errors_have_their_exit_codes(self, url: str, base: str) -> None:
        assert "no such object" in run("ls", f"{base}/nothing.zt", code=5).output
        assert "no such object" in run("ls", "s3://no-such-bucket/model.zt/", code=5).output
        assert (
            "s3://no-such-bucket/model.zt: no such object" in run("ls", "s3://no-such-bucket/model.zt", code=5).output
        )
        assert "no BSON documents" in run("vectors", "inspect", f"{base}/rows.parquet", code=4).output
        assert "not supported" in run("ls", "ftp://host/model.zt", code=4).output
        assert "not written" in run("convert", url, "https://host/model.bt", code=4).output


class TestRequests:
    """How much is requested, seen by a proxy before the server."""

    @pytest.fixture
    def proxy(self, s3_server: Seaweed) -> Iterator[Proxy]:
        with proxy_of(s3_server.endpoint) as proxy:
            yield proxy

    @pytest.fixture
    def counted(self, proxy: Proxy, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "endpoint": proxy.endpoint}

    @pytest.mark.parametrize("suffix", [".bt", ".zt", ".safetensors", ".gguf"])
    @pytest.mark.parametrize("count", [10, 2_000, 20_000])
    def test_opening_takes_two_requests_at_most(
        self, suffix: str, count: int, proxy: Proxy, base: str, counted: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """With 20,000 tensors the header of every format is larger than the first request."""
        url = f"{base}/model{suffix}"
        large = {"large": np.zeros(12 << 20, np.int8)}
        tg.save(
            url,
            {f"layers.{i}.weight": np.full(3, i, np.float32) for i in range(count)} | large,
            storage_options=options,
        )
        proxy.clear()
        with tg.open(url, storage_options=counted) as archive:
            assert len(archive) == count + 1
            assert len(proxy.requests) <= 2, proxy.requests
            assert len(set(proxy.requests)) == len(proxy.requests)
            assert proxy.nbytes < 6 << 20

    @pytest.mark.parametrize("suffix", [".bt", ".zt", ".safetensors"])
    def test_a_tensor_costs_its_bytes(
        self, suffix: str, proxy: Proxy, base: str, counted: dict[str, Any], options: dict[str, Any]
    ) -> None:
        tensors = {f"w{i}": RANDOM.integers(0, 256, (2048, 1024), np.uint8) for i in range(9)}
        tg.save(f"{base}/model{suffix}", tensors, storage_options=options)
        with tg.open(f"{base}/model{suffix}", storage_options=counted) as archive:
            proxy.clear()
            assert (archive["w3"].numpy() == tensors["w3"]).all()
            assert tensors["w3"].nbytes <= proxy.nbytes <= 1.05 * tensors["w3"].nbytes
            proxy.clear()
            assert (archive["w4"][100:300] == tensors["w4"][100:300]).all()
            assert 200 * 1024 <= proxy.nbytes <= 1.05 * 200 * 1024
            assert len(proxy.requests) == 1
            proxy.clear()
            assert (archive["w5"][:, 17] == tensors["w5"][:, 17]).all()
            assert len(proxy.requests) <= 2, "close rows are read together"

    def test_loading_requests_each_byte_once(
        self, proxy: Proxy, base: str, counted: dict[str, Any], options: dict[str, Any]
    ) -> None:
        tensors = {f"w{i}": RANDOM.integers(0, 256, 3 << 20, np.uint8) for i in range(8)}
        tg.save(f"{base}/model.zt", tensors, storage_options=options)
        proxy.clear()
        assert same(tg.load(f"{base}/model.zt", storage_options=counted), tensors)
        assert proxy.nbytes <= 1.05 * sum(array.nbytes for array in tensors.values())

    @pytest.mark.parametrize("verb", ["verify", "stats", "identify"])
    def test_a_scan_reads_ahead_and_nothing_twice(
        self, verb: str, proxy: Proxy, base: str, counted: dict[str, Any], options: dict[str, Any]
    ) -> None:
        tensors = {f"w{i}": RANDOM.integers(0, 256, 9 << 20, np.uint8) for i in range(2)}
        tg.save(f"{base}/model.zt", tensors, storage_options=options)
        proxy.clear()
        getattr(tg, verb)(f"{base}/model.zt", storage_options=counted)
        assert proxy.nbytes <= 1.1 * (18 << 20)
        assert len(proxy.requests) <= 40


class TestCredentials:
    def test_never_in_a_pickle_a_repr_or_an_error(
        self, base: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        url = f"{base}/model.zt"
        tg.save(url, TENSORS, storage_options=options)
        with tg.open(url, storage_options=options) as archive:
            texts = [repr(archive), repr(archive.source), repr(archive["embed"]), repr(vars(archive.source))]
            pickled = [pickle.dumps(archive), pickle.dumps(archive["embed"])]
        for data in (*pickled, *(text.encode() for text in texts)):
            assert SECRET.encode() not in data
            assert KEY.encode() not in data
        wrong = {**options, "secret_access_key": "another-secret", "max_retries": 0}
        with pytest.raises(PermissionError) as caught:
            tg.open(url, storage_options=wrong)
        assert "another-secret" not in f"{caught.value!r}{caught.value}{caught.value.__context__!r}"
        with pytest.raises(tg.InputError) as unknown:
            tg.open(url, storage_options={**options, "secret": "another-secret"})
        assert "another-secret" not in f"{unknown.value!r}{unknown.value}{unknown.value.__context__!r}"
        (tmp_path / "archive").write_bytes(pickled[0])
        script = "import pickle, sys; print(len(pickle.load(open(sys.argv[1], 'rb'))))"
        for name, value in (("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)):
            monkeypatch.setenv(name, value)
        command = [sys.executable, "-c", script, str(tmp_path / "archive")]
        assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip() == str(len(TENSORS))

    def test_a_tensor_is_pickled_with_its_version(
        self, base: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in (("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)):
            monkeypatch.setenv(name, value)
        url = f"{base}/model.zt"
        tg.save(url, TENSORS, storage_options=options)
        data = pickle.dumps(tg.open(url, storage_options=options)["embed"])
        assert (pickle.loads(data).numpy() == TENSORS["embed"]).all()
        tg.save(url, {"embed": TENSORS["embed"] + 1}, storage_options=options)
        with pytest.raises(tg.InputError, match="changed"):
            pickle.loads(data)

    def test_credentials_in_a_url_are_refused(self) -> None:
        with pytest.raises(tg.InputError, match="storage_options") as caught:
            tg.open("s3://user:password@bucket/model.zt")
        assert "password" not in str(caught.value)


def test_an_object_that_is_replaced_is_never_mixed(base: str, options: dict[str, Any]) -> None:
    url = f"{base}/model.bt"
    one, two = ({"w": np.full((1 << 20,), fill, np.uint8)} for fill in (1, 2))
    tg.save(url, one, storage_options=options)
    with tg.open(url, storage_options=options) as archive:
        tg.save(url, two, storage_options=options)
        with pytest.raises(tg.InputError, match="changed") as caught:
            archive["w"].numpy()
        assert caught.value.rule == "source.changed"
        assert caught.value.path == url


def test_a_failed_save_leaves_the_old_object_and_no_upload(
    base: str, options: dict[str, Any], s3_server: Seaweed
) -> None:
    url = f"{base}/model.bt"
    tg.save(url, {"w": np.arange(5)}, storage_options=options)

    def fail(done: int, total: int) -> None:
        if done > total // 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        tg.save(url, {"w": np.zeros(96 << 20, np.uint8)}, progress=fail, storage_options=options)
    assert same(tg.load(url, storage_options=options), {"w": np.arange(5)})
    uploads = s3_server.folder.rglob("*.uploads/*")
    assert not list(uploads)
