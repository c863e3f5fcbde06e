"""Any value to a Tensor: the one conversion that every verb uses.

Values are recognised in this order: a Tensor; a value of a library in the table of
bridges; a NumPy array; plain Python; and an object with `__array__`, `__dlpack__` or a
typed buffer. Dense arrays stay as they are, in any memory and byte order. Everything else
becomes columns of its type.

Masked elements of a masked array are missing values; without any it is a plain array.
Bytes are a value of type `bytes`, not an array of numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import has_masked, is_masked_array
from tensorglot.dynd.codec.check import first_fault
from tensorglot.dynd.coerce.infer import python_type
from tensorglot.dynd.coerce.numpy import from_numpy, numpy_type
from tensorglot.dynd.coerce.python import from_python
from tensorglot.dynd.match import check_holds, holds
from tensorglot.dynd.schema import Kind, Plan, plan_of
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.dynd.value import Value
from tensorglot.errors import InputError, TensorglotError, UnsupportedError
from tensorglot.limits import DEFAULT
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.tensor import Tensor, has_bad_bool
from tensorglot.model.types.algebra import (
    Array,
    Fixed,
    Map,
    Option,
    Pointer,
    Storage,
    Struct,
    Tuple,
    Type,
    Var,
    dense,
    dense_parts,
    symbolic,
)
from tensorglot.model.types.text import parse
from tensorglot.providers import provided

__all__ = ["as_tensor", "as_type", "coerce", "typeof"]

T = TypeVar("T")

_PLAIN = (str, bytes, bytearray, bool, int, float, complex, type(None), Mapping, Sequence, Type)
"""Plain Python: these are not asked for `__array__` and the other protocols."""


def coerce(value: Any, type: Type | None = None, name: str | None = None) -> Tensor:
    """Any value as a tensor of its own type, or of the one given, which must be able to hold it.

    A tensor keeps its name unless another is given; other values have none.
    """
    try:
        tensor = _coerce(value, type)
    except TensorglotError as error:
        error.tensor = error.tensor or name
        raise
    return tensor if name is None or tensor.name == name else replace(tensor, name=name)


def _coerce(value: Any, type: Type | None) -> Tensor:
    if isinstance(value, Tensor):
        return value if type is None or (type == value.type and not holds(type, type)) else _convert(value, type)
    # An array[T] holds the value as it is, whatever library it comes from.
    if type is not None and _is_boxed(plan := plan_of(type)):
        return as_tensor(from_python(value, plan, _in_box, _unfold))
    bridge = provided("bridges.find")(value)
    if bridge is not None:
        tensor: Tensor = _call_library(bridge.to_tensor, value, type)
        return tensor if type in (None, tensor.type) else _convert(tensor, type)
    value = _as_plain(value)
    if _is_block(value, type):
        if has_bad_bool(value):
            raise InputError("a bool array has a byte other than 0 and 1", rule="values.bool")
        return Tensor.of_array("", value, dtype_of(value.dtype))
    return as_tensor(_columns(value, plan_of(typeof(value) if type is None else type)))


def typeof(value: Any) -> Type:
    """The type of any value that `coerce` takes."""
    if isinstance(value, Tensor):
        return value.type
    bridge = provided("bridges.find")(value)
    if bridge is not None:
        if bridge.type_of is None:
            return coerce(value).type
        found: Type = _call_library(bridge.type_of, value)
        return found
    value = _as_plain(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return numpy_type(value)
    return python_type(value.tolist() if isinstance(value, np.ndarray) else value)


def as_type(given: Type | str) -> Type:
    """A type given as such or as text."""
    if not isinstance(given, Type | str):
        raise InputError(f"a type must be a Type or a str, not {type(given).__name__}", rule="dynd.type")
    return parse(given) if isinstance(given, str) else given


def _as_plain(value: Any) -> Any:
    """The value as an array or as plain Python."""
    if isinstance(value, np.ndarray | np.generic):
        return value if _is_masked(value) else np.asarray(value)
    if isinstance(value, _PLAIN) and not isinstance(value, memoryview | array):
        return value
    return _call_library(_by_protocol, value)


def _is_masked(value: NDArray[Any] | np.generic) -> bool:
    """Whether an element is masked. Records with masked fields are refused: each field has a mask of its own."""
    if not is_masked_array(value) or value.dtype.names is None:
        return has_masked(value)
    if np.ascontiguousarray(np.ma.getmaskarray(value)).view(np.bool_).any():
        raise UnsupportedError("masked fields of records are not supported: pass records as dicts", rule="dynd.numpy")
    return False


def _call_library(convert: Callable[..., T], value: Any, *arguments: Any) -> T:
    """Runs code of another library, which may raise anything for an object that is not an array."""
    try:
        return convert(value, *arguments)
    except (TensorglotError, OSError, MemoryError):
        raise
    except Exception as error:
        kind = type(value)
        raise InputError(
            f"{kind.__module__}.{kind.__name__} cannot become a tensor: {error}", rule="coerce.value"
        ) from error


def _by_protocol(value: Any) -> Any:
    if isinstance(value, memoryview | array):
        bytes_only = isinstance(value, memoryview) and value.format == "B" and value.ndim == 1
        return value if bytes_only else np.asarray(value)
    if hasattr(value, "__array__"):
        return np.asanyarray(value)
    if hasattr(value, "__dlpack__"):
        return provided("bridges.from_dlpack")(value)
    try:
        view = memoryview(value)
    except TypeError:
        return value
    return np.asarray(view)


def _is_block(value: Any, type: Type | None) -> bool:
    """Whether a value is, or is to be, a dense tensor without any conversion."""
    if not isinstance(value, np.ndarray) or is_masked_array(value):
        return False
    dtype = value.dtype
    if dtype.names is not None or dtype.kind not in "biufcV" or dtype.type is np.void:
        return False
    return type is None or type == dense(dtype_of(dtype), value.shape)


def _convert(tensor: Tensor, type: Type) -> Tensor:
    """A tensor as one of another type; an `array[T]` holds it, or a part of it, as it is."""
    plan = plan_of(type)
    value: Any
    if _is_boxed(plan):
        value = tensor
    elif dense_parts(tensor.type):
        value = tensor.numpy()
    elif any(isinstance(box, Array) and symbolic(box.element) for box in plan.boxes):
        value = _unfold(tensor)
    else:
        value = tensor.tolist()
    return as_tensor(_columns(value, plan))


def _columns(value: Any, plan: Plan) -> Value:
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject and (made := from_numpy(value, plan)) is not None:
            return made
        if plan.boxes and value.dtype.names is not None:
            value = coerce(value)
        elif not _keeps_elements(value, plan):
            value = value.tolist()
    return from_python(value, plan, _in_box, _unfold)


def _keeps_elements(array: NDArray[Any], plan: Plan) -> bool:
    """Whether the elements are stored in `array[T]`, which keeps their type; a Python float would be a float64."""
    return bool(plan.boxes) and array.dtype.kind in "biufcVmM"


def _unfold(tensor: Tensor) -> Any:
    """The rows or fields of a tensor, as tensors of their own types; a value that has none as in Python."""
    type = tensor.type
    while isinstance(type, Pointer | Storage):
        type = type.element
    if isinstance(type, Option):
        return _typed(tensor.tolist(), type)
    if isinstance(type, Struct):
        return {name: _typed(tensor[name], field) for name, field in type.fields}
    if isinstance(type, Tuple):
        return tuple(_typed(tensor[i], field) for i, field in enumerate(type.elements))
    if isinstance(type, Fixed | Var | Map):
        element = Tuple((type.key, type.item)) if isinstance(type, Map) else type.element
        return [_typed(row, element) for row in tensor]
    return tensor.tolist()


def _typed(value: Any, type: Type) -> Any:
    """A present value as a tensor of its type."""
    if value is None or isinstance(value, Tensor):
        return value
    return coerce(value, type.element if isinstance(type, Option) else type)


def _is_boxed(plan: Plan) -> bool:
    """Whether values of the type are an `array[T]`, or an optional one."""
    root = plan.root
    return isinstance((root.child if root.kind is Kind.OPTION else root).type, Array)


def as_tensor(value: Value) -> Tensor:
    """A tensor of the value, whose columns are checked first."""
    fault = first_fault(value, DEFAULT)
    if fault is not None:
        raise InputError(fault.message, rule=fault.rule)
    tensor = to_tensor(value)
    if len(tensor.shape) > DEFAULT.rank:
        raise InputError(f"{len(tensor.shape)} dimensions; readers accept {DEFAULT.rank}", rule="dynd.type.rank")
    return tensor


def _in_box(value: Any, pattern: Type) -> Value:
    """A value in an `array[T]`."""
    type = typeof(value) if isinstance(value, Tensor) or symbolic(pattern) else pattern
    check_holds(Array(pattern), type)
    return from_tensor(coerce(value, None if isinstance(value, Tensor) else type))
