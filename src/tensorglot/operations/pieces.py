"""The values of a part in order, a piece at a time, in bounded memory, wherever and however they are stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.dtypes import unpack
from tensorglot.model.payload import PIECE_NBYTES, Payload, Span, as_bytes
from tensorglot.model.tensor import Part, Tensor, check_bool

__all__ = ["pieces"]


def pieces(tensor: Tensor, part: Part) -> Iterator[NDArray[Any]]:
    """Flat arrays in C order; each is valid until the next is asked for."""
    dtype = part.numpy_dtype(tensor.name)
    if tensor.verifier is not None:
        tensor.verifier(tensor)
    packed = part.dtype if part.dtype is not None and part.dtype.packed else None
    left = math.prod(part.shape)
    unit = math.lcm(packed.bits, 8) // 8 if packed is not None else dtype.itemsize
    for raw in _raw_pieces(part.payload, unit):
        if packed is not None:
            count = min(left, len(raw) * 8 // packed.bits)
            values = unpack(np.frombuffer(raw, np.uint8), count, packed)
        else:
            stored = np.frombuffer(raw, dtype.newbyteorder(">" if part.big_endian else "<"))
            values = stored.astype(dtype, copy=False)
        left -= len(values)
        check_bool(values, tensor.name, part.offset)
        yield values


def _raw_pieces(payload: Payload, unit: int) -> Iterator[memoryview]:
    """The stored bytes in order, cut at multiples of `unit`."""
    nbytes = max(unit, PIECE_NBYTES // unit * unit)
    if isinstance(payload, Span):
        scratch = np.empty(min(nbytes, payload.nbytes), np.uint8).data
        for start in range(0, payload.nbytes, nbytes):
            piece = scratch[: payload.nbytes - start]
            payload.read_into(start, piece)
            yield piece
        return
    rest = b""
    for chunk in payload.chunks():
        whole = memoryview(rest + bytes(as_bytes(chunk))) if rest else as_bytes(chunk)
        end = len(whole) // unit * unit
        for start in range(0, end, nbytes):
            yield whole[start : min(start + nbytes, end)]
        rest = bytes(whole[end:])
    if rest:
        yield memoryview(rest)
