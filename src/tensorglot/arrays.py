"""Functions on arrays: prefix sums, and masked arrays and distinct values without importing `numpy.ma`.

NumPy imports `numpy.ma` on first use, and its own set functions (`np.unique`) use it: 36 ms
in a new process, more than opening a file of 100,000 tensors. If `numpy.ma` was never
imported, no array can be masked, so `sys.modules` is consulted instead.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "complement", "distinct", "elements", "has_masked", "is_masked_array", "overlaps_itself", "prefix_sums", "ranks",
]  # fmt: skip


def is_masked_array(value: object) -> TypeGuard[np.ma.MaskedArray[Any, Any]]:
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(value, ma.MaskedArray)


def has_masked(value: object) -> bool:
    """Whether an element is masked."""
    ma = sys.modules.get("numpy.ma")
    return ma is not None and bool(ma.is_masked(value))


def elements(sequences: Iterable[Iterable[Any]]) -> list[Any]:
    """The elements of all sequences; None for masked elements of masked arrays."""
    return list(chain.from_iterable(_unmasked(each) if is_masked_array(each) else each for each in sequences))


def _unmasked(array: np.ma.MaskedArray[Any, Any]) -> list[Any]:
    return [None if element is np.ma.masked else element for element in array]


def prefix_sums(values: NDArray[Any]) -> NDArray[np.int64]:
    """0 and the sums of the first 1, 2, … values. For sizes: the begin of each item, then the end of the last."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def ranks(present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The rank of each present value among the present ones; -1 for missing values."""
    return np.where(present, np.cumsum(present) - 1, -1)


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values, ascending."""
    ordered = np.sort(values, axis=None)
    first = np.ones(ordered.size, np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def complement(positions: Any, size: int) -> NDArray[np.int64]:
    """The positions from 0 to `size` that are not in `positions`, ascending."""
    others = np.ones(size, np.bool_)
    others[positions] = False
    return np.flatnonzero(others)


def overlaps_itself(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether elements of an array overlap; True if its strides do not decide it."""
    # From the smallest stride up: the elements so far span `reached` bytes, so a larger stride keeps them apart.
    reached = itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(strides, shape, strict=True)):
        if size > 1 and stride < reached:
            return 0 not in shape
        reached += (size - 1) * stride
    return False
