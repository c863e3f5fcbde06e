"""Where bytes go: a file that is replaced atomically, a file that is edited, or a file object.

The durable save: a temporary file in the target's directory; preallocated; written in
full; given the mode and owner of the file that it replaces; fsynced; renamed through the
directory's descriptor; and the directory fsynced. Whatever is raised on the way, the
temporary file is removed and the old file is as it was. An fsync that failed is never
tried again.

The temporary file has no name (O_TMPFILE) until all of it is on disk. So a process that
is killed by a signal, whichever it is, leaves nothing behind, and a library need not
touch the signal handlers of the program that it is part of. A file cannot be linked over
another one: it gets a random name, and is renamed at once. Between those two system
calls, and during the whole save on a file system without O_TMPFILE, a kill leaves that
file. The name is created exclusively, so nobody can plant a link there.

Who changes a file rather than replaces it (an editor) says which state it has read, and
finds out here whether that is still what is there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, TypeAlias, cast

from tensorglot.arguments import as_path
from tensorglot.errors import InputError
from tensorglot.io.local import FileSource, Stamp, changed, stamp_of
from tensorglot.memory import Scratch, cut

__all__ = ["AtomicFile", "Stored", "Writable", "editing", "replace_tail", "temporary_name", "write_stream"]

Writable: TypeAlias = "str | os.PathLike[str] | BinaryIO"

_JOIN_NBYTES = 64 << 10
"""Buffers below this are joined before they are written."""
_BATCH_NBYTES = 1 << 20
_COPY_NBYTES = 8 << 20
_LOCK_SECONDS = 0.2
"""A lock is advisory, and anybody who can open a directory can keep one: then a save goes on without."""
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EISDIR, errno.ENOENT})
"""How an operating system or a file system says that it has no O_TMPFILE."""


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
    """A file being written. It replaces the target when the `with` block ends well, and never was when it does not.

    A link at the target is followed, unless the caller derived the name itself
    (`follow=False`): then anything but a regular file is refused. With `expect` the
    target must still be the file of that stamp when it is replaced.
    """

    stamp: Stamp | None = None
    """Of the new file, once it is there."""
    _directory = -1
    _fd = -1
    _temporary = ""
    _position = 0

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        durable: bool = True,
        follow: bool = True,
        expect: Stamp | None = None,
    ) -> None:
        self._target = Path(as_path(target))
        self._durable = durable
        self._expect = expect
        resolved = self._target if not follow else Path(os.path.realpath(self._target))
        self._parent = Path(os.path.realpath(resolved.parent))
        self._name = resolved.name
        if not self._name or (follow and resolved.is_dir()):
            raise self._refusal("a directory")

    def _refusal(self, what: str) -> InputError:
        return InputError(f"the target is {what}", rule="sink.target", path=str(self._target))

    def __enter__(self) -> AtomicFile:
        try:
            self._directory = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._old = self._stat_target()
            self._create()
        except BaseException:
            self._abandon()
            raise
        return self

    def _stat_target(self) -> os.stat_result | None:
        try:
            status = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise self._refusal("a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file")
        return status

    def _create(self) -> None:
        """An empty file of our own, without a name where there can be one."""
        if hasattr(os, "O_TMPFILE"):
            try:
                self._open(".", os.O_TMPFILE)
            except OSError as error:
                if error.errno not in _NO_TMPFILE:
                    raise
            else:
                return
        self._create_named()

    def _create_named(self) -> None:
        self._temporary = temporary_name()
        try:
            self._open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        except FileExistsError:
            self._temporary = ""  # not ours to remove
            raise

    def _open(self, name: str, flags: int) -> None:
        """Nobody else can read what is to replace a file that they could not read."""
        mode = 0o666 if self._old is None else 0o600
        self._fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | flags, mode, dir_fd=self._directory)

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
        _write_at(self._fd, data, self._position)
        self._position += len(data)

    def _copy(self, span: Stored) -> None:
        begin = span.begin
        if isinstance(span.source, FileSource):
            begin = self._copy_range(span.source, begin, span.end)
        for piece in _read_pieces(span, begin):
            self._write_buffer(piece)

    def _copy_range(self, source: FileSource, begin: int, end: int) -> int:
        """Has the operating system copy as much as it can (copy_file_range); returns how far it came."""
        held = source.descriptor()
        try:
            while begin < end:
                done = os.copy_file_range(held.fd, self._fd, end - begin, begin, self._position)
                if done == 0:
                    break
                begin += done
                self._position += done
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
        finally:
            del held
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
        self._seal()
        if not self._temporary and not self._link():
            self._write_again()
            self._seal()
        self.stamp = stamp_of(os.fstat(self._fd))
        fd, self._fd = self._fd, -1
        os.close(fd)
        with _taking_turns(self._directory):
            if self._expect is not None:
                self._check_expected(self._expect)
            os.rename(self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._temporary = ""
        if self._durable:
            os.fsync(self._directory)

    def _seal(self) -> None:
        """All that the file is going to be, on disk."""
        os.ftruncate(self._fd, self._position)
        if self._old is not None:
            self._take_over(self._old)
        if self._durable:
            os.fsync(self._fd)

    def _link(self) -> bool:
        """Gives the file its temporary name. False where the system does not allow it."""
        self._temporary = temporary_name()
        try:
            os.link(f"/proc/self/fd/{self._fd}", self._temporary, dst_dir_fd=self._directory)
        except OSError as error:
            self._temporary = ""  # not ours to remove
            if isinstance(error, FileExistsError):
                raise
            return False
        return True

    def _write_again(self) -> None:
        """The same bytes to a file that has a name from the beginning."""
        unnamed, end = FileSource(self._fd), self._position
        self._fd, self._position = -1, 0
        self._create_named()
        self._copy_range(unnamed, 0, end)
        while self._position < end:
            self._write_buffer(unnamed.read(self._position, min(_COPY_NBYTES, end - self._position)))

    def _check_expected(self, expected: Stamp) -> None:
        now = self._stat_target()
        if now is None or stamp_of(now) != expected:
            raise changed(self._target)

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


@contextlib.contextmanager
def _taking_turns(directory: int) -> Iterator[None]:
    """One rename into a directory at a time, so that none comes between an editor's last look and its rename."""
    end = time.monotonic() + _LOCK_SECONDS
    while not _lock(directory) and time.monotonic() < end:
        time.sleep(0.001)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_UN)


