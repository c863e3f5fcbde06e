"""Digests of many rows of a source, about as fast as the hash function itself.

Small rows that are close together are read at once, large ones piece by piece, on several
threads. While one that is larger than a thread's share is hashed, other threads read ahead.
Memory is bounded: a few pieces per thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tensorglot.memory import SCRATCH_NBYTES, Scratch, cut, scratch
from tensorglot.model.payload import Source
from tensorglot.threads import default_threads, for_each, ordered_map
from tensorglot.wire import checksums

__all__ = ["digest_rows"]

READ_NBYTES = 1 << 20
"""Small enough to be in the processor's cache when it is hashed."""
AHEAD = 2
"""Pieces that are read while another one is hashed."""


def digest_rows(
    source: Source,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    algorithm: str,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> NDArray[np.void]:
    """The digest of each row. `advance` is called with the number of bytes hashed, from any thread."""
    sizes = ends - begins
    found = np.empty(len(sizes), f"V{len(checksums.hasher(algorithm).digest())}")
    order = np.argsort(begins, kind="stable")
    small = order[sizes[order] <= READ_NBYTES]
    large = sorted(np.flatnonzero(sizes > READ_NBYTES).tolist(), key=lambda row: -sizes[row])

    def hash_together(rows: NDArray[np.int64]) -> None:
        base, end = int(begins[rows[0]]), int(ends[rows].max())
        with scratch() as memory:
            block = memory.room(end - base, base)
            source.read_into(base, block)
            digests = checksums.digest_rows(algorithm, block, begins[rows] - base, ends[rows] - base)
        found[rows] = np.frombuffer(digests, found.dtype)
        advance(int(sizes[rows].sum()))

    def hash_alone(row: int, *, ahead: bool = False) -> None:
        digest = _read_ahead if ahead else _read_through
        found[row] = np.void(digest(source, int(begins[row]), int(ends[row]), algorithm, advance))

    # A row above one thread's share would be hashed last, by one thread, while the others are idle: it is
    # hashed first, with the other threads reading ahead.
    threads = default_threads()
    share = max(READ_NBYTES, int(sizes.sum()) // threads)
    while threads > 1 and large and sizes[large[0]] > share:
        hash_alone(large.pop(0), ahead=True)
    # Rows that begin in the same READ_NBYTES of the source are one read of at most twice as much.
    windows = np.split(small, np.flatnonzero(np.diff(begins[small] // READ_NBYTES)) + 1) if len(small) else []
    jobs = [*(partial(hash_alone, row) for row in large), *(partial(hash_together, rows) for rows in windows)]
    for_each(lambda job: job(), jobs)
    return found


def _step(source: Source) -> int:
    """What is read at a time; more from a server, which answers several requests at once."""
    return READ_NBYTES if source.concurrency is None else SCRATCH_NBYTES


def _read_through(source: Source, begin: int, end: int, algorithm: str, advance: Callable[[int], None]) -> bytes:
    """The digest of a large row."""
    running = checksums.hasher(algorithm)
    with scratch() as memory:
        for offset, nbytes in cut(end - begin, _step(source)):
            piece = memory.room(nbytes, begin + offset)
            source.read_into(begin + offset, piece)
            running.update(piece)
            advance(nbytes)
    return running.digest()


def _read_ahead(source: Source, begin: int, end: int, algorithm: str, advance: Callable[[int], None]) -> bytes:
    """The same while other threads read ahead."""
    running, step = checksums.hasher(algorithm), _step(source)
    scratches = [Scratch(step) for _ in range(AHEAD + 2)]  # those ahead, the next one, and the one in use

    def read(piece: tuple[int, int]) -> memoryview:
        offset, nbytes = piece
        room = scratches[offset // step % len(scratches)].room(nbytes, begin + offset)
        source.read_into(begin + offset, room)
        return room

    for data in ordered_map(read, cut(end - begin, step), ahead=AHEAD):
        running.update(data)
        advance(len(data))
    return running.digest()
