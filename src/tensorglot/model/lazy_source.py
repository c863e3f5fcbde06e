"""A source that is opened when something is first read from it: a shard, a file of values beside its index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tensorglot.model.payload import Source

__all__ = ["LazySource"]


class LazySource(ABC):
    """All that a source can do is done by the one that `open` returns."""

    @abstractmethod
    def open(self) -> Source:
        """The source, opened now unless it is open."""

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
