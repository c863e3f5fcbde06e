"""Vectors through a real MongoDB: `python -m benchmarks.vectors_scale mongodb://HOST:PORT [--documents 1000000]`.

Documents with an ObjectId, a title, a price and a vector are inserted. Then `vectors`
exports them to a .zt file, quantizes that to int8 in another, adds the small vectors to the
same documents (`import --update`), and exports these again; each command in a process of
its own, with its seconds and its peak of resident memory. At the end ids, fields, both
vectors and the untouched rest of the documents are compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tensorglot as tg

DATABASE, COLLECTION = "tensorglot_scale", "products"
FIELDS = ("title", "price")
CHILD = """
import resource, sys
from tensorglot.cli import main
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)
"""


def insert(collection: Any, count: int, columns: int) -> None:
    from bson import ObjectId
    from bson.binary import Binary

    rng = np.random.default_rng(7)
    for first in range(0, count, 20_000):
        rows = min(20_000, count - first)
        payloads = tg.bson.encode_matrix(rng.standard_normal((rows, columns), np.float32))
        collection.insert_many(
            [
                {
                    "_id": ObjectId(f"{first + i:024x}"),
                    "title": f"product number {first + i}",
                    "price": (first + i) / 4,
                    "stock": i % 9,
                    "embedding": Binary(payload, 9),
                }
                for i, payload in enumerate(payloads)
            ],
            ordered=False,
        )


def run(what: str, *words: object) -> dict[str, Any]:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", CHILD, "vectors", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    peak = done.stderr.split()[-1]
    print(f"{what:40} {time.perf_counter() - start:7.1f} s {busy:7.1f} s {peak:>6} MiB", flush=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(collection: Any, folder: Path, count: int) -> None:
    """What was exported after the update is what was exported before and what was quantized."""
    before = tg.bson.read_embeddings(folder / "all.zt", "embedding", fields=FIELDS)
    small = tg.bson.read_embeddings(folder / "small.zt", "embedding", fields=FIELDS)
    again = tg.bson.read_embeddings(folder / "again.zt", "embedding", fields=FIELDS)
    back = tg.bson.read_embeddings(folder / "back.zt", "small", fields=FIELDS)
    for one, other in ((again, before), (back, small)):
        assert one.ids is not None
        assert other.ids is not None
        assert one.ids.dump("x") == other.ids.dump("x")
        assert one.vectors.data.tobytes() == other.vectors.data.tobytes()
        assert all(one.fields[name].dump("x") == other.fields[name].dump("x") for name in FIELDS)
    assert len(before) == collection.count_documents({"small": {"$exists": True}, "stock": {"$lt": 9}}) == count
    print(f"{count:,} documents: ids, fields and vectors are equal")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vectors_scale", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=64)
    given = parser.parse_args()
    from pymongo import MongoClient

    fields = [word for name in FIELDS for word in ("--field", name)]
    with MongoClient[Any](given.url) as client, tempfile.TemporaryDirectory() as name:
        folder, collection = Path(name), client[DATABASE][COLLECTION]
        client.drop_database(DATABASE)
        try:
            insert(collection, given.documents, given.columns)
            place = f"{given.url.rstrip('/')}/{DATABASE}.{COLLECTION}"
            print(f"{'':40} {'clock':>9} {'processor':>9} {'peak':>10}")
            run("export to .zt", "export", place, folder / "all.zt", "--from", "embedding", *fields)
            small = folder / "small.zt"
            run("quantize .zt to int8 in .zt", "quantize", folder / "all.zt", small, "--from", "embedding", *fields)
            update = ("import", small, place, "--from", "embedding", "--key", "small", "--update", *fields)
            told = run("import --update of the int8 vectors", *update)
            assert told["updated"] == given.documents, told
            told = run("the same again: nothing to do", *update)
            assert told["unchanged"] == given.documents, told
            run("export of the float32 vectors", "export", place, folder / "again.zt", "--from", "embedding", *fields)
            run("export of the int8 vectors", "export", place, folder / "back.zt", "--from", "small", *fields)
            compare(collection, folder, given.documents)
        finally:
            client.drop_database(DATABASE)


if __name__ == "__main__":
    main()
