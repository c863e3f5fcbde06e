"""The numbers of a value of any library as one array, none of them missing.

A missing value has no place in a vector. Libraries turn it into NaN, or into whatever
lies behind a mask, on the way to NumPy; here it is refused, and the error says how to
fill it. What is no dense array of numbers comes out as a list, whose rows may be
anything that is a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.coerce.value import as_tensor
from tensorglot.errors import InputError
from tensorglot.model.tensor import Tensor

__all__ = ["array_of_list", "first_index", "to_array"]

_FILL = "fill it first, with .filled(…) in NumPy, .fill_null(…) in Arrow and polars, .fillna(…) in pandas"


def to_array(value: Any) -> NDArray[Any] | list[Any]:
    """The array of a value, or the list that it is or holds."""
    if isinstance(value, (list, tuple)):
        return list(value)
    library = type(value).__module__.partition(".")[0]
    if library == "polars":
        value = value.to_arrow()
    if isinstance(value, Tensor) or library in ("awkward", "polars", "pyarrow"):
        tensor = as_tensor(value)
        return tensor.numpy() if tensor.dtype is not None else list(tensor.tolist())
    if isinstance(value, np.ma.MaskedArray):
        _refuse_missing(np.ma.getmaskarray(value), "masked")
    elif library == "pandas" and _is_nullable(value):
        _refuse_missing(np.asarray(value.isna()), "missing")
    elif hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    array = _from_buffer(value)
    return list(array.tolist()) if array.dtype.hasobject and array.ndim else array


def array_of_list(values: Sequence[Any]) -> NDArray[Any]:
    """The array of numbers, or of lists of them."""
    array = _from_buffer(values)
    if array.dtype.hasobject:
        _refuse_missing(_where(array, lambda item: item is None or type(item).__name__ == "NAType"), "missing")
    elif array.dtype.kind == "f" and np.isnan(array).any():  # NumPy makes NaN of a masked element in a list
        _refuse_missing(_where(np.array(values, object), lambda item: item is np.ma.masked), "masked")
    return array


def first_index(where: NDArray[np.bool_]) -> int | tuple[int, ...]:
    """The index of the first that is true, as a person writes it."""
    at = tuple(np.argwhere(where)[0].tolist())
    return at[0] if len(at) == 1 else at


def _is_nullable(value: Any) -> bool:
    """Whether pandas keeps missing values beside the values: NumPy would see NaN."""
    dtypes = value.dtypes if hasattr(value, "dtypes") else value.dtype
    return not all(isinstance(dtype, np.dtype) for dtype in np.atleast_1d(dtypes))


def _from_buffer(value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, NotImplementedError, BufferError):
        pass
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError, UserWarning) as error:
        raise InputError(f"not an array of numbers: {error}", rule="bson.vector.kind") from error


def _where(array: NDArray[Any], rule: Callable[[Any], bool]) -> NDArray[np.bool_]:
    return np.array([rule(item) for item in array.flat], np.bool_).reshape(array.shape)


def _refuse_missing(missing: NDArray[np.bool_], word: str) -> None:
    if missing.any():
        raise InputError(f"element {first_index(missing)} is {word}: {_FILL}", rule="bson.vector.missing")
