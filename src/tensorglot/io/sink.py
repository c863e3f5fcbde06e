"""Where bytes go: a file that is whole or absent, or a file object.

The durable save: a temporary file with a random name beside the target, created
exclusively; preallocated; written in full; given the mode and owner of the file that
it replaces; fsynced, closed, renamed through the directory's descriptor; and the
directory fsynced. Whatever is raised on the way, the temporary file is removed and
the old file is as it was. An fsync that failed is never tried again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, TypeAlias, cast

from tensorglot.errors import InputError
from tensorglot.io.local import FileSource
from tensorglot.memory import Scratch

__all__ = ["AtomicFile", "Stored", "Writable", "replace_tail", "temporary_name", "write_stream"]

Writable: TypeAlias = "str | os.PathLike[str] | BinaryIO"

_JOIN_NBYTES = 64 << 10
"""Buffers below this are joined before they are written."""
_BATCH_NBYTES = 1 << 20
_COPY_NBYTES = 8 << 20


class Stored(Protocol):
    """Bytes of another source, to be copied without passing through Python where the system can."""

    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def source(self) -> object: ...
    def read_into(self, offset: int, out: memoryview) -> None: ...


Piece: TypeAlias = "bytes | bytearray | memoryview | Stored"


def temporary_name() -> str:
    """What a file or directory is called until it is whole."""
    return f".tensorglot-{os.urandom(8).hex()}.tmp"


class AtomicFile:
    """A file being written. It replaces the target when the `with` block ends well, and never was when it does not."""

    _directory = -1
    _fd = -1
    _temporary = ""
    _position = 0

    def __init__(self, target: str | os.PathLike[str], *, durable: bool = True) -> None:
        self._durable = durable
        resolved = Path(os.path.realpath(target))
        self._parent = resolved.parent
        self._name = resolved.name
        if not self._name or resolved.is_dir():
            raise InputError(f"{target} is a directory", rule="sink.target")

    def __enter__(self) -> AtomicFile:
        try:
            self._directory = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._old = self._stat_old()
            self._create()
        except BaseException:
            self._abandon()
            raise
        return self

    def _create(self) -> None:
        """An empty file of our own. Nobody else can read what is to replace a file that they could not read."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        mode = 0o666 if self._old is None else 0o600
        self._temporary = temporary_name()
        try:
            self._fd = os.open(self._temporary, flags, mode, dir_fd=self._directory)
        except FileExistsError:
            self._temporary = ""  # not ours to remove
            raise

    def _stat_old(self) -> os.stat_result | None:
        try:
            status = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise InputError("the target exists and is not a regular file", rule="sink.target")
        return status

    def reserve(self, nbytes: int) -> None:
        """Takes the disk space now: a full disk is found out before anything is written."""
        if nbytes <= _BATCH_NBYTES or not hasattr(os, "posix_fallocate"):
            return
        try:
            os.posix_fallocate(self._fd, 0, nbytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise

    def write(self, pieces: Iterable[Piece]) -> int:
        """Appends all pieces, small ones together. Returns how many bytes the file has now."""
        for batch in _batches(pieces):
            if isinstance(batch, memoryview):
                self._write_buffer(batch)
            else:
                self._copy(batch)
        return self._position

    def _write_buffer(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], self._position + done)
        self._position += done

    def _copy(self, span: Stored) -> None:
        begin = span.begin
        if isinstance(span.source, FileSource):
            begin = self._copy_in_kernel(span.source.fileno(), begin, span.end)
        scratch = Scratch(min(_COPY_NBYTES, span.end - begin))
        while begin < span.end:
            piece = scratch.room(min(_COPY_NBYTES, span.end - begin), begin)
            span.read_into(begin - span.begin, piece)
            self._write_buffer(piece)
            begin += len(piece)

    def _copy_in_kernel(self, fd: int, begin: int, end: int) -> int:
        while begin < end:
            try:
                done = os.copy_file_range(fd, self._fd, end - begin, begin, self._position)
            except OSError as error:
                if error.errno in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    break
                raise
            if done == 0:
                break
            begin += done
            self._position += done
        return begin

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._abandon()

    def _finish(self) -> None:
        os.ftruncate(self._fd, self._position)
        if self._old is not None:
            self._take_over(self._old)
        if self._durable:
            os.fsync(self._fd)
        fd, self._fd = self._fd, -1
        os.close(fd)
        os.rename(self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._temporary = ""
        if self._durable:
            os.fsync(self._directory)

    def _take_over(self, old: os.stat_result) -> None:
        """Owner, group and mode of the old file; what cannot be kept leaves no more rights than before."""
        mode = stat.S_IMODE(old.st_mode)
        status = os.fstat(self._fd)
        if (status.st_uid, status.st_gid) != (old.st_uid, old.st_gid):
            try:
                os.fchown(self._fd, old.st_uid, old.st_gid)
            except PermissionError:
                mode = self._take_over_group(old.st_gid, mode & 0o777)
        os.fchmod(self._fd, mode)

    def _take_over_group(self, gid: int, mode: int) -> int:
        """The group alone. Where that fails too, our own group gets the rights of others."""
        try:
            os.fchown(self._fd, -1, gid)
        except PermissionError:
            return (mode & 0o707) | (mode & 0o007) << 3
        return mode

    def _abandon(self) -> None:
        """Closes what is open and removes the temporary file if it is still there."""
        try:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                os.close(fd)
        finally:
            try:
                if self._temporary:
                    self._unlink()
            finally:
                if self._directory >= 0:
                    directory, self._directory = self._directory, -1
                    os.close(directory)

    def _unlink(self) -> None:
        temporary, self._temporary = self._temporary, ""
        with contextlib.suppress(FileNotFoundError):  # an interrupt directly before it was made or after it was renamed
            os.unlink(temporary, dir_fd=self._directory)

    __del__ = _abandon  # an interrupt may come before the `with` block has us, or before `__exit__` has begun


def replace_tail(path: str | os.PathLike[str], begin: int, tail: bytes, *, durable: bool) -> None:
    """Writes over the end of a file, from `begin` on. What fails is undone; only a kill or a crash is not."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        old = os.pread(fd, os.fstat(fd).st_size - begin, begin)
        try:
            _put_tail(fd, begin, tail, durable)
        except BaseException:
            _put_tail(fd, begin, old, durable)
            raise
    finally:
        os.close(fd)


def _put_tail(fd: int, begin: int, tail: bytes, durable: bool) -> None:
    done = 0
    while done < len(tail):
        done += os.pwrite(fd, memoryview(tail)[done:], begin + done)
    os.ftruncate(fd, begin + len(tail))
    if durable:
        os.fsync(fd)


def write_stream(stream: BinaryIO, pieces: Iterable[Piece]) -> int:
    """The same pieces to a file object, which decides for itself what whole and durable mean."""
    total = 0
    for batch in _batches(pieces):
        if isinstance(batch, memoryview):
            total += _write_all(stream, batch)
            continue
        nbytes = batch.end - batch.begin
        scratch = Scratch(min(_COPY_NBYTES, nbytes))
        for start in range(0, nbytes, _COPY_NBYTES):
            piece = scratch.room(min(_COPY_NBYTES, nbytes - start), batch.begin + start)
            batch.read_into(start, piece)
            total += _write_all(stream, piece)
    return total


def _write_all(stream: BinaryIO, data: memoryview) -> int:
    done = 0
    while done < len(data):
        written = stream.write(data[done:])
        done += len(data) - done if written is None else written
    return done


def _batches(pieces: Iterable[Piece]) -> Iterator[memoryview | Stored]:
    """Joins runs of small buffers; passes everything else on."""
    small: list[memoryview] = []
    nbytes = 0
    for piece in pieces:
        whole = memoryview(piece) if isinstance(piece, (bytes, bytearray, memoryview)) else piece
        little = isinstance(whole, memoryview) and len(whole) < _JOIN_NBYTES
        if small and (nbytes >= _BATCH_NBYTES or not little):
            yield memoryview(b"".join(small))
            small, nbytes = [], 0
        if little:
            small.append(cast("memoryview", whole))
            nbytes += len(small[-1])
        else:
            yield whole
    if small:
        yield memoryview(b"".join(small))
