"""Where bytes come from: a buffer, a file by pread, a file by mmap, a file object.

All four answer the `Source` protocol of the model. A read that the source cannot
satisfy is a TruncatedError, never a short result and never a signal: a file that is
cut short under a pread source is noticed at the read. Only regular files are opened;
a FIFO or a device is refused before it can block.
"""

from __future__ import annotations

import io
import mmap
import os
import shutil
import stat
import tempfile
import threading
from contextlib import closing
from typing import Any, BinaryIO, Literal, TypeAlias, cast

from tensorglot.errors import InputError, TruncatedError
from tensorglot.memory import READ_NBYTES, allocate
from tensorglot.threads import for_each

__all__ = [
    "Backend",
    "BufferSource",
    "FileSource",
    "MmapSource",
    "Readable",
    "SpooledSource",
    "StreamSource",
    "absolute",
    "source_for",
]

_SPOOL_NBYTES = 16 << 20

Backend: TypeAlias = Literal["auto", "pread", "mmap"]
Readable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"


def absolute(path: str | os.PathLike[str]) -> str:
    """The path as it will still be right in another working directory. No part of it is resolved."""
    text = os.fspath(path)
    return text if text.startswith(os.sep) else os.path.join(os.getcwd(), text)  # noqa: PTH109, PTH118


def _truncated(offset: int, nbytes: int, size: int) -> TruncatedError:
    return TruncatedError(
        f"{nbytes} bytes wanted at byte {offset}, but the source ends at {size}",
        rule="source.size",
        offset=max(offset, size),
    )


class BufferSource:
    """Any bytes-like object."""

    def __init__(self, data: bytes | bytearray | memoryview, *, share: bool = False) -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise InputError("the buffer is not contiguous", rule="source.contiguous")
        self._view = view.cast("B").toreadonly()
        self._share = share
        self.size = len(self._view)

    def read(self, offset: int, nbytes: int) -> memoryview:
        self._check(offset, nbytes)
        out = allocate(nbytes, offset)
        out[:] = self._view[offset : offset + nbytes]
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        self._check(offset, len(out))
        out[:] = self._view[offset : offset + len(out)]

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        self._check(offset, nbytes)
        return bytes(self._view[offset : offset + nbytes])

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        if not self._share:
            return None
        self._check(offset, nbytes)
        return self._view[offset : offset + nbytes]

    def __reduce__(self) -> tuple[Any, ...]:
        return _buffer_source, (bytes(self._view), self._share)

    def _check(self, offset: int, nbytes: int) -> None:
        if offset + nbytes > self.size:
            raise _truncated(offset, nbytes, self.size)


def _buffer_source(data: bytes, share: bool) -> BufferSource:
    return BufferSource(data, share=share)


class FileSource:
    """A regular file, read with pread: safe against a file that changes under us, and usable by many threads.

    It can be sent to another process, which opens the file again and finds it unchanged.
    """

    _fd = -1

    def __init__(self, file: str | os.PathLike[str] | int) -> None:
        """Opens a path, or takes over a descriptor."""
        self._fd = -1
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        self._path = None if isinstance(file, int) else absolute(file)
        self._fd = file if isinstance(file, int) else os.open(file, flags)
        status = os.fstat(self._fd)
        self.size = status.st_size
        self.stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        """What changes when a file is replaced or written to."""
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise InputError(f"{file} is {_kind(status.st_mode)}, not a file", rule="source.regular")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._path is None:
            raise InputError("a file without a name cannot be sent to another process", rule="source.pickle")
        return _reopened, (type(self), self._path, self.stamp)

    def fileno(self) -> int:
        if self._fd < 0:
            raise InputError("the archive is closed", rule="archive.closed")
        return self._fd

    def read(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > self.size:
            raise _truncated(offset, nbytes, self.size)
        out = allocate(nbytes, offset)
        if nbytes <= READ_NBYTES:
            self.read_into(offset, out)
        else:
            for_each(
                lambda start: self.read_into(offset + start, out[start : start + READ_NBYTES]),
                range(0, nbytes, READ_NBYTES),
            )
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        fd, done = self.fileno(), 0
        while done < len(out):
            got = os.preadv(fd, [out[done:]], offset + done)
            if got == 0:
                raise _truncated(offset, len(out), offset + done)
            done += got

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        if offset + nbytes > self.size:
            raise _truncated(offset, nbytes, self.size)
        data = os.pread(self.fileno(), nbytes, offset)
        if len(data) == nbytes:
            return data
        return data + self.read(offset + len(data), nbytes - len(data))

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


def _reopened(kind: type[FileSource] | type[MmapSource], path: str, stamp: tuple[int, ...]) -> FileSource | MmapSource:
    source = kind(path)
    if source.stamp != stamp:
        raise InputError(f"{path} has changed since the handle to it was made", rule="source.changed")
    return source


class MmapSource(BufferSource):
    """A regular file as shared memory: no copy, and the caller's promise that nobody cuts the file short."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = absolute(path)
        with closing(FileSource(path)) as file:
            self.stamp = file.stamp
            try:
                data = mmap.mmap(file.fileno(), file.size, access=mmap.ACCESS_READ) if file.size else b""
            except ValueError:
                raise _truncated(0, file.size, os.fstat(file.fileno()).st_size) from None
        super().__init__(cast("bytes", data), share=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self._path, self.stamp)


class StreamSource:
    """A seekable binary file object. Reads take turns."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self.size = stream.seek(0, io.SEEK_END)

    def read(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > self.size:
            raise _truncated(offset, nbytes, self.size)
        out = allocate(nbytes, offset)
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        with self._lock:
            self._stream.seek(offset)
            done = 0
            while done < len(out):
                data = self._stream.read(len(out) - done)
                if not data:
                    raise _truncated(offset, len(out), offset + done)
                out[done : done + len(data)] = data
                done += len(data)

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read(offset, nbytes))

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a file object cannot be sent to another process: open it by path", rule="source.pickle")


class SpooledSource(StreamSource):
    """A stream that cannot seek, read to its end: in memory if it is short, else to a file without a name."""

    def __init__(self, stream: BinaryIO) -> None:
        self._spool = tempfile.SpooledTemporaryFile(_SPOOL_NBYTES)  # noqa: SIM115
        shutil.copyfileobj(stream, self._spool, 1 << 20)
        super().__init__(cast("BinaryIO", self._spool))

    def close(self) -> None:
        self._spool.close()

    __del__ = close


def source_for(source: Readable, backend: Backend = "auto") -> BufferSource | FileSource | StreamSource:
    """The source for whatever the caller named."""
    if backend not in ("auto", "pread", "mmap"):
        raise InputError(f"backend is 'auto', 'pread' or 'mmap', not {backend!r}", rule="source.backend")
    if isinstance(source, (str, os.PathLike)):
        return MmapSource(source) if backend == "mmap" else FileSource(source)
    if isinstance(source, (bytes, bytearray, memoryview, mmap.mmap)):
        return BufferSource(cast("bytes", source), share=backend == "mmap")
    if hasattr(source, "read") and hasattr(source, "seek"):
        return StreamSource(source) if source.seekable() else SpooledSource(source)
    try:
        return BufferSource(cast("memoryview", source), share=backend == "mmap")
    except TypeError:
        raise InputError(
            f"a path, bytes or a binary file can be opened, not {type(source).__name__}", rule="source.kind"
        ) from None


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
