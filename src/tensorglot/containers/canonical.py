"""Strict reading: compares a file with the bytes that our writer would produce for its contents."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, islice, pairwise

from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.memory import cut
from tensorglot.model.payload import Chunk, Source, Span, as_bytes

__all__ = ["check_canonical", "check_padding", "first_difference"]

_GAPS = 1024
"""Gaps between spans that are read at a time."""
_GAP_NBYTES = 4096
"""A longer gap counts as several."""


def first_difference(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Offset of the first byte that differs, or where the shorter one ends."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_canonical(source: Source, chunks: Iterable[Chunk], rule: str) -> None:
    """Compares a file with what would be written. Spans that would be copied to their own offset are not read."""
    position = 0
    try:
        for chunk in chunks:
            if isinstance(chunk, Span) and chunk.source is source and chunk.begin == position:
                position = chunk.end
                continue
            ours = chunk.read(0, chunk.nbytes) if isinstance(chunk, Span) else as_bytes(chunk)
            if position + len(ours) > source.size or source.read(position, len(ours)) != ours:
                raise FormatError("not the canonical bytes", rule=rule, offset=position)
            position += len(ours)
    except UnsupportedError as error:
        raise FormatError(f"not canonical: {error.message}", rule=rule, tensor=error.tensor) from error
    if position != source.size:
        raise FormatError("not the canonical bytes", rule=rule, offset=position)


def check_padding(source: Source, spans: Iterable[tuple[int, int]], rule: str) -> None:
    """Checks that the bytes between consecutive spans are zero. Many gaps are read at a time."""
    gaps = (
        (end + offset, nbytes)
        for (_, end), (begin, _) in pairwise(spans)
        for offset, nbytes in cut(begin - end, _GAP_NBYTES)
    )
    while batch := list(islice(gaps, _GAPS)):
        begins, sizes = zip(*batch, strict=True)
        *offsets, total = accumulate(sizes, initial=0)
        out = bytearray(total)
        source.read_runs(begins, sizes, offsets, memoryview(out))
        if out.count(0) != total:
            wrong = next(i for i, byte in enumerate(out) if byte)
            i = bisect_right(offsets, wrong) - 1
            raise FormatError("padding is not zero", rule=rule, offset=begins[i] + wrong - offsets[i])
