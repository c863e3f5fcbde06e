"""Writes embeddings to a collection in batches: inserts documents, or updates those with the same ids.

A run that was interrupted is completed by running it again. Inserting: a document that
exists with equal values counts as unchanged; one with other values is left alone and
reported. Updating: only the vector and the fields are set, and a document that does not
exist is reported. Values are compared here, byte for byte, never by a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tensorglot.bson.columns import ValueColumn, gather
from tensorglot.bson.embeddings import BATCH_NBYTES, Embeddings
from tensorglot.bson.mongodb import Progress, require
from tensorglot.errors import InputError
from tensorglot.model.payload import as_bytes
from tensorglot.operations._jsonable import Record
from tensorglot.operations._progress import ProgressCounter
from tensorglot.wire.bson import BINARY, DOCUMENT, VECTOR_SUBTYPE, find, path_bytes, view
from tensorglot.wire.bson_template import STORED_MAX_NBYTES
from tensorglot.wire.bson_value import (
    DECIMAL,
    DOUBLE,
    INT32,
    INT64,
    REGEX,
    Raw,
    decode_value,
    document_of,
    encode_document,
)
from tensorglot.wire.bson_vector import split

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["Written", "documents", "upload"]

_BATCH_ROWS = 1000
_REASONS = 100
"""At most this many documents are listed with the reason."""
_DUPLICATE = 11000
"""The server's code for an `_id` that exists."""


@dataclass(frozen=True, slots=True)
class Written(Record):
    """What was written, or would be with `dry_run`."""

    rows: int
    dry_run: bool = False
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    """Documents that had these values already."""
    conflicts: int = 0
    """Documents left alone because they exist with other values."""
    missing: int = 0
    """Documents to update that do not exist."""
    failed: int = 0
    """Documents that the server refused."""
    reasons: tuple[tuple[str, str], ...] = ()
    """Ids of the first conflicts, missing and failed documents, with the reason."""

    @property
    def ok(self) -> bool:
        """Whether no document was left out."""
        return not (self.conflicts or self.missing or self.failed)

    def to_dict(self) -> dict[str, Any]:
        reasons = [{"id": own_id, "reason": reason} for own_id, reason in self.reasons]
        return {**Record.to_dict(self), "reasons": reasons}


Tree: TypeAlias = "dict[bytes, list[bytes] | Tree]"
"""A document by its keys: the elements of each row, or the keys of a subdocument."""


def _vector_elements(found: Embeddings, name: bytes) -> list[bytes]:
    row = found.vectors.row
    data = as_bytes(found.vectors.data)
    before = bytes((BINARY,)) + name + (row.nbytes + 2).to_bytes(4, "little") + bytes((VECTOR_SUBTYPE,))
    return [before + payload for payload in split(data, len(found), row)]


def _elements(found: Embeddings) -> Iterator[tuple[str, list[bytes]]]:
    """The elements of each field, named by the last key of its path."""
    for path, column in found.columns.items():
        yield path, column.elements(path_bytes(path)[-1])
    yield found.key, _vector_elements(found, path_bytes(found.key)[-1])


def documents(found: Embeddings) -> list[bytes]:
    """The document of each row: the id, the fields in their order, the vector."""
    tree: Tree = {}
    for path, elements in _elements(found):
        *outer, last = path_bytes(path)
        inner = tree
        for name in outer:
            inner = inner.setdefault(name, {})  # type: ignore[assignment]
        inner[last] = elements
    made = list(map(document_of, _bodies(tree)))
    large = max(map(len, made), default=0)
    if large > STORED_MAX_NBYTES:
        raise InputError(f"a document of {large} bytes exceeds MongoDB's limit of 16 MiB", rule="bson.document.size")
    return made


def _bodies(tree: Tree) -> list[bytes]:
    """The elements of each row, joined. A subdocument without elements is left out."""
    columns = [
        node
        if isinstance(node, list)
        else [bytes((DOCUMENT,)) + name + document_of(inner) if inner else b"" for inner in _bodies(node)]
        for name, node in tree.items()
    ]
    return list(map(b"".join, zip(*columns, strict=True)))


