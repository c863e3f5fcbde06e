"""The values in `array[T]` as the bytes of a part, encoded only when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorglot.arrays import prefix_sums
from tensorglot.dynd.codec.encode import measure, pieces, type_header
from tensorglot.dynd.value import Value
from tensorglot.model.payload import Encoded, copy_range

__all__ = ["Boxes", "boxes_payload"]


class NullSource:
    """The source of a payload that is in no file: an Encoded payload must have one. It is never read."""

    size = 0
    concurrency: int | None = None

    def read(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(bytes(nbytes))

    def read_into(self, offset: int, out: memoryview) -> None:
        return None

    def read_runs(self, begins: Sequence[int], sizes: Sequence[int], offsets: Sequence[int], out: memoryview) -> None:
        return None

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return bytes(nbytes)

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """A codec: the type and the bytes of each value, one after the other."""

    values: list[Value]
    name: str = "dynd.boxes"

    def sizes(self) -> list[int]:
        return [len(type_header(value.plan.type)) + measure(value) for value in self.values]

    def chunks(self, payload: Encoded) -> Iterator[memoryview]:
        for value in self.values:
            yield memoryview(type_header(value.plan.type))
            for piece in pieces(value):
                yield piece.data

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        copy_range(self.chunks(payload), offset, out)


def boxes_payload(values: list[Value]) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Encoded]:
    """Where each value begins and ends, and the payload of them all."""
    codec = Boxes(values)
    offsets = prefix_sums(np.array(codec.sizes(), np.int64))
    return offsets, Encoded(NullSource(), 0, 0, int(offsets[-1]), codec, "")
