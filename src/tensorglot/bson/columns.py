"""The ids or another field of many documents: one column of BSON values, as they are stored.

A value stays its BSON type and its bytes, so an int32 never becomes an int64, and an
ObjectId, a decimal or a subdocument passes through any file unchanged. If all values
have the same type and NumPy has it, too, the column is also an array (`plain`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.bson.coerce import is_vector
from tensorglot.bson.vector import encode
from tensorglot.errors import FormatError, InputError, escape
from tensorglot.extras import library
from tensorglot.wire import bson as wire
from tensorglot.wire.bson import VECTOR_SUBTYPE
from tensorglot.wire.bson_value import (
    BOOL,
    DATE,
    DOUBLE,
    INT32,
    INT64,
    OBJECT_ID,
    Binary,
    Raw,
    decode_value,
    document_of,
    encode_value,
    refuse,
)

__all__ = [
    "ABSENT",
    "BSON_SUFFIX",
    "PLAIN_DTYPES",
    "ValueColumn",
    "as_bson",
    "concat",
    "encode_by_pymongo",
    "from_array",
    "from_dates",
    "from_dump",
    "from_plain",
    "from_values",
    "gather",
]

ABSENT = 0
"""The kind of a value that is absent: its document has no such field."""
BSON_SUFFIX = ".bson"
"""Suffix of the tensor of a column that is not an array: the bytes of a document {name: value} for each row."""
PLAIN_DTYPES: dict[int | None, str] = {
    DOUBLE: "<f8", INT32: "<i4", INT64: "<i8", BOOL: "|b1", DATE: "<i8", OBJECT_ID: "V12",
}  # fmt: skip
"""NumPy's form of the BSON types that have one."""
_KINDS = {"f8": DOUBLE, "i4": INT32, "i8": INT64, "b1": BOOL}
"""The BSON type of an array's elements, by NumPy's name without the byte order."""
_OBJECT_ID_NBYTES = 12


