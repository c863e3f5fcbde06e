"""`source_for`: the source for a place, for bytes, or for a file object."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO, Literal, TypeAlias, cast

from tensorglot.errors import InputError, UnsupportedError
from tensorglot.io.local import BaseSource, BufferSource, FileSource, MmapSource
from tensorglot.io.place import Place
from tensorglot.io.stream import source_of_stream

__all__ = ["Backend", "Readable", "is_stream", "source_for"]

Backend: TypeAlias = Literal["auto", "pread", "mmap"]
Readable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"


def is_stream(source: object) -> bool:
    """Whether a source is a file object. An `mmap.mmap` has `read`, too, but is taken as bytes."""
    return hasattr(source, "read") and not isinstance(source, mmap.mmap)


def source_for(source: Readable, backend: Backend = "auto") -> BaseSource:
    """The source of what `locate` returns: a place, bytes or a file object."""
    if isinstance(source, Place):
        if not source.remote:
            return MmapSource(source) if backend == "mmap" else FileSource(source)
        if source.is_commit:
            raise UnsupportedError("a commit in a store is not a file", rule="url.scheme", path=source.shown)
        if backend == "mmap":
            raise InputError(
                "a URL cannot be mapped into memory: leave out backend", rule="source.backend", path=source.shown
            )
        from tensorglot.io.remote import RemoteSource  # imports ssl, http and email, which local files do not need

        return RemoteSource(source.text, source.options)
    if is_stream(source):
        return source_of_stream(cast("BinaryIO", source))
    try:
        return BufferSource(cast("bytes", source), share=backend == "mmap")
    except InputError:
        raise
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(
            f"source must be a path, a URL, bytes, a binary file or a list of these, not {type(source).__name__}",
            rule="source.kind",
        ) from error
