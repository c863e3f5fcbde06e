"""Values of a fixed size, between their serialized bytes and their columns.

Bytes become columns without a copy: the columns of a record's fields are strided
views. Columns become bytes without a copy if they are such views, or packed in memory
otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.schema import Kind, Node, check_shape
from tensorglot.dynd.value import Column, Value
from tensorglot.model.payload import location

__all__ = ["address", "is_missing", "packed_bytes", "unpack_columns"]

Raw = NDArray[np.uint8]


def unpack_columns(root: Node, raw: Raw, count: int, columns: list[Column]) -> None:
    """Fills in the columns of a node of a fixed size, and of all inside it, from `count` values in `raw`."""
    stack: list[tuple[Node, int, tuple[int, ...], tuple[int, ...]]] = [(root, 0, (count,), (root.nbytes or 0,))]
    while stack:
        node, offset, lead, strides = stack.pop()
        if node.kind is Kind.BLOCK:
            columns[node.id] = _strided(node, raw, offset, lead, strides)
        elif node.kind is Kind.REPEAT:
            step = node.child.nbytes or 0
            # A repeat adds an axis, unless its elements continue the last axis without gaps: then both are merged.
            if node.size == 1:
                stack.append((node.child, offset, lead, strides))
            elif strides[-1] == node.size * step:
                stack.append((node.child, offset, (*lead[:-1], lead[-1] * node.size), (*strides[:-1], step)))
            else:
                stack.append((node.child, offset, (*lead, node.size), (*strides, step)))
        else:
            for child in node.children:
                stack.append((child, offset, lead, strides))
                offset += child.nbytes or 0


def _strided(node: Node, raw: Raw, offset: int, lead: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[Any]:
    base = node.block.base
    if len(lead) == 1 and lead[0] and not node.shape and not node.block.tail:
        return np.ndarray(lead, base, raw, offset, strides)
    rank = len(node.axis)
    stored = (*(node.shape[axis] for axis in node.axis), *node.shape[rank:], *node.block.tail)
    count = math.prod(lead)
    if count == 0 or 0 in stored:
        check_shape((0, count, *stored), base.itemsize)
        values: NDArray[Any] = np.empty((count, *stored), base)
    else:
        inner = math.prod(stored)
        rows: NDArray[Any] = np.ndarray((*lead, inner), base, raw, offset, (*strides, base.itemsize))
        values = rows.reshape((count, inner)).reshape((count, *stored))
    return values.transpose(np.argsort(node.stored_axes())) if node.axis else values


def packed_bytes(value: Value, root: Node, count: int) -> Raw | None:
    """The serialized bytes of the values of a node of a fixed size, or None if they are not packed in memory.

    Those of a single BLOCK are always returned, as a copy if need be.
    """
    if root.kind is Kind.BLOCK:
        values = value.array(root)[:count]
        stored = values.transpose(root.stored_axes()) if root.axis else values
        return np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    # Guess the memory from the first column, lay the columns out in it, and compare all of them with the real ones.
    columns: list[Column] = [None] * len(value.columns)
    raw = _memory_around(value, root, count)
    if raw is None:
        return None
    unpack_columns(root, raw, count, columns)
    same = all(_same_memory(mine, value.columns[i]) for i, mine in enumerate(columns) if mine is not None)
    return raw if same else None


def _memory_around(value: Value, root: Node, count: int) -> Raw | None:
    """The memory in which the values would be packed, if their first column is where serialized values begin."""
    nbytes = count * (root.nbytes or 0)
    node = root
    while node.kind is not Kind.BLOCK:
        if value.columns[node.id] is not None:
            return None
        inside = [child for child in node.children if child.nbytes]
        if not inside:
            return None
        node = inside[0]
    leaf = value.array(node)
    owner = leaf
    while isinstance(owner.base, np.ndarray):  # the array that owns the memory of all views
        owner = owner.base
    if nbytes == 0 or not owner.flags.c_contiguous or owner.dtype.hasobject:
        return None
    memory = owner.reshape(-1).view(np.uint8)
    begin = address(leaf) - address(memory)
    return memory[begin : begin + nbytes] if 0 <= begin <= len(memory) - nbytes else None


def _same_memory(mine: Column, other: Column) -> bool:
    if not isinstance(mine, np.ndarray) or not isinstance(other, np.ndarray):
        return mine is other
    return location(mine) == location(other)


def address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def is_missing(node: Node, values: NDArray[Any]) -> Any:
    """An array of bools: which of the values of an OPTION have the bits of a missing value."""
    atom = node.block
    width = min(8, atom.nbytes)
    # Compared as unsigned integers: a float's sentinel is a NaN, which equals nothing.
    words = np.ascontiguousarray(values).reshape(-1).view(f"<u{width}").reshape(-1, atom.nbytes // width)
    return np.all(words == np.frombuffer(atom.sentinel or b"", f"<u{width}"), axis=1)
