"""Arrays of numbers in a collection, turned into float32 vectors where they are.

A document is changed by one update that also demands that its array still be the one
that was converted, so nothing that was written meanwhile is lost. What was changed no
longer matches the query: a run that was interrupted is finished by running it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorglot.bson.mongodb import Progress, pymongo_ids, require
from tensorglot.bson.vector import encode
from tensorglot.errors import TensorglotError
from tensorglot.wire.bson import ARRAY, VECTOR_SUBTYPE, find, kind_name, numbers, path_bytes, view
from tensorglot.wire.bson_value import Raw, encode_document

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["Migration", "migrate"]

_REASONS = 100
"""So many documents that stay as they are are listed with the reason."""


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
    """Those whose array is no vector: they are as they were."""
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
    names = path_bytes(key)
    query = {"$and": [dict(filter or {}), {key: {"$type": "array"}}]}
    total = collection.count_documents(query) if progress is not None else 0
    cursor = collection.find_raw_batches(query, {key: 1}, sort=[("_id", 1)], batch_size=batch_size)
    result = Migration(dry_run)
    for data in map(view, cursor):
        result = _migrate_batch(collection, key, names, data, result)
        if progress is not None:
            progress(min(result.found, total), total)
    return result


def _migrate_batch(
    collection: Collection[Any], key: str, names: list[bytes], data: memoryview, result: Migration
) -> Migration:
    column, id_column = find(data, names), find(data, [b"_id\0"])
    ids = pymongo_ids(data, id_column)
    updates: list[Any] = []
    reasons = list(result.reasons)
    skipped = before = after = 0
    error = result.largest_error
    spans = zip(column.kinds.tolist(), column.begins.tolist(), column.ends.tolist(), strict=True)
    id_spans = zip(id_column.kinds.tolist(), id_column.begins.tolist(), id_column.ends.tolist(), strict=True)
    for own_id, (kind, begin, end), (id_kind, id_begin, id_end) in zip(ids, spans, id_spans, strict=True):
        try:
            payload, moved = _converted(data, kind, begin, end)
        except _NoVector as reason:
            skipped += 1
            if len(reasons) < _REASONS:
                reasons.append((own_id, str(reason)))
            continue
        still = {"_id": Raw(id_kind, bytes(data[id_begin:id_end])), key: Raw(kind, bytes(data[begin:end]))}
        updates.append(_update(encode_document(still), key, payload))
        before += end - begin
        after += 5 + len(payload)
        error = max(error, moved)
    matched = len(updates) if result.dry_run or not updates else _write(collection, updates)
    return replace(
        result,
        found=result.found + len(ids),
        migrated=result.migrated + matched,
        changed=result.changed + len(updates) - matched,
        skipped=result.skipped + skipped,
        reasons=tuple(reasons),
        nbytes_before=result.nbytes_before + before,
        nbytes_after=result.nbytes_after + after,
        largest_error=error,
    )


class _NoVector(Exception):
    """Why an array stays as it is."""


def _converted(data: memoryview, kind: int, begin: int, end: int) -> tuple[bytes, float]:
    if kind != ARRAY:
        raise _NoVector(f"{kind_name(kind)} at the key, no array")
    try:
        values, _ = numbers(data, begin, end)
        payload = encode(values, "float32")
    except TensorglotError as error:
        raise _NoVector(error.message) from error
    if not values.size:
        raise _NoVector("the array is empty")
    stored = np.frombuffer(payload, "<f4", offset=2)
    moved = np.subtract(values, stored, where=np.isfinite(values), out=np.zeros(values.shape))
    return payload, float(np.abs(moved).max())


def _update(still: bytes, key: str, payload: bytes) -> Any:
    from bson import Binary
    from bson.raw_bson import RawBSONDocument
    from pymongo import UpdateOne

    return UpdateOne(RawBSONDocument(still), {"$set": {key: Binary(payload, VECTOR_SUBTYPE)}})


def _write(collection: Collection[Any], updates: list[Any]) -> int:
    return int(collection.bulk_write(updates, ordered=False).matched_count)
