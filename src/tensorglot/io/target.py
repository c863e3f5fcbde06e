"""`open_target`: a `with` block that writes to whatever a caller passes as a target.

A file is replaced atomically, an object at a URL appears when it is complete, and a file
object of the caller receives the bytes as they are produced.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import BinaryIO, Protocol

from tensorglot.errors import InputError
from tensorglot.io.local import Stamp, file_stamp
from tensorglot.io.pieces import Piece
from tensorglot.io.place import Place, as_place
from tensorglot.io.sink import AtomicFile, Writable
from tensorglot.io.stream import write_stream

__all__ = ["Target", "open_target", "version_read"]


class Target(Protocol):
    """A file, an object or a stream that is being written."""

    def reserve(self, nbytes: int) -> None:
        """Announces the approximate size."""
        ...

    def write(self, pieces: Iterable[Piece]) -> int:
        """Appends all pieces; returns the size so far."""
        ...


def open_target(
    target: Writable,
    *,
    durable: bool = True,
    follow: bool = True,
    expect: Stamp | str | None = None,
    around: AbstractContextManager[object] | None = None,
) -> AbstractContextManager[Target]:
    """Opens a target. With `expect`, it is replaced only if it still has that stamp (a file) or ETag (an object).

    `durable`, `follow` and `around` are for files: see `AtomicFile`.
    """
    if isinstance(target, (str, os.PathLike)):
        place = as_place(target)
        if place.remote:
            from tensorglot.io.upload import Upload

            return Upload(place.text, place.options, expect=expect if isinstance(expect, str) else None)
        stamp = None if isinstance(expect, str) else expect
        return AtomicFile(place, durable=durable, follow=follow, expect=stamp, around=around)
    if not hasattr(target, "write"):
        raise InputError(f"target must be a path or a binary file, not {type(target).__name__}", rule="sink.target")
    if isinstance(target, io.TextIOBase):
        raise InputError("the target is a text file: open it in binary mode ('wb')", rule="sink.stream")
    return nullcontext(_Stream(target))


def version_read(source: object, target: Writable) -> Stamp | str | None:
    """The stamp or ETag of a source when it was opened, if it is the target; otherwise None."""
    if not isinstance(target, Place):
        return None
    if not target.remote:
        return file_stamp(source, target.text)
    from tensorglot.io.remote import RemoteSource

    if isinstance(source, RemoteSource) and source.path == target.text and source.version:
        return source.version[1]
    return None


class _Stream:
    """A file object of the caller."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._position = 0

    def reserve(self, nbytes: int) -> None:
        """Nothing to reserve."""

    def write(self, pieces: Iterable[Piece]) -> int:
        self._position += write_stream(self._stream, pieces)
        return self._position
