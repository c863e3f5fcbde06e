"""`read_embeddings`: vectors with ids and chosen fields, from a collection, a dump, Parquet or a container.

In a container, ids and fields are tensors beside the matrix: `_id` (numbers, or twelve
bytes for each ObjectId), and one tensor for each field. A column that is not an array is
stored as the bytes of its BSON documents, with the suffix `.bson`. Ranges are NAME.low and
NAME.high.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tensorglot.bson.assemble import OnMissing
from tensorglot.bson.coerce import DType
from tensorglot.bson.columns import from_values
from tensorglot.bson.embeddings import ID, Embeddings, Ranges, concat_embeddings
from tensorglot.bson.mongodb import Progress
from tensorglot.bson.places import FileOrCollection, locate_files
from tensorglot.bson.streams import HIGH, LOW, ReadPlan, Stream, open_stream
from tensorglot.errors import InputError
from tensorglot.operations.open import open

__all__ = ["read_embeddings", "read_ranges"]


def read_embeddings(
    place: FileOrCollection,
    key: str | None = None,
    *,
    fields: Iterable[str] = (),
    filter: Mapping[str, Any] | None = None,
    on_missing: OnMissing = "error",
    dtype: DType = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    id: str = ID,
) -> Embeddings:
    """Reads the vectors at a key, their ids and the fields that are named.

    `place` is a path (`.bson`, `.parquet`, `.npz`, `.npy` or any container), a URL
    mongodb://HOST/DATABASE.COLLECTION, or a collection of pymongo. Without `key` the
    place must have one vector field, or one matrix. `filter` is a query, for collections.
    `id` is the field or column that has the ids. `dtype="packed_bit"` reads a matrix of
    bytes in a file as bits. `storage_options` say how to reach the server of a file at a
    URL. `transfer` moves more than fits in memory.
    """
    (place,) = locate_files(storage_options, place)
    plan = ReadPlan(key, tuple(fields), filter, on_missing, dtype, progress, id)
    with open_stream(place, plan) as stream:
        found = concat_embeddings(stream.batches(None), stream.expected_rows)
        if found is None:
            return _nothing(stream, plan)
        for name, column in found.fields.items():
            if len(column) and not column.kinds.any():
                stream.refuse(name)
    return found


def _nothing(stream: Stream, plan: ReadPlan) -> Embeddings:
    """The result without any vector. It is refused if the key does not exist; a filter may match no document."""
    stream.refuse(stream.key)
    columns = {name: from_values(()) for name in plan.fields}
    return Embeddings(np.empty((0, 0), np.float32), stream.key, None, columns)


def read_ranges(path: Any, storage_options: Mapping[str, Any] | None = None) -> Ranges:
    """Reads the ranges that `write_embeddings` stored: tensors `low` and `high`, or NAME.low and NAME.high."""
    with open(path, storage_options=storage_options) as archive:
        pairs = [(name, name[: -len(LOW)] + HIGH) for name in archive if name.endswith(LOW)]
        pairs += [("low", "high")] if "low" in archive else []
        pairs = [(low, high) for low, high in pairs if high in archive]
        if len(pairs) != 1:
            raise InputError(f"{len(pairs)} pairs of ranges (low and high) found, expected one", rule="place.ranges")
        low, high = pairs[0]
        return archive[low].numpy(), archive[high].numpy()
