"""Embeddings in MongoDB, from arrays of doubles to vectors: `python migrate_embeddings.py mongodb://localhost`.

An array of 1536 doubles takes 25 KB in BSON, the vector 6 KB, and int8 another quarter of
that. The migration can be interrupted, and runs beside clients that write.
"""

import sys

import numpy as np
from pymongo import MongoClient

import tensorglot as tg
from tensorglot.bson.migrate import migrate
from tensorglot.bson.mongodb import read_matrix, write_matrix

KEY = "embedding"


def fill(collection, count=200, width=384):
    """Documents as most applications have written them."""
    vectors = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    collection.insert_many({"_id": i, "text": f"document {i}", KEY: row.tolist()} for i, row in enumerate(vectors))
    return vectors


def run(collection, small):
    """Migrates a collection, and fills another one with int8. Returns what was done."""
    plan = migrate(collection, KEY, dry_run=True)
    print(f"{plan.found} arrays, {plan.saved_nbytes:,} bytes less, rounding by at most {plan.largest_error:.2g}")
    done = migrate(collection, KEY)

    matrix, ids = read_matrix(collection, KEY, ids=True)  # one array, no Python object for each number
    tg.save("embeddings.zt", {KEY: matrix}, compression="zstd")

    quantized = tg.bson.quantize(matrix)
    write_matrix(small, quantized, KEY, ids=ids)
    error = float(np.abs(quantized.dequantize() - matrix).max())
    print(f"{done.migrated} migrated; as int8 the largest error is {error:.3f}")
    return done


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python migrate_embeddings.py MONGODB_URL")
    with MongoClient(sys.argv[1]) as client:
        database = client.get_database("tensorglot_example")
        if not database.documents.count_documents({}):
            fill(database.documents)
        run(database.documents, database.small)
