"""The values of a part in order, a piece at a time, in bounded memory, wherever and however they are stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.dtypes import unpack
from tensorglot.model.payload import PIECE_NBYTES, Memory, Payload, as_bytes
from tensorglot.model.tensor import Part, Tensor, check_bool

__all__ = ["pieces"]


def pieces(tensor: Tensor, part: Part) -> Iterator[NDArray[Any]]:
    """Flat arrays in C order; each is valid until the next is asked for."""
    dtype = part.numpy_dtype(tensor.name)
    if tensor.verifier is not None:
        tensor.verifier(tensor)
    packed = part.dtype if part.dtype is not None and part.dtype.packed else None
    left = math.prod(part.shape)
    whole_items = math.lcm(packed.bits, 8) if packed is not None else dtype.itemsize
    for raw in _raw_pieces(part.payload, PIECE_NBYTES // whole_items * whole_items):
        if packed is not None:
            count = min(left, len(raw) * 8 // packed.bits)
            values = unpack(np.frombuffer(raw, np.uint8), count, packed)
        else:
            stored = np.frombuffer(raw, dtype.newbyteorder(">" if part.big_endian else "<"))
            values = stored.astype(dtype, copy=False)
        left -= len(values)
        check_bool(values, tensor.name, part.offset)
        yield values


def _raw_pieces(payload: Payload, nbytes: int) -> Iterator[memoryview]:
    if isinstance(payload, Memory):
        for chunk in payload.chunks():
            whole = as_bytes(chunk)
            for start in range(0, len(whole), nbytes):
                yield whole[start : start + nbytes]
        return
    scratch = np.empty(min(nbytes, payload.nbytes), np.uint8).data
    for start in range(0, payload.nbytes, nbytes):
        piece = scratch[: payload.nbytes - start]
        payload.read_into(start, piece)
        yield piece
