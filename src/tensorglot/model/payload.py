"""Where the bytes of a part are: at a span of a source, encoded at a span, or in memory.

The three kinds have the same methods, always in terms of the decoded bytes. The model
opens no file and knows no compression and no hash: source, codec and check are the
protocols below.

A payload with a check compares its checksum in the pass that reads it: a read of all
bytes, by any method, returns bytes that match, or raises. A partial read is not compared,
unless the check is strict: then the whole payload is compared first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError, TensorglotError
from tensorglot.memory import cut

__all__ = [
    "PIECE_NBYTES",
    "STREAM_NBYTES",
    "BatchSource",
    "Buffer",
    "Check",
    "CheckedBy",
    "Chunk",
    "Codec",
    "Composed",
    "Encoded",
    "FrameChecked",
    "LinkedSource",
    "Memory",
    "Payload",
    "Rearranged",
    "Scattered",
    "Source",
    "Span",
    "Streaming",
    "Threaded",
    "Undecodable",
    "as_bytes",
    "buffers",
    "copy_range",
    "inner_payload",
    "join_arrays",
    "location",
    "read_ahead",
    "read_many_of",
    "read_pieces",
]

PIECE_NBYTES = 8 << 20
"""Data that must pass through memory does so in pieces of this size."""
STREAM_NBYTES = 16 << 20
"""Encoded bytes that are read at a time from a server, by several requests."""
_FIRST_NBYTES = 256 << 10
"""The first time."""

SMALL_NBYTES = 64 << 10
"""Arrays below this size are written together."""
TOGETHER_NBYTES = 256 << 10
"""Up to this much at a time: memory of this size is reused by the allocator, and its pages are already mapped."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""
CheckedBy: TypeAlias = Literal["tensor", "box", "block"]
"""What has checksums in a source: tensors, in columns of the index; boxes of tensors; blocks, named by their hashes."""


class Source(Protocol):
    """Random access to the bytes of a file or of a buffer."""

    @property
    def size(self) -> int: ...

    @property
    def concurrency(self) -> int | None:
        """The number of concurrent reads that is fastest; None for the number of processors."""
        ...

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes in fresh, writable memory; TruncatedError where the source ends first."""
        ...

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fills `out`, or raises TruncatedError."""
        ...

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        """Fills several parts of `out`, each from a run of bytes. The runs are in the order of the source."""
        ...

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        """The bytes as one `bytes` object: for headers, not for tensors."""
        ...

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        """The bytes where they are, if the source is memory that the caller agreed to share."""
        ...


@runtime_checkable
class BatchSource(Protocol):
    """A source that reads fastest if it is told of many reads at once."""

    def read_together(
        self, begins: Sequence[int], outs: Sequence[memoryview], filled: Callable[[int, int, int], None]
    ) -> None:
        """Fills every buffer; the reads are in the order of the source.

        `filled` is called, by several threads, with the position of a read and with begin and end of what is there now.
        """
        ...


