"""Bounds what tensors may have beyond the bytes of their file: views that repeat elements, spans that several share.

A file of a few hundred bytes could otherwise claim terabytes, one name at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError
from tensorglot.limits import Limits
from tensorglot.model.index import Index
from tensorglot.model.payload import Source

__all__ = ["NAMES", "check_repeated", "check_shared"]

SPARE_NBYTES = 1 << 20
"""Allowed in a file of any size."""
NAMES = 64
"""Further names of the same bytes that are allowed whatever these are compressed to."""


def check_repeated(nbytes: int, stored: int, limits: Limits, format: str, tensor: str | None = None) -> None:
    """`nbytes` is what all tensors have beyond the `stored` bytes of the file."""
    if nbytes > SPARE_NBYTES + limits.view_ratio * stored:
        raise LimitError(
            f"tensors repeat the bytes of a file of {stored} to {nbytes} more (Limits.view_ratio)",
            rule=f"{format}.limit.repeated",
            tensor=tensor,
        )


def check_shared(index: Index, stored: int, limits: Limits, format: str, *, expanded: bool = False) -> None:
    """Counts each tensor whose bytes begin inside those of another. `stored` is the size of the file.

    Other files of the index count as large as the bytes that are read from them. `expanded`
    counts only tensors that are larger than what is stored of them.
    """
    shared = alone = 0
    sizes = index.ends - index.begins
    for elsewhere, rows in _rows_by_source(index):
        if expanded:
            larger = [row for row, nbytes in index.decoded_nbytes.items() if nbytes > sizes[row]]
            rows = rows[np.isin(rows, np.array(larger, np.int64), kind="table")]
        order = rows[np.lexsort((-index.ends[rows], index.begins[rows]))]
        inside = np.zeros(len(order), np.bool_)
        inside[1:] = index.begins[order[1:]] < np.maximum.accumulate(index.ends[order])[:-1]
        shared += sum(_nbytes(index, row) for row in order[inside].tolist())
        alone += sum(_nbytes(index, row) for row in order[~inside].tolist())
        if elsewhere:
            stored += int(sizes[order[~inside]].sum())
    check_repeated(shared - NAMES * alone, stored, limits, format)


def _rows_by_source(index: Index) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """The rows in each file, and whether it is another one than that of the index. Rows in memory are left out."""
    if index.payloads is None and not index.sources:
        if (index.begins[1:] < index.ends[:-1]).any():  # else none is inside another
            yield False, np.arange(len(index.dtypes))
        return
    found: dict[Source | None, list[int]] = {}
    for row in range(len(index.dtypes)):
        if index.payloads is None or index.payloads[row] is None:
            found.setdefault(index.sources.get(row), []).append(row)
    for source, rows in found.items():
        yield source is not None, np.array(rows, np.int64)


def _nbytes(index: Index, row: int) -> int:
    found = index.decoded_nbytes.get(row)
    return int(index.ends[row] - index.begins[row]) if found is None else found
