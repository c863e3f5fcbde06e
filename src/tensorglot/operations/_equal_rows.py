"""The tensors that are equal in two archives, as far as the columns of their indexes tell.

Most tensors of two versions are equal. Making a Tensor of each, twice, to find that out
costs a hundred times what comparing a few bytes does. In two commits of a store, equal
CIDs decide, and nothing is read. Otherwise small dense rows of one type and shape are
read in runs and compared as bytes. All other tensors are left to `diff`, which compares
them one by one and says how they differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.archive import Archive
from tensorglot.model.index import Index, take_shapes
from tensorglot.operations._small_rows import is_small

__all__ = ["find_equal_rows"]


def find_equal_rows(one: Archive, two: Archive, names: Sequence[str]) -> set[str]:
    """Those of some tensors that are equal in both: type, shape, values and attributes."""
    places = [(one.index.positions.get(name, -1), two.index.positions.get(name, -1)) for name in names]
    if one.index.cids is not None and two.index.cids is not None:
        old, new = one.index.cids, two.index.cids
        pairs = zip(names, places, strict=True)
        return {name for name, (a, b) in pairs if a >= 0 and b >= 0 and old[a] is not None and old[a] == new[b]}
    rows, others = _comparable(one.index, two.index, np.array(places, np.int64).reshape(-1, 2))
    if not len(rows):
        return set()
    before, after = one.read_rows(rows), two.read_rows(others)
    if before is None or after is None:
        return set()
    equal = rows.tolist()
    if b"".join(before) != b"".join(after):
        equal = [row for row, x, y in zip(equal, before, after, strict=True) if x == y]
    return {one.index.names[row] for row in equal}


def _comparable(one: Index, two: Index, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Small raw dense rows of one type and shape, of pairs of positions."""
    rows, others = places[(places >= 0).all(axis=1)].T
    same = is_small(one, rows) & is_small(two, others) & (one.dtypes[rows] == two.dtypes[others])
    rows, others = rows[same], others[same]
    (dims, offsets), (other_dims, other_offsets) = (
        take_shapes(index.dims, index.dim_offsets, chosen) for index, chosen in ((one, rows), (two, others))
    )
    same = np.diff(offsets) == np.diff(other_offsets)
    if same.all():
        differing = np.append(0, np.cumsum(dims != other_dims))
        same = differing[offsets[1:]] == differing[offsets[:-1]]
    else:  # rare: compared one by one
        pairs = zip(rows.tolist(), others.tolist(), strict=True)
        same = np.array([one.shape(row) == two.shape(other) for row, other in pairs], np.bool_)
    return rows[same], others[same]
