"""Loading raw dense tensors by the columns of an index: no Tensor is created.

Each large tensor is allocated separately; small adjacent ones share a slab, which is one
read. A pool of threads reads in file order, and compares checksums in the same pass. Then
the arrays are created as views; a run of equal shapes is one array that is iterated,
which costs a fraction of creating each. Of a mapped file they are views of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import distinct, prefix_sums
from tensorglot.errors import TruncatedError
from tensorglot.memory import ALONE_NBYTES, SLAB_NBYTES, SPARE_NBYTES, allocate
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE
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
        order = _in_file_order(index, rows[chosen])
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
        offsets = begins - low
        for a, b in pairwise(_runs(index, order, [0, len(order)], offsets)):
            arrays |= zip(order[a:b].tolist(), _views(index, order[a:b], memory, offsets[a:b]), strict=True)
    return {index.names[row]: arrays[row] for row in rows.tolist()}


def load_rows(
    archive: Archive, rows: NDArray[np.int64], out: Mapping[str, NDArray[Any]], threads: int | None
) -> Callable[[], dict[str, NDArray[Any] | Tensor]]:
    """Reads some rows of a plain archive, those in `out` into its arrays, which are contiguous.

    Returns a function that makes the other arrays. It does not hold the index, which of small
    tensors takes as much memory as they do: the caller may let go of the archive first.
    """
    checks, files = row_checks(archive), archive.by_source(rows)
    if len(files) == 1:
        return _load(archive.index, files[0][0], rows, out, threads, checks, SPARE_NBYTES)
    spare = SPARE_NBYTES // max(1, len(files))
    parts = [_load(archive.index, source, rows[chosen], out, threads, checks, spare) for source, chosen in files]
    return lambda: {name: array for part in parts for name, array in part().items()}


def _load(
    index: Index,
    source: Source,
    rows: NDArray[np.int64],
    out: Mapping[str, NDArray[Any]],
    threads: int | None,
    checks: RowChecks | None,
    spare: int,
) -> Callable[[], dict[str, NDArray[Any] | Tensor]]:
    given = _arrays_by_row(index, rows, out)
    fresh = rows[[row not in given for row in rows.tolist()]] if given else rows
    order = _in_file_order(index, fresh)
    begins, ends = index.begins[order], index.ends[order]
    places = place_rows(begins, ends, ALONE_NBYTES, SLAB_NBYTES)
    tails = places.offsets + ends - begins
    each = spare // max(1, len(places.groups) - 1)
    buffers = [allocate(int(tails[b - 1]), int(begins[a]), each) for a, b in pairwise(places.groups)]
    pieces, scattered = _reads(places, begins, tails, buffers, order, checks)
    for (row, array), begin in zip(given.items(), index.begins[[*given]].tolist(), strict=True):
        memory = as_bytes(array)
        follower = None
        if checks is not None:  # the columns of a row take as long to make as the row to read
            follower = checks.follower(Rows(memory, np.array([row]), np.zeros(1, np.int64), np.array([len(memory)])))
        pieces.append(Piece(begin, memory, follower))
    try:
        fill(source, pieces, scattered, threads)
    except TruncatedError as error:
        missing = error.offset or 0  # the source knows only the offset: find the row around it
        error.tensor = index.names[int(rows[np.argmax((index.begins[rows] <= missing) & (missing < index.ends[rows]))])]
        raise

    for row, array in given.items():
        if array.dtype.kind == "b":
            check_bool(array, index.names[row], int(index.begins[row]))
    del begins, ends, tails, pieces, scattered  # 32 bytes for each row, before there are all names
    bounds = _runs(index, order, places.groups, places.offsets)
    groups = np.searchsorted(places.groups, bounds[:-1], side="right").tolist()
    runs = [
        _aligned(_views(index, order[a:b], buffers[group - 1], places.offsets[a:b]))
        for (a, b), group in zip(pairwise(bounds), groups, strict=True)
    ]
    every = len(rows) == len(index.names)
    names = list(index.names) if every else [index.names[row] for row in rows.tolist()]
    in_order = names if order is rows else [index.names[row] for row in order.tolist()]

    def arrays() -> dict[str, NDArray[Any] | Tensor]:
        made = dict(zip(in_order, chain.from_iterable(runs), strict=True))
        if in_order is names:
            return made
        return {name: out[name] if name in out else made[name] for name in names}

    return arrays


def _in_file_order(index: Index, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    begins = index.begins[rows]
    return rows if (begins[1:] >= begins[:-1]).all() else rows[np.argsort(begins, kind="stable")]


def _reads(
    places: Placement,
    begins: NDArray[np.int64],
    tails: NDArray[np.int64],
    buffers: list[memoryview],
    order: NDArray[np.int64],
    checks: RowChecks | None,
) -> tuple[list[Piece], list[Runs]]:
    """The reads for each group: one piece, or several runs."""
    starts, lasts = places.runs[:-1], places.runs[1:] - 1
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


def _compare(checks: RowChecks, rows: Rows, runs: NDArray[np.int64], first: int, last: int) -> None:
    """Compares the checksums of the rows in some runs."""
    _compare_group(checks, rows, (int(runs[first]), int(runs[last])))


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


def _runs(index: Index, order: NDArray[np.int64], groups: list[int], offsets: NDArray[np.int64]) -> list[int]:
    """Where runs of arrays start, and the end: of one shape, type and buffer, at equal distances."""
    count = len(order)
    if count == 0:
        return [0]
    # same[i]: row i has the type and shape of row i - 1. Each dim is compared with the one as many places
    # before it as the row has dims; that is the same dim of the previous row if the ranks are equal.
    dims, dim_offsets = take_shapes(index.dims, index.dim_offsets, order)
    ranks, dtypes = np.diff(dim_offsets), index.dtypes[order]
    same = np.zeros(count, np.bool_)
    same[1:] = (ranks[1:] == ranks[:-1]) & (dtypes[1:] == dtypes[:-1])
    previous = np.arange(len(dims)) - np.repeat(ranks, ranks)
    differing = prefix_sums(dims != dims[previous])
    same &= differing[dim_offsets[1:]] == differing[dim_offsets[:-1]]
    new = ~same
    new[groups[:-1]] = True
    # A run also ends where the distance to the row before changes, unless that row itself begins a run.
    steps = np.diff(offsets)
    new[2:] |= ~new[1:-1] & (steps[1:] != steps[:-1])
    return [*np.flatnonzero(new).tolist(), count]


def _views(
    index: Index, rows: NDArray[np.int64], buffer: memoryview, offsets: NDArray[np.int64]
) -> NDArray[Any] | list[NDArray[Any]]:
    """The arrays of a run, at its offsets in the buffer. Several are one array, which makes them when iterated."""
    row = int(rows[0])
    dtype = TABLE[index.dtypes[row]].require_numpy(index.names[row])
    shape = index.shape(row)
    views: NDArray[Any] | list[NDArray[Any]]
    if len(rows) > 1 and shape and 0 not in shape:
        start, second = offsets[:2].tolist()
        within = [math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape))]
        views = np.ndarray((len(rows), *shape), dtype, buffer, start, (second - start, *within))
    else:
        views = [np.ndarray(shape, dtype, buffer, offset) for offset in offsets.tolist()]
    if dtype.kind == "b":
        for row, view in zip(rows.tolist(), views, strict=True):
            check_bool(view, index.names[row], int(index.begins[row]))
    return views


def _aligned(run: NDArray[Any] | list[NDArray[Any]]) -> NDArray[Any] | list[NDArray[Any]]:
    """Copies arrays at odd offsets of their slab: NumPy is slower on them, and C libraries may refuse them."""
    if isinstance(run, np.ndarray):
        return run if run.flags.aligned else run.copy()
    return [view if view.flags.aligned else view.copy() for view in run]
