"""`source_for`: the source for any argument that a caller may pass as one."""

from __future__ import annotations

import mmap
import os
from typing import BinaryIO, Literal, TypeAlias, cast

from tensorglot.errors import InputError
from tensorglot.io.local import BaseSource, BufferSource, FileSource, MmapSource
from tensorglot.io.stream import source_of_stream

__all__ = ["Backend", "Readable", "source_for"]

Backend: TypeAlias = Literal["auto", "pread", "mmap"]
Readable: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO"


def source_for(source: Readable, backend: Backend = "auto") -> BaseSource:
    if isinstance(source, (str, os.PathLike)):
        return MmapSource(source) if backend == "mmap" else FileSource(source)
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
