"""The door: anything that has a type becomes a Tensor, and a Tensor bytes.

Arrays that are blocks stay as they are, of any order and byte order, and are made
plain piece by piece when they are written. Everything else becomes columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.check import first_fault
from tensorglot.dynd.codec.encode import pieces, type_header
from tensorglot.dynd.coerce.infer import python_type
from tensorglot.dynd.coerce.numpy import from_numpy, numpy_type
from tensorglot.dynd.coerce.python import from_python
from tensorglot.dynd.export.dense import densified
from tensorglot.dynd.match import matches
from tensorglot.dynd.schema import Kind, Node, plan_of
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.dynd.value import Value
from tensorglot.errors import InputError
from tensorglot.limits import DEFAULT
from tensorglot.model.dtypes import DType, dtype_of, unpack
from tensorglot.model.payload import PIECE_NBYTES, Span, as_bytes
from tensorglot.model.tensor import NESTED, Part, Tensor, check_bool
from tensorglot.model.types.algebra import Array, dense, dense_parts, symbolic
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import parse

__all__ = ["as_tensor", "as_type", "as_value", "is_block", "tensor_nbytes", "tensor_pieces", "typeof", "value_pieces"]


def as_type(type: Type | str) -> Type:
    return parse(type) if isinstance(type, str) else type


def _bridge(value: Any) -> Any | None:
    """The bridge of the library that a value comes from."""
    library = type(value).__module__.partition(".")[0]
    return import_module(f"tensorglot.bridges.{_BRIDGES[library]}") if library in _BRIDGES else None


_BRIDGES = {"awkward": "awkward", "pyarrow": "arrow"}


def typeof(value: Any) -> Type:
    """The type of any value: of a Tensor, of an array of NumPy, awkward or Arrow, or of plain Python."""
    if isinstance(value, Tensor):
        return value.type
    bridge = _bridge(value)
    if bridge is not None:
        return bridge.type_of(value)  # type: ignore[no-any-return]
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return numpy_type(np.asanyarray(value))
    return python_type(value.tolist() if isinstance(value, np.ndarray) else value)


def as_value(value: Any, type: Type | None = None) -> Value:
    """The columns of any value. What they may not be is refused here."""
    made = _made(value, typeof(value) if type is None else type)
    fault = first_fault(made, DEFAULT)
    if fault is not None:
        raise InputError(fault.message, rule=fault.rule)
    return made


def _made(value: Any, type: Type) -> Value:
    plan = plan_of(type)
    bridge = _bridge(value)
    if isinstance(value, Tensor):
        if value.type == type:
            return from_tensor(value)
        if not _boxes(plan.root):
            value = value.numpy() if dense_parts(value.type) else value.tolist()
    elif bridge is not None:
        return bridge.to_value(value, plan)  # type: ignore[no-any-return]
    if isinstance(value, np.ndarray | np.generic):
        if not value.dtype.hasobject and (made := from_numpy(np.asanyarray(value), plan)) is not None:
            return made
        value = value.tolist()
    return from_python(value, plan, _boxed)


def _boxes(root: Node) -> bool:
    """Whether values of the type are an `array[T]`, perhaps a missing one."""
    return root.kind is Kind.BOX or (root.kind is Kind.OPTION and root.child.kind is Kind.BOX)


def _boxed(value: Any, pattern: Type) -> Value:
    """A value in an `array[T]`."""
    type = typeof(value) if isinstance(value, Tensor) or symbolic(pattern) else pattern
    if not matches(pattern, type):
        raise InputError(f"a value of type {type} in array[{pattern}]", rule="dynd.array.type")
    return as_value(value, type)


def as_tensor(value: Any, type: Type | None = None) -> Tensor:
    """Any value as a tensor in memory, or the tensor that it is."""
    if isinstance(value, Tensor) and type in (None, value.type):
        return value
    if is_block(value, type):
        array = np.asarray(value)
        check_bool(array, None, None)
        return Tensor.of_array("", array, dtype_of(array.dtype))
    return to_tensor(as_value(value, type))


def is_block(value: Any, type: Type | None) -> bool:
    """Whether a value is, or is to be, a dense tensor without any conversion."""
    if isinstance(value, Tensor):
        return value.layout == "dense" and type in (None, value.type)
    if not isinstance(value, np.ndarray | np.generic) or isinstance(value, np.ma.MaskedArray):
        return False
    dtype = value.dtype
    if dtype.names is not None or dtype.kind not in "biufcV" or dtype.type is np.void:
        return False
    return type is None or type == dense(dtype_of(dtype), value.shape)


def value_pieces(value: Any, type: Type | None) -> Iterator[memoryview]:
    """The canonical bytes of any value, in bounded memory. A piece stays as it is."""
    if isinstance(type, Array) and not (isinstance(value, Tensor) and value.type == type):
        inner = as_tensor(value)
        if not matches(type.element, inner.type):
            raise InputError(f"a value of type {inner.type} in {type}", rule="dynd.array.type")
        yield memoryview(type_header(inner.type))
        yield from tensor_pieces(inner)
    elif is_block(value, type):
        yield from tensor_pieces(as_tensor(value, type))
    else:
        yield from _views(pieces(as_value(value, type)))


def _views(arrays: Iterator[NDArray[np.uint8]]) -> Iterator[memoryview]:
    return (array.data for array in arrays)


def tensor_pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The canonical bytes of a tensor, in bounded memory. A piece stays as it is."""
    if tensor.layout == NESTED:
        yield from _views(pieces(from_tensor(tensor)))
        return
    if tensor.layout != "dense":
        tensor = densified(tensor)
    part = tensor.parts["data"]
    if part.dtype is not None and part.dtype.packed:
        tensor.verify()
        yield from _unpacked_pieces(part, part.dtype)
    elif part.big_endian:
        yield from map(as_bytes, part.swapped_chunks())
    else:
        for piece in _plain_pieces(part):
            if part.dtype is not None and part.dtype.name == "bool":
                check_bool(np.frombuffer(piece, np.bool_), tensor.name, part.offset)
            yield piece


def _plain_pieces(part: Part) -> Iterator[memoryview]:
    for chunk in part.payload.chunks():
        shared = chunk.view() if isinstance(chunk, Span) else as_bytes(chunk)
        if shared is not None:
            yield shared
        elif isinstance(chunk, Span):
            for at in range(0, chunk.nbytes, PIECE_NBYTES):
                yield chunk.read(at, min(PIECE_NBYTES, chunk.nbytes - at))


def _unpacked_pieces(part: Part, row: DType) -> Iterator[memoryview]:
    count = math.prod(part.shape)
    for at in range(0, count, PIECE_NBYTES):
        here = min(PIECE_NBYTES, count - at)
        packed = part.payload.read(at * row.bits // 8, row.nbytes(here))
        yield as_bytes(unpack(np.frombuffer(packed, np.uint8), here, row))


def tensor_nbytes(tensor: Tensor) -> int:
    """The number of canonical bytes of a dense tensor."""
    part = tensor.parts["data"]
    return math.prod(part.shape) if part.dtype is not None and part.dtype.packed else part.nbytes
