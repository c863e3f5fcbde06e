"""Basic NumPy indexing for tensors that are not in memory.

An index becomes, for each axis, a start, a step and a count. From the innermost axis
outwards, axes are merged into one run of bytes as long as the gaps inside it are small;
the remaining outer axes yield many such runs. The source reads them in the way that is
fastest for it: a file many by one system call, a server several concurrently, joined over
wider gaps. So a slice of rows is one read, a slice of columns one run for each row.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError, OutOfRange, plural
from tensorglot.model.payload import Encoded, Payload, Span
from tensorglot.tuples import NamedTuple

__all__ = [
    "ALL",
    "DECODED_GAP_NBYTES",
    "GAP_NBYTES",
    "SCRATCH_NBYTES",
    "Axis",
    "Index",
    "Rows",
    "Selection",
    "c_strides",
    "leading_rows",
    "read_block",
    "read_in_place",
    "read_run",
    "read_strided",
    "select",
]

GAP_NBYTES = 4096
"""A gap of up to a page is read with the run around it: a second read would cost more."""
DECODED_GAP_NBYTES = 8 << 20
"""In encoded data a gap is decoded anyway, so runs are joined over gaps of up to this size."""
SCRATCH_NBYTES = 8 << 20
"""A run with gaps is read into scratch memory of at most this size."""
IN_PLACE_NBYTES = 1024
"""Runs from this size on are read directly into the caller's array; copying shorter ones from wider reads is faster."""
AT_ONCE_NBYTES = 16 << 20
"""The positions of runs are computed for this many bytes at a time, to bound their memory."""

ALL = slice(None)
"""The `finish` of an axis that needs nothing more."""

Index: TypeAlias = Any
"""Any subscript; `select` refuses all but basic indices, `pick` all but one array."""


class Axis(NamedTuple):
    """The positions start, start + step, … along one axis, `count` of them; the step is positive."""

    start: int
    step: int
    count: int  # type: ignore[assignment]  # instead of the method of tuples


class Selection(NamedTuple):
    """A basic index, normalised: what to read along each axis, and how to index the block that was read."""

    axes: tuple[Axis, ...]
    finish: tuple[int | slice | None, ...]
    """Applied to the block that was read: drops integer axes, reverses axes, adds new ones."""
    scalar: bool
    """NumPy would return a scalar, not an array without dimensions."""

    def strided(self, strides: Sequence[int]) -> tuple[int, tuple[int, ...], list[int]]:
        """The selection in an array of these strides: the first byte, the counts, and the steps in bytes."""
        begin, counts, steps = 0, [], []
        for axis, stride in zip(self.axes, strides, strict=True):
            begin += axis.start * stride
            counts.append(axis.count)
            steps.append(axis.step * stride)
        return begin, tuple(counts), steps

    @property
    def positions(self) -> list[int | range | None]:
        """What the index selects of each axis: one position, or several in its order; None for a new axis."""
        axes = iter(self.axes)
        return [None if end is None else _positions(next(axes), end) for end in self.finish]


def _positions(axis: Axis, finish: int | slice) -> int | range:
    positions = range(axis.start, axis.start + axis.step * axis.count, axis.step)
    return axis.start if isinstance(finish, int) else positions[finish]


class Rows(NamedTuple):
    """Adjacent slices along the first axis."""

    start: int
    shape: tuple[int, ...]
    """Shape of the result."""


def select(index: Index, shape: tuple[int, ...]) -> Selection:
    """Normalises an index as NumPy would, or refuses it."""
    items = index if isinstance(index, tuple) else (index,)
    ellipses = new = 0
    for item in items:
        ellipses += item is Ellipsis
        new += item is None
    consumed = len(items) - ellipses - new
    if consumed > len(shape):
        raise OutOfRange(f"too many indices: {consumed} for {plural(len(shape), 'dimension')}", rule="index.rank")
    if ellipses > 1:
        raise OutOfRange("an index can have only one Ellipsis", rule="index.ellipsis")
    if not ellipses:
        items = (*items, Ellipsis)

    axes: list[Axis] = []
    finish: list[int | slice | None] = []
    integers = 0
    for item in items:
        if item is None:
            finish.append(None)
        elif item is Ellipsis:
            for size in shape[len(axes) : len(axes) + len(shape) - consumed]:
                axes.append(Axis(0, 1, size))
                finish.append(ALL)
        elif isinstance(item, slice):
            axis, end = _slice_axis(item, shape[len(axes)])
            axes.append(axis)
            finish.append(end)
        else:
            axes.append(_integer_axis(item, shape[len(axes)], len(axes)))
            finish.append(0)
            integers += 1
    return Selection(tuple(axes), tuple(finish), not ellipses and integers == len(finish))


