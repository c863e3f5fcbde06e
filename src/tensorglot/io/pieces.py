"""Pieces of a file to be written: buffers, and spans of other sources.

Small buffers are joined, to save system calls. A span is copied by the operating system if
possible (`AtomicFile`), otherwise read here, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias, cast

from tensorglot.memory import Scratch, cut

__all__ = ["COPY_NBYTES", "Piece", "Stored", "join_small", "read_all", "read_pieces"]

COPY_NBYTES = 8 << 20
_SMALL_NBYTES = 64 << 10
"""Buffers below this are joined before they are written."""
_BATCH_NBYTES = 1 << 20


class Stored(Protocol):
    """A span of another source."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def source(self) -> object: ...
    def read_into(self, offset: int, out: memoryview) -> None: ...


Piece: TypeAlias = "bytes | bytearray | memoryview | Stored"


def join_small(pieces: Iterable[Piece]) -> Iterator[memoryview | Stored]:
    """Joins consecutive small buffers; yields large buffers and spans unchanged."""
    small: list[memoryview] = []
    nbytes = 0
    for piece in pieces:
        whole = memoryview(piece) if isinstance(piece, (bytes, bytearray, memoryview)) else piece
        is_small = isinstance(whole, memoryview) and len(whole) < _SMALL_NBYTES
        if small and (nbytes >= _BATCH_NBYTES or not is_small):
            yield memoryview(b"".join(small))
            small, nbytes = [], 0
        if is_small:
            small.append(cast("memoryview", whole))
            nbytes += len(small[-1])
        else:
            yield whole
    if small:
        yield memoryview(b"".join(small))


def read_all(pieces: Iterable[Piece]) -> Iterator[memoryview]:
    """All bytes as buffers: small ones joined, spans read. A buffer is valid until the next one is requested."""
    for piece in join_small(pieces):
        yield from [piece] if isinstance(piece, memoryview) else read_pieces(piece, piece.begin)


def read_pieces(span: Stored, begin: int) -> Iterator[memoryview]:
    """The bytes of a span from `begin` on. A piece is valid until the next one is requested."""
    left = span.end - begin
    scratch = Scratch(min(COPY_NBYTES, left))
    for offset, nbytes in cut(left, COPY_NBYTES):
        piece = scratch.room(nbytes, begin + offset)
        span.read_into(begin + offset - span.begin, piece)
        yield piece
