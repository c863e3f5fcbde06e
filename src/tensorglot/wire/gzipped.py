"""Decompresses gzip incrementally into the caller's buffer.

Concatenated members are allowed, as `gzip` and `mongodump` write them; other trailing
bytes are refused. zlib checks the checksum and length of each member. The compression
ratio is checked while decompressing, so a decompression bomb is refused early.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Final

from tensorglot.errors import FormatError, LimitError, TruncatedError

__all__ = ["HEADER_NBYTES", "is_gzip", "reader"]

HEADER_NBYTES: Final = 10
_HEADER = re.compile(rb"\x1f\x8b\x08[\0-\x1f].{4}[\0\2\4][\0-\x13\xff]", re.S)
"""Magic, method, flags, time, extra flags, system (RFC 1952 §2.3). A BSON document of 35,615 bytes begins with
the magic alone."""
_READ_NBYTES = 256 << 10
_GZIP_WINDOW = 31
_ANY_NBYTES = 1 << 20
"""Decompressed size that is always allowed, whatever the ratio."""


class _Inflater:
    """Decompresses sequentially."""

    def __init__(self, size: int, read_at: Callable[[int, memoryview], None], ratio: int) -> None:
        self._size = size
        self._read_at = read_at
        self._ratio = ratio
        self._left = max(_ANY_NBYTES, ratio * size)
        self._position = 0
        self._pending = b""
        self._member = zlib.decompressobj(_GZIP_WINDOW)

    def read_into(self, out: memoryview) -> int:
        done = 0
        while done < len(out):
            if not self._pending and not self._refill():
                break
            piece = self._inflate(min(len(out) - done, self._left + 1))
            self._left -= len(piece)
            if self._left < 0:
                raise LimitError(
                    f"gzip data expands more than Limits.gzip_ratio ({self._ratio}) allows; gunzip it first",
                    rule="gzip.limit.ratio",
                    offset=self._position - len(self._pending),
                )
            out[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def _refill(self) -> bool:
        left = self._size - self._position
        if left == 0:
            if not self._member.eof:
                raise TruncatedError("file truncated: it ends inside a gzip member", rule="gzip.end", offset=self._size)
            return False
        room = bytearray(min(left, _READ_NBYTES))
        self._read_at(self._position, memoryview(room))
        self._position += len(room)
        self._pending = bytes(room)
        return True

    def _inflate(self, most: int) -> bytes:
        if self._member.eof:
            self._member = zlib.decompressobj(_GZIP_WINDOW)
        try:
            piece = self._member.decompress(self._pending, most)
        except zlib.error as error:
            offset = self._position - len(self._pending)
            raise FormatError("invalid gzip data", rule="gzip.data", offset=offset) from error
        self._pending = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return piece


def is_gzip(head: bytes | bytearray | memoryview) -> bool:
    """Whether bytes begin with the header of a gzip member."""
    return _HEADER.match(head) is not None


def reader(size: int, read_at: Callable[[int, memoryview], None], ratio: int) -> Callable[[memoryview], int]:
    """Returns a sequential `read_into` over `size` bytes, decompressed if they are gzip.

    `read_at` fills memory from an offset. `read_into` fills less than all only at the end.
    """
    head = bytearray(min(size, HEADER_NBYTES))
    read_at(0, memoryview(head))
    if is_gzip(head):
        return _Inflater(size, read_at, ratio).read_into
    position = 0

    def read_into(out: memoryview) -> int:
        nonlocal position
        nbytes = min(len(out), size - position)
        read_at(position, out[:nbytes])
        position += nbytes
        return nbytes

    return read_into
