"""What the index of a distributed checkpoint describes, and the rules that it must obey.

Both kinds of index are parsed to these values. `check_checkpoint` proves from them alone
that boxes cover every tensor exactly once, that files are in the directory, and that no
byte of a file belongs to two boxes: so all values together are no larger than the files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, LimitError, escape
from tensorglot.limits import Limits
from tensorglot.model.dtypes import DType
from tensorglot.model.index import Note, first_overlap
from tensorglot.tuples import NamedTuple

__all__ = ["Checkpoint", "Place", "StoredTensor", "check_checkpoint", "check_shape"]

_COMPONENT = re.compile(r"[^/\\:\x00-\x1f\x7f]{1,255}")
_PATH_NBYTES = 4096
COMPARED_BOXES = 128
"""Up to this many boxes are compared pairwise."""
WORK_PER_BOX = 48
"""How often a box may be visited. Halving a regular arrangement visits each box log2(boxes) times; this is twice that
for any realistic number."""


class Place(NamedTuple):
    """Where a box or a value is: at a span of a file, or a tensor of a file."""

    file: str
    begin: int = 0
    end: int = 0
    name: str = ""
    """Name of the tensor in the file, if that is a tensor file."""
    dtype: str = ""
    """PyTorch's name of the element type, in a file of PyTorch."""
    transforms: tuple[str, ...] = ()
    """Transforms that were applied to the bytes; none is supported."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor and its boxes."""

    name: str
    dtype: DType | str
    """A str is the name of an unknown element type."""
    itemsize: int
    shape: tuple[int, ...]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    """Start and size of each box: matrices of boxes × dimensions."""
    places: Sequence[Place]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def box_nbytes(self) -> NDArray[np.int64]:
        """The size of each box, which is inside the shape."""
        sizes: NDArray[np.int64] = self.counts.prod(axis=1, dtype=np.int64) * self.itemsize
        return sizes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of an index."""

    version: str
    """`torch` or `json`."""
    tensors: Sequence[StoredTensor]
    values: Mapping[str, Place] = field(default_factory=dict)
    """Plain values that are in files."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Plain values that are in the index."""
    notes: Sequence[Note] = ()


def check_shape(shape: Sequence[int], itemsize: int, limits: Limits, tensor: str) -> None:
    """Checks rank and size, before the boxes, so that their checks can use 64-bit integers."""
    if len(shape) > limits.rank:
        limits.check_rank(len(shape), rule="dcp.limit.rank", tensor=tensor)
    if math.prod([size for size in shape if size]) * itemsize >= 1 << 63:
        raise FormatError("the tensor would have 2**63 bytes or more", rule="dcp.shape.product", tensor=tensor)


def check_checkpoint(checkpoint: Checkpoint, limits: Limits) -> None:
    """Checks paths, boxes and spans."""
    limits.check_tensors(len(checkpoint.tensors), rule="dcp.limit.tensors")
    for tensor in checkpoint.tensors:
        _check_boxes(tensor)
    for file in {place.file for _, place in _places(checkpoint)}:
        _check_path(file)
    if checkpoint.version == "torch":
        _check_spans(checkpoint)
    else:
        _check_names(checkpoint)


def _places(checkpoint: Checkpoint) -> Iterator[tuple[str, Place]]:
    """Name and place of everything that is in a file."""
    for tensor in checkpoint.tensors:
        for place in tensor.places:
            yield tensor.name, place
    yield from checkpoint.values.items()


def _items(checkpoint: Checkpoint) -> Iterator[tuple[str, Place, int]]:
    """The same with sizes."""
    for tensor in checkpoint.tensors:
        for place, nbytes in zip(tensor.places, tensor.box_nbytes.tolist() if tensor.places else (), strict=True):
            yield tensor.name, place, nbytes
    for name, place in checkpoint.values.items():
        yield name, place, 0


def _check_path(path: str) -> None:
    """Checks that a path is inside the directory: not absolute, no `..`, no hidden file."""
    parts = path.split("/")
    plain = all(_COMPONENT.fullmatch(part) and not part.startswith(".") and part.isprintable() for part in parts)
    if not plain or len(path) > _PATH_NBYTES:
        raise FormatError(
            f"the file '{escape(path, longest=60)}' must be a path inside the directory", rule="dcp.file.path"
        )


def _check_boxes(tensor: StoredTensor) -> None:
    """Checks that the boxes are inside the tensor, do not overlap, and cover all of its elements.

    No hole remains: disjoint boxes inside the tensor with at least its number of elements cover it.
    """
    starts, counts = tensor.starts, tensor.counts
    if not len(starts) and not tensor.nbytes:
        return  # thousands of empty tensors may have no box
    if len(starts) == 1 and (starts[0].tolist(), counts[0].tolist()) == ([0] * len(tensor.shape), [*tensor.shape]):
        return  # the common case: one box, which is all of the tensor
    outside = (starts < 0) | (counts < 0) | (starts > np.array(tensor.shape) - counts)
    if outside.any():
        at = int(outside.any(axis=1).argmax())
        raise FormatError(
            f"box {counts[at].tolist()} at {starts[at].tolist()} is outside the shape {list(tensor.shape)}",
            rule="dcp.box.range",
            tensor=tensor.name,
        )
    covered = sum(tensor.box_nbytes.tolist())  # as Python integers: boxes that overlap may exceed 64 bits
    if covered < tensor.nbytes:
        raise FormatError(
            f"the boxes cover {covered} of the tensor's {tensor.nbytes} bytes",
            rule="dcp.box.missing",
            tensor=tensor.name,
        )
    filled = np.flatnonzero((counts > 0).all(axis=1))
    clash = _first_clash(starts[filled], starts[filled] + counts[filled], tensor)
    if clash is not None:
        one, other = (starts[filled[at]].tolist() for at in clash)
        raise FormatError(f"the boxes at {one} and {other} overlap", rule="dcp.box.overlap", tensor=tensor.name)


