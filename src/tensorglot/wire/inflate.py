"""Decodes raw deflate streams sequentially, to exactly the declared size.

A deflate stream has no random access, so an inflater keeps its position and continues from
there. Encoded bytes come from a function, `read(offset, nbytes)`. Knows no tensor and no
file.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from tensorglot.errors import FormatError, TruncatedError

__all__ = ["Inflater", "deflate"]

Read: TypeAlias = "Callable[[int, int], memoryview | bytes]"

_STEP_NBYTES = 256 << 10


class Inflater:
    """Decodes a stream of `stored` bytes that must decode to exactly `nbytes`."""

    def __init__(self, read: Read, stored: int, nbytes: int, rule: str, tensor: str | None = None) -> None:
        self._read = read
        self._stored = stored
        self._nbytes = nbytes
        self._rule = rule
        self._tensor = tensor
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)
        self._taken = 0
        self.position = 0

    def read_into(self, out: memoryview) -> None:
        """Decodes the next bytes. After the last, the stream must be at its end."""
        done = 0
        while done < len(out):
            piece = self._step(len(out) - done)
            out[done : done + len(piece)] = piece
            done += len(piece)
        if self.position == self._nbytes:
            self._check_end()

    def skip(self, nbytes: int) -> None:
        while nbytes:
            nbytes -= len(self._step(nbytes))

    def _step(self, most: int) -> bytes:
        """Decodes at least one and at most `most` bytes."""
        while True:
            data: bytes | memoryview = self._stream.unconsumed_tail
            if not data and not self._stream.eof:
                data = self._read(self._taken, min(_STEP_NBYTES, self._stored - self._taken))
                self._taken += len(data)
            ended = self._taken == self._stored
            piece = self._decompress(data, min(most, _STEP_NBYTES))
            if piece:
                self.position += len(piece)
                return piece
            if self._stream.eof or (ended and not self._stream.unconsumed_tail):
                raise TruncatedError(
                    f"truncated deflate stream: needs {self._nbytes} decoded bytes, has {self.position}",
                    rule=f"{self._rule}.deflate.end",
                    tensor=self._tensor,
                )

    def _decompress(self, data: bytes | memoryview, most: int) -> bytes:
        try:
            return self._stream.decompress(data, most)
        except zlib.error:
            raise FormatError(
                "invalid deflate stream", rule=f"{self._rule}.deflate.form", tensor=self._tensor
            ) from None

    def _check_end(self) -> None:
        """Checks that the stream ends here: it decodes to nothing more, and no stored bytes are left."""
        more = b""
        while not (more or self._stream.eof):
            data = self._stream.unconsumed_tail or self._read(self._taken, min(64, self._stored - self._taken))
            self._taken += 0 if self._stream.unconsumed_tail else len(data)
            if not data:
                break
            more = self._decompress(data, 1)
        if more or not self._stream.eof or self._stream.unused_data or self._taken < self._stored:
            raise FormatError(
                f"the deflate stream decodes to more than the declared {self._nbytes} bytes",
                rule=f"{self._rule}.deflate.end",
                tensor=self._tensor,
            )


def deflate(chunks: Iterable[bytes | bytearray | memoryview], level: int) -> Iterator[bytes]:
    """Compresses chunks to one stream, in pieces."""
    stream = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    for chunk in chunks:
        view = memoryview(chunk)
        for start in range(0, len(view), _STEP_NBYTES):
            piece = stream.compress(view[start : start + _STEP_NBYTES])
            if piece:
                yield piece
    yield stream.flush()
