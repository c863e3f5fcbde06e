"""Where the bytes of a part are: at a span of a source, encoded at a span, or in memory.

The three kinds answer the same calls, always in terms of the decoded bytes. The
model opens no file and knows no compression: a source and a codec are whatever
answers the protocols below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError
from tensorglot.model.dtypes import TABLE

__all__ = [
    "PIECE_NBYTES",
    "Buffer",
    "Chunk",
    "Codec",
    "Encoded",
    "Memory",
    "Payload",
    "Source",
    "Span",
    "Threaded",
    "as_bytes",
    "buffers",
    "inner_payload",
    "joined",
    "place",
]

PIECE_NBYTES = 8 << 20
"""Data that must pass through memory does so in pieces of this size."""

SMALL_NBYTES = 64 << 10
"""Arrays below this size are written together."""
TOGETHER_NBYTES = 256 << 10
"""Up to this much at a time: memory of this size is used again, and pages that are there already are the fast ones."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""


class Source(Protocol):
    """Random access to the bytes of a file or of a buffer."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes in fresh, writable memory; TruncatedError where the source ends first."""
        ...

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fills `out`, or raises TruncatedError."""
        ...

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        """The bytes as an object of their own: headers and the like, not tensors."""
        ...

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        """The bytes where they are, if the source is memory that the caller agreed to share."""
        ...


class Codec(Protocol):
    """Turns encoded bytes at a span of a source into decoded bytes."""

    @property
    def name(self) -> str: ...

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        """Fills `out` from the decoded bytes at `offset`."""
        ...

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        """All decoded bytes from first to last, in bounded memory."""
        ...


@runtime_checkable
class Threaded(Codec, Protocol):
    """A codec that may use several threads for one payload."""

    def threaded(self, payload: Encoded) -> bool:
        """Whether it does so for this one."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes at `begin` to `end` of a source, as they are."""

    source: Source
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    def read(self, offset: int, nbytes: int) -> memoryview:
        return self.source.read(self.begin + offset, nbytes)

    def read_into(self, offset: int, out: memoryview) -> None:
        self.source.read_into(self.begin + offset, out)

    def view(self) -> memoryview | None:
        return self.source.view(self.begin, self.nbytes)

    def chunks(self) -> Iterator[Chunk]:
        yield self


@dataclass(frozen=True, slots=True)
class Encoded:
    """Bytes that a codec turns into `nbytes` decoded ones."""

    source: Source
    begin: int
    end: int
    nbytes: int
    codec: Codec
    tensor: str
    """For the errors of the codec."""
    limits: Any = field(default=None, repr=False)
    """The `Limits` that the archive was opened with."""

    def read(self, offset: int, nbytes: int) -> memoryview:
        try:
            out = np.empty(nbytes, np.uint8).data
        except MemoryError as error:
            self.codec.decode_into(self, offset, memoryview(bytearray()))  # bytes that are wrong are the better reason
            raise LimitError(
                f"{nbytes} bytes do not fit in memory", rule="memory.size", offset=self.begin, tensor=self.tensor
            ) from error
        self.codec.decode_into(self, offset, out)
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        self.codec.decode_into(self, offset, out)

    def view(self) -> memoryview | None:
        return None

    def chunks(self) -> Iterator[Chunk]:
        return iter(self.codec.chunks(self))


@dataclass(frozen=True, slots=True)
class Memory:
    """An array of any order, stride and byte order; its bytes are those of the little-endian C order."""

    array: NDArray[Any]

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def read(self, offset: int, nbytes: int) -> memoryview:
        out = np.empty(nbytes, np.uint8).data
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        if _plain(self.array):
            out[:] = as_bytes(self.array)[offset : offset + len(out)]
            return
        position = 0
        for chunk in self.chunks():
            piece = as_bytes(chunk)
            begin, end = max(offset, position), min(offset + len(out), position + len(piece))
            if begin < end:
                out[begin - offset : end - offset] = piece[begin - position : end - position]
            position += len(piece)

    def view(self) -> memoryview | None:
        return as_bytes(self.array) if _plain(self.array) else None

    def chunks(self) -> Iterator[Chunk]:
        if _plain(self.array):
            yield as_bytes(self.array)
        else:
            yield from _plain_pieces(self.array)


Payload: TypeAlias = Span | Encoded | Memory
Chunk: TypeAlias = Buffer | Span
"""What a format's writer yields: bytes, or a span that a sink copies without reading it."""


def buffers(chunks: Iterable[Chunk]) -> Iterator[Buffer]:
    """The same bytes with every span read, piece by piece."""
    for chunk in chunks:
        if isinstance(chunk, Span):
            for start in range(0, chunk.nbytes, PIECE_NBYTES):
                yield chunk.read(start, min(PIECE_NBYTES, chunk.nbytes - start))
        else:
            yield chunk


def joined(arrays: list[NDArray[Any]], pads: Sequence[bytes] | None = None) -> bytes:
    """The bytes of C-contiguous arrays one after the other, each behind its pad."""
    if any(dtype in _CARRIERS for dtype in {array.dtype for array in arrays}):
        arrays = [array.view(_CARRIERS.get(array.dtype, array.dtype)) for array in arrays]
    if pads is not None and any(pads):
        return b"".join(cast("list[bytes]", [piece for pair in zip(pads, arrays, strict=True) for piece in pair]))
    return b"".join(cast("list[bytes]", arrays))


def inner_payload(payload: Encoded, inner: Codec | None, nbytes: int) -> Span | Encoded:
    """What a codec over another codec decodes: the span as it is, or what the inner one makes of it."""
    if inner is None:
        return Span(payload.source, payload.begin, payload.end)
    return Encoded(payload.source, payload.begin, payload.end, nbytes, inner, payload.tensor, payload.limits)


def place(payload: Payload | NDArray[Any]) -> tuple[object, ...]:
    """Payloads at one place have the same bytes: their tensors are tied. A place means nothing once they are gone.

    Codecs that decode alike are equal.
    """
    if isinstance(payload, Memory):
        payload = payload.array
    if isinstance(payload, np.ndarray):
        return (payload.__array_interface__["data"][0], payload.shape, payload.strides, payload.dtype)
    codec = payload.codec if isinstance(payload, Encoded) else None
    return (id(payload.source), payload.begin, payload.end, payload.nbytes, codec)


def as_bytes(data: Any) -> memoryview:
    """The bytes of a C-contiguous buffer or array; ml_dtypes, which export no buffer, included."""
    if isinstance(data, np.ndarray):
        data = data.reshape(-1).view(np.uint8)
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


_CARRIERS = {
    row.numpy: np.dtype(f"u{row.numpy.itemsize}") for row in TABLE if row.numpy is not None and row.numpy.kind == "V"
}
"""Types of ml_dtypes export no buffer; these do, and are as wide."""


def _plain(array: NDArray[Any]) -> bool:
    return array.flags.c_contiguous and array.dtype.newbyteorder("<") == array.dtype


def _plain_pieces(array: NDArray[Any]) -> Iterator[memoryview]:
    """The little-endian C-order bytes of any array, in pieces, in bounded memory."""
    if array.nbytes <= PIECE_NBYTES or array.ndim == 0:
        piece = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        if array.size:
            yield as_bytes(piece)
        return
    row_nbytes = math.prod(array.shape[1:]) * array.itemsize
    rows = max(1, PIECE_NBYTES // row_nbytes)
    for start in range(0, array.shape[0], rows):
        block = array[start : start + rows]
        yield from _plain_pieces(block if rows > 1 else block[0])