@runtime_checkable
class HeaderSource(Protocol):
    """A source that does not read headers as fast one by one."""

    def read_many(self, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """The bytes of several short spans, in the order of the source: headers that are far apart."""
        ...


def read_many_of(source: Source) -> Callable[[Sequence[int], Sequence[int]], list[bytes]] | None:
    """The method `read_many` of a source that has one; None where headers are read as fast one by one."""
    return source.read_many if isinstance(source, HeaderSource) else None


@runtime_checkable
class LinkedSource(Protocol):
    """A source that also has what links in its values lead to."""

    @property
    def blocks(self) -> Mapping[Any, Any]:
        """Blocks by their CIDs."""
        ...


class Codec(Protocol):
    """Turns encoded bytes at a span of a source into decoded bytes."""

    @property
    def name(self) -> str: ...

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        """Fills `out` from the decoded bytes at `offset`."""
        ...

    def chunks(self, payload: Encoded) -> Iterator[Chunk]:
        """All decoded bytes from first to last, in bounded memory."""
        ...


@runtime_checkable
class Threaded(Codec, Protocol):
    """A codec that may use several threads for one payload."""

    def threaded(self, payload: Encoded) -> bool:
        """Whether it uses several for this one."""
        ...


@runtime_checkable
class Streaming(Codec, Protocol):
    """A codec that decodes bytes while they arrive."""

    def decode_stream(self, payload: Encoded, stored: Iterable[Buffer]) -> Iterator[Buffer]:
        """All decoded bytes from first to last, of the stored ones in their order."""
        ...


@runtime_checkable
class Rearranged(Codec, Protocol):
    """A codec that changes the order or the width of elements, over the codec that compresses them, if any."""

    def below(self, payload: Encoded) -> Span | Encoded:
        """The decoded bytes before they are rearranged; a checksum of decoded bytes covers these."""
        ...


@runtime_checkable
class Scattered(Codec, Protocol):
    """A codec of tensors that lie in pieces, in files of a directory."""

    def places(self, source: Source) -> list[tuple[str, int, int]]:
        """File, begin and end of each piece; none where the directory is not one of files."""
        ...


class Undecodable(ABC):
    """A codec of values that are listed and cannot be read. It is asked before memory is allocated for them."""

    __slots__ = ()

    @abstractmethod
    def refuse(self, payload: Encoded) -> TensorglotError:
        """The error for every attempt to decode."""

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        raise self.refuse(payload)

    def chunks(self, payload: Encoded) -> Iterator[Chunk]:
        raise self.refuse(payload)


@runtime_checkable
class FrameChecked(Codec, Protocol):
    """A codec whose frames have a checksum each, which is compared whenever a frame is decoded."""

    frames_checked: bool


@runtime_checkable
class Composed(Codec, Protocol):
    """A codec of a tensor that is stored as several tensors of other files."""

    def fill(self, payload: Encoded, axes: Any, out: NDArray[Any]) -> None:
        """Reads the elements at some positions of each axis (`slicing.Axis`), and no other, into an array."""
        ...

    def verify(self, payload: Encoded, verifier: Any) -> bool:
        """Compares the checksums of these tensors, by a `Verifier`. Whether each has one."""
        ...


class Check(Protocol):
    """The checksum of a payload, to be compared once with the bytes that it covers. IntegrityError if they differ."""

    @property
    def decoded(self) -> bool:
        """It covers the decoded bytes, not the stored ones."""
        ...

    @property
    def strict(self) -> bool:
        """A partial read needs a comparison of the whole before it."""
        ...

    def pending(self) -> bool:
        """Whether a comparison is due. Raises where it failed before, or is required and impossible."""
        ...

    def read(self, source: Source, begin: int, nbytes: int) -> memoryview:
        """Reads the bytes that are covered, and compares."""
        ...

    def read_into(self, source: Source, begin: int, out: memoryview) -> None:
        """The same, into the memory of the caller."""
        ...

    def follow(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        """Passes on the bytes that are covered, and compares at the end."""
        ...

    def stored(self, source: Source, begin: int, end: int) -> AbstractContextManager[memoryview | None]:
        """Compares stored bytes, and gives them while they are in memory: None if they are too many to be held."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """Raw bytes at `begin` to `end` of a source."""

    source: Source
    begin: int
    end: int
    check: Check | None = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    def read(self, offset: int, nbytes: int) -> memoryview:
        if self.check is not None and self.check.pending():
            if nbytes == self.nbytes:
                return self.check.read(self.source, self.begin, nbytes)
            if self.check.strict:
                self.verify()
        return self.source.read(self.begin + offset, nbytes)

    def read_into(self, offset: int, out: memoryview) -> None:
        if self.check is not None and self.check.pending():
            if len(out) == self.nbytes:
                return self.check.read_into(self.source, self.begin, out)
            if self.check.strict:
                self.verify()
        return self.source.read_into(self.begin + offset, out)

    def read_runs(self, begins: NDArray[np.int64], nbytes: int, offsets: Sequence[int], out: memoryview) -> None:
        """Fills `out`, at the offsets, with runs of `nbytes` each."""
        if self.check is not None and self.check.strict and self.check.pending():
            self.verify()
        self.source.read_runs((begins + self.begin).tolist(), [nbytes] * len(begins), offsets, out)

    def view(self, *, whole: bool = True) -> memoryview | None:
        """The bytes in shared memory, if they are there; not `whole` where only some of them will be looked at."""
        shared = self.source.view(self.begin, self.nbytes)
        if shared is not None and self.check is not None and (whole or self.check.strict):
            self.verify()
        return shared

    def chunks(self) -> Iterator[Chunk]:
        if self.check is not None and self.check.pending():
            shared = self.source.view(self.begin, self.nbytes)
            bare = Span(self.source, self.begin, self.end)
            yield from self.check.follow(buffers([bare]) if shared is None else [shared])
        else:
            yield self

    def verify(self) -> None:
        """Compares the checksum, unless there is none or it was compared before."""
        if self.check is not None and self.check.pending():
            shared = self.source.view(self.begin, self.nbytes)
            if shared is not None:
                _exhaust(self.check.follow([shared]))
            else:
                with self.check.stored(self.source, self.begin, self.end):
                    pass


@dataclass(frozen=True, slots=True)
class Encoded:
    """Bytes that a codec decodes to `nbytes`."""

    source: Source
    begin: int
    end: int
    nbytes: int
    codec: Codec
    tensor: str
    """For the errors of the codec."""
    limits: Any = field(default=None, repr=False)
    """The `Limits` that the archive was opened with."""
    check: Check | None = field(default=None, compare=False, repr=False)
    held: memoryview | None = field(default=None, compare=False, repr=False)
    """The encoded bytes, where they have been read already."""

    def require_decodable(self) -> None:
        """Raises where nothing can be decoded."""
        if isinstance(self.codec, Undecodable):
            raise self.codec.refuse(self)

    def read(self, offset: int, nbytes: int) -> memoryview:
        self.require_decodable()
        try:
            out = np.empty(nbytes, np.uint8).data
        except MemoryError as error:
            self.codec.decode_into(self, offset, memoryview(bytearray()))  # an error in the data has precedence
            raise LimitError(
                f"out of memory: {nbytes} bytes needed",
                rule="memory.size",
                offset=self.begin,
                tensor=self.tensor,
            ) from error
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        check = self.check
        if check is None or not check.pending():
            self.codec.decode_into(self, offset, out)
        elif len(out) < self.nbytes:
            if check.strict and not isinstance(self.codec, FrameChecked):
                self.verify()
            self.codec.decode_into(self._bare, offset, out)
        elif not check.decoded and self.streaming is not None:
            copy_range(map(memoryview, self.streaming.decode_stream(self, self.stored(check))), 0, out)
        elif not check.decoded:
            with check.stored(self.source, self.begin, self.end) as held:
                self.codec.decode_into(replace(self, check=None, held=held), offset, out)
        elif isinstance(self.codec, Rearranged):
            self.verify()
            self.codec.decode_into(self._bare, offset, out)
        else:
            self.codec.decode_into(self._bare, offset, out)
            _exhaust(check.follow([out]))

    def view(self, *, whole: bool = True) -> memoryview | None:
        return None

    def chunks(self) -> Iterator[Chunk]:
        check = self.check
        if check is None or not check.pending():
            yield from self.codec.chunks(self)
        elif check.decoded and not isinstance(self.codec, Rearranged):
            yield from check.follow(buffers(self.codec.chunks(self._bare)))
        elif self.streaming is not None:
            yield from self.streaming.decode_stream(self, self.stored(check))
        else:
            self.verify()
            yield from self.codec.chunks(self._bare)

    def verify(self) -> None:
        """Compares the checksum, unless there is none or it was compared before."""
        check = self.check
        if check is None or not check.pending():
            return
        if not check.decoded:
            Span(self.source, self.begin, self.end, check).verify()
        elif isinstance(self.codec, Rearranged):
            self.codec.below(self).verify()
        else:
            _exhaust(check.follow(buffers(self.codec.chunks(self._bare))))

    @property
    def streaming(self) -> Streaming | None:
        """The codec, if the bytes come from a server, to be read once: they are checked and decoded as they arrive."""
        remote = self.held is None and self.source.concurrency is not None
        return self.codec if remote and isinstance(self.codec, Streaming) else None

    def stored(self, check: Check | None = None) -> Iterator[Buffer]:
        """The encoded bytes in their order, compared with a checksum that covers them."""
        pieces = read_pieces(Span(self.source, self.begin, self.end), STREAM_NBYTES)
        return pieces if check is None else check.follow(pieces)

    @property
    def _bare(self) -> Encoded:
        return replace(self, check=None)


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
        copy_range(_plain_pieces(self.array), offset, out)

    def view(self, *, whole: bool = True) -> memoryview | None:
        return as_bytes(self.array) if _plain(self.array) else None

    def verify(self) -> None:
        """Memory has no checksum."""

    def chunks(self) -> Iterator[Chunk]:
        return _plain_pieces(self.array)


Payload: TypeAlias = Span | Encoded | Memory
Chunk: TypeAlias = Buffer | Span
"""What a format's writer yields: bytes, or a span that a sink copies without reading it."""


def buffers(chunks: Iterable[Chunk]) -> Iterator[Buffer]:
    """The same bytes with every span read, piece by piece."""
    for chunk in chunks:
        if isinstance(chunk, Span):
            yield from read_pieces(chunk)
        else:
            yield chunk


def read_pieces(payload: Payload, step: int = PIECE_NBYTES) -> Iterator[memoryview]:
    """All bytes of a payload, in pieces of `step`."""
    for offset, nbytes in cut(payload.nbytes, step):
        yield payload.read(offset, nbytes)


def read_ahead(read: Callable[[int, int], memoryview], size: int) -> Callable[[int, int], memoryview]:
    """The same function, for reads in order at a server: each request is for more than the last, up to `size`."""
    begin, held = 0, memoryview(b"")

    def ahead(offset: int, nbytes: int) -> memoryview:
        nonlocal begin, held
        if not begin <= offset <= offset + nbytes <= begin + len(held):
            more = min(STREAM_NBYTES, max(_FIRST_NBYTES, 2 * len(held)), size - offset)
            begin, held = offset, read(offset, max(nbytes, more))
        return held[offset - begin : offset - begin + nbytes]

    return ahead


def copy_range(pieces: Iterable[memoryview], offset: int, out: memoryview) -> None:
    """Fills `out` with the bytes at `offset` of pieces that follow one another."""
    at = 0
    for piece in pieces:
        begin, end = max(offset, at), min(offset + len(out), at + len(piece))
        if begin < end:
            out[begin - offset : end - offset] = piece[begin - at : end - at]
        at += len(piece)


def _exhaust(chunks: Iterator[Any]) -> None:
    deque(chunks, 0)


def join_arrays(arrays: list[NDArray[Any]], pads: Sequence[bytes] | None = None) -> bytes:
    """The bytes of C-contiguous arrays one after the other, each behind its pad."""
    if pads is not None and any(pads):
        return b"".join(cast("list[bytes]", [piece for pair in zip(pads, arrays, strict=True) for piece in pair]))
    return b"".join(cast("list[bytes]", arrays))


def inner_payload(payload: Encoded, inner: Codec | None, nbytes: int) -> Span | Encoded:
    """The payload that a codec over another codec decodes: the span, or the bytes that the inner codec decodes."""
    if inner is None:
        return Span(payload.source, payload.begin, payload.end, payload.check)
    return replace(payload, nbytes=nbytes, codec=inner)


def location(payload: Payload | NDArray[Any]) -> tuple[object, ...]:
    """Payloads at one location have the same bytes: their tensors are tied. Valid while the payloads exist.

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
        return data.reshape(-1).view(np.uint8).data
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _plain(array: NDArray[Any]) -> bool:
    return array.flags.c_contiguous and array.dtype.newbyteorder("<") == array.dtype


def _plain_pieces(array: NDArray[Any]) -> Iterator[memoryview]:
    """The little-endian C-order bytes of any array: where they are, or copied in pieces of bounded size."""
    if _plain(array):
        yield as_bytes(array)
        return
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
