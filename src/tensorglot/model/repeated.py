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

__all__ = ["NAMES", "check_repeated", "check_shared", "share_too_much"]

SPARE_NBYTES = 1 << 20
"""Allowed in a file of any size."""
SHARED_SPARE_NBYTES = 16 << 30
"""The same where a format requires that equal contents are stored once."""
_INT64_MAX = (1 << 63) - 1
NAMES = 64
"""Further names of the same bytes that are allowed whatever these are compressed to."""


def check_repeated(
    nbytes: int, stored: int, limits: Limits, format: str, tensor: str | None = None, spare: int = SPARE_NBYTES
) -> None:
    """`nbytes` is what all tensors have beyond the `stored` bytes of the file."""
    if nbytes > spare + limits.view_ratio * stored:
        raise LimitError(
            f"tensors repeat the bytes of a file of {stored} to {nbytes} more (Limits.view_ratio)",
            rule=f"{format}.limit.repeated",
            tensor=tensor,
        )


def share_too_much(shared: int, alone: int, limits: Limits) -> bool:
    """Whether `check_shared` refuses tensors of `shared` bytes that are names of `alone` others, all raw."""
    return shared - NAMES * alone > SHARED_SPARE_NBYTES + limits.view_ratio * alone


def check_shared(index: Index, stored: int, limits: Limits, format: str, *, raw_freely: bool = False) -> None:
    """Counts each tensor whose bytes begin inside those of another. `stored` is the size of the file.

    Other files of the index count as large as the bytes that are read from them. With
    `raw_freely` tensors count only if they are larger than what is stored of them; all of
    them together have a bound that only a file made for it exceeds.
    """
    groups = list(_rows_by_source(index))
    if not groups:
        return
    sizes = index.ends - index.begins
    if raw_freely:
        shared, alone, _ = _count(index, groups)
        check_repeated(shared - NAMES * alone, alone, limits, format, spare=SHARED_SPARE_NBYTES)
        larger = np.array([row for row, nbytes in index.decoded_nbytes.items() if nbytes > sizes[row]], np.int64)
        if not larger.size:
            return
        groups = [(elsewhere, rows[np.isin(rows, larger, kind="table")]) for elsewhere, rows in groups]
    shared, alone, other = _count(index, groups)
    check_repeated(shared - NAMES * alone, stored + other, limits, format)


def _count(index: Index, groups: list[tuple[bool, NDArray[np.int64]]]) -> tuple[int, int, int]:
    """Bytes of tensors that begin inside another, those of all others, and stored bytes of these in other files."""
    shared = alone = other = 0
    stored = index.ends - index.begins
    sizes = stored.copy()
    for row, nbytes in index.decoded_nbytes.items():
        sizes[row] = min(nbytes, _INT64_MAX)
    for elsewhere, rows in groups:
        order = rows[np.lexsort((-index.ends[rows], index.begins[rows]))]
        inside = np.zeros(len(order), np.bool_)
        inside[1:] = index.begins[order[1:]] < np.maximum.accumulate(index.ends[order])[:-1]
        shared += _total(sizes[order[inside]])
        alone += _total(sizes[order[~inside]])
        if elsewhere:
            other += _total(stored[order[~inside]])
    return shared, alone, other


def _total(sizes: NDArray[np.int64]) -> int:
    """A sum that may exceed 64 bits."""
    return (int((sizes >> 32).sum()) << 32) + int((sizes & 0xFFFFFFFF).sum())


def _rows_by_source(index: Index) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """The rows in each file, and whether it is another one than that of the index. Rows in memory are left out."""
    if index.payloads is None and not index.sources:
        begins, ends = index.begins, index.ends
        if np.count_nonzero(begins[1:] < ends[:-1]):
            order = begins.argsort(kind="stable")
            if np.count_nonzero(begins[order[1:]] < ends[order[:-1]]):  # else none is inside another
                yield False, order
        return
    found: dict[Source | None, list[int]] = {}
    for row in range(len(index.dtypes)):
        if index.payloads is None or index.payloads[row] is None:
            found.setdefault(index.sources.get(row), []).append(row)
    for source, rows in found.items():
        yield source is not None, np.array(rows, np.int64)
