"""Elements and encodings that nobody here knows: listed, copied from version to version, never guessed at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import tensorglot as tg
from bounds import MB, allocated_nbytes
from tensorglot.store import Store
from test_ztensor_01 import index_of
from test_ztensor_2 import manifest_of
from ztensor_builder import entry, file01, file1, file2, part, tensor

DECODED = f"xxh3:{xxhash.xxh3_64_hexdigest(b'the decoded bytes')}"
STORED = f"xxh3:{xxhash.xxh3_64_hexdigest(b'abcd')}"
OBJECTS = {
    "type": tensor(parts={"data": part(type="my.type", digest=STORED)}),
    "encoding": tensor(parts={"data": part(encoding="x.z/1", decoded_length=4, digest=DECODED)}),
    "layout": tensor(shape=[9], layout="x.y/1", parts={"a": part(type="q.z", dtype="f32"), "b": part(dtype="u16")}),
    "odd": tensor(shape=[9], layout="x.y/1", parts={"a": part(blob=[4096, 3], dtype="u16")}),
}


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    path = tmp_path / "unknown.zt"
    odd = {"odd": OBJECTS["odd"] | {"parts": {"a": part(blob=[8192, 3], dtype="u16")}}}
    path.write_bytes(file2({"objects": OBJECTS | odd}, b"abcd" + bytes(4092) + b"efg"))
    return path


def words(path: Path) -> dict[str, Any]:
    """What the manifest of a version 2 file says, and the bytes that it says it of."""
    data = path.read_bytes()
    return {
        name: (
            thing["shape"],
            thing["layout"],
            {
                part: (row["dtype"], row.get("type"), row.get("encoding"), row.get("decoded_length"),
                       data[row["blob"][0] : sum(row["blob"])])
                for part, row in thing["parts"].items()
            },
        )
        for name, thing in manifest_of(data)["objects"].items()
    }  # fmt: skip


def test_it_goes_through_0_1_and_back(unknown: Path, tmp_path: Path) -> None:
    tg.convert(unknown, tmp_path / "a.zt", format="ztensor@2", checksum="xxh3")
    tg.convert(unknown, tmp_path / "b.zt", format="ztensor@0.1")
    tg.convert(tmp_path / "b.zt", tmp_path / "c.zt", format="ztensor@2", checksum="xxh3")
    assert words(tmp_path / "a.zt") == words(tmp_path / "c.zt") == words(unknown)
    rows = {row["name"]: row for row in index_of((tmp_path / "b.zt").read_bytes())}
    assert (rows["type"]["dtype"], rows["encoding"]["encoding"]) == ("my.type over u8", "x.z/1")
    report = tg.verify(tmp_path / "b.zt", deep=True)
    assert (report.ok, report.unverified) == (True, ())  # of stored bytes, which anybody can check


def test_a_digest_of_bytes_that_cannot_be_decoded_is_unverified(unknown: Path) -> None:
    report = tg.verify(unknown, deep=True)
    assert report.ok
    assert "encoding" in report.unverified
    for mode in ("auto", "require"):
        with tg.open(unknown, verify=mode) as archive, pytest.raises(tg.UnsupportedError, match=r"x\.z/1"):  # type: ignore[arg-type]
            archive["encoding"].numpy()


def test_a_digest_of_decoded_bytes_is_not_copied_as_one_of_stored_bytes(unknown: Path) -> None:
    with tg.open(unknown) as archive:
        rows = {row["name"]: row for row in index_of(tg.dumps(archive, format="ztensor@0.1", checksum=None))}
        objects = manifest_of(tg.dumps(archive, format="ztensor@2", checksum="xxh3"))["objects"]
    assert objects["encoding"]["parts"]["data"]["digest"] == DECODED
    assert "checksum" not in rows["encoding"]
    assert rows["type"]["checksum"] == STORED


def test_raw_parts_of_unknown_types_have_a_canonical_form() -> None:
    data = file2({"objects": {"type": OBJECTS["type"], "layout": OBJECTS["layout"]}})
    canonical = tg.dumps(tg.open(data), format="ztensor@2", checksum="xxh3")
    with tg.open(canonical, strict=True) as archive:
        assert tg.dumps(archive, format="ztensor@2", checksum="xxh3") == canonical
        squeezed = tg.dumps(archive, format="ztensor@2", checksum="xxh3", compression="zstd")
    report = tg.verify(squeezed, deep=True)
    assert (report.ok, report.unverified) == (True, ())
    assert report.content_digest == tg.verify(canonical).content_digest
    assert tg.dumps(tg.open(squeezed), format="ztensor@2", checksum="xxh3") == canonical
    assert tg.dumps(tg.open(squeezed), format="ztensor@0.1") == tg.dumps(tg.open(canonical), format="ztensor@0.1")


@pytest.mark.parametrize(
    "data",
    [
        file01([entry(dtype="float8_x"), entry("fine", offset=128)], b"abcd" + bytes(60) + b"efgh"),
        file01([entry(dtype="q over u16", data_endianness="big"), entry("fine")]),
        file1({"objects": {name: {"shape": [4], "format": "dense", "components": {
            "data": {"dtype": dtype, "offset": 64, "length": 4}}} for name, dtype in (("a", "f3"), ("fine", "u8"))}}),
    ],
    ids=["0.1", "big-endian", "1"],
)  # fmt: skip
def test_what_version_2_cannot_store_is_named_and_can_be_left_out(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.zt").write_bytes(data)
    with tg.open(data) as archive, pytest.raises(tg.UnsupportedError, match="does not support") as caught:
        tg.dumps(archive, format="ztensor@2", checksum="xxh3")
    assert caught.value.tensor == "a"
    if b"over" not in data:
        with pytest.raises(tg.UnsupportedError, match="cannot store element type"):
            tg.convert(tmp_path / "a.zt", tmp_path / "b.zt", format="ztensor@2", checksum="xxh3")
        tg.convert(tmp_path / "a.zt", tmp_path / "b.zt", format="ztensor@2", checksum="xxh3", on_loss="drop")
        assert list(tg.open(tmp_path / "b.zt")) == ["fine"]
    tg.convert(tmp_path / "a.zt", tmp_path / "c.zt", format="ztensor@0.1")
    assert list(tg.open(tmp_path / "c.zt")) == ["a", "fine"]


def test_a_decoded_size_that_0_1_cannot_keep_is_refused() -> None:
    thing = tensor(parts={"data": part(type="my.type", encoding="x.z/1", decoded_length=9)})
    with tg.open(file2({"objects": {"a": thing}})) as archive:
        assert tg.dumps(archive, format="ztensor@2", checksum="xxh3")
        with pytest.raises(tg.UnsupportedError, match="decoded size") as caught:
            tg.dumps(archive, format="ztensor@0.1")
    assert (caught.value.rule, caught.value.tensor) == ("ztensor.write.encoding", "a")


CSR = {"values": ("f32", [1, 2, 3]), "indices": ("u32", [0, 2, 1]), "indptr": ("u32", [0, 2, 3])}


def sparse_1(**values: Any) -> bytes:
    """A CSR matrix of version 1.1, with more said of its values."""
    body = b""
    components = {}
    for i, (role, (dtype, numbers)) in enumerate(CSR.items()):
        components[role] = {"dtype": dtype, "offset": 64 * (i + 1), "length": 12}
        body += np.array(numbers, f"<{dtype[0]}4").tobytes().ljust(64, b"\0")
    thing = {"shape": [2, 3], "format": values.pop("format", "sparse_csr"), "components": components}
    components["values"] |= values
    return file1({"version": "1.1.0", "objects": {"m": thing}}, body)


def test_a_component_of_1_that_cannot_be_decoded() -> None:
    assert tg.open(sparse_1())["m"].scipy().toarray().tolist() == [[1, 0, 2], [0, 3, 0]]
    with tg.open(sparse_1(encoding="lz4", uncompressed_length=12)) as archive:
        assert archive["m"].layout == "zt.sparse_csr/1"
        with pytest.raises(tg.UnsupportedError, match="lz4"):
            archive["m"].scipy()
    for encoding in ("lz4", "zstd"):
        with tg.open(sparse_1(encoding=encoding)) as archive:  # nobody says how many values there are
            assert archive["m"].layout == "sparse_csr"
            assert archive["m"].parts["indices"].array().tolist() == [0, 2, 1]
            with pytest.raises(tg.UnsupportedError, match="f32"):
                archive["m"].parts["values"].array()
            again = tg.open(tg.dumps(archive, format="ztensor@0.1"))["m"]
            assert {name: one.unknown_dtype for name, one in again.parts.items()} == {
                "values": "f32", "indices": None, "indptr": None
            }  # fmt: skip
            with pytest.raises(tg.UnsupportedError, match="does not support f32"):
                tg.dumps(archive, format="ztensor@2", checksum="xxh3")


def test_an_unknown_format_of_version_1() -> None:
    data = sparse_1(dtype="f64", length=12, format="q")
    with tg.open(data) as archive:
        assert (archive["m"].layout, archive["m"].parts["indptr"].array().tolist()) == ("q", [0, 2, 3])
        assert archive["m"].parts["values"].unknown_dtype == "float64 in part"
        for version in ("ztensor@0.1", "ztensor@2"):
            again = tg.open(tg.dumps(archive, format=version))["m"]
            assert (again.layout, again.parts["values"].unknown_dtype) == ("q", "float64 in part")


@pytest.mark.parametrize("index", [slice(None, None, 3), slice(0, 1 << 29), slice(None, None, -1), ...])
def test_nothing_is_allocated_for_what_cannot_be_decoded(index: Any) -> None:
    """A file of a few bytes that says it has 1 TiB in an encoding of the future."""
    data = file01([entry(shape=[1 << 38], encoding="x.z/1", size=16, dtype="float32")], b"x" * 16)

    def refused() -> None:
        with tg.open(data) as archive:
            (held,) = archive.values()
            with pytest.raises(tg.UnsupportedError) as caught:
                held[index]
            assert caught.value.rule == "encoding.known"
            with pytest.raises(tg.UnsupportedError, match=r"rule encoding\.known"):
                held.numpy()

    assert allocated_nbytes(refused) < 8 * MB


@pytest.mark.parametrize("count", [256, 257])
def test_more_unknown_types_than_one_byte_counts(count: int) -> None:
    data = file2({"objects": {f"t{i}": tensor(parts={"data": part(type=f"my.type{i}")}) for i in range(count)}})
    with tg.open(data) as archive:
        if count > 256:
            with pytest.raises(tg.UnsupportedError) as caught:
                tg.dumps(archive, format="ztensor@0.1")
            assert caught.value.rule == "ztensor.write.dtype"
            return
        with tg.open(tg.dumps(archive, format="ztensor@0.1")) as other:
            assert [t.parts["data"].unknown_dtype for t in other.values()] == [
                f"my.type{i} over u8" for i in range(count)
            ]


def unknown_encoding() -> bytes:
    return file01([entry(name="x", shape=[6], encoding="x.z/1", size=16, dtype="float32")], b"x" * 16)


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize("verb", ["save", "writer", "convert", "merge", "add"])
def test_every_verb_copies_an_unknown_encoding(verb: str, version: str, tmp_path: Path) -> None:
    path, source = tmp_path / "a.zt", tg.open(unknown_encoding())
    if verb == "save":
        tg.save(path, {"x": source["x"]}, format=version)
    elif verb == "writer":
        with tg.Writer(path, format=version) as out:
            out.add("x", source["x"])
    elif verb == "convert":
        tg.convert({"x": source["x"]}, path, format=version)
    elif verb == "merge":
        tg.merge([source], path, format=version)
    else:
        tg.save(path, {}, format=version)
        tg.edit(path, add={"x": source["x"]})
    with tg.open(path) as archive:
        assert (archive["x"].encoding, archive["x"].dtype, archive["x"].stored_nbytes) == ("x.z/1", np.float32, 16)
    assert tg.verify(path, deep=True).ok


@pytest.mark.parametrize(
    ("format", "options"), [("npz", {}), ("safetensors", {}), ("ztensor@0.1", {"dtype": "float16"})]
)
def test_an_unknown_encoding_that_cannot_be_copied_is_a_loss(format: str, options: Any, tmp_path: Path) -> None:
    source = tg.open(unknown_encoding())
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.convert(source, tmp_path / "a", format=format, **options)
    assert (caught.value.rule, caught.value.tensor) == ("convert.encoding", "x")
    for dry_run in (True, False):
        done = tg.convert(source, tmp_path / "a", format=format, on_loss="drop", dry_run=dry_run, **options)
        assert [(loss.kind, loss.tensor, loss.fatal) for loss in done.losses] == [("encoding", "x", True)]
    assert tg.load(tmp_path / "a") == {}


def test_a_store_returns_it_as_it_was(tmp_path: Path) -> None:
    objects = {name: OBJECTS[name] for name in ("type", "layout")}
    (tmp_path / "unknown.zt").write_bytes(file2({"objects": objects}, b"abcd"))
    store = Store.create(tmp_path / "store")
    with tg.open(tmp_path / "unknown.zt") as archive:
        store.commit("main", archive)
        found = store.checkout("main")
        for name in objects:
            parts = found[name].parts
            assert {part: (parts[part].unknown_dtype, parts[part].shape) for part in parts} == {
                part: (held.unknown_dtype, held.shape) for part, held in archive[name].parts.items()
            }
        assert found["type"].parts["data"].unknown_dtype == "my.type over u8"
        assert tg.diff(archive, found).same
    assert store.check(data=True).ok
