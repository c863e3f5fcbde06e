"""Scalar (int8) and binary (packed_bit) quantization of float32 vectors.

int8 divides the range of each dimension into 255 steps and keeps the ranges, so that
`dequantize` is exact to half a step, and a query can be quantized with the ranges of its
corpus. packed_bit keeps only the sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import check_choice
from tensorglot.bson.coerce import DTypeName, coerce_integers, coerce_vector
from tensorglot.errors import InputError

__all__ = ["Quantized", "find_ranges", "from_signed_bits", "quantize", "to_signed_bits"]

_STEPS = 255
_BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A quantized matrix, which `encode_matrix`, `encode_documents` and `write_matrix` accept."""

    data: NDArray[Any]
    """int8, or uint8 with eight bits per byte."""
    dtype: DTypeName
    padding: int
    low: NDArray[np.float32] | None = None
    high: NDArray[np.float32] | None = None
    """The range of each dimension; None for packed_bit."""

    def dequantize(self) -> NDArray[np.float32]:
        """Returns the values as float32, each within half a step of the original."""
        if self.low is None or self.high is None:
            raise InputError("packed_bit keeps only signs and cannot be dequantized", rule="quantize.bits")
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
    """Quantizes a matrix of numbers, or a list of vectors, to int8 or packed bits.

    `ranges` are the lowest and highest value of each dimension, by default those of the
    matrix; pass `(corpus.low, corpus.high)` for a query. Values outside are clipped.
    """
    check_choice(to, ("int8", "packed_bit"), "to", "quantize.to")
    values = _finite(matrix)
    if to == "packed_bit":
        if ranges is not None:
            raise InputError("ranges= applies only to int8, not to packed_bit", rule="quantize.ranges")
        return Quantized(np.packbits(values > 0, axis=1), "packed_bit", -values.shape[1] % 8)
    low, high = find_ranges(values) if ranges is None else _check_ranges(ranges, values.shape[1])
    return Quantized(_to_bytes(values, low, high), "int8", 0, low, high)


def _finite(matrix: Any) -> NDArray[np.float32]:
    values: NDArray[np.float32] = coerce_vector(matrix, "float32", None, 2).data
    if not np.isfinite(values).all():
        raise InputError("NaN and infinity cannot be quantized", rule="quantize.finite")
    return values


def find_ranges(matrix: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The lowest and the highest value of each dimension."""
    values = _finite(matrix)
    if not len(values):
        raise InputError("cannot find the ranges of a matrix without rows; pass ranges=", rule="quantize.ranges")
    return values.min(axis=0), values.max(axis=0)


def _check_ranges(ranges: tuple[Any, Any], width: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if not isinstance(ranges, tuple | list) or len(ranges) != 2:
        raise InputError("ranges must be two arrays (low, high)", rule="quantize.ranges")
    low, high = (coerce_vector(bound, "float32", None, 1).data for bound in ranges)
    if low.shape != (width,) or high.shape != (width,) or not (low <= high).all():
        raise InputError(
            f"ranges must be two arrays (low, high) of {width} dimensions, with low <= high", rule="quantize.ranges"
        )
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise InputError("ranges must be finite", rule="quantize.ranges")
    return low, high


def _step(low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.float64]:
    step: NDArray[np.float64] = (high.astype(np.float64) - low) / _STEPS
    return step


def _to_bytes(values: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.int8]:
    step = _step(low, high)
    step[step == 0] = 1  # a dimension with one value: every code is the lowest, whatever the step
    out = np.empty(values.shape, np.int8)
    for start in range(0, len(values), _BLOCK_ROWS):
        block = (values[start : start + _BLOCK_ROWS] - low.astype(np.float64)) / step
        out[start : start + _BLOCK_ROWS] = np.clip(np.rint(block), 0, _STEPS) - 128
    return out


def from_signed_bits(values: Any) -> NDArray[np.uint8]:
    """Converts the "binary" int8 format of some embedding services (packed bits minus 128) to packed bits."""
    return (coerce_integers(values, -128, 127) + 128).astype(np.uint8)


def to_signed_bits(values: Any) -> NDArray[np.int8]:
    """Converts packed bits to the "binary" int8 format: each byte minus 128."""
    return (coerce_integers(values, 0, 255) - 128).astype(np.int8)
