"""Bounds the total size of tensors that repeat elements (stride 0) or share spans of their file.

A file of a few hundred bytes could otherwise describe terabytes, one name at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.index import Index
from tensorglot.model.payload import Source

__all__ = ["NAMES", "check_repeated", "check_shared", "share_too_much"]

SPARE_NBYTES = 1 << 20
"""Excess that is always allowed, whatever the size of the file."""
SHARED_SPARE_NBYTES = 16 << 30
"""The same for formats that require equal contents to be stored once."""
_INT64_MAX = (1 << 63) - 1
NAMES = 64
"""Names for the same bytes that are always allowed, even if the bytes are compressed."""


def check_repeated(
    nbytes: int, stored: int, limits: Limits, format: str, tensor: str | None = None, spare: int = SPARE_NBYTES
) -> None:
    """Raises LimitError if all tensors together exceed the `stored` bytes of the file by too much, `nbytes`."""
    if nbytes > spare + limits.view_ratio * stored:
        raise LimitError(
            f"tensors that share or repeat bytes exceed the file's {stored} bytes by {nbytes} (Limits.view_ratio)",
            rule=f"{format}.limit.repeated",
            tensor=tensor,
        )


def share_too_much(shared: int, alone: int) -> bool:
    """Whether `check_shared`, by default, would refuse raw tensors of `shared` bytes that all lie in `alone` others."""
    return shared - NAMES * alone > SHARED_SPARE_NBYTES + DEFAULT.view_ratio * alone


def check_shared(index: Index, stored: int, limits: Limits, format: str, *, raw_freely: bool = False) -> None:
    """Bounds the tensors whose bytes begin inside another tensor's. `stored` is the size of the file.

    Other files that the index refers to count with the bytes that tensors read from them. With
    `raw_freely` the usual bound applies only to tensors that decode to more than their stored
    bytes; all shared tensors together then have a bound that no honest file exceeds.
    """
    found = _rows_to_compare(index)
    if found is None:
        return
    rows, files = found
    sizes = index.ends - index.begins
    if raw_freely:
        shared, alone, _ = _count(index, rows, files)
        check_repeated(shared - NAMES * alone, alone, limits, format, spare=SHARED_SPARE_NBYTES)
        larger = np.array([row for row, nbytes in index.decoded_nbytes.items() if nbytes > sizes[row]], np.int64)
        if not larger.size:
            return
        kept = np.isin(rows, larger, kind="table")
        rows, files = rows[kept], files[kept]
    shared, alone, other = _count(index, rows, files)
    check_repeated(shared - NAMES * alone, stored + other, limits, format)


def _count(index: Index, rows: NDArray[np.int64], files: NDArray[np.int64]) -> tuple[int, int, int]:
    """Decoded bytes of the rows that begin inside another row, decoded bytes of all other rows, and of these others the
    stored bytes that are in other files."""
    stored = index.ends - index.begins
    sizes = stored.copy()
    for row, nbytes in index.decoded_nbytes.items():
        sizes[row] = min(nbytes, _INT64_MAX)
    # By file and begin, longer rows first: a row shares bytes if it begins before the furthest end so far in its file.
    order = np.lexsort((-index.ends[rows], index.begins[rows], files))
    rows, files = rows[order], files[order]
    ends, ranks = np.unique(index.ends[rows], return_inverse=True)
    # Ends as their ranks, above all of the files before: the largest so far is one of the same file, for all files.
    furthest = np.maximum.accumulate(files * len(rows) + ranks.reshape(-1))
    inside = np.zeros(len(rows), np.bool_)
    inside[1:] = (files[1:] == files[:-1]) & (index.begins[rows[1:]] < ends[furthest[:-1] % max(1, len(rows))])
    return _total(sizes[rows[inside]]), _total(sizes[rows[~inside]]), _total(stored[rows[~inside & (files > 0)]])


def _total(sizes: NDArray[np.int64]) -> int:
    """A sum that may exceed 64 bits."""
    return (int((sizes >> 32).sum()) << 32) + int((sizes & 0xFFFFFFFF).sum())


def _rows_to_compare(index: Index) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Rows and the number of the file of each, 0 for the index's; None if no row can share bytes with another.

    Rows in memory are left out.
    """
    if index.payloads is None and not index.sources:
        begins, ends = index.begins, index.ends
        if np.count_nonzero(begins[1:] < ends[:-1]):  # rows in order without overlap, the common case, share nothing
            order = begins.argsort(kind="stable")
            if np.count_nonzero(begins[order[1:]] < ends[order[:-1]]):  # else none is inside another
                return order, np.zeros(len(order), np.int64)
        return None
    numbers: dict[Source, int] = {}
    files = np.zeros(len(index.dtypes), np.int64)
    for row, source in index.sources.items():
        files[row] = numbers.setdefault(source, len(numbers) + 1)
    if index.payloads is None:
        return np.arange(len(files)), files
    rows = np.array([row for row, payload in enumerate(index.payloads) if payload is None], np.int64)
    return rows, files[rows]