def _slice_bounds(item: slice, size: int) -> tuple[int, int, int]:
    """Start, stop and step."""
    try:
        return item.indices(size)
    except (TypeError, ValueError) as error:
        raise OutOfRange(f"invalid slice for an axis of size {size}: {error}", rule="index.slice") from error


def _slice_axis(item: slice, size: int) -> tuple[Axis, slice]:
    start, stop, step = _slice_bounds(item, size)
    count = len(range(start, stop, step))
    if not count:
        return Axis(0, 1, 0), ALL
    if count == 1:  # of one element, the step may be more than an array can be apart
        return Axis(start, 1, 1), ALL
    if step > 0:
        return Axis(start, step, count), ALL
    return Axis(start + (count - 1) * step, -step, count), slice(None, None, -1)


def _integer_axis(item: object, size: int, axis: int) -> Axis:
    if isinstance(item, (bool, np.bool_)) or (isinstance(item, np.ndarray) and item.ndim):
        raise OutOfRange(
            "an index must be integers, slices, Ellipsis, newaxis, and a list, an array or a mask along one axis",
            rule="index.basic",
        )
    try:
        position = operator.index(item)  # type: ignore[arg-type]
    except TypeError as error:
        raise OutOfRange(f"{type(item).__name__} is not a basic index", rule="index.basic") from error
    if not -size <= position < size:
        raise OutOfRange(f"index {position} is out of range for axis {axis} of size {size}", rule="index.range")
    return Axis(position % size, 1, 1)


def leading_rows(index: Index, shape: tuple[int, ...]) -> Rows | None:
    """The rows that an integer or a slice of step 1 selects along the first axis; None for any other index.

    A fast path for the most frequent index: one read, without computing strides.
    """
    if type(index) is slice and index.step in (None, 1) and shape:
        start, stop, _ = _slice_bounds(index, shape[0])
        return Rows(start, (stop - start, *shape[1:])) if start < stop else Rows(0, (0, *shape[1:]))
    if type(index) is int and len(shape) > 1:
        return Rows(_integer_axis(index, shape[0], 0).start, shape[1:])
    return None


def c_strides(shape: Sequence[int], itemsize: int) -> list[int]:
    """The strides, in bytes, of an array in C order."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def read_strided(
    payload: Payload, start: int, counts: tuple[int, ...], steps: Sequence[int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Reads elements that are `steps` bytes apart along each axis. An axis of step 0 is read once and broadcast."""
    axes = sorted(range(len(counts)), key=lambda axis: -steps[axis])
    once = [counts[axis] if steps[axis] else min(counts[axis], 1) for axis in axes]
    block = read_block(payload, start, tuple(once), [steps[axis] for axis in axes], dtype)
    block = block.transpose(sorted(range(len(axes)), key=axes.__getitem__))
    return block if block.shape == counts else np.broadcast_to(block, counts)


