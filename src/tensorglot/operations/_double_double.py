"""Sums, quotients and square roots rounded once, for columns: numbers as unevaluated sums of two float64.

A pair (high, low) has about 106 bits. The result in float64 is the nearest one if the bits
behind it decide so with all errors; where they do not, which is rare, `nearest` says so.
The algorithms of Dekker and Knuth, valid while nothing overflows or is subnormal.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pair", "add", "divide", "multiply", "nearest", "root"]

Column: TypeAlias = NDArray[np.float64]
Pair: TypeAlias = tuple[Column, Column]

_SPLIT = 2.0**27 + 1
_ERROR = 2.0**-90
"""More than all rounding errors of one of these functions, relative to the largest of what it is given."""


def add(a: Column, b: Column) -> Pair:
    """a + b, exactly."""
    high = a + b
    part = high - a
    return high, (a - (high - part)) + (b - part)


def multiply(a: Column, b: Column) -> Pair:
    """a * b, exactly."""
    high = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(a: Column) -> Pair:
    """Two halves of 26 bits, whose products are exact."""
    scaled = _SPLIT * a
    high = scaled - (scaled - a)
    return high, a - high


def divide(pair: Pair, count: int) -> Pair:
    high, low = pair
    quotient = high / count
    product, rest = multiply(quotient, np.full_like(quotient, count))
    return quotient, ((high - product) - rest + low) / count


def root(pair: Pair) -> Pair:
    """The square root."""
    high, low = pair
    first = np.sqrt(high)
    square, rest = multiply(first, first)
    return first, np.where(first > 0, ((high - square) - rest + low) / (2 * first), 0.0)


def nearest(pair: Pair, scale: Column) -> tuple[Column, NDArray[np.bool_]]:
    """The nearest float64, and whether it is certain; `scale` bounds what the pair was computed from."""
    high, low = pair
    error = scale * _ERROR
    found: Column = high + low
    return found, (found == high + (low - error)) & (found == high + (low + error))
