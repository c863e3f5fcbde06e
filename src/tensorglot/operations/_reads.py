"""Fills memory from many places of a file, on several threads. Knows no tensor.

A large piece is read in parts, small ones in batches. Small runs with short gaps are
read at once and copied out. A follower is called while the bytes are still in the
processor's cache: to hash them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import TruncatedError
from tensorglot.kernels.gather import gather
from tensorglot.memory import READ_NBYTES, cut, scratch
from tensorglot.model.lazy_source import LazySource
from tensorglot.model.payload import BatchSource, Source
from tensorglot.threads import for_each
from tensorglot.tuples import NamedTuple

__all__ = ["InOrder", "Piece", "Runs", "fill"]

BATCH = 256
"""Small reads in one job."""
SIEVE_NBYTES = 8 << 10
"""Small runs are read at once if that reads at most this much for each of them."""
FOLLOWED_NBYTES = 4 << 20
"""What one thread reads at a time if there is a follower: others read while it is called."""


class InOrder:
    """Calls `follow` with the end of the gapless beginning, while several threads fill memory in pieces.

    The calls are in order and by one thread at a time: the one that filled the next
    piece. A thread that filled a later piece goes on reading.
    """

    def __init__(self, follow: Callable[[int], None]) -> None:
        self._follow = follow
        self._ends: dict[int, int] = {}
        self._reached = 0
        self._turn = threading.Lock()

    def filled(self, begin: int, end: int) -> None:
        self._ends[begin] = end
        # A thread that does not get the lock may leave: its holder looks again after releasing it.
        while self._reached in self._ends and self._turn.acquire(blocking=False):
            try:
                while (end := self._ends.pop(self._reached, -1)) >= 0:
                    self._follow(end)
                    self._reached = end
            finally:
                self._turn.release()


class Piece(NamedTuple):
    """Memory for the bytes of a file from `begin` on."""

    begin: int
    memory: memoryview
    follower: InOrder | None = None
    start: int = 0
    """Offset in the memory that the follower follows."""

    @property
    def nbytes(self) -> int:
        return len(self.memory)

    def cut(self, nbytes: int) -> list[Piece]:
        """The piece cut into pieces of at most `nbytes`."""
        return [
            Piece(self.begin + offset, self.memory[offset : offset + size], self.follower, self.start + offset)
            for offset, size in cut(self.nbytes, nbytes)
        ]

    def fill(self, source: Source) -> None:
        source.read_into(self.begin, self.memory)
        if self.follower is not None:
            self.follower.filled(self.start, self.start + self.nbytes)


class Runs(NamedTuple):
    """Runs of bytes of a file, in its order, and their offsets in one buffer."""

    buffer: memoryview
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    follow: Callable[[int, int], None] | None = None
    """Called with the positions of the first run that was filled and of the one after the last."""
    first: int = 0

    def batch(self, start: int) -> Runs:
        rows = slice(start, start + BATCH)
        return Runs(
            self.buffer, self.begins[rows], self.sizes[rows], self.offsets[rows], self.follow, self.first + start
        )

    def fill(self, source: Source) -> None:
        if not self._read_at_once(source):
            source.read_runs(self.begins.tolist(), self.sizes.tolist(), self.offsets.tolist(), self.buffer)
        if self.follow is not None:
            self.follow(self.first, self.first + len(self.begins))

    def _read_at_once(self, source: Source) -> bool:
        """One read of all runs, if the gaps between them are short."""
        first, last = int(self.begins[0]), int((self.begins + self.sizes).max())
        if len(self.begins) < 4 or last - first > len(self.begins) * SIEVE_NBYTES:
            return False
        with scratch() as memory:
            span = memory.room(last - first, first)
            try:
                source.read_into(first, span)
            except TruncatedError:
                return False  # the reads of single runs find the missing one
            return gather(span, self.begins - first, self.sizes, self.buffer, self.offsets)


def fill(source: Source, pieces: Iterable[Piece], scattered: Iterable[Runs], threads: int | None) -> None:
    """Fills every piece, and the buffers of all runs."""

    def work(job: Sequence[Piece | Runs]) -> None:
        for part in job:
            part.fill(source)

    at_once = source.open() if isinstance(source, LazySource) else source
    # hasattr first: isinstance with a protocol takes 28 calls, a tenth of loading one tensor from a file.
    if threads is None and hasattr(at_once, "read_together") and isinstance(at_once, BatchSource):
        _fill_together(at_once, list(pieces))
        jobs: list[Sequence[Piece | Runs]] = []
    else:
        jobs = [*_jobs(pieces)]
    jobs += [[runs.batch(start)] for runs in scattered for start in range(0, len(runs.begins), BATCH)]
    for_each(work, jobs, source.concurrency if threads is None else threads)


def _fill_together(source: BatchSource, pieces: Sequence[Piece]) -> None:
    """Fills the pieces by as few requests to a server as are fast."""

    def filled(i: int, begin: int, end: int) -> None:
        piece = pieces[i]
        if piece.follower is not None:
            piece.follower.filled(piece.start + begin, piece.start + end)

    source.read_together([piece.begin for piece in pieces], [piece.memory for piece in pieces], filled)


def _jobs(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Part of a large piece, or many small ones, for one thread."""
    jobs: list[list[Piece]] = []
    room = count = 0
    for piece in pieces:
        most, nbytes = READ_NBYTES if piece.follower is None else FOLLOWED_NBYTES, piece.nbytes
        if nbytes <= most:  # small: added to the last job, while that has room
            if nbytes > room or count >= BATCH or not jobs:
                jobs.append([])
                room, count = READ_NBYTES, 0
            jobs[-1].append(piece)
            room -= nbytes
            count += 1
            continue
        jobs += [[part] for part in piece.cut(most)]
        room = 0  # the last job is part of a large piece: small ones begin a new job
    return jobs
