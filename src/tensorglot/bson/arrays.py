"""Converts a value of any library to a NumPy array without missing elements.

`dynd.coerce` recognises the value, as for every other function. A vector cannot hold a
missing element (null, NA, masked): it is refused, and the error says how to fill it. A
value that is not a dense array becomes a list, whose rows may be vectors of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError, TensorglotError

__all__ = ["array_of_list", "first_index", "is_raw_bytes", "to_array"]

_FILL = "fill it first, with .filled(…) in NumPy, .fill_null(…) in Arrow and polars, .fillna(…) in pandas"


def is_raw_bytes(value: object) -> bool:
    """Whether a value is bytes or a view of bytes, not of typed elements."""
    if isinstance(value, memoryview):
        try:
            return value.format in ("B", "c")
        except ValueError as error:
            raise InputError(f"not an array of numbers: {error}", rule="bson.vector.kind") from error
    return isinstance(value, (bytes, bytearray))


def to_array(value: Any) -> NDArray[Any] | list[Any]:
    """Returns the value as an array if it is dense, else as a list."""
    if type(value) is np.ndarray and value.dtype.kind in "iuf":
        return value  # `coerce` would return the same: this halves the time of `encode` for a short vector
    if isinstance(value, (list, tuple)):
        return list(value)
    if is_raw_bytes(value):
        return np.frombuffer(bytes(value) if isinstance(value, memoryview) else value, np.uint8)
    if getattr(getattr(value, "dtype", None), "hasobject", False) is True:
        plain = value.tolist()
        return plain if isinstance(plain, list) else [plain]
    try:
        tensor = coerce(value)
    except TensorglotError as error:
        raise InputError(f"not an array of numbers: {error.message}", rule="bson.vector.kind") from error
    if tensor.dtype is not None:
        return tensor.numpy()
    plain = tensor.tolist()
    if not isinstance(plain, list):
        return [plain]
    # A table becomes a matrix with a column for each of its columns.
    return [list(row.values()) if isinstance(row, dict) else row for row in plain]


def array_of_list(values: Sequence[Any]) -> NDArray[Any]:
    """Converts numbers, or lists of numbers, to an array."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError, UserWarning) as error:
        raise InputError(f"not an array of numbers: {error}", rule="bson.vector.kind") from error
    if array.dtype.hasobject:
        _refuse_missing(_test_each(array, lambda item: item is None or type(item).__name__ == "NAType"), "missing")
    # np.asarray turns a masked element of a list into NaN: look for it among the original values.
    elif array.dtype.kind == "f" and np.isnan(array).any():
        _refuse_missing(_test_each(np.array(values, object), lambda item: item is np.ma.masked), "masked")
    return array


def first_index(where: NDArray[np.bool_]) -> int | tuple[int, ...]:
    """Returns the index of the first true element: an int in one dimension, else a tuple."""
    at = tuple(np.argwhere(where)[0].tolist())
    return at[0] if len(at) == 1 else at


def _test_each(array: NDArray[Any], rule: Callable[[Any], bool]) -> NDArray[np.bool_]:
    return np.array([rule(item) for item in array.flat], np.bool_).reshape(array.shape)


def _refuse_missing(missing: NDArray[np.bool_], word: str) -> None:
    if missing.any():
        raise InputError(f"element {first_index(missing)} is {word}: {_FILL}", rule="bson.vector.missing")
