"""One vector: the value, and its payload both ways.

A Vector is immutable and equal to another when their payloads are: -0.0 is not 0.0,
and a NaN equals itself. It is a sequence of its numbers, of bits one bool each. pymongo
is imported only by the two methods that make its objects; reading them needs no import.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.coerce import (
    NUMPY,
    DType,
    DTypeName,
    apply_ignored_bits,
    coerce_vector,
    is_vector,
    unpack_bits,
)
from tensorglot.errors import InputError, OutOfRange
from tensorglot.extras import library
from tensorglot.wire.bson import VECTOR_SUBTYPE, view
from tensorglot.wire.bson_vector import HEAD_NBYTES, IgnoredBits, kind_called, row_of

if TYPE_CHECKING:
    from bson.binary import Binary, BinaryVector

__all__ = ["Vector", "decode", "encode"]

_SHOWN = 6


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Vector:
    """Numbers of one dtype: `int8`, `float32`, or `packed_bit` with `padding` bits of the last byte ignored.

    `data` is a read-only array; of bits it has eight in each byte, the first in the
    highest. Given bools, they are packed, and the padding follows from their number.
    `len`, iteration and indices are those of the numbers, of bits without the ignored
    ones; a slice is a Vector.
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
        """How many numbers it has; of bits, without the ignored ones."""
        return kind_called(self.dtype).count(self.data.nbytes, self.padding)

    def numpy(self) -> NDArray[Any]:
        """The array, in memory of its own: int8, float32, or uint8 with eight bits in each byte."""
        return self.data.astype(self.data.dtype.newbyteorder("="))

    def bits(self) -> NDArray[np.bool_]:
        """One bool for each bit, without the ignored ones."""
        if self.dtype != "packed_bit":
            raise InputError(f"{self.dtype} has no bits to unpack", rule="bson.vector.bits")
        return unpack_bits(self.data, self.padding)

    def _numbers(self) -> NDArray[Any]:
        return self.bits() if self.dtype == "packed_bit" else self.data

    def tolist(self) -> list[Any]:
        """The numbers, of bits the bytes, as pymongo's BinaryVector has them."""
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
            raise OutOfRange(f"an index of a vector is an integer or a slice, not {index!r}", rule="bson.vector.index")
        try:
            found = self._numbers()[index]
        except IndexError as error:
            raise OutOfRange(f"index {index} of a vector of {self.count}", rule="bson.vector.index") from error
        return Vector(found, self.dtype) if isinstance(index, slice) else found.item()

    def __bytes__(self) -> bytes:
        return bytes((kind_called(self.dtype).code, self.padding)) + self.data.tobytes()

    def binary(self) -> Binary:
        """pymongo's Binary, to be put into a document."""
        binary: Binary = library("bson.binary", "mongo").Binary(bytes(self), VECTOR_SUBTYPE)
        return binary

    def binary_vector(self) -> BinaryVector:
        """pymongo's BinaryVector, its data a list."""
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


def _set(vector: Vector, data: NDArray[Any], dtype: str, padding: int) -> None:
    data.flags.writeable = False
    for name, value in (("data", data), ("dtype", dtype), ("padding", padding)):
        object.__setattr__(vector, name, value)


def encode(array: Any, dtype: DType = None, padding: int | None = None, ignored_bits: IgnoredBits = "error") -> bytes:
    """The payload of a vector: what a BSON binary of subtype 9 holds.

    `array` is anything that has numbers, none of them missing: a list, an array, a
    tensor, a column, a buffer. A Vector, pymongo's BinaryVector and a Binary of subtype 9
    are encoded as the vector that they are. Integers for `packed_bit` are bytes of eight
    bits; bools are single bits. Values are rounded only to float32; one that is out of
    range is an error.
    """
    found = coerce_vector(array, dtype, padding, 1, ignored_bits)
    return found.row.head + found.data.tobytes()


def decode(payload: Any, ignored_bits: IgnoredBits = "error") -> Vector:
    """The vector of a payload, or of what is a vector already: a Binary of subtype 9, a BinaryVector, a Vector."""
    if is_vector(payload) and not isinstance(payload, bytes):
        return Vector(payload, ignored_bits=ignored_bits)
    if getattr(payload, "subtype", VECTOR_SUBTYPE) != VECTOR_SUBTYPE:
        raise InputError(f"a binary of subtype {payload.subtype} is not a vector", rule="bson.vector.subtype")
    raw = view(payload)
    row = row_of(raw)
    data = np.frombuffer(raw[HEAD_NBYTES:], NUMPY[row.kind.name]).copy()
    vector = object.__new__(Vector)
    _set(vector, apply_ignored_bits(data, row.padding, ignored_bits), row.kind.name, row.padding)
    return vector
