"""Memory that grows while a column is filled, without holding it twice.

A small column is copied when it grows. A large one is an anonymous mapping that mremap
extends in place or moves by its page tables; pages that were never written cost nothing.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.kernels.varint_decode import Column

__all__ = ["GrowableBuffer"]

LARGE_NBYTES = 4 << 20
HUGE_PAGE = 2 << 20
"""The memory in use begins at a multiple of this, so that the OS can back it with huge pages: fewer page faults."""


class GrowableBuffer:
    """The memory of one column. The kernel writes to it until it is full; then `grow` is called."""

    def __init__(self, dtype: Any, fill: int = 0) -> None:
        """Begins with `fill` zeros."""
        self.dtype = np.dtype(dtype)
        self.memory: NDArray[Any] = np.zeros(fill, self.dtype)
        self.column = Column()
        self.mapping: mmap.mmap | None = None
        self.shift = 0
        self.lend(fill)

    def lend(self, fill: int) -> None:
        self.column.lend(self.memory, fill)

    def grow(self, capacity: int) -> None:
        """Grows to `capacity` elements and keeps the existing ones."""
        fill = self.column.filled()
        if capacity * self.dtype.itemsize < LARGE_NBYTES:
            memory = np.empty(capacity, self.dtype)
            memory[:fill] = self.memory[:fill]
            self.memory = memory
        else:
            self._map(capacity, fill)
        self.lend(fill)

    def _map(self, capacity: int, fill: int) -> None:
        nbytes = capacity * self.dtype.itemsize + HUGE_PAGE
        nbytes += -nbytes % mmap.PAGESIZE
        if self.mapping is None:
            self.mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                self.mapping.madvise(mmap.MADV_HUGEPAGE)
            self.shift = -np.frombuffer(self.mapping, np.uint8).ctypes.data % HUGE_PAGE
            memory: NDArray[Any] = np.frombuffer(self.mapping, self.dtype, capacity, self.shift)
            memory[:fill] = self.memory[:fill]
            self.memory = memory
        else:
            # A mapping cannot be resized while an array or the kernel refers to its memory.
            self.memory = np.zeros(0, self.dtype)
            self.column.lend(self.memory, 0)
            self._extend(self.mapping, nbytes)
            self.memory = np.frombuffer(self.mapping, self.dtype, capacity, self.shift)

    def _extend(self, mapping: mmap.mmap, nbytes: int) -> None:
        try:
            mapping.resize(nbytes)
        except SystemError:  # a system without mremap
            self.mapping = mmap.mmap(-1, nbytes)
            self.mapping[: len(mapping)] = mapping[:]

    def array(self) -> NDArray[Any]:
        """The elements filled in so far."""
        return self.memory[: self.column.filled()]
