"""The canonical bytes of a tensor, in pieces, in bounded memory. Later pieces do not overwrite earlier ones.

Memory and mapped files that are already in serialized form are passed on without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tensorglot.dynd.codec.encode import pieces
from tensorglot.dynd.export.dense import densify
from tensorglot.dynd.tensors import from_tensor
from tensorglot.memory import cut
from tensorglot.model.dtypes import DType, unpack
from tensorglot.model.payload import PIECE_NBYTES, Span, as_bytes, buffers
from tensorglot.model.tensor import NESTED, Part, Tensor, check_bool

__all__ = ["tensor_nbytes", "tensor_pieces"]


def tensor_pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The canonical bytes of any tensor."""
    if tensor.layout == NESTED:
        yield from (array.data for array in pieces(from_tensor(tensor)))
        return
    if tensor.layout != "dense":
        tensor = densify(tensor)
    part = tensor.parts["data"]
    if part.dtype is not None and part.dtype.packed:
        tensor.verify()
        yield from _unpack_pieces(part, part.dtype)
    elif part.big_endian:
        yield from map(as_bytes, part.swapped_chunks())
    else:
        for piece in _plain_pieces(part):
            if part.dtype is not None and part.dtype.name == "bool":
                check_bool(np.frombuffer(piece, np.bool_), tensor.name, part.offset)
            yield piece


def _plain_pieces(part: Part) -> Iterator[memoryview]:
    for chunk in part.payload.chunks():
        shared = chunk.view() if isinstance(chunk, Span) else None
        yield from map(as_bytes, buffers([chunk] if shared is None else [shared]))


def _unpack_pieces(part: Part, row: DType) -> Iterator[memoryview]:
    for at, here in cut(math.prod(part.shape), PIECE_NBYTES):
        packed = part.payload.read(at * row.bits // 8, row.nbytes(here))
        yield as_bytes(unpack(np.frombuffer(packed, np.uint8), here, row))


def tensor_nbytes(tensor: Tensor) -> int:
    """The number of canonical bytes of a dense tensor."""
    part = tensor.parts["data"]
    return math.prod(part.shape) if part.dtype is not None and part.dtype.packed else part.nbytes