def _first_clash(starts: NDArray[np.int64], ends: NDArray[np.int64], tensor: StoredTensor) -> tuple[int, int] | None:
    """Two boxes that overlap, or None.

    The tensor is cut in two where that separates the boxes best, and so is each half, until a
    region has few enough boxes to compare them pairwise. A box that a cut goes through is in
    both halves. Regular arrangements are hardly ever cut, and the work for others is limited.
    """
    if len(starts) < 2 or _follow_one_another(starts, ends):
        return None
    work = WORK_PER_BOX * len(starts)
    todo = [(np.arange(len(starts)), np.zeros_like(starts[0]), np.array(tensor.shape, np.int64))]
    while todo:
        boxes, low, high = todo.pop()
        work -= len(boxes)
        if work < 0:
            raise LimitError("the boxes are too irregular to be compared", rule="dcp.limit.boxes", tensor=tensor.name)
        begins, stops = np.maximum(starts[boxes], low), np.minimum(ends[boxes], high)
        if len(boxes) <= COMPARED_BOXES:
            clash = _compare_each(begins, stops)
            if clash is not None:
                return int(boxes[clash[0]]), int(boxes[clash[1]])
            continue
        cut = _best_cut(begins, stops, low)
        if cut is None:
            return int(boxes[0]), int(boxes[1])  # all contain the lowest corner of the region, so all overlap
        axis, at = cut
        middle_high, middle_low = high.copy(), low.copy()
        middle_high[axis] = middle_low[axis] = at
        todo.append((boxes[begins[:, axis] < at], low, middle_high))
        todo.append((boxes[stops[:, axis] > at], middle_low, high))
    return None


def _follow_one_another(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> bool:
    """The common case: along some axis, each box begins at or after the end of the one before it."""
    for axis in range(starts.shape[1]):
        order = np.argsort(starts[:, axis], kind="stable")
        if (starts[order[1:], axis] >= ends[order[:-1], axis]).all():
            return True
    return False


def _compare_each(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[int, int] | None:
    meets = ((starts[:, None] < ends) & (ends[:, None] > starts)).all(axis=2)
    found = np.argwhere(np.triu(meets, 1))
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else None


def _best_cut(starts: NDArray[np.int64], ends: NDArray[np.int64], low: NDArray[np.int64]) -> tuple[int, int] | None:
    """The axis and position of the cut whose larger half has the fewest boxes; None if all boxes begin at `low`.

    The median of the boxes' begins is tried along each axis.
    """
    best: tuple[int, int, int] | None = None
    for axis in range(starts.shape[1]):
        inside = starts[starts[:, axis] > low[axis], axis]
        if len(inside):
            at = int(np.partition(inside, len(inside) // 2)[len(inside) // 2])
            larger = int(max(np.count_nonzero(starts[:, axis] < at), np.count_nonzero(ends[:, axis] > at)))
            best = min(best, (larger, axis, at)) if best is not None else (larger, axis, at)
    return None if best is None else best[1:]


def _check_spans(checkpoint: Checkpoint) -> None:
    """Checks that each box fits its span, and that no two spans of a file overlap."""
    by_file: dict[str, list[tuple[str, Place]]] = {}
    for name, place, nbytes in _items(checkpoint):
        if nbytes > place.end - place.begin and not place.transforms:
            raise FormatError(
                f"a box of {nbytes} bytes cannot be in {place.end - place.begin} bytes of {escape(place.file)}",
                rule="dcp.item.size",
                tensor=name,
            )
        by_file.setdefault(place.file, []).append((name, place))
    for file, items in by_file.items():
        begins = np.array([place.begin for _, place in items], np.int64)
        ends = np.array([place.end for _, place in items], np.int64)
        clash = first_overlap(begins, ends, same=False)
        if clash is not None:
            name, other = items[clash[0]][0], items[clash[1]][0]
            raise FormatError(
                f"its bytes in {escape(file)} overlap those of '{escape(other)}'", rule="dcp.item.overlap", tensor=name
            )


def _check_names(checkpoint: Checkpoint) -> None:
    """Checks that no two boxes are the same tensor of a file."""
    seen: set[tuple[str, str]] = set()
    for name, place in _places(checkpoint):
        if (place.file, place.name) in seen:
            raise FormatError(
                f"'{escape(place.name)}' of {escape(place.file)} is in the index twice",
                rule="dcp.item.overlap",
                tensor=name,
            )
        seen.add((place.file, place.name))
