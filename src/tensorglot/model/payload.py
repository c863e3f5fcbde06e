"""Where the bytes of a part are: at a span of a source, encoded at a span, or in memory.

The three kinds have the same methods, whose offsets and sizes always mean decoded bytes.
The model opens no file and knows no compression and no hash: source, codec and check are
the protocols below.

A payload with a check compares its checksum while it is read: a read of all bytes, by any
method, returns bytes that match, or raises. A partial read is not compared, unless the
check is strict: then the whole payload is compared first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError, TensorglotError
from tensorglot.memory import cut
from tensorglot.tuples import NamedTuple

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
"""Size of the first read of `read_ahead`."""

SMALL_NBYTES = 64 << 10
"""Arrays below this size are joined before they are written."""
TOGETHER_NBYTES = 256 << 10
"""Bytes that are joined at a time. The allocator reuses memory of this size, so that its pages are already mapped."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes."""
CheckedBy: TypeAlias = Literal["tensor", "box", "block"]
"""What a checksum of a source covers: a tensor (a column of the index), a box of a tensor, or a block (its CID)."""


class Source(Protocol):
    """Random access to the bytes of a file or of a buffer."""

    @property
    def size(self) -> int: ...

    @property
    def concurrency(self) -> int | None:
        """The number of concurrent reads that is fastest; None for the number of processors."""
        ...

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes in fresh, writable memory; TruncatedError if the source ends before."""
        ...

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fills `out`, or raises TruncatedError."""
        ...

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        """Copies sizes[i] bytes at begins[i] of the source to offsets[i] of `out`, for every i. `begins` ascend."""
        ...

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        """The bytes as one `bytes` object: for headers, not for tensors."""
        ...

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        """The bytes without a copy, if the source is memory that the caller agreed to share; otherwise None."""
        ...


@runtime_checkable
class BatchSource(Protocol):
    """A source that is faster if it gets many reads in one call."""

    def read_together(
        self, begins: Sequence[int], outs: Sequence[memoryview], filled: Callable[[int, int, int], None]
    ) -> None:
        """Fills outs[i] from begins[i] on, for every i. `begins` ascend.

        `filled(i, begin, end)` is called, by several threads, when bytes begin to end of outs[i] have arrived.
        """
        ...


