"""One vector: the value `Vector`, and `encode` and `decode` for its payload.

A Vector is immutable. Two are equal if their payloads are: -0.0 is not 0.0, and a NaN
equals itself. pymongo is imported only by the two methods that create its objects;
reading them needs no import.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import check_choice
from tensorglot.bson.coerce import NUMPY, DType, DTypeName, apply_ignored_bits, coerce_vector, is_vector, unpack_bits
from tensorglot.errors import InputError, OutOfRange, plural
from tensorglot.extras import library
from tensorglot.providers import provided
from tensorglot.wire.bson import VECTOR_SUBTYPE, view
from tensorglot.wire.bson_vector import HEAD_NBYTES, IGNORED_BITS, IgnoredBits, find_kind, row_of

if TYPE_CHECKING:
    from bson.binary import Binary, BinaryVector

__all__ = ["Vector", "decode", "encode"]

_SHOWN = 6
_SHOWN_IN_TABLE = 30


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Vector:
    """Numbers of one dtype: `int8`, `float32`, or `packed_bit` with `padding` bits of the last byte ignored.

    `data` is a read-only array; packed bits are stored eight per byte, the first in the
    highest bit. Bools are packed, and the padding follows from their number. A Vector is a
    sequence of its numbers, or of one bool per bit without the ignored bits; a slice is a
    Vector.
    """

    data: NDArray[Any]
    dtype: DTypeName
    padding: int

    def __init__(
        self, data: Any, dtype: DType = None, padding: int | None = None, *, ignored_bits: IgnoredBits = "error"
    ) -> None:
        found = coerce_vector(data, dtype, padding, 1, ignored_bits)
        _set(self, found.data.copy(), found.dtype, found.padding)

    @property
    def count(self) -> int:
        """Number of elements; for packed_bit, of bits that are not ignored."""
        return find_kind(self.dtype).count(self.data.nbytes, self.padding)

    def numpy(self) -> NDArray[Any]:
        """Returns a copy as an array: int8, float32, or uint8 with eight bits per byte."""
        return self.data.astype(self.data.dtype.newbyteorder("="))

    def bits(self) -> NDArray[np.bool_]:
        """Returns one bool per bit, without the ignored bits."""
        if self.dtype != "packed_bit":
            raise InputError(f"bits() needs packed_bit, found {self.dtype}", rule="bson.vector.bits")
        return unpack_bits(self.data, self.padding)

    def _numbers(self) -> NDArray[Any]:
        return self.bits() if self.dtype == "packed_bit" else self.data

    def tolist(self) -> list[Any]:
        """Returns the numbers, or the bytes of packed bits, as pymongo's BinaryVector does."""
        return list(self.data.tolist())

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter(self._numbers().tolist())

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Vector: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if not isinstance(index, (int, np.integer, slice)):
            raise OutOfRange(f"vector indices must be integers or slices, not {index!r}", rule="bson.vector.index")
        try:
            found = self._numbers()[index]
        except IndexError as error:
            raise OutOfRange(
                f"index {index} is out of range for a vector of {self.count} elements", rule="bson.vector.index"
            ) from error
        return Vector(found, self.dtype) if isinstance(index, slice) else found.item()

    def __bytes__(self) -> bytes:
        return bytes((find_kind(self.dtype).code, self.padding)) + self.data.tobytes()

    def binary(self) -> Binary:
        """Returns pymongo's Binary, to store in a document."""
        binary: Binary = library("bson.binary", "mongo").Binary(bytes(self), VECTOR_SUBTYPE)
        return binary

    def binary_vector(self) -> BinaryVector:
        """Returns pymongo's BinaryVector, its data a list."""
        module = library("bson.binary", "mongo")
        dtype = module.BinaryVectorDtype[self.dtype.upper()]
        vector: BinaryVector = module.BinaryVector(self.tolist(), dtype, self.padding)
        return vector

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __eq__(self, other: object) -> bool:
        return bytes(self) == bytes(other) if isinstance(other, Vector) else NotImplemented

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return decode, (bytes(self), "keep")

    def __repr__(self) -> str:
        values = self.bits().view(np.uint8) if self.dtype == "packed_bit" else self.data
        shown = ", ".join(map(str, values[:_SHOWN])) + (", …" if values.size > _SHOWN else "")
        return f"Vector({self.dtype}[{self.count}]{': ' if shown else ''}{shown})"

    def _repr_html_(self) -> str:
        """The first numbers in a notebook."""
        title = f"Vector, {self.dtype}, {plural(self.count, 'bit' if self.dtype == 'packed_bit' else 'number')}"
        rows = enumerate(self._numbers()[:_SHOWN_IN_TABLE].tolist())
        return provided("report.table")(title, ("position", "value"), rows, self.count)  # type: ignore[no-any-return]


def _set(vector: Vector, data: NDArray[Any], dtype: str, padding: int) -> None:
    data.flags.writeable = False
    for name, value in (("data", data), ("dtype", dtype), ("padding", padding)):
        object.__setattr__(vector, name, value)


def encode(array: Any, dtype: DType = None, padding: int | None = None, ignored_bits: IgnoredBits = "error") -> bytes:
    """Encodes a vector to its payload, the data of a BSON binary of subtype 9.

    `array` is a list, array, tensor, column or buffer of numbers without missing
    elements. A Vector, pymongo's BinaryVector and a Binary of subtype 9 keep their dtype
    and padding. Integers for `packed_bit` are bytes of eight bits; bools are single bits.
    Numbers are rounded only to float32; a number out of range is an error.
    """
    found = coerce_vector(array, dtype, padding, 1, ignored_bits)
    return found.row.head + found.data.tobytes()


def decode(payload: Any, ignored_bits: IgnoredBits = "error") -> Vector:
    """Decodes a payload. A Vector, a BinaryVector and a Binary of subtype 9 are accepted, too."""
    if is_vector(payload) and not isinstance(payload, bytes):
        return Vector(payload, ignored_bits=ignored_bits)
    if getattr(payload, "subtype", VECTOR_SUBTYPE) != VECTOR_SUBTYPE:
        raise InputError(f"binary of subtype {payload.subtype} is not a vector (subtype 9)", rule="bson.vector.subtype")
    check_choice(ignored_bits, IGNORED_BITS, "ignored_bits", "bson.ignored_bits")
    raw = view(payload)
    row = row_of(raw)
    data = np.frombuffer(raw[HEAD_NBYTES:], NUMPY[row.kind.name]).copy()
    vector = object.__new__(Vector)
    _set(vector, apply_ignored_bits(data, row.padding, ignored_bits), row.kind.name, row.padding)
    return vector
