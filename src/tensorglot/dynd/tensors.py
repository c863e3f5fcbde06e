"""Values as tensors, tensors as values, and tensors as canonical bytes.

A value of fixed dims over an element type of the table is a dense tensor. Every other
value is a tensor of layout "nested": its parts are the columns of its plan, named by their
paths. The values in an `array[T]` are one part of bytes, each with its type first.

Canonical bytes are made in pieces, in bounded memory. Memory and mapped files that are
already in serialized form are passed on without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.boxes import boxes_payload
from tensorglot.dynd.codec.check import is_valid
from tensorglot.dynd.codec.decode import decode_all
from tensorglot.dynd.codec.encode import encode, pieces
from tensorglot.dynd.codec.packing import address
from tensorglot.dynd.columns import from_parts
from tensorglot.dynd.export.dense import densify
from tensorglot.dynd.link_columns import connect
from tensorglot.dynd.schema import Kind, Node, Plan, plan_of
from tensorglot.dynd.value import Column, Lists, Value
from tensorglot.errors import FormatError, add_tensor_to_errors
from tensorglot.model.dtypes import BY_NAME, DType, pack
from tensorglot.model.payload import LinkedSource, Memory, Span, as_bytes, buffers
from tensorglot.model.subbyte import unpack_pieces
from tensorglot.model.tensor import NESTED, NUMPY_RANK, TYPE_ATTRIBUTE, Part, Tensor, check_bool
from tensorglot.model.types.algebra import Type, dense_parts

__all__ = ["SERIALIZED", "check_value", "from_tensor", "tensor_nbytes", "tensor_pieces", "to_tensor"]

SERIALIZED = "serialized"
"""The only part of a nested tensor that is stored as its canonical bytes, has no columns, as `()`, or is too deep to
name them."""

_ONCE_NBYTES = 64 << 10
_POSITIONS, _BYTES, _CODES = BY_NAME["int64"], BY_NAME["uint8"], BY_NAME["uint32"]


def to_tensor(value: Value, name: str = "") -> Tensor:
    """A tensor of the value, which shares its memory."""
    block = dense_parts(value.plan.type)
    if block is not None:
        return _dense(value, *block, name)
    parts: dict[str, Part] = {}
    for node in () if value.plan.deep else value.plan.nodes:
        for role, row, array in _columns(value, node):
            parts[node.column(role)] = Part(row, array.shape, Memory(array))
        if node.kind is Kind.BOX:
            offsets, boxes = boxes_payload(value.boxes(node))
            parts[node.column("offsets")] = Part(_POSITIONS, offsets.shape, Memory(offsets))
            parts[node.column("data")] = Part(_BYTES, (boxes.nbytes,), boxes)
    if not parts:
        data = encode(value)
        parts[SERIALIZED] = Part(_BYTES, data.shape, Memory(data))
    return Tensor(name, parts, NESTED, value.plan.type, {TYPE_ATTRIBUTE: str(value.plan.type)})


def _dense(value: Value, row: DType, shape: tuple[int, ...], name: str) -> Tensor:
    # A dense value has REPEAT nodes, if it has many dims, above one BLOCK.
    leaf = next(value.array(node) for node in value.plan.nodes if node.kind is Kind.BLOCK)
    if row.numpy is None or len(shape) > NUMPY_RANK:
        flat = leaf.reshape(-1)
        return Tensor(name, {"data": Part(row, shape, Memory(pack(flat, row) if row.packed else flat))})
    return Tensor.of_array(name, leaf.reshape(shape).view(row.numpy), row)


def _columns(value: Value, node: Node) -> Iterator[tuple[str, DType, NDArray[Any]]]:
    if node.kind is Kind.BLOCK and node.atom is not None:
        array = value.array(node)
        # An element of fewer than 8 bits, or an optional bool (limit 3), takes a byte of more values than its type has.
        spare = node.atom.row.packed or node.atom.limit > 2
        yield ("data", _BYTES, array.view(np.uint8)) if spare else ("data", node.atom.row, array)
    elif node.kind is Kind.CHAR:
        yield "data", _CODES, value.array(node)
    elif node.kind is Kind.LIST:
        lists = value.lists(node)
        offsets = _as_offsets(lists)
        if offsets is None:
            yield "starts", _POSITIONS, lists.starts
            yield "stops", _POSITIONS, lists.stops
        else:
            yield "offsets", _POSITIONS, offsets
    elif node.kind is Kind.OPTION and (index := value.index(node)) is not None:
        yield "index", _POSITIONS, index


def _as_offsets(lists: Lists) -> NDArray[np.int64] | None:
    """The starts and stops of lists as one array of offsets, a view if possible; None if there are gaps."""
    starts, stops = lists
    plain = starts.strides == stops.strides == (8,) and len(starts) == len(stops)
    # Both are views of one array of offsets, as `lists_of` makes them: that array is used again.
    if plain and len(starts) and address(stops) - address(starts) == starts.itemsize:
        return np.lib.stride_tricks.as_strided(starts, (len(starts) + 1,))
    if len(starts) == 0 or np.array_equal(starts[1:], stops[:-1]):
        return np.append(starts, stops[-1:]) if len(starts) else np.zeros(1, np.int64)
    return None


def from_tensor(tensor: Tensor) -> Value:
    """The value of a tensor in memory or in a file."""
    if tensor.layout not in ("dense", NESTED):
        tensor = densify(tensor)
    plan = plan_of(tensor.type)
    if tensor.layout == "dense" and SERIALIZED not in tensor.parts:
        return _dense_value(tensor, plan)
    with add_tensor_to_errors(tensor.name):
        if SERIALIZED not in tensor.parts:
            return from_parts(tensor)
        part = tensor.parts[SERIALIZED]
        value = _decode(tensor, _serialized(part))
        source = part.payload.source if isinstance(part.payload, Span) else None
        return connect(value, {}, source.blocks) if isinstance(source, LinkedSource) else value


def _serialized(part: Part) -> memoryview:
    shared = part.payload.view()
    return as_bytes(part.payload.read(0, part.nbytes) if shared is None else shared)


def _decode(tensor: Tensor, data: memoryview, decode: Callable[[memoryview, Type], Value] = decode_all) -> Value:
    try:
        return decode(data, tensor.type)
    except FormatError as error:
        begin = tensor.parts[SERIALIZED].offset
        if error.offset is not None and begin is not None:
            error.offset += begin
        raise


def _decode_once(data: memoryview, type: Type) -> Value:
    """The value of small bytes, which many names of a file may share."""
    return _decode_bytes(bytes(data), type)


_decode_bytes = lru_cache(maxsize=8)(decode_all)


def _dense_value(tensor: Tensor, plan: Plan) -> Value:
    columns: list[Column] = [None] * len(plan.nodes)
    node = next(node for node in plan.nodes if node.kind is Kind.BLOCK)
    part = tensor.parts["data"]
    if part.dtype is None or part.dtype.numpy is None:
        array: NDArray[Any] = np.frombuffer(part.payload.read(0, part.nbytes), np.uint8)
    else:
        # Flat, since NumPy's arrays have 64 dimensions at most.
        array = part._replace(shape=(math.prod(part.shape),)).array(tensor.name)
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    count = math.prod(size for parent in plan.nodes[: node.id] for size in parent.shape)
    columns[node.id] = array.reshape((count, *node.shape, *node.block.tail))
    return Value(plan, tuple(columns))


def check_value(tensor: Tensor) -> None:
    """Raises the error of a value that is not valid."""
    if SERIALIZED in tensor.parts:
        _valid_bytes(tensor)
    else:
        from_tensor(tensor)


def _valid_bytes(tensor: Tensor) -> memoryview:
    """The stored canonical bytes of a tensor: what would be written again, if it is valid."""
    with add_tensor_to_errors(tensor.name):
        data = _serialized(tensor.parts[SERIALIZED])
        if not is_valid(plan_of(tensor.type), data):
            _decode(tensor, data, _decode_once if len(data) <= _ONCE_NBYTES else decode_all)
    return data


def tensor_pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The canonical bytes of any tensor; later pieces do not overwrite earlier ones."""
    if SERIALIZED in tensor.parts:
        yield _valid_bytes(tensor)
        return
    if tensor.layout == NESTED:
        yield from (array.data for array in pieces(from_tensor(tensor)))
        return
    if tensor.layout != "dense":
        tensor = densify(tensor)
    part = tensor.parts["data"]
    if part.dtype is not None and part.dtype.packed:
        tensor.verify()
        yield from map(as_bytes, unpack_pieces(part.payload, part.dtype, math.prod(part.shape)))
    elif part.big_endian:
        yield from map(as_bytes, part.swapped_chunks())
    else:
        for piece in _plain_pieces(part):
            if part.dtype is not None and part.dtype.name == "bool":
                check_bool(np.frombuffer(piece, np.bool_), tensor.name, part.offset)
            yield piece


def _plain_pieces(part: Part) -> Iterator[memoryview]:
    for chunk in part.payload.chunks():
        shared = chunk.view() if isinstance(chunk, Span) else None
        yield from map(as_bytes, buffers([chunk] if shared is None else [shared]))


def tensor_nbytes(tensor: Tensor) -> int:
    """The number of canonical bytes of a dense tensor."""
    part = tensor.parts["data"]
    return math.prod(part.shape) if part.dtype is not None and part.dtype.packed else part.nbytes