@dataclass(frozen=True, slots=True, eq=False)
class ValueColumn:
    """A BSON value for each row."""

    kinds: NDArray[np.uint8]
    """BSON types; ABSENT where the document has no such field."""
    offsets: NDArray[np.int64]
    """Row i has data[offsets[i]:offsets[i + 1]]."""
    data: bytes

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def present_kinds(self) -> set[int]:
        """The types of the present values."""
        return {kind for kind in np.flatnonzero(np.bincount(self.kinds)).tolist() if kind != ABSENT}

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which rows have a value."""
        return np.asarray(self.kinds != ABSENT)

    def raw(self, row: int) -> Raw:
        return Raw(int(self.kinds[row]), self.data[self.offsets[row] : self.offsets[row + 1]])

    def elements(self, name: bytes) -> list[bytes]:
        """The elements that documents have for the rows: type, name, value; nothing for absent ones."""
        edges = self.offsets.tolist()
        return [
            b"%c%b%b" % (kind, name, self.data[edges[i] : edges[i + 1]]) if kind else b""
            for i, kind in enumerate(self.kinds.tolist())
        ]

    def tolist(self) -> list[Any]:
        """Python values, None for absent ones. Types that Python lacks, such as ObjectId, are `Raw`."""
        data, edges = memoryview(self.data), self.offsets.tolist()
        return [
            decode_value(data, kind, edges[i], edges[i + 1]) if kind else None
            for i, kind in enumerate(self.kinds.tolist())
        ]

    def take(self, keep: NDArray[np.bool_]) -> ValueColumn:
        """The rows of a mask."""
        if keep.all():
            return self
        rows = np.flatnonzero(keep).tolist()
        edges = self.offsets.tolist()
        return _join(self.kinds[keep], [self.data[edges[i] : edges[i + 1]] for i in rows])

    def part(self, begin: int, end: int) -> ValueColumn:
        """The rows from `begin` to `end`."""
        edges = self.offsets[begin : end + 1]
        return ValueColumn(self.kinds[begin:end], edges - edges[0], self.data[int(edges[0]) : int(edges[-1])])

    def plain(self, kind: int | None) -> NDArray[Any] | None:
        """The values as an array, if their type is of numbers, bools, dates (milliseconds) or ObjectIds (twelve bytes).

        `kind` is the only type of the column, None if there are several. Zeros stand for absent values.
        """
        present = self.present
        dtype = np.dtype(PLAIN_DTYPES[kind]) if kind in PLAIN_DTYPES else None
        if dtype is None:
            return None
        values = np.frombuffer(self.data, dtype)
        if present.all():
            return values
        out = np.zeros(len(self), dtype)
        out[present] = values
        return out

    def documents(self, name: str) -> list[bytes]:
        """A document {name: value} for each row, empty for an absent one."""
        return list(map(document_of, self.elements(wire.key_bytes(name))))

    def dump(self, name: str) -> bytes:
        """The documents of `documents`, concatenated."""
        return b"".join(self.documents(name))


def _join(kinds: NDArray[np.uint8], values: Sequence[bytes]) -> ValueColumn:
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    return ValueColumn(kinds, prefix_sums(sizes), b"".join(values))


def gather(data: memoryview, column: wire.Column) -> ValueColumn:
    """Copies the values of one field out of a run of documents."""
    # Slices of bytes are cheaper than slices of a memoryview, unless most of the data is not needed.
    whole = bytes(data) if column.ends.sum() - column.begins.sum() > len(data) // 4 else data
    return _join(column.kinds, [bytes(whole[begin:end]) for _, begin, end in column])


def concat(columns: Sequence[ValueColumn]) -> ValueColumn:
    """The rows of several columns, one after the other."""
    if len(columns) == 1:
        return columns[0]
    starts = np.cumsum([0, *(len(column.data) for column in columns)])
    offsets = [column.offsets[:-1] + start for column, start in zip(columns, starts, strict=False)]
    return ValueColumn(
        np.concatenate([np.empty(0, np.uint8), *(column.kinds for column in columns)]),
        np.concatenate([*offsets, starts[-1:]]).astype(np.int64),
        b"".join(column.data for column in columns),
    )


def from_values(values: Iterable[Any] | ValueColumn) -> ValueColumn:
    """Encodes Python values, NumPy scalars, `Raw`, vectors and any value that pymongo can encode; None is absent."""
    if isinstance(values, ValueColumn):
        return values
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.str[1:] in _KINDS:
        return from_plain(values, _KINDS[values.dtype.str[1:]])
    encoded = [(ABSENT, b"") if value is None else encode_value(value, as_bson) for value in values]
    return _join(np.array([kind for kind, _ in encoded], np.uint8), [data for _, data in encoded])


def from_plain(values: NDArray[Any], kind: int, present: NDArray[np.bool_] | None = None) -> ValueColumn:
    """The inverse of `ValueColumn.plain`: a column of one type, absent where `present` is false."""
    dtype = np.dtype(PLAIN_DTYPES[kind])
    kinds = np.full(len(values), kind, np.uint8)
    sizes = np.full(len(values), dtype.itemsize, np.int64)
    if present is not None and not present.all():
        values, kinds, sizes = values[present], kinds * present, sizes * present
    data = values.astype(dtype, copy=False).tobytes()
    return ValueColumn(kinds, prefix_sums(sizes), data)


def encode_by_pymongo(value: Any) -> Raw:
    """Encodes any value that pymongo supports."""
    data = library("bson", "mongo").encode({"": value})
    return Raw(data[4], data[6:-1])  # a document: length (4 bytes), type, the empty name's NUL, the value, NUL


def as_bson(value: Any) -> Any:
    """Encodes a vector, a regular expression, or a value of a class of pymongo's `bson` package.

    Called for values that `encode_value` does not support.
    """
    if is_vector(value):
        return Binary(VECTOR_SUBTYPE, encode(value, ignored_bits="keep"))
    if isinstance(value, re.Pattern) or type(value).__module__.startswith("bson."):
        return encode_by_pymongo(value)
    return refuse(value)


def from_array(array: NDArray[Any], name: str) -> ValueColumn:
    """A column of an array: smaller integers become int32, floats double, NumPy's texts text, datetimes dates."""
    if array.ndim == 2 and array.dtype == np.uint8 and array.shape[1] == _OBJECT_ID_NBYTES:
        return from_plain(np.ascontiguousarray(array).view("V12").reshape(-1), OBJECT_ID)
    if array.ndim != 1:
        raise InputError(
            f"'{escape(name)}' has {array.ndim} dimensions; a field needs one value for each row", rule="place.field"
        )
    if array.dtype.kind == "M":
        return from_dates(array, name)
    if array.dtype.kind in "US":
        return from_values(_texts(array, name))
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
    elif np.can_cast(array.dtype, np.int32) and array.dtype.kind != "b":
        array = array.astype(np.int32)
    return from_values(array)


def from_dates(array: NDArray[np.datetime64], name: str, present: NDArray[np.bool_] | None = None) -> ValueColumn:
    """Datetimes of any unit, taken as UTC; NaT is an absent value. BSON has milliseconds: finer ones are refused."""
    dates = array.astype("M8[ms]")
    present = ~np.isnat(array) if present is None else present & ~np.isnat(array)
    if (dates != array)[present].any():
        raise InputError(
            f"'{escape(name)}': BSON dates have millisecond precision; round to milliseconds", rule="bson.date"
        )
    return from_plain(dates.view(np.int64), DATE, present)


def _texts(array: NDArray[Any], name: str) -> list[str]:
    """NumPy's texts, without the NULs that pad them; byte strings are decoded as UTF-8."""
    try:
        return [text.decode() if isinstance(text, bytes) else text for text in array.tolist()]
    except ValueError as error:  # a UnicodeDecodeError, or a code point that does not exist
        raise InputError(f"'{escape(name)}' has invalid text: {error}", rule="place.field") from error


def from_dump(data: Any, name: str, start: int = 0) -> ValueColumn:
    """A column of the documents that `ValueColumn.dump` made; `start` is where they are in their source, for errors."""
    raw = wire.view(data)
    try:
        return gather(raw, wire.find(raw, [wire.key_bytes(name)], start))
    except FormatError as error:
        raise FormatError(f"'{escape(name)}': {error.message}", rule=error.rule, offset=error.offset) from error
