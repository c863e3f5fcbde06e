"""Converts arrays of numbers in a collection to float32 vectors, in place.

Each update's filter requires that the array is still the one that was converted, so a
concurrent write is never lost. Converted documents no longer match the query: an
interrupted run is completed by running it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_integer, check_flags
from tensorglot.bson.lookup import check_field
from tensorglot.bson.mongodb import Progress, pymongo_ids, require
from tensorglot.bson.vector import encode
from tensorglot.errors import TensorglotError
from tensorglot.operations._jsonable import Record
from tensorglot.wire.bson import ARRAY, BINARY, VECTOR_SUBTYPE, Column, find, numbers, path_bytes, view
from tensorglot.wire.bson_value import Raw, encode_document

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["Migration", "migrate"]

_REASONS = 100
"""At most this many skipped documents are listed with the reason."""
_TYPE_NAMES = {0x01: "double", 0x10: "int", 0x12: "long"}
"""Names of the number types in the aggregation operator $type."""


@dataclass(frozen=True, slots=True)
class Migration(Record):
    """What `migrate` did, or would do with `dry_run`."""

    dry_run: bool
    found: int = 0
    """Documents with an array at the key."""
    migrated: int = 0
    """Documents that now have a vector."""
    changed: int = 0
    """Documents left alone because another client changed them meanwhile."""
    concurrent: int = 0
    """Documents that another migration converted meanwhile, to the same vector."""
    skipped: int = 0
    """Documents left alone because their array cannot be a vector."""
    reasons: tuple[tuple[Any, str], ...] = field(default=())
    """Ids of the first skipped documents, with the reason."""
    nbytes_before: int = 0
    nbytes_after: int = 0
    largest_error: float = 0.0
    """Largest absolute rounding error to float32."""

    @property
    def saved_nbytes(self) -> int:
        """Bytes by which the documents became smaller."""
        return self.nbytes_before - self.nbytes_after

    def to_dict(self) -> dict[str, Any]:
        reasons = [{"id": str(own_id), "reason": reason} for own_id, reason in self.reasons]
        return {**Record.to_dict(self), "saved_nbytes": self.saved_nbytes, "reasons": reasons}


def migrate(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    batch_size: int = 500,
    progress: Progress | None = None,
) -> Migration:
    """Converts the arrays of numbers at the dotted path `key` to float32 vectors, in batches.

    With `dry_run` nothing is written. An array with elements that are not numbers, or with
    numbers out of the range of float32, is left alone and reported. Several migrations may
    run at once. A collection that does not exist, and a key that no document has, are errors.
    """
    check_flags(dry_run=dry_run)
    batch_size = as_integer(batch_size, "batch_size", "migrate.batch_size", 1)
    require()
    path_bytes(key)  # refuses an invalid path
    query = {"$and": [dict(filter or {}), {key: {"$type": "array"}}]}
    total = collection.count_documents(query) if progress is not None else 0
    cursor = collection.find_raw_batches(query, {key: 1}, sort=[("_id", 1)], batch_size=batch_size)
    result = Migration(dry_run)
    for data in map(view, cursor):
        result = _migrate_batch(collection, key, data, result)
        if progress is not None:
            progress(min(result.found, total), total)
    if not result.found:
        check_field(collection, key)
    return result


@dataclass(frozen=True, slots=True)
class _Converted:
    """A stored array, its numbers, and the payload that replaces it."""

    own_id: Raw
    array: Raw
    values: NDArray[np.float64]
    kinds: NDArray[np.uint8]
    payload: bytes

    def error(self) -> float:
        """Returns the largest absolute rounding error."""
        stored = np.frombuffer(self.payload, "<f4", offset=2)
        moved = np.subtract(self.values, stored, where=np.isfinite(self.values), out=np.zeros(self.values.shape))
        return float(np.abs(moved).max())


class _Unconvertible(Exception):
    """Why an array cannot be converted."""


def _migrate_batch(collection: Collection[Any], key: str, data: memoryview, result: Migration) -> Migration:
    id_column = find(data, [b"_id\0"])
    ids = pymongo_ids(data, id_column)
    updates: list[Any] = []
    converted: list[_Converted] = []
    reasons = list(result.reasons)
    for own_id, raw_id, array in zip(ids, _raw(data, id_column), _raw(data, find(data, path_bytes(key))), strict=True):
        try:
            found = _convert(raw_id, array)
        except _Unconvertible as reason:
            if len(reasons) < _REASONS:
                reasons.append((own_id, str(reason)))
            continue
        converted.append(found)
        updates.append(_update(key, found))
    matched = len(updates)
    concurrent = 0
    if updates and not result.dry_run:
        matched = int(collection.bulk_write(updates, ordered=False).matched_count)
        if matched < len(updates):
            concurrent = _count_equal(collection, key, converted) - matched
    return replace(
        result,
        found=result.found + len(ids),
        migrated=result.migrated + matched,
        changed=result.changed + len(updates) - matched - concurrent,
        concurrent=result.concurrent + concurrent,
        skipped=result.skipped + len(ids) - len(updates),
        reasons=tuple(reasons),
        nbytes_before=result.nbytes_before + sum(len(one.array.data) for one in converted),
        # A binary is its length (4 bytes), its subtype (1) and the payload.
        nbytes_after=result.nbytes_after + sum(5 + len(one.payload) for one in converted),
        largest_error=max([result.largest_error, *(one.error() for one in converted)]),
    )


def _raw(data: memoryview, column: Column) -> list[Raw]:
    return [Raw(kind, bytes(data[begin:end])) for kind, begin, end in column]


def _convert(own_id: Raw, array: Raw) -> _Converted:
    if array.kind != ARRAY:
        # The server follows a path through an array of documents, to fields that `$set` could not name.
        raise _Unconvertible("the path leads through an array of documents")
    try:
        values, kinds = numbers(memoryview(array.data), 0, len(array.data))
        payload = encode(values, "float32")
    except TensorglotError as error:
        raise _Unconvertible(error.message) from error
    if not values.size:
        raise _Unconvertible("the array is empty")
    return _Converted(own_id, array, values, kinds, payload)


def _count_equal(collection: Collection[Any], key: str, converted: Sequence[_Converted]) -> int:
    """How many of the documents now have the vector that their array was converted to, by any client."""
    from bson.raw_bson import RawBSONDocument

    expected = {found.own_id: found.payload for found in converted}
    query = RawBSONDocument(encode_document({"_id": {"$in": list(expected)}}))
    equal = 0
    for data in map(view, collection.find_raw_batches(query, {key: 1})):
        values = zip(_raw(data, find(data, [b"_id\0"])), _raw(data, find(data, path_bytes(key))), strict=True)
        equal += sum(value.kind == BINARY and value.data[5:] == expected.get(own_id) for own_id, value in values)
    return equal


def _update(key: str, found: _Converted) -> Any:
    from bson import Binary
    from bson.raw_bson import RawBSONDocument
    from pymongo import UpdateOne

    guard = encode_document({"_id": found.own_id, "$expr": {"$and": _match_unchanged(key, found)}})
    return UpdateOne(RawBSONDocument(guard), {"$set": {key: Binary(found.payload, VECTOR_SUBTYPE)}})


def _match_unchanged(key: str, found: _Converted) -> list[Any]:
    """Conditions that hold as long as the array at the key is unchanged since it was read.

    A query such as {key: array} also matches an array that contains that one. `$eq` in an
    expression compares whole arrays, but treats 1 as 1.0 and -0.0 as 0.0, and resolves a
    path through an array of documents to the list of their fields. So the types of the
    numbers, the signs of zeros and the types of the subdocuments are compared, too.
    """
    names = key.split(".")
    outer = [".".join(names[: i + 1]) for i in range(len(names) - 1)]
    conditions: list[Any] = [{"$eq": [{"$type": f"${name}"}, "object"]} for name in outer]
    conditions.append({"$eq": [f"${key}", {"$literal": found.array}]})
    elements = {"$cond": [{"$isArray": [f"${key}"]}, f"${key}", []]}  # $map fails where there is no array
    conditions.append(
        _compare_labels(elements, {"$type": "$$this"}, [_TYPE_NAMES[kind] for kind in found.kinds.tolist()])
    )
    negative = np.signbit(found.values[found.values == 0]).tolist()
    if negative:
        zeros = {"$filter": {"input": elements, "cond": {"$eq": ["$$this", 0]}}}
        conditions.append(_compare_labels(zeros, {"$toString": "$$this"}, ["-0" if sign else "0" for sign in negative]))
    return conditions


def _compare_labels(elements: Any, label: Any, expected: list[str]) -> Any:
    """Compares the label of each element; shorter if all labels are equal."""
    labels = {"$map": {"input": elements, "in": label}}
    if len(set(expected)) == 1:
        return {"$setEquals": [labels, expected[:1]]}
    return {"$eq": [labels, expected]}
