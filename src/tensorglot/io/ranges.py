"""Plans which ranges of an object to request for many reads at once. Makes no request itself.

A request takes about as long as transferring a megabyte, so reads that are close together
share one. A server stores an object in parts of some megabytes, and a range within one part
is cheapest. So long reads are cut at offsets that are multiples of the piece size, and the
end of one read is requested together with the beginning of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["GAP_NBYTES", "HEADER_GAP_NBYTES", "PIECE_NBYTES", "Range", "clamp", "plan_ranges"]

PIECE_NBYTES = range(1 << 20, 8 << 20)
"""The least and the largest size of one request for a part of a tensor."""
_REQUESTS = 16
"""Reads are cut into this many requests, if their sizes stay within these bounds."""
GAP_NBYTES = 1 << 20
"""A gap of up to this size is requested with the reads around it: another request would cost more."""
HEADER_GAP_NBYTES = 64 << 10
"""The same between headers. Smaller, because there may be many: opening a file must not read most of it."""
_TOGETHER_NBYTES = 4 << 20
"""The largest request that joins several reads and the gaps between them."""


@dataclass(frozen=True, slots=True)
class Range:
    """Adjacent bytes of an object, for one request."""

    begin: int
    outs: list[memoryview]
    """Buffers for the bytes, in order; gaps between reads have buffers, too."""
    filled: list[tuple[int, int, int]] = field(default_factory=list)
    """The reads that it fills: number of the read, begin and end within that."""


def clamp(nbytes: int, bounds: range) -> int:
    return max(bounds.start, min(bounds.stop, nbytes))


def plan_ranges(begins: Sequence[int], outs: Sequence[memoryview], most_gap: int) -> list[Range]:
    """The requests for reads whose begins ascend. Gaps up to `most_gap` are joined; overlapping reads are not."""
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
    """Begin and end of the pieces of a read, which is cut at offsets of the object that are multiples of `each`."""
    if nbytes == 0:
        return iter(())
    return pairwise([0, *range(each - begin % each, nbytes, each), nbytes])
