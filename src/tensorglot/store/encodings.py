"""A chunk as stored bytes: raw, constant, byte planes, or a delta from an earlier chunk.

An encoding is chosen by trying on a sample of the chunk, then by size; the result is
never larger than the chunk. What a body holds:

    RAW                the chunk
    CONSTANT           one element, repeated
    PLANES             width, and a stream for each byte of the elements
    SPARSE_XOR         width, count, where the elements differ from the base, and their XOR
    XOR_PLANES         like PLANES, of the XOR with the base
    SPARSE_DIFFERENCE  like SPARSE_XOR, of the difference modulo 2^bits, in zigzag form
    DIFFERENCE_PLANES  like XOR_PLANES, of the same

A training step moves most floats by one unit in the last place. As a difference that is
one of two values; as XOR it is any 2^n - 1. A *stream* is a zstd frame after its size, or
the plain bytes after a size of 0: random mantissas cost a copy. Bytes behind the last
whole element come last, as they are or as XOR. Numbers are little-endian.

Knows bytes and widths; knows no tensor, no CID and no file. Every function may run on
several threads at once; bodies may come from a stranger.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tensorglot.errors import FormatError, InputError
from tensorglot.kernels import planes
from tensorglot.memory import Scratch, scratch
from tensorglot.wire import zstd
from tensorglot.wire.cid import CHUNK_NBYTES

__all__ = ["IS_DELTA", "Encoded", "Encoding", "apply", "apply_chain", "decode", "encode"]

Array: TypeAlias = npt.NDArray[Any]


class Encoding(IntEnum):
    RAW = 0
    CONSTANT = 1
    PLANES = 2
    SPARSE_XOR = 3
    XOR_PLANES = 4
    SPARSE_DIFFERENCE = 5
    DIFFERENCE_PLANES = 6


MAX_WIDTH = 16

_SAMPLE_NBYTES = 64 << 10
"""A chunk up to this size is encoded in every way, a larger one in the best way of a sample of this size."""
_WINDOWS = 8
_SURPRISE = 1.25
"""If a chunk turns out larger than its sample promised by this factor, the next best encoding is tried, too."""
_CLEARLY_SPARSE = 1 / 16
"""Of a chunk or a sample: a sparse delta below it is not compared with planes."""
_SAMPLE_COUNT = 2048
"""Elements that choose between sparse deltas."""
_MOST_CHANGED = 0.4
"""Share of the elements in a sparse delta at most: one byte of gap for each is too much beyond."""

_WAITING_NBYTES = 2 << 20
"""Of decoded sparse deltas that are applied together."""

_SPARSE = struct.Struct("<BII")
_COUNTS = struct.Struct("<II")
_STREAM = struct.Struct("<I")
_SPARSE_ONES = (Encoding.SPARSE_XOR, Encoding.SPARSE_DIFFERENCE)
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


@dataclass(frozen=True, slots=True)
class Encoded:
    encoding: Encoding
    body: bytes | memoryview
    """The body of RAW is the memory that was given, not a copy."""


# Encoding


def encode(data: memoryview, width: int, base: memoryview | None = None) -> Encoded:
    """Encodes a chunk of elements of `width` bytes, as a delta from `base` where that is smaller.

    For complex numbers `width` is best that of their parts. A base of another size counts as
    cut, or extended with zeros.
    """
    data = memoryview(data).cast("B")
    if not 1 <= width <= MAX_WIDTH:
        raise InputError(f"an element has 1 to {MAX_WIDTH} bytes, not {width}", rule="store.width")
    _check_size(data)
    if _is_constant(data, width):
        return Encoded(Encoding.CONSTANT, bytes(data[:width]))
    old = None if base is None else _fit(memoryview(base).cast("B"), len(data))
    sparse = None if old is None else _encode_clearly_sparse(data, width, old)
    if sparse is not None:
        return sparse
    best = Encoded(Encoding.RAW, data)
    for encoding, expected in _ranked(data, width, old):
        body = _encode_as(encoding, data, width, old)
        if body is not None and len(body) < len(best.body):
            best = Encoded(encoding, body)
        if body is not None and len(body) < expected * _SURPRISE:
            break
    return best


def _check_size(chunk: memoryview) -> None:
    if len(chunk) > CHUNK_NBYTES:
        raise InputError(f"a chunk has at most {CHUNK_NBYTES} bytes, not {len(chunk)}", rule="store.chunk")


def _is_constant(data: memoryview, width: int) -> bool:
    if len(data) <= width or data[width : 2 * width] != data[: min(width, len(data) - width)]:
        return False
    values = np.frombuffer(data, np.uint8)
    return np.array_equal(values[width:], values[:-width])


def _fit(base: memoryview, nbytes: int) -> memoryview:
    return base[:nbytes] if len(base) >= nbytes else memoryview(bytes(base).ljust(nbytes, b"\0"))


def _ranked(data: memoryview, width: int, base: memoryview | None) -> Iterator[tuple[Encoding, float]]:
    """The encodings worth trying, the most promising first, with the size that each promises; 0 where unknown."""
    deltas = [] if base is None else [Encoding.SPARSE_XOR, Encoding.XOR_PLANES]
    if base is not None and width in _WORDS:
        deltas += [Encoding.SPARSE_DIFFERENCE, Encoding.DIFFERENCE_PLANES]
    left = [Encoding.PLANES, *deltas]
    if len(data) > _SAMPLE_NBYTES:
        spans = _windows(len(data), width)
        sample = _gather(data, spans)
        sample_base = None if base is None else _gather(base, spans)
        sizes: dict[Encoding, float] = {}
        for encoding in sorted(left, key=lambda encoding: encoding not in _SPARSE_ONES):
            if encoding not in _SPARSE_ONES and min(sizes.values(), default=1) < _CLEARLY_SPARSE:
                break
            body = _encode_as(encoding, sample, width, sample_base)
            sizes[encoding] = 1 if body is None else len(body) / len(sample)
        for encoding in sorted(sizes, key=sizes.__getitem__):
            left.remove(encoding)
            if sizes[encoding] < 1:
                yield encoding, sizes[encoding] * len(data)
    for encoding in left:
        yield encoding, 0


def _windows(nbytes: int, width: int) -> list[slice]:
    size = _SAMPLE_NBYTES // _WINDOWS // width * width
    starts = (i * (nbytes - size) // (_WINDOWS - 1) // width * width for i in range(_WINDOWS))
    return [slice(start, start + size) for start in starts]


def _gather(data: memoryview, spans: list[slice]) -> memoryview:
    return memoryview(b"".join(data[span] for span in spans))


def _encode_as(encoding: Encoding, data: memoryview, width: int, base: memoryview | None) -> bytes | None:
    """The body; None if too many elements differ for a sparse one."""
    whole = len(data) // width * width
    with scratch() as memory:
        room, other = _rooms(memory)
        if base is None or encoding not in _DELTAS:
            streams = _plane_streams(data[:whole], width, room) if width > 1 else _stream(data, repeats=True)
            return b"".join([bytes([width]), *streams, data[whole:]])
        sparse, operation = _DELTAS[encoding]
        tail = bytes(one ^ two for one, two in zip(data[whole:], base[whole:], strict=True))
        new, old = _elements(data, width), _elements(base, width)
        if not sparse:
            delta = other[:whole]
            operation.combine(new, old, _elements(delta, width))
            return b"".join([bytes([width]), *_plane_streams(delta, width, room), tail])
        found = _changes(data, base, width, int(len(new) * _MOST_CHANGED), other)
        if found is None:
            return None
        values = _combined(operation, new.take(found.positions, axis=0), old.take(found.positions, axis=0))
        return b"".join([*_sparse_head(found, width), *_plane_streams(values, width, room), tail])


class _Changes(NamedTuple):
    """The elements of a chunk that differ from its base."""

    positions: Array
    gaps: memoryview


def _changes(data: memoryview, base: memoryview, width: int, most: int, room: memoryview) -> _Changes | None:
    """None if more than `most` differ. The gaps are in `room`."""
    positions = np.empty(most + planes.SPARE, np.int64)
    count, used = planes.differences(
        data, base, width, room[: most + len(data) // width // planes.LONGEST + 1], positions
    )
    return None if count < 0 else _Changes(positions[:count], room[:used])


def _sparse_head(found: _Changes, width: int) -> tuple[bytes, ...]:
    """A sparse body up to its values."""
    return _SPARSE.pack(width, len(found.positions), len(found.gaps)), *_stream(found.gaps)


def _combined(operation: _Operation, new: Array, old: Array) -> memoryview:
    """The bytes of a delta of elements."""
    delta = np.empty_like(new)
    operation.combine(new, old, delta)
    return delta.reshape(-1).view(np.uint8).data


def _encode_clearly_sparse(data: memoryview, width: int, base: memoryview) -> Encoded | None:
    """A delta of so few elements that no planes can be smaller; None if there are more.

    The chunk is compared once, and a sample of the elements that differ chooses between XOR and difference.
    """
    if width not in _WORDS or len(data) <= _SAMPLE_NBYTES:
        return None
    whole = len(data) // width * width
    with scratch() as memory:
        room, other = _rooms(memory)
        found = _changes(data, base, width, int(len(data) * _CLEARLY_SPARSE) // (width + 1), other)
        if found is None:
            return None
        new, old = (_elements(chunk, width).take(found.positions) for chunk in (data, base))
        sample = slice(None, None, max(1, len(new) // _SAMPLE_COUNT))
        sizes = {
            encoding: sum(map(len, _plane_streams(_combined(operation, new[sample], old[sample]), width, room)))
            for encoding, (sparse, operation) in _DELTAS.items()
            if sparse
        }
        encoding = min(sizes, key=sizes.__getitem__)
        values = _combined(_DELTAS[encoding][1], new, old)
        tail = bytes(one ^ two for one, two in zip(data[whole:], base[whole:], strict=True))
        return Encoded(encoding, b"".join([*_sparse_head(found, width), *_plane_streams(values, width, room), tail]))


def _rooms(memory: Scratch) -> tuple[memoryview, memoryview]:
    """Room for two chunks."""
    room = memory.room(2 * CHUNK_NBYTES, 0)
    return room[:CHUNK_NBYTES], room[CHUNK_NBYTES:]


def _plane_streams(elements: memoryview, width: int, room: memoryview) -> list[bytes]:
    split = room[: len(elements)]
    planes.split(elements, width, split)
    size = len(elements) // width
    return [part for plane in range(width) for part in _stream(split[plane * size : (plane + 1) * size])]


def _stream(data: memoryview, *, repeats: bool = False) -> tuple[bytes, bytes]:
    packed = zstd.compress_planes(data)
    if repeats:  # single bytes may be numbers, text or anything else
        packed = min(packed, zstd.compress(data, level=1, checksum=False), key=len)
    return (_STREAM.pack(len(packed)), packed) if len(packed) < len(data) else (_STREAM.pack(0), bytes(data))


# Decoding


def decode(encoding: int, body: memoryview, out: memoryview) -> None:
    """Fills `out` from a body that needs no base. After an error the contents of `out` are undefined."""
    body, out = memoryview(body).cast("B"), memoryview(out).cast("B")
    _check_size(out)
    if encoding == Encoding.RAW:
        if len(body) != len(out):
            raise _malformed(f"{len(body)} bytes for a chunk of {len(out)}")
        out[:] = body
    elif encoding == Encoding.CONSTANT:
        if not 1 <= len(body) <= MAX_WIDTH:
            raise _malformed(f"an element has 1 to {MAX_WIDTH} bytes, not {len(body)}")
        whole = len(out) // len(body) * len(body)
        np.frombuffer(out, np.uint8, whole).reshape(-1, len(body))[:] = np.frombuffer(body, np.uint8)
        out[whole:] = body[: len(out) - whole]
    elif encoding == Encoding.PLANES:
        reader = _Body(body)
        width = reader.width()
        with scratch() as memory:
            room, _ = _rooms(memory)
            planes.merge(reader.planes(len(out) // width, width, room), width, out)
        reader.tail(len(out) % width, out)
    else:
        raise _malformed(
            f"encoding {encoding} is {'a delta, and needs its base' if encoding in IS_DELTA else 'unknown'}"
        )


def apply(encoding: int, body: memoryview, out: memoryview, *, undo: bool = False) -> None:
    """Turns `out`, which holds the base, into the chunk; with `undo`, the chunk into the base.

    A body that is refused leaves `out` as it is.
    """
    body, out = memoryview(body).cast("B"), memoryview(out).cast("B")
    _check_size(out)
    sparse = _read_sparse(encoding, body, len(out))
    if sparse is not None:
        _patch([sparse], out, undo=undo)
    else:
        _apply_other(encoding, body, out, undo=undo)


def apply_chain(deltas: Iterable[tuple[int, memoryview]], out: memoryview) -> None:
    """Applies deltas one after the other, sparse ones together. After an error the contents of `out` are undefined."""
    out = memoryview(out).cast("B")
    _check_size(out)
    waiting: list[_Sparse] = []
    nbytes = 0
    for encoding, body in deltas:
        sparse = _read_sparse(encoding, body, len(out))
        if waiting and (sparse is None or sparse.width != waiting[0].width or nbytes > _WAITING_NBYTES):
            _patch(waiting, out)
            waiting, nbytes = [], 0
        if sparse is None:
            _apply_other(encoding, body, out)
        else:
            waiting.append(sparse)
            nbytes += sparse.used + sparse.changed * sparse.width
    if waiting:
        _patch(waiting, out)


class _Sparse(NamedTuple):
    """The body of a sparse delta, decoded."""

    width: int
    changed: int
    """Elements."""
    used: int
    """Bytes of the gaps."""
    difference: bool
    streams: list[bytes | bytearray | memoryview]
    """The gaps, and the planes of the values."""
    tail: memoryview


def _read_sparse(encoding: int, body: memoryview, nbytes: int) -> _Sparse | None:
    """A sparse delta of a chunk of `nbytes` whose elements are words; None for any other body."""
    if encoding not in _SPARSE_ONES or len(body) < _SPARSE.size or body[0] not in _WORDS:
        return None
    # As `_Body` does, in one function: a chunk may be a dozen of deltas with a few kilobytes each.
    width, count, used = _SPARSE.unpack_from(body)
    _check_gaps(count, used, nbytes // width)
    at, streams = _SPARSE.size, []
    for size in (used, *[count] * width):
        if at + _STREAM.size > len(body):
            raise _short(at + _STREAM.size - len(body))
        (packed,) = _STREAM.unpack_from(body, at)
        at += _STREAM.size
        stream = body[at : at + (packed or size)]
        at += packed or size
        if at > len(body):
            raise _short(at - len(body))
        streams.append(_decode_stream(stream, size) if packed else stream)
    rest = len(body) - at - nbytes % width
    if rest:
        raise _long(rest) if rest > 0 else _short(-rest)
    return _Sparse(width, count, used, _DELTAS[Encoding(encoding)][1] is _DIFFERENCE, streams, body[at:])


def _decode_stream(stream: memoryview, nbytes: int) -> bytes | bytearray:
    try:
        return zstd.decode_new(stream, nbytes)
    except FormatError as error:
        raise _malformed(error.message) from error


def _patch(deltas: Sequence[_Sparse], out: memoryview, *, undo: bool = False) -> None:
    """Applies sparse deltas of one width."""
    table = np.array([(each.used, each.changed, each.difference, 0, 0, 0) for each in deltas], np.int64)
    gaps = b"".join([each.streams[0] for each in deltas])
    values = b"".join([plane for each in deltas for plane in each.streams[1:]])
    if not planes.patch(gaps, values, table.reshape(-1), deltas[0].width, undo, out):
        raise _malformed("the gaps do not lead to the declared number of elements")
    for each in deltas:
        _change_tail(out, each.tail)


def _apply_other(encoding: int, body: memoryview, out: memoryview, *, undo: bool = False) -> None:
    """Planes, and sparse deltas of elements that no word has the width of."""
    if encoding not in _DELTAS:
        raise _malformed(f"encoding {encoding} is {'no delta' if encoding in set(Encoding) else 'unknown'}")
    sparse, operation = _DELTAS[Encoding(encoding)]
    reader = _Body(body)
    with scratch() as memory:
        room, other = _rooms(memory)
        width = reader.width()
        count, gaps = reader.gaps(len(out) // width, other) if sparse else (len(out) // width, None)
        values = reader.planes(count, width, room)
        tail = bytearray(len(out) % width)
        reader.tail(len(tail), memoryview(tail))
        if gaps is None:
            delta = other[: len(values)]
            planes.merge(values, width, delta)
            elements = _elements(out, width)
            operation.restore(elements, _elements(delta, width), elements, undo)
        else:
            _patch_wide(gaps, values, width, operation, out, undo=undo)
        _change_tail(out, tail)


def _change_tail(out: memoryview, tail: bytearray | memoryview) -> None:
    for i, change in enumerate(tail, len(out) - len(tail)):
        out[i] ^= change


def _patch_wide(
    gaps: memoryview, values: memoryview, width: int, operation: _Operation, out: memoryview, *, undo: bool
) -> None:
    """As the kernel `patch`, of elements that no word has the width of."""
    delta = np.empty(len(values), np.uint8).data
    planes.merge(values, width, delta)
    elements, changes = _elements(out, width), _elements(delta, width)
    positions = np.empty(len(changes), np.int64)
    if not planes.expand(gaps, len(elements), positions):
        raise _malformed("the gaps do not lead to the declared number of elements")
    chosen = elements.take(positions, axis=0)
    operation.restore(chosen, changes, chosen, undo)
    elements[positions] = chosen


class _Body:
    """A body, read from its beginning to its end."""

    def __init__(self, body: memoryview) -> None:
        self._rest = body

    def _take(self, nbytes: int) -> memoryview:
        if nbytes > len(self._rest):
            raise _short(nbytes - len(self._rest))
        taken, self._rest = self._rest[:nbytes], self._rest[nbytes:]
        return taken

    def width(self) -> int:
        (width,) = self._take(1)
        if not 1 <= width <= MAX_WIDTH:
            raise _malformed(f"an element has 1 to {MAX_WIDTH} bytes, not {width}")
        return width

    def gaps(self, elements: int, room: memoryview) -> tuple[int, memoryview]:
        """How many of the elements a sparse delta changes, and which."""
        count, used = _COUNTS.unpack(self._take(_COUNTS.size))
        _check_gaps(count, used, elements)
        gaps = room[:used]
        self._stream(gaps)
        return count, gaps

    def planes(self, count: int, width: int, room: memoryview) -> memoryview:
        for plane in range(width):
            self._stream(room[plane * count : (plane + 1) * count])
        return room[: count * width]

    def _stream(self, out: memoryview) -> None:
        (nbytes,) = _STREAM.unpack(self._take(_STREAM.size))
        if nbytes == 0:
            out[:] = self._take(len(out))
            return
        try:
            zstd.decode_whole(self._take(nbytes), out)
        except FormatError as error:
            raise _malformed(error.message) from error

    def tail(self, nbytes: int, out: memoryview) -> None:
        """The last bytes of `out`; nothing may follow them."""
        out[len(out) - nbytes :] = self._take(nbytes)
        if self._rest:
            raise _long(len(self._rest))


def _check_gaps(count: int, used: int, elements: int) -> None:
    if count > elements or not count <= used <= min(count + elements // planes.LONGEST, CHUNK_NBYTES):
        raise _malformed(f"{count} changes with gaps of {used} bytes for {elements} elements")


def _short(nbytes: int) -> FormatError:
    return _malformed(f"needs {nbytes} bytes more than the body has")


def _long(nbytes: int) -> FormatError:
    return _malformed(f"{nbytes} bytes follow the end")


def _malformed(what: str) -> FormatError:
    return FormatError(f"malformed chunk: {what}", rule="store.encoding")


# Operations


def _elements(chunk: memoryview, width: int) -> Array:
    """The whole elements: words, or rows of words where there is none of that width."""
    word = _WORDS.get(width) or _WORDS[8 if width == 16 else 1]
    values = np.frombuffer(chunk, word, len(chunk) // width * width // word.itemsize)
    return values if width in _WORDS else values.reshape(-1, width // word.itemsize)


class _Operation(NamedTuple):
    combine: Callable[[Array, Array, Array], object]
    """Of the new elements and the old, to its third argument, which may be the first."""
    restore: Callable[[Array, Array, Array, bool], object]
    """Of the old elements and the delta, to its third argument; with True, of the new elements. Uses up the delta."""


def _xor(new: Array, old: Array, out: Array) -> None:
    np.bitwise_xor(new, old, out=out)


def _restore_xor(values: Array, delta: Array, out: Array, undo: bool) -> None:
    np.bitwise_xor(values, delta, out=out)


def _subtract(new: Array, old: Array, out: Array) -> None:
    """The difference as a signed number, in zigzag form: 0, -1, 1, -2, … are 0, 1, 2, 3, …"""
    np.subtract(new, old, out=out)
    signed = out.view(f"<i{out.itemsize}")
    sign = signed >> (8 * out.itemsize - 1)
    np.left_shift(signed, 1, out=signed)
    np.bitwise_xor(signed, sign, out=signed)


def _restore_difference(values: Array, delta: Array, out: Array, undo: bool) -> None:
    sign = delta & 1
    np.negative(sign, out=sign)
    np.right_shift(delta, 1, out=delta)
    np.bitwise_xor(delta, sign, out=delta)
    (np.subtract if undo else np.add)(values, delta, out=out)


_XOR = _Operation(_xor, _restore_xor)
_DIFFERENCE = _Operation(_subtract, _restore_difference)
_DELTAS = {
    Encoding.SPARSE_XOR: (True, _XOR),
    Encoding.XOR_PLANES: (False, _XOR),
    Encoding.SPARSE_DIFFERENCE: (True, _DIFFERENCE),
    Encoding.DIFFERENCE_PLANES: (False, _DIFFERENCE),
}
"""Whether it lists the elements that differ, and how they are combined with the base."""
IS_DELTA = frozenset(_DELTAS)
"""Encodings that need the base: `apply` instead of `decode`."""
