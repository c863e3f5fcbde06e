"""Rows, fields and slices of nested values: `t[0]`, `t[1:3]`, `t["field"]`, `t[:, 0]`.

An index is applied from the outside in, to many values at once: behind a slice the
rest of the index applies to every element. Lists stay where they are and get other
starts and stops; only what lies in place is picked (see `rows`). The result is a
tensor, or where nothing is left but one element what NumPy would give: a scalar, a
text, None for a missing value.

A field's name applies to the records inside all dimensions and options around them.
A missing value has no rows and no fields; among several, what would be taken of it is
missing, too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.packing import is_missing
from tensorglot.dynd.coerce.python import stored_order
from tensorglot.dynd.export.python import to_python
from tensorglot.dynd.rows import inside, take
from tensorglot.dynd.schema import Kind, Node, plan_of
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.dynd.value import Column, Lists, Positions, Value, lists_of_sizes
from tensorglot.errors import InputError, OutOfRange
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import Complex, Fixed, Map, Option, Scalar, Storage, Struct, Tuple, Type, Var, Void

__all__ = ["length", "rows", "select"]

Item: TypeAlias = "int | slice | str | Positions"
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
        columns: list[Column] = [None] * len(nodes)
        held = iter(self.columns)
        for node in nodes:
            columns[node.id] = next(held) if node.kind in _WITH_COLUMN else None
        return nodes[0], columns

    def value(self) -> Value:
        """The only value."""
        return Value(plan_of(self.type), tuple(self.spread()[1]))


def _dims_around(size: int, inner: _Batch, count: int) -> _Batch:
    """`count` values of a fixed dimension over the elements of a batch. What is a block with it gets its shape."""
    whole = _Batch(Fixed(size, inner.type), count, inner.columns)
    root, columns = whole.spread()
    column = columns[root.id]
    if root.kind is not Kind.BLOCK or root.atom is None or not isinstance(column, np.ndarray):
        return whole
    return _Batch(whole.type, count, (column.reshape((count, *root.shape, *root.atom.tail)),))


def _batch(node: Node, columns: Sequence[Column], picked: slice | Positions) -> _Batch:
    """Some of the values of a node."""
    count = picked.stop - picked.start if isinstance(picked, slice) else len(picked)
    taken = take(node, columns, picked)
    held = [column for inner, column in zip(inside(node), taken, strict=True) if inner.kind in _WITH_COLUMN]
    return _Batch(node.type, count, tuple(held))


def _whole(tensor: Tensor) -> _Batch:
    value = from_tensor(tensor)
    return _batch(value.plan.root, value.columns, slice(0, 1))


def select(tensor: Tensor, index: Any) -> Any:
    """What is at an index."""
    try:
        batch = _select(_whole(tensor), _items(index, tensor.type))
        return _result(batch, tensor.name)
    except OutOfRange as error:
        error.tensor = tensor.name or None
        raise


def length(tensor: Tensor) -> int:
    """The number of rows; TypeError, as Python has it, where there are none."""
    shape = tensor.shape
    if shape:
        return shape[0]
    root, columns = _present(_whole(tensor)).spread()
    column = columns[root.id]
    if isinstance(root.type, Var | Map) and isinstance(column, Lists):
        return int(column.stops[0] - column.starts[0])
    dims = _dims(root)
    if dims is None:
        raise TypeError(f"a value of {root.type} has no length")
    return dims[0]


def rows(tensor: Tensor) -> Iterator[Any]:
    """The rows, one after the other; the value is looked at once."""
    count, batch = length(tensor), _present(_whole(tensor))
    return (_result(_element(batch, i), tensor.name) for i in range(count))


def _result(batch: _Batch, name: str) -> Any:
    """A batch of one value as a tensor or as the element that it is."""
    root, columns = batch.spread()
    if root.kind is Kind.OPTION:
        return None if _index(root, columns, 1)[0] < 0 else _result(_present(batch), name)
    if root.kind is Kind.SEQUENCE or _dims(root) is not None or isinstance(root.type, Var | Map):
        return to_tensor(batch.value(), name)
    column = columns[root.id]
    number = isinstance(root.type, Scalar | Complex) and root.atom is not None and not root.atom.tail
    return column[0] if number and isinstance(column, np.ndarray) else to_python(batch.value(), to_tensor)


def _items(index: Any, type: Type) -> list[Item]:
    """The parts of an index, as many dims as `...` stands for made explicit."""
    items = list(index) if isinstance(index, tuple) else [index]
    given = sum(1 for item in items if item is not Ellipsis)
    if len(items) - given > 1:
        raise OutOfRange("an index can have only one Ellipsis", rule="index.ellipsis")
    rank = _rank(type)
    expanded: list[Item] = []
    for item in items:
        if item is Ellipsis:
            expanded += [slice(None)] * max(0, rank - given)
        else:
            expanded.append(_item(item))
    return expanded


def _rank(type: Type) -> int:
    rank = 0
    while True:
        if isinstance(type, Fixed | Var):
            rank, type = rank + 1, type.element
        elif isinstance(type, Storage):
            type = type.element
        else:
            return rank


def _item(item: Any) -> Item:
    if isinstance(item, slice | str):
        return item
    if isinstance(item, list | np.ndarray) and np.ndim(item) == 1:
        return _positions(np.asarray(item))
    if isinstance(item, bool | np.bool_) or item is None:
        raise OutOfRange(f"{item!r} is not a valid index of a nested value", rule="index.basic")
    try:
        return operator.index(item)
    except TypeError as error:
        raise OutOfRange(
            f"{item.__class__.__name__} is not a valid index of a nested value", rule="index.basic"
        ) from error


def _positions(array: NDArray[Any]) -> Positions:
    if array.size and array.dtype.kind not in "iub":
        raise OutOfRange(f"an index array must be integers or bools, not {array.dtype}", rule="index.basic")
    return array if array.dtype == np.bool_ else array.astype(np.int64)


def _select(batch: _Batch, items: list[Item]) -> _Batch:
    """What is at an index of each of the values of a batch."""
    if not items:
        return batch
    root, columns = batch.spread()
    if root.kind is Kind.OPTION:
        return _of_option(batch, root, columns, items)
    item, rest = items[0], items[1:]
    if root.kind is Kind.SEQUENCE:
        return _select(_field(batch, root, columns, item), rest)
    if isinstance(item, int):
        return _select(_element(batch, item), rest)
    if isinstance(item, str):
        projected = _slice(batch, slice(None), [item])
        return _select(projected, rest)
    return _slice(batch, item, rest)


def _of_option(batch: _Batch, root: Node, columns: list[Column], items: list[Item]) -> _Batch:
    """What is at an index of the values that are there; the others stay missing."""
    index = _index(root, columns, batch.count)
    if batch.count == 1 and index[0] < 0:
        raise OutOfRange("a missing value has no rows and no fields", rule="index.missing")
    inner = _select(_batch(root.child, columns, index[index >= 0]), items)
    if batch.count == 1:
        return inner
    positions = np.where(index >= 0, np.cumsum(index >= 0) - 1, -1)
    node, held = inner.spread()
    if isinstance(node.type, Void):
        return _Batch(Void(), batch.count, (np.empty((batch.count, 0), np.uint8),))
    if node.kind is Kind.OPTION:
        within = _index(node, held, inner.count)
        positions = np.where(positions < 0, -1, np.append(within, -1)[positions])
        node = node.child
        inner = _batch(node, held, slice(0, int(within.max(initial=-1)) + 1))
    option = _Batch(Option(node.type), batch.count, (positions, *inner.columns))
    _check_sentinels(option)
    return option


def _check_sentinels(option: _Batch) -> None:
    """Refuses to make values of an option of values that have the bits of a missing one."""
    root, columns = option.spread()
    inner = columns[root.child.id]
    if root.atom is not None and isinstance(inner, np.ndarray) and is_missing(root, inner).any():
        raise InputError(f"a value has the bits of a missing value in {root.type}: use .tolist()", rule="dynd.sentinel")


def _index(root: Node, columns: list[Column], count: int) -> Positions:
    """Where the values of an option are among those that are there, or -1."""
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


def _dims(root: Node) -> tuple[int, ...] | None:
    """The fixed dims of a node, if it begins with any."""
    fixed = root.kind in (Kind.BLOCK, Kind.REPEAT) and isinstance(root.type, Fixed | Storage)
    return root.shape if fixed and root.shape else None


def _fixed_inside(root: Node, columns: list[Column], count: int) -> tuple[_Batch, NDArray[np.int64]]:
    """All elements of the first of some fixed dims, and where they are: a row for each value."""
    type, column = root.type, columns[root.id]
    plain = type.element if isinstance(type, Storage) else type
    assert isinstance(plain, Fixed)  # noqa: S101
    size, element = plain.size, plain.element
    if root.kind is Kind.BLOCK and isinstance(column, np.ndarray):
        flat = column[:count].reshape((count * size, *column.shape[2:]))
        return _Batch(element, count * size, (flat,)), np.arange(count * size).reshape(count, size)
    stored = np.arange(root.size) if not root.axis else np.argsort(stored_order(root))
    within = stored.reshape((size, -1)) if root.size else np.zeros((size, 0), np.int64)
    rows = (np.arange(count)[:, None] * root.size + within.reshape(-1)).reshape(-1)
    inner = _batch(root.child, columns, rows if root.axis else slice(0, count * root.size))
    return _Batch(element, count * size, inner.columns), np.arange(count * size).reshape(count, size)


def _element(batch: _Batch, item: int) -> _Batch:
    """One element of each value of a batch of dims."""
    root, columns = batch.spread()
    column = columns[root.id]
    if isinstance(column, Lists) and isinstance(root.type, Var | Map):
        starts, stops = column.starts[: batch.count], column.stops[: batch.count]
        sizes = stops - starts
        if batch.count and not ((sizes > item) & (sizes >= -item)).all():
            raise OutOfRange(
                f"index {item} is out of range for a list of length {int(sizes.min())}", rule="index.range"
            )
        return _batch(root.child, columns, _in_one_piece((stops if item < 0 else starts) + item))
    dims = _dims(root)
    if dims is None:
        raise OutOfRange(f"a value of {root.type} has no rows and no fields", rule="index.rank")
    if not -dims[0] <= item < dims[0]:
        raise OutOfRange(f"index {item} is out of range for a dimension of size {dims[0]}", rule="index.range")
    inner, places = _fixed_inside(root, columns, batch.count)
    node, held = inner.spread()
    return _batch(node, held, _in_one_piece(places[:, item]))


def _in_one_piece(positions: Positions) -> slice | Positions:
    """A slice, which copies nothing, for positions that follow one another."""
    if len(positions) == 0 or (np.diff(positions) != 1).any():
        return positions
    return slice(int(positions[0]), int(positions[-1]) + 1)


def _slice(batch: _Batch, item: slice | Positions, rest: list[Item]) -> _Batch:
    """Some elements of each value of a batch of dims, and of each what is at the rest of the index."""
    root, columns = batch.spread()
    column = columns[root.id]
    if isinstance(column, Lists) and isinstance(root.type, Var | Map):
        return _slice_lists(batch, root, columns, column, item, rest)
    dims = _dims(root)
    if dims is None:
        raise OutOfRange(f"a value of {root.type} has no rows and no fields", rule="index.rank")
    picked = _picked(item, dims[0])
    inner, places = _fixed_inside(root, columns, batch.count)
    node, held = inner.spread()
    chosen = _select(_batch(node, held, _in_one_piece(places[:, picked].reshape(-1))), rest)
    return _dims_around(len(picked), chosen, batch.count)


def _picked(item: slice | Positions, size: int) -> Positions:
    """Positions in a dimension."""
    if isinstance(item, slice):
        try:
            return np.arange(size)[item]
        except (TypeError, ValueError) as error:
            raise OutOfRange(f"invalid slice: {error}", rule="index.slice") from error
    if item.dtype == np.bool_:
        if len(item) != size:
            raise OutOfRange(f"a mask of {len(item)} elements cannot index {size} rows", rule="index.range")
        return np.flatnonzero(item)
    if item.size and not -size <= item.min() <= item.max() < size:
        raise OutOfRange(f"positions are out of range for {size} rows", rule="index.range")
    return np.where(item < 0, item + size, item)


def _slice_lists(
    batch: _Batch, root: Node, columns: list[Column], lists: Lists, item: slice | Positions, rest: list[Item]
) -> _Batch:
    starts, stops = lists.starts[: batch.count], lists.stops[: batch.count]
    if isinstance(item, slice) and item.step in (None, 1) and not rest:
        bounds = [_bounds(item, size) for size in (stops - starts).tolist()]
        edges = np.array(bounds, np.int64).reshape(-1, 2)
        whole = _batch(root.child, columns, slice(0, int(stops.max(initial=0))))
        return _Batch(
            Var(root.child.type), batch.count, (Lists(starts + edges[:, 0], starts + edges[:, 1]), *whole.columns)
        )
    picked = [
        start + _picked(item, size) for start, size in zip(starts.tolist(), (stops - starts).tolist(), strict=True)
    ]
    lists = lists_of_sizes(map(len, picked), len(picked))
    places = np.concatenate([np.empty(0, np.int64), *picked])
    chosen = _select(_batch(root.child, columns, _in_one_piece(places)), rest)
    return _Batch(Var(chosen.type), batch.count, (lists, *chosen.columns))


def _bounds(item: slice, size: int) -> tuple[int, int]:
    try:
        begin, end, _ = item.indices(size)
    except TypeError as error:
        raise OutOfRange(f"invalid slice: {error}", rule="index.slice") from error
    return begin, max(begin, end)
