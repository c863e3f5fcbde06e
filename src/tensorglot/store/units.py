"""Tensors as values that are stored: one for a dense or nested tensor, one for each part of any other.

A unit has a type, canonical bytes and, where its elements lie at equal distances, their
width. What a tensor has beside its values (layout, attributes, names of unknown element
types) is in its `TensorNode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorglot.dynd.tensors import tensor_pieces
from tensorglot.memory import cut
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE, Part, Tensor
from tensorglot.model.types.algebra import dense_parts
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import text_of
from tensorglot.store.objects import PartNode, TensorNode
from tensorglot.wire.cid import CHUNK_NBYTES, CID, Cutter

__all__ = ["Unit", "comparable", "element_nbytes", "tensor_node", "units_of"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A value to be stored."""

    name: str
    """Name of the tensor."""
    part: str
    tensor: Tensor
    """The value as a tensor of its own."""

    def chunks(self) -> Iterator[memoryview]:
        """The canonical bytes; an empty value is one empty chunk. Later chunks do not overwrite earlier ones."""
        cutter, several = Cutter(), False
        pieces = iter(tensor_pieces(self.tensor))
        following = next(pieces, None)
        while following is not None:
            piece, following = memoryview(following).cast("B"), next(pieces, None)
            if following is None and not cutter.held:  # the end of an array is not copied
                for begin, nbytes in cut(len(piece), CHUNK_NBYTES):
                    several = True
                    yield piece[begin : begin + nbytes]
                break
            for data in cutter.cut(piece):
                several = True
                yield memoryview(data)
        if cutter.held or not several:
            yield memoryview(cutter.held)


def units_of(tensor: Tensor) -> Iterator[Unit]:
    """The values of a tensor."""
    if _whole(tensor):
        yield Unit(tensor.name, "data", tensor)
        return
    for name, part in tensor.parts.items():
        yield Unit(tensor.name, name, Tensor(tensor.name, {"data": _known(part)}))


def _whole(tensor: Tensor) -> bool:
    """Whether the value is one array: dense of a known element type, or nested."""
    return tensor.layout == NESTED or (tensor.layout == "dense" and tensor.parts["data"].dtype is not None)


def _known(part: Part) -> Part:
    """The part with its bytes as elements, if its element type is unknown."""
    if part.dtype is not None:
        return part
    return part._replace(dtype=BY_NAME["uint8"], unknown_dtype=None, shape=(part.nbytes,))


def tensor_node(tensor: Tensor, arrays: Sequence[CID]) -> TensorNode | None:
    """What a tensor has beside its units, whose arrays are given; None if that is nothing."""
    attributes = {key: value for key, value in (tensor.attributes or {}).items() if key != TYPE_ATTRIBUTE}
    if _whole(tensor):
        if not attributes:
            return None
        parts: tuple[PartNode, ...] = (PartNode("data", arrays[0]),)
    else:
        parts = tuple(
            PartNode(name, array) if part.dtype is not None else PartNode(name, array, part.unknown_dtype, part.shape)
            for (name, part), array in zip(tensor.parts.items(), arrays, strict=True)
        )
    return TensorNode(tensor.layout, text_of(tensor.type), parts, attributes)


def element_nbytes(type: Type) -> int:
    """Bytes of an element, where there are elements at equal distances; else 1."""
    block = dense_parts(type)
    return 1 if block is None else max(1, block[0].bits // 8)


def comparable(old: Type, new: Type) -> bool:
    """Whether the elements of two types are at the same places, but for the length of the first dim."""
    a, b = dense_parts(old), dense_parts(new)
    return a is not None and b is not None and a[0] is b[0] and a[1][1:] == b[1][1:] and len(a[1]) == len(b[1])
