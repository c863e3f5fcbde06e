"""Whole matrices: a row is a vector, and no number becomes a Python object.

Documents of equal length are woven from one template. Reading takes batches from
`sources`, and `assemble` makes one matrix of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.assemble import MatrixOptions, OnMissing, PackedBits, assemble
from tensorglot.bson.coerce import DType, coerce_vector
from tensorglot.bson.sources import batches, read_ids
from tensorglot.errors import InputError
from tensorglot.model.payload import as_bytes
from tensorglot.wire.bson import path_bytes
from tensorglot.wire.bson_template import Slot, Tree, add_vector, template, weave
from tensorglot.wire.bson_value import encode_value
from tensorglot.wire.bson_vector import IgnoredBits, Row, split

__all__ = ["check_count", "decode_matrix", "encode_documents", "encode_matrix"]


def encode_matrix(matrix: Any, dtype: DType = None) -> list[bytes]:
    """The payload of each row of a matrix, or of each vector of a list."""
    found = coerce_vector(matrix, dtype, None, 2)
    return split(as_bytes(found.data), len(found.data), found.row)


def encode_documents(matrix: Any, key: str, ids: Sequence[Any] | None = None, dtype: DType = None) -> bytes:
    """A document for each row, one after the other: what `mongorestore` and `insert_many` take.

    The vector is at the dotted path `key`. With `ids` each document has an `_id`, which
    may be anything that BSON has; without them MongoDB gives its own.
    """
    found = coerce_vector(matrix, dtype, None, 2)
    row, count = found.row, len(found.data)
    data = as_bytes(found.data)
    if path_bytes(key)[0] == b"_id\0":
        raise InputError("the vector cannot be the _id", rule="bson.key")
    if ids is None:
        return _documents(data, count, row, key, None, b"")
    check_count("ids", ids, count)
    kind, joined = _uniform_ids(ids)
    if kind is not None:
        return _documents(data, count, row, key, kind, joined)
    parts = []
    for i, value in enumerate(ids):
        own = data[i * row.nbytes : (i + 1) * row.nbytes]
        parts.append(_documents(own, 1, row, key, *encode_value(value)))
    return b"".join(parts)


def check_count(what: str, given: Any, count: int) -> None:
    """Refuses what is not a sequence with an item for each row."""
    if not hasattr(given, "__len__") or not hasattr(given, "__getitem__"):
        raise InputError(f"{what} must be a sequence, not {type(given).__name__}", rule=f"bson.{what}")
    if len(given) != count:
        raise InputError(f"{len(given)} {what} for {count} rows", rule=f"bson.{what}")


def _uniform_ids(ids: Sequence[Any]) -> tuple[int | None, bytes]:
    """The kind of all ids and their bytes in a row, if they are all alike; integers are, of one width."""
    if isinstance(ids, np.ma.MaskedArray) or (
        not isinstance(ids, np.ndarray) and not all(type(value) is int for value in ids)
    ):
        encoded = [encode_value(value) for value in ids]
        alike = len({(kind, len(data)) for kind, data in encoded}) == 1
        return (encoded[0][0], b"".join(data for _, data in encoded)) if alike else (None, b"")
    numbers = np.asarray(ids)
    if numbers.dtype.kind not in "iu" or (numbers.size and int(numbers.max()) >= 1 << 63):
        raise InputError(f"ids of {numbers.dtype} do not fit int64", rule="bson.ids")
    narrow = numbers.size == 0 or (int(numbers.min()) >= -(1 << 31) and int(numbers.max()) < 1 << 31)
    kind, width = (0x10, "<i4") if narrow else (0x12, "<i8")
    return kind, numbers.astype(width).tobytes()


def _documents(data: memoryview, count: int, row: Row, key: str, id_kind: int | None, ids: bytes) -> bytes:
    """Documents that differ only in id and vector."""
    if count == 0:
        return b""
    tree: Tree = {} if id_kind is None else {b"_id\0": Slot("_id", id_kind, b"", len(ids) // count)}
    add_vector(tree, key, row)
    return weave(count, template(tree), {"_id": ids, key: data})


@overload
def decode_matrix(
    source: Any,
    key: str | None = None,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    *,
    packed: Literal[False] = False,
    ids: Literal[False] = False,
    ignored_bits: IgnoredBits = "error",
) -> NDArray[Any]: ...
@overload
def decode_matrix(
    source: Any,
    key: str | None = None,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    *,
    packed: Literal[False] = False,
    ids: Literal[True],
    ignored_bits: IgnoredBits = "error",
) -> tuple[NDArray[Any], list[Any]]: ...
@overload
def decode_matrix(
    source: Any,
    key: str | None = None,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    *,
    packed: Literal[True],
    ids: Literal[False] = False,
    ignored_bits: IgnoredBits = "error",
) -> PackedBits: ...
@overload
def decode_matrix(
    source: Any,
    key: str | None = None,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    *,
    packed: Literal[True],
    ids: Literal[True],
    ignored_bits: IgnoredBits = "error",
) -> tuple[PackedBits, list[Any]]: ...
def decode_matrix(
    source: Any,
    key: str | None = None,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    *,
    packed: bool = False,
    ids: bool = False,
    ignored_bits: IgnoredBits = "error",
) -> NDArray[Any] | PackedBits | tuple[NDArray[Any] | PackedBits, list[Any]]:
    """The vectors of many documents as the rows of one matrix: float32, int8, or bool with a column for each bit.

    `source` is raw BSON, the path of a dump (also gzip), a pymongo cursor, raw or not,
    documents, or without a `key` payloads. `key` is a dotted path, and may be left out
    where the documents have one vector field. `out` has room for at least as many rows,
    and is returned, or the part of it that was filled. A document without the field is an
    error, is left out ("skip") or gives a row of NaN ("nan"). With `packed`, bits stay
    eight in a byte, with the padding beside them: a `PackedBits`. With `ids`, the `_id` of
    each row too. Ignored bits that are set are kept only in the packed form.
    """
    options = MatrixOptions(out, on_missing, ignored_bits, packed)
    found = assemble(batches(source, key, read_ids if ids else None), options)
    return (found.matrix, found.ids) if ids else found.matrix
