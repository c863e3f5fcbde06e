"""Columns to Arrow arrays, by their buffers.

First from the outside in: which values of each node are needed, since Arrow stores a
placeholder for a missing value and the columns may not. Then from the inside out: the
arrays. Contents and offsets are shared unless placeholders must be added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.dynd.codec.packing import is_missing
from tensorglot.dynd.coerce.python import stored_order
from tensorglot.dynd.schema import Kind, Node
from tensorglot.dynd.value import Positions, Value, child_need
from tensorglot.errors import LimitError, UnsupportedError
from tensorglot.extras import pa
from tensorglot.model.types.algebra import Bytes, FixedBytes, FixedString, Map, Scalar, String, TypeType, Void
from tensorglot.model.types.temporal import Date, DateTime, Decimal, Time, TimeDelta, Unit

__all__ = ["arrow_array"]

_NAMES = {"float16": "float16", "float32": "float32", "float64": "float64", "bool": "bool_"}
_NAMES |= {f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_PLACES_PER_VALUE, _PLACES_NBYTES = 64, 64 << 20
"""Bound on placeholders: a small value of many missing rows with a large type could need any amount of memory."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The values of a node that its parent needs: the first `count`, or those at `rows`.

    A row of -1 stands for a missing value: any value can be its placeholder.
    """

    count: int
    rows: Positions | None = None
    valid: NDArray[np.bool_] | None = None

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        if self.rows is None:
            return column[: self.count]
        wanted = self.count * column.itemsize * math.prod(column.shape[1:])
        if wanted > max(_PLACES_NBYTES, _PLACES_PER_VALUE * column.nbytes):
            raise LimitError(
                f"Arrow needs {wanted} bytes of placeholders for missing values: use .tolist()",
                rule="dynd.arrow.places",
            )
        if len(column) == 0:
            return np.zeros((self.count, *column.shape[1:]), column.dtype)
        return column[np.maximum(self.rows, 0)]


def arrow_array(value: Value) -> Any:
    """An array of one element, the value."""
    wanted: list[_Wanted] = [_Wanted(1)] * len(value.plan.nodes)
    offsets: dict[int, Positions] = {}
    counts = value.counts()
    closed = _is_closed(value, counts)
    for node in value.plan.nodes:
        for child, want in _needed_children(value, node, wanted[node.id], counts, offsets, closed):
            wanted[child.id] = want
    arrays: dict[int, Any] = {}
    for node in value.plan.inside_out():
        children = [arrays.pop(child.id) for child in node.children]
        arrays[node.id] = _array(value, node, wanted[node.id], children, offsets.get(node.id))
    return arrays[0]


def _is_closed(value: Value, counts: list[int]) -> bool:
    """Whether all values, also those in the place of missing ones, refer to elements that exist.

    Only then can a column be shared as it is, with its values in the places of nulls.
    """
    return all(
        child_need(node, value.columns[node.id], counts[node.id]) <= counts[child.id]
        for node in value.plan.nodes
        for child in node.children
    )


def _needed_children(
    value: Value, node: Node, want: _Wanted, counts: list[int], offsets: dict[int, Positions], closed: bool
) -> list[tuple[Node, _Wanted]]:
    """The values of its children that a node needs. The offsets of lists are collected in `offsets`."""
    if node.kind is Kind.LIST:
        lists = value.lists(node)
        edges, rows = _edges(want.of(lists.starts), want.of(lists.stops), want)
        offsets[node.id] = edges
        return [(node.child, _Wanted(int(edges[-1]), rows))]
    if node.kind is Kind.OPTION:
        return [(node.child, _option(value, node, want, counts, closed))]
    if node.kind is Kind.REPEAT:
        return [(node.child, _repeat(node, want, counts[node.id]))]
    return [(child, _Wanted(want.count, want.rows)) for child in node.children]


def _edges(starts: Positions, stops: Positions, want: _Wanted) -> tuple[Positions, Positions | None]:
    """Offsets for lists; and the positions of their elements, unless these are adjacent and can be shared."""
    dead = np.zeros(want.count, np.bool_) if want.rows is None else want.rows < 0
    if want.valid is not None:
        dead = dead | ~want.valid
    sizes = np.where(dead, 0, stops - starts)
    live = np.flatnonzero(sizes)
    first = int(starts[live[0]]) if len(live) else 0
    edges = np.concatenate([[first], first + np.cumsum(sizes)])
    if np.array_equal(edges[:-1][live], starts[live]):
        return edges, None
    edges -= first
    rows = np.repeat(np.where(dead, 0, starts) - edges[:-1], sizes) + np.arange(edges[-1])
    return edges, rows


def _option(value: Value, node: Node, want: _Wanted, counts: list[int], closed: bool) -> _Wanted:
    index = value.index(node)
    if index is None:
        missing = is_missing(node, want.of(value.array(node.child)))
        return _Wanted(want.count, want.rows, ~missing)
    positions = want.of(index) if want.rows is None else np.where(want.rows < 0, -1, want.of(index))
    valid = positions >= 0
    # Each present value is at its own position already: the child's column can be shared, gaps included.
    in_place = counts[node.child.id] >= want.count and np.array_equal(positions[valid], np.flatnonzero(valid))
    return _Wanted(want.count, None if in_place and closed else positions, valid)


def _repeat(node: Node, want: _Wanted, present: int) -> _Wanted:
    count = want.count * node.size
    if count > max(_PLACES_NBYTES // 8, _PLACES_PER_VALUE * min(present, 1 << 40) * node.size):
        raise LimitError(
            f"Arrow needs {count} placeholders for missing values: use .tolist()", rule="dynd.arrow.places"
        )
    if want.rows is None and not node.axis:
        return _Wanted(count)
    rows = np.arange(want.count) if want.rows is None else want.rows
    order = np.argsort(stored_order(node)) if node.axis else np.arange(node.size)
    inner = rows[:, None] * node.size + order
    return _Wanted(count, np.where(rows[:, None] < 0, -1, inner).reshape(-1))


def _array(value: Value, node: Node, want: _Wanted, children: list[Any], edges: Positions | None) -> Any:
    valid = _bits(want.valid)
    if node.kind is Kind.OPTION:
        return children[0]
    if node.kind is Kind.BLOCK:
        return _block(node, want.of(value.array(node)), valid)
    if node.kind is Kind.LIST and edges is not None:
        if node.is_text:
            kind = pa.large_binary() if isinstance(node.type, Bytes) else pa.large_string()
            return pa.Array.from_buffers(kind, want.count, [valid, _buffer(edges), children[0].buffers()[1]])
        if isinstance(node.type, Map):
            return _maps(node, want.count, valid, edges, children[0])
        kind = pa.large_list(_field("item", node.child, children[0]))
        return pa.Array.from_buffers(kind, want.count, [valid, _buffer(edges)], children=children)
    if node.kind is Kind.SEQUENCE:
        fields = [_field(*entry) for entry in zip(node.names, node.children, children, strict=True)]
        return pa.Array.from_buffers(pa.struct(fields), want.count, [valid], children=children)
    if node.kind is Kind.REPEAT:
        return _dims(node.shape, children[0], want.count, valid, _optional(node.child))
    if node.kind is Kind.CHAR:
        texts = [chr(code) for code in want.of(value.array(node)).tolist()]
        return _texts(np.frombuffer("".join(texts).encode(), np.uint8), [len(text.encode()) for text in texts], valid)
    raise UnsupportedError(f"Arrow has no type for {node.type}: use .tolist()", rule="dynd.arrow")


def _maps(node: Node, count: int, valid: Any, edges: Positions, pairs: Any) -> Any:
    """Maps over the pairs of an array of structs."""
    key, item = node.child.children
    if _optional(key) or edges[-1] >= 1 << 31:
        raise UnsupportedError(
            f"Arrow has no {node.type} with optional keys, or with 2^31 pairs: use .tolist()", rule="dynd.arrow"
        )
    fields = [_field("key", key, pairs.field(0)), _field("value", item, pairs.field(1))]
    entries = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=fields)
    return pa.Array.from_buffers(pa.map_(*fields), count, [valid, _buffer(edges.astype(np.int32))], children=[entries])


def _optional(node: Node) -> bool:
    return node.kind is Kind.OPTION or (node.atom is not None and isinstance(node.atom.type, Void))


def _field(name: str, node: Node, array: Any) -> Any:
    return pa.field(name, array.type, nullable=_optional(node))


def _buffer(array: NDArray[Any]) -> Any:
    return pa.py_buffer(np.ascontiguousarray(array))


def _bits(flags: NDArray[np.bool_] | None) -> Any:
    return None if flags is None else _buffer(np.packbits(flags, bitorder="little"))


def _dims(shape: tuple[int, ...], array: Any, count: int, valid: Any, optional: bool) -> Any:
    """`count` values of dims over the elements of an array."""
    for i in reversed(range(len(shape))):
        _check_size(shape[i], "elements")
        kind = pa.list_(pa.field("item", array.type, nullable=optional), shape[i])
        length = count * math.prod(shape[:i])
        array = pa.Array.from_buffers(kind, length, [valid if i == 0 else None], children=[array])
        optional = False
    return array


def _check_size(size: int, what: str) -> None:
    if size >= 1 << 31:
        raise UnsupportedError(f"Arrow has no type for {size} {what} of a fixed size: use .numpy()", rule="dynd.arrow")


def _texts(data: NDArray[np.uint8], sizes: Any, valid: Any) -> Any:
    edges = prefix_sums(sizes)
    return pa.Array.from_buffers(pa.large_string(), len(edges) - 1, [valid, _buffer(edges), _buffer(data)])


def _block(node: Node, values: NDArray[Any], valid: Any) -> Any:
    count = math.prod(values.shape[: values.ndim - len(node.block.tail)])
    leaf = _leaf(node, np.ascontiguousarray(values), count, None if node.shape else valid)
    return _dims(node.shape, leaf, len(values), valid, _optional(node))


def _temporal(type: Date | Unit | Decimal) -> Any:
    if isinstance(type, Decimal):
        return pa.decimal128(type.precision, type.scale)
    if isinstance(type, DateTime):
        return pa.timestamp(type.unit, type.tz)
    if isinstance(type, TimeDelta):
        return pa.duration(type.unit)
    if isinstance(type, Unit):
        return (pa.time32 if type.unit in ("s", "ms") else pa.time64)(type.unit)
    return pa.date32()


def _leaf(node: Node, values: NDArray[Any], count: int, valid: Any) -> Any:
    """An array without children."""
    atom = node.block
    if isinstance(node.type, String | Bytes | TypeType):
        return pa.Array.from_buffers(pa.uint8(), count, [None, _buffer(values)])
    if isinstance(atom.type, Void):
        return pa.nulls(count)
    if isinstance(atom.type, FixedBytes):
        _check_size(atom.nbytes, "bytes")
        return pa.Array.from_buffers(pa.binary(atom.nbytes), count, [valid, _buffer(values)])
    if isinstance(atom.type, FixedString) and atom.type.encoding in ("utf8", "ascii"):
        raw = values.reshape(count, atom.nbytes)
        return _texts(raw[raw != 0], np.count_nonzero(raw, axis=1), valid)
    if isinstance(atom.type, Date | Unit | Decimal):
        kind = _temporal(atom.type)
        stored = values.astype(np.int32) if isinstance(atom.type, Time) and kind.bit_width == 32 else values
        return pa.Array.from_buffers(kind, count, [valid, _buffer(stored)])
    name = _NAMES.get(atom.type.dtype.name) if isinstance(atom.type, Scalar) else None
    if name is None:
        raise UnsupportedError(f"Arrow has no type for {atom.type}: use .tolist()", rule="dynd.arrow")
    if name == "bool_":
        return pa.Array.from_buffers(pa.bool_(), count, [valid, _bits(values.reshape(-1).view(np.bool_))])
    return pa.Array.from_buffers(getattr(pa, name)(), count, [valid, _buffer(values)])
