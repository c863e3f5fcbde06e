"""A source that is opened on the first read, for files beside the index: shards, files of values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tensorglot.errors import InputError
from tensorglot.model.payload import Source

__all__ = ["LazySource", "OpenedOnce"]


class LazySource(ABC):
    """Delegates every call to the source that `open` returns."""

    @abstractmethod
    def open(self) -> Source:
        """The source, which is opened if it is not open yet."""

    @property
    def size(self) -> int:
        return self.open().size

    @property
    def concurrency(self) -> int | None:
        return self.open().concurrency

    def read(self, offset: int, nbytes: int) -> memoryview:
        return self.open().read(offset, nbytes)

    def read_into(self, offset: int, out: memoryview) -> None:
        self.open().read_into(offset, out)

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        self.open().read_runs(begins, sizes, offsets, out)

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return self.open().read_bytes(offset, nbytes)

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return self.open().view(offset, nbytes)


class OpenedOnce(LazySource):
    """One file, which stays open until the archive is closed.

    Several threads may open and close it at the same time, and the process may fork meanwhile;
    a lock could be held in the child forever, so there is none. If two threads open the file,
    the first to store its source wins and the other closes its own. `open` reads `_closed`
    after it stored the source, and `close` reads the source after it set `_closed`: in every
    order of the four steps, one of them closes the source.
    """

    def __init__(self) -> None:
        self._opened: dict[str, Source] = {}
        self._closed = False

    @abstractmethod
    def open_file(self) -> Source:
        """Opens the file: a new source for each call."""

    def open(self) -> Source:
        if self._closed:
            raise InputError("the archive is closed", rule="archive.closed")
        found = self._opened.get("")
        if found is not None:
            return found
        source = self.open_file()
        found = self._opened.setdefault("", source)
        if found is not source or self._closed:
            getattr(source, "close", bool)()
        return found

    def close(self) -> None:
        self._closed = True
        getattr(self._opened.get(""), "close", bool)()