@runtime_checkable
class HeaderSource(Protocol):
    """A source that reads many headers faster in one call than one by one."""

    def read_many(self, begins: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """The bytes of several short spans that are far apart. `begins` ascend."""
        ...


def read_many_of(source: Source) -> Callable[[Sequence[int], Sequence[int]], list[bytes]] | None:
    """The method `read_many` of a source that has one, otherwise None."""
    return source.read_many if isinstance(source, HeaderSource) else None


@runtime_checkable
class LinkedSource(Protocol):
    """A source that also has the blocks that links in its values refer to."""

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
        """Whether it uses several threads for this payload."""
        ...


@runtime_checkable
class Streaming(Codec, Protocol):
    """A codec that decodes bytes while they arrive."""

    def decode_stream(self, payload: Encoded, stored: Iterable[Buffer]) -> Iterator[Buffer]:
        """All decoded bytes from first to last; `stored` yields the encoded bytes in order."""
        ...


@runtime_checkable
class Rearranged(Codec, Protocol):
    """A codec that changes the order or the width of elements, over the codec that compresses them, if any."""

    def below(self, payload: Encoded) -> Span | Encoded:
        """The bytes before they are rearranged. A checksum of decoded bytes covers these."""
        ...


@runtime_checkable
class Scattered(Codec, Protocol):
    """A codec of tensors that are stored in pieces, in several files of a directory."""

    def places(self, source: Source) -> list[tuple[str, int, int]]:
        """File, begin and end of each piece; an empty list if the source is not a directory of files."""
        ...


class Undecodable(ABC):
    """A codec of values that can be listed but not read. Readers ask for this before they allocate memory."""

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
    """A codec whose frames each have a checksum, which is compared whenever a frame is decoded."""

    frames_checked: bool


@runtime_checkable
class Composed(Codec, Protocol):
    """A codec of a tensor that is stored as several tensors of other files."""

    def fill(self, payload: Encoded, axes: Any, out: NDArray[Any]) -> None:
        """Reads the elements at the given positions of each axis (`slicing.Axis`), and no others, into `out`."""
        ...

    def verify(self, payload: Encoded, verifier: Any) -> bool:
        """Compares the checksums of these tensors by a `Verifier`; returns whether every one has a checksum."""
        ...


class Check(Protocol):
    """The checksum of a payload, compared once with the bytes that it covers. IntegrityError if they differ."""

    @property
    def decoded(self) -> bool:
        """Whether it covers the decoded bytes; otherwise it covers the stored ones."""
        ...

    @property
    def strict(self) -> bool:
        """Whether the whole payload must be compared before a partial read."""
        ...

    def pending(self) -> bool:
        """Whether a comparison is due. Raises if it failed before, or is required and impossible."""
        ...

    def read(self, source: Source, begin: int, nbytes: int) -> memoryview:
        """Reads all covered bytes, and compares."""
        ...

    def read_into(self, source: Source, begin: int, out: memoryview) -> None:
        """The same, into the caller's memory."""
        ...

    def follow(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yields the covered bytes unchanged, and compares after the last."""
        ...

    def stored(self, source: Source, begin: int, end: int) -> AbstractContextManager[memoryview | None]:
        """Compares the stored bytes; the context's value is these bytes, or None if they are too many to hold."""
        ...


class Span(NamedTuple):
    """Raw bytes at `begin` to `end` of a source."""

    source: Source
    begin: int
    end: int
    check: Check | None = None

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
        """Copies runs of `nbytes` bytes at `begins` of the payload to `offsets` of `out`."""
        if self.check is not None and self.check.strict and self.check.pending():
            self.verify()
        self.source.read_runs((begins + self.begin).tolist(), [nbytes] * len(begins), offsets, out)

    def view(self, *, whole: bool = True) -> memoryview | None:
        """The bytes in shared memory, or None if the source is not shared memory.

        Pass `whole=False` if only some of them will be used: then they are compared only by a strict check.
        """
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
            # Shared memory is hashed where it is; otherwise the bytes are read to scratch memory.
            shared = self.source.view(self.begin, self.nbytes)
            if shared is not None:
                _exhaust(self.check.follow([shared]))
            else:
                with self.check.stored(self.source, self.begin, self.end):
                    pass


class Encoded(NamedTuple):
    """Bytes at `begin` to `end` of a source, which a codec decodes to `nbytes` bytes."""

    source: Source
    begin: int
    end: int
    nbytes: int
    codec: Codec
    tensor: str
    """The tensor's name, for errors of the codec."""
    limits: Any = None
    """The `Limits` that the archive was opened with."""
    check: Check | None = None
    held: memoryview | None = None
    """The encoded bytes, if they have been read already."""

    def require_decodable(self) -> None:
        """Raises if the codec cannot decode anything."""
        if isinstance(self.codec, Undecodable):
            raise self.codec.refuse(self)

    def read(self, offset: int, nbytes: int) -> memoryview:
        self.require_decodable()
        try:
            out = np.empty(nbytes, np.uint8).data
        except MemoryError as error:
            # If the size is wrong, the codec's error says more than "out of memory": let it look at the data first.
            self.codec.decode_into(self, offset, memoryview(bytearray()))
            raise LimitError(
                f"out of memory: {nbytes} bytes needed",
                rule="memory.size",
                offset=self.begin,
                tensor=self.tensor,
            ) from error
        self.read_into(offset, out)
        return out

    def read_into(self, offset: int, out: memoryview) -> None:
        # Each way compares the checksum in the pass that reads, with the least number of passes over the bytes.
        check = self.check
        if check is None or not check.pending():
            self.codec.decode_into(self, offset, out)
        elif len(out) < self.nbytes:  # a partial read
            if check.strict and not isinstance(self.codec, FrameChecked):
                self.verify()
            self.codec.decode_into(self._bare, offset, out)
        elif not check.decoded and self.streaming is not None:
            copy_range(map(memoryview, self.streaming.decode_stream(self, self.stored(check))), 0, out)
        elif not check.decoded:
            with check.stored(self.source, self.begin, self.end) as held:
                self.codec.decode_into(self._replace(check=None, held=held), offset, out)
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
        """The codec if the bytes come from a server and it can decode them as they arrive, so they are read once."""
        remote = self.held is None and self.source.concurrency is not None
        return self.codec if remote and isinstance(self.codec, Streaming) else None

    def stored(self, check: Check | None = None) -> Iterator[Buffer]:
        """The encoded bytes in order, compared with `check`, which must cover the stored bytes."""
        pieces = read_pieces(Span(self.source, self.begin, self.end), STREAM_NBYTES)
        return pieces if check is None else check.follow(pieces)

    @property
    def _bare(self) -> Encoded:
        return self._replace(check=None)


class Memory(NamedTuple):
    """An array of any order, strides and byte order. Its bytes as a payload are little-endian and in C order."""

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
        """Does nothing: memory has no checksum."""

    def chunks(self) -> Iterator[Chunk]:
        return _plain_pieces(self.array)


Payload: TypeAlias = Span | Encoded | Memory
Chunk: TypeAlias = Buffer | Span
"""What a format's writer yields: bytes, or a span, which the sink may copy by the OS (copy_file_range)."""


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
    """Wraps `read` for sequential reads from a server: each request is larger than the last, up to STREAM_NBYTES.

    `size` is the end of the bytes that may be read.
    """
    begin, held = 0, memoryview(b"")

    def ahead(offset: int, nbytes: int) -> memoryview:
        nonlocal begin, held
        if not begin <= offset <= offset + nbytes <= begin + len(held):
            more = min(STREAM_NBYTES, max(_FIRST_NBYTES, 2 * len(held)), size - offset)
            begin, held = offset, read(offset, max(nbytes, more))
        return held[offset - begin : offset - begin + nbytes]

    return ahead


def copy_range(pieces: Iterable[memoryview], offset: int, out: memoryview) -> None:
    """Fills `out` with the bytes from `offset` on of the concatenated pieces."""
    at = 0
    for piece in pieces:
        begin, end = max(offset, at), min(offset + len(out), at + len(piece))
        if begin < end:
            out[begin - offset : end - offset] = piece[begin - at : end - at]
        at += len(piece)


def _exhaust(chunks: Iterator[Any]) -> None:
    deque(chunks, 0)


def join_arrays(arrays: list[NDArray[Any]], pads: Sequence[bytes] | None = None) -> bytes:
    """The bytes of C-contiguous arrays, concatenated, each preceded by its pad."""
    if pads is not None and any(pads):
        return b"".join(cast("list[bytes]", [piece for pair in zip(pads, arrays, strict=True) for piece in pair]))
    return b"".join(cast("list[bytes]", arrays))


def inner_payload(payload: Encoded, inner: Codec | None, nbytes: int) -> Span | Encoded:
    """The payload below a codec that wraps another: the stored span, or the bytes that the inner codec decodes."""
    if inner is None:
        return Span(payload.source, payload.begin, payload.end, payload.check)
    return payload._replace(nbytes=nbytes, codec=inner)


def location(payload: Payload | NDArray[Any]) -> tuple[object, ...]:
    """A key that is equal for payloads of the same bytes, so that their tensors are tied.

    Valid while the payloads exist. Relies on codecs that decode alike being equal.
    """
    if isinstance(payload, Memory):
        payload = payload.array
    if isinstance(payload, np.ndarray):
        return (payload.__array_interface__["data"][0], payload.shape, payload.strides, payload.dtype)
    codec = payload.codec if isinstance(payload, Encoded) else None
    return (id(payload.source), payload.begin, payload.end, payload.nbytes, codec)


def as_bytes(data: Any) -> memoryview:
    """The bytes of a C-contiguous buffer or array, also of ml_dtypes, which export no buffer."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8).data
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _plain(array: NDArray[Any]) -> bool:
    """Whether the memory of an array is already little-endian and in C order."""
    return array.flags.c_contiguous and array.dtype.newbyteorder("<") == array.dtype


def _plain_pieces(array: NDArray[Any]) -> Iterator[memoryview]:
    """The little-endian C-order bytes of any array: without a copy if possible, otherwise in bounded pieces."""
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
