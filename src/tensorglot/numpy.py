"""The functions of `safetensors.numpy` and `bintensors.numpy` for every format: to migrate, change the import."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np

from tensorglot.bridges.drop_in import DropIn, safe_open

__all__ = ["load", "load_file", "safe_open", "save", "save_file", "save_with_checksum"]

P = ParamSpec("P")
T = TypeVar("T")


def _takes_tensor_dict(function: Callable[P, T]) -> Callable[P, T]:
    """Accepts `tensors` also by the name that it has in the modules for NumPy of both packages: `tensor_dict`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if "tensor_dict" in kwargs and "tensors" not in kwargs:
            kwargs["tensors"] = kwargs.pop("tensor_dict")
        return function(*args, **kwargs)

    return call


_FUNCTIONS = DropIn("numpy", lambda value: isinstance(value, (np.ndarray, np.generic)))
load, load_file = _FUNCTIONS.load, _FUNCTIONS.load_file
save, save_file = _takes_tensor_dict(_FUNCTIONS.save), _takes_tensor_dict(_FUNCTIONS.save_file)
save_with_checksum = _takes_tensor_dict(_FUNCTIONS.save_with_checksum)


def __dir__() -> list[str]:
    return __all__
