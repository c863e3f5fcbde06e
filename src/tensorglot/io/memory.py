"""Memory to read into, and the threads that fill it.

Loading is bound by page faults, not by copying. So a large array gets an anonymous
mapping of its own, in huge pages, and is filled by several threads at once. What is
read only to be looked at goes to the same memory again and again. Both start at the
file offset's residue modulo a page: the kernel's copy runs several times slower when
the two differ by a few bytes.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import chain, islice
from typing import TypeVar

import numpy as np

__all__ = ["LARGE_NBYTES", "READ_NBYTES", "Scratch", "allocate", "default_threads", "each", "in_order"]

LARGE_NBYTES = 1 << 20
"""From here on an allocation is a mapping of its own."""
READ_NBYTES = 8 << 20
"""What one thread reads at a time."""

_SMALL_NBYTES = 64 << 10
"""Up to here it does not matter where a copy begins."""
_ALIGNMENT = 16
_PAGE = 4096
_HUGE_PAGE = 2 << 20
_THREADS = "tensorglot"

S = TypeVar("S")
T = TypeVar("T")


def allocate(nbytes: int, offset: int = 0) -> memoryview:
    """Uninitialised, writable memory for `nbytes` that come from `offset` of a file."""
    if nbytes < _SMALL_NBYTES:
        start = offset % _ALIGNMENT
        return np.empty(start + nbytes, np.uint8).data[start:]
    if nbytes < LARGE_NBYTES:
        pages = np.empty(nbytes + _PAGE, np.uint8)
        start = (offset - int(pages.__array_interface__["data"][0])) % _PAGE
        return pages.data[start : start + nbytes]
    residue = offset % _PAGE
    whole = mmap.mmap(-1, nbytes + residue + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -int(np.frombuffer(whole, np.uint8).__array_interface__["data"][0]) % _HUGE_PAGE
    huge = (residue + nbytes) // _HUGE_PAGE * _HUGE_PAGE  # the rest in small pages: not a byte is taken in vain
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        whole.madvise(mmap.MADV_HUGEPAGE, start, huge)
    return memoryview(whole)[start + residue : start + residue + nbytes]


class Scratch:
    """Memory for one piece of a file at a time, up to `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        self._pages = memoryview(mmap.mmap(-1, nbytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def room(self, nbytes: int, offset: int) -> memoryview:
        """For `nbytes` that come from `offset`; what was there before is lost."""
        start = offset % _PAGE
        return self._pages[start : start + nbytes]


def default_threads() -> int:
    """As many as there are processors for us, at most eight: more do not read faster."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@cache
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix=_THREADS)


def each(work: Callable[[T], None], items: Iterable[T], threads: int | None = None) -> None:
    """Calls `work` on every item, on several threads where there are several items. The first error is raised.

    When it returns or raises no work is under way: a caller may close what the work reads from.
    Work that calls this again stays on its own thread: one that waits for others of its pool may wait forever.
    """
    jobs = list(items)
    count = min(default_threads() if threads is None else threads, len(jobs))
    if threading.current_thread().name.startswith(_THREADS):
        count = 1
    if count <= 1:
        for job in jobs:
            work(job)
        return
    futures = [_pool(count, os.getpid()).submit(work, job) for job in jobs]
    try:
        for future in futures:
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures)
        raise


def in_order(work: Callable[[S], T], items: Iterable[S], executor: Executor | None = None) -> Iterator[T]:
    """`work` of each item, in their order, a few items ahead on threads or on the executor given.

    A single item is worked on here: most tensors are small. So is all that is asked for on one of those threads.
    """
    waiting: deque[Future[T]] = deque()
    jobs = iter(items)
    first = list(islice(jobs, 2))
    if len(first) < 2 or threading.current_thread().name.startswith(_THREADS):
        yield from map(work, chain(first, jobs))
        return
    ahead = 2 * default_threads()
    pool = executor or _pool(default_threads(), os.getpid())
    try:
        for job in chain(first, jobs):
            waiting.append(pool.submit(work, job))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
