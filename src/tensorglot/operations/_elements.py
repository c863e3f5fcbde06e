"""The values of a part as a stream of short flat arrays, for verbs over large tensors.

The payload may be a span, encoded or in memory, of any byte order and packed; the arrays
are in the machine's byte order. An array is valid until the next one is requested.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.memory import cut, regroup
from tensorglot.model.dtypes import unpack
from tensorglot.model.payload import PIECE_NBYTES, Chunk, Memory, Payload, Span, as_bytes
from tensorglot.model.tensor import Part, check_bool

__all__ = ["BLOCK_COUNT", "PIECE_COUNT", "blocks", "elements"]

PIECE_COUNT = 1 << 18
"""Elements that are read together."""
BLOCK_COUNT = 1 << 14
"""Elements computed at a time: few enough that the allocator reuses memory, as fresh pages cost more than the
arithmetic."""


def elements(part: Part, tensor: str, count: int = PIECE_COUNT) -> Iterator[NDArray[Any]]:
    """The elements of a part in C order, `count` at a time; `count` is a multiple of 8."""
    dtype = part.numpy_dtype(tensor)
    element = part.dtype
    left = math.prod(part.shape)
    if dtype.kind == "b" and not isinstance(part.payload, Memory):
        part.payload.verify()  # before the bytes are judged: damage is named as such
    for block in blocks(part.payload, count * element.bits // 8 if element is not None else 0):
        if element is not None and element.packed:
            values = unpack(np.frombuffer(block, np.uint8), min(count, left), element)
        else:
            values = np.frombuffer(block, dtype.newbyteorder(">" if part.big_endian else "<")).astype(dtype, copy=False)
        check_bool(values, tensor, part.offset)
        left -= len(values)
        yield values


def blocks(payload: Payload, nbytes: int) -> Iterator[memoryview]:
    """The bytes of a payload in blocks of `nbytes`, the last one shorter; its checksum is compared on the way."""
    return regroup(_checked_views(payload, nbytes), nbytes)


def _checked_views(payload: Payload, nbytes: int) -> Iterator[memoryview]:
    if isinstance(payload, Span) and payload.check is not None and payload.check.pending():
        # Of the short pieces that are read here, each is hashed while it is in the processor's cache.
        bare = Span(payload.source, payload.begin, payload.end)
        return map(memoryview, payload.check.follow(_views([bare], nbytes)))
    return _views(payload.chunks(), nbytes)


def _views(chunks: Iterable[Chunk], nbytes: int) -> Iterator[memoryview]:
    scratch: memoryview | None = None
    for chunk in chunks:
        shared = chunk.view() if isinstance(chunk, Span) else as_bytes(chunk)
        if shared is not None:
            yield shared
            continue
        assert isinstance(chunk, Span)  # noqa: S101
        # From a server more is read at a time, because it answers several requests at once.
        step = nbytes if chunk.source.concurrency is None else max(nbytes, PIECE_NBYTES)
        if scratch is None or len(scratch) < step:
            scratch = np.empty(step, np.uint8).data
        for offset, size in cut(chunk.nbytes, step):
            chunk.read_into(offset, scratch[:size])
            yield scratch[:size]
