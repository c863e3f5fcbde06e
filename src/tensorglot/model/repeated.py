"""Bounds the total size of tensors that repeat elements (stride 0) or share spans of their file.

A file of a few hundred bytes could otherwise describe terabytes, one name at a time.
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


def share_too_much(shared: int, alone: int, limits: Limits) -> bool:
    """Whether `check_shared` would refuse raw tensors of `shared` bytes that all lie in `alone` bytes of others."""
    return shared - NAMES * alone > SHARED_SPARE_NBYTES + limits.view_ratio * alone


def check_shared(index: Index, stored: int, limits: Limits, format: str, *, raw_freely: bool = False) -> None:
    """Bounds the tensors whose bytes begin inside another tensor's. `stored` is the size of the file.

    Other files that the index refers to count with the bytes that tensors read from them. With
    `raw_freely` the usual bound applies only to tensors that decode to more than their stored
    bytes; all shared tensors together then have a bound that no honest file exceeds.
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
    """Decoded bytes of rows that begin inside another, of all other rows, and stored bytes of the latter elsewhere."""
    shared = alone = other = 0
    stored = index.ends - index.begins
    sizes = stored.copy()
    for row, nbytes in index.decoded_nbytes.items():
        sizes[row] = min(nbytes, _INT64_MAX)
    for elsewhere, rows in groups:
        # By begin, longer rows first: a row shares bytes if it begins before the furthest end so far.
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
    """For each file its rows, and whether it is another file than the index's. Rows in memory are left out."""
    if index.payloads is None and not index.sources:
        begins, ends = index.begins, index.ends
        if np.count_nonzero(begins[1:] < ends[:-1]):  # rows in order without overlap, the common case, share nothing
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
