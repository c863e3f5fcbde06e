"""Columns to plain Python values, from the inside out and whole columns at a time.

A struct is a dict, a tuple a tuple, dims are lists, a missing value is None, and a value in
an `array[T]` is a Tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tensorglot.dynd.codec.packing import is_missing
from tensorglot.dynd.coerce.python import stored_order
from tensorglot.dynd.python_atoms import array_to_atoms
from tensorglot.dynd.schema import Kind, Node, void_error
from tensorglot.dynd.value import Value
from tensorglot.limits import DEFAULT
from tensorglot.model.types.algebra import Bytes, Merkle, String, Struct, TypeType
from tensorglot.model.types.text import parse_canonical

__all__ = ["to_python"]


def to_python(value: Value, unboxed: Callable[[Value], Any], linked: Callable[[Value], Any] | None = None) -> Any:
    """The value. `unboxed` converts a value in an `array[T]`, `linked` a link of a symbolic `merkle[T]`."""
    if value.plan.root.charge > DEFAULT.void_count:
        raise void_error(DEFAULT)
    needs = value.needs()
    lists: dict[int, list[Any]] = {}
    for node in value.plan.inside_out():
        children = [lists.pop(child.id) for child in node.children]
        count = needs[node.id]
        if node.kind is Kind.BOX:
            unpack = (linked or partial(to_python, unboxed=unboxed)) if isinstance(node.type, Merkle) else unboxed
            lists[node.id] = [unpack(item) for item in value.boxes(node)]
        else:
            lists[node.id] = _LISTED[node.kind](value, node, children, count)
    return lists[0][0]


def _blocks(value: Value, node: Node, _: list[list[Any]], count: int) -> Any:
    if isinstance(node.type, String | Bytes | TypeType):
        return []
    array, tail = value.array(node)[:count], node.block.tail
    if not tail and array.dtype.kind != "V" and node.temporal is None:
        return array.tolist()
    elements = math.prod(array.shape[: array.ndim - len(tail)])
    return _nested(array_to_atoms(node.block, array.reshape((elements, *tail))), node.shape, count)


def _nested(flat: list[Any], shape: tuple[int, ...], count: int) -> list[Any]:
    """The elements of `count` values, as lists in lists."""
    for i in reversed(range(len(shape))):
        size = shape[i]
        length = count * math.prod(shape[:i])
        flat = [flat[at * size : (at + 1) * size] for at in range(length)]
    return flat


def _options(value: Value, node: Node, children: list[list[Any]], count: int) -> list[Any]:
    inner, index = children[0], value.index(node)
    if index is not None:
        return [None if at < 0 else inner[at] for at in index[:count].tolist()]
    missing = is_missing(node, value.array(node.child)[:count])
    if not missing.any():
        return inner
    return [None if gone else item for gone, item in zip(missing.tolist(), inner, strict=True)]


def _lists(value: Value, node: Node, children: list[list[Any]], count: int) -> list[Any]:
    lists = value.lists(node)
    spans = zip(lists.starts[:count].tolist(), lists.stops[:count].tolist(), strict=True)
    if node.is_text:
        data = np.ascontiguousarray(value.array(node.child)).tobytes()
        texts = [data[start:stop] for start, stop in spans]
        if isinstance(node.type, Bytes):
            return texts
        strings = [text.decode() for text in texts]
        return strings if isinstance(node.type, String) else [parse_canonical(text) for text in strings]
    inner = children[0]
    return [inner[start:stop] for start, stop in spans]


def _repeats(value: Value, node: Node, children: list[list[Any]], count: int) -> list[Any]:
    flat, size = children[0], node.size
    if node.axis:
        order = np.argsort(stored_order(node)).tolist()
        flat = [flat[start + i] for start in range(0, count * size, size or 1) for i in order]
    return _nested(flat, node.shape, count)


def _rows(value: Value, node: Node, children: list[list[Any]], count: int) -> list[Any]:
    rows = zip(*children, strict=False) if children else [()] * count
    if isinstance(node.type, Struct):
        return [dict(zip(node.names, row, strict=True)) for row in rows]
    return list(rows)


_LISTED: dict[Kind, Callable[[Value, Node, list[list[Any]], int], Any]] = {
    Kind.BLOCK: _blocks,
    Kind.CHAR: lambda value, node, _, count: list(map(chr, value.array(node)[:count].tolist())),
    Kind.OPTION: _options,
    Kind.LIST: _lists,
    Kind.REPEAT: _repeats,
    Kind.SEQUENCE: _rows,
}