def _lock(fd: int) -> bool:
    """False if somebody else has the lock. On a file system without locks everybody gets it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def editing(path: str | os.PathLike[str]) -> Iterator[Stamp]:
    """Keeps other editors away from a file while it is read, changed and written. Gives the state that it is in."""
    source = FileSource(path)
    held = source.descriptor()
    try:
        if not _lock(held.fd):
            raise InputError(
                "another process is editing the file: try again later", rule="source.locked", path=os.fspath(path)
            )
        yield stamp_of(os.fstat(held.fd))
    finally:
        del held
        source.close()


def replace_tail(path: str | os.PathLike[str], begin: int, tail: bytes, *, expect: Stamp, durable: bool) -> Stamp:
    """Writes over the end of a file, from `begin` on. What fails is undone; only a kill or a crash is not.

    The file must have the stamp `expect` before, and still be at its path behind. Returns the new stamp.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if stamp_of(os.fstat(fd)) != expect:
            raise changed(path)
        old = os.pread(fd, expect[2] - begin, begin)
        try:
            _put_tail(fd, begin, tail, durable)
            new = stamp_of(os.fstat(fd))
            _check_at(path, new)
        except BaseException:
            _put_tail(fd, begin, old, durable)
            raise
        return new
    finally:
        os.close(fd)


def _check_at(path: str | os.PathLike[str], stamp: Stamp) -> None:
    """Another file at the path means that what was written is gone already."""
    try:
        now = stamp_of(os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        now = None
    if now is None or now[:2] != stamp[:2]:
        raise changed(path)


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def _put_tail(fd: int, begin: int, tail: bytes, durable: bool) -> None:
    _write_at(fd, memoryview(tail), begin)
    os.ftruncate(fd, begin + len(tail))
    if durable:
        os.fsync(fd)


def write_stream(stream: BinaryIO, pieces: Iterable[Piece]) -> int:
    """The same pieces to a file object, which decides for itself what atomic and durable mean."""
    total = 0
    for batch in _batches(pieces):
        if isinstance(batch, memoryview):
            total += _write_all(stream, batch)
            continue
        for piece in _read_pieces(batch, batch.begin):
            total += _write_all(stream, piece)
    return total


def _read_pieces(span: Stored, begin: int) -> Iterator[memoryview]:
    """A span from `begin` on. A piece is valid until the next one is asked for."""
    left = span.end - begin
    scratch = Scratch(min(_COPY_NBYTES, left))
    for offset, nbytes in cut(left, _COPY_NBYTES):
        piece = scratch.room(nbytes, begin + offset)
        span.read_into(begin + offset - span.begin, piece)
        yield piece


def _write_all(stream: BinaryIO, data: memoryview) -> int:
    done = 0
    while done < len(data):
        try:
            written = stream.write(data[done:])
        except (TypeError, ValueError) as error:  # a text file, a closed file, one opened for reading
            raise InputError(
                f"cannot write bytes to the file object: open it in binary mode ('wb') ({error})", rule="sink.stream"
            ) from error
        if written is None and not isinstance(stream, io.RawIOBase):
            written = len(data) - done  # an object that says nothing takes everything
        if not written:
            raise BlockingIOError(errno.EAGAIN, "the file object would block")
        done += written
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
