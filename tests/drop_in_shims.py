"""safetensors played by tensorglot, for running their own tests: `pytest -p drop_in_shims`.

What is here is what changing the import does not give: names that are private to those
packages, and the objects that they have and we do not.
"""

from __future__ import annotations

import ctypes
import io
import sys
from types import ModuleType
from typing import Any

import numpy as np

import tensorglot as tg
import tensorglot.jax
import tensorglot.numpy
import tensorglot.torch


class TensorSpec:
    def __init__(self, dtype: str, shape: Any, data_ptr: int, data_len: int) -> None:
        if dtype not in tg.formats()[0].dtypes and not hasattr(np, dtype):
            raise tg.InputError(f"unknown element type {dtype}", rule="dtype.name")
        raw = (ctypes.c_uint8 * data_len).from_address(data_ptr) if data_len else b""
        self.array = np.frombuffer(raw, dtype).reshape(shape)


def serialize(tensors: dict[str, TensorSpec], metadata: dict[str, str] | None = None) -> bytes:
    if not all(isinstance(spec, TensorSpec) for spec in tensors.values()):
        raise TypeError("expected TensorSpec")
    return tensorglot.numpy.save({name: spec.array for name, spec in tensors.items()}, metadata)


def serialize_file(tensors: dict[str, TensorSpec], filename: str, metadata: dict[str, str] | None = None) -> None:
    arrays = {name: spec.array for name, spec in tensors.items()}
    tensorglot.numpy.save_file(arrays, filename, metadata, durable=False)


def _safe_open_handle(file: Any, framework: str, device: str = "cpu") -> Any:
    return tg.safe_open(file.buffer if isinstance(file, io.TextIOWrapper) else file, framework, device)


def module(name: str, **names: Any) -> None:
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(names)


def public(home: ModuleType) -> dict[str, Any]:
    return {name: getattr(home, name) for name in home.__all__}


def _find_shared_tensors(state: dict[str, Any]) -> list[set[str]]:
    """Names by the storage of their tensors: some tests begin with it."""
    groups: dict[int, set[str]] = {}
    for name, tensor in state.items():
        groups.setdefault(tensor.data_ptr(), set()).add(name)
    return list(groups.values())


UNUSED = ("_end_ptr", "_is_complete", "_remove_duplicate_names", "storage_ptr", "storage_size")
"""Private to safetensors, and tested by themselves only."""
module(
    "safetensors",
    __path__=[],
    SafetensorError=tg.TensorglotError,
    TensorSpec=TensorSpec,
    safe_open=tg.safe_open,
    serialize=serialize,
    serialize_file=serialize_file,
    _safe_open_handle=_safe_open_handle,
)
module("safetensors.numpy", **public(tensorglot.numpy))
module(
    "safetensors.torch", **public(tensorglot.torch), **dict.fromkeys(UNUSED), _find_shared_tensors=_find_shared_tensors
)
module("safetensors.flax", **public(tensorglot.jax))
