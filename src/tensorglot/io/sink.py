"""Writing a file that is replaced atomically.

A durable save: create a temporary file in the target's directory, preallocate, write
everything, set the mode and owner of the file to be replaced, fsync, rename through the
directory's descriptor, fsync the directory. After any error the temporary file is
removed and the old file is unchanged. An fsync that failed is never tried again.

The temporary file has no name (O_TMPFILE) until it is on disk. So a process that is
killed leaves nothing behind, and the library needs no signal handlers. A file cannot be
linked over another one: it gets a random name and is renamed at once. A kill between
those two system calls, or at any time on a file system without O_TMPFILE, leaves that
file. The name is created exclusively, so nobody can plant a link there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import BinaryIO, TypeAlias

from tensorglot.errors import InputError
from tensorglot.io.local import FileSource, Stamp, change_error, stamp_of
from tensorglot.io.pieces import COPY_NBYTES, Piece, Stored, join_small, read_pieces

__all__ = [
    "AtomicFile",
    "Writable",
    "copy_at",
    "is_temporary",
    "lock",
    "name_in_errors",
    "open_spool",
    "sync_folder",
    "temporary_name",
    "write_at",
]

Writable: TypeAlias = "str | os.PathLike[str] | BinaryIO"

_RESERVE_NBYTES = 1 << 20
"""Smaller files are not preallocated."""
_LOCK_SECONDS = 0.2
"""How long to wait for the lock of a directory. Locks are advisory, and anybody who can open the directory can hold
one forever; so after this time a save continues without it."""
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
"""The errors of an operating system or file system that does not support an operation."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def temporary_name() -> str:
    """A random name for a file or directory that is being written."""
    return f".tensorglot-{os.urandom(8).hex()}.tmp"


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_temporary(name: str) -> bool:
    """Whether a name may be one of `temporary_name`."""
    return name.startswith(".tensorglot-") and name.endswith(".tmp")


