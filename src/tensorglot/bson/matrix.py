"""Whole matrices: a row is a vector, and no number becomes a Python object.

Documents of equal length are woven from one template. Reading takes batches from
`sources` and gathers them into one matrix, the caller's or one that grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.coerce import NUMPY, VectorData, apply_ignored_bits, coerce_vector
from tensorglot.bson.sources import Batch, batches, read_ids
from tensorglot.errors import FormatError, InputError
from tensorglot.model.payload import as_bytes
from tensorglot.wire.bson import path_bytes
from tensorglot.wire.bson_template import Slot, Tree, add_vector, template, weave
from tensorglot.wire.bson_value import encode_value
from tensorglot.wire.bson_vector import IgnoredBits, Row, split

__all__ = ["Assembled", "OnMissing", "assemble", "decode_matrix", "encode_documents", "encode_matrix"]

OnMissing: TypeAlias = Literal["error", "skip", "nan"]

_EXPECTED_NBYTES = 4 << 30
"""No more than this is asked for in advance."""


def encode_matrix(matrix: Any, dtype: str | None = None) -> list[bytes]:
    """The payload of each row of a matrix."""
    normal = coerce_vector(matrix, dtype, None, 2)
    return split(as_bytes(normal.data), len(normal.data), _row(normal))


def encode_documents(matrix: Any, key: str, ids: Sequence[Any] | None = None, dtype: str | None = None) -> bytes:
    """A document for each row, one after the other: what `mongorestore` and `insert_many` take.

    The vector is at the dotted path `key`. With `ids` each document has an `_id`, which
    may be anything that BSON has; without them MongoDB gives its own.
    """
    normal = coerce_vector(matrix, dtype, None, 2)
    row, count = _row(normal), len(normal.data)
    data = as_bytes(normal.data)
    if path_bytes(key)[0] == b"_id\0":
        raise InputError("the vector cannot be the _id", rule="bson.key")
    if ids is None:
        return _documents(data, count, row, key, None, b"")
    if len(ids) != count:
        raise InputError(f"{len(ids)} ids for {count} rows", rule="bson.ids")
    kind, joined = _uniform_ids(ids)
    if kind is not None:
        return _documents(data, count, row, key, kind, joined)
    parts = []
    for i, value in enumerate(ids):
        own = data[i * row.nbytes : (i + 1) * row.nbytes]
        parts.append(_documents(own, 1, row, key, *encode_value(value)))
    return b"".join(parts)


def _row(normal: VectorData) -> Row:
    return Row(normal.kind, normal.padding, normal.data.shape[1] * normal.data.itemsize)


def _uniform_ids(ids: Sequence[Any]) -> tuple[int | None, bytes]:
    """The kind of all ids and their bytes in a row, if they are all alike; integers are, of one width."""
    if not isinstance(ids, np.ndarray) and not all(type(value) is int for value in ids):
        encoded = [encode_value(value) for value in ids]
        alike = len({(kind, len(data)) for kind, data in encoded}) == 1
        return (encoded[0][0], b"".join(data for _, data in encoded)) if alike else (None, b"")
    numbers = np.asarray(ids)
    if numbers.dtype.kind not in "iu" or (numbers.size and int(numbers.max()) >= 1 << 63):
        raise InputError(f"ids are {numbers.dtype}, no integers of 64 bits", rule="bson.ids")
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
    ids: Literal[True],
    ignored_bits: IgnoredBits = "error",
) -> tuple[NDArray[Any], list[Any]]: ...
def decode_matrix(
    source: Any,
    key: str | None = None,
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    *,
    ids: bool = False,
    ignored_bits: IgnoredBits = "error",
) -> NDArray[Any] | tuple[NDArray[Any], list[Any]]:
    """The vectors of many documents as the rows of one matrix; of bits, eight in each byte.

    `source` is raw BSON, the path of a dump (also gzip), a pymongo cursor, raw or not,
    documents, or without a `key` payloads. `key` is a dotted path, and may be left out
    where the documents have one vector field. `out` has room for at least as many rows,
    and is returned, or the part of it that was filled. A document without the field is an error, is
    left out ("skip") or gives a row of NaN ("nan"). With `ids`, the `_id` of each row too.
    """
    found = assemble(batches(source, key, read_ids if ids else None), out, on_missing, ignored_bits)
    return (found.matrix, found.ids) if ids else found.matrix


def assemble(
    parts: Iterable[Batch],
    out: NDArray[Any] | None = None,
    on_missing: OnMissing = "error",
    ignored_bits: IgnoredBits = "error",
    expected: int = 0,
) -> Assembled:
    """Batches as one matrix, with room for the expected number of rows from the start."""
    if on_missing not in ("error", "skip", "nan"):
        raise InputError(f"on_missing is 'error', 'skip' or 'nan', not {on_missing!r}", rule="bson.on_missing")
    growing = _Growing(out, on_missing, ignored_bits, expected)
    for part in parts:
        growing.add(part)
    return Assembled(growing.finish(), growing.ids, growing.row)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A matrix, the ids of its rows where they were asked for, and what its rows are; None where there are none."""

    matrix: NDArray[Any]
    ids: list[Any]
    row: Row | None

    def unpacked(self) -> NDArray[Any]:
        """The matrix; of bits, with a bool for each."""
        if self.row is None or self.row.kind.name != "packed_bit":
            return self.matrix
        return np.unpackbits(self.matrix, axis=1, count=self.row.count).view(np.bool_)


