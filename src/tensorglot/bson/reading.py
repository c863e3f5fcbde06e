"""`read_embeddings`: vectors with ids and chosen fields, from a collection, a dump, Parquet or a container.

In a container, ids and fields are tensors beside the matrix: `_id` (numbers, or twelve
bytes for each ObjectId), a name for each field; a column that is no array is the bytes
of its BSON documents, under the name with `.bson`. Ranges are NAME.low and NAME.high.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tensorglot.arguments import as_names, as_path
from tensorglot.bson.assemble import MISSING_RULE, Assembled, MatrixOptions, OnMissing, assemble
from tensorglot.bson.coerce import DType, coerce_vector
from tensorglot.bson.columns import (
    BSON_SUFFIX,
    ValueColumn,
    concat,
    from_array,
    from_dump,
    from_plain,
    from_values,
    gather,
)
from tensorglot.bson.embeddings import ID, Embeddings, Ranges, check_paths
from tensorglot.bson.inspect import FieldReport, inspect
from tensorglot.bson.lookup import check_collection, no_field, refuse_nothing
from tensorglot.bson.mongodb import Progress, Query
from tensorglot.bson.parquet import read_parquet
from tensorglot.bson.places import Place, collection_at, is_collection, is_dump, is_parquet
from tensorglot.bson.sources import Batch, Run, batches
from tensorglot.containers.table import named
from tensorglot.errors import FormatError, Hint, InputError, escape
from tensorglot.model.archive import Archive
from tensorglot.operations.open import open
from tensorglot.wire import bson as wire
from tensorglot.wire.bson_value import DATE

__all__ = ["DEFAULT_KEY", "HIGH", "LOW", "read_embeddings", "read_ranges"]

DEFAULT_KEY = "embedding"
"""The name of vectors that come from a place without names."""
LOW, HIGH = ".low", ".high"
_SAMPLE = 100
"""Documents searched for a vector field if none was named."""


def read_embeddings(
    place: Place,
    key: str | None = None,
    *,
    fields: Iterable[str] = (),
    filter: Mapping[str, Any] | None = None,
    on_missing: OnMissing = "error",
    dtype: DType = None,
    progress: Progress | None = None,
) -> Embeddings:
    """Reads the vectors at a key, their ids and the fields that are named.

    `place` is a path (`.bson`, `.parquet`, `.npz`, `.npy` or any container), a URL
    mongodb://HOST/DATABASE.COLLECTION, or a collection of pymongo. Without `key` the
    place must have one vector field, or one matrix. `filter` is a query, for collections.
    `dtype="packed_bit"` reads a matrix of bytes in a file as bits.
    """
    wanted = as_names(fields, "fields", "place.fields")
    if filter is not None and not is_collection(place):
        raise InputError("filter= applies only to collections", rule="place.filter")
    if is_collection(place):
        with collection_at(place) as collection:
            return _read_collection(collection, key, wanted, filter, on_missing, progress)
    if is_dump(place):
        return _read_dump(as_path(place), key, wanted, on_missing)
    if is_parquet(place):
        return read_parquet(as_path(place), key, wanted, dtype)
    with open(as_path(place)) as archive:
        return _read_archive(archive, key, wanted, dtype)


def _read_collection(
    collection: Any,
    key: str | None,
    fields: Sequence[str],
    filter: Mapping[str, Any] | None,
    on_missing: OnMissing,
    progress: Progress | None,
) -> Embeddings:
    if key is None:
        check_collection(collection)
        key = _only(inspect(collection.find_raw_batches(filter or {}, limit=_SAMPLE)))
    check_paths(key, fields)
    query = Query(collection, key, filter, (ID, *fields), progress)
    tap = _Tap((ID, *fields))
    options = MatrixOptions(packed=False, on_missing=on_missing, expected_rows=query.expected_rows())
    found = query.assemble(tap.watch(query.batches()), options)
    for name in fields:
        if len(found.matrix) and not tap.columns[name].kinds.any():
            refuse_nothing(collection, name)
    return tap.embeddings(found, key, on_missing)


def _read_dump(path: str, key: str | None, fields: Sequence[str], on_missing: OnMissing) -> Embeddings:
    if key is None:
        key = _only(inspect(path))
    check_paths(key, fields)
    tap = _Tap((ID, *fields))
    try:
        found = assemble(tap.watch(batches(path, key, None)), MatrixOptions(on_missing=on_missing))
    except FormatError as error:
        if error.rule == MISSING_RULE:
            _refuse_unknown(path, key)
        raise
    if not found.vectors:
        _refuse_unknown(path, key)
    for name in fields:
        if len(found.matrix) and not tap.columns[name].kinds.any():
            raise no_field(name, [], path)
    return tap.embeddings(found, key, on_missing)


def _only(reports: Iterable[FieldReport]) -> str:
    names = [report.name for report in reports if report.vectors]
    if len(names) != 1:
        found = ", ".join(f"'{escape(name)}'" for name in names[:10]) or "none"
        what = "there are several vector fields" if names else "there is no vector field"
        hint = Hint("pass the name of one", "pass --from NAME") if names else None
        raise InputError(f"{what} (found: {found})", rule="place.name", hint=hint)
    return names[0]


def _refuse_unknown(path: str, key: str) -> None:
    """Refuses a key that no document of a dump has."""
    names = [report.name for report in inspect(path)]
    if key not in names:
        raise no_field(key, names, path)


class _Tap:
    """Copies ids and fields out of batches that pass by."""

    def __init__(self, names: Sequence[str]) -> None:
        self._paths = {name: wire.path_bytes(name) for name in names}
        self._parts: dict[str, list[ValueColumn]] = {name: [] for name in names}
        self._missing: list[np.ndarray[Any, np.dtype[np.bool_]]] = [np.empty(0, np.bool_)]

    def watch(self, parts: Iterable[Batch]) -> Iterator[Batch]:
        for part in parts:
            assert isinstance(part, Run)  # noqa: S101 - raw documents come in runs
            for name, path in self._paths.items():
                self._parts[name].append(gather(part.data, wire.find(part.data, path, part.start)))
            self._missing.append(part.missing)
            yield part

    @property
    def columns(self) -> dict[str, ValueColumn]:
        return {name: concat(parts) for name, parts in self._parts.items()}

    def embeddings(self, found: Assembled, key: str, on_missing: OnMissing) -> Embeddings:
        columns = self.columns
        if on_missing == "skip":
            there = ~np.concatenate(self._missing)
            columns = {name: column.take(there) for name, column in columns.items()}
        ids = columns.pop(ID)
        return Embeddings(found.matrix, key, ids if ids.kinds.all() and len(ids) else None, columns)


def _read_archive(archive: Archive, key: str | None, fields: Sequence[str], dtype: DType) -> Embeddings:
    chosen = key or _only_matrix(archive)
    if not named(archive.format)[0].names:
        return Embeddings(archive[next(iter(archive))].numpy(), key or DEFAULT_KEY, dtype=dtype)
    check_paths(chosen, fields)
    matrix = archive[chosen].numpy()
    ids = _column(archive, ID) if ID in archive or ID + BSON_SUFFIX in archive else None
    columns = {name: _column(archive, name) for name in fields}
    ranges: Ranges | None = None
    if chosen + LOW in archive and chosen + HIGH in archive:
        ranges = (archive[chosen + LOW].numpy(), archive[chosen + HIGH].numpy())
    return Embeddings(coerce_vector(matrix, dtype, None, 2), chosen, ids, columns, ranges=ranges)


def _only_matrix(archive: Archive) -> str:
    matrices = [name for name, tensor in archive.items() if len(tensor.shape) == 2 and tensor.dtype and name != ID]
    if len(matrices) != 1:
        found = ", ".join(f"'{escape(name)}'" for name in matrices[:10]) or "none"
        raise InputError(f"pass the name of the matrix to read (matrices found: {found})", rule="place.name")
    return matrices[0]


def _column(archive: Archive, name: str) -> ValueColumn:
    """The values of a field: an array, texts, dates, or the bytes of documents."""
    if name + BSON_SUFFIX in archive:
        return from_dump(archive[name + BSON_SUFFIX].numpy(), name)
    tensor = archive[name]
    if tensor.dtype is not None:
        return from_array(tensor.numpy(), name)
    if str(tensor.type).endswith("* datetime['ms', tz='UTC']"):
        return from_plain(np.frombuffer(tensor.serialize(), "<i8")[-len(tensor) :], DATE)
    return from_values(tensor.tolist())


def read_ranges(path: Any) -> Ranges:
    """Reads the ranges that `write_embeddings` stored: tensors `low` and `high`, or NAME.low and NAME.high."""
    with open(as_path(path)) as archive:
        pairs = [(name, name[: -len(LOW)] + HIGH) for name in archive if name.endswith(LOW)]
        pairs += [("low", "high")] if "low" in archive else []
        pairs = [(low, high) for low, high in pairs if high in archive]
        if len(pairs) != 1:
            raise InputError(f"{len(pairs)} pairs of ranges (low and high) found, expected one", rule="place.ranges")
        low, high = pairs[0]
        return archive[low].numpy(), archive[high].numpy()
