"""Loading raw dense tensors by the columns of an index: no Tensor is created.

Each large tensor is allocated separately; small adjacent ones share a slab, which is one
read. A pool of threads reads in file order, and compares checksums in the same pass. Then
the arrays are created as views; a run of equal shapes is one array that is iterated,
which costs a fraction of creating each. Of a mapped file they are views of the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import distinct, prefix_sums
from tensorglot.errors import TruncatedError
from tensorglot.memory import ALONE_NBYTES, SLAB_NBYTES, allocate
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import Index, Placement, place_rows, take_shapes
from tensorglot.model.payload import Source, as_bytes
from tensorglot.model.tensor import NUMPY_RANK, Tensor, check_bool, check_out
from tensorglot.operations._checksums import RowChecks, Rows, row_checks
from tensorglot.operations._reads import Piece, Runs, fill
from tensorglot.threads import for_each

__all__ = ["is_plain", "is_shared", "load_rows", "view_rows"]


def is_plain(archive: Archive) -> bool:
    """Whether the stored bytes of every tensor are those of an array; a run of arrays must have a rank NumPy allows."""
    if not archive.index.plain:
        return False
    ranks = np.diff(archive.index.dim_offsets)
    if ranks.size and ranks.max() >= NUMPY_RANK:
        return False
    kinds = [TABLE[code] for code in distinct(archive.index.dtypes).tolist()]
    return all(kind.numpy is not None and not kind.packed for kind in kinds)


def is_shared(archive: Archive) -> bool | None:
    """Whether the files are mapped to memory: True for all of them, False for none, None for some."""
    held = {id(held): held for held in (archive.source, *archive.index.sources.values()) if held is not None}
    mapped = {source.view(0, 0) is not None for source in held.values()}
    return mapped.pop() if len(mapped) == 1 else None


def view_rows(
    archive: Archive, rows: NDArray[np.int64], threads: int | None
) -> dict[str, NDArray[Any] | Tensor] | None:
    """The arrays of some rows of a plain archive of mapped files, in their memory.

    None if a file is truncated or not one piece of memory: reading tensor by tensor copes with it, or names the tensor.
    """
    index, checks = archive.index, row_checks(archive)
    arrays: dict[int, NDArray[Any]] = {}
    for source, chosen in archive.by_source(rows):
        order = rows[chosen][np.argsort(index.begins[rows[chosen]], kind="stable")]
        begins, ends = index.begins[order], index.ends[order]
        low, high = (int(begins[0]), int(ends.max())) if len(order) else (0, 0)
        try:
            memory = source.view(low, high - low)
        except TruncatedError:
            return None
        if memory is None:
            return None
        if checks is not None:
            held = Rows(memory, order, begins - low, ends - low)
            groups = place_rows(begins, ends, ALONE_NBYTES, ALONE_NBYTES).groups
            for_each(partial(_compare_group, checks, held), pairwise(groups), threads)
        steps = np.diff(begins, append=0)
        for a, b in pairwise(_runs(index, order, [0, len(order)], steps)):
            views = _views(index, int(order[a]), b - a, memory, int(begins[a]) - low, int(steps[a]))
            arrays |= zip(order[a:b].tolist(), views, strict=True)
    loaded: dict[str, Any] = {index.names[row]: arrays[row] for row in rows.tolist()}
    _check_bools(index, rows, loaded)
    return loaded


def load_rows(
    archive: Archive, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]], threads: int | None
) -> dict[str, NDArray[Any] | Tensor]:
    """The arrays of some rows of a plain archive; those in `out` are contiguous."""
    checks, files = row_checks(archive), archive.by_source(rows)
    parts = (_load(archive.index, source, rows[chosen], out, threads, checks) for source, chosen in files)
    return next(parts) if len(files) == 1 else {name: array for part in parts for name, array in part.items()}


def _load(
    index: Index,
    source: Source,
    rows: NDArray[np.int64],
    out: Mapping[str, NDArray[Any]],
    threads: int | None,
    checks: RowChecks | None,
) -> dict[str, NDArray[Any] | Tensor]:
    given = _arrays_by_row(index, rows, out)
    fresh = rows[[row not in given for row in rows.tolist()]] if given else rows
    order = fresh[np.argsort(index.begins[fresh], kind="stable")]
    begins, ends = index.begins[order], index.ends[order]
    places = place_rows(begins, ends, ALONE_NBYTES, SLAB_NBYTES)
    tails = places.offsets + ends - begins
    buffers = [allocate(int(tails[b - 1]), int(begins[a])) for a, b in pairwise(places.groups)]
    group_of = np.repeat(np.arange(len(buffers)), np.diff(places.groups)).tolist()
    pieces, scattered = _reads(places, begins, tails, buffers, order, checks)
    for row, array in given.items():
        memory = as_bytes(array)
        follower = None
        if checks is not None:  # the columns of a row take as long to make as the row to read
            follower = checks.follower(Rows(memory, np.array([row]), np.zeros(1, np.int64), np.array([len(memory)])))
        pieces.append(Piece(int(index.begins[row]), memory, follower))
    try:
        fill(source, pieces, scattered, threads)
    except TruncatedError as error:
        missing = error.offset or 0  # the source knows only the offset: find the row around it
        error.tensor = index.names[int(rows[np.argmax((index.begins[rows] <= missing) & (missing < index.ends[rows]))])]
        raise

    del begins, ends, tails, pieces, scattered  # 32 bytes for each row, before there are all arrays
    arrays: list[NDArray[Any]] = []
    steps = np.diff(places.offsets, append=0)
    for a, b in pairwise(_runs(index, order, places.groups, steps)):
        views = _views(index, int(order[a]), b - a, buffers[group_of[a]], int(places.offsets[a]), int(steps[a]))
        # A row at an odd offset of its slab: NumPy is slower on such an array, and C libraries may refuse it.
        arrays += views if views[0].flags.aligned else [view.copy() for view in views]
    if len(order) == len(index.names):
        if (order[1:] < order[:-1]).any():  # the file has another order than the index
            arrays = [arrays[i] for i in np.argsort(order).tolist()]
        loaded: dict[str, Any] = dict(zip(index.names, arrays, strict=True))
    else:
        by_row = given | dict(zip(order.tolist(), arrays, strict=True))
        loaded = {index.names[row]: by_row[row] for row in rows.tolist()}
    _check_bools(index, rows, loaded)
    return loaded


def _check_bools(index: Index, rows: NDArray[np.int64], loaded: Mapping[str, NDArray[Any]]) -> None:
    for row in rows[index.dtypes[rows] == BY_NAME["bool"].code].tolist():
        check_bool(loaded[index.names[row]], index.names[row], int(index.begins[row]))


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
    pieces: list[Piece] = []
    scattered: list[Runs] = []
    for buffer, (a, b), (first, last) in zip(buffers, pairwise(firsts), pairwise(places.groups), strict=True):
        held = Rows(buffer, order, places.offsets, tails)
        if b - a == 1:
            follower = None if checks is None else checks.follower(held.between(first, last))
            pieces.append(Piece(int(begins[first]), buffer, follower))
        else:
            follow = None if checks is None else partial(_compare, checks, held, places.runs)
            scattered.append(Runs(buffer, begins[starts[a:b]], sizes[a:b], offsets[a:b], follow, a))
    return pieces, scattered


def _compare(checks: RowChecks, rows: Rows, runs: list[int], first: int, last: int) -> None:
    """Compares the checksums of the rows in some runs."""
    _compare_group(checks, rows, (runs[first], runs[last]))


def _compare_group(checks: RowChecks, rows: Rows, group: tuple[int, int]) -> None:
    checks.compare(rows.between(*group))


def _arrays_by_row(index: Index, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]]) -> dict[int, NDArray[Any]]:
    """The arrays of the caller by row."""
    given: dict[int, NDArray[Any]] = {}
    if not out:
        return given
    dims, offsets = take_shapes(index.dims, index.dim_offsets, rows)
    sizes, bounds = dims.tolist(), pairwise(offsets.tolist())
    for row, code, (begin, end) in zip(rows.tolist(), index.dtypes[rows].tolist(), bounds, strict=True):
        name = index.names[row]
        array = out.get(name)
        if array is not None:
            check_out(array, tuple(sizes[begin:end]), TABLE[code].require_numpy(), name)
            given[row] = array
    return given


def _runs(index: Index, order: NDArray[np.int64], groups: list[int], steps: NDArray[np.int64]) -> list[int]:
    """Where runs of arrays start, and the end: of one shape, type and buffer, at equal distances."""
    count = len(order)
    if count == 0:
        return [0]
    # same[i]: row i has the type and shape of row i - 1. Each dim is compared with the one as many places
    # before it as the row has dims; that is the same dim of the previous row if the ranks are equal.
    dims, offsets = take_shapes(index.dims, index.dim_offsets, order)
    ranks, dtypes = np.diff(offsets), index.dtypes[order]
    same = np.zeros(count, np.bool_)
    same[1:] = (ranks[1:] == ranks[:-1]) & (dtypes[1:] == dtypes[:-1])
    previous = np.arange(len(dims)) - np.repeat(ranks, ranks)
    differing = prefix_sums(dims != dims[previous])
    same &= differing[offsets[1:]] == differing[offsets[:-1]]
    new = ~same
    new[groups[:-1]] = True
    # A run also ends where the distance to the row before changes, unless that row itself begins a run.
    new[2:] |= ~new[1:-1] & (steps[1:-1] != steps[:-2])
    return [*np.flatnonzero(new).tolist(), count]


def _views(index: Index, row: int, count: int, buffer: memoryview, start: int, step: int) -> list[NDArray[Any]]:
    """Arrays of one shape, the first at `start`, each `step` bytes after the previous one."""
    dtype = TABLE[index.dtypes[row]].require_numpy(index.names[row])
    shape = index.shape(row)
    if count > 1 and shape and 0 not in shape:
        within = [math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape))]
        return list(np.ndarray((count, *shape), dtype, buffer, start, (step, *within)))
    return [np.ndarray(shape, dtype, buffer, start + i * step) for i in range(count)]
