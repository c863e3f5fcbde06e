"""Changes a file in place: a lock against other editors, appending, or replacing its tail.

An editor reads a file and then writes to it. `lock_for_edit` keeps out other editors, and
returns the stamp of the file that is read. A process that ignores the lock is detected: the
file must still have that stamp when it is written to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tensorglot.errors import FormatError, InputError
from tensorglot.io.local import FileSource, Stamp, change_error, stamp_now, stamp_of
from tensorglot.io.sink import copy_at, lock, write_at

__all__ = ["GROWTH_NBYTES", "PATIENCE_SECONDS", "append_tail", "lock_for_edit", "replace_tail"]

PATIENCE_SECONDS = 30.0
"""How long a writer that appends waits for others."""
GROWTH_NBYTES = 8 << 20
"""The most bytes by which a file grows at a time, and so the most zeros at its end after a power cut."""
_PAGE = 4096


@contextmanager
def lock_for_edit(path: str | os.PathLike[str]) -> Iterator[Stamp]:
    """Holds the lock while a file is read, changed and written; the context's value is the file's stamp."""
    source = FileSource(path)
    held = source.descriptor()
    try:
        if not lock(held.fd):
            raise InputError(
                "another process is editing the file: try again later", rule="source.locked", path=os.fspath(path)
            )
        stamp = stamp_of(os.fstat(held.fd))
        try:
            yield stamp
        except FormatError as error:
            # Since it was locked, the file may have been replaced, by one that its editor was writing when it was read.
            if stamp_now(path) != stamp:
                raise change_error(path) from error
            raise
    finally:
        del held
        source.close()


def replace_tail(path: str | os.PathLike[str], begin: int, tail: bytes, *, expect: Stamp, durable: bool) -> Stamp:
    """Replaces the end of a file, from `begin` on. Undone after an error, but not after a kill or a crash.

    The file must have the stamp `expect` before, and must still be at its path afterwards.
    Returns the new stamp.
    """
    with _open_unchanged(path, expect) as fd:
        old = os.pread(fd, expect[2] - begin, begin)
        try:
            _put_tail(fd, begin, tail, durable)
            return _stamp_at(path, fd)
        except BaseException:
            _put_tail(fd, begin, old, durable)
            raise


def append_tail(path: str | os.PathLike[str], tail: FileSource, place: bytes, *, expect: Stamp, durable: bool) -> Stamp:
    """Appends a tail to a file whose last bytes, the footer, tell readers where everything is.

    `place` is the new footer, as long as the old one.
    1. A copy of the old footer is written further on: the file is larger, and means the same.
    2. The tail is written up to that copy. Both are repeated until the tail is complete.
    3. The new footer replaces the last copy.
    Steps 1 and 3 are one system call within one sector, and no byte of the old file is
    changed: a kill at any time leaves the old contents or the new ones, and an error is
    undone by restoring the old size. On file systems that write size and data separately,
    a power cut during step 1 can leave the new size without the data: then the file ends in
    zeros, at most GROWTH_NBYTES, after the last copy, which was synced before.
    """
    with _open_unchanged(path, expect) as fd:
        begin = expect[2]
        end = begin + tail.size
        try:
            old = memoryview(os.pread(fd, len(place), begin - len(place)))
            done = begin
            while True:
                copy = min(end, (done + GROWTH_NBYTES - len(place)) // _PAGE * _PAGE)
                write_at(fd, old, copy)  # step 1
                _sync(fd, durable)
                copy_at(tail, done - begin, copy - begin, fd, done)  # step 2: up to the copy, over the one before
                if copy == end:
                    break
                done = copy
            _sync(fd, durable)
            write_at(fd, memoryview(place), end)  # step 3
            _sync(fd, durable)
            return _stamp_at(path, fd)
        except BaseException:
            os.ftruncate(fd, begin)
            _sync(fd, durable)
            raise


@contextmanager
def _open_unchanged(path: str | os.PathLike[str], expect: Stamp) -> Iterator[int]:
    """Opens a file for writing. It must have the stamp `expect`."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if stamp_of(os.fstat(fd)) != expect:
            raise change_error(path)
        yield fd
    finally:
        os.close(fd)


def _sync(fd: int, durable: bool) -> None:
    if durable:
        os.fsync(fd)


def _put_tail(fd: int, begin: int, tail: bytes, durable: bool) -> None:
    write_at(fd, memoryview(tail), begin)
    os.ftruncate(fd, begin + len(tail))
    _sync(fd, durable)


def _stamp_at(path: str | os.PathLike[str], fd: int) -> Stamp:
    """The stamp of the file that was written, which must still be the one at the path."""
    stamp = stamp_of(os.fstat(fd))
    try:
        now = stamp_of(os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        now = None
    if now is None or now[:2] != stamp[:2]:
        raise change_error(path)
    return stamp
