"""The encodings of zTensor as codecs of the model: zstd frames, seekable zstd, and unknown ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Any

from tensorglot.errors import FormatError, TruncatedError, UnsupportedError, escape
from tensorglot.memory import SCRATCH_NBYTES, scratch
from tensorglot.model.payload import STREAM_NBYTES, Buffer, Encoded, Undecodable, copy_range, read_ahead
from tensorglot.wire import zstd
from tensorglot.wire.seektable import read_seek_table
from tensorglot.wire.zstd import Frame

__all__ = ["Opaque", "SeekableZstd", "Zstd"]

_CACHED = 64
_OVERHEAD_NBYTES = 64 << 10
"""Upper bound of the bytes that zstd adds to incompressible data, for blobs that are read at once."""


def _reader(payload: Encoded) -> zstd.Read:
    """A function that reads the encoded bytes on demand."""
    if payload.held is not None:
        return zstd.read_held(payload.held)

    def read(at: int, nbytes: int) -> memoryview:
        with _relative_offsets(payload):
            return payload.source.read(payload.begin + at, nbytes)

    return read


@contextmanager
def _relative_offsets(payload: Encoded) -> Iterator[None]:
    """Makes the offsets in errors of the source relative to the payload, as they are in errors of zstd."""
    try:
        yield
    except FormatError as error:
        error.offset = (error.offset or 0) - payload.begin
        raise


@contextmanager
def _at_once(payload: Encoded) -> Iterator[zstd.Read]:
    """A function that reads the encoded bytes; a small payload is read at once, into the thread's scratch memory.

    But not if it is much larger than its decoded size: then most of it is only skipped.
    """
    size = payload.end - payload.begin
    if payload.held is not None or size > min(SCRATCH_NBYTES, payload.nbytes + _OVERHEAD_NBYTES):
        yield _reader(payload)
        return
    with scratch() as memory:
        held = memory.room(size, payload.begin)
        with _relative_offsets(payload):
            payload.source.read_into(payload.begin, held)
        yield zstd.read_held(held)


@contextmanager
def _named(payload: Encoded) -> Iterator[None]:
    """Adds the tensor to errors, and makes their offsets relative to the file."""
    try:
        yield
    except FormatError as error:
        error.tensor = payload.tensor
        error.offset = payload.begin + (error.offset or 0)
        raise


@dataclass(frozen=True, slots=True)
class _Frames:
    """Consecutive frames, and the range of decoded bytes that they contain."""

    frames: list[Frame]
    begin: int
    end: int
    read: zstd.Read
    """Reads the encoded bytes."""


def _relative(payload: Encoded, stored: Iterable[Buffer]) -> Iterator[Buffer]:
    with _relative_offsets(payload):
        yield from stored


def _all_named(payload: Encoded, chunks: Iterator[memoryview]) -> Iterator[memoryview]:
    while True:
        with _named(payload):
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


class Zstd:
    """Concatenated zstd frames. Belongs to one index, and caches the offsets of frames."""

    name = "zstd"

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int, int], list[Frame]] = {}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        whole = len(out) == payload.nbytes
        if whole and payload.streaming is not None:
            copy_range(self.decode_stream(payload, payload.stored()), 0, out)
            return
        with _named(payload), _at_once(payload) if whole else nullcontext(_reader(payload)) as read:
            held = self._find(payload, read, offset, offset + len(out))
            zstd.decode_into(held.read, held.frames, held.end - held.begin, offset - held.begin, out)

    def threaded(self, payload: Encoded) -> bool:
        """Whether several threads decode it, because it has several frames. For a server that is assumed, not read."""
        if payload.streaming is not None:
            return True
        with _named(payload):
            return len(self._all_frames(payload, _reader(payload))) > 1

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        """Frame by frame if their sizes are known, else as one stream: nothing is decoded twice."""
        if payload.streaming is not None:
            return self.decode_stream(payload, payload.stored())
        read = _reader(payload)
        with _named(payload):
            held = self._find(payload, read, 0, payload.nbytes)
        return _all_named(payload, zstd.decoded_chunks(read, held.frames, payload.nbytes))

    def decode_stream(self, payload: Encoded, stored: Iterable[Buffer]) -> Iterator[memoryview]:
        return _all_named(payload, self._decode_stream(payload, _relative(payload, stored)))

    def _decode_stream(self, payload: Encoded, stored: Iterator[Buffer]) -> Iterator[memoryview]:
        try:
            yield from zstd.decode_stream(
                stored,
                payload.end - payload.begin,
                payload.nbytes,
                max_window=payload.limits.zstd_window,
                check=self._frame_check(payload),
            )
        except FormatError:
            deque(stored, 0)  # reads the rest, so that a checksum mismatch is raised instead of this error
            raise

    def _frame_check(self, payload: Encoded) -> Callable[[Frame], Frame]:
        """A function that checks the frames of a stream, in their order."""
        return lambda frame: frame

    def _find(self, payload: Encoded, read: zstd.Read, begin: int, end: int) -> _Frames:
        """Finds frames that contain at least the decoded bytes from `begin` to `end`."""
        return _Frames(self._all_frames(payload, read), 0, payload.nbytes, read)

    def _all_frames(self, payload: Encoded, read: zstd.Read) -> list[Frame]:
        key = (id(payload.source), payload.begin, payload.end)
        frames = self._frames.get(key)
        if frames is None:
            frames = self._scan(payload, read)
            if len(frames) > 1:
                for old in list(islice(self._frames, max(0, len(self._frames) + 1 - _CACHED))):
                    self._frames.pop(old, None)
                self._frames[key] = frames
        return frames

    def _scan(self, payload: Encoded, read: zstd.Read) -> list[Frame]:
        """Finds the frames by their headers."""
        size = payload.end - payload.begin
        if payload.streaming is not None:
            read = read_ahead(read, size)
        return zstd.scan(read, size, payload.nbytes, max_window=payload.limits.zstd_window)


class SeekableZstd(Zstd):
    """`zt.zstd-seekable/1`: frames of equal size, and a seek table."""

    name = "zt.zstd-seekable/1"
    frames_checked = True

    def _find(self, payload: Encoded, read: zstd.Read, begin: int, end: int) -> _Frames:
        """Finds the frames by the seek table, and checks that each is as the table says; the others are not read."""
        table = self._all_frames(payload, read)
        if end - begin < payload.nbytes:
            each = table[0].nbytes or 1
            first, last = begin // each, -(-end // each)
            wanted, start = table[first:last], first * each
        else:
            wanted, start = table, 0
        if wanted and payload.streaming is not None and wanted[-1].end - wanted[0].begin <= STREAM_NBYTES:
            first_byte = wanted[0].begin
            read = zstd.read_held(read(first_byte, wanted[-1].end - first_byte), first_byte)
        frames = [self._check(frame, payload, read) for frame in wanted]
        return _Frames(frames, start, start + sum(frame.nbytes or 0 for frame in frames), read)

    def _scan(self, payload: Encoded, read: zstd.Read) -> list[Frame]:
        """Finds the frames by the seek table alone."""
        sizes = read_seek_table(read, payload.end - payload.begin)
        self._check_sizes([decoded for _, decoded in sizes], payload.nbytes)
        ends = accumulate(encoded for encoded, _ in sizes)
        return [
            Frame(end - encoded, end, decoded, decoded, None, checksum=True)
            for end, (encoded, decoded) in zip(ends, sizes, strict=True)
        ]

    @staticmethod
    def _check(listed: Frame, payload: Encoded, read: zstd.Read) -> Frame:
        """Returns the frame that the table lists, with the window that its header declares."""
        nbytes, begin = listed.nbytes or 0, listed.begin
        found = zstd.scan(read, listed.end, nbytes, max_window=payload.limits.zstd_window, begin=begin)
        return SeekableZstd._match(listed, found[0] if len(found) == 1 else None)

    @staticmethod
    def _match(listed: Frame | None, found: Frame | None) -> Frame:
        if found is None or listed is None or found.end != listed.end or found.nbytes not in (None, listed.nbytes):
            where = 0 if listed is None else listed.begin
            raise FormatError("a frame does not match the seek table", rule="zstd.seek", offset=where)
        if not found.checksum:
            raise FormatError("a frame has no checksum", rule="zstd.seek.checksum", offset=found.begin)
        return replace(found, nbytes=listed.nbytes)

    def _decode_stream(self, payload: Encoded, stored: Iterator[Buffer]) -> Iterator[memoryview]:
        if self._all_frames(payload, _reader(payload)):  # an empty tensor has a seek table alone
            yield from super()._decode_stream(payload, stored)

    def _frame_check(self, payload: Encoded) -> Callable[[Frame], Frame]:
        listed = iter(self._all_frames(payload, _reader(payload)))
        return lambda found: self._match(next(listed, None), found)

    @staticmethod
    def _check_sizes(sizes: list[int], nbytes: int) -> None:
        if sum(sizes) != nbytes:
            raise TruncatedError(
                f"zstd frames decode to {sum(sizes)} bytes, {nbytes} were declared", rule="zstd.size", offset=0
            )
        if any(size != sizes[0] for size in sizes[:-1]) or (sizes and sizes[-1] > sizes[0]):
            raise FormatError("the frames have different sizes", rule="zstd.seek.equal", offset=0)
        if sizes and sizes[0] > 16 << 20:
            raise FormatError("a frame has more than 16 MiB", rule="zstd.seek.large", offset=0)


class Opaque(Undecodable):
    """An unknown encoding, or one of unknown elements: its bytes can only be copied."""

    def __init__(self, name: str) -> None:
        self.name = name

    def refuse(self, payload: Encoded) -> UnsupportedError:
        return UnsupportedError(
            f"unsupported encoding '{escape(self.name)}'", rule="encoding.known", tensor=payload.tensor
        )
