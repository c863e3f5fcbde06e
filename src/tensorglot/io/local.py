"""Sources that are memory or a regular file, read by pread or mmap.

All implement the `Source` protocol of the model. A read beyond the end is a TruncatedError,
never a short result and never a signal: a pread source notices at the read that its file
was truncated. Only regular files are opened; a FIFO or a device is refused before it can
block.

As soon as a file descriptor is closed, the operating system may give its number to another
file. So a `Descriptor` object owns the number, every use of it holds a reference to the
owner, and the descriptor is closed exactly once, with the last reference.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_path
from tensorglot.cached import cached_property
from tensorglot.errors import InputError, TensorglotError, TruncatedError
from tensorglot.io.place import Place, absolute
from tensorglot.memory import READ_NBYTES, allocate, cut
from tensorglot.threads import for_each

__all__ = [
    "BaseSource",
    "BufferSource",
    "Descriptor",
    "FileSource",
    "MmapSource",
    "PrivateMapping",
    "Stamp",
    "add_path_to_errors",
    "change_error",
    "file_stamp",
    "stamp_now",
    "stamp_of",
]

Stamp: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size and modification time of a file: changes when the file is replaced or written to."""
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE: private mappings may be larger than the memory."""
_SKIP_NBYTES = 24 << 10
"""A gap of up to this size between two runs is read, too: copying it costs less than another system call."""
_RUNS = 512
"""Runs of one system call: with the gaps between them just below 1024 buffers (IOV_MAX)."""
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def stamp_of(status: os.stat_result) -> Stamp:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def stamp_now(path: str | os.PathLike[str]) -> Stamp | None:
    """The stamp of the file that is at a path now; None if there is none."""
    try:
        return stamp_of(os.stat(path))  # noqa: PTH116 - pathlib would be imported to open a file
    except OSError:
        return None


def file_stamp(source: object, path: str | os.PathLike[str] | None = None) -> Stamp | None:
    """The stamp of a source's file when it was opened; None if it has no file, or not the one at `path`."""
    if not isinstance(source, (FileSource, MmapSource)):
        return None
    if path is not None and (source.path is None or os.path.realpath(source.path) != os.path.realpath(path)):
        return None
    return source.stamp


def change_error(path: str | os.PathLike[str]) -> InputError:
    """The error for a file that was changed after it was read."""
    return InputError(
        "the file was changed by another process after it was read: try again",
        rule="source.changed",
        path=os.fspath(path),
    )


class add_path_to_errors:  # noqa: N801
    """A context that sets the path of errors, unless they already name another file."""

    __slots__ = ("_path",)

    def __init__(self, path: str | Place | None) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        path = self._path
        if error is None or path is None:
            return
        path = path.shown if isinstance(path, Place) else path
        if isinstance(error, TensorglotError) and error.path in (None, absolute(path)):
            error.path = path
        elif isinstance(error, OSError) and error.filename is None:
            error.filename = path


class BaseSource(ABC):
    """Implements the other reads by `read_into`."""

    size: int
    path: str | None = None
    concurrency: int | None = None

    def read(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > self.size:
            raise self.truncation_error(offset, nbytes)
        out = allocate(nbytes, offset)
        self.read_into(offset, out)
        return out

    @abstractmethod
    def read_into(self, offset: int, out: memoryview) -> None:
        """Fills `out` with the bytes from `offset` on."""

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        for begin, nbytes, offset in zip(begins, sizes, offsets, strict=True):
            self.read_into(begin, out[offset : offset + nbytes])

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read(offset, nbytes))

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def close(self) -> None:  # noqa: B027 - a source in memory has nothing to release
        """Releases what is open."""

    def truncation_error(self, offset: int, nbytes: int, size: int | None = None) -> TruncatedError:
        """The error for a read beyond the end of the source; `size` is its size now, if that has changed."""
        size = self.size if size is None else size
        return TruncatedError(
            f"file truncated: needs {offset + nbytes} bytes, has {size}",
            rule="source.size",
            offset=max(offset, size),
            path=self.path,
        )


class BufferSource(BaseSource):
    """Any bytes-like object."""

    def __init__(self, data: bytes | bytearray | memoryview, *, share: bool = False) -> None:
        view = memoryview(data)
        if not view.c_contiguous:
            raise InputError("the buffer must be contiguous", rule="source.contiguous")
        self._view = (view.cast("B") if view.nbytes else memoryview(b"")).toreadonly()
        self._share = share
        self.size = len(self._view)

    def read_into(self, offset: int, out: memoryview) -> None:
        if offset + len(out) > self.size:
            raise self.truncation_error(offset, len(out))
        out[:] = self._view[offset : offset + len(out)]

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        if offset + nbytes > self.size:
            raise self.truncation_error(offset, nbytes)
        return bytes(self._view[offset : offset + nbytes])

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        if not self._share:
            return None
        if offset + nbytes > self.size:
            raise self.truncation_error(offset, nbytes)
        return self._view[offset : offset + nbytes]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(BufferSource, share=self._share), (bytes(self._view),)


