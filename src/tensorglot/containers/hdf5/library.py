"""The file as h5py sees it: a binary stream over a window of our source.

The library reads through it, from any source. What it reads while it walks the file is
charged against the limit for headers, so that a structure that refers to itself ends.
Exceptions of every kind that h5py raises become errors of ours.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensorglot.errors import FormatError, InputError, LimitError, TensorglotError, escape
from tensorglot.extras import library
from tensorglot.limits import Limits
from tensorglot.model.lazy_source import LazySource
from tensorglot.model.payload import Source

__all__ = ["HDF5File", "Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a source."""

    source: Source
    begin: int
    end: int


class _Stream(io.RawIOBase):
    """What h5py's driver for file objects needs; `error` is what the library does not pass on."""

    def __init__(self, window: Window, most: int) -> None:
        self._window = window
        self._position = 0
        self.left: int | None = most
        """Bytes that may still be read; None: any number."""
        self.error: BaseException | None = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._window.end - self._window.begin}
        self._position = base[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, out: Any) -> int:
        view = memoryview(out).cast("B")
        left = self._window.end - self._window.begin - self._position
        wanted = max(0, min(len(view), left))
        try:
            self._charge(wanted)
            self._window.source.read_into(self._window.begin + self._position, view[:wanted])
        except BaseException as error:
            self.error = error
            raise
        self._position += wanted
        return wanted

    def _charge(self, nbytes: int) -> None:
        if self.left is not None:
            self.left -= nbytes
            if self.left < 0:
                raise LimitError("what the library reads exceeds Limits.header_nbytes", rule="hdf5.limit.header")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class HDF5File(LazySource):
    """A file that is open in h5py, and the source of the datasets that only h5py can read."""

    def __init__(self, window: Window, limits: Limits) -> None:
        h5py = library("h5py", "hdf5")
        self.window = window
        self._stream = _Stream(window, limits.header_or())
        self._file: Any = None
        with self.errors():
            self._file = h5py.File(self._stream, "r")

    @property
    def root(self) -> Any:
        if self._file is None:
            raise InputError("the archive is closed", rule="archive.closed")
        return self._file

    def end_walk(self) -> None:
        """From here on values are read, which have bounds of their own."""
        self._stream.left = None

    @contextmanager
    def errors(self, tensor: str | None = None) -> Iterator[None]:
        """Turns what h5py raises into an error of ours, or into the one that its reading caused."""
        try:
            yield
        except TensorglotError:
            raise
        except Exception as error:
            cause, self._stream.error = self._stream.error, None
            if isinstance(cause, (TensorglotError, OSError, KeyboardInterrupt, SystemExit)):
                raise cause from None
            said = escape(" ".join(str(error).split()), longest=200)
            raise FormatError(f"HDF5: {said or type(error).__name__}", rule="hdf5.library", tensor=tensor) from error

    def open(self) -> Source:
        return self.window.source

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with self.errors():
                file.close()
