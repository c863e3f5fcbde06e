"""Arrow arrays, in and out, by their buffers.

An Arrow array of length N is a value of `N * T`; a table or a record batch is an array
of structs. A type is an option where Arrow has nulls. Contents and offsets are shared,
except where the representations differ (bits for bool, 32-bit offsets, placeholders of
missing values). Types that Arrow does not have are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.bridges.arrow_export import arrow_array
from tensorglot.bridges.arrow_plain import as_plain, take, valid_rows
from tensorglot.dynd.atoms import Atom
from tensorglot.dynd.coerce.anything import as_tensor
from tensorglot.dynd.coerce.python import chars_to_array, stored_order
from tensorglot.dynd.maps import sort_maps
from tensorglot.dynd.python_atoms import atoms_to_array
from tensorglot.dynd.schema import Kind, Node, Plan, plan_of
from tensorglot.dynd.temporal import counts_of_array, numpy_name
from tensorglot.dynd.tensors import from_tensor as value_of
from tensorglot.dynd.value import Column, Lists, Value, lists_of
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.extras import compute, pa
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.tensor import Tensor
from tensorglot.model.types import algebra as ty
from tensorglot.model.types.base import Type
from tensorglot.model.types.temporal import Date, DateTime, Decimal, Time, TimeDelta, Unit

__all__ = ["as_array", "element_type", "from_tensor", "to_tensor", "to_value", "type_of"]

_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}
_PLAIN: dict[str, Type] = {"null": ty.Void(), "large_string": ty.String(), "large_binary": ty.Bytes()}


def from_tensor(tensor: Tensor) -> Any:
    """The Arrow array of a tensor; a scalar where the tensor has no dimension."""
    value = value_of(tensor)
    if value.plan.deep:
        raise UnsupportedError(
            "the value is nested too deep for Arrow: use .tolist()", rule="dynd.arrow", tensor=tensor.name
        )
    whole = arrow_array(value)[0]
    lists = isinstance(whole, pa.LargeListScalar | pa.FixedSizeListScalar)
    return whole.values if lists and whole.is_valid else whole


def as_array(value: Any) -> Any:
    """Any of Arrow's collections as one array of plain types."""
    if isinstance(value, pa.Table | pa.RecordBatch):
        value = value.to_struct_array()
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks() if value.num_chunks != 1 else value.chunk(0)
    return as_plain(value)


def type_of(value: Any) -> Type:
    """The type of an Arrow array, scalar, batch or table."""
    if isinstance(value, pa.Scalar):
        return element_type(as_array(pa.repeat(value, 1)))
    array = as_array(value)
    return ty.Fixed(len(array), element_type(array))


def element_type(array: Any) -> Type:
    """The type of one element of an array of plain types."""
    inner = _present_type(array)
    return ty.Option(inner) if array.null_count and not isinstance(inner, ty.Void) else inner


def _present_type(array: Any) -> Type:
    is_ = pa.types
    kind = array.type
    if str(kind) in _PLAIN:
        return _PLAIN[str(kind)]
    if is_.is_fixed_size_binary(kind):
        return ty.FixedBytes(kind.byte_width)
    if is_.is_large_list(kind):
        return ty.Var(element_type(array.flatten()))
    if is_.is_fixed_size_list(kind):
        return ty.Fixed(kind.list_size, element_type(array.flatten()))
    if is_.is_struct(kind):
        present = array.drop_null() if array.null_count else array
        return ty.Struct(tuple((field.name, element_type(present.field(i))) for i, field in enumerate(kind)))
    if is_.is_map(kind):
        edges = np.asarray(array.offsets)
        begin, end = int(edges[0]), int(edges[-1])
        return ty.Map(element_type(array.keys[begin:end]), element_type(array.items[begin:end]))
    temporal = _temporal(kind)
    if temporal is not None:
        return temporal
    row = BY_NAME.get(_NAMES.get(str(kind), str(kind)))
    if row is None:
        raise UnsupportedError(f"Arrow's {kind} is not supported", rule="dynd.arrow")
    return ty.Scalar(row)


def _temporal(kind: Any) -> Date | Unit | Decimal | None:
    """The type of Arrow's dates, times, durations and decimals; None for others."""
    is_ = pa.types
    if is_.is_date32(kind):
        return Date()
    if is_.is_time(kind):
        return Time(kind.unit)
    if is_.is_timestamp(kind):
        return DateTime(kind.unit, kind.tz)
    if is_.is_duration(kind):
        return TimeDelta(kind.unit)
    return Decimal(kind.precision, kind.scale) if is_.is_decimal128(kind) else None


Live: TypeAlias = "Callable[[], NDArray[np.bool_]] | None"
"""Computes which elements are used by a valid row; None if all are. Called only if there are nulls.

The bytes in the place of a null are arbitrary in Arrow, so unused elements are neither checked nor refused."""


def to_tensor(value: Any, type: Type | None) -> Tensor:
    """A tensor of the type given; of the value's own without one, and for `array[T]`, which Arrow does not have."""
    plan = plan_of(type_of(value) if type is None or plan_of(type).boxes else type)
    return as_tensor(to_value(value, plan))


