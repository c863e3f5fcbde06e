"""Which ranges of an object to request for many reads at once. Makes no request.

A request costs about as much as a megabyte, so runs that are close together are one. A
server keeps an object in parts of some megabytes, and a range within one part costs it
least, so long reads are cut at multiples of a piece's size in the object, and the end of
one read is requested together with the beginning of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["GAP_NBYTES", "HEADER_GAP_NBYTES", "PIECE_NBYTES", "Range", "clamp", "plan_ranges"]

PIECE_NBYTES = range(1 << 20, 8 << 20)
"""Sizes of one request for a part of a tensor."""
_REQUESTS = 16
"""Into so many requests reads are cut, within these sizes."""
GAP_NBYTES = 1 << 20
"""A gap up to this is read over: another request would cost more."""
HEADER_GAP_NBYTES = 64 << 10
"""The same between headers, of which there may be many: else opening a file would read most of it."""
_TOGETHER_NBYTES = 4 << 20
"""Most bytes of several runs that are read with the gaps between them."""


@dataclass(frozen=True, slots=True)
class Range:
    """Adjacent bytes of an object, for one request."""

    begin: int
    outs: list[memoryview]
    """Where they go, in order; the gaps between reads have memory, too."""
    filled: list[tuple[int, int, int]] = field(default_factory=list)
    """The parts of reads in it: which read, begin and end within it."""


def clamp(nbytes: int, bounds: range) -> int:
    return max(bounds.start, min(bounds.stop, nbytes))


def plan_ranges(begins: Sequence[int], outs: Sequence[memoryview], most_gap: int) -> list[Range]:
    """The requests for reads that are in the order of the object; reads that overlap are not joined."""
    each = clamp(sum(map(len, outs)) // _REQUESTS, PIECE_NBYTES)
    together = max(each, _TOGETHER_NBYTES)
    found: list[Range] = []
    reached = 0
    for i, (begin, out) in enumerate(zip(begins, outs, strict=True)):
        for a, b in _cut(begin, len(out), each):
            gap = begin + a - reached
            if a or not found or not 0 <= gap <= most_gap or begin + b - found[-1].begin > together:
                found.append(Range(begin + a, []))
            elif gap:
                found[-1].outs.append(memoryview(bytearray(gap)))
            found[-1].outs.append(out[a:b])
            found[-1].filled.append((i, a, b))
            reached = begin + b
    return found


def _cut(begin: int, nbytes: int, each: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the pieces of a read, cut where the offset in the object is a multiple of `each`."""
    if nbytes == 0:
        return iter(())
    return pairwise([0, *range(each - begin % each, nbytes, each), nbytes])
