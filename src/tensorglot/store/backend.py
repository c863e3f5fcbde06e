"""Where the objects of a store are: `Backend`, and a local directory as one.

A store needs few operations of what holds it: read a range of an object, write one that
is visible only when it is complete, change a small one by compare-and-swap, list, delete.
An object store has the same ones (`remote.py`), so both have the same keys.

A writer announces itself for as long as it runs, so that a collector leaves alone what
the writer has found or written. Locally that is a lock on a file, which the operating
system releases however the process ends.

Knows keys and bytes; knows nothing of packs and refs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tensorglot.containers.store import MARKER
from tensorglot.errors import FormatError, InputError
from tensorglot.io.local import FileSource
from tensorglot.io.pieces import Piece
from tensorglot.io.sink import AtomicFile, is_temporary, sync_folder
from tensorglot.threads import Lock

__all__ = ["REMOVED", "Backend", "Directory", "Entry", "File", "Writer", "require_store"]

_TAIL_NBYTES = 16 << 10
"""What is read of the end of a file at once: a second read costs less than bytes that nobody needs."""
OPEN_FILES = 64
"""Packs that are kept open."""
_FOLDERS = ("packs", "refs", "condemned", "writers")
REMOVED = b"tensorglot-removed "
"""What a small object begins with that counts as absent: a server cannot delete an object on a condition."""
_SMALL_NBYTES = 1 << 16
"""The largest object that is changed by compare-and-swap."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a listing."""

    name: str
    """The last component of the key."""
    nbytes: int
    time: float
    """Time of the last change, in seconds since 1970."""


class File(Protocol):
    """An object that is being written."""

    def write(self, pieces: Iterable[Piece]) -> int:
        """Appends; returns the size so far."""
        ...


class Writer(Protocol):
    """The announcement of a running writer."""

    @property
    def id(self) -> str:
        """Random; the names of the packs that it writes begin with it."""
        ...

    def note(self, text: str) -> None:
        """Writes a text to the announcement of this writer, which collectors read."""
        ...


class Backend(Protocol):
    """What a store needs of the place where it is."""

    @property
    def url(self) -> str:
        """The path or URL, without credentials."""
        ...

    @property
    def concurrency(self) -> int | None:
        """Reads at a time with which it is fastest; None: as many as there are processors."""
        ...

    def read(self, key: str, offset: int, nbytes: int) -> memoryview:
        """A range of an object. One that ends beyond the object is a TruncatedError."""
        ...

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """The same, to memory of the caller."""
        ...

    def read_tail(self, key: str, nbytes: int) -> tuple[memoryview, int]:
        """The last bytes of an object, at most `nbytes`, and its size."""
        ...

    def get(self, key: str) -> bytes | None:
        """A small object; None if there is none."""
        ...

    def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        """Replaces `old` by `new`, atomically and durably; None is an absent object. False if it is not `old`."""
        ...

    def create(self, key: str) -> AbstractContextManager[File]:
        """A new object, visible and durable at the end of the `with` block; after an error there is none."""
        ...

    def delete(self, key: str) -> None:
        """Removes an object. One that is absent is no error."""
        ...

    def list(self, folder: str) -> list[Entry]:
        """The objects in a folder, in no particular order."""
        ...

    def announce(self) -> AbstractContextManager[Writer]:
        """Announces a writer until the end of the `with` block."""
        ...

    def writers(self) -> dict[str, str]:
        """The running writers by their ids, with their notes."""
        ...

    def clean(self, grace: float) -> None:
        """Removes what killed writers have left, if it is that many seconds old and no writer runs."""
        ...

    def exclusive(self, what: str) -> AbstractContextManager[None]:
        """One at a time; another one is an InputError."""
        ...

    def close(self) -> None:
        """Closes open files and connections. They are opened again when they are needed."""
        ...


def require_store(backend: Backend) -> None:
    """Refuses to go on where a store was when it was opened: a commit in its stead could not be read again."""
    if backend.get(MARKER) is None:
        raise InputError("the store is not there any more", rule="store.gone", path=backend.url)