def to_value(value: Any, plan: Plan) -> Value:
    """The columns of an Arrow array, as a value of the plan's type."""
    if isinstance(value, pa.Scalar):
        root = as_array(pa.repeat(value, 1))
    else:  # a list with the array as its only element: the root of a plan has one value
        array = as_array(value)
        root = pa.LargeListArray.from_arrays(np.array([0, len(array)]), array)
    columns: list[Column] = [None] * len(plan.nodes)
    stack: list[tuple[Node, Any, Live]] = [(plan.root, root, None)]
    while stack:
        node, array, live = stack.pop()
        if node.kind is Kind.OPTION:
            valid = valid_rows(array)
            columns[node.id] = np.where(valid, np.arange(len(array)), -1)
            stack.append((node.child, array, partial(_live_and_valid, live, valid)))
            continue
        _check_present(node, array, live)
        if node.kind is Kind.BLOCK:
            columns[node.id] = _block(node, array, live)
        elif node.is_text:
            if isinstance(node.type, ty.TypeType) and pa.types.is_large_string(array.type):
                array = _fill(array, live, "void")
            columns[node.id], columns[node.child.id] = _texts(node, array)
        elif node.kind is Kind.LIST:
            lists, contents = _lists(node, array)
            columns[node.id] = lists
            children = node.child.children if isinstance(node.type, ty.Map) else node.children
            for child, content in zip(children, contents, strict=True):
                stack.append((child, content, partial(_used_elements, lists, live, len(content))))
        elif node.kind is Kind.REPEAT:
            stack.append((node.child, *_dims(node, array, live)))
        elif node.kind is Kind.CHAR and pa.types.is_large_string(array.type):
            columns[node.id] = chars_to_array(_fill(array, live, "?").to_pylist())
        elif node.kind is Kind.SEQUENCE and pa.types.is_struct(array.type):
            if {field.name for field in array.type} != set(node.names):
                raise _refuse(node, array)
            stack.extend(
                (child, array.field(name), live) for child, name in zip(node.children, node.names, strict=True)
            )
        else:
            raise _refuse(node, array)
    return sort_maps(Value(plan, tuple(columns)))


def _refuse(node: Node, array: Any) -> InputError:
    return InputError(f"cannot convert Arrow's {array.type} to {node.type}", rule="dynd.value")


