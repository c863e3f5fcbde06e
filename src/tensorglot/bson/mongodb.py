"""Writes matrices to a MongoDB collection, a document for each row, and reads them back.

Documents are sent and received as raw BSON, so that no number becomes a Python object.
Errors of the server and the driver pass through as pymongo raises them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import check_flags
from tensorglot.bson.assemble import MISSING_RULE, Assembled, MatrixOptions, PackedBits, ReadOptions, assemble
from tensorglot.bson.coerce import DType, VectorData, coerce_vector
from tensorglot.bson.columns import encode_by_pymongo
from tensorglot.bson.lookup import check_field
from tensorglot.bson.matrix import check_count, encode_documents, encode_matrix
from tensorglot.bson.sources import Batch, IdReader, batches
from tensorglot.errors import FormatError, InputError, escape
from tensorglot.extras import library
from tensorglot.operations._progress import ProgressCounter, counted
from tensorglot.wire.bson import NULL, VECTOR_SUBTYPE, Column, path_bytes
from tensorglot.wire.bson_value import document_of

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["Progress", "Query", "QueryOptions", "pymongo_ids", "read_matrix", "require", "write_matrix"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of documents done and the total."""
Filter: TypeAlias = Mapping[str, Any] | None

_WRITE_NBYTES = 16 << 20
_READ_NBYTES = 2 << 20
"""Batches of about this size are fastest: the driver's buffers for them are reused by the allocator."""
_LEAST_BATCH = 100


def require() -> Any:
    """Imports pymongo's `bson` package, or raises an error that says how to install it."""
    library("pymongo", "mongo")
    library("bson.raw_bson", "mongo")
    return library("bson", "mongo")


