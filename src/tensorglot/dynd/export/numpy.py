"""Columns to NumPy arrays: dims and lists of one length become axes, structs become records.

Contiguous values are not copied. Types that NumPy does not have (missing values, lists of
several lengths, strings of any length, times of the day, time zones) are refused with a
hint. Missing dates, datetimes and timedeltas are NaT.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.packing import packed_bytes
from tensorglot.dynd.schema import Kind, Node, Plan
from tensorglot.dynd.temporal import numpy_name
from tensorglot.dynd.value import Value
from tensorglot.errors import UnsupportedError
from tensorglot.model.types.algebra import FixedBytes, FixedString, Struct
from tensorglot.model.types.temporal import Date, DateTime, Decimal, TimeDelta, Unit

__all__ = ["block_rows", "check_type", "to_numpy"]


def check_type(plan: Plan) -> None:
    """Refuses a type that no array has, before a value of it is decoded."""
    node = plan.root.child if plan.root.kind is Kind.LIST else plan.root
    while node.kind is Kind.REPEAT and not node.axis:
        node = node.child
    _require_rows(node)


def to_numpy(value: Value) -> NDArray[Any]:
    """The value as an array."""
    # The minimum of int64 is NaT to NumPy: a present value with these bits would turn into a missing one.
    for node in value.plan.nodes:
        times = node.kind is Kind.BLOCK and isinstance(node.temporal, Unit) and not node.block.optional
        if times and value.array(node).min(initial=0) == np.iinfo(np.int64).min:
            raise _refuse(f"the smallest {node.type} would become NaT in NumPy: use .tolist()")
    # Outer dims become axes; the rows of the node below them are made at once.
    node, begin, count = value.plan.root, 0, 1
    dims: tuple[int, ...] = ()
    if node.kind is Kind.LIST:
        lists = value.lists(node)
        begin, count = int(lists.starts[0]), int(lists.stops[0])
        node, dims = node.child, (count - begin,)
    while node.kind is Kind.REPEAT and not node.axis:
        dims, begin, count = (*dims, *node.shape), begin * node.size, count * node.size
        node = node.child
    rows = _rows(value, node, count)[begin:]
    return rows.reshape((*dims, *rows.shape[1:]))


def _rows(value: Value, node: Node, count: int) -> NDArray[Any]:
    """An array with one row for each value of a node."""
    _require_rows(node)
    if node.kind is Kind.BLOCK:
        return block_rows(node, value.array(node)[:count])
    return _times(value, node, count) if node.kind is Kind.OPTION else _records(value, node, count)


def _require_rows(node: Node) -> None:
    """Refuses a node whose values are not rows of an array."""
    times = node.kind is Kind.OPTION and node.temporal is not None
    records = node.kind is Kind.SEQUENCE and isinstance(node.type, Struct) and node.nbytes is not None
    if not (node.kind is Kind.BLOCK or times or records):
        raise _refuse(f"NumPy has no type for {node.type!s:.200}: use .tolist(), .awkward() or .arrow()")


def _times(value: Value, node: Node, count: int) -> NDArray[Any]:
    """Values of an option; NaT where they are missing."""
    index = value.index(node)
    if index is None:
        return block_rows(node.child, value.array(node.child)[:count])
    inner = block_rows(node.child, value.array(node.child))
    out = np.full(count, "NaT", inner.dtype)
    present = index[:count] >= 0
    out[present] = inner[index[:count][present]]
    return out


def block_rows(node: Node, values: NDArray[Any]) -> NDArray[Any]:
    """Values of a BLOCK as an array of the type that NumPy has for them."""
    dtype = _dtype(node)
    if isinstance(node.temporal, Date):
        days = values.astype(np.int64)
        if node.block.optional:
            days[days == np.iinfo(np.int32).min] = np.iinfo(np.int64).min
        return days.view(dtype)
    if values.dtype == dtype:
        return values.view(dtype.newbyteorder("="))
    plain = np.ascontiguousarray(values)
    return plain.view(dtype).reshape(values.shape[: values.ndim - len(node.block.tail)])


def _dtype(node: Node) -> np.dtype[Any]:
    """NumPy's type for the elements of a BLOCK."""
    type = node.block.type
    if isinstance(type, Date | TimeDelta) or (isinstance(type, DateTime) and type.tz is None):
        return np.dtype(numpy_name(type)).newbyteorder("<")
    if isinstance(type, Unit | Decimal):
        raise _refuse(f"NumPy has no type for {type}: use .tolist() or .arrow()")
    if not node.block.tail:
        return node.block.base
    if node.block.nbytes >= 1 << 31:
        raise _refuse(f"NumPy has no type for {type}, whose elements have 2^31 bytes or more")
    if isinstance(type, FixedBytes) and type.size:
        return np.dtype((np.void, type.size))
    if isinstance(type, FixedString) and type.encoding in ("ascii", "utf32"):
        return np.dtype(f"<U{type.size}" if type.encoding == "utf32" else f"S{type.size}")
    raise _refuse(f"NumPy has no type for {type}: use .tolist()")


def _refuse(message: str) -> UnsupportedError:
    return UnsupportedError(message, rule="dynd.numpy")


def _records(value: Value, root: Node, count: int) -> NDArray[Any]:
    """A structured array: a view of the values if they are packed in memory, else a copy."""
    dtype = _record_dtype(root)
    raw = packed_bytes(value, root, count) if dtype.itemsize == root.nbytes else None
    if raw is not None:
        return raw.view(dtype)
    out = np.empty(count, dtype)
    stack: list[tuple[Node, NDArray[Any]]] = [(root, out)]
    while stack:
        node, place = stack.pop()
        if node.kind in (Kind.BLOCK, Kind.OPTION):
            values = math.prod(place.shape[: place.ndim - len(node.shape)])
            place[...] = _rows(value, node, values).reshape(place.shape)
        else:
            fields = place.dtype.names or ()
            inner = [place[name] for name in fields] if node.kind is Kind.SEQUENCE else [place]
            stack.extend(zip(node.children, inner, strict=True))
    return out


def _record_dtype(root: Node) -> np.dtype[Any]:
    """The packed, little-endian record of a struct."""
    dtypes: dict[int, np.dtype[Any]] = {}
    order = [root]
    for node in order:
        order.extend(node.children)
    for node in reversed(order):
        dtypes[node.id] = _node_dtype(node, [dtypes[child.id] for child in node.children])
    return dtypes[root.id]


def _node_dtype(node: Node, inner: list[np.dtype[Any]]) -> np.dtype[Any]:
    try:
        if node.kind is Kind.BLOCK and not node.axis:
            return np.dtype((_dtype(node), node.shape))
        if node.kind is Kind.OPTION and node.temporal is not None:
            return inner[0]
        if node.kind is Kind.REPEAT and not node.axis:
            return np.dtype((inner[0], node.shape))
        if node.kind is Kind.SEQUENCE and isinstance(node.type, Struct) and all(node.names):
            return np.dtype(list(zip(node.names, inner, strict=True)))
    except (ValueError, TypeError) as error:
        raise _refuse(f"NumPy has no type for {node.type}: {error}") from error
    raise _refuse(f"NumPy has no type for {node.type}: use .tolist()")
