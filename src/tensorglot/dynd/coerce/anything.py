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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.codec.check import first_fault
from tensorglot.dynd.coerce.infer import python_type
from tensorglot.dynd.coerce.numpy import from_numpy, numpy_type
from tensorglot.dynd.coerce.python import from_python
from tensorglot.dynd.match import check_holds, holds
from tensorglot.dynd.schema import Kind, Plan, plan_of
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.dynd.value import Value
from tensorglot.errors import InputError, TensorglotError
from tensorglot.limits import DEFAULT
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.tensor import Tensor, has_bad_bool
from tensorglot.model.types.algebra import Array, dense, dense_parts, symbolic
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import parse
from tensorglot.providers import provided

__all__ = ["as_type", "checked", "coerce", "typeof"]

_PLAIN = (str, bytes, bytearray, bool, int, float, complex, type(None), Mapping, Sequence, Type)
"""Python's own classes, which need no protocol."""


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
        return value if type is None or (type == value.type and not holds(type, type)) else _converted(value, type)
    if type is not None and _is_boxed(plan := plan_of(type)):
        return to_tensor(checked(from_python(value, plan, _in_box)))
    bridge = provided("bridges.find")(value)
    if bridge is not None:
        tensor: Tensor = bridge.to_tensor(value, type)
        return tensor if type in (None, tensor.type) else _converted(tensor, type)
    value = _own(value)
    if _is_block(value, type):
        return _block(value)
    plan = plan_of(typeof(value) if type is None else type)
    return to_tensor(checked(_columns(value, plan)))


def typeof(value: Any) -> Type:
    """The type of any value that `coerce` takes."""
    if isinstance(value, Tensor):
        return value.type
    bridge = provided("bridges.find")(value)
    if bridge is not None:
        found: Type = bridge.type_of(value) if bridge.type_of is not None else bridge.to_tensor(value, None).type
        return found
    value = _own(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return numpy_type(value)
    return python_type(value.tolist() if isinstance(value, np.ndarray) else value)


def as_type(given: Type | str) -> Type:
    """A type given as such or as text."""
    if not isinstance(given, Type | str):
        raise InputError(f"a type must be a Type or a str, not {type(given).__name__}", rule="dynd.type")
    return parse(given) if isinstance(given, str) else given


def _own(value: Any) -> Any:
    """The value as an array or as plain Python."""
    if isinstance(value, np.ndarray | np.generic):
        return value if np.ma.is_masked(value) else np.asarray(value)
    if isinstance(value, _PLAIN) and not isinstance(value, memoryview | array):
        return value
    try:
        return _by_protocol(value)
    except TensorglotError:
        raise
    except Exception as error:  # a foreign __array__ may raise anything
        raise InputError(f"{type(value).__name__} cannot become an array: {error}", rule="coerce.value") from error


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
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        return False
    dtype = value.dtype
    if dtype.names is not None or dtype.kind not in "biufcV" or dtype.type is np.void:
        return False
    return type is None or type == dense(dtype_of(dtype), value.shape)


def _block(array: NDArray[Any]) -> Tensor:
    if has_bad_bool(array):
        raise InputError("a bool array has a byte other than 0 and 1", rule="values.bool")
    return Tensor.of_array("", array, dtype_of(array.dtype))


def _converted(tensor: Tensor, type: Type) -> Tensor:
    """A tensor as one of another type; into an `array[T]` it goes as it is."""
    plan = plan_of(type)
    value: Any = tensor
    if not _is_boxed(plan):
        value = tensor.numpy() if dense_parts(tensor.type) else tensor.tolist()
    return to_tensor(checked(_columns(value, plan)))


def _columns(value: Any, plan: Plan) -> Value:
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject and (made := from_numpy(value, plan)) is not None:
            return made
        if not _keeps_elements(value, plan):
            value = value.tolist()
    return from_python(value, plan, _in_box)


def _keeps_elements(array: NDArray[Any], plan: Plan) -> bool:
    """Whether the elements go into `array[T]`, which keeps their type: Python's own float would be a float64."""
    if array.dtype.kind not in "biufcVmM" or array.dtype.names is not None or np.ma.is_masked(array):
        return False
    return any(node.kind is Kind.BOX for node in plan.nodes)


def checked(value: Value) -> Value:
    """The value, if its columns are valid."""
    fault = first_fault(value, DEFAULT)
    if fault is not None:
        raise InputError(fault.message, rule=fault.rule)
    return value


def _is_boxed(plan: Plan) -> bool:
    """Whether values of the type are an `array[T]`, perhaps a missing one."""
    root = plan.root
    return root.kind is Kind.BOX or (root.kind is Kind.OPTION and root.child.kind is Kind.BOX)


def _in_box(value: Any, pattern: Type) -> Value:
    """A value in an `array[T]`."""
    type = typeof(value) if isinstance(value, Tensor) or symbolic(pattern) else pattern
    check_holds(Array(pattern), type)
    return from_tensor(coerce(value, None if isinstance(value, Tensor) else type))
