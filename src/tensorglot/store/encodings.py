"""A chunk as stored bytes: raw, constant, byte planes, or a delta from an earlier chunk.

What a body holds:

    RAW                the chunk
    CONSTANT           one element, repeated
    PLANES             width, and the byte planes of the elements
    SPARSE_XOR         width, count, where the elements differ from the base, and their XOR
    XOR_PLANES         like PLANES, of the XOR with the base
    SPARSE_DIFFERENCE  like SPARSE_XOR, of the difference modulo 2^bits, in zigzag form
    DIFFERENCE_PLANES  like XOR_PLANES, of the same
    PACKED_DIFFERENCE  what SPARSE_DIFFERENCE has, as bits that need no table (`kernels/packed_deltas.py`)
    NODES              nodes, in one frame that refers to digests in the index of its pack

A training step moves most floats by one unit in the last place. As a difference that is
one of two values; as XOR it is any 2^n - 1. Gaps and planes are one zstd frame, which is
absent if they are empty; each has blocks of its own, so random mantissas cost a copy.
Bytes behind the last whole element come last, as they are or as XOR. Numbers are
little-endian.

Here bodies are decoded; `encoder.py` chooses and makes them. Knows bytes and widths; knows
no tensor, no CID and no file. Every function may run on several threads at once. Bodies may
be hostile: a malformed one is a FormatError, never a write outside of the chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import accumulate, groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tensorglot.errors import FormatError, InputError
from tensorglot.kernels import packed_decode, packed_deltas, planes, sparse, sparse_decode
from tensorglot.memory import SCRATCH_NBYTES, scratch
from tensorglot.tuples import NamedTuple
from tensorglot.wire import zstd
from tensorglot.wire.cid import CHUNK_NBYTES

__all__ = [
    "DELTAS",
    "IS_DELTA",
    "MAX_DIGESTS_NBYTES",
    "MAX_WIDTH",
    "SPARE_NBYTES",
    "SPARSE_HEAD",
    "WORDS",
    "Encoding",
    "apply",
    "apply_chain",
    "check_size",
    "decode",
    "elements_of",
    "wrong_base",
]

Array: TypeAlias = npt.NDArray[Any]
Buffer: TypeAlias = "bytes | memoryview"


class Encoding(IntEnum):
    RAW = 0
    CONSTANT = 1
    PLANES = 2
    SPARSE_XOR = 3
    XOR_PLANES = 4
    SPARSE_DIFFERENCE = 5
    DIFFERENCE_PLANES = 6
    PACKED_DIFFERENCE = 7
    NODES = 8


MAX_WIDTH = 16
SPARSE_HEAD = struct.Struct("<BII")
"""Header of a sparse delta: width, elements that change, bytes of the gaps."""
WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}

_WAITING_NBYTES = 2 << 20
"""Sparse deltas are decoded together up to this size, and then applied in one call of the kernel."""
MAX_DIGESTS_NBYTES = CHUNK_NBYTES
"""The most digests that NODES may refer to: reading a group takes no longer than decoding a chunk."""
SPARE_NBYTES = packed_deltas.SPARE
"""Readable bytes that must follow the last delta of a chain."""


def check_size(chunk: memoryview) -> None:
    if len(chunk) > CHUNK_NBYTES:
        raise InputError(f"a chunk has at most {CHUNK_NBYTES} bytes, not {len(chunk)}", rule="store.chunk")


def decode(encoding: int, body: memoryview, out: memoryview, digests: memoryview | None = None) -> None:
    """Fills `out` from a body that needs no base. After an error the contents of `out` are undefined.

    `digests` are those in the index of the pack, which only NODES needs.
    """
    body, out = memoryview(body).cast("B"), memoryview(out).cast("B")
    check_size(out)
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
        parsed = _parse(encoding, body, len(out))
        if parsed.width == 1:
            parsed.decode(out)
        else:
            with scratch() as memory:
                planes.merge(parsed.decode(memory.room(parsed.nbytes, 0)), parsed.width, out)
        out[len(out) - len(parsed.tail) :] = parsed.tail
    elif encoding == Encoding.NODES and digests is not None:
        if len(digests) > MAX_DIGESTS_NBYTES:
            raise _malformed(f"refers to {len(digests)} bytes of digests, at most {MAX_DIGESTS_NBYTES} are allowed")
        _decode_frame(body, out, digests)
    else:
        raise _malformed(
            f"encoding {encoding} is {'a delta, and needs its base' if encoding in IS_DELTA else 'unknown'}"
        )


def apply(encoding: int, body: memoryview, out: memoryview, *, undo: bool = False) -> None:
    """Turns `out`, which holds the base, into the chunk; with `undo`, the chunk into the base.

    A body that is refused leaves `out` as it is.
    """
    body, out = memoryview(body).cast("B"), memoryview(out).cast("B")
    check_size(out)
    if encoding == Encoding.PACKED_DIFFERENCE:
        whole = b"".join((body, bytes(SPARE_NBYTES)))
        _apply_packed(whole, np.array((0, len(body)), np.int64), out, undo=undo)
        return
    parsed = _parse_delta(encoding, body, len(out))
    if parsed.patches:
        _patch([parsed], out, undo=undo)
    else:
        _apply_other(parsed, out, undo=undo)


def apply_chain(encodings: Sequence[int], data: memoryview, spans: npt.NDArray[np.int64], out: memoryview) -> None:
    """Applies deltas one after the other, neighbours of one kind in one call of a kernel.

    `spans` has the begin and end of each body in `data`, which has SPARE_NBYTES more bytes. After an error the
    contents of `out` are undefined.
    """
    out = memoryview(out).cast("B")
    check_size(out)
    begin = 0
    for is_packed, several in groupby(encodings, Encoding.PACKED_DIFFERENCE.__eq__):
        alike = list(several)
        end = begin + len(alike)
        if is_packed:
            _apply_packed(data, spans[begin:end].reshape(-1), out)
        else:
            bodies = [data[slice(*span)] for span in spans[begin:end].tolist()]
            _apply_others(zip(alike, bodies, strict=True), out)
        begin = end


def _apply_packed(data: Buffer, spans: npt.NDArray[np.int64], out: memoryview, *, undo: bool = False) -> None:
    """Applies packed deltas; `spans` has the begin and end of each in `data`."""
    with scratch() as memory:
        if not packed_decode.patch(data, spans, undo, memory.room(SCRATCH_NBYTES, 0), out):
            raise _malformed("the bits are not those of a packed delta of elements that the chunk has")


def _apply_others(deltas: Iterable[tuple[int, memoryview]], out: memoryview) -> None:
    waiting: list[_Body] = []
    nbytes = 0
    for encoding, body in deltas:
        parsed = _parse_delta(encoding, body, len(out))
        if waiting and not (parsed.patches and parsed.width == waiting[0].width and nbytes <= _WAITING_NBYTES):
            _patch(waiting, out)
            waiting, nbytes = [], 0
        if parsed.patches:
            waiting.append(parsed)
            nbytes += parsed.nbytes
        else:
            _apply_other(parsed, out)
    if waiting:
        _patch(waiting, out)


class _Body(NamedTuple):
    """A body cut into its parts, which are not decoded yet."""

    encoding: int
    width: int
    values: int
    """The number of elements that the body has values for."""
    gaps: int
    """The size of the gaps, decoded."""
    nbytes: int
    """The size of the gaps and planes together, decoded."""
    frame: memoryview
    tail: memoryview

    @property
    def patches(self) -> bool:
        """Whether the kernel `sparse_decode.patch` applies it: a sparse delta of elements of 1, 2, 4 or 8 bytes."""
        return self.encoding in _SPARSE and self.width in WORDS

    def decode(self, out: memoryview) -> memoryview:
        """Decodes the gaps and planes into `out`."""
        if self.nbytes:
            _decode_frame(self.frame, out)
        return out


def _decode_frame(frame: memoryview, out: memoryview, dictionary: memoryview | None = None) -> None:
    try:
        zstd.decode_whole(frame, out, dictionary)
    except FormatError as error:
        raise _malformed(error.message) from error


def _parse_delta(encoding: int, body: memoryview, nbytes: int) -> _Body:
    if encoding not in IS_DELTA:
        raise _malformed(f"encoding {encoding} is {'no delta' if encoding in set(Encoding) else 'unknown'}")
    parsed = _parse(encoding, body, nbytes)
    if DELTAS[Encoding(encoding)][1] and parsed.width not in WORDS:
        raise _malformed(f"differences need elements of 1, 2, 4 or 8 bytes, not {parsed.width}")
    return parsed


def _parse(encoding: int, body: memoryview, nbytes: int) -> _Body:
    """Cuts a body of planes, or a sparse delta, for a chunk of `nbytes` into its parts."""
    at = SPARSE_HEAD.size if encoding in _SPARSE else 1
    if len(body) < at:
        raise _short(at - len(body))
    width = body[0]
    if not 1 <= width <= MAX_WIDTH:
        raise _malformed(f"an element has 1 to {MAX_WIDTH} bytes, not {width}")
    count, gaps = nbytes // width, 0
    if encoding in _SPARSE:
        elements = count
        _, count, gaps = SPARSE_HEAD.unpack_from(body)
        if count > elements or not count <= gaps <= min(count + elements // sparse.LONGEST, CHUNK_NBYTES):
            raise _malformed(f"{count} changes with gaps of {gaps} bytes for {elements} elements")
    end = len(body) - nbytes % width
    if end < at:
        raise _short(at - end)
    if end > at and not count:
        raise _malformed(f"{end - at} bytes follow the end")
    return _Body(encoding, width, count, gaps, gaps + count * width, body[at:end], body[end:])


def _patch(deltas: Sequence[_Body], out: memoryview, *, undo: bool = False) -> None:
    """Applies sparse deltas whose elements have the same width, that of a word."""
    table = [(each.gaps, each.values, each.encoding == Encoding.SPARSE_DIFFERENCE, 0, 0, 0) for each in deltas]
    ends = list(accumulate(each.nbytes for each in deltas))
    with scratch() as memory, scratch() as other:
        data, room = memory.room(ends[-1], 0), other.room(ends[-1], 0)
        for each, end in zip(deltas, ends, strict=True):
            each.decode(data[end - each.nbytes : end])
        if not sparse_decode.patch(data, np.array(table, np.int64).reshape(-1), deltas[0].width, undo, room, out):
            raise _wrong_gaps()
    for each in deltas:
        _change_tail(out, each.tail)


def _apply_other(parsed: _Body, out: memoryview, *, undo: bool = False) -> None:
    """Applies planes, or a sparse XOR of elements whose width is not that of a word."""
    sparse, difference = DELTAS[Encoding(parsed.encoding)]
    width = parsed.width
    with scratch() as memory:
        room = memory.room(parsed.nbytes + parsed.values * width, 0)
        values, data = room[: parsed.values * width], parsed.decode(room[parsed.values * width :])
        if sparse:
            elements, positions = elements_of(out, width), np.empty(parsed.values, np.int64)
            if not sparse_decode.expand(data[: parsed.gaps], len(elements), positions):
                raise _wrong_gaps()
            planes.merge(data[parsed.gaps :], width, values)
            elements[positions] ^= elements_of(values, width)
        else:
            planes.merge_delta(data, width, difference, undo, out)
    _change_tail(out, parsed.tail)


def _change_tail(out: memoryview, tail: memoryview) -> None:
    for i, change in enumerate(tail, len(out) - len(tail)) if tail else ():
        out[i] ^= change


def _short(nbytes: int) -> FormatError:
    return _malformed(f"needs {nbytes} bytes more than the body has")


def _wrong_gaps() -> FormatError:
    return _malformed("the gaps do not lead to the declared number of elements")


def wrong_base() -> FormatError:
    return FormatError("a delta needs a base, and only a delta has one", rule="store.chain")


def _malformed(what: str) -> FormatError:
    return FormatError(f"malformed chunk: {what}", rule="store.encoding")


def elements_of(chunk: memoryview, width: int) -> Array:
    """The whole elements of a chunk: words, or rows of words if no word has that width."""
    word = WORDS.get(width) or WORDS[8 if width == 16 else 1]
    values = np.frombuffer(chunk, word, len(chunk) // width * width // word.itemsize)
    return values if width in WORDS else values.reshape(-1, width // word.itemsize)


DELTAS = {
    Encoding.SPARSE_XOR: (True, False),
    Encoding.XOR_PLANES: (False, False),
    Encoding.SPARSE_DIFFERENCE: (True, True),
    Encoding.DIFFERENCE_PLANES: (False, True),
    Encoding.PACKED_DIFFERENCE: (True, True),
}
"""Whether an encoding lists the elements that differ, and whether its values are differences; else they are XOR."""
IS_DELTA = frozenset(DELTAS)
"""Encodings that need the base: `apply` instead of `decode`."""
_SPARSE = frozenset(encoding for encoding, (sparse, _) in DELTAS.items() if sparse)
