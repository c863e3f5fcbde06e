"""A codec for elements that are not stored in C order: Fortran order, transposes, steps, broadcasts.

Decoded bytes are in C order. A range of them becomes a few boxes of the array; each box is
a strided block, which is read like any slice. A whole array is read without rearranging, and
keeps its strides, if every byte of the span belongs to exactly one element.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.payload import Buffer, Codec, Encoded, Span, inner_payload, read_pieces
from tensorglot.model.slicing import read_strided
from tensorglot.tuples import NamedTuple

__all__ = ["Strided", "boxes"]

CHUNK_NBYTES = 16 << 20
"""Size of decoded chunks. The larger a chunk, the longer the runs of the file that it is read from."""


class Strided(NamedTuple):
    """A codec: an array of `shape` whose elements are `strides` bytes apart, from the begin of the span."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    inner: Codec | None = None
    """The codec of the stored bytes, which decodes to all elements and nothing else."""

    @property
    def name(self) -> str:
        return "strided" if self.inner is None else f"strided {self.inner.name}"

    @staticmethod
    def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
        """Bytes from the begin of the first element to the end of the last."""
        if 0 in shape:
            return 0
        return itemsize + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))

    @property
    def in_order(self) -> bool:
        """Whether the elements are in C order."""
        expected = self.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != expected:
                return 0 in self.shape
            expected *= size
        return True

    def below(self, payload: Encoded) -> Span | Encoded:
        """The elements in the file's order, as the inner codec decodes them."""
        return inner_payload(payload, self.inner, math.prod(self.shape) * self.itemsize)

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        first, rest = divmod(offset, self.itemsize)
        last = -(-(offset + len(out)) // self.itemsize)
        carrier = np.dtype(f"V{self.itemsize}")
        exact = rest == 0 and len(out) == (last - first) * self.itemsize
        values = np.frombuffer(out, carrier) if exact else np.empty(last - first, carrier)
        done = 0
        for starts, counts in boxes(self.shape, first, last):
            count = math.prod(counts)
            begin = sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
            box = read_strided(self.below(payload), begin, counts, self.strides, carrier)
            values[done : done + count].reshape(counts)[...] = box
            done += count
        if not exact:
            out[:] = values.view(np.uint8).data[rest : rest + len(out)]

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        return read_pieces(payload, CHUNK_NBYTES)

    def array(self, payload: Encoded, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The whole array: with its strides if they cover the span exactly, otherwise copied to C order."""
        below = self.below(payload)
        shared = below.view()
        if shared is not None:
            return np.ndarray(self.shape, dtype, shared, 0, self.strides)
        if self._permuted:
            return np.ndarray(self.shape, dtype, below.read(0, below.nbytes), 0, self.strides)
        below.verify()
        return np.ascontiguousarray(read_strided(below, 0, self.shape, self.strides, dtype)).reshape(self.shape)

    @property
    def _permuted(self) -> bool:
        """Whether some transpose of the array is in C order, so that the span has each element once and no gaps."""
        axes = sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis])
        transposed = Strided(
            tuple(self.shape[axis] for axis in axes), tuple(self.strides[axis] for axis in axes), self.itemsize
        )
        return transposed.in_order


def boxes(shape: tuple[int, ...], first: int, last: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Splits elements `first` to `last` of the C order into boxes; yields the start and size of each, by axis.

    Whole slices along the first axis are one box; the partial slices before and after them
    are split recursively.
    """
    if not shape and first < last:
        yield (), ()
        return
    row = math.prod(shape[1:])
    while first < last:
        index, skipped = divmod(first, row)
        whole = 0 if skipped else (last - first) // row
        if whole:
            yield (index, *(0 for _ in shape[1:])), (whole, *shape[1:])
            first += whole * row
        else:
            end = min(last, (index + 1) * row)
            for starts, counts in boxes(shape[1:], skipped, end - index * row):
                yield (index, *starts), (1, *counts)
            first = end
