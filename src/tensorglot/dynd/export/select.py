"""Rows, fields and slices of nested values: `t[0]`, `t[1:3]`, `t["field"]`, `t[:, 0]`.

An index is applied from the outside in, to a batch of values at once: after a slice, the
rest of the index applies to every element. Lists get other starts and stops, and their
elements are not copied; only what has a fixed place is gathered (`value.take`). The result
is a tensor, or, where a single element is left, what NumPy would return: a scalar, a
string, None for a missing value.

A field's name applies to the records inside all dimensions and options around them.
Indexing a missing value is an error; in a batch, the result for it is missing, too.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np

from tensorglot.arrays import ranks
from tensorglot.dynd.codec.packing import is_missing
from tensorglot.dynd.coerce.python import stored_order
from tensorglot.dynd.export.python import to_python
from tensorglot.dynd.schema import HUGE, Kind, Node, plan_of
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.dynd.value import Column, Lists, Positions, Value, lists_of_sizes, subtree, take
from tensorglot.errors import InputError, OutOfRange
from tensorglot.model.advanced_indexing import index_array
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import (
    Complex,
    Fixed,
    Map,
    Option,
    Pointer,
    Scalar,
    Storage,
    Struct,
    Tuple,
    Type,
    Var,
    Void,
)
from tensorglot.tuples import NamedTuple

__all__ = ["length", "rows", "select"]

Item: TypeAlias = "int | slice | str | Positions | EllipsisType"
_WITH_COLUMN = (Kind.BLOCK, Kind.LIST, Kind.OPTION, Kind.CHAR, Kind.BOX)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """`count` values of a type, as the columns of its nodes that have one, in order."""

    type: Type
    count: int
    columns: tuple[Column, ...]

    def spread(self) -> tuple[Node, list[Column]]:
        """The root of the plan, and a column for each of its nodes."""
        nodes = plan_of(self.type).nodes
        held = iter(self.columns)
        return nodes[0], [next(held) if node.kind in _WITH_COLUMN else None for node in nodes]

    def value(self) -> Value:
        """The only value."""
        return Value(plan_of(self.type), tuple(self.spread()[1]))


def _batch(node: Node, columns: Sequence[Column], picked: slice | Positions) -> _Batch:
    """Some of the values of a node."""
    count = picked.stop - picked.start if isinstance(picked, slice) else len(picked)
    taken = take(node, columns, picked)
    held = [column for inner, column in zip(subtree(node), taken, strict=True) if inner.kind in _WITH_COLUMN]
    return _Batch(node.type, count, tuple(held))


def _batch_of(tensor: Tensor) -> _Batch:
    value = from_tensor(tensor)
    return _batch(value.plan.root, value.columns, slice(0, 1))


class _Rows(NamedTuple):
    """The rows of all values of a batch, as columns; value i has `sizes[i]` rows from `starts[i]` on."""

    node: Node
    columns: Sequence[Column]
    starts: Positions
    sizes: Positions
    fixed: int | None
    """The number of rows of every value, if the type says it (`N *`)."""

    def at(self, item: int) -> _Batch:
        """One row of each value."""
        shortest = int(self.sizes.min(initial=HUGE)) if self.fixed is None else self.fixed
        if not -shortest <= item < shortest:
            raise OutOfRange(f"index {item} is out of range for {shortest} rows", rule="index.range")
        return self.take(self.starts + item + (self.sizes if item < 0 else 0))

    def take(self, positions: Positions) -> _Batch:
        """The rows at some positions; consecutive rows are not copied."""
        if len(positions) == 0 or (len(positions) > 1 and (np.diff(positions) != 1).any()):
            return _batch(self.node, self.columns, positions)
        return _batch(self.node, self.columns, slice(int(positions[0]), int(positions[-1]) + 1))


def _rows(batch: _Batch) -> _Rows | None:
    """The rows of the values of a batch; None if the type has no dimension outside."""
    root, columns = batch.spread()
    count, column = batch.count, columns[root.id]
    if isinstance(root.type, Var | Map) and isinstance(column, Lists):
        starts, stops = column.starts[:count], column.stops[:count]
        return _Rows(root.child, columns, starts, stops - starts, None)
    type = root.type.element if isinstance(root.type, Storage) else root.type
    if not isinstance(type, Fixed):
        return None
    size = type.size
    if root.kind is Kind.BLOCK and isinstance(column, np.ndarray):
        held: tuple[Column, ...] = (column[:count].reshape((count * size, *column.shape[2:])),)
    elif root.axis:  # the rows are not in stored order: gather them into the logical one
        stored = np.arange(count)[:, np.newaxis] * root.size + np.argsort(stored_order(root))
        held = _batch(root.child, columns, stored.reshape(-1)).columns
    else:
        held = _batch(root.child, columns, slice(0, count * root.size)).columns
    elements = _Batch(type.element, count * size, held)
    return _Rows(*elements.spread(), np.arange(count) * size, np.full(count, size), size)


def select(tensor: Tensor, index: Any) -> Any:
    """What `tensor[index]` returns."""
    try:
        return _result(_select(_batch_of(tensor), _items(index), alone=True), tensor.name)
    except OutOfRange as error:
        error.tensor = tensor.name or None
        raise


def length(tensor: Tensor) -> int:
    """The number of rows; TypeError, as Python has it, where the type has no dimension."""
    return tensor.shape[0] if tensor.shape else int(_only(tensor).sizes[0])


def rows(tensor: Tensor) -> Iterator[Any]:
    """The rows in order; the value is decoded once."""
    found = _only(tensor)
    begin = int(found.starts[0])
    positions = range(begin, begin + int(found.sizes[0]))
    return (_result(_batch(found.node, found.columns, slice(i, i + 1)), tensor.name) for i in positions)


def _only(tensor: Tensor) -> _Rows:
    """The rows of the value of a tensor."""
    found = _rows(_present(_batch_of(tensor)))
    if found is None:
        raise TypeError(f"a value of {tensor.type} has no length")
    return found


def _result(batch: _Batch, name: str) -> Any:
    """A batch of one value as a tensor, or as the element that it is."""
    root, columns = batch.spread()
    if root.kind is Kind.OPTION:
        return None if _index(root, columns, 1)[0] < 0 else _result(_present(batch), name)
    if isinstance(root.type, Fixed | Storage | Var | Map | Struct | Tuple):
        return to_tensor(batch.value(), name)
    column = columns[root.id]
    number = isinstance(root.type, Scalar | Complex) and root.atom is not None and not root.atom.tail
    return column[0] if number and isinstance(column, np.ndarray) else to_python(batch.value(), to_tensor)


def _items(index: Any) -> list[Item]:
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) > 1:
        raise OutOfRange("an index can have only one Ellipsis", rule="index.ellipsis")
    found = [_item(item) for item in items]
    if sum(isinstance(item, np.ndarray) for item in found) > 1:
        raise OutOfRange("an index can have a list, an array or a mask along one axis only", rule="index.arrays")
    return found


def _without_dots(type: Type, rest: list[Item]) -> list[Item]:
    """An index of a type that begins with `...`, without it: a `:` for each dimension that the rest does not index."""
    if rest and isinstance(rest[0], str):  # a field's name applies inside all dimensions, with or without dots
        return [rest[0], ..., *rest[1:]]
    rank = 0
    while isinstance(type, Fixed | Var | Option | Pointer | Storage):
        rank += isinstance(type, Fixed | Var)
        type = type.element
    rank += isinstance(type, Map)
    before = list(takewhile(lambda item: not isinstance(item, str), rest))
    return [slice(None)] * (rank - len(before)) + rest


def _item(item: Any) -> Item:
    if isinstance(item, slice | str) or item is Ellipsis:
        return item
    array = index_array(item)
    if array is None:
        with suppress(TypeError):
            if not isinstance(item, bool):
                return operator.index(item)
    elif array.ndim == 1 and array.dtype.kind in "biu":
        return array
    raise OutOfRange(
        f"{reprlib.repr(item)} is not a valid index: pass an integer, a slice, a field, a list of integers or a mask",
        rule="index.basic",
    )


def _select(batch: _Batch, items: list[Item], *, alone: bool = False) -> _Batch:
    """What is at an index of each of the values of a batch; of its only value, if it is `alone`."""
    if not items:
        return batch
    item, rest = items[0], items[1:]
    if item is Ellipsis:
        return _select(batch, _without_dots(batch.type, rest), alone=alone)
    root, columns = batch.spread()
    if root.kind is Kind.OPTION:
        return _select(_present(batch), items, alone=True) if alone else _select_present(batch, root, columns, items)
    if root.kind is Kind.SEQUENCE:
        return _select(_field(batch, root, columns, item), rest, alone=alone)
    found = _rows(batch)
    if found is None:
        raise OutOfRange(f"a value of {root.type} has no rows and no fields", rule="index.rank")
    if isinstance(item, int):
        return _select(found.at(item), rest, alone=alone)
    if isinstance(item, str):
        return _select(_slice(found, slice(None), [item]), rest, alone=alone)
    return _slice(found, item, rest)


def _select_present(batch: _Batch, root: Node, columns: list[Column], items: list[Item]) -> _Batch:
    """What is at an index of the values that are present; the others stay missing."""
    index = _index(root, columns, batch.count)
    inner = _select(_batch(root.child, columns, index[index >= 0]), items)
    positions = ranks(index >= 0)
    node, held = inner.spread()
    if isinstance(node.type, Void):
        return _Batch(Void(), batch.count, (np.empty((batch.count, 0), np.uint8),))
    if node.kind is Kind.OPTION:  # the index led to an option: ??T is no type, so both become one
        within = _index(node, held, inner.count)
        positions = np.where(positions < 0, -1, np.append(ranks(within >= 0), -1)[positions])
        node = node.child
        inner = _batch(node, held, within[within >= 0])
    option = _Batch(Option(node.type), batch.count, (positions, *inner.columns))
    root, columns = option.spread()
    values = columns[root.child.id]
    if root.atom is not None and isinstance(values, np.ndarray) and is_missing(root, values).any():
        raise InputError(f"a value has the bits of a missing value in {root.type}: use .tolist()", rule="dynd.sentinel")
    return option


def _index(root: Node, columns: list[Column], count: int) -> Positions:
    """The position of each value of an option among the present values, or -1 if it is missing."""
    column = columns[root.id]
    if isinstance(column, np.ndarray):
        return column[:count]
    inner = columns[root.child.id]
    assert isinstance(inner, np.ndarray)  # noqa: S101
    return np.where(is_missing(root, inner[:count]), -1, np.arange(count))


def _present(batch: _Batch) -> _Batch:
    """The only value without the option around it."""
    root, columns = batch.spread()
    if root.kind is not Kind.OPTION:
        return batch
    index = _index(root, columns, 1)
    if index[0] < 0:
        raise OutOfRange("a missing value has no rows and no fields", rule="index.missing")
    return _batch(root.child, columns, index)


def _field(batch: _Batch, root: Node, columns: list[Column], item: Item) -> _Batch:
    """A field of a struct by its name, one of a tuple by its number."""
    names = root.names if isinstance(root.type, Struct) else list(range(len(root.children)))
    if isinstance(root.type, Tuple) and isinstance(item, int) and item < 0:
        item += len(names)
    pairs = zip(names, root.children, strict=True) if isinstance(item, int | str) else ()
    found = [child for name, child in pairs if name == item]
    if not found:
        known = ", ".join(map(repr, names[:10]))
        raise OutOfRange(f"no field {item!r:.60} (fields: {known or 'none'})", rule="index.field")
    return _batch(found[0], columns, slice(0, batch.count))


def _slice(found: _Rows, item: slice | Positions, rest: list[Item]) -> _Batch:
    """Some rows of each value of a batch, each indexed by the rest of the index."""
    starts, sizes = found.starts, found.sizes
    count = len(starts)
    if found.fixed is not None:
        picked = _positions(item, found.fixed)
        inner = _select(found.take((starts[:, np.newaxis] + picked).reshape(-1)), rest)
        whole = _Batch(Fixed(len(picked), inner.type), count, inner.columns)
        root, columns = whole.spread()
        column = columns[root.id]
        if root.kind is Kind.BLOCK and isinstance(column, np.ndarray):  # the new dim is an axis of the array
            return _Batch(whole.type, count, (column.reshape((count, *root.shape, *root.block.tail)),))
        return whole
    if isinstance(item, slice) and item.step in (None, 1) and not rest:
        ranges = [_range(item, size) for size in sizes.tolist()]
        begins, lengths = np.array([(each.start, len(each)) for each in ranges], np.int64).reshape(-1, 2).T
        lists = Lists(starts + begins, starts + begins + lengths)
        elements = _batch(found.node, found.columns, slice(0, int(lists.stops.max(initial=0))))
        return _Batch(Var(elements.type), count, (lists, *elements.columns))
    # A step, a list, or a rest of the index: the rows of each list are gathered one list at a time.
    places = [start + _positions(item, size) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)]
    inner = _select(found.take(np.concatenate([np.empty(0, np.int64), *places])), rest)
    return _Batch(Var(inner.type), count, (lists_of_sizes(map(len, places), count), *inner.columns))


def _range(item: slice, size: int) -> range:
    try:
        return range(size)[item]
    except (TypeError, ValueError) as error:
        raise OutOfRange(f"invalid slice: {error}", rule="index.slice") from error


def _positions(item: slice | Positions, size: int) -> Positions:
    """The rows that an item picks from `size` rows."""
    if isinstance(item, slice):
        picked = _range(item, size)
        return np.fromiter(picked, np.int64, len(picked)) if len(picked) < 2 else np.arange(size)[item]
    if item.dtype == np.bool_:
        if len(item) != size:
            raise OutOfRange(f"a mask of {len(item)} elements cannot index {size} rows", rule="index.range")
        return np.flatnonzero(item)
    if item.size and not -size <= item.min() <= item.max() < size:
        raise OutOfRange(f"positions are out of range for {size} rows", rule="index.range")
    positions: Positions = item.astype(np.int64)
    return np.where(positions < 0, positions + size, positions)
