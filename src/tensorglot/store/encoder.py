"""The encoding of a chunk, chosen by trying on a sample of it, then by size; never larger than the chunk.

A chunk of which few elements differ from its base is compared with it once and encoded as a
sparse delta: a packed one if that is close to the entropy, as it is where a training step has
changed the elements. Of any other chunk a sample is encoded in every way, and the whole chunk in
the way that was smallest; in the next best, too, if it turns out larger than the sample promised.

Knows what `encodings.py` knows: bytes and widths. Every function may run on several
threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorglot.errors import InputError
from tensorglot.kernels import packed_deltas, packed_encode, planes, sparse, sparse_encode
from tensorglot.kernels.entropy import entropy as entropy_of
from tensorglot.memory import SCRATCH_NBYTES, Scratch, scratch
from tensorglot.store.encodings import (
    DELTAS,
    MAX_DIGESTS_NBYTES,
    MAX_WIDTH,
    SPARSE_HEAD,
    WORDS,
    Array,
    Encoding,
    check_size,
    elements_of,
)
from tensorglot.tuples import NamedTuple
from tensorglot.wire import zstd
from tensorglot.wire.cid import CHUNK_NBYTES

__all__ = ["Encoded", "encode", "encode_nodes"]

_SAMPLE_NBYTES = 64 << 10
"""A chunk up to this size is encoded in every way, a larger one in the best way of a sample of this size."""
_WINDOWS = 8
_SURPRISE = 1.25
"""If a chunk turns out larger than its sample promised by this factor, the next best encoding is tried, too."""
_CLEARLY_SPARSE = 1 / 16
"""A sparse delta that is smaller than this share of its chunk or sample is not compared with planes."""
_CLOSE = 1.08
"""A packed delta of at most this multiple of the entropy is not compared with other encodings."""
_SAMPLE_COUNT = 512
"""The size of the sample of changed elements that decides between XOR and difference."""
_FEW_CHANGED = 1 / 5
"""If a larger share of the elements differs, a sparse delta is compared with planes."""
_HEADS_NBYTES = 32
"""The least that the head of a sparse delta and its Huffman tables take, beside the entropy."""
_MOST_CHANGED = 0.4
"""If a larger share of the elements differs, no sparse delta is tried: a byte of gap for each is too much."""
_SPARSE_ONES = (Encoding.SPARSE_XOR, Encoding.SPARSE_DIFFERENCE, Encoding.PACKED_DIFFERENCE)


@dataclass(frozen=True, slots=True)
class Encoded:
    encoding: Encoding
    body: bytes | memoryview
    """The body of RAW is the memory that was given, not a copy."""


def encode(data: memoryview, width: int, base: memoryview | None = None) -> Encoded:
    """Encodes a chunk of elements of `width` bytes, as a delta from `base` where that is smaller.

    For complex numbers `width` is best that of their parts. A base of another size counts as
    cut, or extended with zeros.
    """
    data = memoryview(data).cast("B")
    if not 1 <= width <= MAX_WIDTH:
        raise InputError(f"an element has 1 to {MAX_WIDTH} bytes, not {width}", rule="store.width")
    check_size(data)
    if _is_constant(data, width):
        return Encoded(Encoding.CONSTANT, bytes(data[:width]))
    old = None if base is None else _fit(memoryview(base).cast("B"), len(data))
    sparse = None if old is None else _encode_clearly_sparse(data, width, old)
    if sparse is not None and len(sparse.body) <= 2 * _CLEARLY_SPARSE * len(data):  # a small chunk has a large head
        return sparse
    best = Encoded(Encoding.RAW, data)
    for encoding, expected in _ranked(data, width, old):
        body = _encode_as(encoding, data, width, old)
        if body is not None and len(body) < len(best.body):
            best = Encoded(encoding, body)
        if body is not None and len(body) < expected * _SURPRISE:
            break
    return best


def encode_nodes(data: memoryview, digests: bytes) -> Encoded:
    """Encodes a group of nodes for a pack whose index has these digests: many are links of the nodes."""
    plain = encode(data, 1)
    if len(digests) > MAX_DIGESTS_NBYTES:
        return plain
    return min(plain, Encoded(Encoding.NODES, zstd.compress_after(digests, data)), key=lambda each: len(each.body))


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
    if base is not None and width in WORDS:
        deltas += [Encoding.SPARSE_DIFFERENCE, Encoding.DIFFERENCE_PLANES]
    if base is not None and width in packed_deltas.WIDTHS:
        deltas.append(Encoding.PACKED_DIFFERENCE)
    left = [Encoding.PLANES, *deltas]
    if len(data) > _SAMPLE_NBYTES:
        spans = _windows(len(data), width)
        sample = _gather(data, spans)
        sample_base = None if base is None else _gather(base, spans)
        sizes: dict[Encoding, float] = {}
        dense = False
        for encoding in sorted(left, key=lambda encoding: encoding not in _SPARSE_ONES):
            if encoding not in _SPARSE_ONES and min(sizes.values(), default=1) < _CLEARLY_SPARSE:
                break
            body = None
            if not (dense and encoding in _SPARSE_ONES):
                body = _encode_as(encoding, sample, width, sample_base)
            dense = dense or body is None  # too many elements differ for one sparse delta, and so for all
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
    with scratch() as memory, scratch() as places:
        room, other = _rooms(memory)
        if base is None or encoding not in DELTAS:
            frame = zstd.compress_planes(_split(data[:whole], width, room))
            if width == 1:  # single bytes may be numbers, text or anything else
                frame = min(frame, zstd.compress(data, level=1, checksum=False), key=len)
            return b"".join((bytes([width]), frame, data[whole:]))
        sparse, difference = DELTAS[encoding]
        if not sparse:
            split = room[:whole]
            planes.split_delta(data, base, width, difference, split)
            return b"".join((bytes([width]), zstd.compress_planes(_cut(split, width)), _tail(data, base, width)))
        found = _changes(data, base, width, int(len(data) // width * _MOST_CHANGED), other, places)
        if found is None:
            return None
        values = _values(data, base, found.positions, width, difference, room)
        make = _packed_body if encoding == Encoding.PACKED_DIFFERENCE else _sparse_body
        return make(found, values, width) + _tail(data, base, width)


def _tail(data: memoryview, base: memoryview, width: int) -> bytes:
    whole = len(data) // width * width
    return bytes(one ^ two for one, two in zip(data[whole:], base[whole:], strict=True))


class _Changes(NamedTuple):
    """The elements of a chunk that differ from its base."""

    positions: Array
    gaps: memoryview


def _changes(
    data: memoryview, base: memoryview, width: int, most: int, room: memoryview, places: Scratch
) -> _Changes | None:
    """Compares a chunk with its base; None if more than `most` elements differ.

    The gaps are written to `room`, the positions to `places`.
    """
    positions = np.frombuffer(places.room(8 * (most + sparse.SPARE), 0), np.int64)
    count, used = sparse_encode.differences(
        data, base, width, room[: most + len(data) // width // sparse.LONGEST + 1], positions
    )
    return None if count < 0 else _Changes(positions[:count], room[:used])


def _sparse_body(found: _Changes, values: memoryview, width: int) -> bytes:
    """A body of gaps and values, without the bytes behind the last whole element."""
    head = SPARSE_HEAD.pack(width, len(found.positions), len(found.gaps))
    return head + zstd.compress_planes([found.gaps, *_cut(values, width)])


def _packed_body(found: _Changes, values: memoryview, width: int) -> bytes:
    """A packed delta, without the bytes behind the last whole element."""
    with scratch() as memory:
        room = memory.room(SCRATCH_NBYTES, 0)
        return bytes(room[: packed_encode.pack(found.positions, values, width, room)])


def _values(
    data: memoryview, base: memoryview, positions: Array, width: int, difference: bool, room: memoryview
) -> memoryview:
    """The planes of what turns the elements at positions of the base into those of the data, in `room`."""
    split = room[: len(positions) * width]
    if width not in WORDS:  # such elements have no differences, only XOR
        new, old = (elements_of(chunk, width).take(positions, axis=0) for chunk in (data, base))
        planes.split((new ^ old).reshape(-1).view(np.uint8).data, width, split)
    else:
        sparse_encode.changes(data, base, positions, width, difference, split)
    return split


def _encode_clearly_sparse(data: memoryview, width: int, base: memoryview) -> Encoded | None:
    """A delta of so few elements that no planes can be smaller; None if there are more.

    The chunk is compared once. A sample of the elements that differ chooses between XOR and difference, by entropy:
    compressing the sample both ways takes longer than compressing all of them one way.
    """
    if width not in WORDS:
        return None
    with scratch() as memory, scratch() as places:
        room, other = _rooms(memory)
        # Where most elements have changed, the beginning of the chunk tells.
        first = min(len(data), _SAMPLE_NBYTES)
        if _changes(data[:first], base[:first], width, int(first // width * _MOST_CHANGED), other, places) is None:
            return None
        found = _changes(data, base, width, int(len(data) // width * _FEW_CHANGED), other, places)
        if found is None:
            return None
        sample = np.ascontiguousarray(found.positions[:: max(1, len(found.positions) // _SAMPLE_COUNT)])
        bits = [entropy_of(_values(data, base, sample, width, difference, room), width) for difference in (True, False)]
        difference, tail = bits[0] <= _CLOSE * bits[1], _tail(data, base, width)
        values = _values(data, base, found.positions, width, difference, room)
        best = None
        if difference and width in packed_deltas.WIDTHS:
            best = Encoded(Encoding.PACKED_DIFFERENCE, _packed_body(found, values, width) + tail)
            entropy = entropy_of(found.gaps, 1) + entropy_of(values, width)
            if len(best.body) <= _CLOSE * entropy / (8 * 256) + _HEADS_NBYTES:
                return best
        if len(found.positions) * (width + 1) > _CLEARLY_SPARSE * len(data):
            return None
        encoding = Encoding.SPARSE_DIFFERENCE if difference else Encoding.SPARSE_XOR
        sparse = Encoded(encoding, _sparse_body(found, values, width) + tail)
        return sparse if best is None or len(sparse.body) < len(best.body) else best


def _rooms(memory: Scratch) -> tuple[memoryview, memoryview]:
    """Cuts scratch memory into room for two chunks."""
    room = memory.room(2 * CHUNK_NBYTES, 0)
    return room[:CHUNK_NBYTES], room[CHUNK_NBYTES:]


def _split(elements: memoryview, width: int, room: memoryview) -> list[memoryview]:
    """The planes of elements, in `room`."""
    split = room[: len(elements)]
    planes.split(elements, width, split)
    return _cut(split, width)


def _cut(split: memoryview, width: int) -> list[memoryview]:
    size = len(split) // width
    return [split[plane * size : (plane + 1) * size] for plane in range(width)]
