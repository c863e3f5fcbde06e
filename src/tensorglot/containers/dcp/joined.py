"""A tensor that consists of boxes, each a tensor of another archive.

`Joined` is a codec whose decoded bytes are in C order of the global shape. A selection is
split by box, and each box reads its part: a box that the selection does not touch is not
opened. For a conversion, boxes that are whole slices along the first axis are copied one
after the other; any other arrangement is read in strips of whole rows, so that boxes of
columns are read in long runs and memory is bounded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.dcp.checkpoint import StoredTensor
from tensorglot.containers.dcp.directory import Directory, File
from tensorglot.errors import FormatError, UnsupportedError, escape
from tensorglot.model.archive import Verifier
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.payload import Chunk, Encoded, Source, Span, Undecodable, as_bytes, read_pieces
from tensorglot.model.slicing import Axis
from tensorglot.model.strided import boxes
from tensorglot.model.tensor import Part
from tensorglot.threads import for_each

__all__ = ["Joined", "Quantized"]

CARRIER = BY_NAME["uint8"]
"""The element type of boxes whose own type is unknown to us: the writer stores their bytes."""
STRIP_NBYTES = 16 << 20
"""Bytes that are read at a time of a tensor whose boxes are not slices along its first axis."""


@dataclass(frozen=True, slots=True)
class Quantized(Undecodable):
    """A codec for quantized tensors of PyTorch, which are listed and cannot be read."""

    dtype: str
    name: ClassVar[str] = "quantized"

    @property
    def reason(self) -> str:
        return (
            f"a quantized tensor of PyTorch ({self.dtype}) has its scales in a pickle; save tensor.int_repr() and the "
            "scales, or tensor.dequantize()"
        )

    def refuse(self, payload: Encoded) -> UnsupportedError:
        return UnsupportedError(self.reason, rule="dcp.quantized", tensor=payload.tensor)


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """The codec of a tensor that consists of boxes."""

    tensor: StoredTensor
    name: ClassVar[str] = "joined"
    frames_checked: ClassVar[bool] = True
    """Marks a `FrameChecked` codec: the boxes have the checksums."""

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        width = self.tensor.itemsize
        if not len(out):
            for number in range(len(self.tensor.places)):
                self._box(payload, number)
        first, rest = divmod(offset, width)
        last = -(-(offset + len(out)) // width)
        exact = rest == 0 and len(out) == (last - first) * width
        values = np.frombuffer(out, f"V{width}") if exact else np.empty(last - first, f"V{width}")
        done = 0
        for starts, counts in boxes(self.tensor.shape, first, last):
            count = int(np.prod(counts, dtype=np.int64))
            axes = [Axis(start, 1, size) for start, size in zip(starts, counts, strict=True)]
            self.fill(payload, axes, values[done : done + count].reshape(counts))
            done += count
        if not exact:
            out[:] = as_bytes(values)[rest : rest + len(out)]

    def chunks(self, payload: Encoded) -> Iterator[Chunk]:
        if self._in_order:
            for number in np.argsort(self.tensor.starts[:, :1].sum(axis=1), kind="stable").tolist():
                part = self._box(payload, number)
                yield from map(_unwrap, part.swapped_chunks() if part.big_endian else part.payload.chunks())
            return
        for number in range(len(self.tensor.places)):
            self._box(payload, number).payload.verify()
        row = self.tensor.nbytes // self.tensor.shape[0] if self.tensor.nbytes else 1
        step = STRIP_NBYTES if row > STRIP_NBYTES else STRIP_NBYTES // row * row
        for begin in range(0, payload.nbytes, step):
            yield payload.read(begin, min(step, payload.nbytes - begin))

    def threaded(self, payload: Encoded) -> bool:
        return len(self.tensor.places) > 1

    def verify(self, payload: Encoded, verifier: Verifier) -> bool:
        """Compares the checksums of all boxes; returns whether each has one."""
        parts = [self._box(payload, number, verifier) for number in range(len(self.tensor.places))]
        if cast("Directory", payload.source).checked_by == "block":
            for part in parts:
                deque(read_pieces(part.payload), 0)  # the source compares every block that it reads
            return True
        for part in parts:
            part.payload.verify()
        return all(part.checksum is not None for part in parts if part.nbytes)

    def places(self, source: Source) -> list[tuple[str, int, int]]:
        """File, begin and end of each box."""
        directory, tensor = cast("Directory", source), self.tensor
        return [(place.file, *span) for place in tensor.places if (span := directory.span(place, tensor.name))]

    @property
    def _in_order(self) -> bool:
        """Whether every box is whole slices along the first axis."""
        return bool((self.tensor.counts[:, 1:] == self.tensor.shape[1:]).all())

    def _box(self, payload: Encoded, number: int, verifier: Verifier | None = None) -> Part:
        """A box. Refused unless it has the shape, width and element type that the index declares."""
        directory, tensor = cast("Directory", payload.source), self.tensor
        part = directory.box(tensor.places[number], tensor.name, verifier)
        counts = tuple(tensor.counts[number].tolist())
        if part.shape != counts or part.nbytes != math.prod(counts) * tensor.itemsize:
            raise FormatError(
                f"a box of shape {list(part.shape)} and {part.nbytes} bytes where the index says {list(counts)}",
                rule="dcp.box.shape",
                tensor=tensor.name,
                path=directory.path_of(tensor.places[number].file),
            )
        expected = tensor.dtype if isinstance(tensor.dtype, DType) else CARRIER
        if directory.typed and part.dtype is not expected:
            said = getattr(tensor.dtype, "name", tensor.dtype)
            raise FormatError(
                f"a box of {escape(part.dtype_name)} where the index says {said}",
                rule="dcp.box.dtype",
                tensor=tensor.name,
                path=directory.path_of(tensor.places[number].file),
            )
        return part

    def fill(self, payload: Encoded, axes: Sequence[Axis], out: NDArray[Any]) -> None:
        """Reads the parts of a selection from the boxes that it touches."""
        if not out.size:
            return
        tensor, elements = self.tensor, out.view(f"V{self.tensor.itemsize}")
        first = np.array([axis.start for axis in axes], np.int64)
        last = np.array([axis.start + axis.step * (axis.count - 1) for axis in axes], np.int64)
        touched = ((tensor.starts <= last) & (tensor.starts + tensor.counts > first)).all(axis=1)

        def read(number: int) -> None:
            pairs = zip(axes, tensor.starts[number].tolist(), tensor.counts[number].tolist(), strict=True)
            spans = [_overlap(axis, start, count) for axis, start, count in pairs]
            if all(target.start < target.stop for target, _ in spans):
                where: Any = (*(target for target, _ in spans), ...)
                part = self._box(payload, number)
                region = elements[where].view(part.numpy_dtype(tensor.name))
                part.select_into([inside for _, inside in spans], region, tensor.name)

        for_each(read, np.flatnonzero(touched).tolist())


def _unwrap(chunk: Chunk) -> Chunk:
    """A span of the file itself, which the OS can copy."""
    if isinstance(chunk, Span) and isinstance(chunk.source, File):
        return Span(chunk.source.open(), chunk.begin, chunk.end)
    return chunk


def _overlap(axis: Axis, start: int, count: int) -> tuple[slice, slice]:
    """The positions of a selection from `start` to `start + count`: as a slice of the selection, and of the box."""
    begin = max(0, -((axis.start - start) // axis.step))
    end = min(axis.count, -((axis.start - start - count) // axis.step))
    inside = axis.start + begin * axis.step - start
    return slice(begin, end), slice(inside, axis.start + (end - 1) * axis.step - start + 1, axis.step)
