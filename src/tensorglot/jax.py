"""The functions of `safetensors.flax` and `bintensors.flax`, for JAX arrays, for every format."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorglot.bridges.drop_in import DropIn, safe_open
from tensorglot.extras import jax

__all__ = ["load", "load_file", "safe_open", "save", "save_file", "save_with_checksum"]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (np.ndarray, jax.Array))


_FUNCTIONS = DropIn("jax", _is_tensor)
load, load_file = _FUNCTIONS.load, _FUNCTIONS.load_file
save, save_file, save_with_checksum = _FUNCTIONS.save, _FUNCTIONS.save_file, _FUNCTIONS.save_with_checksum


def __dir__() -> list[str]:
    return __all__
