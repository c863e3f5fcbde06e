"""Filling memory from many places of a file, on several threads.

A large piece is read in parts, small ones many to a thread. Small runs with little
between them are read in one, and each is copied out of it. Whoever wants to look at
the bytes while they are in the processor's cache is told as they come. Knows no tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import TruncatedError
from tensorglot.kernels.gather import gather
from tensorglot.memory import READ_NBYTES, cut
from tensorglot.model.payload import Source
from tensorglot.threads import for_each

__all__ = ["InOrder", "Piece", "Runs", "fill"]

BATCH = 256
"""Small reads that one thread does in a row."""
SIEVE_NBYTES = 8 << 10
"""Up to this much of a file is read for each of many small runs, rather than every one by itself."""
FOLLOWED_NBYTES = 4 << 20
"""What one thread reads at a time where somebody follows: two of them read, and take turns at the looking."""


class InOrder:
    """Follows memory that several threads fill in pieces, from its beginning on, one thread at a time.

    Whoever has filled the next piece in order calls `follow` with how far all is filled
    now; who is ahead goes on reading, and what they have filled is followed later.
    """

    def __init__(self, follow: Callable[[int], None]) -> None:
        self._follow = follow
        self._ends: dict[int, int] = {}
        self._reached = 0
        self._turn = threading.Lock()

    def filled(self, begin: int, end: int) -> None:
        self._ends[begin] = end
        # Who sees the turn taken may go: its owner looks again after giving it back.
        while self._reached in self._ends and self._turn.acquire(blocking=False):
            try:
                while (end := self._ends.pop(self._reached, -1)) >= 0:
                    self._follow(end)
                    self._reached = end
            finally:
                self._turn.release()


@dataclass(frozen=True, slots=True)
class Piece:
    """Memory for the bytes from an offset of a file on."""

    begin: int
    memory: memoryview
    follower: InOrder | None = None
    start: int = 0
    """Where this is in what the follower follows."""

    @property
    def nbytes(self) -> int:
        return len(self.memory)

    def cut(self, nbytes: int) -> list[Piece]:
        """The same in pieces of at most `nbytes`."""
        return [
            Piece(self.begin + offset, self.memory[offset : offset + size], self.follower, self.start + offset)
            for offset, size in cut(self.nbytes, nbytes)
        ]

    def fill(self, source: Source) -> None:
        source.read_into(self.begin, self.memory)
        if self.follower is not None:
            self.follower.filled(self.start, self.start + self.nbytes)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of bytes of a file, in its order, and where they go in one piece of memory."""

    buffer: memoryview
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    follow: Callable[[int, int], None] | None = None
    """Told the first and the last of the runs that have been filled."""
    first: int = 0

    def batch(self, start: int) -> Runs:
        rows = slice(start, start + BATCH)
        return Runs(
            self.buffer, self.begins[rows], self.sizes[rows], self.offsets[rows], self.follow, self.first + start
        )

    def fill(self, source: Source) -> None:
        if not self._sieved(source):
            for begin, nbytes, offset in zip(
                self.begins.tolist(), self.sizes.tolist(), self.offsets.tolist(), strict=True
            ):
                source.read_into(begin, self.buffer[offset : offset + nbytes])
        if self.follow is not None:
            self.follow(self.first, self.first + len(self.begins))

    def _sieved(self, source: Source) -> bool:
        """Small runs with little between them: one read of all."""
        first, last = int(self.begins[0]), int((self.begins + self.sizes).max())
        if len(self.begins) < 4 or last - first > len(self.begins) * SIEVE_NBYTES:
            return False
        span = np.empty(last - first, np.uint8)
        try:
            source.read_into(first, span.data)
        except TruncatedError:
            return False  # which run it is that is missing, its own read will tell
        return gather(span, self.begins - first, self.sizes, self.buffer, self.offsets)


def fill(source: Source, pieces: Iterable[Piece], scattered: Iterable[Runs], threads: int | None) -> None:
    """Fills every piece, and the memory of all runs."""
    jobs = [partial(_fill, source, job) for job in _jobs(pieces)]
    jobs += [partial(runs.batch(a).fill, source) for runs in scattered for a in range(0, len(runs.begins), BATCH)]
    for_each(lambda job: job(), jobs, threads)


def _fill(source: Source, pieces: list[Piece]) -> None:
    for piece in pieces:
        piece.fill(source)


def _jobs(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """What one thread does: part of a large piece, or many small ones."""
    jobs: list[list[Piece]] = []
    room = count = 0
    for piece in pieces:
        most = READ_NBYTES if piece.follower is None else FOLLOWED_NBYTES
        if piece.nbytes <= most:
            if piece.nbytes > room or count >= BATCH or not jobs:
                jobs.append([])
                room, count = READ_NBYTES, 0
            jobs[-1].append(piece)
            room -= piece.nbytes
            count += 1
            continue
        jobs += [[part] for part in piece.cut(most)]
        room = 0
    return jobs
