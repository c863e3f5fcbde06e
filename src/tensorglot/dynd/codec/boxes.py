"""The values in `array[T]` as the bytes of a part, encoded only when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorglot.arrays import prefix_sums
from tensorglot.dynd.codec.encode import measure, pieces, type_header
from tensorglot.dynd.value import Value
from tensorglot.model.computed import ComputedCodec
from tensorglot.model.payload import Encoded

__all__ = ["Boxes", "boxes_payload"]


@dataclass(frozen=True, slots=True, eq=False)
class Boxes(ComputedCodec):
    """A codec: the type and the bytes of each value, one after the other."""

    values: list[Value]
    name: str = "dynd.boxes"

    def chunks(self, payload: Encoded) -> Iterator[memoryview]:
        for value in self.values:
            yield memoryview(type_header(value.plan.type))
            for piece in pieces(value):
                yield piece.data


def boxes_payload(values: list[Value]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Encoded]:
    """Where each value begins and ends, and the payload of them all."""
    sizes = [len(type_header(value.plan.type)) + measure(value) for value in values]
    offsets = prefix_sums(np.array(sizes, np.int64))
    return offsets, Boxes(values).payload(int(offsets[-1]), "")
