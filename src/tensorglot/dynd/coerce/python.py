"""Plain Python values to columns.

Whole columns at a time, from the outside in: all lists of one level become offsets
and one list of their elements. So the work is done by NumPy and itertools, and deep
values need no recursion.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import elements, is_masked_array, ranks
from tensorglot.dynd.atoms import refuse
from tensorglot.dynd.maps import sort_maps
from tensorglot.dynd.match import matches
from tensorglot.dynd.merkle import Link
from tensorglot.dynd.python_atoms import atoms_to_array
from tensorglot.dynd.schema import Kind, Node, Plan, plan_of
from tensorglot.dynd.temporal import is_nat
from tensorglot.dynd.value import Column, Value, lists_of_sizes
from tensorglot.errors import InputError
from tensorglot.limits import DEFAULT
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import Array, Bytes, Map, Merkle, Struct, Type, TypeType
from tensorglot.model.types.text import parse, text_of

__all__ = ["chars_to_array", "from_python", "stored_order"]

Values: TypeAlias = "list[Any]"
Boxed: TypeAlias = "Callable[[Any, Type], Value]"
Unfold: TypeAlias = "Callable[[Tensor], Any]"


def from_python(value: Any, plan: Plan, boxed: Boxed, unfold: Unfold) -> Value:
    """A value of the plan's type. `boxed` makes the values inside an `array[T]`, of Tensors that `unfold` gives."""
    columns: list[Column] = [None] * len(plan.nodes)
    stack: list[tuple[Node, Values]] = [(plan.root, [value])]
    has_boxes = bool(plan.boxes)
    while stack:
        node, values = stack.pop()
        if has_boxes and node.kind not in (Kind.BOX, Kind.OPTION):
            values = [unfold(item) if isinstance(item, Tensor) else item for item in values]
        if node.kind is Kind.BLOCK:
            columns[node.id] = _block(node, values)
        elif node.kind is Kind.CHAR:
            columns[node.id] = chars_to_array(values)
        elif node.kind is Kind.BOX and isinstance(node.type, Array):
            columns[node.id] = _boxes([boxed(item, node.type.element) for item in values])
        elif node.kind is Kind.BOX and isinstance(node.type, Merkle):
            columns[node.id] = [_link(node.type, item, boxed, unfold) for item in values]
        elif node.kind is Kind.OPTION:
            present = _present(node, values)
            columns[node.id] = ranks(np.fromiter((item is not None for item in present), np.bool_, len(present)))
            stack.append((node.child, [item for item in present if item is not None]))
        elif node.is_text:
            texts = [_text(node.type, item) for item in values]
            columns[node.id] = lists_of_sizes(map(len, texts), len(texts))
            columns[node.child.id] = np.frombuffer(b"".join(texts), np.uint8)
        elif node.kind is Kind.LIST:
            lists = _lists(node, values)
            columns[node.id] = lists_of_sizes(map(len, lists), len(lists))
            stack.append((node.child, elements(lists)))
        elif node.kind is Kind.REPEAT:
            stack.append((node.child, _repeat(node, values)))
        else:
            stack.extend(zip(node.children, _fields(node, values), strict=True))
    return sort_maps(Value(plan, tuple(columns)))


def _present(node: Node, values: Values) -> Values:
    """The values of an option; None for those that are missing."""
    return values if node.temporal is None else [None if is_nat(item) else item for item in values]


def _lists(node: Node, values: Values) -> Values:
    """The values of a list, each a sequence; of a map, each a sequence of pairs."""
    if isinstance(node.type, Map):
        values = [list(item.items()) if isinstance(item, Mapping) else item for item in values]
    _check_sequences(node, values)
    return values


def _boxes(boxes: list[Value]) -> list[Value]:
    """The values in an `array[T]`; an error if they are nested deeper than a reader accepts."""
    # Level by level: the boxes inside the boxes, until there are none.
    level = boxes
    for _ in range(DEFAULT.type_depth):
        level = [
            inner for box in level for node in box.plan.nodes if node.kind is Kind.BOX for inner in box.boxes(node)
        ]
        if not level:
            return boxes
    raise InputError(f"array[T] nested more than {DEFAULT.type_depth} deep (Limits.type_depth)", rule="dynd.depth")


