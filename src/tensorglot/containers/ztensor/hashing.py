"""Checksums of bytes on their way into a file, computed by another thread while they are written.

The index stands last in every version, so a checksum may be known late. What is to be
copied by the operating system is read a second time, in pieces, by that thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tensorglot.memory import scratch
from tensorglot.model.payload import Chunk, Span, as_bytes
from tensorglot.threads import default_threads
from tensorglot.wire import checksums

__all__ = ["HashingThread", "RowHasher", "hash_chunk"]

_THREAD_NBYTES = 1 << 20
"""Files with less to hash need no other thread."""
_BATCH_NBYTES = 4 << 20
"""What is handed over at a time."""
_AHEAD = 2
"""Batches that may wait; they keep the memory of their chunks."""
_READ_NBYTES = 1 << 20
"""Few enough to stay in the processor's cache between being read and being hashed."""


class Takes(Protocol):
    """A hasher, or what passes bytes on to several."""

    def update(self, data: memoryview, /) -> None: ...


class HashingThread:
    """Hashes chunks in the order in which they come. They must not change until it is finished."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` is about what there is to hash in all."""
        threaded = nbytes >= _THREAD_NBYTES and default_threads() > 1
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tensorglot-hash") if threaded else None
        self._batch: list[tuple[Takes, Chunk]] = []
        self._batch_nbytes = 0
        self._waiting: deque[Future[None]] = deque()

    def update(self, hasher: Takes, chunk: Chunk) -> None:
        if self._pool is None:
            hash_chunk(hasher, chunk)
            return
        self._batch.append((hasher, chunk))
        self._batch_nbytes += chunk.nbytes if isinstance(chunk, Span) else len(chunk)
        if self._batch_nbytes >= _BATCH_NBYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._pool is not None:
            self._waiting.append(self._pool.submit(_hash_batch, self._batch))
        self._batch, self._batch_nbytes = [], 0
        while len(self._waiting) > _AHEAD:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """When it returns, everything is hashed."""
        self._hand_over()
        while self._waiting:
            self._waiting.popleft().result()

    def __enter__(self) -> HashingThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _hash_batch(batch: list[tuple[Takes, Chunk]]) -> None:
    for hasher, chunk in batch:
        hash_chunk(hasher, chunk)


def hash_chunk(hasher: Takes, chunk: Chunk) -> None:
    """Hashes a chunk; one that is a span is read piece by piece."""
    if not isinstance(chunk, Span):
        hasher.update(as_bytes(chunk))
        return
    shared = chunk.view()
    if shared is not None:
        hasher.update(shared)
        return
    with scratch() as memory:
        for start in range(0, chunk.nbytes, _READ_NBYTES):
            piece = memory.room(min(_READ_NBYTES, chunk.nbytes - start), chunk.begin + start)
            chunk.read_into(start, piece)
            hasher.update(piece)


class RowHasher:
    """Checksums of rows that lie one behind the other in what it takes; what is between them is passed over."""

    def __init__(self, algorithm: str, begins: NDArray[np.int64], ends: NDArray[np.int64], position: int) -> None:
        self._algorithm = algorithm
        self._begins: list[int] = begins.tolist()
        self._ends: list[int] = ends.tolist()
        self._position = position
        self._running: checksums.Hasher | None = None
        """Of the row at hand, if some of it was taken before."""
        self._digests: list[bytes] = []

    def update(self, data: memoryview, /) -> None:
        base, end = self._position, self._position + len(data)
        if self._running is not None:
            row_end = self._ends[len(self._digests)]
            self._running.update(data[: row_end - base])
            if row_end > end:
                self._position = end
                return
            self._digests.append(self._running.digest())
            self._running = None
        first = len(self._digests)
        last = bisect_right(self._ends, end, first)
        digest = checksums.one_shot(self._algorithm)
        spans = zip(self._begins[first:last], self._ends[first:last], strict=True)
        self._digests += [digest(data[begin - base : row_end - base]) for begin, row_end in spans]
        if last < len(self._begins) and self._begins[last] < end:
            self._running = checksums.hasher(self._algorithm)
            self._running.update(data[self._begins[last] - base :])
        self._position = end

    @property
    def digests(self) -> list[bytes]:
        """Of all rows, now that everything was taken."""
        nothing = checksums.one_shot(self._algorithm)(memoryview(b""))  # rows without bytes behind the last byte
        return self._digests + [nothing] * (len(self._begins) - len(self._digests))
