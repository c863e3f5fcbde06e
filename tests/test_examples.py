"""The examples run, and the minimal readers give the arrays that tensorglot gives, over the corpora."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import missing, needs
from terminals import environment

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "tests" / "corpus"
READERS = ("minimal_bintensors", "minimal_ztensor", "minimal_dynd_reader", "minimal_bson")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((CORPUS / folder).iterdir()) if path.suffix != ".json"]


@pytest.mark.parametrize("name", READERS)
def test_a_minimal_reader_is_short_and_needs_only_numpy(name: str) -> None:
    text = (ROOT / "examples" / f"{name}.py").read_text()
    code = text.split('"""', 2)[2]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 75
    imported = {line.split()[1].split(".")[0] for line in code.splitlines() if line.startswith(("import", "from"))}
    assert imported <= {*sys.stdlib_module_names, "numpy"}


@pytest.mark.parametrize("name", [*READERS, "training_loop", "migrate_embeddings"])
def test_an_example_without_arguments_says_how_to_call_it(name: str) -> None:
    if name == "migrate_embeddings":
        needs("pymongo")
    command = [sys.executable, ROOT / "examples" / f"{name}.py"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"usage: python {name}.py ")
    assert done.stderr.count("\n") == 1


def same_bits(got: Any, tensor: tg.Tensor) -> bool:
    """Elements that NumPy lacks are read as their bits."""
    wanted = tensor.numpy()
    if got.dtype != wanted.dtype:
        wanted = wanted.astype(wanted.dtype.newbyteorder(got.dtype.byteorder))
    return got.shape == tensor.shape and got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "path", files("bintensors-0", "bintensors-1"), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_bintensors(path: Path) -> None:
    try:
        metadata, arrays = example("minimal_bintensors").read(path)
    except ValueError:
        with pytest.raises((tg.LimitError, tg.UnsupportedError), match=r"rule bintensors\.limit\.rank"):
            tg.load(path)
        return
    with tg.open(path, limits=tg.Limits(rank=300)) as archive:
        assert (metadata, set(arrays)) == (archive.metadata, set(archive))
        assert all(same_bits(arrays[name], tensor) for name, tensor in archive.items())


@pytest.mark.parametrize("path", files("ztensor-0.1", "ztensor-2"), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_ztensor(path: Path) -> None:
    arrays = example("minimal_ztensor").read(path)
    with tg.open(path) as archive:
        for name, tensor in archive.items():
            if tensor.layout != "dense" or tensor.encoding != "raw":
                assert name not in arrays
            elif name in arrays:
                assert same_bits(arrays[name], tensor), name
            else:
                assert tensor.dtype is not None
                assert tensor.dtype.name.startswith(("float8", "float4", "complex"))


@pytest.mark.parametrize("name", [path.stem for path in files("bintensors-reject")])
def test_a_minimal_reader_refuses_what_is_broken(name: str) -> None:
    """Not all: it shows the format, and `tg.open` protects."""
    path = CORPUS / "bintensors-reject" / f"{name}.bt"
    try:
        example("minimal_bintensors").read(path)
    except (ValueError, MemoryError):
        return
    assert name[0] == "s" or name in ("b11_dup_name", "b30_legacy_v0_layout", "b31_safetensors_file")


def test_dynd() -> None:
    reader = example("minimal_dynd_reader")
    read = 0
    for vector in json.loads((CORPUS / "dynd" / "vectors.json").read_text())["valid"]:
        type, data = vector["canonical_type"], bytes.fromhex(vector["hex"])
        try:
            value = reader.read(type, data)
        except NotImplementedError:
            continue
        ours = tg.dynd.deserialize(data, type).tolist()
        assert repr(value) == repr(ours), type
        read += 1
    assert read > 40


def test_bson(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(20, 9)).astype(np.float32)
    tensors = {"a": matrix, "meta.bits": matrix > 0, "b": (matrix * 20).astype(np.int8)}
    tg.save(tmp_path / "dump.bson", tensors)
    found = example("minimal_bson").read(tmp_path / "dump.bson")
    for key, values in tensors.items():
        assert np.array_equal(np.stack([document[key] for document in found]), values)


def test_bson_among_values_of_every_other_type(tmp_path: Path) -> None:
    bson = needs("bson")
    vector = bson.Binary(tg.bson.encode([1.0, 2.0], "float32"), 9)
    others = [
        1.5,
        "text",
        {"x": [1, {"y": None}]},
        b"raw",
        bson.ObjectId(),
        True,
        None,
        bson.Regex("a+", "i"),
        7,
        2**40,
    ]
    others += [
        bson.Timestamp(1, 2),
        bson.Int64(3),
        bson.Decimal128("1.5"),
        bson.MinKey(),
        bson.MaxKey(),
        bson.Code("f()"),
    ]
    others += [bson.Code("f()", {"z": 1}), bson.DBRef("c", 1)]
    document = {**{f"k{i}": value for i, value in enumerate(others)}, "in": {"v": vector}, "last": 1}
    (tmp_path / "dump.bson").write_bytes(bson.encode(document))
    [found] = example("minimal_bson").read(tmp_path / "dump.bson")
    assert {key: values.tolist() for key, values in found.items()} == {"in.v": [1.0, 2.0]}


def test_a_training_run_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = example("training_loop").train
    first, second = train(tmp_path), train(tmp_path)
    assert np.mean(second) < np.mean(first)
    assert "resumed at step 60" in capsys.readouterr().out
    with tg.store.Store(tmp_path / "run.store") as store:
        assert [commit.metadata["step"] for commit in store.log("main")] == [str(i) for i in range(120, 0, -10)]


def test_weights_are_synchronized(tmp_path: Path) -> None:
    if not hasattr(tg.store, "delta"):
        missing("tensorglot.store has no delta")
    trained, served, nbytes = example("weight_sync").sync(tmp_path)
    assert all(np.array_equal(trained[name], served[name]) for name in trained)
    assert nbytes < 0.05 * sum(array.nbytes for array in trained.values())


@pytest.mark.mongo
def test_embeddings_are_migrated(mongod_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pymongo = needs("pymongo")
    monkeypatch.chdir(tmp_path)
    module = example("migrate_embeddings")
    with pymongo.MongoClient(mongod_url) as client:
        database = client.get_database("example_embeddings")
        vectors = module.fill(database.documents)
        done = module.run(database.documents, database.small)
        assert (done.migrated, done.skipped) == (len(vectors), 0)
        assert np.array_equal(tg.load("embeddings.zt")["embedding"], vectors)
        assert database.small.count_documents({}) == len(vectors)
        client.drop_database("example_embeddings")