def read_block(
    payload: Payload, start: int, counts: tuple[int, ...], steps: Sequence[int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """The same for steps that do not increase from axis to axis (except axes of one element), and are not 0."""
    if isinstance(payload, Encoded):
        payload.require_decodable()
    try:
        return _read_descending(payload, start, counts, steps, dtype)
    except MemoryError as error:
        raise _out_of_memory(math.prod(counts) * dtype.itemsize) from error


def read_run(payload: Payload, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Reads an array whose elements are adjacent from `start` on."""
    if 0 in shape:
        return np.empty(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        return np.ndarray(shape, dtype, payload.read(start, nbytes))
    except MemoryError as error:
        raise _out_of_memory(nbytes) from error


def _out_of_memory(nbytes: int) -> LimitError:
    return LimitError(f"out of memory: {nbytes} bytes needed", rule="memory.size")


def _read_descending(
    payload: Payload, start: int, counts: Sequence[int], steps: Sequence[int], dtype: np.dtype[Any]
) -> NDArray[Any]:
    if 0 in counts:
        return np.empty(counts, dtype)
    inner, extent, dense = _inner_run(counts, steps, dtype.itemsize, decoding=isinstance(payload, Encoded))
    if inner == 0 and dense:
        return np.ndarray(counts, dtype, payload.read(start, extent))
    block = np.empty(counts, dtype)
    if inner == 0:
        block[...] = np.ndarray(counts, dtype, payload.read(start, extent), 0, steps)
        return block
    starts = _run_starts(start, counts[:inner], steps[:inner])
    if dense:
        _read_runs(payload, starts, extent, block.reshape(-1).view(np.uint8).data)
        return block
    together = max(1, min(len(starts), SCRATCH_NBYTES // extent))
    scratch = np.empty(together * extent, np.uint8)
    runs: NDArray[Any] = np.ndarray((together, *counts[inner:]), dtype, scratch, 0, (extent, *steps[inner:]))
    rows = block.reshape(-1, *counts[inner:])
    for first in range(0, len(starts), together):
        some = starts[first : first + together]
        _read_runs(payload, some, extent, scratch.data[: len(some) * extent])
        rows[first : first + together] = runs[: len(some)]
    return block


def _run_starts(start: int, counts: Sequence[int], steps: Sequence[int]) -> NDArray[np.int64]:
    """The offset of each run: start + i × steps[0] + j × steps[1] + …, in C order of i, j, …"""
    positions = np.full((), start, np.int64)
    for count, step in zip(counts, steps, strict=True):
        positions = positions[..., None] + step * np.arange(count)
    return positions.reshape(-1)


def read_in_place(payload: Span, start: int, steps: Sequence[int], out: NDArray[Any]) -> bool:
    """Reads elements that are `steps` bytes apart into `out`, directly to their places.

    Returns False, and reads nothing, if the runs that are contiguous both in the file and in
    `out` are too short for this to be faster.
    """
    axis, extent = out.ndim, out.itemsize
    while axis and (out.shape[axis - 1] == 1 or steps[axis - 1] == out.strides[axis - 1] == extent):
        axis -= 1
        extent *= out.shape[axis]
    if extent < IN_PLACE_NBYTES or any(stride < 0 or stride % out.itemsize for stride in out.strides):
        return False
    rows = max(1, AT_ONCE_NBYTES * len(out) // out.nbytes)
    for first in range(0, len(out), rows):
        strip = out[first : first + rows]
        begins = _run_starts(start + first * steps[0], strip.shape[:axis], steps[:axis])
        offsets = _run_starts(0, strip.shape[:axis], strip.strides[:axis])
        elements = (int(offsets.max()) + extent) // out.itemsize
        # The strip as flat memory, up to the end of its last run; the bytes between runs are not touched.
        memory = np.lib.stride_tricks.as_strided(strip, (elements,), (out.itemsize,))
        payload.read_runs(begins, extent, offsets.tolist(), memory.view(np.uint8).data)
    return True


def _read_runs(payload: Payload, starts: NDArray[np.int64], extent: int, out: memoryview) -> None:
    """Reads runs of `extent` bytes into `out`, without gaps."""
    if isinstance(payload, Span):
        payload.read_runs(starts, extent, range(0, len(out), extent), out)
        return
    for i, at in enumerate(starts.tolist()):
        payload.read_into(at, out[i * extent : (i + 1) * extent])


def _inner_run(counts: Sequence[int], steps: Sequence[int], itemsize: int, *, decoding: bool) -> tuple[int, int, bool]:
    """The outermost axis that can be merged into one run of bytes, the run's length, and whether it has no gaps."""
    widest_gap, widest = (DECODED_GAP_NBYTES, 1 << 63) if decoding else (GAP_NBYTES, SCRATCH_NBYTES)
    extent = itemsize
    dense = True
    for i in range(len(counts) - 1, -1, -1):
        if counts[i] == 1:
            continue
        wider = (counts[i] - 1) * steps[i] + extent
        gap = steps[i] - extent
        if (gap or not dense) and (gap > widest_gap or wider > widest):
            return i + 1, extent, dense
        dense = dense and gap == 0
        extent = wider
    return 0, extent, dense
