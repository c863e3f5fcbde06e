"""Changing a file where it is: a lock against other editors, bytes behind its end, or a new tail.

An editor reads a file and then writes it. `lock_for_edit` keeps out other editors, and
gives the stamp of what is read. A process that ignores the lock is detected: what is
written over must still have that stamp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tensorglot.errors import InputError
from tensorglot.io.local import FileSource, Stamp, change_error, stamp_of
from tensorglot.io.sink import copy_at, lock, write_at

__all__ = ["GROWTH_NBYTES", "PATIENCE_SECONDS", "append_tail", "lock_for_edit", "replace_tail"]

PATIENCE_SECONDS = 30.0
"""How long a writer that appends waits for others."""
GROWTH_NBYTES = 8 << 20
"""A file grows by at most so much at a time: no more zeros can be at its end after a power cut."""
_PAGE = 4096


@contextmanager
def lock_for_edit(path: str | os.PathLike[str]) -> Iterator[Stamp]:
    """Holds the lock while a file is read, changed and written. Gives the stamp of the file."""
    source = FileSource(path)
    held = source.descriptor()
    try:
        if not lock(held.fd):
            raise InputError(
                "another process is editing the file: try again later", rule="source.locked", path=os.fspath(path)
            )
        yield stamp_of(os.fstat(held.fd))
    finally:
        del held
        source.close()


def replace_tail(path: str | os.PathLike[str], begin: int, tail: bytes, *, expect: Stamp, durable: bool) -> Stamp:
    """Replaces the end of a file, from `begin` on; an error undoes it, a kill or a crash does not.

    The file must have the stamp `expect` before, and still be at its path afterwards. Returns the new stamp.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if stamp_of(os.fstat(fd)) != expect:
            raise change_error(path)
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


def append_tail(path: str | os.PathLike[str], tail: FileSource, place: bytes, *, expect: Stamp, durable: bool) -> Stamp:
    """Writes behind the end of a file, whose readers find their way by its last bytes; `place` will be the new ones.

    1. The old last bytes are written once more, further on: the file has another size, and
       means what it meant before. 2. The tail is written up to there. Both are repeated
       until there is room for the tail. 3. The new last bytes replace the last copy.
    Steps 1 and 3 are one system call within one sector, and no byte of the old file is
    touched: a kill at any time leaves the old contents or the new ones, and an error is
    undone by the old size. A power cut during step 1 can leave a new size without the
    bytes that were written, on file systems that keep the two apart: then the file ends in
    zeros, GROWTH_NBYTES at most, behind the last copy, which was synced before.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if stamp_of(os.fstat(fd)) != expect:
            raise change_error(path)
        begin = expect[2]
        end = begin + tail.size
        try:
            old = memoryview(os.pread(fd, len(place), begin - len(place)))
            done = begin
            while True:
                copy = min(end, (done + GROWTH_NBYTES - len(place)) // _PAGE * _PAGE)
                write_at(fd, old, copy)
                _sync(fd, durable)
                copy_at(tail, done - begin, copy - begin, fd, done)
                if copy == end:
                    break
                done = copy
            _sync(fd, durable)
            write_at(fd, memoryview(place), end)
            _sync(fd, durable)
            new = stamp_of(os.fstat(fd))
            _check_at(path, new)
        except BaseException:
            os.ftruncate(fd, begin)
            _sync(fd, durable)
            raise
        return new
    finally:
        os.close(fd)


def _sync(fd: int, durable: bool) -> None:
    if durable:
        os.fsync(fd)


def _put_tail(fd: int, begin: int, tail: bytes, durable: bool) -> None:
    write_at(fd, memoryview(tail), begin)
    os.ftruncate(fd, begin + len(tail))
    _sync(fd, durable)


def _check_at(path: str | os.PathLike[str], stamp: Stamp) -> None:
    """The file that was written is still the one at the path."""
    try:
        now = stamp_of(os.stat(path))  # noqa: PTH116
    except FileNotFoundError:
        now = None
    if now is None or now[:2] != stamp[:2]:
        raise change_error(path)
