"""Replaces safetensors and bintensors by tensorglot, to run their tests: `pytest -p drop_in_shims`.

This module adds what the tests of safetensors use beyond the public functions: raw pointers, and private
names of safetensors that find shared memory. Their tests use flax only to write a second
file, for which pickle is enough.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import sys
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

import tensorglot as tg
import tensorglot.jax
import tensorglot.numpy
import tensorglot.torch
from tensorglot.bridges.torch_sharing import covering, extent, sharing_groups


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


def _find_shared_tensors(state: dict[str, torch.Tensor]) -> list[set[str]]:
    found = {name: {name} for name in state if not state[name].is_meta}
    for group in sharing_groups(state):
        names = set(group)
        found.update((name, names) for name in group)
    return list({id(group): group for group in found.values()}.values())


def _remove_duplicate_names(state: dict[str, torch.Tensor]) -> dict[str, list[str]]:
    kept = {min(covering(state, group)): group for group in sharing_groups(state)}
    return {name: sorted({*group} - {name}) for name, group in kept.items()}


def _is_complete(tensor: torch.Tensor) -> bool:
    storage = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return "tensor" in covering({"tensor": tensor, "storage": storage}, ["tensor", "storage"])


def module(name: str, home: ModuleType | None = None, **names: Any) -> None:
    made = sys.modules[name] = ModuleType(name)
    vars(made).update({name: getattr(home, name) for name in getattr(home, "__all__", ())}, **names)


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
module("safetensors.numpy", tensorglot.numpy)
module(
    "safetensors.torch",
    tensorglot.torch,
    storage_ptr=lambda tensor: tensor.untyped_storage().data_ptr(),
    storage_size=lambda tensor: tensor.untyped_storage().nbytes(),
    _end_ptr=lambda tensor: extent(tensor)[1],
    _find_shared_tensors=_find_shared_tensors,
    _is_complete=_is_complete,
    _remove_duplicate_names=_remove_duplicate_names,
)
module("safetensors.flax", tensorglot.jax)
module("bintensors", __path__=[], BintensorError=tg.TensorglotError, safe_open=tg.safe_open)
for name, home in (("numpy", tensorglot.numpy), ("torch", tensorglot.torch), ("flax", tensorglot.jax)):
    savers = {name: partial(getattr(home, name), format="bintensors@1") for name in ("save", "save_with_checksum")}
    save_file = partial(home.save_file, format="bintensors@1", durable=False)
    module(f"bintensors.{name}", home, **savers, save_file=save_file)
module("flax", __path__=[])
module("flax.serialization", msgpack_serialize=pickle.dumps, msgpack_restore=pickle.loads)