class Directory:
    """A store in a local directory."""

    concurrency: int | None = None

    def __init__(self, path: str) -> None:
        self.url = path
        self._open: OrderedDict[str, FileSource] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Directory, (self.url,)

    def _path(self, key: str) -> str:
        """No folder on the way may be a link: what belongs to a store is below its directory."""
        folder = key if key in _FOLDERS else os.path.dirname(key)  # noqa: PTH120
        while folder:
            if os.path.islink(f"{self.url}/{folder}"):  # noqa: PTH114
                raise FormatError(f"{folder} of the store is a link", rule="store.folder", path=f"{self.url}/{folder}")
            folder = os.path.dirname(folder)  # noqa: PTH120
        return f"{self.url}/{key}"

    def _file(self, key: str) -> FileSource:
        """A pack, kept open: a reader can go on with one that a collector removes."""
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = FileSource(self._path(key))
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)  # closed when nobody reads from it
            self._open.move_to_end(key)
            return found

    def read(self, key: str, offset: int, nbytes: int) -> memoryview:
        return memoryview(self._file(key).read_bytes(offset, nbytes))

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        self._file(key).read_into(offset, out)

    def read_tail(self, key: str, nbytes: int) -> tuple[memoryview, int]:
        file = FileSource(self._path(key))
        nbytes = min(nbytes, _TAIL_NBYTES, file.size)
        return memoryview(file.read_bytes(file.size - nbytes, nbytes)), file.size

    def get(self, key: str) -> bytes | None:
        try:
            file = FileSource(self._path(key))
        except FileNotFoundError:
            return None
        if file.size > _SMALL_NBYTES:
            raise FormatError(f"{file.size} bytes, at most {_SMALL_NBYTES} expected", rule="store.object", path=key)
        data = file.read_bytes(0, file.size)
        return None if data.startswith(REMOVED) else data  # as it is in a copy of a bucket

    def swap(self, key: str, old: bytes | None, new: bytes | None) -> bool:
        with self._locked():
            if key != MARKER:
                require_store(self)
            if self.get(key) != old:
                return False
            if new is None:
                self.delete(key)
            else:
                with self.create(key) as file:
                    file.write([memoryview(new)])
        return True

    @contextmanager
    def create(self, key: str) -> Iterator[File]:
        path = self._path(key)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with AtomicFile(path, follow=False) as file:
            yield file

    def delete(self, key: str) -> None:
        path = self._path(key)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
            sync_folder(os.path.dirname(path))  # noqa: PTH120

    def list(self, folder: str) -> list[Entry]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path(folder)) as entries:
            for entry in entries:
                # The temporary files of writers begin with a dot.
                if not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        found.append(Entry(entry.name, status.st_size, status.st_mtime))
        return found

    def _locked(self) -> AbstractContextManager[None]:
        """One process and thread at a time. The lock is held for a few system calls."""
        return self._lock_file("lock", fcntl.LOCK_EX)

    @contextmanager
    def exclusive(self, what: str) -> Iterator[None]:
        require_store(self)
        try:
            held = self._lock_file(f"{what}.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.__enter__()
        except BlockingIOError:
            raise InputError(f"another process runs {what} on this store", rule="store.lock", path=self.url) from None
        try:
            yield
        finally:
            held.__exit__(None, None, None)

    @contextmanager
    def _lock_file(self, name: str, operation: int) -> Iterator[None]:
        fd = os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            try:
                fcntl.flock(fd, operation)
            except OSError as error:
                if error.errno in (errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS):
                    raise InputError(
                        "the file system does not support locks, which a store needs",
                        rule="store.lock",
                        path=self.url,
                    ) from error
                raise
            yield
        finally:
            os.close(fd)

    def close(self) -> None:
        with self._lock:
            self._open.clear()

    @contextmanager
    def announce(self) -> Iterator[Writer]:
        require_store(self)
        os.makedirs(self._path("writers"), exist_ok=True)  # noqa: PTH103
        writer = _Announcement(self._path("writers"))
        try:
            yield writer
        finally:
            writer.end()

    def writers(self) -> dict[str, str]:
        found = {}
        for entry in self.list("writers"):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(self._path(f"writers/{entry.name}"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(self._path(f"writers/{entry.name}"))  # noqa: PTH108 - its process has ended
                except BlockingIOError:
                    found[entry.name] = os.pread(fd, 1 << 20, 0).decode("utf-8", "replace")
                finally:
                    os.close(fd)
        return found

    def clean(self, grace: float) -> None:
        # Listed before the writers: whoever is announced later has files that are not in this list.
        left = [path for folder in ("", *_FOLDERS) for path in self._temporary_files(folder)]
        if left and not self.writers():
            for path in left:
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - os.lstat(path).st_mtime >= grace:
                        os.unlink(path)  # noqa: PTH108

    def _temporary_files(self, folder: str) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path(folder)) as entries:
            yield from (entry.path for entry in entries if is_temporary(entry.name))


class _Announcement:
    """A locked file. Whoever can lock it knows that its writer has ended."""

    def __init__(self, folder: str) -> None:
        while True:
            self.id = os.urandom(8).hex()
            self._path = f"{folder}/{self.id}"
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                if os.fstat(self._fd).st_nlink:
                    return
            except BaseException:
                self.end()
                raise
            os.close(self._fd)  # a collector removed it before it was locked

    def note(self, text: str) -> None:
        os.pwrite(self._fd, text.encode("utf-8", "replace"), 0)

    def end(self) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)  # noqa: PTH108
        finally:
            os.close(self._fd)
