"""The numbers of a value of any library as one array, none of them missing.

What a value is decides `coerce`, as for every verb. A missing value has no place in a
vector: it is refused, and the error says how to fill it. What is no dense array of
numbers comes out as a list, whose rows may be anything that is a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError, TensorglotError

__all__ = ["array_of_list", "first_index", "to_array"]

_FILL = "fill it first, with .filled(…) in NumPy, .fill_null(…) in Arrow and polars, .fillna(…) in pandas"


def to_array(value: Any) -> NDArray[Any] | list[Any]:
    """The array of a value, or the list that it is or holds."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)) or (isinstance(value, memoryview) and value.format in ("B", "c")):
        return np.frombuffer(value, np.uint8)
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        return list(value.tolist())
    try:
        tensor = coerce(value)
    except TensorglotError as error:
        raise InputError(f"not an array of numbers: {error.message}", rule="bson.vector.kind") from error
    if tensor.dtype is not None:
        return tensor.numpy()
    plain = tensor.tolist()
    if not isinstance(plain, list):
        return [plain]
    return [
        list(row.values()) if isinstance(row, dict) else row for row in plain
    ]  # a table is the matrix of its columns


def array_of_list(values: Sequence[Any]) -> NDArray[Any]:
    """The array of numbers, or of lists of them."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError, UserWarning) as error:
        raise InputError(f"not an array of numbers: {error}", rule="bson.vector.kind") from error
    if array.dtype.hasobject:
        _refuse_missing(_where(array, lambda item: item is None or type(item).__name__ == "NAType"), "missing")
    elif array.dtype.kind == "f" and np.isnan(array).any():  # NumPy makes NaN of a masked element in a list
        _refuse_missing(_where(np.array(values, object), lambda item: item is np.ma.masked), "masked")
    return array


def first_index(where: NDArray[np.bool_]) -> int | tuple[int, ...]:
    """The index of the first that is true, as a person writes it."""
    at = tuple(np.argwhere(where)[0].tolist())
    return at[0] if len(at) == 1 else at


def _where(array: NDArray[Any], rule: Callable[[Any], bool]) -> NDArray[np.bool_]:
    return np.array([rule(item) for item in array.flat], np.bool_).reshape(array.shape)


def _refuse_missing(missing: NDArray[np.bool_], word: str) -> None:
    if missing.any():
        raise InputError(f"element {first_index(missing)} is {word}: {_FILL}", rule="bson.vector.missing")
