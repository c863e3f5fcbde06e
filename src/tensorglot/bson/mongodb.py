"""Matrices in a MongoDB collection: written, read, and made of arrays of doubles that are there already.

Documents travel as raw BSON in both directions, so that no number becomes a Python
object. Errors of the server and the driver pass through as pymongo raises them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.coerce import coerce_vector
from tensorglot.bson.matrix import OnMissing, assemble, encode_documents, encode_matrix
from tensorglot.bson.quantize import Quantized
from tensorglot.bson.sources import Batch, batches
from tensorglot.errors import InputError, escape
from tensorglot.extras import library
from tensorglot.wire.bson import NULL, VECTOR_SUBTYPE, Column, path_bytes
from tensorglot.wire.bson_value import Raw
from tensorglot.wire.bson_vector import IgnoredBits

if TYPE_CHECKING:
    from pymongo.collection import Collection

__all__ = ["Progress", "expected_rows", "pymongo_ids", "read_matrix", "require", "stored_vectors", "write_matrix"]

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
    dtype: str | None = None,
    progress: Progress | None = None,
) -> list[Any]:
    """Inserts a document for each row, with the row as a vector at the dotted path `key`. Returns their ids.

    `documents` are the other fields of each. Without `ids`, an id is the document's own
    `_id` or a new ObjectId.
    """
    bson = require()
    normal = coerce_vector(matrix, dtype, None, 2)
    whole = Quantized(normal.data, normal.kind.name, normal.padding)  # type: ignore[arg-type]
    count = len(normal.data)
    for what, given in (("ids", ids), ("documents", documents)):
        if given is not None and len(given) != count:
            raise InputError(f"{len(given)} {what} for {count} rows", rule=f"bson.{what}")
    step = max(1, _WRITE_NBYTES // max(1, normal.data.nbytes // max(1, count)))
    done: list[Any] = []
    for first in range(0, count, step):
        rows = slice(first, min(first + step, count))
        part = Quantized(whole.data[rows], whole.dtype, whole.padding)
        own_ids = None if ids is None else [_plain(value) for value in ids[rows]]
        if documents is None:
            own_ids = own_ids or [bson.ObjectId() for _ in range(len(part))]
            batch = _raw_documents(bson, part, key, own_ids)
        else:
            batch = _merged(bson, part, key, own_ids, documents[rows], first)
            own_ids = [document["_id"] for document in batch]
        collection.insert_many(batch)
        done += own_ids
        if progress is not None:
            progress(len(done), count)
    return done


def _plain(value: Any) -> Any:
    """An id from a NumPy array as Python has it."""
    return value.item() if isinstance(value, np.generic) else value


def _raw_documents(bson: Any, part: Quantized, key: str, ids: list[Any]) -> list[Any]:
    encoded = ids if all(type(value) is int for value in ids) else [_raw(bson, value) for value in ids]
    data = encode_documents(part, key, encoded)
    documents, at = [], 0
    while at < len(data):
        end = at + int.from_bytes(data[at : at + 4], "little")
        documents.append(bson.raw_bson.RawBSONDocument(data[at:end]))
        at = end
    return documents


def _raw(bson: Any, value: Any) -> Raw:
    """Any value that pymongo can encode, as its bytes."""
    data = bson.encode({"": value})
    return Raw(data[4], data[6:-1])


def _merged(
    bson: Any, part: Quantized, key: str, ids: list[Any] | None, documents: Sequence[Mapping[str, Any]], first: int
) -> list[dict[str, Any]]:
    names = key.split(".")
    path_bytes(key)
    merged = []
    for i, (payload, document) in enumerate(zip(encode_matrix(part), documents, strict=True)):
        new = {"_id": bson.ObjectId() if ids is None else ids[i], **document}
        if ids is not None and new["_id"] != ids[i]:
            raise InputError(f"document {first + i} has another _id than ids say", rule="bson.ids")
        _put(new, names, bson.Binary(payload, VECTOR_SUBTYPE), first + i)
        merged.append(new)
    return merged


def _put(document: dict[str, Any], names: list[str], value: Any, number: int) -> None:
    """Sets a nested field, in copies of what is on the way to it."""
    *outer, last = names
    for name in outer:
        inner = document.get(name, {})
        if not isinstance(inner, Mapping):
            raise InputError(f"'{escape(name)}' of document {number} is no document", rule="bson.path")
        document[name] = inner = dict(inner)
        document = inner
    if last in document:
        raise InputError(f"document {number} has '{escape('.'.join(names))}' already", rule="bson.path")
    document[last] = value


@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: Literal[False] = False,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    ignored_bits: IgnoredBits = "error",
    progress: Progress | None = None,
) -> NDArray[Any]: ...
@overload
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: Literal[True],
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    ignored_bits: IgnoredBits = "error",
    progress: Progress | None = None,
) -> tuple[NDArray[Any], list[Any]]: ...
def read_matrix(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    *,
    ids: bool = False,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    ignored_bits: IgnoredBits = "error",
    progress: Progress | None = None,
) -> NDArray[Any] | tuple[NDArray[Any], list[Any]]:
    """The vectors at the dotted path `key` of the documents that match, as rows in the order the server has them.

    The options are those of `decode_matrix`. With `ids`, the ids of the rows too.
    """
    parts = stored_vectors(collection, key, filter, ids, progress)
    found = assemble(parts, out, on_missing, ignored_bits, expected_rows(collection, filter))
    return (found.matrix, found.ids) if ids else found.matrix


def expected_rows(collection: Collection[Any], filter: Mapping[str, Any] | None) -> int:
    """How many documents a collection has, where the server knows without looking; else 0."""
    return 0 if filter else collection.estimated_document_count()


def stored_vectors(
    collection: Collection[Any],
    key: str,
    filter: Mapping[str, Any] | None = None,
    ids: bool = False,
    progress: Progress | None = None,
) -> Iterator[Batch]:
    """The vectors of a collection, batch by batch."""
    require()
    wanted = {key: 1, "_id": int(ids)}
    sample = b"".join(collection.find_raw_batches(filter or {}, wanted, limit=1))
    count = max(_LEAST_BATCH, _READ_NBYTES // max(1, len(sample)))
    cursor = collection.find_raw_batches(filter or {}, wanted, batch_size=count)
    found = batches(cursor, key, pymongo_ids if ids else None)
    if progress is None:
        return found
    return _reported(found, collection.count_documents(filter or {}), progress)


def _reported(found: Iterator[Batch], total: int, progress: Progress) -> Iterator[Batch]:
    done = 0
    for batch in found:
        yield batch
        done += len(batch.missing)
        progress(min(done, total), total)


def pymongo_ids(data: memoryview, column: Column) -> list[Any]:
    """Ids as pymongo would give them: all of them are decoded at once, as the items of one document."""
    rows = zip(column.kinds.tolist(), column.begins.tolist(), column.ends.tolist(), strict=True)
    body = b"".join(
        b"%c%d\0%b" % (kind or NULL, i, bytes(data[begin:end])) for i, (kind, begin, end) in enumerate(rows)
    )
    return list(require().decode((len(body) + 5).to_bytes(4, "little") + body + b"\0").values())
