"""What the datasets of a file claim of it, so that all of them together are bounded by its size.

A byte of the file belongs to one chunk or one contiguous dataset: libhdf5 shares none.
What takes no bytes of its own, fill values and further names of a dataset, is counted and
limited.
"""

from __future__ import annotations

import numpy as np

from tensorglot.errors import FormatError, escape
from tensorglot.limits import Limits
from tensorglot.model.index import first_overlap
from tensorglot.model.repeated import check_repeated

__all__ = ["Claims"]


class Claims:
    """Of all datasets of a file of `nbytes`."""

    def __init__(self, nbytes: int, limits: Limits) -> None:
        self._nbytes = nbytes
        self._limits = limits
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._names: list[str] = []
        self._repeated = 0

    def span(self, begin: int, end: int, name: str) -> None:
        """Bytes of the file that belong to a dataset."""
        self._begins.append(begin)
        self._ends.append(end)
        self._names.append(name)

    def repeat(self, nbytes: int, name: str) -> None:
        """Bytes of a dataset that are not in the file, or a second time."""
        self._repeated += nbytes
        check_repeated(self._repeated, self._nbytes, self._limits, "hdf5", name)

    def check_spans(self) -> None:
        clash = first_overlap(np.array(self._begins, np.int64), np.array(self._ends, np.int64), same=False)
        if clash is not None:
            one, other = clash
            raise FormatError(
                f"its bytes overlap those of '{escape(self._names[one])}'",
                rule="hdf5.data.overlap",
                offset=self._begins[other],
                tensor=self._names[other],
            )
