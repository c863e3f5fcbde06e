"""Bounds what tensors may have beyond the bytes of their file: views that repeat elements, spans that several share.

A file of a few hundred bytes could otherwise claim terabytes, one name at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError
from tensorglot.limits import Limits

__all__ = ["check_repeated", "shared_nbytes"]

SPARE_NBYTES = 1 << 20
"""Allowed in a file of any size."""


def check_repeated(nbytes: int, stored: int, limits: Limits, format: str, tensor: str | None = None) -> None:
    """`nbytes` is what all tensors so far have beyond the `stored` bytes of the file."""
    if nbytes > SPARE_NBYTES + limits.view_ratio * stored:
        raise LimitError(
            f"tensors repeat the bytes of a file of {stored} to {nbytes} more (Limits.view_ratio)",
            rule=f"{format}.limit.repeated",
            tensor=tensor,
        )


def shared_nbytes(begins: NDArray[np.int64], ends: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """The sizes of all rows whose span begins inside that of another row, which is counted once."""
    order = np.lexsort((-ends, begins))
    begins, ends = begins[order], ends[order]
    inside = begins[1:] < np.maximum.accumulate(ends)[:-1]
    return sum(sizes[order][1:][inside].tolist())