def _live_and_valid(live: Live, valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return valid if live is None else live() & valid


def _used_elements(lists: Lists, live: Live, count: int) -> NDArray[np.bool_]:
    """Which elements are in a list that is used. Lists may overlap."""
    rows = slice(None) if live is None else live()
    # +1 where a list starts, -1 where it stops: the running sum counts the lists that contain an element.
    edges = np.zeros(count + 1, np.int64)
    np.add.at(edges, lists.starts[rows], 1)
    np.add.at(edges, lists.stops[rows], -1)
    return np.cumsum(edges[:-1]) > 0


def _check_present(node: Node, array: Any, live: Live) -> None:
    void = node.atom is not None and isinstance(node.atom.type, ty.Void)
    if not array.null_count or void:
        return
    missing = ~valid_rows(array)
    if missing.any() if live is None else (missing & live()).any():
        raise InputError(f"{node.type} cannot hold nulls: use ?{node.type}", rule="dynd.value")


def _lists(node: Node, array: Any) -> tuple[Lists, list[Any]]:
    """Where each list or map begins and ends; the elements, or the keys and the values."""
    is_, mapped = pa.types, isinstance(node.type, ty.Map)
    if not (is_.is_map if mapped else is_.is_large_list)(array.type):
        raise _refuse(node, array)
    offsets = np.asarray(array.offsets).astype(np.int64, copy=False)
    return lists_of(offsets), [array.keys, array.items] if mapped else [array.values]


def _fill(array: Any, live: Live, text: str) -> Any:
    """Texts, with `text` instead of missing values, whose placeholders may be invalid."""
    filled = array.fill_null(text)
    if live is None:
        return filled
    return compute.if_else(pa.array(live()), filled, pa.scalar(text, array.type))


def _texts(node: Node, array: Any) -> tuple[Lists, NDArray[np.uint8]]:
    is_ = pa.types
    if not (is_.is_large_binary if isinstance(node.type, ty.Bytes) else is_.is_large_string)(array.type):
        raise _refuse(node, array)
    _, offsets, data = array.buffers()
    if len(array) == 0:
        return lists_of(np.zeros(1, np.int64)), np.empty(0, np.uint8)
    positions = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return lists_of(positions), np.frombuffer(data or b"", np.uint8)


def _dims(node: Node, array: Any, live: Live) -> tuple[Any, Live]:
    """The elements of lists that all have the sizes of the dims."""
    count = len(array)
    for size in node.shape:
        _check_present(node, array, live)
        array, live = _regular(node, array, size, live), _repeat(live, size)
    if node.axis:
        # Arrow has no axis order: the elements are brought into the stored one.
        order = (np.arange(count)[:, None] * node.size + np.array(stored_order(node), np.int64)).reshape(-1)
        array, live = take(array, pa.array(order)), _permute(live, order)
    return array, live


def _permute(live: Live, order: NDArray[np.int64]) -> Live:
    return None if live is None else (lambda: live()[order])


def _regular(node: Node, array: Any, size: int, live: Live) -> Any:
    """The elements of lists of one size, one after the other; nulls for the elements of unused lists."""
    if pa.types.is_fixed_size_list(array.type):
        _check_sizes(node, {array.type.list_size}, size)
        return array.values[array.offset * size : (array.offset + len(array)) * size]
    if not pa.types.is_large_list(array.type):
        raise _refuse(node, array)
    edges = np.asarray(array.offsets).astype(np.int64, copy=False)
    used = valid_rows(array) if live is None else live()
    _check_sizes(node, set(np.diff(edges)[used].tolist()), size)
    if used.all():
        return array.flatten()
    positions = (edges[:-1, np.newaxis] + np.arange(size)).reshape(-1)
    return take(array.values, pa.array(positions, mask=np.repeat(~used, size)))


def _check_sizes(node: Node, sizes: set[int], size: int) -> None:
    if sizes - {size}:
        raise InputError(
            f"expected {size} elements, found {(sizes - {size}).pop()}, in {node.type}", rule="dynd.length"
        )


def _block(node: Node, array: Any, live: Live) -> NDArray[Any]:
    atom, count = node.block, len(array)
    for size in node.shape:
        array, live = _regular(node, array, size, live), _repeat(live, size)
        _check_present(node, array, live)
    shape = (count, *node.shape, *atom.tail)
    if isinstance(atom.type, ty.Void):
        present = valid_rows(array)
        if present.any() if live is None else (present & live()).any():
            raise _refuse(node, array)
        return np.empty(shape, np.uint8)
    return _leaf(node, array, live).reshape(shape)


def _repeat(live: Live, size: int) -> Live:
    return None if live is None else (lambda: np.repeat(live(), size))


def _leaf(node: Node, array: Any, live: Live) -> NDArray[Any]:
    """The values of an array without children."""
    atom, is_ = node.block, pa.types
    if is_.is_large_string(array.type) or is_.is_large_binary(array.type):
        return _convert(atom, np.array(array.to_pylist(), object), live)
    if is_.is_fixed_size_binary(array.type):
        if array.type.byte_width != atom.nbytes or not isinstance(atom.type, ty.FixedBytes):
            raise _refuse(node, array)
        raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        return raw[array.offset * atom.nbytes : (array.offset + len(array)) * atom.nbytes]
    temporal = _temporal(array.type)
    if temporal is not None:
        return _times(node, atom, array, temporal, live)
    row = BY_NAME.get(_NAMES.get(str(array.type), str(array.type)))
    if row is None or row.numpy is None:
        raise _refuse(node, array)
    buffer = array.buffers()[1] or b""
    if row.name == "bool":
        # Arrow packs bools, lowest bit first, and an array may begin at any bit.
        bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
        values: NDArray[Any] = bits[array.offset : array.offset + len(array)].view(np.bool_)
    else:
        values = _values(array, row.numpy)
    return values if values.dtype == atom.base and not atom.tail else _convert(atom, values, live)


def _convert(atom: Atom, values: NDArray[Any], live: Live) -> NDArray[Any]:
    """Values of another type, converted as Python's are; zeros for unused elements."""
    if live is None or (used := live()).all():
        return atoms_to_array(atom, values)
    out = np.zeros((len(values), *atom.tail), atom.base)
    out[used] = atoms_to_array(atom, values[used])
    return out


def _values(array: Any, dtype: Any) -> NDArray[Any]:
    """The values in the data buffer of an array. The buffer may be longer, by any number of bytes."""
    end = array.offset + len(array)
    return np.frombuffer(array.buffers()[1] or b"", dtype, end)[array.offset :] if end else np.empty(0, dtype)


def _times(node: Node, atom: Atom, array: Any, given: Date | Unit | Decimal, live: Live) -> NDArray[Any]:
    """Dates, times, durations and decimals; zero for unused elements, whose bytes may be invalid."""
    width = array.type.bit_width // 8
    raw = _values(array, f"V{width}")
    if live is not None:
        raw = np.where(live(), raw, np.zeros(1, f"V{width}"))
    if isinstance(given, Decimal):
        if given != atom.type:
            raise _refuse(node, array)
        return raw.view(np.uint8)
    counts: NDArray[Any] = raw.view(f"<i{width}")
    if given == atom.type:
        return counts.astype(atom.base, copy=False)
    zones = [kind.tz is None for kind in (given, atom.type) if isinstance(kind, DateTime)]
    if given.__class__ is not atom.type.__class__ or not isinstance(atom.type, Date | Unit) or len(set(zones)) > 1:
        raise _refuse(node, array)
    return counts_of_array(atom.type, counts.astype(np.int64).view(numpy_name(given)))
