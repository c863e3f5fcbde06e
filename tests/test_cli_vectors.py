"""`tensorglot vectors`: between files of every kind, and a real MongoDB."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import command_line
import tensorglot as tg
from bson_samples import document, element, vector
from peers import needs

RNG = np.random.default_rng(10)
MATRIX = RNG.standard_normal((20, 13), np.float32)
NATURAL: dict[str, Any] = {"float32": MATRIX, "int8": RNG.integers(-128, 128, (20, 13), np.int8), "bits": MATRIX > 0}


run = partial(command_line.run, "vectors")


def run_json(*args: str | Path, code: int = 0) -> Any:
    return json.loads(run(*args, "--json", code=code).stdout)


def stored(path: Path, name: str = "embedding") -> np.ndarray[Any, Any]:
    return np.load(path) if path.suffix == ".npy" else tg.load(path)[name]


@pytest.mark.parametrize("command", ["import", "export", "inspect", "quantize", "recall", "migrate"])
def test_help(command: str) -> None:
    out = run(command, "--help").stdout
    assert "--json" in out
    assert f"tensorglot vectors {command} " in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("what", NATURAL)
@pytest.mark.parametrize("container", [".npy", ".bt", ".zt"])
def test_there_and_back(tmp_path: Path, container: str, what: str) -> None:
    matrix = NATURAL[what]
    source, dump, back = tmp_path / f"a{container}", tmp_path / "b.bson", tmp_path / f"c{container}"
    if container == ".npy":
        np.save(source, matrix)
    else:
        tg.save(source, {"embedding": matrix, "bias": np.zeros(3)})
    told = run_json("import", source, dump)
    dtype = "packed_bit" if what == "bits" else what
    assert (told["vectors"], told["count"], told["dtype"], told["name"]) == (20, 13, dtype, "embedding")
    assert np.array_equal(tg.load(dump)["embedding"], matrix)
    assert run("export", dump, back).stdout == f"20 vectors of {dtype}[13] as 'embedding'\n"
    assert np.array_equal(stored(back), matrix)
    (tmp_path / "d.bson.gz").write_bytes(gzip.compress(dump.read_bytes()))
    run("export", tmp_path / "d.bson.gz", tmp_path / "e.npy")
    assert np.array_equal(np.load(tmp_path / "e.npy"), matrix)


def test_names(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {"one": MATRIX, "two": MATRIX + 1})
    assert "'one', 'two'" in run("import", tmp_path / "a.bt", tmp_path / "x.bson", code=2).stderr
    run("import", tmp_path / "a.bt", tmp_path / "x.bson", "--from", "two", "--key", "meta.v")
    assert np.array_equal(tg.load(tmp_path / "x.bson")["meta.v"], MATRIX + 1)
    run("export", tmp_path / "x.bson", tmp_path / "y.bt", "--from", "meta.v", "--key", "v")
    assert list(tg.load(tmp_path / "y.bt")) == ["v"]
    tg.save(tmp_path / "two.bson", {"a": MATRIX, "b": MATRIX.copy()})
    assert "'a', 'b'" in run("export", tmp_path / "two.bson", tmp_path / "z.npy", code=2).stderr


def test_dtypes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([[128, 1], [255, 0]], np.uint8))
    run("import", tmp_path / "a.npy", tmp_path / "a.bson", "--dtype", "packed_bit")
    expected = [[1] + [0] * 14 + [1], [1] * 8 + [0] * 8]
    assert tg.load(tmp_path / "a.bson")["embedding"].astype(int).tolist() == expected
    np.save(tmp_path / "b.npy", np.array([[1, 2]]))
    run("import", tmp_path / "b.npy", tmp_path / "b.bson", code=2)
    run("import", tmp_path / "b.npy", tmp_path / "b.bson", "--dtype", "int8")
    assert tg.load(tmp_path / "b.bson")["embedding"].tolist() == [[1, 2]]
    np.save(tmp_path / "c.npy", MATRIX.astype(np.float64))
    run("import", tmp_path / "c.npy", tmp_path / "c.bson")
    assert np.array_equal(tg.load(tmp_path / "c.bson")["embedding"], MATRIX)


def test_missing(tmp_path: Path) -> None:
    dump = tmp_path / "a.bson"
    dump.write_bytes(document(vector("v", b"\x27\0" + bytes(8))) + document(element(10, "x", b"")))
    run("export", dump, tmp_path / "x.npy", code=3)
    assert not (tmp_path / "x.npy").exists()
    run("export", dump, tmp_path / "x.npy", "--on-missing", "skip")
    assert np.load(tmp_path / "x.npy").shape == (1, 2)
    run("export", dump, tmp_path / "x.npy", "--on-missing", "nan")
    assert np.isnan(np.load(tmp_path / "x.npy")).tolist() == [[False] * 2, [True] * 2]


def test_inspect(tmp_path: Path) -> None:
    dump = tmp_path / "a.bson"
    tg.save(dump, {"v": MATRIX, "bits": MATRIX > 0})
    lines = run("inspect", dump).stdout.splitlines()
    assert lines[0].split() == ["field", "dtype", "count", "vectors", "size", "documents", "trouble"]
    assert ["bits", "packed_bit", "13", "20", "180", "B", "20", "-"] in [line.split() for line in lines]
    dump.write_bytes(dump.read_bytes() + document(vector("v\x1b", b"\x99\0")))
    told = run_json("inspect", dump, code=1)
    assert [field["vectors"] for field in told["fields"]] == [20, 20, 1]
    assert told["fields"][2]["dtype"] is None
    assert "\x1b" not in run("inspect", dump, code=1).stdout


def test_quantize(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", MATRIX)
    assert run_json("quantize", tmp_path / "a.npy", tmp_path / "a.bt")["ranges"] is True
    expected = tg.bson.quantize(MATRIX)
    found = tg.load(tmp_path / "a.bt")
    assert np.array_equal(found["embedding"], expected.data)
    assert np.array_equal(found["embedding.low"], expected.low)
    assert np.array_equal(found["embedding.high"], expected.high)
    for name in ("a.bson", "b.npy"):
        assert "pass --ranges FILE" in run("quantize", tmp_path / "a.npy", tmp_path / name, code=2).stderr
        assert not (tmp_path / name).exists()
    run("quantize", tmp_path / "a.npy", tmp_path / "a.bson", "--ranges", tmp_path / "r.bt")
    assert np.array_equal(tg.load(tmp_path / "a.bson")["embedding"], expected.data)
    assert np.array_equal(tg.load(tmp_path / "r.bt")["low"], expected.low)
    bits = (tmp_path / "a.npy", tmp_path / "b.bson", "--to", "packed_bit")
    assert "ranges; leave out --ranges" in run("quantize", *bits, "--ranges", tmp_path / "r.zt", code=2).stderr
    assert "b.bson is not a collection; --update needs one" in run("quantize", *bits, "--update", code=2).stderr
    run("quantize", *bits)
    assert np.array_equal(tg.load(tmp_path / "b.bson")["embedding"], MATRIX > 0)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["import", "none.npy", "x.bson"], 5),
        (["import", "text.npy", "x.bson"], 3),
        (["import", "object.npy", "x.bson"], 4),
        (["export", "text.npy.bson", "x.npy"], 3),
        (["export", "mongodb://nowhere", "x.npy"], 2),
        (["export", "mongodb://nowhere/db", "x.npy"], 2),
        (["export", "mongodb://[/a.b", "x.npy"], 2),
        (["migrate", "x.bson"], 2),
        (["import", "good.npy", "x.none"], 2),
        (["inspect", "good.npy"], 4),
        (["inspect", "good.parquet"], 4),
    ],
)
def test_errors(tmp_path: Path, args: list[str], code: int) -> None:
    if any("mongodb" in arg or arg == "migrate" for arg in args):
        needs("pymongo")
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "text.npy.bson").write_text("text and more")
    np.save(tmp_path / "object.npy", np.array([{}], object))
    np.save(tmp_path / "good.npy", MATRIX)
    command, *rest = args
    run(command, *(arg if "mongodb" in arg else tmp_path / arg for arg in rest), code=code)


@pytest.mark.mongo
class TestCollection:
    @pytest.mark.parametrize("what", NATURAL)
    def test_there_and_back(self, mongod_url: str, tmp_path: Path, what: str) -> None:
        place = f"{mongod_url}/tests.cli_{what}"
        np.save(tmp_path / "a.npy", NATURAL[what])
        assert run_json("import", tmp_path / "a.npy", place, "--key", "meta.v")["vectors"] == 20
        told = run_json("inspect", place)
        assert (told["fields"][0]["name"], told["fields"][0]["count"]) == ("meta.v", 13)
        for name in ("b.npy", "b.bt", "b.zt", "b.bson"):
            run("export", place, tmp_path / name, "--key", "embedding")
            assert np.array_equal(stored(tmp_path / name), NATURAL[what])
        run("import", tmp_path / "a.npy", place, "--key", "other")
        run("export", place, tmp_path / "c.npy", "--from", "other", "--on-missing", "skip")
        assert np.array_equal(np.load(tmp_path / "c.npy"), NATURAL[what])
        assert run("inspect", place, code=1).stdout.count("20 of 40") == 2

    def test_quantize(self, mongod_url: str, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", MATRIX)
        run("import", tmp_path / "a.npy", f"{mongod_url}/tests.large")
        run("quantize", f"{mongod_url}/tests.large", f"{mongod_url}/tests.small", "--to", "packed_bit")
        run("export", f"{mongod_url}/tests.small", tmp_path / "b.npy")
        assert np.array_equal(np.load(tmp_path / "b.npy"), MATRIX > 0)

    def test_migrate(self, mongod_url: str, tmp_path: Path) -> None:
        with needs("pymongo").MongoClient(mongod_url) as client:
            client["tests"]["arrays"].insert_many({"_id": i, "embedding": row} for i, row in enumerate(MATRIX.tolist()))
        place = f"{mongod_url}/tests.arrays"
        dry = run_json("migrate", place, "--dry-run")
        assert (dry["migrated"], dry["dry_run"], dry["largest_error"]) == (20, True, 0.0)
        run("export", place, tmp_path / "a.npy", "--from", "embedding", code=3)
        lines = run("migrate", place).stdout.splitlines()
        assert ["migrated", "20"] in [line.split() for line in lines]
        run("export", place, tmp_path / "a.npy")
        assert np.array_equal(np.load(tmp_path / "a.npy"), MATRIX)
        with needs("pymongo").MongoClient(mongod_url) as client:
            client["tests"]["arrays"].insert_one({"_id": "odd", "embedding": ["x"]})
        assert "odd: an element of the array is not a number" in run("migrate", place, code=1).stderr

    def test_a_path_through_an_array_of_documents_is_not_migrated(self, mongod_url: str) -> None:
        documents = [{"_id": i, "items": [{"v": [1.0, 2.0]}]} for i in range(103)]
        with needs("pymongo").MongoClient(mongod_url) as client:
            client["tests"]["nested"].insert_many(documents)
            lines = run("migrate", f"{mongod_url}/tests.nested", "--key", "items.v", code=1).stderr.splitlines()
            assert list(client["tests"]["nested"].find(sort=["_id"])) == documents
        assert lines == [*(f"{i}: the path leads through an array of documents" for i in range(100)), "… and 3 more"]

    def test_a_server_that_is_not_there(self, tmp_path: Path) -> None:
        needs("pymongo")
        place = "mongodb://127.0.0.1:1/a.b?serverSelectionTimeoutMS=100"
        assert run("export", place, tmp_path / "x.npy", "--from", "v", code=5).stderr.startswith("error: ")
