"""`source_for`: the source for any argument that a caller may pass as one."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO, Literal, TypeAlias, cast

from tensorglot.errors import InputError, UnsupportedError
from tensorglot.io.local import BaseSource, BufferSource, FileSource, MmapSource
from tensorglot.io.place import as_place
from tensorglot.io.stream import source_of_stream

__all__ = ["Backend", "Readable", "is_stream", "source_for"]

Backend: TypeAlias = Literal["auto", "pread", "mmap"]
Readable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"


def is_stream(source: object) -> bool:
    """Whether a source is a file object. A mapping of mmap, which has `read`, too, is bytes."""
    return hasattr(source, "read") and not isinstance(source, mmap.mmap)


def source_for(source: Readable, backend: Backend = "auto") -> BaseSource:
    if isinstance(source, (str, os.PathLike)):
        place = as_place(source)
        if not place.remote:
            return MmapSource(place) if backend == "mmap" else FileSource(place)
        if place.is_commit:
            raise UnsupportedError("a commit in a store is not a file", rule="url.scheme", path=place.shown)
        if backend == "mmap":
            raise InputError(
                "a URL cannot be mapped into memory: leave out backend", rule="source.backend", path=place.shown
            )
        from tensorglot.io.remote import RemoteSource  # ssl, http and email, for which a local file must not wait

        return RemoteSource(place.text, place.options)
    if is_stream(source):
        return source_of_stream(cast("BinaryIO", source))
    try:
        return BufferSource(cast("bytes", source), share=backend == "mmap")
    except InputError:
        raise
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(
            f"source must be a path, bytes or a binary file, not {type(source).__name__}", rule="source.kind"
        ) from error
