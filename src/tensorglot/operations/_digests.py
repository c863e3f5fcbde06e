"""Digests of many stretches of a source, about as fast as the hash function itself.

Small adjacent stretches are read together, large ones are distributed to threads. While
one that is larger than a thread's share is hashed, other threads read ahead. Memory is
bounded: a few pieces per thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorglot.memory import SCRATCH_NBYTES, Scratch, cut, scratch
from tensorglot.model.payload import Source
from tensorglot.threads import default_threads, for_each, ordered_map
from tensorglot.wire import checksums
from tensorglot.wire.checksums import hasher

__all__ = ["READ_NBYTES", "Stretch", "digest_rows", "digests"]

READ_NBYTES = 1 << 20
"""Small enough to be in the processor's cache when it is hashed."""
AHEAD = 2
"""Pieces that are read while another one is hashed."""


class Stretch(NamedTuple):
    """Bytes of a source, and the algorithm to hash them with."""

    source: Source
    begin: int
    end: int
    algorithm: str

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def step(self) -> int:
        """What is read at a time; more from a server, which answers several requests at once."""
        return READ_NBYTES if self.source.concurrency is None else SCRATCH_NBYTES


def digests(stretches: Sequence[Stretch], advance: Callable[[int], None] = lambda nbytes: None) -> list[bytes]:
    """The digest of each, in order. `advance` is called with the number of bytes hashed, from any thread."""
    found = [b""] * len(stretches)
    count = default_threads()
    # A stretch above one thread's share would be hashed last, by one thread, while the others are idle: it is
    # hashed first, with the other threads reading ahead.
    share = max(READ_NBYTES, sum(stretch.nbytes for stretch in stretches) // count)
    large = [i for i, stretch in enumerate(stretches) if count > 1 and stretch.nbytes > share]
    for i in large:
        found[i] = _read_ahead(stretches[i], advance)

    def work(group: list[int]) -> None:
        for i, digest in zip(group, _digests_of(stretches, group, advance), strict=True):
            found[i] = digest

    for_each(work, _groups(stretches, set(large)))
    return found


def digest_rows(
    source: Source,
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    algorithm: str,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> bytes:
    """The digests of many rows of a source, each up to READ_NBYTES, concatenated."""
    # Rows that begin in the same READ_NBYTES of the source are one read of at most twice as much.
    order = np.argsort(begins, kind="stable")
    windows = begins[order] // READ_NBYTES
    cuts = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(order)]
    found: dict[int, bytes] = {}

    def work(group: tuple[int, int]) -> None:
        rows = order[group[0] : group[1]]
        base, end = int(begins[rows[0]]), int(ends[rows].max())
        with scratch() as memory:
            block = memory.room(end - base, base)
            source.read_into(base, block)
            found[group[0]] = checksums.digest_rows(algorithm, block, begins[rows] - base, ends[rows] - base)
        advance(int((ends[rows] - begins[rows]).sum()))

    for_each(work, pairwise(cuts) if len(order) else ())
    joined = b"".join(found[start] for start in cuts[:-1]) if found else b""
    in_order = np.frombuffer(joined, f"V{len(joined) // max(1, len(order)) or 1}")
    digests = np.empty_like(in_order)
    digests[order] = in_order
    return digests.tobytes()


def _groups(stretches: Sequence[Stretch], done: set[int]) -> list[list[int]]:
    """Adjacent stretches of one source, up to a piece in total; larger ones alone, the largest first."""
    order = sorted(
        (i for i in range(len(stretches)) if i not in done),
        key=lambda i: (id(stretches[i].source), stretches[i].begin, stretches[i].end),
    )
    groups: list[list[int]] = []
    source, begin, reach = None, 0, 0
    for i in order:
        stretch = stretches[i]
        if source is stretch.source and max(reach, stretch.end) - begin <= READ_NBYTES:
            groups[-1].append(i)
            reach = max(reach, stretch.end)
        else:
            groups.append([i])
            source, begin, reach = stretch.source, stretch.begin, stretch.end
    return sorted(groups, key=lambda group: -stretches[group[0]].nbytes)


def _digests_of(stretches: Sequence[Stretch], group: list[int], advance: Callable[[int], None]) -> Iterator[bytes]:
    if len(group) > 1:
        first = stretches[group[0]]
        base = first.begin
        with scratch() as memory:
            block = memory.room(max(stretches[i].end for i in group) - base, base)
            first.source.read_into(base, block)
            for i in group:
                running = hasher(stretches[i].algorithm)
                running.update(block[stretches[i].begin - base : stretches[i].end - base])
                advance(stretches[i].nbytes)
                yield running.digest()
    else:
        stretch = stretches[group[0]]
        running = hasher(stretch.algorithm)
        with scratch() as memory:
            for offset, nbytes in cut(stretch.nbytes, stretch.step):
                piece = memory.room(nbytes, stretch.begin + offset)
                stretch.source.read_into(stretch.begin + offset, piece)
                running.update(piece)
                advance(nbytes)
        yield running.digest()


def _read_ahead(stretch: Stretch, advance: Callable[[int], None]) -> bytes:
    """The digest of a large stretch: other threads read ahead while this one hashes."""
    running = hasher(stretch.algorithm)
    scratches = [Scratch(stretch.step) for _ in range(AHEAD + 2)]  # those ahead, the next one, and the one in use

    def read(piece: tuple[int, int]) -> memoryview:
        offset, nbytes = piece
        room = scratches[offset // stretch.step % len(scratches)].room(nbytes, stretch.begin + offset)
        stretch.source.read_into(stretch.begin + offset, room)
        return room

    for data in ordered_map(read, cut(stretch.nbytes, stretch.step), ahead=AHEAD):
        running.update(data)
        advance(len(data))
    return running.digest()
