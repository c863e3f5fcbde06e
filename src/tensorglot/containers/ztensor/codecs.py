"""The encodings of zTensor as codecs of the model: zstd frames, seekable zstd, and those that we cannot read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from tensorglot.errors import FormatError, TruncatedError, UnsupportedError, escape
from tensorglot.memory import SCRATCH_NBYTES, scratch
from tensorglot.model.payload import Buffer, Encoded
from tensorglot.wire import zstd
from tensorglot.wire.seektable import read_seek_table
from tensorglot.wire.zstd import Frame

__all__ = ["Opaque", "SeekableZstd", "Zstd"]

_REMEMBERED = 64
_OVERHEAD_NBYTES = 64 << 10
"""More than zstd adds to what it cannot compress, in a blob that is read at once."""


def _reader(payload: Encoded) -> zstd.Read:
    """The encoded bytes, read as they are asked for."""
    held = payload.held
    if held is not None:
        return lambda at, nbytes: held[at : at + nbytes]

    def read(at: int, nbytes: int) -> memoryview:
        with _from_its_begin(payload):
            return payload.source.read(payload.begin + at, nbytes)

    return read


@contextmanager
def _from_its_begin(payload: Encoded) -> Iterator[None]:
    """Errors of a source say the byte of the file; those of zstd, the byte of the payload."""
    try:
        yield
    except TruncatedError as error:
        error.offset = (error.offset or 0) - payload.begin
        raise


@contextmanager
def _at_once(payload: Encoded) -> Iterator[zstd.Read]:
    """The same, but few bytes are read before, into memory that this thread uses again.

    Not where much more is stored than is declared: that is no more than passed over.
    """
    size = payload.end - payload.begin
    if payload.held is not None or size > min(SCRATCH_NBYTES, payload.nbytes + _OVERHEAD_NBYTES):
        yield _reader(payload)
        return
    with scratch() as memory:
        held = memory.room(size, payload.begin)
        with _from_its_begin(payload):
            payload.source.read_into(payload.begin, held)
        yield lambda at, nbytes: held[at : at + nbytes]


@contextmanager
def _named(payload: Encoded) -> Iterator[None]:
    """Errors of zstd say which tensor and which byte of the file they are about."""
    try:
        yield
    except FormatError as error:
        error.tensor = payload.tensor
        error.offset = payload.begin + (error.offset or 0)
        raise


@dataclass(frozen=True, slots=True)
class _Held:
    """Frames one after the other, and the decoded bytes that they hold."""

    frames: list[Frame]
    begin: int
    end: int


class Zstd:
    """Frames of zstd, one after the other. Belongs to one index, and remembers where frames are."""

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
        with _named(payload), _at_once(payload) if whole else nullcontext(_reader(payload)) as read:
            held = self._held(payload, read, offset, offset + len(out))
            zstd.decode_into(read, held.frames, held.end - held.begin, offset - held.begin, out)

    def threaded(self, payload: Encoded) -> bool:
        """Whether several threads decode it: it has several frames."""
        with _named(payload):
            return len(self._remembered(payload, _reader(payload))) > 1

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        """Frame by frame where their sizes are known, else as one stream: nothing is decoded twice."""
        read = _reader(payload)
        with _named(payload):
            held = self._held(payload, read, 0, payload.nbytes)
        chunks = zstd.decoded_chunks(read, held.frames, payload.nbytes)
        while True:
            with _named(payload):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    def _held(self, payload: Encoded, read: zstd.Read, begin: int, end: int) -> _Held:
        """Frames that hold at least the decoded bytes from `begin` to `end`."""
        return _Held(self._remembered(payload, read), 0, payload.nbytes)

    def _remembered(self, payload: Encoded, read: zstd.Read) -> list[Frame]:
        key = (id(payload.source), payload.begin, payload.end)
        frames = self._frames.get(key)
        if frames is None:
            frames = self._scan(payload, read)
            if len(frames) > 1:
                for old in list(islice(self._frames, max(0, len(self._frames) + 1 - _REMEMBERED))):
                    self._frames.pop(old, None)
                self._frames[key] = frames
        return frames

    def _scan(self, payload: Encoded, read: zstd.Read) -> list[Frame]:
        """Where the frames are, found by walking over them."""
        size = payload.end - payload.begin
        return zstd.scan(read, size, payload.nbytes, max_window=payload.limits.zstd_window)


class SeekableZstd(Zstd):
    """`zt.zstd-seekable/1`: frames of one size and a table of them."""

    name = "zt.zstd-seekable/1"
    frames_checked = True

    def _held(self, payload: Encoded, read: zstd.Read, begin: int, end: int) -> _Held:
        """The frames that the table names; each is found to be what the table says, the others are not looked at."""
        table = self._remembered(payload, read)
        if end - begin < payload.nbytes:
            each = table[0].nbytes or 1
            first, last = begin // each, -(-end // each)
            wanted, start = table[first:last], first * each
        else:
            wanted, start = table, 0
        frames = [self._checked(frame, payload, read) for frame in wanted]
        return _Held(frames, start, start + sum(frame.nbytes or 0 for frame in frames))

    def _scan(self, payload: Encoded, read: zstd.Read) -> list[Frame]:
        """Where the frames are, by the table alone."""
        sizes = read_seek_table(read, payload.end - payload.begin)
        self._check_sizes([decoded for _, decoded in sizes], payload.nbytes)
        ends = accumulate(encoded for encoded, _ in sizes)
        return [
            Frame(end - encoded, end, decoded, decoded, None, checksum=True)
            for end, (encoded, decoded) in zip(ends, sizes, strict=True)
        ]

    @staticmethod
    def _checked(said: Frame, payload: Encoded, read: zstd.Read) -> Frame:
        nbytes = said.nbytes or 0
        found = zstd.scan(read, said.end, nbytes, max_window=payload.limits.zstd_window, begin=said.begin)
        if len(found) != 1 or found[0].end != said.end or found[0].nbytes not in (None, nbytes):
            raise FormatError("a frame is not what the seek table says", rule="zstd.seek", offset=said.begin)
        if not found[0].checksum:
            raise FormatError("a frame without a checksum", rule="zstd.seek.checksum", offset=said.begin)
        frame = found[0]
        return Frame(frame.begin, frame.end, nbytes, frame.window, frame.window_at, frame.checksum)

    @staticmethod
    def _check_sizes(sizes: list[int], nbytes: int) -> None:
        if sum(sizes) != nbytes:
            raise TruncatedError(f"frames of {sum(sizes)} bytes for {nbytes}", rule="zstd.size", offset=0)
        if any(size != sizes[0] for size in sizes[:-1]) or (sizes and sizes[-1] > sizes[0]):
            raise FormatError("frames of different sizes", rule="zstd.seek.equal", offset=0)
        if sizes and sizes[0] > 16 << 20:
            raise FormatError("a frame of more than 16 MiB", rule="zstd.seek.large", offset=0)


class Opaque:
    """An encoding that we do not know, or of elements that we do not know: its bytes can only be copied."""

    def __init__(self, name: str) -> None:
        self.name = name

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        raise UnsupportedError(
            f"encoding '{escape(self.name)}' cannot be decoded here", rule="encoding.known", tensor=payload.tensor
        )

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        self.decode_into(payload, 0, memoryview(b""))
        yield b""
