"""A place as a binary file object, for libraries that need one (pyarrow): a local file, or an object read by ranges."""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

from tensorglot.io.place import Place
from tensorglot.io.remote import RemoteSource

__all__ = ["open_reader"]


class _Reader(io.RawIOBase):
    """An object at a URL as a raw file. It keeps only the position; the source decides what to request."""

    def __init__(self, source: RemoteSource) -> None:
        self._source = source
        self._position = 0

    def readinto(self, out: memoryview) -> int:  # type: ignore[override]
        room = memoryview(out).cast("B")
        room = room[: max(0, self._source.size - self._position)]
        self._source.read_into(self._position, room)
        self._position += len(room)
        return len(room)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
        super().close()


def open_reader(place: Place) -> BinaryIO:
    if not place.remote:
        return open(place.text, "rb")  # noqa: PTH123
    return cast("BinaryIO", _Reader(RemoteSource(place.text, place.options)))
