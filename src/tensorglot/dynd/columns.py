"""The columns of a nested tensor, from its parts in a file or in memory.

A file is not trusted: a part may be absent, have another element type, be too short, or
refer to elements that do not exist. A value that passes the checks can be serialized, and
its serialized size is bounded by the stored size (`_MOST_PER_STORED`). Columns without
bytes (of `void`, of dims of 0) are not in the file; they are made with the length needed.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.boxes import Boxes
from tensorglot.dynd.codec.check import first_fault, repetitions
from tensorglot.dynd.codec.decode import decode_all
from tensorglot.dynd.codec.encode import measure
from tensorglot.dynd.match import check_holds
from tensorglot.dynd.schema import Kind, Node, check_shape, plan_of, void_error
from tensorglot.dynd.value import Column, Lists, Positions, Value, child_need, lists_of
from tensorglot.errors import FormatError, InputError, LimitError
from tensorglot.limits import DEFAULT
from tensorglot.model.payload import Encoded, Memory
from tensorglot.model.tensor import Part, Tensor
from tensorglot.model.types.algebra import ANY, Array

__all__ = ["from_parts"]

_MOST_NBYTES, _MOST_PER_STORED = 64 << 20, 256
"""Bound on the size of lists that share elements, once each is written out."""


def from_parts(tensor: Tensor) -> Value:
    """The value of a nested tensor, checked unless `to_tensor` made all of its parts."""
    plan = plan_of(tensor.type)
    columns: list[Column] = [None] * len(plan.nodes)
    needs = [1] * len(plan.nodes)
    for node in plan.nodes:
        # Before the column is made: its length comes from the file.
        if needs[node.id] * node.charge > DEFAULT.void_count:
            raise void_error(DEFAULT)
        column = columns[node.id] = _column(tensor, node, needs[node.id])
        for child in node.children:
            needs[child.id] = child_need(node, column, needs[node.id])
    value = Value(plan, tuple(columns))
    if not all(_is_ours(part) for part in tensor.parts.values()):
        _check(value, needs, tensor)
    return value


def _is_ours(part: Part) -> bool:
    """Whether a part was made by `to_tensor`, and so needs no check."""
    payload = part.payload
    return isinstance(payload, Memory) or (isinstance(payload, Encoded) and isinstance(payload.codec, Boxes))


def _column(tensor: Tensor, node: Node, need: int) -> Column:
    if node.kind is Kind.BLOCK:
        return _block(tensor, node, need)
    if node.kind is Kind.CHAR:
        return _integers(tensor, node, "data").astype(np.uint32, copy=False)
    if node.kind is Kind.LIST:
        if node.column("offsets") in tensor.parts:
            return lists_of(_positions(tensor, node, "offsets"))
        return Lists(_positions(tensor, node, "starts"), _positions(tensor, node, "stops"))
    if node.kind is Kind.OPTION and (node.atom is None or node.column("index") in tensor.parts):
        return _positions(tensor, node, "index")
    return _boxes(tensor, node) if node.kind is Kind.BOX else None


def _part(tensor: Tensor, node: Node, role: str) -> NDArray[Any]:
    part = tensor.parts.get(node.column(role))
    if part is None:
        raise FormatError(f"part {node.column(role)} of {tensor.type} is missing", rule="dynd.parts")
    return part.array(tensor.name)


def _integers(tensor: Tensor, node: Node, role: str) -> NDArray[Any]:
    array = _part(tensor, node, role)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise FormatError(f"part {node.column(role)} must be a one-dimensional array of integers", rule="dynd.parts")
    return array


def _positions(tensor: Tensor, node: Node, role: str) -> Positions:
    array = _integers(tensor, node, role)
    if array.dtype == np.uint64 and array.max(initial=0) >= 1 << 63:
        raise FormatError(f"part {node.column(role)} has numbers of 2^63 or more", rule="dynd.range")
    return array.astype(np.int64, copy=False)


def _block(tensor: Tensor, node: Node, need: int) -> NDArray[Any]:
    atom = node.block
    expected = (*node.shape, *atom.tail)
    size = math.prod(expected)
    if size == 0:
        check_shape((0, need, *expected), atom.base.itemsize)
        return np.empty((need, *expected), atom.base)
    array = _part(tensor, node, "data")
    # A container may store any part as a flat array. An incomplete last value is dropped here: if it is
    # needed, `_check` finds the column too short.
    if array.shape[1:] != expected and array.ndim == 1:
        array = array[: len(array) // size * size].reshape((-1, *expected))
    if array.itemsize != atom.base.itemsize or array.shape[1:] != expected:
        found = f"{array.dtype}{list(array.shape)}"
        raise FormatError(f"{node.type} cannot have a data part of {found}", rule="dynd.parts")
    return array.view(atom.base)


def _boxes(tensor: Tensor, node: Node) -> list[Value]:
    held = tensor.parts.get(node.column("data"))
    if held is not None and isinstance(held.payload, Encoded) and isinstance(held.payload.codec, Boxes):
        return held.payload.codec.values
    offsets, data = _positions(tensor, node, "offsets"), np.ascontiguousarray(_part(tensor, node, "data"))
    raw = data.reshape(-1).view(np.uint8)
    if len(offsets) == 0 or offsets[0] < 0 or offsets[-1] > len(raw) or (np.diff(offsets) < 0).any():
        raise FormatError(f"part {node.column('offsets')} is out of bounds", rule="dynd.range")
    packed = [decode_all(raw[start:stop], Array(ANY)) for start, stop in pairwise(offsets.tolist())]
    boxes = [value.boxes(value.plan.root)[0] for value in packed]
    for box in boxes:
        try:
            check_holds(node.type, box.plan.type)
        except InputError as error:
            raise FormatError(error.message, rule=error.rule) from None
    return boxes


def _check(value: Value, needs: list[int], tensor: Tensor) -> None:
    """Refuses columns that refer to elements that do not exist, or hold invalid values."""
    counts = value.counts()
    for node in value.plan.nodes:
        # The parents need the first `needs` values of a node; its columns have `counts`.
        inside = needs[node.id] <= counts[node.id]
        if node.kind is Kind.LIST:
            starts, stops = value.lists(node)
            inside = (
                inside and len(starts) == len(stops) and bool((starts <= stops).all() and starts.min(initial=0) >= 0)
            )
        if not inside:
            raise FormatError(f"{node.path or 'the root'} refers to elements that do not exist", rule="dynd.range")
    if _may_share(value, tensor):
        _check_size(value, max(_MOST_NBYTES, _MOST_PER_STORED * tensor.nbytes))
    fault = first_fault(value, DEFAULT)
    if fault is not None:
        raise fault.error()


def _may_share(value: Value, tensor: Tensor) -> bool:
    """Whether two values may share an element, which only starts and stops or an index allow.

    Lists given by offsets never overlap, once `_check` has seen that the offsets do not decrease.
    """
    return any(
        value.index(node) is not None if node.kind is Kind.OPTION else node.column("starts") in tensor.parts
        for node in value.plan.nodes
    )


def _check_size(value: Value, most: int) -> None:
    """Refuses lists that share elements and, each written out, would be more bytes and Python objects than `most`."""
    total = 0.0
    for node, times in repetitions(value):
        # The cost of one value, in bytes and Python objects. A list has a length of at most 9 bytes.
        if node.kind is Kind.BOX:
            costs: NDArray[Any] | int = np.array([measure(box) for box in value.boxes(node)[: len(times)]])
        elif node.kind is Kind.LIST:
            starts, stops = value.lists(node)
            costs = 9 + (stops - starts)[: len(times)]
        elif node.kind is Kind.REPEAT:
            costs = 1 + node.size
        else:
            costs = node.least + node.objects if node.kind is Kind.BLOCK else 4
        total += float((times.astype(np.float64) * costs).sum())  # integers might overflow
        if total > most:  # before the next node, whose counts would be as large
            raise LimitError("lists share elements, and written out they are too large", rule="dynd.shared")
