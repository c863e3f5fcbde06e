"""The tensors that are equal in two archives, as far as the columns of their indexes tell.

Most tensors of two versions are equal. Making a Tensor of each, twice, to find that out
costs a hundred times what comparing a few bytes does. In two commits of a store, equal
CIDs decide, and nothing is read. Otherwise small dense rows of one type and shape are
read in runs and compared as bytes. All other tensors are left to `diff`, which compares
them one by one and says how they differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import UNKNOWN, Index, take_shapes
from tensorglot.model.payload import SMALL_NBYTES
from tensorglot.threads import ordered_map

__all__ = ["find_equal_rows"]

_BATCH_ROWS = 4096
_BATCH_NBYTES = 8 << 20
_BYTES_DECIDE = np.array([row.numpy is not None and not row.packed and row.name != "bool" for row in TABLE])
"""Element types whose values are equal if their bytes are: any byte but 0 may be true."""


def find_equal_rows(one: Archive, two: Archive) -> set[str]:
    """Names of tensors that are equal in both: type, shape, values and attributes."""
    if one.index.cids is not None and two.index.cids is not None:
        cids, positions = two.index.cids, two.index.positions
        pairs = zip(one.index.names, one.index.cids, strict=True)
        return {name for name, cid in pairs if cid is not None and name in positions and cid == cids[positions[name]]}
    if one.index.first_rows is not None or two.index.first_rows is not None:
        return set()  # tensors of several rows
    rows, others = _comparable(one.index, two.index)

    def compare(batch: slice) -> list[int]:
        here: list[int] = rows[batch].tolist()
        old, new = one.read_rows(rows[batch]), two.read_rows(others[batch])
        if old is None or new is None:
            return []
        if b"".join(old) == b"".join(new):
            return here
        return [row for row, x, y in zip(here, old, new, strict=True) if x == y]

    names = one.index.names
    batches = _batches(one.index.nbytes[rows])
    return {names[row] for found in ordered_map(compare, batches) for row in found}


def _comparable(one: Index, two: Index) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Small raw dense rows of the same name, type and shape, in the order of the first file."""
    positions = two.positions
    there = np.array([positions.get(name, -1) for name in one.names], np.int64)
    rows = np.flatnonzero((there >= 0) & _is_small_and_raw(one))
    others = there[rows]
    same = _is_small_and_raw(two)[others] & (one.dtypes[rows] == two.dtypes[others])
    rows, others = rows[same], others[same]
    (dims, offsets), (other_dims, other_offsets) = (
        take_shapes(index.dims, index.dim_offsets, chosen) for index, chosen in ((one, rows), (two, others))
    )
    same = np.diff(offsets) == np.diff(other_offsets)
    if same.all():
        differing = np.append(0, np.cumsum(dims != other_dims))
        same = differing[offsets[1:]] == differing[offsets[:-1]]
    else:  # rare: compared one by one
        shapes, other_shapes = one.shapes, two.shapes
        same = np.array([shapes[a] == other_shapes[b] for a, b in zip(rows.tolist(), others.tolist(), strict=True)])
    rows, others = rows[same], others[same]
    order = np.argsort(one.begins[rows], kind="stable")
    return rows[order], others[order]


def _is_small_and_raw(index: Index) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (index.nbytes < SMALL_NBYTES) & (index.dtypes != UNKNOWN)
    found[found] &= _BYTES_DECIDE[index.dtypes[found]]
    for column in (index.layouts, index.attributes, index.codecs, index.big_endian):
        found[list(column)] = False
    return found


def _batches(nbytes: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of few enough rows and bytes to be read together."""
    jobs = np.cumsum(nbytes) // _BATCH_NBYTES + np.arange(len(nbytes)) // _BATCH_ROWS
    starts = [0, *(np.flatnonzero(np.diff(jobs)) + 1).tolist()]
    for start, stop in zip(starts, [*starts[1:], len(nbytes)], strict=True):
        yield slice(start, stop)
