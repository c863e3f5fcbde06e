"""Where bytes to decode come from: memory, or a stream.

Both have a window of bytes and a position in it. A stream reads only as many bytes as
the value is known to need, so it never consumes what follows the value.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.schema import HUGE
from tensorglot.errors import FormatError, InputError, TruncatedError

__all__ = ["PIECE_NBYTES", "Input", "Memory", "Readable", "Stream"]

PIECE_NBYTES = 1 << 20


class Readable(Protocol):
    """A binary stream."""

    def read(self, nbytes: int, /) -> bytes: ...


class Input(Protocol):
    """A window of bytes, and a position `at` in it.

    `base` is the offset of the window in the whole input, `beyond` how many bytes may follow the window.
    """

    window: NDArray[np.uint8]
    at: int
    base: int
    beyond: int

    def more(self, least: int) -> None:
        """Reads on, so that the window has more bytes after `at`, `least` at most; TruncatedError at the end."""
        ...


class Memory:
    """Bytes in memory: one window."""

    def __init__(self, data: Any) -> None:
        try:
            self.window = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InputError(
                f"expected bytes or a contiguous buffer, not {type(data).__name__}", rule="dynd.data"
            ) from error
        self.at = self.base = self.beyond = 0

    def more(self, least: int) -> None:
        raise TruncatedError(
            f"data truncated: the value needs more than {len(self.window)} bytes",
            rule="dynd.truncated",
            offset=len(self.window),
        )

    def finish(self) -> None:
        """Refuses bytes after the value."""
        if self.at != len(self.window):
            raise FormatError(
                f"{len(self.window) - self.at} bytes after the end of the value", rule="dynd.trailing", offset=self.at
            )


class Stream:
    """Bytes that arrive in pieces."""

    beyond = HUGE

    def __init__(self, stream: Readable) -> None:
        if not hasattr(stream, "read"):
            raise InputError(f"{type(stream).__name__} has no read(): pass a binary stream", rule="dynd.stream")
        self.stream = stream
        self.window = np.empty(0, np.uint8)
        self.at = self.base = 0

    def more(self, least: int) -> None:
        rest = self.window[self.at :]
        try:
            piece = self.stream.read(max(1, min(least - len(rest), PIECE_NBYTES)))
        except ValueError as error:  # a closed file, one opened for writing
            raise InputError(f"the stream cannot be read: {error}", rule="dynd.stream") from error
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InputError(
                f"read() must return bytes, not {type(piece).__name__} (open it in binary mode)", rule="dynd.stream"
            )
        if not piece:
            raise TruncatedError(
                "stream truncated: it ends inside the value", rule="dynd.truncated", offset=self.base + len(self.window)
            )
        self.base += self.at
        self.window = np.concatenate([rest, np.frombuffer(piece, np.uint8)])
        self.at = 0