def write_matrix(
    collection: Collection[Any],
    matrix: Any,
    key: str,
    ids: Sequence[Any] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    *,
    dtype: DType = None,
    progress: Progress | None = None,
) -> list[Any]:
    """Inserts a document for each row, with the row as a vector at the dotted path `key`. Returns their ids.

    `documents` are the other fields of each document. Without `ids`, the id is the `_id`
    in `documents` or a new ObjectId.
    """
    whole = coerce_vector(matrix, dtype, None, 2)
    new_id = require().ObjectId
    path_bytes(key)  # refuses an invalid path
    count = len(whole.data)
    for what, given in (("ids", ids), ("documents", documents)):
        if given is not None:
            check_count(what, given, count)
    step = max(1, _WRITE_NBYTES // max(1, whole.row.nbytes))
    done: list[Any] = []
    progressed = ProgressCounter(progress, count)
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        part = VectorData(whole.data[rows], whole.kind, whole.padding)
        own_ids = [new_id() for _ in part.data] if ids is None else [_to_python(value) for value in ids[rows]]
        if documents is None:
            batch = _raw_documents(part, key, own_ids)
        else:
            batch = _merge(part, key, own_ids, documents[rows], first, own=ids is None)
            own_ids = [document["_id"] for document in batch]
        collection.insert_many(batch)
        done += own_ids
        progressed(len(own_ids))
    return done


def _to_python(value: Any) -> Any:
    """Converts a NumPy scalar to a Python value."""
    return value.item() if isinstance(value, np.generic) else value


def _raw_documents(part: VectorData, key: str, ids: list[Any]) -> list[Any]:
    encoded = ids if all(type(value) is int for value in ids) else [encode_by_pymongo(value) for value in ids]
    data = encode_documents(part, key, encoded)
    document = require().raw_bson.RawBSONDocument
    documents, at = [], 0
    while at < len(data):
        end = at + int.from_bytes(data[at : at + 4], "little")
        documents.append(document(data[at:end]))
        at = end
    return documents


def _merge(
    part: VectorData, key: str, ids: list[Any], documents: Sequence[Mapping[str, Any]], first: int, *, own: bool
) -> list[dict[str, Any]]:
    """Adds ids and vectors to documents; with `own`, the `_id` that a document has takes precedence."""
    binary = require().Binary
    merged = []
    for i, (payload, document) in enumerate(zip(encode_matrix(part), documents, strict=True)):
        new = {"_id": ids[i], **document}
        if not own and new["_id"] != ids[i]:
            raise InputError(f"the _id of document {first + i} differs from ids[{first + i}]", rule="bson.ids")
        _set_field(new, key.split("."), binary(payload, VECTOR_SUBTYPE), first + i)
        merged.append(new)
    return merged


def _set_field(document: dict[str, Any], names: list[str], value: Any, number: int) -> None:
    """Sets a nested field; subdocuments on its path are copied first."""
    *outer, last = names
    for name in outer:
        inner = document.get(name, {})
        if not isinstance(inner, Mapping):
            raise InputError(f"'{escape(name)}' of document {number} is not a subdocument", rule="bson.path")
        document[name] = inner = dict(inner)
        document = inner
    if last in document:
        raise InputError(f"document {number} already has a field '{escape('.'.join(names))}'", rule="bson.path")
    document[last] = value


class QueryOptions(ReadOptions, total=False):
    """Keywords of `read_matrix` beside `ids` and `packed`, which decide the type of the result."""

    progress: Progress | None


@dataclass(frozen=True, slots=True)
class Query:
    """Selects the vectors at a dotted path, and other fields, in the documents that match a filter."""

    collection: Collection[Any]
    key: str
    filter: Filter = None
    fields: tuple[str, ...] = ()
    progress: Progress | None = None

    def expected_rows(self) -> int:
        """The number of documents, for allocating memory, if the server knows it without a query; else 0."""
        return 0 if self.filter else self.collection.estimated_document_count()

    def batches(self, ids: IdReader | None = None) -> Iterator[Batch]:
        """Yields the vectors in batches. `_id` is read if it is one of the fields."""
        require()
        path_bytes(self.key)
        wanted, filter = {"_id": 0, self.key: 1, **dict.fromkeys(self.fields, 1)}, self.filter or {}
        # The size of one document decides how many are requested at a time.
        sample = b"".join(self.collection.find_raw_batches(filter, wanted, limit=1))
        count = max(_LEAST_BATCH, _READ_NBYTES // max(1, len(sample)))
        cursor = self.collection.find_raw_batches(filter, wanted, batch_size=count)
        found = batches(cursor, self.key, ids)
        if self.progress is None:
            return found
        documents = ProgressCounter(self.progress, self.collection.count_documents(filter))
        return counted(found, lambda batch: len(batch.missing), documents)

    def assemble(self, parts: Iterable[Batch], options: MatrixOptions) -> Assembled:
        """Collects the batches. A collection that does not exist, and a key that no document has, are errors."""
        try:
            found = assemble(parts, options)
        except FormatError as error:
            if error.rule == MISSING_RULE:
                check_field(self.collection, self.key)
            raise
        if not found.vectors:
            check_field(self.collection, self.key)
        return found


@overload
def read_matrix(
    collection: Collection[Any], key: str, filter: Filter = ..., **options: Unpack[QueryOptions]
) -> NDArray[Any]: ...
@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Filter = ...,
    *,
    ids: Literal[True],
    packed: Literal[True],
    **options: Unpack[QueryOptions],
) -> tuple[PackedBits, list[Any]]: ...
@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Filter = ...,
    *,
    packed: Literal[True],
    **options: Unpack[QueryOptions],
) -> PackedBits: ...
@overload
def read_matrix(
    collection: Collection[Any], key: str, filter: Filter = ..., *, ids: Literal[True], **options: Unpack[QueryOptions]
) -> tuple[NDArray[Any], list[Any]]: ...
@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Filter = ...,
    *,
    ids: bool = ...,
    packed: bool = ...,
    **options: Unpack[QueryOptions],
) -> NDArray[Any] | PackedBits | tuple[NDArray[Any] | PackedBits, list[Any]]: ...
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Filter = None,
    *,
    ids: bool = False,
    packed: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> Any:
    """Reads the vectors at the dotted path `key` of the documents that match, in the server's order.

    The options are those of `decode_matrix`. A collection that does not exist, and a key
    that no document has, are errors.
    """
    check_flags(ids=ids)
    checked = MatrixOptions(packed=packed, **options)
    query = Query(collection, key, filter, ("_id",) if ids else (), progress)
    parts = query.batches(pymongo_ids if ids else None)
    found = query.assemble(parts, replace(checked, expected_rows=query.expected_rows()))
    return (found.matrix, found.ids) if ids else found.matrix


def pymongo_ids(data: memoryview, column: Column) -> list[Any]:
    """Decodes ids as pymongo does: all at once, as the fields of one document."""
    body = b"".join(
        b"%c%d\0%b" % (kind or NULL, i, bytes(data[begin:end]))  # an absent id (kind 0) becomes null
        for i, (kind, begin, end) in enumerate(column)
    )
    return list(require().decode(document_of(body)).values())
