"""Bounds the total size of a file's datasets by the size of the file.

A byte of the file may belong to only one chunk or contiguous dataset: libhdf5 never shares
bytes. Values without bytes of their own, fill values and further names of a dataset, are
counted and limited.
"""

from __future__ import annotations

import numpy as np

from tensorglot.errors import FormatError, escape
from tensorglot.limits import Limits
from tensorglot.model.index import first_overlap
from tensorglot.model.repeated import check_repeated

__all__ = ["Claims"]


class Claims:
    """The spans and repeated bytes of all datasets of a file of `nbytes` bytes."""

    def __init__(self, nbytes: int, limits: Limits) -> None:
        self._nbytes = nbytes
        self._limits = limits
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._names: list[str] = []
        self._repeated = 0

    def span(self, begin: int, end: int, name: str) -> None:
        """Records bytes of the file that belong to a dataset."""
        self._begins.append(begin)
        self._ends.append(end)
        self._names.append(name)

    def repeat(self, nbytes: int, name: str) -> None:
        """Counts bytes of a dataset that are not in the file, or that another name already has."""
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
