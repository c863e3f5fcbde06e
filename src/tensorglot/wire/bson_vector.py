"""The payload of a BSON vector: a dtype byte, a padding byte, the elements in little-endian order.

Implements all rules of the accepted specification, for one payload and for many that
form the rows of one matrix. Knows bytes and offsets; the caller interprets the elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, InputError, TensorglotError
from tensorglot.kernels import bson_rows

__all__ = [
    "HEAD_NBYTES",
    "IGNORED_BITS",
    "KINDS",
    "IgnoredBits",
    "Kind",
    "Row",
    "check_padding",
    "disagreement",
    "find_kind",
    "first_unlike",
    "gather",
    "gather_payloads",
    "row_of",
    "row_of_head",
    "split",
]

HEAD_NBYTES = 2
IgnoredBits: TypeAlias = Literal["error", "keep", "zero"]
IGNORED_BITS = get_args(IgnoredBits)


@dataclass(frozen=True, slots=True)
class Kind:
    """One dtype of the specification."""

    name: str
    code: int
    itemsize: int
    """Bytes of one element, or of eight bits."""

    def count(self, nbytes: int, padding: int) -> int:
        """Number of elements in `nbytes` of data."""
        return 8 * nbytes - padding if self.name == "packed_bit" else nbytes // self.itemsize


KINDS = (Kind("int8", 0x03, 1), Kind("float32", 0x27, 4), Kind("packed_bit", 0x10, 1))
_BY_CODE = {kind.code: kind for kind in KINDS}
_BY_NAME = {kind.name: kind for kind in KINDS}
_BY_NAME |= dict.fromkeys(("f32", "fp32"), _BY_NAME["float32"])


def find_kind(dtype: object) -> Kind:
    """Finds a kind by our name, the specification's name (`FLOAT32`) or number (0x27), or pymongo's enumeration."""
    name = getattr(dtype, "name", dtype)
    kind = _BY_NAME.get(name.lower()) if isinstance(name, str) else _BY_CODE.get(name) if type(name) is int else None
    if kind is None:
        known = ", ".join(f"{kind.name} (0x{kind.code:02x})" for kind in KINDS)
        raise InputError(f"unknown vector dtype {dtype!r} (supported: {known})", rule="bson.vector.dtype")
    return kind


def check_padding(kind: Kind, padding: int, nbytes: int, error: type[TensorglotError] = InputError) -> None:
    """Checks that padding is 0, or at most 7 for packed bits that are not empty."""
    if kind.name != "packed_bit" and padding != 0:
        raise error(f"{kind.name} needs padding 0, found {padding}", rule="bson.vector.padding")
    if not 0 <= padding <= 7:
        raise error(f"padding must be 0 to 7, found {padding}", rule="bson.vector.padding")
    if padding and not nbytes:
        raise error(f"padding {padding} in an empty vector", rule="bson.vector.padding")


@dataclass(frozen=True, slots=True)
class Row:
    """The dtype, padding and size that all rows of a matrix share."""

    kind: Kind
    padding: int
    nbytes: int
    """Size of the data."""

    @property
    def count(self) -> int:
        """Elements."""
        return self.kind.count(self.nbytes, self.padding)

    @property
    def head(self) -> bytes:
        """The two bytes before the data."""
        return bytes((self.kind.code, self.padding))

    def __str__(self) -> str:
        return f"{self.kind.name}[{self.count}]"


def row_of(payload: memoryview) -> Row:
    """Parses and checks the head of one payload; ignored bits are not checked."""
    code, padding = payload[:HEAD_NBYTES] if len(payload) >= HEAD_NBYTES else (0, 0)
    return row_of_head(len(payload), code, padding)


def row_of_head(size: int, code: int, padding: int) -> Row:
    """Checks the head of a payload of `size` bytes."""
    if size < HEAD_NBYTES:
        raise FormatError(
            f"truncated vector: dtype and padding need {HEAD_NBYTES} bytes, has {size}", rule="bson.vector.size"
        )
    kind, nbytes = _BY_CODE.get(code), size - HEAD_NBYTES
    if kind is None:
        raise FormatError(f"unknown vector dtype 0x{code:02x} (known: 0x03, 0x27, 0x10)", rule="bson.vector.dtype")
    check_padding(kind, padding, nbytes, FormatError)
    if nbytes % kind.itemsize:
        raise FormatError(
            f"{nbytes} bytes of data are not a multiple of {kind.itemsize}, the size of {kind.name}",
            rule="bson.vector.length",
        )
    return Row(kind, padding, nbytes)


def first_unlike(data: memoryview, begins: NDArray[np.int64], ends: NDArray[np.int64], row: Row) -> int | None:
    """Returns the index of the first payload that differs from the row, or None."""
    raw = np.frombuffer(data, np.uint8)
    same = ends - begins == HEAD_NBYTES + row.nbytes
    where = begins[same]
    same[same] = (raw[where] == row.head[0]) & (raw[where + 1] == row.head[1])
    return None if same.all() else int(np.flatnonzero(~same)[0])


def disagreement(row: Row, payload: memoryview, number: int, offset: int | None = None) -> FormatError:
    """Returns the error for a payload that differs from the row."""
    try:
        other = row_of(payload)
    except FormatError as error:
        return FormatError(f"vector {number}: {error.message}", rule=error.rule, offset=offset)
    paddings = f" with padding {other.padding}, not {row.padding}" if other.padding != row.padding else ""
    return FormatError(
        f"vectors differ: vector {number} is {other}{paddings}, those before it are {row}",
        rule="bson.vector.disagree",
        offset=offset,
    )


def gather(data: memoryview, begins: NDArray[np.int64], row: Row, out: memoryview) -> None:
    """Copies the data of the payloads that begin at `begins` one after the other into `out`."""
    fault, number = bson_rows.gather(data, begins + HEAD_NBYTES, row.nbytes, out)
    if fault:
        raise InputError(f"vector {number} extends past the end of the data", rule="bson.vector.gather")


def gather_payloads(payloads: list[bytes], row: Row, out: memoryview) -> int | None:
    """Copies payloads of separate bytes objects; returns the index of the first that differs from the row, or None."""
    fault, number = bson_rows.gather_payloads(payloads, row.head, row.nbytes, out)
    return int(number) if fault else None


def split(data: memoryview, count: int, row: Row) -> list[bytes]:
    """Splits data into the payloads of `count` rows."""
    payloads: list[bytes] = bson_rows.split(data, count, row.nbytes, row.head) if count else []
    return payloads