def upload(
    collection: Collection[Any],
    batches: Iterable[Embeddings],
    total_rows: int,
    *,
    update: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Inserts a document for each row, or sets the vector and the fields of the documents with these ids.

    Every row has an id.
    """
    raw_document = require().raw_bson.RawBSONDocument
    total = Written(total_rows, dry_run)
    empty = not update and collection.find_one({}, {"_id": 1}) is None
    count = ProgressCounter(progress, total_rows)
    for found in batches:
        for part in found.batches(min(BATCH_NBYTES, _BATCH_ROWS * max(1, found.vectors.row.nbytes))):
            batch = _Batch(collection, part, raw_document)
            total = _add(total, batch.update(dry_run=dry_run) if update else batch.insert(empty, dry_run=dry_run))
            count(len(part))
    return total


def _add(total: Written, part: Written) -> Written:
    counts = ("inserted", "updated", "unchanged", "conflicts", "missing", "failed")
    sums = {name: getattr(total, name) + getattr(part, name) for name in counts}
    return Written(total.rows, total.dry_run, **sums, reasons=(total.reasons + part.reasons)[:_REASONS])


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some rows to be written to a collection."""

    collection: Collection[Any]
    found: Embeddings
    raw_document: Callable[[bytes], Any]
    """pymongo's class for a document that is encoded already."""

    @property
    def ids(self) -> ValueColumn:
        column = self.found.ids
        assert column is not None  # noqa: S101 - upload has given ids to all
        return column

    def insert(self, empty: bool, *, dry_run: bool) -> Written:
        """Inserts the documents that do not exist yet; looks for them first, unless the collection is empty."""
        from pymongo import InsertOne

        existing = {} if empty else self._compare(None)
        new = [i for i in range(len(self.found)) if i not in existing]
        made = documents(self.found) if new and not dry_run else []
        _, errors = self._bulk_write([InsertOne(self.raw_document(made[i])) for i in new] if made else [])
        refused = {new[i]: error for i, error in errors.items()}
        # An _id that exists by now: another client, or a run that was interrupted, inserted it.
        existing |= self._compare([i for i, error in refused.items() if error["code"] == _DUPLICATE])
        failed = {i: error["errmsg"] for i, error in refused.items() if i not in existing}
        conflicts = [i for i, equal in existing.items() if not equal]
        return Written(
            0,
            inserted=len(new) - len(errors),
            unchanged=len(existing) - len(conflicts),
            conflicts=len(conflicts),
            failed=len(failed),
            reasons=self._reasons(dict.fromkeys(conflicts, _CONFLICT) | failed),
        )

    def update(self, *, dry_run: bool) -> Written:
        from pymongo import UpdateOne

        if dry_run:
            existing = self._compare(None)
            equal, missing = sum(existing.values()), [i for i in range(len(self.found)) if i not in existing]
            reasons = self._reasons(dict.fromkeys(missing, _MISSING))
            return Written(0, updated=len(existing) - equal, unchanged=equal, missing=len(missing), reasons=reasons)
        rows = zip(*(elements for _, elements in self._set_elements()), strict=True)
        updates = [
            UpdateOne(
                # $eq: an id may come from a file, and a query takes {"$gt": …} and regular expressions as operators.
                self.raw_document(encode_document({"_id": {"$eq": self.ids.raw(i)}})),
                {"$set": self.raw_document(document_of(b"".join(fields)))},
            )
            for i, fields in enumerate(rows)
        ]
        result, errors = self._bulk_write(updates)
        left = result["nMatched"] + len(errors)
        missing = []
        if left < len(updates):
            existing = self._compare(None)
            missing = [i for i in range(len(updates)) if i not in existing]
        failed = {i: error["errmsg"] for i, error in errors.items()}
        return Written(
            0,
            updated=result["nModified"],
            unchanged=result["nMatched"] - result["nModified"],
            missing=len(updates) - left,
            failed=len(errors),
            reasons=self._reasons(dict.fromkeys(missing, _MISSING) | failed),
        )

    def _set_elements(self) -> Iterator[tuple[str, list[bytes]]]:
        """The elements of a `$set`, named by whole paths."""
        for path, column in self.found.fields.items():
            yield path, column.elements(path.encode() + b"\0")
        key = self.found.key
        yield key, _vector_elements(self.found, key.encode() + b"\0")

    def _bulk_write(self, requests: list[Any]) -> tuple[Mapping[str, Any], dict[int, Any]]:
        """Sends the requests, and returns the counts and the errors by position."""
        from pymongo.errors import BulkWriteError

        if not requests:
            return {}, {}
        try:
            return self.collection.bulk_write(requests, ordered=False).bulk_api_result, {}
        except BulkWriteError as error:
            if error.details.get("writeConcernErrors"):
                raise
            return error.details, {each["index"]: each for each in error.details["writeErrors"]}

    def _compare(self, rows: Sequence[int] | None) -> dict[int, bool]:
        """Which rows (all for None) have a document already, and whether it has the values of the row."""
        wanted = range(len(self.found)) if rows is None else rows
        if not wanted:
            return {}
        own_ids = {i: own_id for i in wanted if not _is_operator(own_id := self.ids.raw(i))}
        places = {_identity(own_id): i for i, own_id in own_ids.items()}
        query = self.raw_document(encode_document({"_id": {"$in": list(own_ids.values())}}))
        fields = dict(self._set_elements())
        stored: dict[int, bool] = {}
        for batch in self.collection.find_raw_batches(query, {"_id": 1, **dict.fromkeys(fields, 1)}):
            data = view(batch)
            found_ids = gather(data, find(data, [b"_id\0"]))
            found = {path: gather(data, find(data, path_bytes(path))) for path in fields}
            elements = {path: column.elements(path.encode() + b"\0") for path, column in found.items()}
            for number in range(len(found_ids)):
                i = places.get(_identity(found_ids.raw(number)))
                if i is not None:
                    # An absent field (b"") is not written, so it does not have to be equal.
                    stored[i] = all(own[i] in (b"", elements[path][number]) for path, own in fields.items())
        return stored

    def _reasons(self, found: Mapping[int, str]) -> tuple[tuple[str, str], ...]:
        return tuple((_id_text(self.ids.raw(i)), found[i]) for i in sorted(found)[:_REASONS])


_CONFLICT = "exists with other values"
_MISSING = "does not exist"


def _is_operator(own_id: Raw) -> bool:
    """Whether `$in` would treat an id as an operator: a regular expression, {"$gt": …}. No document has such an id."""
    return own_id.kind == REGEX or (own_id.kind == DOCUMENT and own_id.data[5:6] == b"$")


def _identity(own_id: Raw) -> Any:
    """A key by which ids compare as on the server: numbers of any type by their value, others by their bytes."""
    if own_id.kind == DECIMAL:
        decimal = require().Decimal128.from_bid(own_id.data).to_decimal()
        return "NaN" if decimal.is_nan() else decimal
    if own_id.kind in (DOUBLE, INT32, INT64):
        number = decode_value(memoryview(own_id.data), own_id.kind, 0, len(own_id.data))
        return "NaN" if number != number else number
    return own_id


def _id_text(own_id: Raw) -> str:
    value = decode_value(memoryview(own_id.data), own_id.kind, 0, len(own_id.data))
    return value.data.hex() if isinstance(value, Raw) else str(value)
