"""Advanced indexing along one axis, by a list, an array or a mask, for tensors that are not in memory.

The work is split in two. First the distinct positions along that axis are read, in runs of
close positions, each run by a basic index. Then NumPy indexes the block that was read: it
orders and repeats positions, drops axes and adds new ones. So the result has the shape that
NumPy defines, and only the runs are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import OutOfRange
from tensorglot.model.slicing import DECODED_GAP_NBYTES, GAP_NBYTES, SCRATCH_NBYTES, Index, select

__all__ = ["Picks", "index_array", "pick"]


@dataclass(frozen=True, slots=True)
class Picks:
    """An index with an array along one axis, normalised: what to read, then how to finish in memory."""

    axis: int
    positions: NDArray[np.int64]
    """Distinct positions along the axis, ascending."""
    others: tuple[slice, ...]
    """What to read along each axis; the entry of `axis` is the whole axis."""
    counts: tuple[int, ...]
    """The shape of the block that is read."""
    index: tuple[Any, ...]
    """The caller's index, with the list as an array of integers."""
    finish: tuple[Any, ...]
    """The index to apply to the block."""

    def gather(
        self, read: Callable[[Index], NDArray[Any]], shape: tuple[int, ...], itemsize: int, *, decoding: bool
    ) -> NDArray[Any]:
        """Reads the result. `read` returns what a basic index selects of the tensor, whose shape is `shape`.

        `decoding` says that reads decode, so that gaps are skipped only if they are large.
        """
        block: NDArray[Any] | None = None
        for first, last in pairwise(self._runs(shape, itemsize, decoding)):
            low, high = int(self.positions[first]), int(self.positions[last - 1]) + 1
            run = read(self._with(slice(low, high)))
            if high - low > last - first:
                run = run.take(self.positions[first:last] - low, self.axis)
            if last - first == len(self.positions):
                block = run
                break
            if block is None:
                block = np.empty(self.counts, run.dtype)
            block[(*[slice(None)] * self.axis, slice(first, last))] = run
        if block is None:
            block = read(self._with(slice(0)))
        found: NDArray[Any] = block[self.finish]
        return found

    def _with(self, run: slice) -> tuple[slice, ...]:
        return (*self.others[: self.axis], run, *self.others[self.axis + 1 :])

    def _runs(self, shape: tuple[int, ...], itemsize: int, decoding: bool) -> list[int]:
        """The start of each run in `positions`, and the end of the last. Runs include small gaps, as in `slicing`."""
        if not len(self.positions):
            return []
        step = math.prod(shape[self.axis + 1 :]) * itemsize
        width = math.prod(self.counts) // len(self.positions) * itemsize
        gaps = (np.diff(self.positions) - 1) * step
        if decoding:
            apart = gaps > DECODED_GAP_NBYTES
        else:
            apart = (gaps > GAP_NBYTES) | (np.diff(self.positions * width // SCRATCH_NBYTES) > 0)
        return [0, *(np.flatnonzero(apart) + 1).tolist(), len(self.positions)]


def pick(index: Index, shape: tuple[int, ...]) -> Picks | None:
    """Normalises an index with an array along one axis, or refuses it; None for a basic index."""
    if type(index) in _NO_ARRAYS:
        return None
    items = index if isinstance(index, tuple) else (index,)
    arrays = {i: array for i, item in enumerate(items) if (array := index_array(item)) is not None}
    if not arrays:
        return None
    if len(arrays) > 1:
        raise OutOfRange(
            "an index can have a list, an array or a mask along one axis only; for several use .numpy()[…]",
            rule="index.arrays",
        )
    ((place, array),) = arrays.items()
    # With a full slice in the place of the array, the rest is a basic index.
    basic = select(tuple(slice(None) if i == place else item for i, item in enumerate(items)), shape)
    axis = _axis(items, place, len(shape))
    positions = _as_positions(array, shape[axis], axis)
    distinct, inverse = np.unique(positions, return_inverse=True)
    in_order = positions.ndim == 1 and np.array_equal(positions, distinct) and 0 not in basic.finish
    chosen = slice(None) if in_order else inverse.reshape(positions.shape)
    return Picks(
        axis,
        distinct,
        tuple(slice(a.start, a.start + a.step * a.count, a.step) for a in basic.axes),
        tuple(len(distinct) if i == axis else a.count for i, a in enumerate(basic.axes)),
        tuple(positions if i == place else item for i, item in enumerate(items)),
        tuple(_finish(items, place, chosen)),
    )


def _axis(items: tuple[Any, ...], place: int, rank: int) -> int:
    """The axis of the tensor that the item at `place` of an index applies to."""
    consuming = [item is not None and item is not Ellipsis for item in items]
    skipped = rank - sum(consuming) if any(item is Ellipsis for item in items[:place]) else 0
    return sum(consuming[:place]) + skipped


def _finish(items: tuple[Any, ...], place: int, chosen: Any) -> Iterator[Any]:
    """The index to apply to the block that was read.

    It keeps the form of the caller's index (integers become 0, slices full slices), because
    NumPy decides by the form where the axis of the array goes in the result.
    """
    for i, item in enumerate(items):
        if i == place:
            yield chosen
        elif isinstance(item, slice):
            yield slice(None, None, -1) if item.step is not None and item.step < 0 else slice(None)
        else:
            yield item if item is None or item is Ellipsis else 0


_NO_ARRAYS = frozenset({slice, int, type(...), type(None)})


def index_array(item: object) -> NDArray[Any] | None:
    """The array of an item of an index that is a list, an array or a mask; None for an item without dimensions."""
    if type(item) in _NO_ARRAYS:
        return None
    plain = isinstance(item, (list, range))
    if not plain and not (hasattr(item, "__array__") and np.ndim(item)):
        return None
    try:
        array = np.asarray(item)
    except (TypeError, ValueError, RuntimeError):  # a ragged list; `_as_positions` refuses the object dtype
        return np.empty(1, object)
    return array if array.size or not plain else array.astype(np.int64)  # an empty list has the type of no element


def _as_positions(array: NDArray[Any], size: int, axis: int) -> NDArray[np.int64]:
    """The positions that an array selects of an axis of that size."""
    if array.dtype == np.bool_:
        if array.shape != (size,):
            raise OutOfRange(
                f"a mask must have the size of its axis: {list(array.shape)} for axis {axis} of size {size}",
                rule="index.mask",
            )
        return np.flatnonzero(array)
    if array.dtype.kind not in "iu":
        raise OutOfRange(f"a list in an index must have integers or bools, not {array.dtype}", rule="index.basic")
    wrong = (array >= size) | (array < -size if array.dtype.kind == "i" else False)
    if wrong.any():
        raise OutOfRange(f"index {array[wrong][0]} is out of range for axis {axis} of size {size}", rule="index.range")
    positions: NDArray[np.int64] = array.astype(np.int64)
    return np.where(positions < 0, positions + size, positions)
