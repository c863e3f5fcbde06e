"""The functions of `safetensors.numpy` and `bintensors.numpy` for every format: to migrate, change the import."""

from __future__ import annotations

import numpy as np

from tensorglot.bridges.drop_in import DropIn, safe_open

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]

_FUNCTIONS = DropIn("numpy", lambda value: isinstance(value, (np.ndarray, np.generic)))
load, load_file = _FUNCTIONS.load, _FUNCTIONS.load_file
save, save_file = _FUNCTIONS.save, _FUNCTIONS.save_file
