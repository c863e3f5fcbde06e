"""Where bytes come from: a buffer, a file by pread, a file by mmap, a file object.

All answer the `Source` protocol of the model. A read that the source cannot satisfy is
a TruncatedError, never a short result and never a signal: a file that is cut short
under a pread source is noticed at the read. Only regular files are opened; a FIFO or a
device is refused before it can block.

A file descriptor is a number that the operating system gives to the next file as soon
as it is closed. So its owner is an object, every use of the number holds a reference to
the owner, and the descriptor is closed once, when the last reference goes.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, Literal, TypeAlias, cast

from tensorglot.arguments import as_path
from tensorglot.errors import InputError, TensorglotError, TruncatedError
from tensorglot.memory import READ_NBYTES, allocate, cut
from tensorglot.threads import for_each

__all__ = [
    "Backend",
    "BufferSource",
    "Descriptor",
    "FileSource",
    "MmapSource",
    "Readable",
    "Stamp",
    "StreamSource",
    "absolute",
    "changed",
    "file_stamp",
    "naming",
    "source_for",
    "stamp_of",
]

_SPOOL_NBYTES = 16 << 20
_PIECE_NBYTES = 1 << 20

Backend: TypeAlias = Literal["auto", "pread", "mmap"]
Readable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"
Stamp: TypeAlias = tuple[int, int, int, int]
"""What changes when a file is replaced or written to: device, inode, size, time of the last change."""


def absolute(path: str | os.PathLike[str]) -> str:
    """The path as it will still be right in another working directory. No part of it is resolved."""
    text = os.fspath(path)
    return text if text.startswith(os.sep) else os.path.join(os.getcwd(), text)  # noqa: PTH109, PTH118


def stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def changed(path: str | os.PathLike[str]) -> InputError:
    """The error for a file that is not as it was read."""
    return InputError(
        "the file was changed by another process after it was read: try again",
        rule="source.changed",
        path=os.fspath(path),
    )


@contextmanager
def naming(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Puts the path into every error that names no other file."""
    try:
        yield
    except TensorglotError as error:
        if path is not None and error.path in (None, absolute(path)):
            error.path = os.fspath(path)
        raise
    except OSError as error:
        if path is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def _truncated(offset: int, nbytes: int, size: int, path: str | None = None) -> TruncatedError:
    return TruncatedError(
        f"file truncated: needs {offset + nbytes} bytes, has {size}",
        rule="source.size",
        offset=max(offset, size),
        path=path,
    )


class BufferSource:
    """Any bytes-like object."""

    def __init__(self, data: bytes | bytearray | memoryview, *, share: bool = False) -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise InputError("the buffer must be contiguous", rule="source.contiguous")
        self._view = (view.cast("B") if view.nbytes else memoryview(b"")).toreadonly()
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


