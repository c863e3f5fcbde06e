"""The caller's file objects, to read from and to write to.

Only `read` and `write` are required: short reads and writes are continued, errors of a
method other than OSError become an InputError, and results of the wrong type are refused.
A seekable object is read on demand; any other is read to its end first.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, cast

from tensorglot.errors import InputError, TensorglotError
from tensorglot.io.local import BaseSource, BufferSource, FileSource
from tensorglot.io.pieces import Piece, read_all
from tensorglot.threads import Lock

__all__ = ["StreamSource", "source_of_stream", "write_stream"]

SPOOL_NBYTES = 16 << 20
_PIECE_NBYTES = 1 << 20


class StreamSource(BaseSource):
    """A seekable binary file object. A lock serializes its reads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = Lock()
        self._only_in = os.getpid() if _has_descriptor(stream) else None
        _read_piece(stream, 0)
        _call(stream.seek, 0, io.SEEK_END)
        self.size = _call(stream.tell)

    def read_into(self, offset: int, out: memoryview) -> None:
        if self._only_in not in (None, os.getpid()):
            # The two processes share one file position: seeks of one would change what the other reads.
            raise InputError(
                "a file object cannot be shared with a forked process: open the file by path", rule="source.fork"
            )
        with self._lock:
            _call(self._stream.seek, offset)
            done = 0
            while done < len(out):
                data = _read_piece(self._stream, len(out) - done)
                if not data:
                    raise self.truncation_error(offset, len(out), offset + done)
                out[done : done + len(data)] = data
                done += len(data)

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a file object cannot be pickled: open the file by path", rule="source.pickle")


def _has_descriptor(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except Exception:  # noqa: BLE001 - most objects have no descriptor, and raise all kinds of errors
        return False


def _call(method: Callable[..., Any], *arguments: int) -> Any:
    """Calls a method of a file object. Any error but an OSError becomes an InputError."""
    try:
        return method(*arguments)
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, io.UnsupportedOperation):
            raise
        raise InputError(
            f"the file object cannot be read: {type(error).__name__}: {error}", rule="source.stream"
        ) from error


def _read_piece(stream: BinaryIO, nbytes: int) -> bytes:
    data = _call(stream.read, nbytes)
    if not isinstance(data, (bytes, bytearray, memoryview)) or len(data) > nbytes:
        hint = ": open the file in binary mode ('rb')" if isinstance(data, str) else ""
        raise InputError(
            f"read({nbytes}) of the file object must return at most {nbytes} bytes, not {type(data).__name__}{hint}",
            rule="source.stream",
        )
    return cast("bytes", data)


def source_of_stream(stream: BinaryIO) -> BaseSource:
    """The stream itself if it can seek; otherwise its contents, in memory if short, or in an unnamed file."""
    if hasattr(stream, "seek") and (not hasattr(stream, "seekable") or _call(stream.seekable)):
        return StreamSource(stream)
    data = bytearray()
    while len(data) <= SPOOL_NBYTES:
        piece = _read_piece(stream, _PIECE_NBYTES)
        if not piece:
            return BufferSource(data)
        data += piece
    from tempfile import TemporaryFile  # here, because it imports random, shutil and bz2

    with TemporaryFile() as file:
        file.write(data)
        while piece := _read_piece(stream, _PIECE_NBYTES):
            file.write(piece)
        file.flush()
        return FileSource(os.dup(file.fileno()))


def write_stream(stream: BinaryIO, pieces: Iterable[Piece]) -> int:
    """Writes all pieces, small ones together. Returns the number of bytes."""
    total = 0
    for data in read_all(pieces):
        _write_all(stream, data)
        total += len(data)
    return total


def _write_all(stream: BinaryIO, data: memoryview) -> None:
    done = 0
    while done < len(data):
        try:
            written = stream.write(data[done:])
        except (TypeError, ValueError) as error:  # a text file, a closed file, one opened for reading
            raise InputError(
                f"cannot write bytes to the file object: open it in binary mode ('wb') ({error})", rule="sink.stream"
            ) from error
        except (OSError, TensorglotError):
            raise
        except Exception as error:
            raise InputError(
                f"the file object cannot be written: {type(error).__name__}: {error}", rule="sink.stream"
            ) from error
        if written is None and not isinstance(stream, io.RawIOBase):
            return  # an object that returns no count has taken everything
        if not written:
            raise BlockingIOError(errno.EAGAIN, "the file object would block")
        if not isinstance(written, int) or not 0 < written <= len(data) - done:
            raise InputError(
                f"write() of the file object must return how many of {len(data) - done} bytes it took, not {written!r}",
                rule="sink.stream",
            )
        done += written
