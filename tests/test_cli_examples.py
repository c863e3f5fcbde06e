"""Every command's help has an example, and the examples run: each in a new copy of one folder."""

from __future__ import annotations

import gzip
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import click
import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from peers import needs
from tensorglot.cli import commands
from terminals import COMMAND, environment

TWO_VERSIONS = re.compile(r"diff (?!model\.bt model\.zt)")
"""Examples that compare two versions: they exit with 1."""


def helps(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """The names of commands, and the examples of each."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from helps(inner, (*path, name))
    if path:
        yield " ".join(path), re.findall(r"^\s+((?:echo .* \| )?tensorglot .*)$", command.help or "", re.M)


HELPS = dict(helps(commands))
EXAMPLES = [(name, line) for name, lines in HELPS.items() for line in lines]
SERVER = [example for example in EXAMPLES if "mongodb://" in example[1]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the examples name."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(0)
    tensors = {
        "layers.0.q_proj.weight": random.normal(size=(32, 32)).astype(np.float32),
        "layers.0.w": random.normal(size=(8, 8)).astype(np.float32),
        "layers.0.bias": np.zeros(2, np.int8),
        "lm_head.weight": np.linspace(0, 1, 5000, dtype=np.float32).reshape(100, 50),
        "head.weight": np.ones((4, 3), np.float32),
        "head.bias": np.zeros(4, np.float32),
    }
    trained = {**tensors, "layers.0.w": tensors["layers.0.w"] + np.float32(1e-3)}
    metadata = {"step": "10", "draft": "yes"}
    for name in ("model.bt", "before.bt", "old.bt", "model.zt", "huge.zt", "model.safetensors", "step1.safetensors"):
        tg.save(folder / name, tensors, metadata=metadata, durable=False)
    for name in ("after.bt", "step2.safetensors"):
        tg.save(folder / name, trained, metadata=metadata, durable=False)
    tg.save(folder / "encoder.zt", {"encoder.w": tensors["layers.0.w"]}, durable=False)
    tg.save(folder / "decoder.bt", {"decoder.w": tensors["layers.0.w"]}, durable=False)
    tg.split(folder / "model.safetensors", folder / "checkpoint", shard_nbytes=5000)
    tg.store.delta(folder / "step1.safetensors", folder / "step2.safetensors", folder / "step2.tgdelta")
    tg.store.Store.create(folder / "backup").close()
    with tg.store.Store.create(folder / "run") as store:
        for ref in ("main", "old"):
            store.commit(ref, tensors, message="step 1")
        store.tag("v1", "main")
        store.push(str(folder / "backup"))
        store.commit("main", trained, message="step 2")
        store.bundle(folder / "run.car", "main")
    np.save(folder / "new.npy", 2 * tensors["head.weight"])
    np.save(folder / "weights.npy", tensors["layers.0.w"])
    (folder / "weights.dynd").write_bytes(tg.dynd.pack(tensors["layers.0.w"]))
    embeddings = random.normal(size=(300, 16)).astype(np.float32)
    for name in ("embeddings.npy", "e.npy"):
        np.save(folder / name, embeddings)
    np.save(folder / "q.npy", embeddings[:20] + np.float32(0.01))
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "here"))
    return Path()


def words(line: str) -> tuple[list[str], bytes | None]:
    """The arguments of an example, and its standard input; what the shell does with the output is left out."""
    given = re.match(r"echo (.*?) \| ", line)
    command = re.split(r" \| | && | >>? ", line[given.end() if given else 0 :])[0]
    return shlex.split(command)[1:], shlex.split(given[1])[0].encode() if given else None


@pytest.mark.parametrize("name", HELPS)
def test_help_has_an_example(name: str) -> None:
    assert any(name in line for line in HELPS[name])


@pytest.mark.parametrize(
    ("name", "line"),
    [example for example in EXAMPLES if example[0] != "view" and example not in SERVER],
    ids=lambda value: value.removeprefix("tensorglot "),
)
def test_example(name: str, line: str, folder: Path) -> None:
    arguments, given = words(line)
    if name == "store init" or (name == "store" and "init" in line):
        shutil.rmtree("run")
    if name == "store tag":
        run("store", "delete", "run", "v1")
    if name.startswith("vectors"):
        documents(line)
    run(*arguments, code=int(bool(TWO_VERSIONS.search(line))), stdin=given)


def documents(line: str) -> None:
    """Makes the dumps and tables of products that an example names: an embedding and a title each."""
    matrix = np.load("embeddings.npy")
    if ".parquet" in line:
        pyarrow, parquet = needs("pyarrow"), needs("pyarrow.parquet")
        rows = pyarrow.FixedSizeListArray.from_arrays(matrix.reshape(-1), matrix.shape[1])
        titles = pyarrow.array([f"product {i}" for i in range(len(matrix))])
        parquet.write_table(pyarrow.table({"v": rows, "title": titles}), "all.parquet")
    if "dump/" in line:
        bson = needs("bson")
        Path("dump").mkdir()
        made = b"".join(
            bson.encode({"_id": i, "title": f"product {i}", "v": bson.Binary(tg.bson.encode(row), 9)})
            for i, row in enumerate(matrix)
        )
        Path("dump/products.bson").write_bytes(made)
        Path("dump/products.bson.gz").write_bytes(gzip.compress(made))


@pytest.mark.mongo
@pytest.mark.parametrize(("name", "line"), SERVER, ids=lambda value: value.removeprefix("tensorglot "))
def test_example_on_a_server(name: str, line: str, folder: Path, mongod_url: str) -> None:
    pymongo = needs("pymongo")
    bson = needs("bson")
    needs("pyarrow")
    arguments, _ = words(line)
    matrix = np.load("embeddings.npy").astype(np.float64)
    with pymongo.MongoClient(mongod_url) as client:
        products = client.shop.products
        products.drop()
        if name != "vectors import":
            old = name == "vectors migrate"
            rows = [row.tolist() if old else bson.Binary(tg.bson.encode(row, "float32"), 9) for row in matrix]
            inside = [{"meta": {"v": row}} if old else {} for row in rows]
            products.insert_many([{"embedding": row, **more} for row, more in zip(rows, inside, strict=True)])
        run(*(word.replace("mongodb://localhost", mongod_url.rstrip("/")) for word in arguments))
        assert products.count_documents({}) == len(matrix)
        client.drop_database("shop")


@pytest.mark.parametrize("line", HELPS["view"], ids=lambda line: line.removeprefix("tensorglot "))
def test_example_of_the_viewer(line: str, folder: Path) -> None:
    arguments = [word.replace("8000", "0") for word in words(line)[0]]
    process = subprocess.Popen(
        [*COMMAND, *arguments], env=environment(BROWSER="true"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        address = re.search(rb"http://\S+", process.stdout.readline())
        assert address is not None
        with urlopen(address[0].decode(), timeout=20) as page:
            shown = page.read().decode()
            assert all(word in shown for word in arguments if word.endswith(".bt"))
    finally:
        process.terminate()
        process.communicate(timeout=20)
