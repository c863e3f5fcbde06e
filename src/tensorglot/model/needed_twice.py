"""Chunks that a writer needs twice, because their checksum or a comparison is written before them.

Local chunks are read again. Chunks from a server are downloaded once and kept meanwhile, in
memory if they are small, otherwise in an unnamed file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tensorglot.model.payload import PIECE_NBYTES, Chunk, Memory, Payload, as_bytes, buffers

if TYPE_CHECKING:
    from tempfile import SpooledTemporaryFile

__all__ = ["NeededTwice", "is_remote", "read_remote"]

_MEMORY_NBYTES = 16 << 20


def is_remote(payload: Payload) -> bool:
    """Whether the bytes come from a server."""
    return not isinstance(payload, Memory) and payload.source.concurrency is not None


def read_remote(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same chunks with remote spans read, so that a caller can hash and write them after one download."""
    for chunk in chunks:
        if not isinstance(chunk, (bytes, bytearray, memoryview)) and is_remote(chunk):
            yield from buffers([chunk])
        else:
            yield chunk


def _spool() -> SpooledTemporaryFile[bytes]:
    from tempfile import SpooledTemporaryFile  # imports random, shutil and bz2, which local files need not wait for

    return SpooledTemporaryFile(_MEMORY_NBYTES)


class NeededTwice:
    """Chunks that are iterated twice: first `once`, to its end, then `again`."""

    def __init__(self, payload: Payload, chunks: Callable[[], Iterable[Chunk]]) -> None:
        self._chunks = chunks
        self._file = _spool() if is_remote(payload) else None

    def once(self) -> Iterator[Chunk]:
        if self._file is None:
            yield from self._chunks()
            return
        for data in buffers(self._chunks()):
            self._file.write(as_bytes(data))
            yield data

    def again(self) -> Iterator[Chunk]:
        if self._file is None:
            yield from self._chunks()
            return
        self._file.seek(0)
        while data := self._file.read(PIECE_NBYTES):
            yield data
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    __del__ = close