class Descriptor:
    """An open file descriptor, closed when the last reference to this object goes.

    The interpreter's count of references is the count of users. It costs no lock, and
    no interrupt or fork can come between a count and what is counted.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


class FileSource:
    """A regular file, read with pread: safe against a file that changes under us, and usable by many threads.

    It may be closed at any time: reads that are under way end well, later ones are
    refused. It can be sent to another process, which opens the file again and finds it
    unchanged.
    """

    _descriptor: Descriptor | None = None
    _path: str | None

    def __init__(self, file: str | os.PathLike[str] | int) -> None:
        """Opens a path, or takes over a descriptor."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if isinstance(file, int):
            self.path, held = None, Descriptor(file)
        else:
            path = as_path(file)
            self.path, held = absolute(path), Descriptor(os.open(path, flags))
        status = os.fstat(held.fd)
        self.size = status.st_size
        self.stamp = stamp_of(status)
        if not stat.S_ISREG(status.st_mode):
            del held
            raise InputError(f"{_kind(status.st_mode)}, not a regular file", rule="source.regular", path=self.path)
        self._descriptor = held

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            raise InputError("a file opened by descriptor cannot be pickled: open it by path", rule="source.pickle")
        return _reopened, (type(self), self.path, self.stamp)

    def descriptor(self) -> Descriptor:
        """What a caller refers to for as long as it uses the number."""
        held = self._descriptor
        if held is None:
            raise InputError("the archive is closed", rule="archive.closed")
        return held

    def read(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > self.size:
            raise _truncated(offset, nbytes, self.size, self.path)
        out = allocate(nbytes, offset)
        if nbytes <= READ_NBYTES:
            self.read_into(offset, out)
        else:
            for_each(
                lambda piece: self.read_into(offset + piece[0], out[piece[0] : sum(piece)]), cut(nbytes, READ_NBYTES)
            )
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        held, done = self.descriptor(), 0
        try:
            while done < len(out):
                got = os.preadv(held.fd, [out[done:]], offset + done)
                if got == 0:
                    raise _truncated(offset, len(out), offset + done, self.path)
                done += got
        finally:
            del held  # the traceback of an error must not keep the file open

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        if offset + nbytes > self.size:
            raise _truncated(offset, nbytes, self.size, self.path)
        held = self.descriptor()
        try:
            data = os.pread(held.fd, nbytes, offset)
        finally:
            del held
        if len(data) == nbytes:
            return data
        return data + self.read(offset + len(data), nbytes - len(data))

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def close(self) -> None:
        self._descriptor = None


def _reopened(kind: type[FileSource] | type[MmapSource], path: str, stamp: Stamp) -> FileSource | MmapSource:
    source = kind(path)
    if source.stamp != stamp:
        raise changed(path)
    return source


class MmapSource(BufferSource):
    """A regular file as shared memory: no copy, and the caller's promise that nobody cuts the file short.

    The memory stays for as long as anything refers to it, so there is nothing to close.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with closing(FileSource(path)) as file:
            self.path, self.stamp = absolute(path), file.stamp
            held = file.descriptor()
            try:
                data = mmap.mmap(held.fd, file.size, access=mmap.ACCESS_READ) if file.size else b""
            except ValueError:
                raise _truncated(0, file.size, os.fstat(held.fd).st_size, self.path) from None
            finally:
                del held
        super().__init__(cast("bytes", data), share=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (type(self), self.path, self.stamp)


class StreamSource:
    """A seekable binary file object of the caller. Reads take turns."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._only_in = os.getpid() if _has_descriptor(stream) else None
        _read_piece(stream, 0)
        _ask(stream.seek, 0, io.SEEK_END)
        self.size = _ask(stream.tell)

    def read(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > self.size:
            raise _truncated(offset, nbytes, self.size)
        out = allocate(nbytes, offset)
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        if self._only_in not in (None, os.getpid()):
            # Both processes would move the one position that they share, and read what the other one was to read.
            raise InputError(
                "a file object cannot be shared with a forked process: open the file by path", rule="source.fork"
            )
        with self._lock:
            _ask(self._stream.seek, offset)
            done = 0
            while done < len(out):
                data = _read_piece(self._stream, len(out) - done)
                if not data:
                    raise _truncated(offset, len(out), offset + done)
                out[done : done + len(data)] = data
                done += len(data)

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read(offset, nbytes))

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("a file object cannot be pickled: open the file by path", rule="source.pickle")


def _has_descriptor(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except Exception:  # noqa: BLE001 - most have none, and say so in many ways
        return False


def _ask(method: Callable[..., Any], *arguments: int) -> Any:
    """What a file object of the caller answers. Whatever it raises, it is about that object."""
    try:
        return method(*arguments)
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, io.UnsupportedOperation):
            raise
        raise InputError(
            f"the file object cannot be read: {type(error).__name__}: {error}", rule="source.stream"
        ) from error


def _read_piece(stream: BinaryIO, nbytes: int) -> bytes:
    data = _ask(stream.read, nbytes)
    if not isinstance(data, (bytes, bytearray, memoryview)) or len(data) > nbytes:
        hint = ": open the file in binary mode ('rb')" if isinstance(data, str) else ""
        raise InputError(
            f"read({nbytes}) of the file object must return at most {nbytes} bytes, not {type(data).__name__}{hint}",
            rule="source.stream",
        )
    return cast("bytes", data)


def _read_all(stream: BinaryIO) -> BufferSource | FileSource:
    """A stream that cannot seek, read to its end: into memory if it is short, else into a file without a name."""
    data = bytearray()
    while len(data) <= _SPOOL_NBYTES:
        piece = _read_piece(stream, _PIECE_NBYTES)
        if not piece:
            return BufferSource(data)
        data += piece
    with tempfile.TemporaryFile() as file:
        file.write(data)
        while piece := _read_piece(stream, _PIECE_NBYTES):
            file.write(piece)
        file.flush()
        return FileSource(os.dup(file.fileno()))


def file_stamp(source: object, path: str | os.PathLike[str] | None = None) -> Stamp | None:
    """The stamp of the file that a source reads, as it was opened; None for what is no file, or not that of `path`."""
    if not isinstance(source, (FileSource, MmapSource)):
        return None
    if path is not None and (source.path is None or os.path.realpath(source.path) != os.path.realpath(path)):
        return None
    return source.stamp


def source_for(source: Readable, backend: Backend = "auto") -> BufferSource | FileSource | StreamSource:
    """The source for whatever the caller named."""
    if isinstance(source, (str, os.PathLike)):
        return MmapSource(source) if backend == "mmap" else FileSource(source)
    if hasattr(source, "read") and not isinstance(source, mmap.mmap):
        stream = cast("BinaryIO", source)
        seekable = hasattr(stream, "seek") and (not hasattr(stream, "seekable") or _ask(stream.seekable))
        return StreamSource(stream) if seekable else _read_all(stream)
    try:
        return BufferSource(cast("bytes", source), share=backend == "mmap")
    except InputError:
        raise
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(
            f"source must be a path, bytes or a binary file, not {type(source).__name__}", rule="source.kind"
        ) from error


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
