"""Matrices in a MongoDB collection: a document for each row, written and read.

Documents travel as raw BSON in both directions, so that no number becomes a Python
object. Errors of the server and the driver pass through as pymongo raises them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.assemble import MatrixOptions, OnMissing, PackedBits, assemble
from tensorglot.bson.coerce import DType, VectorData, coerce_vector
from tensorglot.bson.matrix import check_count, encode_documents, encode_matrix
from tensorglot.bson.sources import Batch, batches
from tensorglot.errors import InputError, escape
from tensorglot.extras import library
from tensorglot.wire.bson import NULL, VECTOR_SUBTYPE, Column, path_bytes
from tensorglot.wire.bson_value import Raw
from tensorglot.wire.bson_vector import IgnoredBits

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["Progress", "Query", "ReadOptions", "pymongo_ids", "read_matrix", "require", "write_matrix"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the documents done so far and the documents in all."""

_WRITE_NBYTES = 16 << 20
_READ_NBYTES = 2 << 20
"""Batches of about this size are read fastest: the driver joins each in memory that it then finds again."""
_LEAST_BATCH = 100


def require() -> Any:
    """pymongo's `bson` package, or a refusal that says how to get it."""
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

    `documents` are the other fields of each. Without `ids`, an id is the document's own
    `_id` or a new ObjectId.
    """
    new_id = require().ObjectId
    path_bytes(key)
    whole = coerce_vector(matrix, dtype, None, 2)
    count = len(whole.data)
    for what, given in (("ids", ids), ("documents", documents)):
        if given is not None:
            check_count(what, given, count)
    step = max(1, _WRITE_NBYTES // max(1, whole.row.nbytes))
    done: list[Any] = []
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        part = VectorData(whole.data[rows], whole.kind, whole.padding)
        own_ids = [new_id() for _ in part.data] if ids is None else [_plain(value) for value in ids[rows]]
        if documents is None:
            batch = _raw_documents(part, key, own_ids)
        else:
            batch = _merge(part, key, own_ids, documents[rows], first)
            if ids is None:
                own_ids = [document["_id"] for document in batch]
            _refuse_other_ids(own_ids, batch, first)
        collection.insert_many(batch)
        done += own_ids
        if progress is not None:
            progress(len(done), count)
    return done


def _plain(value: Any) -> Any:
    """An id from a NumPy array as Python has it."""
    return value.item() if isinstance(value, np.generic) else value


def _raw_documents(part: VectorData, key: str, ids: list[Any]) -> list[Any]:
    encoded = ids if all(type(value) is int for value in ids) else [_raw(value) for value in ids]
    data = encode_documents(part, key, encoded)
    document = require().raw_bson.RawBSONDocument
    documents, at = [], 0
    while at < len(data):
        end = at + int.from_bytes(data[at : at + 4], "little")
        documents.append(document(data[at:end]))
        at = end
    return documents


def _raw(value: Any) -> Raw:
    """Any value that pymongo can encode, as its bytes."""
    data = require().encode({"": value})
    return Raw(data[4], data[6:-1])


def _merge(
    part: VectorData, key: str, ids: list[Any], documents: Sequence[Mapping[str, Any]], first: int
) -> list[dict[str, Any]]:
    binary = require().Binary
    merged = []
    for i, (payload, document) in enumerate(zip(encode_matrix(part), documents, strict=True)):
        new = {"_id": ids[i], **document}
        _put(new, key.split("."), binary(payload, VECTOR_SUBTYPE), first + i)
        merged.append(new)
    return merged


def _refuse_other_ids(ids: list[Any], documents: list[dict[str, Any]], first: int) -> None:
    for i, (own_id, document) in enumerate(zip(ids, documents, strict=True)):
        if document["_id"] != own_id:
            raise InputError(f"the _id of document {first + i} differs from ids", rule="bson.ids")


def _put(document: dict[str, Any], names: list[str], value: Any, number: int) -> None:
    """Sets a nested field, in copies of what is on the way to it."""
    *outer, last = names
    for name in outer:
        inner = document.get(name, {})
        if not isinstance(inner, Mapping):
            raise InputError(f"'{escape(name)}' of document {number} is not a document", rule="bson.path")
        document[name] = inner = dict(inner)
        document = inner
    if last in document:
        raise InputError(f"document {number} has '{escape('.'.join(names))}' already", rule="bson.path")
    document[last] = value


class ReadOptions(TypedDict, total=False):
    """What `read_matrix` takes beside its query: the options of `decode_matrix`."""

    out: NDArray[Any] | None
    on_missing: OnMissing
    ignored_bits: IgnoredBits


@dataclass(frozen=True, slots=True)
class Query:
    """The vectors at a dotted path of the documents of a collection that match a filter."""

    collection: Collection[Any]
    key: str
    filter: Mapping[str, Any] | None = None
    ids: bool = False
    progress: Progress | None = None

    def expected_rows(self) -> int:
        """How many documents there are, where the server knows without looking; else 0."""
        return 0 if self.filter else self.collection.estimated_document_count()

    def batches(self) -> Iterator[Batch]:
        """The vectors, batch by batch."""
        require()
        path_bytes(self.key)
        wanted, filter = {self.key: 1, "_id": int(self.ids)}, self.filter or {}
        sample = b"".join(self.collection.find_raw_batches(filter, wanted, limit=1))
        count = max(_LEAST_BATCH, _READ_NBYTES // max(1, len(sample)))
        cursor = self.collection.find_raw_batches(filter, wanted, batch_size=count)
        found = batches(cursor, self.key, pymongo_ids if self.ids else None)
        if self.progress is None:
            return found
        return _report(found, self.collection.count_documents(filter), self.progress)


def _report(found: Iterator[Batch], total: int, progress: Progress) -> Iterator[Batch]:
    done = 0
    for batch in found:
        yield batch
        done += len(batch.missing)
        progress(min(done, total), total)


@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: Literal[False] = False,
    packed: Literal[False] = False,
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> NDArray[Any]: ...
@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: Literal[True],
    packed: Literal[False] = False,
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> tuple[NDArray[Any], list[Any]]: ...
@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: Literal[False] = False,
    packed: Literal[True],
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> PackedBits: ...
@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: Literal[True],
    packed: Literal[True],
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> tuple[PackedBits, list[Any]]: ...
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: bool = False,
    packed: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ReadOptions],
) -> NDArray[Any] | PackedBits | tuple[NDArray[Any] | PackedBits, list[Any]]:
    """The vectors at the dotted path `key` of the documents that match, as rows in the order the server has them.

    The options are those of `decode_matrix`. With `ids`, the ids of the rows too.
    """
    query = Query(collection, key, filter, ids, progress)
    parts = query.batches()
    found = assemble(parts, MatrixOptions(packed=packed, expected_rows=query.expected_rows(), **options))
    return (found.matrix, found.ids) if ids else found.matrix


def pymongo_ids(data: memoryview, column: Column) -> list[Any]:
    """Ids as pymongo would give them: all of them are decoded at once, as the items of one document."""
    rows = zip(column.kinds.tolist(), column.begins.tolist(), column.ends.tolist(), strict=True)
    body = b"".join(
        b"%c%d\0%b" % (kind or NULL, i, bytes(data[begin:end])) for i, (kind, begin, end) in enumerate(rows)
    )
    return list(require().decode((len(body) + 5).to_bytes(4, "little") + body + b"\0").values())
