"""JAX arrays from NumPy arrays. The other way needs no bridge: a JAX array is what NumPy calls array-like."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from tensorglot.errors import UnsupportedError
from tensorglot.extras import library
from tensorglot.model.dtypes import dtype_of

__all__ = ["from_numpy"]

_WIDE = ("int64", "uint64", "float64", "complex128")


def from_numpy(name: str, array: NDArray[Any]) -> Any:
    """A JAX array of exactly the same type and values, on JAX's default device."""
    jax = library("jax", "jax")
    if array.dtype.name in _WIDE and not jax.config.jax_enable_x64:
        raise UnsupportedError(
            f"JAX would make 32 bits of {array.dtype.name}: jax.config.update('jax_enable_x64', True)",
            rule="jax.x64",
            tensor=name,
        )
    try:
        converted = jax.numpy.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedError(
            f"JAX has no {dtype_of(array.dtype).name}: {error}", rule="jax.dtype", tensor=name
        ) from error
    return converted
