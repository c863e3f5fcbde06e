"""Collects batches of vectors in one matrix: the caller's array, or one that grows.

Rows are copied as they are stored. Packed bits are unpacked at the end to one bool per
bit, so the padding shows in the shape; with `packed=True` they stay eight per byte, with
the padding beside them. Both forms encode to the original payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, cast, get_args

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import check_choice, check_flags
from tensorglot.bson.coerce import NUMPY, VectorData, apply_ignored_bits, unpack_bits
from tensorglot.bson.sources import Batch
from tensorglot.errors import FormatError, Hint, InputError
from tensorglot.model.payload import as_bytes
from tensorglot.model.tensor import plain_array
from tensorglot.tuples import NamedTuple
from tensorglot.wire.bson_vector import IGNORED_BITS, IgnoredBits, Row

__all__ = [
    "MISSING_RULE",
    "Assembled",
    "MatrixOptions",
    "OnMissing",
    "Out",
    "PackedBits",
    "ReadOptions",
    "assemble",
    "assemble_each",
]

OnMissing: TypeAlias = Literal["error", "skip", "nan"]
Out: TypeAlias = NDArray[Any] | None

MISSING_RULE = "bson.field.missing"
_EXPECTED_NBYTES = 4 << 30
"""Upper bound on memory allocated from an estimated row count."""
_UNPACKED_ROWS = 4096
"""Rows unpacked at a time into the caller's array."""


class ReadOptions(TypedDict, total=False):
    """Keywords of `decode_matrix`, which documents them, and `read_matrix`."""

    out: Out
    on_missing: OnMissing
    ignored_bits: IgnoredBits


@dataclass(frozen=True, slots=True)
class MatrixOptions:
    """The keywords with their defaults, checked."""

    out: Out = None
    on_missing: OnMissing = "error"
    ignored_bits: IgnoredBits = "error"
    packed: bool = False
    expected_rows: int = 0
    """Estimated number of rows, allocated in advance."""

    def __post_init__(self) -> None:
        check_flags(packed=self.packed)
        check_choice(self.on_missing, get_args(OnMissing), "on_missing", "bson.on_missing")
        check_choice(self.ignored_bits, IGNORED_BITS, "ignored_bits", "bson.ignored_bits")
        if self.out is not None:
            object.__setattr__(self, "out", plain_array(self.out, None))


class PackedBits(NamedTuple):
    """A matrix of packed bits, eight per byte, and how many bits of each row's last byte are ignored.

    `encode_matrix`, `encode_documents` and `write_matrix` take it as it is.
    """

    data: NDArray[np.uint8]
    padding: int

    @property
    def dtype(self) -> str:
        """The vector dtype."""
        return "packed_bit"

    def bits(self) -> NDArray[np.bool_]:
        """One bool for each bit, without the ignored ones."""
        return unpack_bits(self.data, self.padding)


@dataclass(frozen=True, slots=True)
class Assembled:
    """A matrix, and the ids of its rows if they were requested."""

    matrix: NDArray[Any] | PackedBits
    ids: list[Any]
    vectors: int
    """Vectors found; rows of NaN are not counted."""


def assemble(parts: Iterable[Batch], options: MatrixOptions) -> Assembled:
    """Collects all batches in one matrix."""
    matrix = _GrowableMatrix(options)
    for part in parts:
        matrix.add(part)
    return Assembled(matrix.finish(), matrix.ids, matrix.vectors)


def assemble_each(parts: Iterable[Batch], on_missing: OnMissing) -> Iterator[VectorData]:
    """The vectors of each batch, as stored. The length of a row is known from the first vector on, so rows of NaN
    before it are returned together with it."""
    matrix = _GrowableMatrix(MatrixOptions(on_missing=on_missing))
    for part in parts:
        matrix.add(part)
        if matrix.has_vectors:
            yield matrix.take()


