"""Loading raw dense tensors by the columns of an index: no Tensor is created.

Each large tensor is allocated separately; small adjacent ones share a slab, which is one
read. A pool of threads reads in file order, and compares checksums in the same pass. Then
the arrays are created as views; a run of equal shapes is one array that is iterated,
which costs a fraction of creating each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import TruncatedError
from tensorglot.memory import allocate
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import Index, Placement, place_rows, take_shapes
from tensorglot.model.payload import Source, as_bytes
from tensorglot.model.tensor import NUMPY_RANK, Tensor, check_bool, check_out
from tensorglot.operations._checksums import RowChecks, Rows, row_checks
from tensorglot.operations._reads import Piece, Runs, fill

__all__ = ["ALONE_NBYTES", "SLAB_NBYTES", "is_plain", "load_rows"]

ALONE_NBYTES = 4 << 20
"""Tensors from this size on are allocated separately."""
SLAB_NBYTES = 32 << 20
"""Smaller ones share slabs of about this size: an array keeps at most that much memory alive."""


def is_plain(archive: Archive) -> bool:
    """All stored bytes are those of arrays, no memory is shared, and a run of arrays has a rank that NumPy allows."""
    if not archive.index.plain:
        return False
    ranks = np.diff(archive.index.dim_offsets)
    if ranks.size and ranks.max() >= NUMPY_RANK:
        return False
    shared = any(held.view(0, 0) is not None for held, _ in archive.by_source(np.empty(0, np.int64)))
    kinds = [TABLE[code] for code in np.unique(archive.index.dtypes).tolist()]
    return not shared and all(kind.numpy is not None and not kind.packed for kind in kinds)


def load_rows(
    archive: Archive, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]], threads: int | None
) -> dict[str, NDArray[Any] | Tensor]:
    """The arrays of some rows of a plain archive; those in `out` are contiguous."""
    loaded: dict[str, NDArray[Any] | Tensor] = {}
    checks = row_checks(archive)
    for source, chosen in archive.by_source(rows):
        loaded |= _load(archive.index, source, rows[chosen], out, threads, checks)
    return loaded


def _load(
    index: Index,
    source: Source,
    rows: NDArray[np.int64],
    out: Mapping[str, NDArray[Any]],
    threads: int | None,
    checks: RowChecks | None,
) -> dict[str, NDArray[Any] | Tensor]:
    given = _given(index, rows, out)
    fresh = rows[~np.isin(rows, list(given))] if given else rows
    order = fresh[np.argsort(index.begins[fresh], kind="stable")]
    begins, ends = index.begins[order], index.ends[order]
    places = place_rows(begins, ends, ALONE_NBYTES, SLAB_NBYTES)
    tails = places.offsets + ends - begins
    buffers = [allocate(int(tails[b - 1]), int(begins[a])) for a, b in pairwise(places.groups)]
    group_of = np.repeat(np.arange(len(buffers)), np.diff(places.groups)).tolist()
    pieces, scattered = _reads(places, begins, tails, buffers, order, checks)
    for row, array in given.items():
        memory = as_bytes(array)
        follower = None if checks is None else checks.follower(Rows(memory, [row], [0], [len(memory)]))
        pieces.append(Piece(int(index.begins[row]), memory, follower))
    try:
        fill(source, pieces, scattered, threads)
    except TruncatedError as error:
        missing = error.offset or 0
        error.tensor = index.names[int(rows[np.argmax((index.begins[rows] <= missing) & (missing < index.ends[rows]))])]
        raise

    arrays: list[NDArray[Any]] = []
    steps = np.diff(places.offsets, append=0)
    for a, b in pairwise(_runs(index, order, places.groups, steps)):
        arrays += _views(index, int(order[a]), b - a, buffers[group_of[a]], int(places.offsets[a]), int(steps[a]))
    if len(order) == len(index.names):
        in_order = [arrays[i] for i in np.argsort(order).tolist()]
        loaded = dict(zip(index.names, in_order, strict=True))
    else:
        by_row = given | dict(zip(order.tolist(), arrays, strict=True))
        loaded = {index.names[row]: by_row[row] for row in rows.tolist()}
    for row in np.flatnonzero(index.dtypes[rows] == BY_NAME["bool"].code).tolist():
        name = index.names[int(rows[row])]
        check_bool(loaded[name], name, int(index.begins[rows[row]]))
    return dict(loaded)


def _reads(
    places: Placement,
    begins: NDArray[np.int64],
    tails: NDArray[np.int64],
    buffers: list[memoryview],
    order: NDArray[np.int64],
    checks: RowChecks | None,
) -> tuple[list[Piece], list[Runs]]:
    """The reads for each group: one piece, or several runs."""
    starts, lasts = np.array(places.runs[:-1], np.int64), np.array(places.runs[1:], np.int64) - 1
    offsets = places.offsets[starts]
    sizes = tails[lasts] - offsets
    firsts = np.searchsorted(starts, places.groups).tolist()
    rows, begin_of, end_of = order.tolist(), places.offsets.tolist(), tails.tolist()
    pieces: list[Piece] = []
    scattered: list[Runs] = []
    for buffer, (a, b), (first, last) in zip(buffers, pairwise(firsts), pairwise(places.groups), strict=True):
        held = Rows(buffer, rows, begin_of, end_of)
        if b - a == 1:
            follower = None if checks is None else checks.follower(held.between(first, last))
            pieces.append(Piece(int(begins[first]), buffer, follower))
        else:
            follow = None if checks is None else partial(_compare, checks, held, places.runs)
            scattered.append(Runs(buffer, begins[starts[a:b]], sizes[a:b], offsets[a:b], follow, a))
    return pieces, scattered


def _compare(checks: RowChecks, rows: Rows, runs: list[int], first: int, last: int) -> None:
    """Compares the checksums of the rows in some runs."""
    complete = rows.between(runs[first], runs[last])
    checks.compare(complete.rows, complete.pieces)


def _given(index: Index, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """The arrays of the caller by row."""
    given = {}
    for row in rows.tolist() if out else ():
        array = out.get(index.names[row])
        if array is not None:
            check_out(array, index.shape(row), TABLE[index.dtypes[row]].require_numpy(), index.names[row])
            given[row] = array
    return given


def _runs(index: Index, order: NDArray[np.int64], groups: list[int], steps: NDArray[np.int64]) -> list[int]:
    """Where runs of arrays start, and the end: of one shape, type and buffer, at equal distances."""
    count = len(order)
    if count == 0:
        return [0]
    dims, offsets = take_shapes(index.dims, index.dim_offsets, order)
    ranks, dtypes = np.diff(offsets), index.dtypes[order]
    same = np.zeros(count, np.bool_)
    same[1:] = (ranks[1:] == ranks[:-1]) & (dtypes[1:] == dtypes[:-1])
    previous = np.arange(len(dims)) - np.repeat(ranks, ranks)
    differing = np.zeros(len(dims) + 1, np.int64)
    np.cumsum(dims != dims[previous], out=differing[1:])
    same &= differing[offsets[1:]] == differing[offsets[:-1]]
    new = ~same
    new[groups[:-1]] = True
    new[2:] |= ~new[1:-1] & (steps[1:-1] != steps[:-2])
    return [*np.flatnonzero(new).tolist(), count]


def _views(index: Index, row: int, count: int, buffer: memoryview, start: int, step: int) -> list[NDArray[Any]]:
    """Arrays of one shape, the first at `start`, each `step` bytes after the previous one."""
    dtype = TABLE[index.dtypes[row]].require_numpy(index.names[row])
    shape = index.shape(row)
    if count > 1 and shape and 0 not in shape:
        within = [math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape))]
        views = list(np.ndarray((count, *shape), dtype, buffer, start, (step, *within)))
    else:
        views = [np.ndarray(shape, dtype, buffer, start + i * step) for i in range(count)]
    return views if views[0].flags.aligned else [view.copy() for view in views]
