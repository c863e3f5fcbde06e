"""A cursor over the first bytes of a file, read in blocks on demand, up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tensorglot.errors import LimitError, TruncatedError

__all__ = ["Fetched"]

Read: TypeAlias = "Callable[[int, int], memoryview | bytes]"
"""`read(offset, nbytes)` returns exactly `nbytes` bytes."""

_STEPS = (64 << 10, 256 << 10, 4 << 20)
"""Total bytes after the first, second and third read; doubled from then on. At a server, each step beyond the first
256 KiB is a request, so the steps are few."""


class Fetched:
    """Reads forward from `begin`, at most `most` bytes in all."""

    def __init__(self, read: Read, size: int, most: int, rule: str, begin: int = 0) -> None:
        self._read = read
        self._size = size
        self._most = most
        self._rule = rule
        self._begin = begin
        self._data = b""
        self._at = 0

    @property
    def position(self) -> int:
        """Offset in the file."""
        return self._begin + self._at

    @property
    def left(self) -> int:
        """Number of bytes to the end of the file."""
        return self._size - self._begin - self._at

    def take(self, nbytes: int) -> bytes:
        """Reads the next `nbytes` bytes."""
        end = self._at + nbytes
        if end > len(self._data):
            self._fetch(nbytes, end)
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def byte(self) -> int:
        if self._at == len(self._data):
            self._fetch(1, self._at + 1)
        self._at += 1
        return self._data[self._at - 1]

    def ahead(self) -> tuple[bytes, int]:
        """What has been read, and the position in it."""
        return self._data, self._at

    def move(self, at: int) -> None:
        """Moves to a position in what has been read."""
        self._at = at

    def line(self, most: int) -> bytes:
        """Reads up to the next newline, which is consumed but not returned."""
        start = self._at
        while (end := self._data.find(b"\n", start, start + most + 1)) < 0:
            have = len(self._data) - start
            if have > most:
                raise LimitError(f"line longer than {most} bytes", rule=f"{self._rule}.line", offset=self.position)
            self._fetch(have + 1, start + have + 1)
        self._at = end + 1
        return self._data[start:end]

    def _fetch(self, nbytes: int, end: int) -> None:
        if nbytes > self.left:
            raise TruncatedError(
                f"file truncated: a value needs {nbytes} bytes, has {self.left}",
                rule=f"{self._rule}.end",
                offset=self.position,
            )
        if end > self._most:
            raise LimitError(
                f"header exceeds Limits.header_nbytes ({self._most})", rule=f"{self._rule}.limit", offset=self.position
            )
        more = next((step for step in _STEPS if step > len(self._data)), 2 * len(self._data))
        wanted = min(max(end, more), self._size - self._begin, self._most)
        self._data += bytes(self._read(self._begin + len(self._data), wanted - len(self._data)))
