"""Rounding to the block types of GGML, with the results of the `gguf` package to the last bit.

Each encoder takes rows of 32 values of float32 and gives rows of bytes. The order of the
operations is that of the package: each is rounded to single precision, and the scale is
stored in half precision but applied before it is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["ENCODERS"]

Bytes = NDArray[np.uint8]
Values = NDArray[np.float32]


def _half(column: Values) -> Bytes:
    """A column of numbers as bytes of half precision."""
    return column.astype("<f2").view(np.uint8)


def _inverse(scale: Values) -> Values:
    inverse: Values = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return inverse


def _largest(values: Values) -> Values:
    """The value of the largest magnitude of each row, with its sign; the first of equals."""
    at = np.abs(values).argmax(axis=1, keepdims=True)
    return np.take_along_axis(values, at, axis=1)


def _codes(scaled: Values, bits: int) -> Bytes:
    """Truncates positive numbers to uint8, which also holds the values before clipping."""
    return np.trunc(scaled).astype(np.uint8).clip(0, (1 << bits) - 1)


def _nibbles(codes: Bytes) -> Bytes:
    """The first half of a row in the low nibbles, the second one in the high nibbles."""
    packed: Bytes = (codes[:, :16] & np.uint8(0x0F)) | codes[:, 16:] << np.uint8(4)
    return packed


def _fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _symmetric(values: Values, bits: int) -> tuple[Values, Bytes]:
    """The value of the largest magnitude becomes code 0, and zero the middle one."""
    middle = 1 << bits - 1
    scale = _largest(values) / np.float32(-middle)
    return scale, _codes(values * _inverse(scale) + np.float32(middle + 0.5), bits)


def _asymmetric(values: Values, bits: int) -> tuple[Values, Values, Bytes]:
    """The smallest value becomes code 0, the largest one the last code."""
    least = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - least) / np.float32((1 << bits) - 1)
    return scale, least, _codes((values - least) * _inverse(scale) + np.float32(0.5), bits)


def _q4_0(values: Values) -> Bytes:
    scale, codes = _symmetric(values, 4)
    return np.concatenate((_half(scale), _nibbles(codes)), axis=1)


def _q4_1(values: Values) -> Bytes:
    scale, least, codes = _asymmetric(values, 4)
    return np.concatenate((_half(scale), _half(least), _nibbles(codes)), axis=1)


def _q5_0(values: Values) -> Bytes:
    scale, codes = _symmetric(values, 5)
    return np.concatenate((_half(scale), _fifth_bits(codes), _nibbles(codes)), axis=1)


def _q5_1(values: Values) -> Bytes:
    scale, least, codes = _asymmetric(values, 5)
    return np.concatenate((_half(scale), _half(least), _fifth_bits(codes), _nibbles(codes)), axis=1)


def _q8_0(values: Values) -> Bytes:
    """Halves are rounded away from zero."""
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(scale)
    size = np.abs(scaled)
    whole = np.floor(size)
    rounded = np.copysign(whole + np.floor(np.float32(2) * (size - whole)), scaled)
    return np.concatenate((_half(scale), rounded.astype(np.int8).view(np.uint8)), axis=1)


ENCODERS: dict[str, Callable[[Values], Bytes]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0,
}  # fmt: skip
"""The encoder of each block type; all have blocks of 32 elements."""
