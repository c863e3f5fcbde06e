"""awkward arrays, in and out, by their layouts: contents and offsets are shared, never copied.

An awkward array of length N is a value of `N * T`, as awkward itself says. Lists are
`var * T`, records structs or tuples, options options. What awkward has no form for
(128 bits, ml_dtypes, `array[T]`) is refused by name, and so are its unions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import ranks
from tensorglot.bridges.table import Bridge
from tensorglot.dynd.codec.packing import is_missing
from tensorglot.dynd.coerce.anything import as_tensor
from tensorglot.dynd.coerce.numpy import numpy_type
from tensorglot.dynd.coerce.python import chars_to_array, stored_order
from tensorglot.dynd.export.numpy import block_rows
from tensorglot.dynd.python_atoms import atoms_to_array
from tensorglot.dynd.schema import Kind, Node, Plan, plan_of
from tensorglot.dynd.tensors import from_tensor as value_of
from tensorglot.dynd.value import Column, Lists, Value, lists_of
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.extras import ak
from tensorglot.model.tensor import Tensor
from tensorglot.model.types import algebra as ty
from tensorglot.model.types.base import Type

__all__ = ["BRIDGE", "from_tensor", "to_tensor"]


def type_of(value: Any) -> Type:
    """The type of an awkward array or record."""
    if isinstance(value, ak.Record):
        return _type(value.layout.array)
    return ty.Fixed(len(value), _type(value.layout))


def _text_kind(layout: Any) -> str | None:
    kind = layout.parameter("__array__")
    return kind if kind in ("string", "bytestring") else None


def _type(layout: Any) -> Type:
    """The type of one element of a layout."""
    if layout.is_option:
        inner = _type(layout.content)
        return inner if isinstance(inner, ty.Option | ty.Void) else ty.Option(inner)
    if layout.is_indexed:
        return _type(layout.content)
    if layout.is_unknown:
        return ty.Void()
    if layout.is_numpy:
        whole = numpy_type(np.asarray(layout.data)[:0])
        return whole.element if isinstance(whole, ty.Fixed) else whole
    if layout.is_record:
        inner_types = tuple(_type(content) for content in layout.contents)
        return (
            ty.Tuple(inner_types) if layout.is_tuple else ty.Struct(tuple(zip(layout.fields, inner_types, strict=True)))
        )
    if layout.is_list:
        kind = _text_kind(layout)
        if kind is not None:
            sized = layout.is_regular and kind == "bytestring"
            return ty.FixedBytes(layout.size) if sized else ty.String() if kind == "string" else ty.Bytes()
        return ty.Fixed(layout.size, _type(layout.content)) if layout.is_regular else ty.Var(_type(layout.content))
    raise UnsupportedError(f"awkward's {type(layout).__name__} is not supported", rule="dynd.awkward")


def to_tensor(value: Any, type: Type | None) -> Tensor:
    """A tensor of the type given; of the value's own without one, and for `array[T]`, which awkward does not have."""
    plan = plan_of(type_of(value) if type is None or plan_of(type).boxes else type)
    try:
        return as_tensor(to_value(value, plan))
    except InputError:
        # What was refused may be an element that the array does not refer to.
        return as_tensor(to_value(value, plan, shared=False))


def to_value(value: Any, plan: Plan, *, shared: bool = True) -> Value:
    """The columns of an awkward array, as a value of the plan's type.

    They share its memory, or else have only the elements that it refers to.
    """
    if isinstance(value, ak.Record):
        root = value.layout.array[value.layout.at : value.layout.at + 1]
    else:
        root = ak.contents.RegularArray(value.layout, len(value), zeros_length=1)
    columns: list[Column] = [None] * len(plan.nodes)
    stack: list[tuple[Node, Any]] = [(plan.root, root)]
    while stack:
        node, layout = stack.pop()
        while layout.is_indexed and not layout.is_option:
            layout = layout.project()
        if node.kind is Kind.OPTION:
            layout = layout.to_IndexedOptionArray64() if layout.is_option else layout
            content = layout.content if layout.is_option else layout
            index = layout.index.data if layout.is_option else np.arange(len(layout))
            if layout.is_option and not shared:
                content, index = layout.project(), ranks(index >= 0)
            columns[node.id] = _without_nat(index, content)
            stack.append((node.child, content))
            continue
        if layout.is_option:
            layout = _all_present(layout, node)
        if node.kind is Kind.BLOCK:
            columns[node.id] = _block(node, layout)
        elif node.kind is Kind.LIST:
            if layout.is_list and not shared:
                layout = layout.to_ListOffsetArray64(True)
            columns[node.id], content = _lists(node, layout)
            if not (shared or layout.is_unknown):
                content = content[: int(layout.offsets[-1])]
            if node.is_text:
                columns[node.child.id] = np.asarray(content.data)
            else:
                stack.append((node.child, content))
        elif node.kind is Kind.REPEAT:
            stack.append((node.child, _repeat(node, layout)))
        elif node.kind is Kind.CHAR:
            columns[node.id] = chars_to_array(layout.to_list())
        elif node.kind is Kind.SEQUENCE and layout.is_record and set(layout.fields) == set(node.names):
            stack.extend((child, layout.content(name)) for child, name in zip(node.children, node.names, strict=True))
        else:
            raise _refuse(node, layout)
    return Value(plan, tuple(columns))


