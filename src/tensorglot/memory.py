"""Memory to read into.

Page faults, not copying, take most of the time of loading. So a large array gets its own
anonymous mapping in huge pages, and bytes that are only hashed or scanned go to scratch
memory that is reused. The address of both is congruent to the file offset modulo a page:
the OS copies several times slower if source and target are misaligned to each other.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

__all__ = [
    "ALONE_NBYTES",
    "LARGE_NBYTES",
    "READ_NBYTES",
    "SCRATCH_NBYTES",
    "SLAB_NBYTES",
    "SMALL_NBYTES",
    "SPARE_NBYTES",
    "Scratch",
    "Slab",
    "allocate",
    "cut",
    "regroup",
    "scratch",
]

LARGE_NBYTES = 1 << 20
"""Allocations from this size on are separate mappings."""
READ_NBYTES = 8 << 20
"""What one thread reads at a time."""
SCRATCH_NBYTES = 4 << 20
"""The size of a thread's scratch memory."""
ALONE_NBYTES = 4 << 20
"""Tensors from this size on are allocated separately."""
SLAB_NBYTES = 32 << 20
"""Smaller ones that are loaded together share slabs of about this size: an array keeps at most that much alive."""
SPARE_NBYTES = 16 << 20
"""The most unused memory, of all tensors that are loaded together, at the ends of their huge pages."""
SMALL_NBYTES = 64 << 10
"""Below this, the alignment of a copy does not matter."""

_ALIGNMENT = 16
_CACHE_LINE = 64
_PAGE = 4096
_HUGE_PAGE = 2 << 20


def cut(nbytes: int, piece: int) -> Iterator[tuple[int, int]]:
    """Offset and size of each piece of a span; the last piece may be shorter."""
    for offset in range(0, nbytes, piece):
        yield offset, min(piece, nbytes - offset)


def regroup(chunks: Iterable[bytes | bytearray | memoryview], nbytes: int) -> Iterator[memoryview]:
    """The same bytes in pieces of `nbytes`, the last one shorter. Only pieces that span chunks are copied."""
    gathered = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        if gathered:
            taken = view[: nbytes - len(gathered)]
            gathered += taken
            view = view[len(taken) :]
            if len(gathered) < nbytes:
                continue
            yield memoryview(gathered)
            gathered = bytearray()
        whole = len(view) - len(view) % nbytes
        for start in range(0, whole, nbytes):
            yield view[start : start + nbytes]
        gathered += view[whole:]
    if gathered:
        yield memoryview(gathered)


def allocate(nbytes: int, offset: int = 0, spare: int = 0) -> memoryview:
    """Uninitialised, writable memory for `nbytes` bytes that will be read from `offset` of a file.

    It ends in a huge page if at most `spare` bytes of that are unused, and otherwise in small pages.
    """
    if nbytes < SMALL_NBYTES:
        start = offset % _ALIGNMENT
        if nbytes <= _PAGE:  # zeros take fewer instructions than NumPy's description of a buffer
            return memoryview(bytearray(start + nbytes))[start:]
        return np.empty(start + nbytes, np.uint8).data[start:]
    if nbytes < LARGE_NBYTES:
        pages = np.empty(nbytes + _PAGE, np.uint8)
        start = (offset - int(pages.__array_interface__["data"][0])) % _PAGE
        return pages.data[start : start + nbytes]
    residue = offset % _PAGE
    # Small pages waste no memory, but a rest of 1 MiB in them is 256 faults instead of one.
    huge = (residue + nbytes + min(spare, nbytes // 8, _HUGE_PAGE // 2)) // _HUGE_PAGE * _HUGE_PAGE
    room = max(huge, residue + nbytes) + _HUGE_PAGE
    whole = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -int(np.frombuffer(whole, np.uint8).__array_interface__["data"][0]) % _HUGE_PAGE
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        whole.madvise(mmap.MADV_HUGEPAGE, start, huge)
    return memoryview(whole)[start + residue : start + residue + nbytes]


class Slab(threading.local):
    """Memory for arrays that are read one by one. Large arrays are allocated separately, others share huge pages.

    With small pages, page faults cost more than the reading: 1,000 tensors of half a
    megabyte take 300 ms of processor time, and 110 ms in huge pages. Each thread has its own.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._pages = memoryview(bytearray())
        self._used = 0

    @classmethod
    def for_arrays(cls, sizes: Sequence[int]) -> Slab:
        """A slab with room for arrays of these sizes and the gaps between them, at most SLAB_NBYTES."""
        return cls(min(SLAB_NBYTES, sum(sizes) + _PAGE * len(sizes)))

    def take(self, nbytes: int, offset: int = 0) -> memoryview:
        """Like `allocate`, from the slab if `nbytes` is small."""
        if nbytes >= ALONE_NBYTES:
            return allocate(nbytes, offset)
        alignment = _PAGE if nbytes >= SMALL_NBYTES else _CACHE_LINE
        start = self._used + (offset - self._used) % alignment
        if start + nbytes > len(self._pages):
            start = offset % alignment
            self._pages = allocate(max(start + nbytes, self._nbytes))
        self._used = start + nbytes
        return self._pages[start : self._used]


class Scratch:
    """Memory for one piece of a file at a time, up to `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        self._pages = memoryview(mmap.mmap(-1, nbytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def room(self, nbytes: int, offset: int) -> memoryview:
        """Memory for `nbytes` from `offset` of a file."""
        start = offset % _PAGE
        return self._pages[start : start + nbytes]


class _Kept(threading.local):
    """Scratch memory of a thread that is not in use at the moment."""

    def __init__(self) -> None:
        self.free: list[Scratch] = []


_kept = _Kept()


@contextmanager
def scratch() -> Iterator[Scratch]:
    """Scratch memory of this thread, reused because pages that are already mapped are fast.

    A nested call gets other memory.
    """
    free = _kept.free
    mine = free.pop() if free else Scratch(SCRATCH_NBYTES)
    try:
        yield mine
    finally:
        free.append(mine)
