"""Checksums of many stretches of a source, about as fast as the algorithm itself.

Small neighbours are read together; large stretches are spread over threads, and one
that is larger than its share of the whole is read ahead by one thread while another
computes. What is in memory at a time is a few pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tensorglot.memory import Scratch, cut, scratch
from tensorglot.model.payload import Source
from tensorglot.threads import default_threads, for_each
from tensorglot.wire.checksums import Hasher, hasher

__all__ = ["Stretch", "digests"]

READ_NBYTES = 1 << 20
"""Few enough to stay in the processor's cache between being read and being computed on."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a source, and what to compute of them."""

    source: Source
    begin: int
    end: int
    algorithm: str

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def digests(stretches: Sequence[Stretch], seen: Callable[[int], None] = lambda nbytes: None) -> list[bytes]:
    """The digest of each, in the order given. `seen` is told of bytes that are done, from any thread."""
    found = [b""] * len(stretches)
    count = default_threads()
    share = max(READ_NBYTES, sum(stretch.nbytes for stretch in stretches) // count)
    large = [i for i, stretch in enumerate(stretches) if count > 1 and stretch.nbytes > share]
    for i in large:
        found[i] = _read_ahead(stretches[i], seen)

    def work(group: list[int]) -> None:
        for i, digest in zip(group, _digests_of(stretches, group, seen), strict=True):
            found[i] = digest

    for_each(work, _groups(stretches, set(large)))
    return found


def _groups(stretches: Sequence[Stretch], done: set[int]) -> list[list[int]]:
    """Neighbours of one source, up to a piece together; larger ones alone, the largest first."""
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


def _digests_of(stretches: Sequence[Stretch], group: list[int], seen: Callable[[int], None]) -> Iterator[bytes]:
    if len(group) > 1:
        first = stretches[group[0]]
        base = first.begin
        with scratch() as memory:
            block = memory.room(max(stretches[i].end for i in group) - base, base)
            first.source.read_into(base, block)
            for i in group:
                running = hasher(stretches[i].algorithm)
                running.update(block[stretches[i].begin - base : stretches[i].end - base])
                seen(stretches[i].nbytes)
                yield running.digest()
    else:
        stretch = stretches[group[0]]
        running = hasher(stretch.algorithm)
        with scratch() as memory:
            for offset, nbytes in cut(stretch.nbytes, READ_NBYTES):
                piece = memory.room(nbytes, stretch.begin + offset)
                stretch.source.read_into(stretch.begin + offset, piece)
                running.update(piece)
                seen(nbytes)
        yield running.digest()


def _read_ahead(stretch: Stretch, seen: Callable[[int], None]) -> bytes:
    """One thread reads while this one computes."""
    running: Hasher = hasher(stretch.algorithm)
    scratches = [Scratch(READ_NBYTES) for _ in range(3)]
    pieces = list(cut(stretch.nbytes, READ_NBYTES))

    def read(i: int) -> memoryview:
        offset, nbytes = pieces[i]
        room = scratches[i % 3].room(nbytes, stretch.begin + offset)
        stretch.source.read_into(stretch.begin + offset, room)
        return room

    with ThreadPoolExecutor(1, thread_name_prefix="tensorglot-ahead") as reader:
        ahead = [reader.submit(read, i) for i in range(min(2, len(pieces)))]
        for i in range(len(pieces)):
            running.update(ahead.pop(0).result())
            seen(pieces[i][1])
            if i + 2 < len(pieces):
                ahead.append(reader.submit(read, i + 2))
    return running.digest()
