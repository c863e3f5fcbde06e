"""What strict readers share: the comparison of a file with the bytes that its writer would make of its contents."""

from __future__ import annotations

from collections.abc import Iterable

from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.payload import Chunk, Source, Span, as_bytes

__all__ = ["check_canonical", "first_difference"]


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
