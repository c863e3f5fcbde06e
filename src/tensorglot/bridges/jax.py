"""JAX arrays from NumPy arrays, and back, which `np.asarray` does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bridges.table import Bridge
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import UnsupportedError
from tensorglot.extras import jax
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type

__all__ = ["BRIDGE", "from_numpy"]

_WIDE = ("int64", "uint64", "float64", "complex128")


def from_numpy(name: str, array: NDArray[Any]) -> Any:
    """A JAX array of exactly the same type and values, on JAX's default device."""
    if array.dtype.name in _WIDE and not jax.config.jax_enable_x64:
        raise UnsupportedError(
            f"JAX would truncate {array.dtype.name} to 32 bits: call jax.config.update('jax_enable_x64', True) first",
            rule="jax.x64",
            tensor=name,
        )
    try:
        if not array.size:
            return jax.device_put(array)  # asarray compiles a copy, and XLA aborts on some empty shapes
        return jax.numpy.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        message = str(error).partition("\n")[0]
        raise UnsupportedError(
            f"JAX does not support {array.dtype}: {message}", rule="jax.dtype", tensor=name
        ) from error


def _to_tensor(value: Any, type: Type | None) -> Tensor:
    return coerce(np.asarray(value), type)


BRIDGE = Bridge(_to_tensor, from_numpy=from_numpy)
