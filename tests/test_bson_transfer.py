"""Embeddings in a real MongoDB: export, quantize, import, update and back; kills, two at once, names that are wrong."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import command_line
import tensorglot as tg
from peers import needs
from tensorglot.bson import Embeddings, Raw, read_embeddings, write_embeddings

pytestmark = pytest.mark.mongo

run = partial(command_line.run, "vectors")
RNG = np.random.default_rng(41)
SOURCE = Path(__file__).parents[1] / "src"


def run_json(*args: str | Path, code: int = 0) -> Any:
    return json.loads(run(*args, "--json", code=code).stdout)


@pytest.fixture
def database(mongod_url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with needs("pymongo").MongoClient(mongod_url) as client:
        found = client["transfer_" + "".join(c if c.isalnum() else "_" for c in request.node.name)[:40]]
        client.drop_database(found.name)
        yield found
        client.drop_database(found.name)


def url(database: Any, collection: str) -> str:
    host, port = database.client.address
    return f"mongodb://{host}:{port}/{database.name}.{collection}"


def raw(collection: Any) -> bytes:
    """All documents of a collection, byte for byte, in the order of ids."""
    return b"".join(collection.find_raw_batches({}, sort=[("_id", 1)]))


def products(count: int, columns: int = 8) -> list[dict[str, Any]]:
    bson = needs("bson")
    values = RNG.standard_normal((count, columns), np.float32)
    payloads = tg.bson.encode_matrix(values)
    return [
        {
            "_id": bson.ObjectId() if i % 3 else f"sku-{i}" if i % 2 else i,
            "title": f"product {i}",
            "price": i / 4,
            "meta": {"lang": "en" if i % 5 else "de", "count": bson.Int64(i)},
            "embedding": bson.Binary(payload, 9),
        }
        for i, payload in enumerate(payloads)
    ]


KEPT = ("title", "price", "meta.lang", "meta.count")
FIELD_OPTIONS = [text for name in KEPT for text in ("--field", name)]


def test_a_hundred_thousand_documents_there_and_back(database: Any, tmp_path: Path) -> None:
    needs("pyarrow")
    database["products"].insert_many(products(100_000))
    before = raw(database["products"])
    exported, small, ranges = tmp_path / "all.parquet", tmp_path / "small.npz", tmp_path / "ranges.zt"
    told = run_json("export", url(database, "products"), exported, *FIELD_OPTIONS)
    assert (told["vectors"], told["count"], told["ids"]) == (100_000, 8, True)
    found = read_embeddings(exported, fields=KEPT)
    assert found.ids is not None

    told = run_json("import", exported, url(database, "again"), *FIELD_OPTIONS)
    assert (told["inserted"], told["unchanged"]) == (100_000, 0)
    assert raw(database["again"]) == before

    run("quantize", exported, small, *FIELD_OPTIONS)
    expected = found.quantize()
    back = read_embeddings(small, "embedding", fields=KEPT)
    assert back.ids is not None
    assert back.ids.dump("x") == found.ids.dump("x")
    assert all(back.fields[name].dump("x") == found.fields[name].dump("x") for name in KEPT)
    assert np.array_equal(back.matrix, expected.matrix)
    same = url(database, "products")
    assert "--update" in run("quantize", same, same, "--key", "small", "--ranges", ranges, code=2).stderr
    told = run_json("quantize", same, same, "--key", "small", "--ranges", ranges, "--update")
    assert (told["updated"], told["missing"]) == (100_000, 0)
    both = read_embeddings(same, "small")
    assert both.ids is not None
    assert both.ids.dump("x") == found.ids.dump("x")
    assert np.array_equal(both.matrix, expected.matrix)
    assert np.array_equal(tg.load(ranges)["low"], expected.ranges[0])  # type: ignore[index]

    database["products"].update_many({}, {"$unset": {"small": 1}})
    assert raw(database["products"]) == before


def test_what_an_import_does_with_documents_that_exist(database: Any, tmp_path: Path) -> None:
    collection = database["c"]
    matrix = RNG.standard_normal((6, 4), np.float32)
    given = Embeddings(matrix, "v", range(6), {"n": list(range(6))})
    write_embeddings(tmp_path / "a.npz", given)
    source, target = tmp_path / "a.npz", url(database, "c")
    collection.insert_one({"_id": 2, "v": needs("bson").Binary(tg.bson.encode(matrix[2]), 9), "n": 2, "more": 1})
    collection.insert_one({"_id": 3.0, "v": "text", "n": 3})
    collection.insert_one({"_id": needs("bson").Int64(4), "n": 4})
    left = raw(collection)
    options = ["--field", "n"]
    dry = run_json("import", source, target, *options, "--dry-run", code=1)
    assert raw(collection) == left
    real = run_json("import", source, target, *options, code=1)
    for told in (dry, real):
        assert (told["inserted"], told["unchanged"], told["conflicts"], told["rows"]) == (3, 1, 2, 6)
        assert {one["id"]: one["reason"] for one in told["reasons"]} == dict.fromkeys("34", "exists with other values")
    assert raw(collection).count(left) == 1
    dry = run_json("import", source, target, *options, "--update", "--dry-run")
    real = run_json("import", source, target, *options, "--update")
    for told in (dry, real):
        assert (told["updated"], told["unchanged"], told["missing"]) == (2, 4, 0)
    assert np.array_equal(tg.bson.read_matrix(collection, "v", {"_id": {"$lt": 6}}).sum(), matrix.sum())
    assert collection.find_one({"_id": 2})["more"] == 1
    collection.delete_many({"_id": {"$in": [0, 1]}})
    for more in (["--dry-run"], []):
        told = run_json("import", source, target, *options, "--update", *more, code=1)
        assert (told["unchanged"], told["missing"]) == (4, 2)
        assert [one["id"] for one in told["reasons"]] == ["0", "1"]
    assert "0: does not exist" in run("import", source, target, *options, "--update", code=1).stderr


def test_documents_that_the_server_refuses_are_listed_and_the_others_written(database: Any) -> None:
    collection = database["c"]
    collection.insert_many([{"_id": 0, "a": 5}, {"_id": 1, "a": {}}, {"_id": 2, "a": [1]}, {"_id": 3}])
    given = Embeddings(np.ones((4, 2), np.float32), "a.v", range(4))
    done = write_embeddings(collection, given, update=True)
    assert (done.updated, done.failed, done.missing, done.ok) == (2, 2, 0, False)
    assert [own_id for own_id, _ in done.reasons] == ["0", "2"]
    assert collection.find_one({"_id": 0}) == {"_id": 0, "a": 5}
    collection.create_index("n", unique=True, sparse=True)
    new = Embeddings(np.ones((2, 2), np.float32), "v", [7, 8], {"n": [1, 1]})
    done = write_embeddings(collection, new)
    assert (done.inserted, done.failed, done.conflicts) == (1, 1, 0)


def test_ids_are_values_and_never_operators(database: Any, tmp_path: Path) -> None:
    collection, bson = database["c"], needs("bson")
    left = [{"_id": "alice"}, {"_id": 5}, {"_id": float("nan")}]
    collection.insert_many(left)
    ids = [{"$gt": ""}, {"$exists": True}, bson.Regex("."), "bob"]
    write_embeddings(tmp_path / "a.bson", Embeddings(np.ones((4, 2), np.float32), "v", ids))
    for dry_run in (True, False):
        done = write_embeddings(collection, read_embeddings(tmp_path / "a.bson"), update=True, dry_run=dry_run)
        assert (done.missing, done.updated) == (4, 0)
        assert list(map(list, collection.find())) == [["_id"]] * 3
    done = write_embeddings(collection, read_embeddings(tmp_path / "a.bson"))
    assert (done.inserted, done.failed) == (1, 3)
    equal = Embeddings(np.ones((2, 2), np.float32), "v", [bson.Decimal128("5.0"), bson.Decimal128("NaN")])
    for dry_run in (True, False):
        assert write_embeddings(collection, equal, dry_run=dry_run).conflicts == 2
        assert write_embeddings(collection, equal, dry_run=dry_run, update=True).updated == 2


def test_a_source_without_ids_is_imported_once(database: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RNG.standard_normal((50, 4), np.float32))
    place = url(database, "c")
    assert run_json("import", tmp_path / "a.npy", place)["inserted"] == 50
    assert run_json("import", tmp_path / "a.npy", place)["unchanged"] == 50
    assert run_json("import", tmp_path / "a.npy", place, "--key", "other")["inserted"] == 50
    assert "needs the _id" in run("import", tmp_path / "a.npy", place, "--update", code=2).stderr


def unnamed_files(process: int, folder: Path) -> int:
    """How many files without a name in a folder a process has written to."""
    count = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for held in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                where = str(held.readlink())
                count += where.startswith(str(folder)) and where.endswith("(deleted)") and held.stat().st_size > 0
    return count


class TestKilled:
    """The command line is killed when it has done some of its work, run again, and the result is that of one run."""

    def command(self, *args: str | Path) -> subprocess.Popen[bytes]:
        code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from tensorglot.cli import main; main()"
        command = [sys.executable, "-c", code, "vectors", *map(str, args)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    COUNT = 8000

    def kill_after(self, collection: Any, query: dict[str, Any], least: int, *args: str | Path) -> int:
        """Kills the command as soon as so many documents match; how many do then, which is not all."""
        process = self.command(*args)
        while process.poll() is None and collection.count_documents(query) < least:
            pass
        process.kill()
        assert process.wait() == -signal.SIGKILL
        done = int(collection.count_documents(query))
        assert least <= done < self.COUNT
        return done

    def test_import_and_update(self, database: Any, tmp_path: Path) -> None:
        count = self.COUNT
        matrix = RNG.standard_normal((count, 8), np.float32)
        write_embeddings(tmp_path / "a.npz", Embeddings(matrix, "v", range(count), {"n": range(count)}))
        write_embeddings(tmp_path / "b.npz", Embeddings(matrix + 1, "v", range(count), {"m": range(count)}))
        place, collection = url(database, "c"), database["c"]
        for least in (1, count // 3):
            left = self.kill_after(collection, {}, least, "import", tmp_path / "a.npz", place, "--field", "n")
        told = run_json("import", tmp_path / "a.npz", place, "--field", "n")
        assert (told["inserted"] + told["unchanged"], told["conflicts"]) == (count, 0)
        assert told["unchanged"] >= left
        self.check(place, matrix)

        for least in (1, count // 3):
            changed = {"m": {"$exists": True}}
            options = ("--update", "--field", "m")
            left = self.kill_after(collection, changed, least, "import", tmp_path / "b.npz", place, *options)
        told = run_json("import", tmp_path / "b.npz", place, "--update", "--field", "m")
        assert (told["updated"] + told["unchanged"], told["missing"]) == (count, 0)
        assert told["unchanged"] >= left
        self.check(place, matrix + 1)

    def check(self, place: str, matrix: Any) -> None:
        """Each document is there once, with its vector and its field."""
        found = read_embeddings(place, "v", fields=["n"])
        assert found.ids is not None
        assert found.ids.tolist() == found.fields["n"].tolist()
        order = np.argsort(found.ids.tolist())
        assert np.array_equal(found.matrix[order], matrix)
        assert sorted(found.ids.tolist()) == list(range(len(matrix)))

    def test_quantize_in_place(self, database: Any, tmp_path: Path) -> None:
        count = self.COUNT
        matrix = RNG.standard_normal((count, 8), np.float32)
        place, collection, ranges = url(database, "c"), database["c"], tmp_path / "ranges.zt"
        write_embeddings(collection, Embeddings(matrix, "v", range(count), {"n": range(count)}))
        command = ("quantize", place, place, "--from", "v", "--key", "small", "--update", "--ranges", ranges)
        for least in (1, count // 3):
            left = self.kill_after(collection, {"small": {"$exists": True}}, least, *command)
        told = run_json(*command)
        assert (told["updated"] + told["unchanged"], told["missing"]) == (count, 0)
        assert told["unchanged"] >= left
        self.check(place, matrix)
        expected = tg.bson.quantize(matrix)
        small = read_embeddings(place, "small")
        assert small.ids is not None
        assert np.array_equal(small.matrix[np.argsort(small.ids.tolist())], expected.data)
        found = tg.load(ranges)
        assert np.array_equal(found["low"], expected.low)
        assert np.array_equal(found["high"], expected.high)

    def test_an_export_leaves_nothing_or_all(self, database: Any, tmp_path: Path) -> None:
        """Killed when it has written to its first file without a name, which is a copy of what it reads, and later."""
        given = Embeddings(RNG.standard_normal((20_000, 64), np.float32), "v", range(20_000))
        write_embeddings(database["c"], given)
        target = tmp_path / "a.zt"
        for files in (1, 2):
            process = self.command("export", url(database, "c"), target)
            while process.poll() is None and unnamed_files(process.pid, tmp_path) < files:
                pass
            process.kill()
            assert process.wait() == -signal.SIGKILL
            assert list(tmp_path.iterdir()) == []
        run("export", url(database, "c"), target)
        found = read_embeddings(target, "v")
        assert found.ids is not None
        assert np.array_equal(found.matrix[np.argsort(found.ids.tolist())], given.matrix)
        assert [path.name for path in tmp_path.iterdir()] == ["a.zt"]

    def test_two_at_once(self, database: Any, tmp_path: Path) -> None:
        """Two imports of one file, and two migrations of one collection: nothing lost, nothing twice."""
        count = 2000
        values = RNG.standard_normal((count, 8))
        write_embeddings(tmp_path / "a.npz", Embeddings(values, "v", range(count)))
        processes = [self.command("import", tmp_path / "a.npz", url(database, "c")) for _ in range(2)]
        assert [process.wait() for process in processes] == [0, 0]
        assert database["c"].count_documents({}) == count
        database["arrays"].insert_many({"_id": i, "v": row} for i, row in enumerate(values.tolist()))
        results: list[Any] = []

        def migrate() -> None:
            with needs("pymongo").MongoClient(*database.client.address) as client:
                results.append(tg.bson.migrate(client[database.name]["arrays"], "v", batch_size=100))

        threads = [threading.Thread(target=migrate) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(result.migrated for result in results) == count
        assert [result.changed for result in results] == [0, 0]
        assert all(result.migrated + result.concurrent == result.found for result in results)
        found = read_embeddings(database["arrays"], "v")
        assert found.ids is not None
        assert np.array_equal(found.matrix[np.argsort(found.ids.tolist())], values.astype(np.float32))


class TestNames:
    def test_wrong_ones_are_errors_with_the_nearest(self, database: Any, tmp_path: Path) -> None:
        write_embeddings(database["products"], Embeddings(np.ones((3, 2), np.float32), "meta.vector", range(3)))
        source, target = url(database, "products"), tmp_path / "x.npz"
        for args, hint in (
            (("export", url(database, "product"), target), "did you mean 'products'"),
            (("export", url(database, "product"), target, "--from", "meta.vector"), "did you mean 'products'"),
            (("export", source, target, "--from", "meta.vektor"), "did you mean 'meta.vector'"),
            (("export", source, target, "--from", "meta.vektor", "--on-missing", "skip"), "did you mean 'meta.vector'"),
            (("export", source, target, "--field", "mta"), "did you mean 'meta'"),
            (("migrate", source, "--key", "meta.vektor"), "did you mean 'meta.vector'"),
            (("migrate", url(database, "prodcts")), "did you mean 'products'"),
            (("inspect", url(database, "prodcts")), "did you mean 'products'"),
            (("import", source, url(database, "prodcts"), "--update"), "did you mean 'products'"),
        ):
            error = run(*args, code=2).stderr
            assert hint in error
            assert error.count("\n") == 1
        with needs("pymongo").MongoClient(*database.client.address) as client:
            other = client[database.name + "s"]["products"]
            with pytest.raises(tg.TensorNotFound, match=f"no database '{other.database.name}'; did you mean"):
                read_embeddings(other, "v")
        assert not target.exists()

    def test_a_filter_and_a_collection_of_the_driver(self, database: Any) -> None:
        given = Embeddings(
            np.eye(4, dtype=np.float32), "v", [Raw(7, bytes([i] * 12)) for i in range(4)], {"n": range(4)}
        )
        write_embeddings(database["c"], given)
        found = read_embeddings(database["c"], fields=["n"], filter={"n": {"$gte": 2}})
        assert found.fields["n"].tolist() == [2, 3]
        assert found.ids is not None
        assert found.ids.tolist() == [Raw(7, bytes([i] * 12)) for i in (2, 3)]
        assert len(read_embeddings(database["c"], "v", filter={"n": 99})) == 0


def test_a_refused_connection_is_one_line_without_the_password(tmp_path: Path) -> None:
    needs("pymongo")
    place = "mongodb://user:secret@127.0.0.1:1/a.b?serverSelectionTimeoutMS=100"
    for args in (("export", place, tmp_path / "x.npz", "--from", "v"), ("inspect", place), ("migrate", place)):
        error = run(*args, code=5).stderr
        assert error == "error: MongoDB: 127.0.0.1:1: [Errno 111] Connection refused\n"
    for place in ("mongodb://user:secret@host:port/a.b", "mongodb://user:secret@h/a", "mongodb://us:sec:ret@h/a.b"):
        error = run("inspect", place, code=2).stderr
        assert "secret" not in error
        assert "sec:ret" not in error


def test_the_password_is_not_printed(database: Any, tmp_path: Path) -> None:
    write_embeddings(database["c"], Embeddings(np.eye(4, dtype=np.float32), "v", range(4)))
    told = run_json("export", url(database, "c"), tmp_path / "x.npz")
    assert told["source"] == url(database, "c")
    from tensorglot.bson.places import place_text

    assert place_text("mongodb://user:secret@host/a.b") == "mongodb://host/a.b"


class TestCodec:
    def test_vectors_are_stored_and_read_by_the_driver(self, database: Any) -> None:
        options, bson = needs("bson.codec_options"), needs("bson")
        collection = database.get_collection("c", options.CodecOptions(type_registry=tg.bson.type_registry()))
        vectors = [
            tg.bson.Vector([1.5, -2.0]),
            tg.bson.Vector([1, -1], "int8"),
            tg.bson.Vector(np.array([True, False])),
        ]
        collection.insert_one({"_id": 1, "v": vectors[0], "deep": {"list": vectors}})
        found = collection.find_one({"_id": 1})
        assert found == {"_id": 1, "v": vectors[0], "deep": {"list": vectors}}
        collection.update_one({"_id": 1}, {"$set": {"v": vectors[1]}})
        assert collection.find_one({"v": vectors[1]})["_id"] == 1
        assert database["c"].find_one()["v"] == vectors[1].binary()
        other = bson.Binary(b"x", 5)
        broken = bson.Binary(b"\x99\0", 9)
        database["c"].insert_one({"_id": 2, "other": other, "broken": broken})
        assert collection.find_one({"_id": 2}) == {"_id": 2, "other": other, "broken": broken}

    def test_with_other_codecs(self) -> None:
        options, bson = needs("bson.codec_options"), needs("bson")

        class Point:
            pass

        class PointCodec(options.TypeEncoder):  # type: ignore[misc, name-defined]
            python_type = Point

            def transform_python(self, value: Any) -> Any:
                return [0, 0]

        registry = tg.bson.type_registry([PointCodec()])
        data = bson.encode(
            {"p": Point(), "v": tg.bson.Vector([1.0])}, codec_options=options.CodecOptions(type_registry=registry)
        )
        assert bson.decode(data)["p"] == [0, 0]
        assert tg.bson.decode_document(data)["v"] == tg.bson.Vector([1.0])
