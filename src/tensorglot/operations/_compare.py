"""Comparing the values of two parts of one shape, piece by piece.

Two elements are equal if they are the same number; NaN equals NaN. Equal numbers with
different bits (0 and -0, NaNs with different payloads) are counted separately, and so are
those that differ within a tolerance: by at most `atol`, or `rtol` times the larger of the
two magnitudes, or the sum of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.tensor import Part
from tensorglot.operations._elements import BLOCK_COUNT, PIECE_COUNT, blocks, elements
from tensorglot.operations._jsonable import Record

__all__ = ["EXACT", "Comparison", "Tolerance", "compare", "compare_streams", "has_numbers"]

Array = NDArray[Any]

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class Comparison(Record):
    """How two parts differ. The differences are None if the element type is unknown."""

    count: int
    changed: int = 0
    """Elements that are not the same number."""
    bits_only: int = 0
    """Elements that are the same number with different bits."""
    nan: int = 0
    """Elements that are NaN on one side only; they are not in the differences."""
    within: int = 0
    """Elements that differ within the tolerance. They do not count as changed, but are in the differences."""
    largest_absolute: float | None = 0.0
    largest_relative: float | None = 0.0
    """Relative to the larger of the two magnitudes."""

    @property
    def share(self) -> float:
        """The fraction of the elements that changed, 0 to 1."""
        return self.changed / self.count if self.count else 0.0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.count + other.count,
            self.changed + other.changed,
            self.bits_only + other.bits_only,
            self.nan + other.nan,
            self.within + other.within,
            _larger(self.largest_absolute, other.largest_absolute),
            _larger(self.largest_relative, other.largest_relative),
        )

    def to_dict(self) -> dict[str, Any]:
        return {**Record.to_dict(self), "share": self.share}


def _larger(one: float | None, two: float | None) -> float | None:
    return None if one is None or two is None else max(one, two)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far numbers may be apart: absolutely, plus relative to the larger of the two magnitudes."""

    atol: float = 0.0
    rtol: float = 0.0

    def __bool__(self) -> bool:
        return self.atol > 0 or self.rtol > 0

    def allows(self, distance: Array, magnitude: Array) -> NDArray[np.bool_]:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(distance <= self.atol + self.rtol * magnitude) & np.isfinite(distance)


EXACT = Tolerance()


def compare(one: Part, two: Part, tensor: str, tolerance: Tolerance = EXACT) -> Comparison:
    """Compares every element, in bounded memory. The parts have one shape; their types may differ."""
    if has_numbers(one) and has_numbers(two):
        return compare_streams(elements(one, tensor), elements(two, tensor), tolerance)
    opaque = Comparison(0, largest_absolute=None, largest_relative=None)
    return compare_streams(_opaque(one), _opaque(two), tolerance, opaque)


def compare_streams(
    one: Iterable[Array], two: Iterable[Array], tolerance: Tolerance, total: Comparison | None = None
) -> Comparison:
    """Compares flat arrays, cut alike. Starts from `total`."""
    total = total or Comparison(0)
    for x, y in zip(one, two, strict=True):
        if x.dtype == y.dtype and _same_bytes(x, y):
            total += Comparison(len(x))
            continue
        for start in range(0, len(x), BLOCK_COUNT):
            block = slice(start, start + BLOCK_COUNT)
            total += _compare(x[block], y[block], tolerance)
    return total


def _same_bytes(x: Array, y: Array) -> bool:
    """Whether two contiguous arrays of one type are equal, by eight bytes at a time: most pieces are."""
    one, two = x.view(np.uint8), y.view(np.uint8)
    whole = len(one) & ~7
    return bool(
        (one[:whole].view(np.uint64) == two[:whole].view(np.uint64)).all() and (one[whole:] == two[whole:]).all()
    )


def has_numbers(part: Part) -> bool:
    """Whether the elements are of a type that NumPy has."""
    return part.dtype is not None and part.dtype.numpy is not None


