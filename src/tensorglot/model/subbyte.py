"""A codec for elements of fewer than eight bits that a file stores one per byte, as NumPy does in memory.

Decoding packs them, so the rest of the program sees packed elements in every format. The
unused bits of each stored byte must be zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorglot.errors import FormatError
from tensorglot.model.dtypes import DType, pack, unpack
from tensorglot.model.payload import PIECE_NBYTES, Buffer, Codec, Encoded, Payload, Span, inner_payload, read_pieces

__all__ = ["UnpackedSubByte", "unpack_pieces"]


@dataclass(frozen=True, slots=True)
class UnpackedSubByte:
    """A codec: `count` elements of a packed type, one per byte."""

    dtype: DType
    count: int
    inner: Codec | None = None
    """The codec of the stored bytes, if they are encoded."""

    @property
    def name(self) -> str:
        return "widened" if self.inner is None else f"widened {self.inner.name}"

    def below(self, payload: Encoded) -> Span | Encoded:
        """The elements, one per byte, as the inner codec decodes them."""
        return inner_payload(payload, self.inner, self.count)

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        # Whole groups around the range are decoded: elements of 6 bits do not begin at every byte.
        elements, nbytes = _group(self.dtype)
        first = offset // nbytes * elements
        last = min(self.count, -(-(offset + len(out)) // nbytes) * elements)
        values = np.frombuffer(self.below(payload).read(first, last - first), np.uint8)
        if values.size and int(values.max()) >> self.dtype.bits:
            raise FormatError(
                f"a byte is not a valid {self.dtype.name}: its upper bits are set",
                rule="values.packed",
                offset=payload.begin,
                tensor=payload.tensor,
            )
        start = offset - offset // nbytes * nbytes
        out[:] = pack(values, self.dtype).data[start : start + len(out)]

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        return read_pieces(payload, _step(self.dtype))


def unpack_pieces(payload: Payload, dtype: DType, count: int) -> Iterator[Buffer]:
    """The inverse: packed elements as one byte each, in pieces."""
    left = count
    for piece in read_pieces(payload, _step(dtype)):
        here = min(left, len(piece) * 8 // dtype.bits)
        left -= here
        yield unpack(np.frombuffer(piece, np.uint8), here, dtype).view(np.uint8).data


def _group(dtype: DType) -> tuple[int, int]:
    """The smallest number of elements that fills whole bytes, and the number of those bytes."""
    elements = 8 // math.gcd(8, dtype.bits)
    return elements, elements * dtype.bits // 8


def _step(dtype: DType) -> int:
    """The size of pieces: a multiple of a group."""
    _, nbytes = _group(dtype)
    return PIECE_NBYTES // 8 // nbytes * nbytes