class AtomicFile:
    """A file being written. It replaces the target at the end of the `with` block; after an error it is removed.

    A symbolic link at the target is followed. With `follow=False`, for names that the caller
    derived itself, anything but a regular file is refused. With `expect` the target must still
    have that stamp when it is replaced. With `shared` the file has a name from the beginning
    (`path`), so that other processes can write to it. The context `around` is entered when all
    bytes are on disk, and left when the target has been replaced.
    """

    stamp: Stamp | None = None
    """Stamp of the new file, after the `with` block."""
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
        shared: bool = False,
        around: contextlib.AbstractContextManager[object] | None = None,
    ) -> None:
        from pathlib import Path  # not before something is saved: see io/place.py

        self._given = text = os.fspath(target)
        self._target = Path(target)
        self._durable = durable
        self._shared = shared
        self._expect = expect
        self._around = around or contextlib.nullcontext()
        resolved = Path(os.path.realpath(self._target)) if follow else self._target
        self._parent = resolved.parent if follow else Path(os.path.realpath(resolved.parent))
        self._name = resolved.name
        # `realpath` drops a slash or a dot at the end, with which a reader would not find the file.
        if os.path.basename(text) in ("", ".", "..") or (follow and resolved.is_dir()):  # noqa: PTH119
            raise self._refusal("a directory" if text else "an empty path")

    def _refusal(self, what: str) -> InputError:
        return InputError(f"the target is {what}", rule="sink.target", path=self._given)

    def __enter__(self) -> AtomicFile:
        try:
            self._directory = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._old = self._stat_target()
            with name_in_errors(self._target):
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
        """Creates an empty file, without a name if the file system supports that."""
        if hasattr(os, "O_TMPFILE") and not self._shared:
            try:
                return self._open(".", os.O_TMPFILE)
            except OSError as error:
                if error.errno not in {*_UNSUPPORTED, errno.EISDIR, errno.ENOENT}:
                    raise
        return self._create_named()

    def _create_named(self) -> None:
        self._temporary = temporary_name()
        try:
            self._open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        except FileExistsError:
            self._temporary = ""  # not ours to remove
            raise

    def _open(self, name: str, flags: int) -> None:
        """Opens the new file. If it will replace one, only its owner can read it until it has the old one's mode."""
        mode = 0o666 if self._old is None else 0o600
        self._fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | flags, mode, dir_fd=self._directory)

    def reserve(self, nbytes: int) -> None:
        """Preallocates: a full disk is an error before anything is written."""
        if nbytes <= _RESERVE_NBYTES or not hasattr(os, "posix_fallocate"):
            return
        with name_in_errors(self._target):
            try:
                os.posix_fallocate(self._fd, 0, nbytes)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise

    def write(self, pieces: Iterable[Piece]) -> int:
        """Appends all pieces, small ones together. Returns the size of the file so far."""
        for piece in join_small(pieces):
            for data in [piece] if isinstance(piece, memoryview) else self._copy(piece):
                with name_in_errors(self._target):
                    write_at(self._fd, data, self._position)
                self._position += len(data)
        return self._position

    @property
    def path(self) -> str:
        """Path of the temporary file, if it is shared."""
        return str(self._parent / self._temporary)

    def skip(self, nbytes: int) -> int:
        """Leaves room for bytes that another process writes. Returns where they begin."""
        begin = self._position
        self._position += nbytes
        return begin

    def _copy(self, span: Stored) -> Iterator[memoryview]:
        """Copies a span by copy_file_range as far as possible, and yields the bytes of the rest."""
        done = span.begin
        if isinstance(span.source, FileSource):
            try:
                done = copy_range(span.source, span.begin, span.end, self._fd, self._position)
            except OSError as error:
                if error.errno in _FULL:  # any other error may be the source's
                    error.filename = str(self._target)
                raise
        self._position += done - span.begin
        return read_pieces(span, done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with name_in_errors(self._target):
                    self._finish()
        finally:
            self._abandon()

    def _finish(self) -> None:
        # The contents are on disk before they get a name, and the name before the target is replaced: after a crash
        # at any point, the target is the old file or the new one.
        self._seal()
        if not self._temporary and not self._link():
            self._write_again()
            self._seal()
        self.stamp = stamp_of(os.fstat(self._fd))
        fd, self._fd = self._fd, -1
        os.close(fd)
        with _lock_directory(self._directory):
            if self._expect is not None:
                now = self._stat_target()
                if now is None or stamp_of(now) != self._expect:
                    raise change_error(self._target)
            with self._around:
                os.rename(self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._temporary = ""
        if self._durable:
            os.fsync(self._directory)

    def _seal(self) -> None:
        """Sets size, owner and mode, and syncs."""
        os.ftruncate(self._fd, self._position)
        if self._old is not None:
            self._take_over(self._old)
        if self._durable:
            os.fsync(self._fd)

    def _link(self) -> bool:
        """Gives the unnamed file its temporary name; False if the system does not allow it."""
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
        """Copies the unnamed file to a named one."""
        unnamed = FileSource(self._fd)
        self._fd = -1
        self._create_named()
        copy_at(unnamed, 0, self._position, self._fd, 0)

    def _take_over(self, old: os.stat_result) -> None:
        """Sets owner, group and mode of the old file. If that is not permitted, nobody gets more rights than before."""
        mode = stat.S_IMODE(old.st_mode)
        status = os.fstat(self._fd)
        if (status.st_uid, status.st_gid) != (old.st_uid, old.st_gid):
            try:
                os.fchown(self._fd, old.st_uid, old.st_gid)
            except PermissionError:
                mode &= 0o777  # no set-uid or set-gid bit for another owner
                try:
                    os.fchown(self._fd, -1, old.st_gid)
                except PermissionError:  # our group is not the old one: it gets only the rights of others
                    mode = (mode & 0o707) | (mode & 0o007) << 3
        os.fchmod(self._fd, mode)

    def _abandon(self) -> None:
        """Closes the file and the directory, and removes the temporary file if it still exists."""
        try:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                os.close(fd)
        finally:
            try:
                if self._temporary:
                    temporary, self._temporary = self._temporary, ""
                    # Absent if an interrupt came directly before it was created or after it was renamed.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(temporary, dir_fd=self._directory)
            finally:
                if self._directory >= 0:
                    directory, self._directory = self._directory, -1
                    os.close(directory)

    # An interrupt may come between `__enter__` and the `with` block, or before `__exit__` has begun.
    __del__ = _abandon


@contextlib.contextmanager
def name_in_errors(target: str | os.PathLike[str]) -> Iterator[None]:
    """Makes errors of the operating system name the target, which the caller knows, not the temporary file.

    FileExistsError is left alone: the file that exists is not the target.
    """
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        error.filename = os.fspath(target)
        del error.filename2  # the new name of a file that could not be renamed; None would be printed
        raise


def open_spool(target: str | os.PathLike[str]) -> BinaryIO:
    """A temporary file without a name, on the file system of the target."""
    from tempfile import TemporaryFile

    with name_in_errors(target):
        return TemporaryFile(dir=os.path.dirname(os.path.realpath(target)))  # noqa: PTH120


@contextlib.contextmanager
def _lock_directory(directory: int) -> Iterator[None]:
    """Serializes renames into a directory, so that none happens between another's check of the target and rename."""
    end = time.monotonic() + _LOCK_SECONDS
    while not lock(directory) and time.monotonic() < end:
        time.sleep(0.001)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_UN)


def lock(fd: int) -> bool:
    """Takes an advisory lock; False if another process holds it. True on a file system without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def copy_range(source: FileSource, begin: int, end: int, fd: int, offset: int) -> int:
    """Copies a span by copy_file_range, as far as the file systems support it; returns the end of what was copied."""
    held = source.descriptor()
    try:
        while begin < end:
            done = os.copy_file_range(held.fd, fd, end - begin, begin, offset)
            if done == 0:
                break
            begin += done
            offset += done
    except OSError as error:
        if error.errno not in {*_UNSUPPORTED, errno.EXDEV}:
            raise
    finally:
        del held
    return begin


def copy_at(source: FileSource, begin: int, end: int, fd: int, offset: int) -> None:
    """Copies a span of a file to an offset of another."""
    done = copy_range(source, begin, end, fd, offset)
    while done < end:
        data = source.read(done, min(COPY_NBYTES, end - done))
        write_at(fd, data, offset + done - begin)
        done += len(data)


def write_at(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
