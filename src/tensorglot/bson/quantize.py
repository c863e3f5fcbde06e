"""Smaller vectors: a byte or a bit for each number.

Bytes spread each dimension's own range over 256 steps and keep the ranges, so that the
values come back to within half a step, and a query can be quantized as its corpus was.
Bits keep the sign alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.coerce import DTypeName, coerce_integers, coerce_vector
from tensorglot.errors import InputError

__all__ = ["Quantized", "from_signed_bits", "quantize", "to_signed_bits"]

_STEPS = 255
_BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A quantized matrix. `encode_matrix`, `encode_documents` and `write_matrix` take it as it is."""

    data: NDArray[Any]
    """int8, or uint8 with eight bits in each byte."""
    dtype: DTypeName
    padding: int
    low: NDArray[np.float32] | None = None
    high: NDArray[np.float32] | None = None
    """The range of each dimension; bits have none."""

    def dequantize(self) -> NDArray[np.float32]:
        """The values again, each to within half a step of its dimension's range."""
        if self.low is None or self.high is None:
            raise InputError("packed bits keep only signs and cannot be dequantized", rule="quantize.bits")
        step = _step(self.low, self.high)
        return ((self.data.astype(np.float64) + 128) * step + self.low).astype(np.float32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"Quantized({self.dtype}{list(self.data.shape)})"


def quantize(
    matrix: Any,
    to: Literal["int8", "packed_bit"] = "int8",
    *,
    ranges: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
) -> Quantized:
    """A matrix of numbers, or a list of vectors, as one of bytes or bits.

    `ranges` are the lowest and highest value of each dimension, `(corpus.low, corpus.high)`
    for a query; without them they are the matrix's own. Values outside are clipped.
    """
    if to not in ("int8", "packed_bit"):
        raise InputError(f"quantize to 'int8' or 'packed_bit', not {to!r}", rule="quantize.to")
    values = coerce_vector(matrix, "float32", None, 2).data
    if not np.isfinite(values).all():
        raise InputError("NaN and infinity cannot be quantized", rule="quantize.finite")
    if to == "packed_bit":
        if ranges is not None:
            raise InputError("bits have no ranges", rule="quantize.ranges")
        return Quantized(np.packbits(values > 0, axis=1), "packed_bit", -values.shape[1] % 8)
    low, high = _ranges(values) if ranges is None else _checked(ranges, values.shape[1])
    return Quantized(_to_bytes(values, low, high), "int8", 0, low, high)


def _ranges(values: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if not len(values):
        raise InputError("a matrix without rows has no ranges", rule="quantize.ranges")
    return values.min(axis=0), values.max(axis=0)


def _checked(ranges: tuple[Any, Any], width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    low, high = (coerce_vector(bound, "float32", None, 1).data for bound in ranges)
    if low.shape != (width,) or high.shape != (width,) or not (low <= high).all():
        raise InputError(f"ranges are a low and a high for each of {width} dimensions", rule="quantize.ranges")
    return low, high


def _step(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float64]:
    step: NDArray[np.float64] = (high.astype(np.float64) - low) / _STEPS
    return step


def _to_bytes(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.int8]:
    step = _step(low, high)
    step[step == 0] = 1
    out = np.empty(values.shape, np.int8)
    for start in range(0, len(values), _BLOCK_ROWS):
        block = (values[start : start + _BLOCK_ROWS] - low.astype(np.float64)) / step
        out[start : start + _BLOCK_ROWS] = np.clip(np.rint(block), 0, _STEPS) - 128
    return out


def from_signed_bits(values: Any) -> NDArray[np.uint8]:
    """The "binary" form of some embedding services, int8 that are bytes of eight bits less 128, as those bytes."""
    return (coerce_integers(values, -128, 127, "quantize.signed") + 128).astype(np.uint8)


def to_signed_bits(values: Any) -> NDArray[np.int8]:
    """The inverse: bytes of eight bits as int8, each less 128."""
    return (coerce_integers(values, 0, 255, "quantize.signed") - 128).astype(np.int8)