def _opaque(part: Part) -> Iterator[Array]:
    """Elements of an unknown type: each as its bytes."""
    size = part.nbytes // max(1, math.prod(part.shape))
    if part.nbytes != size * math.prod(part.shape) or size == 0:
        size = 1
    for block in blocks(part.payload, size * PIECE_COUNT):
        yield np.frombuffer(block, f"V{size}")


def _compare(x: Array, y: Array, tolerance: Tolerance) -> Comparison:
    count = len(x)
    if x.dtype == y.dtype:
        at = np.flatnonzero(_differs(x, y))
        if not at.size:
            return Comparison(count)
        x, y = x[at], y[at]
    if x.dtype.type is np.void:
        return Comparison(count, len(x), largest_absolute=None, largest_relative=None)
    if _integral(x) and _integral(y):
        return _compare_integers(x, y, count, tolerance)
    return _compare_inexact(x, y, count, tolerance)


def _differs(x: Array, y: Array) -> NDArray[np.bool_]:
    width = x.dtype.itemsize
    if width in _BITS:
        return np.asarray(x.view(_BITS[width]) != y.view(_BITS[width]))
    wide = (x.view(np.uint8).reshape(-1, width), y.view(np.uint8).reshape(-1, width))
    return np.asarray((wide[0] != wide[1]).any(axis=1))


def _integral(x: Array) -> bool:
    return x.dtype.kind in "biu" or x.dtype.name.startswith(("int", "uint"))


def _compare_integers(x: Array, y: Array, count: int, tolerance: Tolerance) -> Comparison:
    """Exact: the difference of any two 64-bit integers of one signedness fits 64 bits."""
    signed = [v.dtype.kind == "i" or v.dtype.name.startswith("int") for v in (x, y)]
    # No 64-bit type holds both an int64 and a uint64: such a mixture is compared as float64.
    if signed[0] != signed[1] and 8 in (x.dtype.itemsize, y.dtype.itemsize):
        return _compare_inexact(x, y, count, tolerance)
    wide = np.int64 if any(signed) else np.uint64
    x, y = x.astype(wide), y.astype(wide)
    # Subtracted as unsigned: modulo 2^64 the difference is right even where int64 would overflow.
    low, high = np.minimum(x, y).view(np.uint64), np.maximum(x, y).view(np.uint64)
    distance = high - low
    changed = int(np.count_nonzero(distance))
    if not changed:
        return Comparison(count)
    magnitude = np.maximum(np.abs(x.astype(np.float64)), np.abs(y.astype(np.float64)))
    relative = np.divide(distance, magnitude, out=np.zeros(len(x)), where=magnitude > 0)
    within = int(np.count_nonzero(tolerance.allows(distance, magnitude)[distance > 0])) if tolerance else 0
    return Comparison(count, changed - within, 0, 0, within, float(distance.max()), float(relative.max()))


def _compare_inexact(x: Array, y: Array, count: int, tolerance: Tolerance) -> Comparison:
    same_type = x.dtype == y.dtype
    wide = np.complex128 if "c" in (x.dtype.kind, y.dtype.kind) else np.float64
    with np.errstate(invalid="ignore"):  # converting a signaling NaN raises the flag
        x, y = x.astype(wide), y.astype(wide)
    x_nan, y_nan = np.isnan(x), np.isnan(y)
    changed = (x != y) & ~(x_nan & y_nan)
    total = int(np.count_nonzero(changed))
    bits_only = len(x) - total if same_type else 0
    nan = int(np.count_nonzero(x_nan ^ y_nan))
    numbers = changed & ~(x_nan | y_nan)
    if not numbers.any():
        return Comparison(count, total, bits_only, nan)
    x, y = x[numbers], y[numbers]
    with np.errstate(over="ignore", invalid="ignore"):
        distance = np.abs(x - y)
        magnitude = np.maximum(np.abs(x), np.abs(y))
        relative = distance / magnitude
    distance[np.isnan(distance)] = np.inf
    relative[np.isnan(relative)] = np.inf  # an infinity on one side, or one of each sign
    within = int(np.count_nonzero(tolerance.allows(distance, magnitude))) if tolerance else 0
    return Comparison(count, total - within, bits_only, nan, within, float(distance.max()), float(relative.max()))
