"""Filling memory from many places of a file, on several threads.

A large piece is read in parts, small ones many to a thread. Small runs with little
between them are read in one, and each is copied out of it. Knows no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import TruncatedError
from tensorglot.kernels.gather import gather
from tensorglot.memory import READ_NBYTES
from tensorglot.model.payload import Source
from tensorglot.threads import for_each

__all__ = ["Piece", "Runs", "fill"]

BATCH = 256
"""Small reads that one thread does in a row."""
SIEVE_NBYTES = 8 << 10
"""Up to this much of a file is read for each of many small runs, rather than every one by itself."""

Piece = tuple[int, memoryview]
"""An offset of a file, and the memory for the bytes from there on."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of bytes of a file, in its order, and where they go in one piece of memory."""

    buffer: memoryview
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def batch(self, start: int) -> Runs:
        rows = slice(start, start + BATCH)
        return Runs(self.buffer, self.begins[rows], self.sizes[rows], self.offsets[rows])

    def fill(self, source: Source) -> None:
        if not self._sieved(source):
            for begin, nbytes, offset in zip(
                self.begins.tolist(), self.sizes.tolist(), self.offsets.tolist(), strict=True
            ):
                source.read_into(begin, self.buffer[offset : offset + nbytes])

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
    for begin, piece in pieces:
        source.read_into(begin, piece)


def _jobs(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """What one thread does: part of a large piece, or many small ones."""
    jobs: list[list[Piece]] = []
    room = count = 0
    for begin, buffer in pieces:
        nbytes = len(buffer)
        if nbytes <= READ_NBYTES:
            if nbytes > room or count >= BATCH or not jobs:
                jobs.append([])
                room, count = READ_NBYTES, 0
            jobs[-1].append((begin, buffer))
            room -= nbytes
            count += 1
            continue
        jobs += [[(begin + start, buffer[start : start + READ_NBYTES])] for start in range(0, nbytes, READ_NBYTES)]
        room = 0
    return jobs
