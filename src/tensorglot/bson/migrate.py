"""Arrays of numbers in a collection, turned into float32 vectors where they are.

A document is changed by one update whose filter demands that its array still be the one
that was converted, so nothing that was written meanwhile is lost. What was changed no
longer matches the query: a run that was interrupted is finished by running it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.mongodb import Progress, pymongo_ids, require
from tensorglot.bson.vector import encode
from tensorglot.errors import TensorglotError
from tensorglot.wire.bson import ARRAY, VECTOR_SUBTYPE, Column, find, kind_name, numbers, path_bytes, view
from tensorglot.wire.bson_value import Raw, encode_document

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["Migration", "migrate"]

_REASONS = 100
"""So many documents that stay as they are are listed with the reason."""
_TYPE_NAMES = {0x01: "double", 0x10: "int", 0x12: "long"}
"""What the aggregation operator $type calls the kinds of numbers."""


@dataclass(frozen=True, slots=True)
class Migration:
    """What `migrate` did, or would do."""

    dry_run: bool
    found: int = 0
    """Documents with an array at the key."""
    migrated: int = 0
    """Of these, those that now have a vector."""
    changed: int = 0
    """Those that somebody else changed meanwhile: they are as that one left them."""
    skipped: int = 0
    """Those whose array cannot be a vector: they are as they were."""
    reasons: tuple[tuple[Any, str], ...] = field(default=())
    """The ids of the first of those, and why."""
    nbytes_before: int = 0
    nbytes_after: int = 0
    largest_error: float = 0.0
    """The furthest that a number moved when it was rounded to float32."""

    @property
    def saved_nbytes(self) -> int:
        return self.nbytes_before - self.nbytes_after

    def to_dict(self) -> dict[str, Any]:
        reasons = [{"id": str(own_id), "reason": reason} for own_id, reason in self.reasons]
        return {**asdict(self), "saved_nbytes": self.saved_nbytes, "reasons": reasons}


def migrate(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    batch_size: int = 500,
    progress: Progress | None = None,
) -> Migration:
    """Turns the arrays of numbers at the dotted path `key` into float32 vectors, a batch at a time.

    With `dry_run` nothing is written and the rest is the same. An array that has other
    things than numbers, or numbers beyond float32, stays as it is and is reported.
    """
    require()
    path_bytes(key)
    query = {"$and": [dict(filter or {}), {key: {"$type": "array"}}]}
    total = collection.count_documents(query) if progress is not None else 0
    cursor = collection.find_raw_batches(query, {key: 1}, sort=[("_id", 1)], batch_size=batch_size)
    result = Migration(dry_run)
    for data in map(view, cursor):
        result = _migrate_batch(collection, key, data, result)
        if progress is not None:
            progress(min(result.found, total), total)
    return result


@dataclass(frozen=True, slots=True)
class _Converted:
    """An array as it is stored, its numbers, and the vector that replaces it."""

    array: Raw
    values: NDArray[np.float64]
    kinds: NDArray[np.uint8]
    payload: bytes

    def error(self) -> float:
        """The furthest that a number moved."""
        stored = np.frombuffer(self.payload, "<f4", offset=2)
        moved = np.subtract(self.values, stored, where=np.isfinite(self.values), out=np.zeros(self.values.shape))
        return float(np.abs(moved).max())


class _Unconvertible(Exception):
    """Why an array stays as it is."""


def _migrate_batch(collection: Collection[Any], key: str, data: memoryview, result: Migration) -> Migration:
    id_column = find(data, [b"_id\0"])
    ids = pymongo_ids(data, id_column)
    updates: list[Any] = []
    converted: list[_Converted] = []
    reasons = list(result.reasons)
    for own_id, raw_id, array in zip(ids, _raw(data, id_column), _raw(data, find(data, path_bytes(key))), strict=True):
        try:
            found = _convert(array)
        except _Unconvertible as reason:
            if len(reasons) < _REASONS:
                reasons.append((own_id, str(reason)))
            continue
        converted.append(found)
        updates.append(_update(key, raw_id, found))
    matched = len(updates) if result.dry_run or not updates else _write(collection, updates)
    return replace(
        result,
        found=result.found + len(ids),
        migrated=result.migrated + matched,
        changed=result.changed + len(updates) - matched,
        skipped=result.skipped + len(ids) - len(updates),
        reasons=tuple(reasons),
        nbytes_before=result.nbytes_before + sum(len(one.array.data) for one in converted),
        nbytes_after=result.nbytes_after + sum(5 + len(one.payload) for one in converted),
        largest_error=max([result.largest_error, *(one.error() for one in converted)]),
    )


def _raw(data: memoryview, column: Column) -> list[Raw]:
    spans = zip(column.kinds.tolist(), column.begins.tolist(), column.ends.tolist(), strict=True)
    return [Raw(kind, bytes(data[begin:end])) for kind, begin, end in spans]


def _convert(array: Raw) -> _Converted:
    if array.kind != ARRAY:
        raise _Unconvertible(f"{kind_name(array.kind)} at the key, not an array")
    try:
        values, kinds = numbers(memoryview(array.data), 0, len(array.data))
        payload = encode(values, "float32")
    except TensorglotError as error:
        raise _Unconvertible(error.message) from error
    if not values.size:
        raise _Unconvertible("the array is empty")
    return _Converted(array, values, kinds, payload)


def _update(key: str, own_id: Raw, found: _Converted) -> Any:
    from bson import Binary
    from bson.raw_bson import RawBSONDocument
    from pymongo import UpdateOne

    guard = encode_document({"_id": own_id, "$expr": {"$and": _unchanged(key, found)}})
    return UpdateOne(RawBSONDocument(guard), {"$set": {key: Binary(found.payload, VECTOR_SUBTYPE)}})


def _unchanged(key: str, found: _Converted) -> list[Any]:
    """What holds as long as the array at the key is the one that was converted.

    A query such as {key: array} also matches an array that contains that one. `$eq` in an
    expression compares the whole, but takes 1 for 1.0 and -0.0 for 0.0, and a path through
    an array of documents for the list of their fields: so the kinds of the numbers, the
    signs of the zeros and the documents on the way are compared, too.
    """
    names = key.split(".")
    outer = [".".join(names[: i + 1]) for i in range(len(names) - 1)]
    conditions: list[Any] = [{"$eq": [{"$type": f"${name}"}, "object"]} for name in outer]
    conditions.append({"$eq": [f"${key}", {"$literal": found.array}]})
    elements = {"$cond": [{"$isArray": [f"${key}"]}, f"${key}", []]}  # $map fails where there is no array
    conditions.append(_same_labels(elements, {"$type": "$$this"}, [_TYPE_NAMES[kind] for kind in found.kinds.tolist()]))
    negative = np.signbit(found.values[found.values == 0]).tolist()
    if negative:
        zeros = {"$filter": {"input": elements, "cond": {"$eq": ["$$this", 0]}}}
        conditions.append(_same_labels(zeros, {"$toString": "$$this"}, ["-0" if sign else "0" for sign in negative]))
    return conditions


def _same_labels(elements: Any, label: Any, expected: list[str]) -> Any:
    """That each element has its label; in short where all have the same."""
    labels = {"$map": {"input": elements, "in": label}}
    if len(set(expected)) == 1:
        return {"$setEquals": [labels, expected[:1]]}
    return {"$eq": [labels, expected]}


def _write(collection: Collection[Any], updates: list[Any]) -> int:
    return int(collection.bulk_write(updates, ordered=False).matched_count)
