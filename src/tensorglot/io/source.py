"""`source_for`: the source for any argument that a caller may pass as one."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO, Literal, TypeAlias, cast

from tensorglot.arguments import as_path
from tensorglot.errors import InputError
from tensorglot.io.local import BaseSource, BufferSource, FileSource, MmapSource
from tensorglot.io.remote import RemoteSource
from tensorglot.io.storage_options import Given
from tensorglot.io.stream import source_of_stream
from tensorglot.io.urls import file_path, is_url, shown

__all__ = ["Backend", "Readable", "source_for"]

Backend: TypeAlias = Literal["auto", "pread", "mmap"]
Readable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"


def source_for(source: Readable, backend: Backend = "auto", options: Given = None) -> BaseSource:
    if isinstance(source, (str, os.PathLike)):
        path = as_path(source)
        if not is_url(path):
            path = file_path(path)
            return MmapSource(path) if backend == "mmap" else FileSource(path)
        if backend == "mmap":
            raise InputError(
                "a URL cannot be mapped into memory: leave out backend", rule="source.backend", path=shown(path)
            )
        return RemoteSource(path, options)
    if hasattr(source, "read") and not isinstance(source, mmap.mmap):
        return source_of_stream(cast("BinaryIO", source))
    try:
        return BufferSource(cast("bytes", source), share=backend == "mmap")
    except InputError:
        raise
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(
            f"source must be a path, bytes or a binary file, not {type(source).__name__}", rule="source.kind"
        ) from error