class _GrowableMatrix:
    """Stored rows, appended batch by batch."""

    def __init__(self, options: MatrixOptions) -> None:
        self.ids: list[Any] = []
        self.vectors = 0
        self._options = options
        self._row: Row | None = None
        self._matrix: NDArray[Any] | None = None
        self._filled = 0
        self._documents = 0

    def add(self, batch: Batch) -> None:
        missing = batch.missing
        absent = int(np.count_nonzero(missing))
        if absent and self._options.on_missing == "error":
            number = self._documents + int(np.flatnonzero(missing)[0])
            raise FormatError(
                f"document {number} has no vector",
                rule=MISSING_RULE,
                hint=Hint("pass on_missing='skip' or 'nan' to continue", "pass --on-missing skip or nan to continue"),
            )
        self._documents += len(missing)
        self.vectors += len(missing) - absent
        skipped = absent if self._options.on_missing == "skip" else 0
        if batch.ids is not None:
            self.ids += [i for i, lost in zip(batch.ids, missing, strict=True) if not lost] if skipped else batch.ids
        if absent < len(missing):
            self._row = batch.row(self._row)
        block = self._append(len(missing) - skipped)
        if absent == skipped:  # no rows of NaN: the vectors fill the block without gaps
            if len(block):
                batch.gather(cast("Row", self._row), as_bytes(block))
            return
        self._check_nan()
        block[missing] = np.nan
        if absent < len(missing):
            values = np.empty((len(missing) - absent, block.shape[1]), block.dtype)
            batch.gather(cast("Row", self._row), as_bytes(values))
            block[~missing] = values

    def _check_nan(self) -> None:
        if self._row is not None and self._row.kind.name != "float32":
            raise InputError(
                f"NaN for missing vectors needs float32, found {self._row.kind.name}",
                rule="bson.on_missing",
                hint=Hint("pass on_missing='skip'", "pass --on-missing skip"),
            )

    def _append(self, rows: int) -> NDArray[Any]:
        """Returns the next rows of the matrix to fill; they have no columns until the first vector is seen."""
        begin, self._filled = self._filled, self._filled + rows
        if self._row is None:
            return np.empty((rows, 0), np.float32)
        if self._options.out is not None and not self._unpacks:
            matrix = _check_out(self._options.out, NUMPY[self._row.kind.name], self._filled, _width(self._row))
        elif self._matrix is None or len(self._matrix) < self._filled:
            matrix = self._grow(begin, self._row)
        else:
            matrix = self._matrix
        if self._matrix is None and begin:  # rows before the first vector: documents without one
            self._check_nan()
            matrix[:begin] = np.nan
        self._matrix = matrix
        return matrix[begin : self._filled]

    @property
    def _unpacks(self) -> bool:
        return self._row is not None and self._row.kind.name == "packed_bit" and not self._options.packed

    def _grow(self, filled: int, row: Row) -> NDArray[Any]:
        """Allocates twice the rows, or all that are expected; untouched memory costs nothing."""
        if self._matrix is None:
            room = min(self._options.expected_rows, _EXPECTED_NBYTES // max(1, row.nbytes))
        else:
            room = 2 * len(self._matrix)
        larger = np.empty((max(room, self._filled), _width(row)), NUMPY[row.kind.name])
        if self._matrix is not None:
            larger[:filled] = self._matrix[:filled]
        return larger

    @property
    def has_vectors(self) -> bool:
        """Whether one was found, so that the size of a row is known."""
        return self._row is not None

    def take(self) -> VectorData:
        """The rows so far; the next ones begin a new matrix."""
        row = cast("Row", self._row)
        rows = np.empty((0, _width(row)), NUMPY[row.kind.name]) if self._matrix is None else self._matrix
        rows = apply_ignored_bits(rows[: self._filled], row.padding, self._options.ignored_bits)
        self._matrix, self._filled = None, 0
        return VectorData(rows, row.kind, row.padding)

    def finish(self) -> NDArray[Any] | PackedBits:
        row, packed = self._row, self._options.packed
        if row is None or self._matrix is None:
            rows = self._rows_without_vectors()
            return PackedBits(rows, 0) if packed else rows
        if packed and row.kind.name != "packed_bit":
            raise InputError(f"packed=True needs packed_bit vectors, found {row.kind.name}", rule="bson.packed")
        matrix = self._matrix if self._filled == len(self._matrix) else self._matrix[: self._filled]
        if self._options.ignored_bits == "zero" and row.padding:  # in place; apply_ignored_bits would copy
            matrix[:, -1] &= 256 - (1 << row.padding)
        matrix = apply_ignored_bits(matrix, row.padding, self._options.ignored_bits)
        if packed:
            return PackedBits(matrix, row.padding)
        return self._unpack(matrix, row) if self._unpacks else matrix

    def _rows_without_vectors(self) -> NDArray[Any]:
        """The rows if there is no vector, all of them NaN: without columns, unless the caller's array has them."""
        out = self._options.out
        if out is None:
            return np.empty((self._filled, 0), np.uint8 if self._options.packed else np.float32)
        dtype = np.dtype(np.float32) if self._filled else out.dtype
        rows = _check_out(out, dtype, self._filled, out.shape[1] if out.ndim == 2 else 0)[: self._filled]
        if self._filled:
            rows[:] = np.nan
        return rows

    def _unpack(self, matrix: NDArray[Any], row: Row) -> NDArray[np.bool_]:
        if self._options.out is None:
            return unpack_bits(matrix, row.padding)
        out = _check_out(self._options.out, np.dtype(np.bool_), len(matrix), row.count)
        for first in range(0, len(matrix), _UNPACKED_ROWS):
            rows = slice(first, min(first + _UNPACKED_ROWS, len(matrix)))
            out[rows] = unpack_bits(matrix[rows], row.padding)
        return out if len(out) == len(matrix) else out[: len(matrix)]


def _width(row: Row) -> int:
    return row.nbytes // row.kind.itemsize


def _check_out(out: NDArray[Any], dtype: np.dtype[Any], rows: int, width: int) -> NDArray[Any]:
    if out.ndim != 2 or out.dtype != dtype or out.shape[1] != width or len(out) < rows:
        hint = "; pass packed=True to fill bytes of packed bits" if dtype == np.bool_ and out.dtype == np.uint8 else ""
        raise InputError(
            f"out is {out.dtype}{list(out.shape)}, the vectors need {dtype}[{rows}, {width}]{hint}", rule="out.shape"
        )
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise InputError("out must be C-contiguous and writable", rule="out.memory")
    return out