def _without_nat(index: NDArray[np.int64], content: Any) -> NDArray[np.int64]:
    """The positions of an option, with -1 also for NaT: it is a missing value."""
    if not content.is_numpy or content.data.dtype.kind not in "mM" or content.data.ndim != 1:
        return index
    # An element is appended, so that the index -1 of a missing value finds True, too.
    return np.where(np.append(np.isnat(np.asarray(content.data)), True)[index], -1, index)


def _unsupported(type: Type, hint: str = ".tolist()") -> UnsupportedError:
    return UnsupportedError(f"awkward has no type for {type}: use {hint}", rule="dynd.awkward")


def _refuse(node: Node, layout: Any) -> InputError:
    return InputError(f"cannot convert awkward's {layout.form.type} to {node.type}", rule="dynd.value")


def _all_present(layout: Any, node: Node) -> Any:
    if isinstance(node.type, ty.Void | ty.Option):
        return layout
    indexed = layout.to_IndexedOptionArray64()
    if (indexed.index.data < 0).any():
        raise InputError(f"{node.type} cannot hold missing values: use ?{node.type}", rule="dynd.value")
    return indexed.project()


def _lists(node: Node, layout: Any) -> tuple[Lists, Any]:
    if layout.is_unknown:
        zeros = np.zeros(len(layout), np.int64)
        return Lists(zeros, zeros), layout
    if not layout.is_list or node.is_text != (_text_kind(layout) is not None):
        raise _refuse(node, layout)
    starts, stops = np.asarray(layout.starts.data), np.asarray(layout.stops.data)
    if starts.dtype == np.int64 and hasattr(layout, "offsets"):
        return lists_of(np.asarray(layout.offsets.data)), layout.content
    return Lists(starts.astype(np.int64), stops.astype(np.int64)), layout.content


def _repeat(node: Node, layout: Any) -> Any:
    """The elements of lists that all have the sizes of the dims."""
    count = len(layout)
    for size in node.shape:
        layout = _regular(node, layout, size)
    return _reorder(node, layout, count, np.array(stored_order(node), np.int64)) if node.axis else layout


def _regular(node: Node, layout: Any, size: int) -> Any:
    """The elements of lists of one size, one after the other."""
    count = len(layout)
    if layout.is_unknown and count == 0:
        return layout
    if layout.is_numpy and layout.purelist_depth > 1:
        layout = layout.to_RegularArray()
    if not layout.is_list:
        raise _refuse(node, layout)
    if not layout.is_regular:
        sizes = np.asarray(layout.stops.data) - np.asarray(layout.starts.data)
        if (sizes != size).any():
            raise InputError(f"expected lists of {size} elements in {node.type}", rule="dynd.length")
        layout = layout.to_ListOffsetArray64(True)
    elif layout.size != size:
        raise InputError(f"expected {size} elements, found {layout.size}, in {node.type}", rule="dynd.length")
    return layout.content[: count * size]


def _block(node: Node, layout: Any) -> NDArray[Any]:
    atom, count = node.block, len(layout)
    if isinstance(atom.type, ty.Void):
        return _void(node, layout)
    for size in node.shape:
        if layout.is_numpy and layout.purelist_depth > 1:
            break
        layout = _regular(node, layout, size)
        while layout.is_indexed or layout.is_option:
            layout = _all_present(layout, node) if layout.is_option else layout.project()
    shape = (count, *node.shape)
    if isinstance(atom.type, ty.FixedBytes) and layout.is_list and layout.is_regular and layout.size == atom.nbytes:
        return np.asarray(layout.content.data)[: len(layout) * atom.nbytes].reshape((*shape, atom.nbytes))
    if layout.is_unknown and count * math.prod(node.shape) == 0:
        return np.empty((*shape, *atom.tail), atom.base)
    if _text_kind(layout) is not None:
        return atoms_to_array(atom, layout.to_list()).reshape((*shape, *atom.tail))
    if not layout.is_numpy:
        raise _refuse(node, layout)
    values = np.asarray(layout.data)
    if values.dtype != atom.base or atom.tail:
        values = atoms_to_array(atom, values.reshape(-1))
    return values.reshape((*shape, *atom.tail))


def _void(node: Node, layout: Any) -> NDArray[Any]:
    """Values without bytes: missing ones only."""
    count = len(layout)
    for size in node.shape:
        layout = _regular(node, layout, size)
    present = layout.to_IndexedOptionArray64().project() if layout.is_option else layout
    if len(present) and not present.is_unknown:
        raise _refuse(node, layout)
    return np.empty((count, *node.shape, 0), np.uint8)