def _is_sequence(node: Node, item: Any) -> bool:
    """Lists, tuples and arrays are dims; text is a sequence only of char."""
    if isinstance(item, str):
        return node.child.kind is Kind.CHAR if node.children else False
    if isinstance(item, np.ndarray):
        return item.ndim > 0
    return isinstance(item, Sequence) and not isinstance(item, bytes | bytearray | memoryview)


def _check_sequences(node: Node, values: Values) -> None:
    for item in values:
        if not _is_sequence(node, item):
            raise refuse(node.type, item)


def _flatten(node: Node, values: Values, sizes: tuple[int, ...]) -> Values:
    """The elements of nested sequences of the sizes given."""
    for size in sizes:
        _check_sequences(node, values)
        for item in values:
            if len(item) != size:
                raise InputError(f"expected {size} elements, found {len(item)}, in {node.type}", rule="dynd.length")
        values = elements(values)
    return values


def _repeat(node: Node, values: Values) -> Values:
    flat = _flatten(node, values, node.shape)
    if not node.axis:
        return flat
    order = stored_order(node)
    return [flat[start + i] for start in range(0, len(flat), len(order) or 1) for i in order]


def stored_order(node: Node) -> list[int]:
    """Which element of a REPEAT with an axis is stored first, second, …"""
    numbers = np.arange(node.size).reshape(node.shape)
    return [int(i) for i in numbers.transpose(node.axis).reshape(-1)]


def _block(node: Node, values: Values) -> NDArray[Any]:
    if values and all(
        isinstance(item, np.ndarray) and item.shape == node.shape and not is_masked_array(item) for item in values
    ):
        flat: Any = np.stack(values).reshape(-1)
    else:
        flat = _flatten(node, values, node.shape)
    return atoms_to_array(node.block, flat).reshape((len(values), *node.shape, *node.block.tail))


def _link(type: Merkle, item: Any, boxed: Boxed, unfold: Unfold) -> Value:
    """A link of a symbolic `merkle[T]`, which is stored with its type."""
    if isinstance(item, Tensor) and isinstance(item.type, Merkle):
        item = item.tolist()
    if not isinstance(item, Link):
        raise refuse(type, item)
    item.freeze()  # refuses an empty link, whose type may be symbolic
    if not matches(type.element, item.type):
        raise InputError(f"{type} cannot hold a link to {item.type}", rule="dynd.array.type")
    return from_python(item, plan_of(Merkle(item.type)), boxed, unfold)


def chars_to_array(values: Values) -> NDArray[np.uint32]:
    """The code points of texts of one character each."""
    for item in values:
        if not isinstance(item, str) or len(item) != 1 or "\ud800" <= item <= "\udfff":
            raise InputError(f"a char must be one character, not {reprlib.repr(item)}", rule="dynd.char")
    return np.fromiter(map(ord, values), np.uint32, len(values))


def _text(type: Type, item: Any) -> bytes:
    if isinstance(type, Bytes):
        if isinstance(item, bytes | bytearray | memoryview):
            return bytes(item)
    elif isinstance(type, TypeType):
        if isinstance(item, str):
            item = parse(item)
        if isinstance(item, Type):
            return text_of(item).encode("ascii")
    elif isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise InputError("a string has a lone surrogate, which UTF-8 cannot encode", rule="dynd.utf8") from error
    raise refuse(type, item)


def _fields(node: Node, values: Values) -> Iterable[Values]:
    if isinstance(node.type, Struct):
        for item in values:
            if not isinstance(item, Mapping) or item.keys() != set(node.names):
                raise refuse(node.type, item)
        return [[item[name] for item in values] for name in node.names]
    for item in values:
        if not isinstance(item, tuple | list) or len(item) != len(node.children):
            raise refuse(node.type, item)
    return [[item[i] for item in values] for i in range(len(node.children))]
