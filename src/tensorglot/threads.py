"""Thread pools: `for_each` calls a function on every item, `ordered_map` gives the results in order.

Nested calls run inline: a thread that waited for others of its own pool could deadlock.
Requests to servers have a larger pool of their own (`for_each_request`), because they wait
instead of computing; threads of the other pool may wait for them. A forked process has no
threads but the forking one, so pools are kept by process, and a `Lock` is free after a fork.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = [
    "REQUESTS",
    "Executor",
    "Lock",
    "batches",
    "default_threads",
    "for_each",
    "for_each_request",
    "ordered_map",
    "thread_pool",
]

REQUESTS = 32
"""Requests to servers at a time."""
_NAMES = "tensorglot"
_REQUEST_NAMES = "tensorglot-request"

S = TypeVar("S")
T = TypeVar("T")


class Lock:
    """A mutex that is free in a forked process: the thread that may hold it in the parent does not exist there."""

    __slots__ = ("_mutex", "_pid")

    def __init__(self) -> None:
        self._mutex, self._pid = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._mutex, self._pid = threading.Lock(), os.getpid()
        self._mutex.acquire()

    def __exit__(self, *error: object) -> None:
        self._mutex.release()


class Executor(Protocol):
    """An executor of `concurrent.futures`, a Dask client, or any other object with this method."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        """Calls the function elsewhere, and returns a future with the methods `result` and `cancel`."""
        ...


def default_threads() -> int:
    """The number of available processors, at most eight: more do not read faster."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def thread_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads have names that begin with `name`."""
    from concurrent.futures import ThreadPoolExecutor  # imports logging, 7 ms, which opening a file need not wait for

    return ThreadPoolExecutor(threads, thread_name_prefix=name)


@cache
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    return thread_pool(threads, _NAMES)


@cache
def _request_pool(pid: int) -> ThreadPoolExecutor:
    return thread_pool(REQUESTS, _REQUEST_NAMES)


def _in_pool() -> bool:
    return threading.current_thread().name.startswith(_NAMES)


def for_each(work: Callable[[T], None], items: Iterable[T], threads: int | None = None) -> None:
    """Calls `work` on every item, on several threads if there are several items. The first error is raised.

    When it returns or raises, no work is running: the caller may close what the work reads from.
    """
    jobs = list(items)
    count = min(default_threads() if threads is None else threads, len(jobs))
    if _in_pool():
        count = 1
    if count <= 1:
        for job in jobs:
            work(job)
        return
    _run(_pool(count, os.getpid()), work, jobs)


def for_each_request(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Calls `work`, which waits for a server, on the threads for requests. `work` must not call this module."""
    jobs = list(items)
    if len(jobs) < 2 or threading.current_thread().name.startswith(_REQUEST_NAMES):
        for job in jobs:
            work(job)
    else:
        _run(_request_pool(os.getpid()), work, jobs)


def _run(pool: Executor, work: Callable[[T], None], jobs: Iterable[T]) -> None:
    futures: list[Future[None]] = []
    try:
        for job in jobs:
            futures.append(pool.submit(work, job))
        for future in futures:
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        from concurrent.futures import wait

        wait(futures)
        raise


def batches(
    items: Iterable[T], nbytes_of: Callable[[T], int], nbytes: int, count: int | None = None
) -> Iterator[list[T]]:
    """Groups consecutive items, for one thread each, up to `nbytes` bytes and `count` items.

    A single item with more bytes is a group of its own.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        size = nbytes_of(item)
        if batch and (total + size > nbytes or len(batch) == count):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch


def ordered_map(
    work: Callable[[S], T], items: Iterable[S], *, executor: Executor | None = None, ahead: int | None = None
) -> Iterator[T]:
    """The results of `work` in the order of the items, computed ahead on threads or on the executor.

    At most `ahead` results are computed before they are requested. A single item runs inline.
    After the iterator is closed, no further work starts.
    """
    waiting: deque[Any] = deque()
    jobs = iter(items)
    first = list(islice(jobs, 2))
    if len(first) < 2 or _in_pool():
        yield from map(work, chain(first, jobs))
        return
    enough = default_threads() + 2
    most = enough if ahead is None else min(ahead, enough)
    pool = executor or _pool(min(default_threads(), most + 1), os.getpid())
    try:
        for job in chain(first, jobs):
            waiting.append(pool.submit(work, job))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