def from_tensor(tensor: Tensor) -> Any:
    """The awkward array of a tensor."""
    value = value_of(tensor)
    if value.plan.deep:
        raise UnsupportedError(
            "the value is nested too deep for awkward: use .tolist()", rule="dynd.awkward", tensor=tensor.name
        )
    needs = value.needs()
    layouts: dict[int, Any] = {}
    for node in value.plan.inside_out():
        children = [layouts.pop(child.id) for child in node.children]
        layouts[node.id] = _layout(value, node, children, needs[node.id])
    return ak.Array(layouts[0])[0]


def _layout(value: Value, node: Node, children: list[Any], count: int) -> Any:
    contents, index = ak.contents, ak.index
    if node.kind is Kind.BLOCK:
        return _block_layout(node, value.array(node)[:count])
    if node.kind is Kind.LIST:
        if isinstance(node.type, ty.Map):
            raise _unsupported(node.type, ".tolist() or .arrow()")
        lists = value.lists(node)
        starts, stops = (index.Index64(np.ascontiguousarray(column[:count])) for column in lists)
        if not node.is_text:
            return contents.ListArray(starts, stops, children[0])
        return _texts(starts, stops, children[0].data, bytestring=isinstance(node.type, ty.Bytes))
    if node.kind is Kind.OPTION:
        positions = value.index(node)
        if positions is None:
            missing = is_missing(node, value.array(node.child)[:count])
            return contents.ByteMaskedArray(index.Index8(missing.view(np.int8)), children[0], valid_when=False)
        return contents.IndexedOptionArray.simplified(index.Index64(positions[:count]), children[0])
    if node.kind is Kind.SEQUENCE:
        names = node.names if isinstance(node.type, ty.Struct) else None
        return contents.RecordArray([child[:count] for child in children], names, count)
    if node.kind is Kind.REPEAT:
        inner = children[0]
        if node.axis:
            inner = _reorder(node, inner, count, np.argsort(stored_order(node)))
        return _dims_layout(node.shape, inner, count)
    if node.kind is Kind.CHAR:
        return _char_layout(value.array(node)[:count])
    raise _unsupported(node.type)


def _dims_layout(shape: tuple[int, ...], layout: Any, count: int) -> Any:
    """`count` values of dims over the elements of a layout."""
    for i in reversed(range(len(shape))):
        length = count * math.prod(shape[:i])
        layout = ak.contents.RegularArray(layout, shape[i], zeros_length=length)
    return layout


def _reorder(node: Node, layout: Any, count: int, order: NDArray[np.int64]) -> Any:
    """The elements of `count` values of a REPEAT, with the elements of each value in the order given."""
    carry = (np.arange(count)[:, None] * node.size + order).reshape(-1)
    return layout._carry(ak.index.Index64(carry), False)  # awkward has no public function for this


def _block_layout(node: Node, values: NDArray[Any]) -> Any:
    atom = node.block
    elements = math.prod(values.shape[: values.ndim - len(atom.tail)])
    if isinstance(atom.type, ty.Void):
        missing = ak.index.Index64(np.full(elements, -1))
        return _dims_layout(node.shape, ak.contents.IndexedOptionArray(missing, ak.contents.EmptyArray()), len(values))
    if isinstance(atom.type, ty.FixedBytes | ty.FixedString):
        raw = np.ascontiguousarray(values).reshape(elements, atom.nbytes)
        return _dims_layout(node.shape, _fixed_layout(atom.type, raw), len(values))
    if node.temporal is not None:
        values = block_rows(node, values)
    if atom.tail or values.dtype.kind == "V" or values.dtype.isbuiltin == 2:  # float8_e5m2 has the kind "f"
        raise _unsupported(atom.type)
    plain = values if values.flags.c_contiguous and values.flags.aligned else np.array(values, order="C")
    return ak.contents.NumpyArray(plain)


def _fixed_layout(type: ty.FixedBytes | ty.FixedString, raw: NDArray[np.uint8]) -> Any:
    if isinstance(type, ty.FixedBytes):
        content = ak.contents.NumpyArray(raw.reshape(-1), parameters={"__array__": "byte"})
        return ak.contents.RegularArray(content, type.size, len(raw), parameters={"__array__": "bytestring"})
    if type.encoding not in ("utf8", "ascii"):
        raise _unsupported(type)
    starts = np.arange(len(raw)) * type.nbytes
    stops = starts + np.count_nonzero(raw, axis=1)
    return _texts(ak.index.Index64(starts), ak.index.Index64(stops), raw.reshape(-1))


def _texts(starts: Any, stops: Any, data: NDArray[np.uint8], *, bytestring: bool = False) -> Any:
    contents = ak.contents
    kind, element = ("bytestring", "byte") if bytestring else ("string", "char")
    content = contents.NumpyArray(data, parameters={"__array__": element})
    return contents.ListArray(starts, stops, content, parameters={"__array__": kind})


def _char_layout(codes: NDArray[np.uint32]) -> Any:
    sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    stops = np.cumsum(sizes)
    data = np.frombuffer("".join(map(chr, codes.tolist())).encode(), np.uint8)
    index = ak.index
    return _texts(index.Index64(stops - sizes), index.Index64(stops), data)


BRIDGE = Bridge(to_tensor, type_of)
