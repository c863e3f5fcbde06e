"""A real MongoDB: matrices written and read, arrays of doubles migrated, also when the migration is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import needs
from tensorglot.bson.migrate import migrate
from tensorglot.bson.mongodb import read_matrix, write_matrix

pytestmark = pytest.mark.mongo

RNG = np.random.default_rng(9)
ROWS, COLUMNS = 10_000, 1536


@pytest.fixture
def collection(mongod_url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with needs("pymongo").MongoClient(mongod_url) as client:
        found = client["tensorglot"][request.node.name.replace("[", "_").replace("]", "")]
        found.drop()
        yield found
        found.drop()


@pytest.mark.parametrize("dtype", ["float32", "int8", "packed_bit"])
def test_a_whole_collection(collection: Any, dtype: str) -> None:
    matrix: Any = RNG.standard_normal((ROWS, COLUMNS), np.float32)
    if dtype != "float32":
        matrix = tg.bson.quantize(matrix, to=dtype)  # type: ignore[arg-type]
    values = np.asarray(matrix)
    numbers = np.unpackbits(values, axis=1).view(bool) if dtype == "packed_bit" else values
    seen: list[tuple[int, int]] = []
    ids = write_matrix(collection, matrix, "embedding", progress=lambda *state: seen.append(state))
    assert seen[-1] == (ROWS, ROWS)
    assert collection.count_documents({}) == ROWS
    found, found_ids = read_matrix(collection, "embedding", ids=True)
    assert found_ids == ids
    assert found.dtype == numbers.dtype
    assert np.array_equal(found, numbers)
    out = np.empty_like(numbers)
    assert read_matrix(collection, "embedding", out=out) is out
    assert np.array_equal(out, numbers)
    if dtype == "packed_bit":
        packed, found_ids = read_matrix(collection, "embedding", packed=True, ids=True)
        assert (packed.data.tobytes(), packed.padding, found_ids) == (values.tobytes(), 0, ids)
    one = collection.find_one({"_id": ids[1234]})["embedding"]
    assert tg.bson.decode(one) == tg.bson.Vector(values[1234], dtype)
    assert one.as_vector().data == values[1234].tolist()
    with collection.find({}, batch_size=500) as cursor:
        assert np.array_equal(tg.bson.decode_matrix(cursor, "embedding"), numbers)
    raw = collection.find_raw_batches({})
    assert np.array_equal(tg.bson.decode_matrix(raw, "embedding"), numbers)
    (report,) = tg.bson.inspect(collection.find_raw_batches({}))
    assert (report.name, report.dtype, report.vectors, report.trouble) == ("embedding", dtype, ROWS, None)


class TestWriteAndRead:
    MATRIX = RNG.standard_normal((30, 4), np.float32)

    @pytest.mark.parametrize("how", ["int", "text", "numpy", "mixed", "object", "uuid"])
    def test_ids(self, collection: Any, how: str) -> None:
        bson, uuid = needs("bson"), needs("uuid")
        ids: Any = {
            "int": range(30),
            "text": [f"id{i}" * i for i in range(30)],
            "numpy": np.arange(30) + 2**40,
            "mixed": [*range(28), "x", 2.5],
            "object": [bson.ObjectId() for _ in range(30)],
            "uuid": [bson.Binary.from_uuid(uuid.uuid4()) for _ in range(30)],
        }[how]
        assert write_matrix(collection, self.MATRIX, "v", ids) == list(ids)
        found, found_ids = read_matrix(collection, "v", ids=True)
        assert found_ids == list(ids)
        assert np.array_equal(found, self.MATRIX)

    @pytest.mark.parametrize("key", ["v", "a.b.c"])
    def test_other_fields(self, collection: Any, key: str) -> None:
        documents = [{"title": f"t{i}", "a": {"x": i}} for i in range(30)]
        ids = write_matrix(collection, self.MATRIX, key, documents=documents)
        assert documents[0] == {"title": "t0", "a": {"x": 0}}
        stored = list(collection.find())
        assert [d["_id"] for d in stored] == ids
        assert [(d["title"], d["a"]["x"]) for d in stored] == [(f"t{i}", i) for i in range(30)]
        assert np.array_equal(read_matrix(collection, key), self.MATRIX)
        assert np.array_equal(read_matrix(collection, key, {"a.x": {"$lt": 7}}), self.MATRIX[:7])

    def test_ids_of_the_documents(self, collection: Any) -> None:
        documents = [{"_id": i * 10} for i in range(30)]
        assert write_matrix(collection, self.MATRIX, "v", documents=documents) == [i * 10 for i in range(30)]
        with pytest.raises(tg.InputError, match=r"rule bson\.ids"):
            write_matrix(collection, self.MATRIX, "v", ids=range(30), documents=documents)

    @pytest.mark.parametrize(
        ("options", "fault"),
        [
            ({"ids": [1]}, "ids"),
            ({"documents": [{}]}, "documents"),
            ({"documents": [{"v": 1}] * 30}, "path"),
            ({"key": "v.w", "documents": [{"v": 1}] * 30}, "path"),
            ({"key": ""}, "path"),
            ({"key": "_id"}, "key"),
            ({"dtype": "int8"}, "vector.kind"),
        ],
    )
    def test_refused(self, collection: Any, options: dict[str, Any], fault: str) -> None:
        with pytest.raises(tg.InputError, match=f"rule bson.{fault}"):
            write_matrix(collection, self.MATRIX, **{"key": "v", **options})
        assert collection.count_documents({}) == 0

    def test_missing(self, collection: Any) -> None:
        write_matrix(collection, self.MATRIX, "v", range(30))
        collection.insert_one({"_id": 99})
        with pytest.raises(tg.FormatError, match=r"rule bson\.field\.missing"):
            read_matrix(collection, "v")
        assert read_matrix(collection, "v", on_missing="skip").shape == (30, 4)
        seen: list[tuple[int, int]] = []
        found, ids = read_matrix(collection, "v", on_missing="nan", ids=True, progress=lambda *s: seen.append(s))
        assert np.isnan(found[30]).all()
        assert ids[30] == 99
        assert seen[-1] == (31, 31)

    def test_arrays_and_the_collection_itself_are_told_apart_from_vectors(self, collection: Any) -> None:
        collection.insert_one({"v": [1.0, 2.0]})
        for source in (collection.find(), list(collection.find()), collection.find_raw_batches()):
            with pytest.raises(tg.FormatError, match=r"not a vector.*migrate converts arrays"):
                tg.bson.decode_matrix(source, "v")
        with pytest.raises(tg.InputError, match=r"pass collection\.find_raw_batches\(\)"):
            tg.bson.decode_matrix(collection, "v")

    def test_nothing(self, collection: Any) -> None:
        assert write_matrix(collection, self.MATRIX[:0], "v") == []
        with pytest.raises(tg.TensorNotFound, match=r"no (database|collection)"):
            read_matrix(collection, "v")
        collection.database.create_collection(collection.name)
        assert read_matrix(collection, "v").shape == (0, 0)

    @pytest.mark.parametrize("on_missing", ["error", "skip", "nan"])
    def test_a_key_that_no_document_has(self, collection: Any, on_missing: Any) -> None:
        write_matrix(collection, self.MATRIX, "meta.vector", range(30))
        for call in (
            lambda: read_matrix(collection, "meta.vecter", on_missing=on_missing),
            lambda: migrate(collection, "meta.vecter"),
        ):
            with pytest.raises(tg.TensorNotFound, match=r"did you mean 'meta\.vector'"):
                call()
        assert read_matrix(collection, "meta.vector", {"_id": 99}).shape == (0, 0)
        assert migrate(collection, "meta.vector").found == 0
        misnamed = collection.database[collection.name + "s"]
        with pytest.raises(tg.TensorNotFound, match=f"did you mean '{collection.name}'"):
            read_matrix(misnamed, "meta.vector", on_missing=on_missing)
        with pytest.raises(tg.TensorNotFound, match=f"did you mean '{collection.name}'"):
            migrate(misnamed, "meta.vector")

    def test_errors_of_the_driver_pass_through(self, collection: Any) -> None:
        with pytest.raises(needs("pymongo").errors.BulkWriteError):
            write_matrix(collection, self.MATRIX, "v", [1] * 30)

    def test_the_server_stores_the_bytes_as_they_are(self, collection: Any) -> None:
        bson = needs("bson")
        for payload in (b"", b"\3", b"\x99\0", b"\x10\7\xff"):
            collection.insert_one({"_id": payload, "v": bson.Binary(payload, 9)})
            with pytest.raises(tg.FormatError):
                read_matrix(collection, "v", {"_id": payload})


class Meddling:
    """A collection into which somebody else writes just before each update."""

    def __init__(self, collection: Any, meddle: Callable[[], None]) -> None:
        self._collection = collection
        self._meddle = meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collection, name)

    def bulk_write(self, *arguments: Any, **options: Any) -> Any:
        self._meddle()
        return self._collection.bulk_write(*arguments, **options)


class Failing:
    """A collection whose connection breaks at one of its commands: before it is sent, or after it was done."""

    def __init__(self, collection: Any, strike: int, *, after: bool) -> None:
        self._collection, self._strike, self._after = collection, strike, after
        self.commands = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._collection, name)
        if name not in ("bulk_write", "count_documents", "find_raw_batches"):
            return real

        def command(*arguments: Any, **options: Any) -> Any:
            self.commands += 1
            struck = self.commands == self._strike
            if not struck or self._after:
                result = real(*arguments, **options)
            if struck:
                raise ConnectionResetError("the connection is gone")
            return result

        return command


def bson_bytes(document: Any) -> bytes:
    """A document byte for byte: 1 is not 1.0 there, and 0.0 not -0.0."""
    raw: bytes = needs("bson").encode(document)
    return raw


class TestMigrate:
    def fill(self, collection: Any, rows: int = 3000, columns: int = 64) -> np.ndarray[Any, Any]:
        values = RNG.standard_normal((rows, columns))
        collection.insert_many({"_id": i, "n": {"v": row}, "title": f"t{i}"} for i, row in enumerate(values.tolist()))
        return values

    def check(self, collection: Any, values: np.ndarray[Any, Any]) -> None:
        assert collection.count_documents({}) == len(values)
        found, ids = read_matrix(collection, "n.v", ids=True)
        assert sorted(ids) == list(range(len(values)))
        assert np.array_equal(found[np.argsort(ids)], values.astype(np.float32))
        assert collection.count_documents({"title": {"$exists": True}}) == len(values)

    def test_whole(self, collection: Any) -> None:
        values = self.fill(collection)
        before = list(collection.find())
        dry = migrate(collection, "n.v", dry_run=True)
        assert list(collection.find()) == before
        seen: list[tuple[int, int]] = []
        done = migrate(collection, "n.v", progress=lambda *state: seen.append(state))
        assert (dry.dry_run, done.dry_run) == (True, False)
        assert (done.found, done.migrated, done.skipped, done.changed) == (3000, 3000, 0, 0)
        assert (dry.found, dry.migrated, dry.nbytes_before, dry.nbytes_after, dry.largest_error) == (
            3000, 3000, done.nbytes_before, done.nbytes_after, done.largest_error,
        )  # fmt: skip
        assert done.largest_error == np.abs(values - values.astype(np.float32)).max()
        assert done.nbytes_after == 3000 * (5 + 2 + 4 * 64)
        assert done.saved_nbytes == done.nbytes_before - done.nbytes_after > 0
        assert seen[-1] == (3000, 3000)
        self.check(collection, values)
        again = migrate(collection, "n.v")
        assert (again.found, again.migrated) == (0, 0)
        assert done.to_dict()["saved_nbytes"] == done.saved_nbytes

    def test_values_that_are_not_vectors_stay(self, collection: Any) -> None:
        odd: dict[str, Any] = {
            "text": [1.0, "x"], "nested": [[1.0]], "empty": [], "large": [1e39], "null": [None],
        }  # fmt: skip
        collection.insert_many({"_id": name, "v": value} for name, value in odd.items())
        collection.insert_many([{"_id": "none"}, {"_id": "number", "v": 1}, {"_id": "good", "v": [1, 2.5, -3]}])
        collection.insert_one({"_id": "inf", "v": [float("inf"), float("nan"), 2**40]})
        result = migrate(collection, "v")
        assert (result.found, result.migrated, result.skipped) == (7, 2, 5)
        assert {own_id for own_id, _ in result.reasons} == set(odd)
        for name, value in odd.items():
            assert collection.find_one({"_id": name})["v"] == value
        assert collection.find_one({"_id": "good"})["v"].as_vector().data == [1.0, 2.5, -3.0]
        assert collection.find_one({"_id": "inf"})["v"].as_vector().data[2] == 2.0**40
        assert "v" not in collection.find_one({"_id": "none"})

    def test_a_filter(self, collection: Any) -> None:
        self.fill(collection, 20, 3)
        assert migrate(collection, "n.v", {"_id": {"$gte": 15}}).migrated == 5
        assert collection.count_documents({"n.v": {"$type": "array"}}) == 15

    def test_a_document_changed_meanwhile_is_left_alone(self, collection: Any) -> None:
        self.fill(collection, 20, 3)

        def meddle() -> None:
            collection.update_one({"_id": 7}, {"$set": {"n.v": [9.0, 9.0, 9.0]}})
            collection.delete_one({"_id": 8})
            collection.update_one({"_id": 9}, {"$set": {"title": "new"}})

        result = migrate(Meddling(collection, meddle), "n.v")  # type: ignore[arg-type]
        assert (result.migrated, result.changed) == (18, 2)
        assert collection.find_one({"_id": 7})["n"]["v"] == [9.0, 9.0, 9.0]
        assert collection.find_one({"_id": 8}) is None
        assert collection.find_one({"_id": 9})["title"] == "new"
        assert migrate(collection, "n.v").migrated == 1
        assert collection.find_one({"_id": 7})["n"]["v"].as_vector().data == [9.0, 9.0, 9.0]

    BEFORE = (1.0, 0.0, 2.0)
    MEANWHILE: tuple[tuple[str, Any], ...] = (
        ("contains the old", {"n": {"v": [[1.0, 0.0, 2.0], [9.0, 9.0, 9.0]]}}),
        ("contains only the old", {"n": {"v": [[1.0, 0.0, 2.0]]}}),
        ("longer", {"n": {"v": [1.0, 0.0, 2.0, 3.0]}}),
        ("shorter", {"n": {"v": [1.0, 0.0]}}),
        ("another order", {"n": {"v": [2.0, 0.0, 1.0]}}),
        ("an integer", {"n": {"v": [1, 0.0, 2.0]}}),
        ("integers", {"n": {"v": [1, 0, 2]}}),
        ("a negative zero", {"n": {"v": [1.0, -0.0, 2.0]}}),
        ("a number", {"n": {"v": 1.0}}),
        ("text", {"n": {"v": "text"}}),
        ("null", {"n": {"v": None}}),
        ("nothing", {"n": {}}),
        ("a document", {"n": {"v": {"0": 1.0, "1": 0.0, "2": 2.0}}}),
        ("documents with the numbers", {"n": [{"v": 1.0}, {"v": 0.0}, {"v": 2.0}]}),
        ("a document with the array, in an array", {"n": [{"v": [1.0, 0.0, 2.0]}]}),
        ("a number on the way", {"n": 5}),
    )

    @pytest.mark.parametrize(("what", "change"), MEANWHILE)
    def test_the_whole_array_is_compared(self, collection: Any, what: str, change: Any) -> None:
        collection.insert_many([{"_id": i, "n": {"v": list(self.BEFORE)}} for i in range(3)])
        expected = bson_bytes({"_id": 1, **change})

        def meddle() -> None:
            collection.update_one({"_id": 1}, {"$set": change})

        result = migrate(Meddling(collection, meddle), "n.v")  # type: ignore[arg-type]
        assert (result.migrated, result.changed) == (2, 1)
        assert bson_bytes(collection.find_one({"_id": 1})) == expected
        for own_id in (0, 2):
            assert collection.find_one({"_id": own_id})["n"]["v"].as_vector().data == list(self.BEFORE)

    @pytest.mark.parametrize(
        "array", [[1.0, 2.0], [1, 2], [1, 2.0, -0.0, 0.0, 0], [float("nan"), 1.0], [-0.0], [float("inf")], [2**40, 1]]
    )
    def test_unchanged_documents_are_migrated(self, collection: Any, array: list[Any]) -> None:
        wide = needs("bson.int64").Int64
        collection.insert_many([{"v": array}, {"v": [wide(1), 1, 1.0]}, {"v": [wide(3)]}])
        assert migrate(collection, "v").migrated == 3
        assert collection.find_one()["v"].as_vector().data == pytest.approx(array, nan_ok=True)
        again = migrate(collection, "v")
        assert (again.found, again.changed) == (0, 0)

    def test_paths_through_arrays_stay_as_they_are(self, collection: Any) -> None:
        documents = [{"_id": 0, "n": [{"v": [1.0]}, {"v": [2.0]}]}, {"_id": 1, "n": {"v": [1.0]}}]
        collection.insert_many(documents)
        result = migrate(collection, "n.v")
        assert (result.found, result.migrated, result.skipped) == (2, 1, 1)
        assert collection.find_one({"_id": 0}) == documents[0]

    @pytest.mark.parametrize("after", [False, True])
    def test_a_fault_at_any_command_and_run_again(self, collection: Any, after: bool) -> None:
        strike = 1
        while True:
            values = self.fill(collection, 60, 3)
            failing = Failing(collection, strike, after=after)
            try:
                migrate(failing, "n.v", batch_size=10, progress=lambda *_: None)  # type: ignore[arg-type]
            except ConnectionResetError:
                assert failing.commands == strike
            if failing.commands < strike:
                break
            left = collection.count_documents({"n.v": {"$type": "array"}})
            assert left == 60 - 10 * max(0, strike - 2 - (not after))
            if left:
                assert migrate(collection, "n.v").migrated == left
            self.check(collection, values)
            collection.drop()
            strike += 1
        assert strike > 8

    @pytest.mark.parametrize("after", [1, 5, 9])
    def test_killed_half_way_and_run_again(self, collection: Any, mongod_url: str, after: int) -> None:
        values = self.fill(collection)
        script = (
            "import sys, pymongo\n"
            "from tensorglot.bson.migrate import migrate\n"
            "collection = pymongo.MongoClient(sys.argv[1])['tensorglot'][sys.argv[2]]\n"
            "migrate(collection, 'n.v', batch_size=100, progress=lambda done, total: print(done, flush=True))\n"
        )
        command = [sys.executable, "-c", script, mongod_url, collection.name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert process.returncode == -signal.SIGKILL
        left = collection.count_documents({"n.v": {"$type": "array"}})
        assert 0 < left < 3000
        done = migrate(collection, "n.v", batch_size=100)
        assert (done.found, done.migrated, done.changed, done.skipped) == (left, left, 0, 0)
        self.check(collection, values)