class Descriptor:
    """An open file descriptor, closed with the last reference to this object.

    The interpreter's reference count is the count of users. It needs no lock, and no interrupt
    or fork can happen between a use and its counting.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at exit, `os` may be gone before the object
        close(self.fd)


class FileSource(BaseSource):
    """A regular file, read by pread: safe if the file changes meanwhile, and usable by many threads.

    It may be closed at any time: reads in progress complete, later ones are refused. Pickled,
    it opens the file again in the other process, and checks that the file is unchanged.
    """

    _descriptor: Descriptor | None = None

    def __init__(self, file: str | os.PathLike[str] | int) -> None:
        """Opens a path, or takes ownership of a descriptor."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # without O_NONBLOCK, opening a FIFO would block
        if isinstance(file, int):
            held = Descriptor(file)
        else:
            place = file if isinstance(file, Place) else Place.at(as_path(file))
            self.path, held = place.absolute, Descriptor(os.open(place.text, flags))
        status = os.fstat(held.fd)
        self.size = status.st_size
        self.stamp = stamp_of(status)
        if not stat.S_ISREG(status.st_mode):
            del held
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
            raise InputError(f"{kind}, not a regular file", rule="source.regular", path=self.path)
        self._descriptor = held

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            raise InputError("a file opened by descriptor cannot be pickled: open it by path", rule="source.pickle")
        return _reopen, (type(self), self.path, self.stamp)

    def descriptor(self) -> Descriptor:
        """The owner of the descriptor: keep a reference to it while the number is in use."""
        held = self._descriptor
        if held is None:
            raise InputError("the archive is closed", rule="archive.closed")
        return held

    def read(self, offset: int, nbytes: int) -> memoryview:
        if offset + nbytes > self.size:
            raise self.truncation_error(offset, nbytes)
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
                got = os.preadv(held.fd, [out[done:] if done else out], offset + done)
                if got == 0:
                    raise self.truncation_error(offset, len(out), offset + done)
                done += got
        finally:
            del held  # the traceback of an error must not keep the file open

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        """Reads runs that are close together by one system call, with the gaps between them."""
        if not begins:
            return
        first, nbytes = np.array(begins, np.int64), np.array(sizes, np.int64)
        gaps = first[1:] - (first + nbytes)[:-1]
        apart = (gaps < 0) | (gaps > _SKIP_NBYTES)
        apart[_RUNS - 1 :: _RUNS] = True
        # Arrays instead of memoryviews, because the garbage collector does not track them.
        target, skipped = np.frombuffer(out, np.uint8), np.empty(_SKIP_NBYTES, np.uint8)
        for a, b in pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(first)]):
            outs = [target[at : at + n] for at, n in zip(offsets[a:b], sizes[a:b], strict=True)]
            buffers = [skipped] * (2 * len(outs) - 1)
            buffers[::2] = outs
            buffers[1::2] = [skipped[:gap] for gap in gaps[a : b - 1].tolist()]
            if self._read_some(begins[a], buffers) < begins[b - 1] + sizes[b - 1] - begins[a]:
                for begin, run in zip(begins[a:b], outs, strict=True):
                    self.read_into(begin, run.data)

    def _read_some(self, offset: int, buffers: Sequence[NDArray[np.uint8]]) -> int:
        held = self.descriptor()
        try:
            return os.preadv(held.fd, cast("Sequence[memoryview]", buffers), offset)
        finally:
            del held

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        if offset + nbytes > self.size:
            raise self.truncation_error(offset, nbytes)
        held = self.descriptor()
        try:
            data = os.pread(held.fd, nbytes, offset)
        finally:
            del held
        if len(data) == nbytes:
            return data
        return data + self.read(offset + len(data), nbytes - len(data))

    def close(self) -> None:
        self._descriptor = None


class PrivateMapping(mmap.mmap):
    """A copy-on-write mapping: writing to a page makes a private copy of it, so the file never changes.

    NumPy arrays of a mapped file are read-only all the same. But frameworks without read-only
    arrays (PyTorch) can share this memory safely.
    """

    @cached_property
    def address(self) -> int:
        """Address of the first byte."""
        return int(np.frombuffer(self, np.uint8).__array_interface__["data"][0])


class MmapSource(BufferSource):
    """A regular file as shared memory, without a copy. The caller promises that nobody truncates the file.

    The mapping lives as long as anything refers to it, so there is nothing to close.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with closing(FileSource(path)) as file:
            self.path, self.stamp = file.path, file.stamp
            held = file.descriptor()
            try:
                data = _map(held.fd, file.size) if file.size else b""
            except ValueError:
                raise self.truncation_error(0, file.size, os.fstat(held.fd).st_size) from None
            finally:
                del held
        super().__init__(cast("bytes", data), share=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self.path, self.stamp)


def _map(fd: int, size: int) -> mmap.mmap:
    try:
        return PrivateMapping(fd, size, flags=mmap.MAP_PRIVATE | _NO_RESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        # The system reserves memory for every page of a writable mapping.
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ)


def _reopen(kind: type[FileSource] | type[MmapSource], path: str, stamp: Stamp) -> FileSource | MmapSource:
    source = kind(path)
    if source.stamp != stamp:
        raise change_error(path)
    return source
