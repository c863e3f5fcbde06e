"""Values of a fixed size that contain no others: their NumPy representation, and the rules for their bytes.

A value that NumPy has no type for (128 bits, `bytes[N]`, `fixed_string`, a CID) is a row
of bytes along a last axis, the tail. Dims, lists and options are in `schema`.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from tensorglot.errors import InputError
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.types.algebra import Complex, FixedBytes, FixedString, Merkle, Scalar, Type, Void
from tensorglot.model.types.temporal import Date, Decimal, Time, Unit

__all__ = ["ATOM_TYPES", "BYTE", "CID_NBYTES", "Atom", "atom_of", "integers", "refuse"]

CID_NBYTES = 36
"""Bytes of a CIDv1 with BLAKE3-256: version, codec, hash function and digest length (1 byte each), the digest (32)."""
_REPR = reprlib.Repr()
_REPR.maxother = 80

ATOM_TYPES = (Scalar, Complex, FixedBytes, FixedString, Merkle, Void, Date, Unit, Decimal)

Check = Literal["any", "limit", "text", "cid", "time", "decimal"]


@dataclass(frozen=True, slots=True)
class Atom:
    """The NumPy representation of one value: an element of type `base`, or several along a last axis, the tail."""

    type: Type
    row: DType
    """The element type of the part that holds such values."""
    tail: tuple[int, ...] = ()
    check: Check = "any"
    limit: int = 0
    """For the check "limit": the first byte value that is not allowed."""
    optional: bool = False
    """Whether the values are in an option: then the sentinel passes the check."""
    sentinel: bytes | None = None
    """The bytes of a missing value, in an option."""

    @property
    def base(self) -> np.dtype[Any]:
        """Little-endian."""
        return _little_endian(self.row)

    @property
    def nbytes(self) -> int:
        # Serialized, an element of fewer than 8 bits takes a whole byte.
        return self.row.bits // 8 * math.prod(self.tail) if self.row.bits >= 8 else 1


@lru_cache(maxsize=64)
def _little_endian(row: DType) -> np.dtype[Any]:
    return row.require_numpy().newbyteorder("<")


_BYTE_ROW = BY_NAME["uint8"]
BYTE = Atom(Scalar(_BYTE_ROW), _BYTE_ROW)

# docs/dynd-format.md, "Missing values". Types that are not listed have a flag byte instead. The
# sentinel of an integer is its minimum; that of float32 and float64 is a NaN with R's NA as payload (1954).
_SENTINELS: dict[str, bytes] = {
    "bool": b"\x02",
    **{f"int{bits}": bytes(bits // 8 - 1) + b"\x80" for bits in (8, 16, 32, 64, 128)},
    "float16": bytes.fromhex("0a7e"),
    "float32": bytes.fromhex("a207807f"),
    "float64": bytes.fromhex("a20700000000f07f"),
}


def refuse(type: Type, item: Any, why: str = "") -> InputError:
    """The error for a value that a type cannot hold. Large values are abbreviated with reprlib."""
    return InputError(f"{_REPR.repr(item)} is not a valid {type}{why}", rule="dynd.value")


def integers(row: DType) -> range:
    """The values of an integer type."""
    return range(-(1 << (row.bits - 1)) if row.signed else 0, 1 << (row.bits - row.signed))


@lru_cache(maxsize=1024)
def atom_of(type: Type) -> Atom:
    """The NumPy representation of a value of a type in ATOM_TYPES."""
    if isinstance(type, Scalar):
        return _scalar(type)
    if isinstance(type, Complex):
        return _complex(type)
    if isinstance(type, FixedBytes):
        return Atom(type, _BYTE_ROW, (type.size,))
    if isinstance(type, FixedString):
        return Atom(type, _BYTE_ROW, (type.nbytes,), check="text")
    if isinstance(type, Merkle):
        return Atom(type, _BYTE_ROW, (CID_NBYTES,), check="cid")
    if isinstance(type, Void):
        return Atom(type, _BYTE_ROW, (0,), sentinel=b"")
    if isinstance(type, Date):
        return Atom(type, BY_NAME["int32"], sentinel=_SENTINELS["int32"])
    if isinstance(type, Unit):
        check: Check = "time" if isinstance(type, Time) else "any"
        return Atom(type, BY_NAME["int64"], check=check, sentinel=_SENTINELS["int64"])
    if isinstance(type, Decimal):
        return Atom(type, _BYTE_ROW, (16,), check="decimal", sentinel=_SENTINELS["int128"])
    raise InputError(f"{type} has no fixed size", rule="dynd.symbolic")


def _scalar(type: Scalar) -> Atom:
    row = type.dtype
    sentinel = _SENTINELS.get(row.name)
    if row.numpy is None:
        return Atom(type, _BYTE_ROW, (row.bits // 8,), sentinel=sentinel)
    if row.name == "bool":
        return Atom(type, row, check="limit", limit=2, sentinel=sentinel)
    if row.packed:
        return Atom(type, row, check="limit", limit=1 << row.bits)
    return Atom(type, row, sentinel=sentinel)


def _complex(type: Complex) -> Atom:
    part = type.part.dtype
    sentinel = _SENTINELS.get(part.name)
    doubled = None if sentinel is None else sentinel * 2
    whole = {"float32": "complex64", "float64": "complex128"}.get(part.name)
    if whole is not None:
        return Atom(type, BY_NAME[whole], sentinel=doubled)
    if part.numpy is None:
        return Atom(type, _BYTE_ROW, (part.bits // 4,), sentinel=doubled)
    return Atom(type, part, (2,), sentinel=doubled)
