"""A type as a plan: a tree of nodes, each with the columns that hold its values.

The columns are those of awkward and Arrow. A BLOCK has an array, one row for each
value; a LIST starts and stops, and its elements one after the other in the child; an
OPTION the position in the child, or -1; a CHAR its code points; a BOX holds tensors.
SEQUENCE and REPEAT have no columns: value i of a SEQUENCE is value i of each child, value
i of a REPEAT is the `size` values of its child from i × size on.

A plan is made once for each type. Knows types and sizes; knows no values and no bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache

from tensorglot.dynd.atoms import ATOM_TYPES, BYTE, Atom, atom_of
from tensorglot.errors import InputError, LimitError, UnsupportedError
from tensorglot.kernels import varints as kernel
from tensorglot.kernels.type_sizes import OBJECTS_PER_BYTE
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.types import algebra as ty
from tensorglot.model.types.base import Type, quote
from tensorglot.model.types.temporal import Date, Unit

__all__ = [
    "HUGE",
    "Kind",
    "Node",
    "Plan",
    "check_readable",
    "check_shape",
    "plan_of",
    "void_error",
]

HUGE = 1 << 62
"""Sizes saturate here, to stay within 64 bits."""
PATH_DEPTH = 256
"""Nodes below this depth have no path: the total length of paths grows with the square of the depth."""
BLOCK_RANK = 60
"""Most dims of a BLOCK. NumPy allows 64 axes; one of them counts values, and some are the tail of the atom."""


class Kind(IntEnum):
    """The kind of a node, by the kernel's codes."""

    BLOCK = kernel.BLOCK
    LIST = kernel.LIST
    OPTION = kernel.OPTION
    SEQUENCE = kernel.SEQUENCE
    REPEAT = kernel.REPEAT
    CHAR = kernel.CHAR
    BOX = kernel.BOX


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One node. `type` is that of one value, without pointers."""

    kind: Kind
    type: Type
    children: tuple[Node, ...] = ()
    shape: tuple[int, ...] = ()
    """The dims of one value of a BLOCK or a REPEAT."""
    axis: tuple[int, ...] = ()
    """The order of the leading dims when stored; empty for the plain order."""
    atom: Atom | None = None
    """The elements of a BLOCK. An OPTION has the atom of its child, if a bit pattern marks missing values."""
    nbytes: int | None = None
    """The size of one value, if all have the same."""
    least: int = 0
    """Bytes of the smallest value."""
    objects: int = 0
    """Python objects in one value, without those in lists and options inside it."""
    id: int = field(default=-1)
    path: str = ""

    @property
    def charge(self) -> int:
        """The objects that count against Limits.void_count: those in excess of OBJECTS_PER_BYTE."""
        return max(0, self.objects - OBJECTS_PER_BYTE * self.least)

    @property
    def child(self) -> Node:
        return self.children[0]

    @property
    def block(self) -> Atom:
        """The atom that each element of a BLOCK is."""
        assert self.atom is not None  # noqa: S101
        return self.atom

    @property
    def is_text(self) -> bool:
        """A LIST of bytes: a `string`, `bytes` or `type`."""
        return self.kind is Kind.LIST and isinstance(self.type, ty.String | ty.Bytes | ty.TypeType)

    @property
    def temporal(self) -> Date | Unit | None:
        """The type of the elements, where they are dates or times."""
        return self.atom.type if self.atom is not None and isinstance(self.atom.type, Date | Unit) else None

    @property
    def size(self) -> int:
        """How many values of the child one value of a REPEAT has."""
        return math.prod(self.shape)

    @property
    def names(self) -> list[str]:
        """Names of the children of a SEQUENCE: field names of a struct, numbers of a tuple."""
        if isinstance(self.type, ty.Struct):
            return [name for name, _ in self.type.fields]
        return [str(i) for i in range(len(self.children))]

    def column(self, role: str) -> str:
        """The name of a part."""
        return f"{self.path}.{role}" if self.path else role

    def stored_axes(self) -> tuple[int, ...]:
        """The axes of an array of values, of which the first counts them, in the order in which they are stored."""
        rest = range(1 + len(self.axis), 1 + len(self.shape) + len(self.atom.tail if self.atom else ()))
        return (0, *(1 + axis for axis in self.axis), *rest)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """The nodes of a type, parents first. The root is the first, and has one value."""

    type: Type
    nodes: tuple[Node, ...]
    deep: bool = False
    """Whether there are nodes below PATH_DEPTH, which have no path."""

    @property
    def root(self) -> Node:
        return self.nodes[0]

    @property
    def boxes(self) -> list[Type]:
        """The types inside whose values have types of their own."""
        return [node.type for node in self.nodes if node.kind is Kind.BOX]

    def inside_out(self) -> Iterator[Node]:
        """The nodes, children before their parents."""
        return reversed(self.nodes)


@lru_cache(maxsize=1024)
def plan_of(type: Type) -> Plan:
    """The plan of a type. Symbolic types are refused."""
    _check_not_symbolic(type)
    return _number_nodes(type, ty.fold(type, _node, _inside))


def _check_not_symbolic(type: Type) -> None:
    if ty.symbolic(type):
        raise InputError(f"{type} is symbolic: no value has this type", rule="dynd.symbolic")


def _inside(type: Type) -> tuple[Type, ...]:
    """The types inside that have nodes: beneath dimensions, the type of their elements."""
    if isinstance(type, ty.Fixed):
        return (ty.leading(type)[1],)
    return () if isinstance(type, ty.Array | ty.Merkle | ty.Complex) else type.children


def _number_nodes(type: Type, root: Node) -> Plan:
    nodes: list[Node] = []
    stack = [(root, 0)]
    deepest = 0
    while stack:
        node, depth = stack.pop()
        node.id = len(nodes)
        nodes.append(node)
        stack.extend((child, depth + 1) for child in reversed(node.children))
        deepest = max(deepest, depth)
        if depth < PATH_DEPTH:
            for step, child in zip(_steps(node), node.children, strict=True):
                child.path = f"{node.path}.{step}" if node.path and step else node.path or step
    return Plan(type, tuple(nodes), deepest > PATH_DEPTH)


def _steps(node: Node) -> list[str]:
    if node.kind is Kind.SEQUENCE:
        return [quote(name) if isinstance(node.type, ty.Struct) else name for name in node.names]
    return ["" if node.kind is Kind.REPEAT else "content"] * len(node.children)


def _node(type: Type, inner: list[Node]) -> Node:
    """The node of a type. `inner` has the nodes of the types inside it."""
    if isinstance(type, ty.Merkle) and ty.symbolic(type.element):
        # The shortest: a length, a type of two characters such as `()`, a CID of 36 bytes.
        return Node(Kind.BOX, type, least=39, objects=1)
    if isinstance(type, ATOM_TYPES):
        return _block(type, (), (), atom_of(type))
    if isinstance(type, ty.Pointer):
        return inner[0]
    if isinstance(type, ty.Fixed):
        return _dims(type, inner[0])
    if isinstance(type, ty.Storage):
        return _storage(type, inner[0])
    if isinstance(type, ty.Option):
        return _option(type, inner[0])
    if isinstance(type, ty.Tuple | ty.Struct):
        return _sequence(type, tuple(inner))
    if isinstance(type, ty.Var):
        return Node(Kind.LIST, type, (inner[0],), least=1, objects=1)
    if isinstance(type, ty.Map):
        pair = _sequence(ty.Tuple(type.children), tuple(inner))
        return Node(Kind.LIST, type, (pair,), least=1, objects=1)
    if isinstance(type, ty.Bytes | ty.String | ty.TypeType):
        return Node(Kind.LIST, type, (_block(type, (), (), BYTE),), least=1, objects=1)
    if isinstance(type, ty.Char):
        return Node(Kind.CHAR, type, least=1, objects=1)
    if isinstance(type, ty.Array):
        return Node(Kind.BOX, type, least=2, objects=1)
    raise InputError(f"{type} is symbolic: no value has this type", rule="dynd.symbolic")


def check_shape(shape: tuple[int, ...], itemsize: int) -> None:
    """Refuses an empty shape whose other dims multiply to more bytes than NumPy can count (2^63)."""
    if 0 in shape and math.prod(size for size in shape if size) * max(1, itemsize) >= 1 << 63:
        raise UnsupportedError(
            f"NumPy has no shape {list(shape)}: it is empty, but the other dimensions are beyond 2^63",
            rule="dynd.shape",
        )


def void_error(limits: Limits, offset: int | None = None, tensor: str | None = None) -> LimitError:
    """The error for more values without bytes than a reader accepts."""
    message = f"more than {limits.void_count} values without bytes (Limits.void_count)"
    return LimitError(message, rule="dynd.void", offset=offset, tensor=tensor)


def check_void(shape: tuple[int, ...], tensor: str | None = None) -> None:
    """Refuses to loop over the rows of an array without elements, if these are more than a reader accepts."""
    if 0 in shape and math.prod(shape[: shape.index(0)]) > DEFAULT.void_count:
        raise void_error(DEFAULT, tensor=tensor)


def check_readable(type: Type) -> None:
    """Refuses to write more elements without bytes than a reader accepts by default."""
    if plan_of(type).root.charge > DEFAULT.void_count:
        raise InputError(
            f"{type} has more elements without bytes than Limits.void_count allows ({DEFAULT.void_count})",
            rule="dynd.void",
        )


def _block(type: Type, shape: tuple[int, ...], axis: tuple[int, ...], atom: Atom) -> Node:
    check_shape(shape, atom.nbytes)
    nbytes = _product(*shape, atom.nbytes)
    return Node(Kind.BLOCK, type, (), shape, axis, atom, nbytes, nbytes, _objects(shape, 1))


def _objects(shape: tuple[int, ...], inner: int) -> int:
    """The Python objects of nested lists whose elements have `inner` each."""
    for size in reversed(shape):
        inner = min(HUGE, 1 + size * inner)
    return inner


def _dims(type: ty.Fixed, inner: Node) -> Node:
    """Consecutive dimensions: as many of the last as a BLOCK can have, a REPEAT for each of the others."""
    dims = [type]
    while isinstance(dim := dims[-1].element, ty.Fixed):
        dims.append(dim)
    if inner.kind is Kind.BLOCK and inner.atom is not None and len(inner.shape) < BLOCK_RANK:
        dims, whole = dims[: (count := -min(len(dims), BLOCK_RANK - len(inner.shape)))], dims[count:]
        shape = (*[dim.size for dim in whole], *inner.shape)
        axis = (*range(len(whole)), *[axis + len(whole) for axis in inner.axis]) if inner.axis else ()
        inner = _block(whole[0], shape, axis, inner.atom)
    for dim in reversed(dims):
        inner = _repeat(dim, (dim.size,), (), inner)
    return inner


def _storage(type: ty.Storage, inner: Node) -> Node:
    rank = len(type.axis)
    if inner.kind is Kind.BLOCK and inner.atom is not None:
        return _block(type, inner.shape, (*type.axis, *inner.axis[rank:]), inner.atom)
    # The dims are a chain of REPEAT nodes: they are folded into one, which can have the axis order.
    shape: list[int] = []
    while len(shape) < rank:
        if inner.kind is Kind.BLOCK:
            raise UnsupportedError(f"storage of more than {BLOCK_RANK} dimensions is not supported", rule="dynd.rank")
        shape += inner.shape
        inner = inner.child
    return _repeat(type, tuple(shape), type.axis, inner)


def _repeat(type: Type, shape: tuple[int, ...], axis: tuple[int, ...], inner: Node) -> Node:
    check_shape(shape, 8)
    nbytes = None if inner.nbytes is None else _product(*shape, inner.nbytes)
    objects = _objects(shape, inner.objects)
    return Node(Kind.REPEAT, type, (inner,), shape, axis, None, nbytes, _product(*shape, inner.least), objects)


def _option(type: ty.Option, inner: Node) -> Node:
    sentinel = inner.kind is Kind.BLOCK and not inner.shape and inner.atom is not None and inner.atom.sentinel
    if sentinel == b"":  # ?void: missing and present have the same bytes, none
        return _block(type, (), (), atom_of(ty.Void()))
    if sentinel and inner.atom is not None:
        more = int(inner.atom.check == "limit")  # only a bool: its sentinel 2 is the first byte above the limit
        inner.atom = replace(inner.atom, limit=inner.atom.limit + more, optional=True)
        return Node(Kind.OPTION, type, (inner,), (), (), inner.atom, inner.nbytes, inner.least, 1)
    return Node(Kind.OPTION, type, (inner,), least=1, objects=1)


def _sequence(type: ty.Tuple | ty.Struct, inner: tuple[Node, ...]) -> Node:
    sizes = [node.nbytes for node in inner]
    nbytes = None if None in sizes else min(HUGE, sum([size or 0 for size in sizes]))
    least = min(HUGE, sum([node.least for node in inner]))
    objects = min(HUGE, 1 + sum([node.objects for node in inner]))
    return Node(Kind.SEQUENCE, type, inner, (), (), None, nbytes, least, objects)


def _product(*numbers: int) -> int:
    return min(HUGE, math.prod(numbers))
