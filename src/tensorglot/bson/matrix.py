"""Encodes and decodes matrices with a vector per row, without a Python object per number.

Documents of equal length are written from one template (`wire.bson_template`). Reading
takes batches from `sources`, and `assemble` collects them in one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import check_flags
from tensorglot.arrays import is_masked_array
from tensorglot.bson.assemble import MatrixOptions, OnMissing, Out, PackedBits, ReadOptions, assemble
from tensorglot.bson.coerce import DType, coerce_vector
from tensorglot.bson.columns import as_bson
from tensorglot.bson.sources import batches, read_ids
from tensorglot.errors import InputError
from tensorglot.model.payload import as_bytes
from tensorglot.wire.bson import path_bytes
from tensorglot.wire.bson_template import Slot, Tree, add_vector, template, weave
from tensorglot.wire.bson_value import encode_value
from tensorglot.wire.bson_vector import IgnoredBits, Row, split

__all__ = ["check_count", "decode_matrix", "encode_documents", "encode_matrix"]


def encode_matrix(matrix: Any, dtype: DType = None) -> list[bytes]:
    """Encodes each row of a matrix, or each vector of a list, to its payload."""
    found = coerce_vector(matrix, dtype, None, 2)
    return split(as_bytes(found.data), len(found.data), found.row)


def encode_documents(matrix: Any, key: str, ids: Sequence[Any] | None = None, dtype: DType = None) -> bytes:
    """Encodes a document for each row, concatenated as `mongorestore` reads them.

    The vector is at the dotted path `key`. With `ids` each document has an `_id` of any
    BSON type; without them MongoDB assigns its own.
    """
    found = coerce_vector(matrix, dtype, None, 2)
    row, count = found.row, len(found.data)
    data = as_bytes(found.data)
    if path_bytes(key)[0] == b"_id\0":
        raise InputError("key is '_id': a vector cannot be the _id of a document", rule="bson.key")
    if ids is not None:
        check_count("ids", ids, count)
    if ids is None or not count:
        return _documents(data, count, row, key, None, b"")
    kind, joined = _uniform_ids(ids)
    if kind is not None:
        return _documents(data, count, row, key, kind, joined)
    parts = []
    for i, value in enumerate(ids):
        own = data[i * row.nbytes : (i + 1) * row.nbytes]
        parts.append(_documents(own, 1, row, key, *encode_value(value, as_bson)))
    return b"".join(parts)


def check_count(what: str, given: Any, count: int) -> None:
    """Checks that `given` is a sequence with an item for each row."""
    try:
        own, ndim = len(given), getattr(given, "ndim", 1)
    except (TypeError, ValueError):  # no length; an array without dimensions; a released memoryview
        own, ndim = 0, 0
    if ndim != 1 or not hasattr(given, "__getitem__") or isinstance(given, Mapping):
        kind = f"an array of {ndim} dimensions" if ndim else type(given).__name__
        raise InputError(f"{what} must be a sequence, not {kind}", rule=f"bson.{what}")
    if own != count:
        raise InputError(f"{what} has {own} items, the matrix has {count} rows", rule=f"bson.{what}")


def _uniform_ids(ids: Sequence[Any]) -> tuple[int | None, bytes]:
    """Returns the BSON type of all ids and their bytes, concatenated, if all have one type and size; else None."""
    numeric = isinstance(ids, np.ndarray) and ids.dtype.kind not in "OSUTb" and not is_masked_array(ids)
    if not numeric and not all(type(value) is int for value in ids):
        encoded = [encode_value(value, as_bson) for value in ids]
        alike = len({(kind, len(data)) for kind, data in encoded}) == 1
        return (encoded[0][0], b"".join(data for _, data in encoded)) if alike else (None, b"")
    numbers = np.asarray(ids)
    if numbers.dtype.kind not in "iu" or (numbers.size and int(numbers.max()) >= 1 << 63):
        raise InputError(f"ids must be text, or integers that fit in int64, found {numbers.dtype}", rule="bson.ids")
    narrow = numbers.size == 0 or (int(numbers.min()) >= -(1 << 31) and int(numbers.max()) < 1 << 31)
    kind, width = (0x10, "<i4") if narrow else (0x12, "<i8")
    return kind, numbers.astype(width).tobytes()


def _documents(data: memoryview, count: int, row: Row, key: str, id_kind: int | None, ids: bytes) -> bytes:
    """Encodes documents that differ only in id and vector."""
    if count == 0:
        return b""
    tree: Tree = {} if id_kind is None else {b"_id\0": Slot("_id", id_kind, b"", len(ids) // count)}
    add_vector(tree, key, row)
    return weave(count, template(tree), {"_id": ids, key: data})


Key: TypeAlias = str | None
Ids: TypeAlias = list[Any]


@overload
def decode_matrix(
    source: Any, key: Key = ..., out: Out = ..., on_missing: OnMissing = ..., *, ignored_bits: IgnoredBits = ...
) -> NDArray[Any]: ...
@overload
def decode_matrix(
    source: Any, key: Key = ..., *, packed: Literal[True], ids: Literal[True], **options: Unpack[ReadOptions]
) -> tuple[PackedBits, Ids]: ...
@overload
def decode_matrix(
    source: Any, key: Key = ..., *, packed: Literal[True], **options: Unpack[ReadOptions]
) -> PackedBits: ...
@overload
def decode_matrix(
    source: Any, key: Key = ..., *, ids: Literal[True], **options: Unpack[ReadOptions]
) -> tuple[NDArray[Any], Ids]: ...
@overload
def decode_matrix(
    source: Any, key: Key = ..., *, packed: bool = ..., ids: bool = ..., **options: Unpack[ReadOptions]
) -> NDArray[Any] | PackedBits | tuple[NDArray[Any] | PackedBits, Ids]: ...
def decode_matrix(
    source: Any,
    key: Key = None,
    out: Out = None,
    on_missing: OnMissing = "error",
    *,
    packed: bool = False,
    ids: bool = False,
    ignored_bits: IgnoredBits = "error",
) -> Any:
    """Decodes the vectors of many documents to one matrix: float32, int8, or bool with a column for each bit.

    `source` is raw BSON, the path of a dump (also gzip), a pymongo cursor (raw or not) or
    documents; without `key` it may be payloads. `key` is a dotted path, and optional if the
    documents have one vector field. `out` is an array with at least as many rows to fill;
    the filled part is returned. `on_missing` says what to do with a document without the
    field: raise ("error"), leave it out ("skip") or add a row of NaN ("nan"). With
    `packed=True` the result is a `PackedBits`, eight bits per byte. With `ids=True` it is a
    pair: the matrix and a list with the `_id` of each row. `ignored_bits="keep"` has an
    effect only with `packed=True`.
    """
    check_flags(ids=ids)
    options = MatrixOptions(out, on_missing, ignored_bits, packed)
    found = assemble(batches(source, key, read_ids if ids else None), options)
    return (found.matrix, found.ids) if ids else found.matrix
