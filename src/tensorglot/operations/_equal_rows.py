"""Finds the tensors that may differ between two archives, without making a Tensor of each.

Most tensors of two versions are equal, and making two Tensor objects takes a hundred times as
long as comparing a few bytes. In two commits of a store, equal
CIDs decide, and nothing is read. Otherwise small dense rows of one type and shape are
read in runs and compared as bytes. All other tensors are left to `diff`, which compares
them one by one and says how they differ. Archives that have the same names in the same
order need no table of names: of a million tensors, two would take a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index, take_shapes
from tensorglot.operations._small_rows import is_small

__all__ = ["not_shown_equal"]


def not_shown_equal(one: Archive, two: Archive, names: Sequence[str], first: int) -> list[str]:
    """The names whose tensors are not known to be equal in type, shape, values and attributes.

    `first` is the position of the first name in the archives where these have the names together.
    """
    rows, others = (_positions(archive.index, names, first) for archive in (one, two))
    differing = np.ones(len(names), np.bool_)
    differing[_equal(one, two, rows, others)] = False
    return [names[i] for i in np.flatnonzero(differing).tolist()]


def _positions(index: Index, names: Sequence[str], first: int) -> NDArray[np.int64]:
    """The positions of names, or -1."""
    if index.names[first : first + len(names)] == names:
        return np.arange(first, first + len(names))
    return np.fromiter(map(index.positions.get, names, repeat(-1)), np.int64, len(names))


def _equal(one: Archive, two: Archive, rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which of the pairs of tensors are equal."""
    if one.index.cids is not None and two.index.cids is not None:
        old, new = one.index.cids, two.index.cids
        pairs = enumerate(zip(rows.tolist(), others.tolist(), strict=True))
        same = (i for i, (a, b) in pairs if a >= 0 and b >= 0 and old[a] is not None and old[a] == new[b])
        return np.fromiter(same, np.int64)
    at = _comparable(one.index, two.index, rows, others)
    if not len(at):
        return at
    before, after = one.join_rows(rows[at]), two.join_rows(others[at])
    if before is None or after is None:
        return at[:0]
    differing = np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8)
    if differing.any():
        # A row is equal if no byte between its ends differs: the prefix sums at both ends are the same.
        counts, sizes = prefix_sums(differing), one.index.nbytes[rows[at]]
        stops = np.cumsum(sizes)
        at = at[counts[stops] == counts[stops - sizes]]
    return at


def _comparable(one: Index, two: Index, rows: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of pairs that are small raw dense rows of one type and shape."""
    at = np.flatnonzero((rows >= 0) & (others >= 0))
    same = is_small(one, rows[at]) & is_small(two, others[at]) & (one.dtypes[rows[at]] == two.dtypes[others[at]])
    at = at[same]
    rows, others = rows[at], others[at]
    (dims, offsets), (other_dims, other_offsets) = (
        take_shapes(index.dims, index.dim_offsets, some) for index, some in ((one, rows), (two, others))
    )
    same = np.diff(offsets) == np.diff(other_offsets)
    if same.all():
        differing = prefix_sums(dims != other_dims)
        same = differing[offsets[1:]] == differing[offsets[:-1]]
    else:  # rare: compared one by one
        pairs = zip(rows.tolist(), others.tolist(), strict=True)
        same = np.array([one.shape(row) == two.shape(other) for row, other in pairs], np.bool_)
    chosen: NDArray[np.int64] = at[same]
    return chosen
