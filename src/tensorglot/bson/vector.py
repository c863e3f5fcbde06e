"""One vector: the value, and its payload both ways.

A Vector is immutable and equal to another when their payloads are: -0.0 is not 0.0,
and a NaN equals itself. pymongo is imported only by the two methods that make its
objects; reading them needs no import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.coerce import NUMPY, DTypeName, apply_ignored_bits, coerce_vector
from tensorglot.errors import InputError
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
    """

    data: NDArray[Any]
    dtype: DTypeName
    padding: int

    def __init__(
        self, data: Any, dtype: str | None = None, padding: int | None = None, *, ignored_bits: IgnoredBits = "error"
    ) -> None:
        normal = coerce_vector(data, dtype, padding, 1, ignored_bits)
        _set(self, normal.data.copy(), normal.kind.name, normal.padding)

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
        return np.unpackbits(self.data, count=self.count).view(np.bool_)

    def tolist(self) -> list[Any]:
        """The numbers, of bits the bytes, as pymongo's BinaryVector has them."""
        return list(self.data.tolist())

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
        return f"Vector({self.dtype}[{self.count}]: {shown})" if values.size else f"Vector({self.dtype}[0])"


def _set(vector: Vector, data: NDArray[Any], dtype: str, padding: int) -> None:
    data.flags.writeable = False
    for name, value in (("data", data), ("dtype", dtype), ("padding", padding)):
        object.__setattr__(vector, name, value)


def encode(
    array: Any, dtype: str | None = None, padding: int | None = None, ignored_bits: IgnoredBits = "error"
) -> bytes:
    """The payload of a vector: what a BSON binary of subtype 9 holds.

    `array` is anything that has numbers: a list, an array, a tensor, a buffer, a Vector
    or pymongo's BinaryVector. Integers for `packed_bit` are bytes of eight bits; bools
    are single bits. Nothing is rounded but to float32, and nothing is out of range.
    """
    normal = coerce_vector(array, dtype, padding, 1, ignored_bits)
    return bytes((normal.kind.code, normal.padding)) + normal.data.tobytes()


def decode(payload: Any, ignored_bits: IgnoredBits = "error") -> Vector:
    """The vector of a payload, or of pymongo's Binary of subtype 9."""
    if getattr(payload, "subtype", VECTOR_SUBTYPE) != VECTOR_SUBTYPE:
        raise InputError(f"a binary of subtype {payload.subtype} is no vector", rule="bson.vector.subtype")
    raw = view(payload)
    row = row_of(raw)
    data = np.frombuffer(raw[HEAD_NBYTES:], NUMPY[row.kind.name]).copy()
    vector = object.__new__(Vector)
    _set(vector, apply_ignored_bits(data, row.padding, ignored_bits), row.kind.name, row.padding)
    return vector
