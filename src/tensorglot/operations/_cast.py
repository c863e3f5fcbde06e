"""Casting: the same tensor in another element type, counting values that were rounded or overflowed.

A cast tensor is an encoded payload whose codec is the cast: nothing downstream knows
that it is one. It is cast piece by piece while the target is written. Values are rounded
to the nearest of the new type, except that a float is truncated to an integer; a value
too large for an integer type becomes its largest, and NaN becomes 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import Hint, InputError, UnsupportedError
from tensorglot.model.computed import ComputedCodec
from tensorglot.model.dtypes import BY_NAME, DType, dtype_of, pack
from tensorglot.model.payload import Buffer, Encoded, as_bytes
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._dequantize import Values, numbers_of
from tensorglot.operations._elements import BLOCK_COUNT
from tensorglot.operations._jsonable import Record
from tensorglot.threads import Executor, ordered_map

__all__ = ["Cast", "CastCodec", "cast", "cast_tensor"]

Array = NDArray[Any]
_LARGEST = {"float4_e2m1fn": 6.0, "float6_e2m3fn": 7.5, "float6_e3m2fn": 28.0}
"""The largest value of the types without NaN and infinities; anything larger is rounded to it."""


@dataclass(frozen=True, slots=True)
class Cast(Record):
    """Counts of the cast of one tensor."""

    tensor: str
    old: str
    new: str
    count: int = 0
    rounded: int = 0
    """Elements whose value changed to a nearby one."""
    overflowed: int = 0
    """Elements that are too large, infinite or NaN, and have no near value in the new type."""

    def __add__(self, other: tuple[int, int, int]) -> Cast:
        count, rounded, overflowed = other
        return replace(
            self, count=self.count + count, rounded=self.rounded + rounded, overflowed=self.overflowed + overflowed
        )


def cast(values: Array, old: DType, new: DType) -> tuple[Array, int, int]:
    """The values in the new type, how many were rounded, and how many overflowed."""
    with np.errstate(all="ignore"):
        if old.kind == "complex":
            return _cast_complex(values, new)
        if new.kind == "complex":
            half = np.float32 if new.name == "complex64" else np.float64
            real, rounded, overflowed = _cast_real(values, old, np.dtype(half))
            return real.astype(new.require_numpy()), rounded, overflowed
        if new.kind == "bool":
            one = values != 0
            return one, int(np.count_nonzero(values.astype(np.float64) != one)), 0
        if new.kind == "integer":
            return _cast_integer(values, old, new)
        return _cast_real(values, old, new.require_numpy())


def _cast_complex(values: Array, new: DType) -> tuple[Array, int, int]:
    cast_values = values.astype(new.require_numpy())
    back = cast_values.astype(values.dtype)
    lost = ~((back == values) | (np.isnan(values) & np.isnan(back)))
    overflowed = int(np.count_nonzero(lost & ~np.isfinite(back)))
    return cast_values, int(np.count_nonzero(lost)) - overflowed, overflowed


def _cast_real(values: Array, old: DType, new: np.dtype[Any]) -> tuple[Array, int, int]:
    # Every value of these types is exact in the wider one.
    if (new == np.float64 and old.bits <= 32) or (new == np.float32 and old.bits <= 16):
        return values.astype(new), 0, 0
    if old.kind != "real":
        wide = values.astype(np.int64 if old.signed else np.uint64)
        cast_values = wide.astype(new)
        # A 64-bit integer may round up to 2**63 or 2**64, which no integer type can take back.
        near = cast_values.astype(np.float64)
        inside = np.isfinite(near) & (near < (2.0**63 if wide.dtype.kind == "i" else 2.0**64))
        lost = ~inside | (np.where(inside, near, 0).astype(wide.dtype) != wide)
        overflow = ~np.isfinite(near) | _exceeds_largest(wide.astype(np.float64), new)
    else:
        wide = values.astype(np.float64 if old.bits > 32 else np.float32)
        cast_values = wide.astype(new)
        back = cast_values.astype(wide.dtype)
        differs = back != wide
        if new.name not in _LARGEST and np.isfinite(back).all():  # so nothing overflowed, and nothing was NaN
            return cast_values, int(np.count_nonzero(differs)), 0
        lost = differs & ~(np.isnan(wide) & np.isnan(back))
        overflow = ~np.isfinite(back) | ~np.isfinite(wide) | _exceeds_largest(wide, new)
    overflowed = int(np.count_nonzero(lost & overflow))
    return cast_values, int(np.count_nonzero(lost)) - overflowed, overflowed


def _exceeds_largest(values: Array, new: np.dtype[Any]) -> Any:
    return np.abs(values) > _LARGEST[new.name] if new.name in _LARGEST else np.False_


def _cast_integer(values: Array, old: DType, new: DType) -> tuple[Array, int, int]:
    signed = new.signed
    smallest = -(1 << new.bits - 1) if signed else 0
    largest = smallest + (1 << new.bits) - 1
    if old.kind == "real":
        wide = values.astype(np.float64)
        number = np.trunc(wide)
        # Compared with largest + 1, a power of two: largest itself may not be a float64.
        low, high = number < float(smallest), number >= float(largest + 1)
        overflow = low | high | np.isnan(wide)
        rounded = int(np.count_nonzero((number != wide) & ~overflow))
    else:
        number = values.astype(np.int64 if old.signed else np.uint64)
        low, high = number < smallest, number > largest
        overflow = low | high
        rounded = 0
    inside = np.where(overflow, 0, number).astype(np.int64 if signed else np.uint64).astype(new.require_numpy())
    inside[low] = smallest
    inside[high] = largest
    return inside, rounded, int(np.count_nonzero(overflow))


class CastCodec(ComputedCodec):
    """Decoding is casting. `account` has the counts of the last full pass."""

    name = "cast"

    def __init__(self, values: Values, account: Cast, strict: bool, executor: Executor | None) -> None:
        self._values = values
        self._new = BY_NAME[account.new]
        self._strict = strict
        self._executor = executor
        self.account = account

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        account = Cast(self.account.tensor, self.account.old, self.account.new)
        # Copied, because a piece is valid only until the next one is requested, and several are cast ahead.
        pieces = (piece.copy() for piece in self._values())
        for chunk, counts in ordered_map(partial(_cast_piece, new=self._new), pieces, executor=self._executor):
            account += counts
            if self._strict and account.overflowed:
                raise UnsupportedError(
                    f"{self._new.name} cannot hold {account.overflowed} of the first {account.count} values "
                    f"of {account.old}",
                    rule="convert.overflow",
                    tensor=payload.tensor,
                    hint=Hint(
                        "pass on_loss='drop' to take the nearest values",
                        "pass --on-loss drop to take the nearest values",
                    ),
                )
            yield as_bytes(chunk)
        self.account = account


def _cast_piece(values: Array, *, new: DType) -> tuple[Array, tuple[int, int, int]]:
    """Casts one piece. A job for an executor: its arguments and its result can be pickled."""
    old = dtype_of(values.dtype)
    result = np.empty(len(values), new.require_numpy().newbyteorder("<"))
    rounded = overflowed = 0
    for start in range(0, len(values), BLOCK_COUNT):
        block = slice(start, start + BLOCK_COUNT)
        result[block], near, far = cast(values[block], old, new)
        rounded += near
        overflowed += far
    stored = pack(result, new) if new.packed else result
    return stored, (len(values), rounded, overflowed)


def cast_tensor(tensor: Tensor, new: DType, *, strict: bool, executor: Executor | None) -> tuple[Part, CastCodec]:
    """A dense tensor, or the real values of a quantized one, in another type. Strict: overflow is an error."""
    new.require_numpy(tensor.name)
    name, values = numbers_of(tensor)
    if tensor.layout == "dense" and BY_NAME[name].kind == "complex" and new.kind != "complex":
        raise InputError(
            f"a complex tensor cannot be cast to {new.name}: its imaginary part would be lost",
            rule="cast.complex",
            tensor=tensor.name,
        )
    codec = CastCodec(values, Cast(tensor.name, name, new.name), strict, executor)
    return Part(new, tensor.shape, codec.payload(new.nbytes(math.prod(tensor.shape)), tensor.name)), codec
