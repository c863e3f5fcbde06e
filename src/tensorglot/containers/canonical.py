"""What strict readers share: comparing a file with the bytes that its writer would make of its contents."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.memory import cut
from tensorglot.model.payload import PIECE_NBYTES, Chunk, Source, Span, as_bytes

__all__ = ["check_canonical", "check_padding", "first_difference"]


def first_difference(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """Offset of the first byte that differs, or where the shorter one ends."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_canonical(source: Source, chunks: Iterable[Chunk], rule: str) -> None:
    """Compares a file with what would be written. Spans that would be copied to their own place are not read."""
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
    """Checks that the bytes between consecutive spans are zero."""
    for (_, end), (begin, _) in pairwise(spans):
        for offset, nbytes in cut(begin - end, PIECE_NBYTES):
            if any(source.read(end + offset, nbytes)):
                raise FormatError("padding is not zero", rule=rule, offset=end + offset)
