"""Computes checksums on another thread while the bytes are written.

In every version the index comes last, so checksums are needed only at the end. Spans that
are copied by the OS (copy_file_range) are read once more, in pieces, by that thread.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorglot.memory import scratch
from tensorglot.model.payload import Chunk, Span, as_bytes
from tensorglot.threads import default_threads, thread_pool
from tensorglot.wire import checksums

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["HashingThread", "RowHasher", "hash_chunk"]

_THREAD_NBYTES = 1 << 20
"""Less than this is hashed on the calling thread."""
_BATCH_NBYTES = 4 << 20
"""Size of the batches for the thread."""
_AHEAD = 2
"""The most batches in the queue. They keep their chunks in memory."""
_READ_NBYTES = 1 << 20
"""Bytes of a span that are read at a time: they stay in the processor's cache between reading and hashing."""


class Updatable(Protocol):
    """A hasher, or a RowHasher."""

    def update(self, data: memoryview, /) -> None: ...


class HashingThread:
    """Hashes chunks in order. Their memory must not change before `finish`."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` is the approximate total size."""
        threaded = nbytes >= _THREAD_NBYTES and default_threads() > 1
        self._pool = thread_pool(1, "tensorglot-hash") if threaded else None
        self._batch: list[tuple[Updatable, Chunk]] = []
        self._batch_nbytes = 0
        self._waiting: deque[Future[None]] = deque()

    def update(self, hasher: Updatable, chunk: Chunk) -> None:
        if self._pool is None:
            hash_chunk(hasher, chunk)
            return
        self._batch.append((hasher, chunk))
        self._batch_nbytes += chunk.nbytes if isinstance(chunk, Span) else len(chunk)
        if self._batch_nbytes >= _BATCH_NBYTES:
            self._submit()

    def _submit(self) -> None:
        if self._pool is not None:
            self._waiting.append(self._pool.submit(_hash_batch, self._batch))
        self._batch, self._batch_nbytes = [], 0
        while len(self._waiting) > _AHEAD:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Waits until everything is hashed."""
        self._submit()
        while self._waiting:
            self._waiting.popleft().result()

    def __enter__(self) -> HashingThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _hash_batch(batch: list[tuple[Updatable, Chunk]]) -> None:
    for hasher, chunk in batch:
        hash_chunk(hasher, chunk)


def hash_chunk(hasher: Updatable, chunk: Chunk) -> None:
    """Hashes a chunk; a span is read piece by piece."""
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
    """Computes the checksum of each row in a stream of bytes, which begins at `position`; skips bytes between rows."""

    def __init__(self, algorithm: str, begins: NDArray[np.int64], ends: NDArray[np.int64], position: int) -> None:
        self._algorithm = algorithm
        self._begins = begins
        self._ends = ends
        self._position = position
        self._done = 0
        """Rows whose digests are complete."""
        self._running: checksums.Hasher | None = None
        """Hasher of the current row, if it began in an earlier chunk."""
        self._digests = bytearray()

    def update(self, data: memoryview, /) -> None:
        base, end = self._position, self._position + len(data)
        self._position = end
        if self._running is not None:
            row_end = int(self._ends[self._done])
            self._running.update(data[: row_end - base])
            if row_end > end:
                return
            self._add(1, self._running.digest())
            self._running = None
        first, last = self._done, int(np.searchsorted(self._ends, end, "right"))
        starts, stops = self._begins[first:last] - base, self._ends[first:last] - base
        self._add(last - first, checksums.digest_rows(self._algorithm, data, starts, stops))
        if last < len(self._begins) and self._begins[last] < end:
            self._running = checksums.hasher(self._algorithm)
            self._running.update(data[int(self._begins[last]) - base :])

    def _add(self, count: int, digests: bytes) -> None:
        self._done += count
        self._digests += digests

    def digests(self) -> bytes:
        """The digests of all rows, concatenated; to be called when all bytes have been hashed."""
        empty = len(self._begins) - self._done  # rows without bytes, after the last byte
        self._add(empty, checksums.digest_each(self._algorithm, [memoryview(b"")] * empty))
        return bytes(self._digests)
