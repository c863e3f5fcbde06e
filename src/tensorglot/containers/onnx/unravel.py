"""The codec of coordinates that ONNX stores as one number each: the position in C order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorglot.errors import FormatError
from tensorglot.model.payload import Buffer, Codec, Encoded, as_bytes, inner_payload

__all__ = ["Unravelled"]


@dataclass(frozen=True, slots=True)
class Unravelled:
    """`count` positions in an array of `shape`, decoded to a row of coordinates for each axis."""

    shape: tuple[int, ...]
    count: int
    inner: Codec | None = None
    """The codec of the positions."""

    name = "unravelled"

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        out[:] = self._decode(payload)[offset : offset + len(out)]

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        yield self._decode(payload)

    def _decode(self, payload: Encoded) -> memoryview:
        below = inner_payload(payload, self.inner, 8 * self.count)
        positions = np.frombuffer(below.read(0, below.nbytes), "<i8")
        if positions.size and not 0 <= int(positions.min()) <= int(positions.max()) < math.prod(self.shape):
            raise FormatError(
                "an index is out of bounds", rule="onnx.sparse", offset=payload.begin, tensor=payload.tensor
            )
        coords = np.unravel_index(positions, self.shape)
        return as_bytes(np.array(coords, "<i8").reshape(len(self.shape), -1))