class _Growing:
    """A matrix that takes batches until there are no more."""

    def __init__(
        self, out: NDArray[Any] | None, on_missing: OnMissing, ignored_bits: IgnoredBits, expected: int
    ) -> None:
        self.ids: list[Any] = []
        self._out = out
        self._on_missing = on_missing
        self._ignored_bits = ignored_bits
        self._expected = expected
        self.row: Row | None = None
        self._matrix: NDArray[Any] | None = None
        self._filled = 0
        self._documents = 0

    def add(self, batch: Batch) -> None:
        missing = batch.missing
        absent = int(np.count_nonzero(missing))
        if absent:
            self._permit(missing)
        self._documents += len(missing)
        skipped = absent if self._on_missing == "skip" else 0
        if batch.ids is not None:
            self.ids += [i for i, lost in zip(batch.ids, missing, strict=True) if not lost] if skipped else batch.ids
        if absent < len(missing):
            self.row = batch.row(self.row)
        block = self._next(len(missing) - skipped)
        if absent == skipped:
            if len(block):
                batch.gather(cast("Row", self.row), as_bytes(block))
            return
        self._permit_nan()
        block[missing] = np.nan
        if absent < len(missing):
            values = np.empty((len(missing) - absent, block.shape[1]), block.dtype)
            batch.gather(cast("Row", self.row), as_bytes(values))
            block[~missing] = values

    def _permit(self, missing: NDArray[np.bool_]) -> None:
        if self._on_missing == "error":
            number = self._documents + int(np.flatnonzero(missing)[0])
            raise FormatError(
                f"document {number} has no vector; on_missing='skip' or 'nan' goes on", rule="bson.field.missing"
            )

    def _permit_nan(self) -> None:
        if self.row is not None and self.row.kind.name != "float32":
            raise InputError(f"{self.row.kind.name} has no NaN: on_missing='skip'", rule="bson.on_missing")

    def _next(self, rows: int) -> NDArray[Any]:
        """The next rows of the matrix; without columns as long as no vector was seen."""
        begin, self._filled = self._filled, self._filled + rows
        if self.row is None:
            return np.empty((rows, 0), np.float32)
        if self._out is not None:
            matrix = _checked(self._out, self.row, self._filled)
        elif self._matrix is None or len(self._matrix) < self._filled:
            matrix = self._larger(begin, self.row)
        else:
            matrix = self._matrix
        if self._matrix is None and begin:
            self._permit_nan()
            matrix[:begin] = np.nan
        self._matrix = matrix
        return matrix[begin : self._filled]

    def _larger(self, filled: int, row: Row) -> NDArray[Any]:
        """New memory, which costs nothing where it is not touched: twice as much as before, or all that is expected."""
        if self._matrix is None:
            room = min(self._expected, _EXPECTED_NBYTES // max(1, row.nbytes))
        else:
            room = 2 * len(self._matrix)
        larger = np.empty((max(room, self._filled), _width(row)), NUMPY[row.kind.name])
        if self._matrix is not None:
            larger[:filled] = self._matrix[:filled]
        return larger

    def finish(self) -> NDArray[Any]:
        if self.row is None or self._matrix is None:
            return np.empty((self._filled, 0), np.float32)
        matrix = self._matrix if self._filled == len(self._matrix) else self._matrix[: self._filled]
        if self._ignored_bits == "zero" and self.row.padding:
            matrix[:, -1] &= 256 - (1 << self.row.padding)
        return apply_ignored_bits(matrix, self.row.padding, self._ignored_bits)


def _width(row: Row) -> int:
    return row.nbytes // row.kind.itemsize


def _checked(out: NDArray[Any], row: Row, rows: int) -> NDArray[Any]:
    wanted = NUMPY[row.kind.name]
    if out.ndim != 2 or out.dtype != wanted or out.shape[1] != _width(row) or len(out) < rows:
        raise InputError(
            f"out is {out.dtype}{list(out.shape)}, the vectors need {wanted}[{rows}, {_width(row)}]", rule="out.shape"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InputError("out is not contiguous and writable", rule="out.memory")
    return out
