"""Payloads that are stored nowhere: a codec computes their bytes when they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import cast

from tensorglot.model.payload import Buffer, Encoded, Source, as_bytes, copy_range

__all__ = ["ComputedCodec"]


class _NoSource:
    """Stands for the source of a computed payload. It is never read."""

    size = 0
    concurrency: int | None = None


class ComputedCodec(ABC):
    """A codec that computes its bytes from first to last; reading a part of them computes all."""

    __slots__ = ()
    name: str

    @abstractmethod
    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        """All bytes from first to last, in bounded memory."""

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        copy_range(map(as_bytes, self.chunks(payload)), offset, out)

    def payload(self, nbytes: int, tensor: str) -> Encoded:
        """The payload of the `nbytes` bytes that the codec computes."""
        return Encoded(cast("Source", _NoSource()), 0, 0, nbytes, self, tensor)
