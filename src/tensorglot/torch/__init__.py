"""The functions of `safetensors.torch` and `bintensors.torch` for every format: to migrate, change the import.

dcp     distributed checkpoints; imported on first use, because it needs PyTorch
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorglot.bridges.drop_in import DropIn, safe_open
from tensorglot.bridges.torch_module import load_model, save_model
from tensorglot.bridges.torch_sharing import shared_names
from tensorglot.errors import StateError, escape
from tensorglot.extras import torch

if TYPE_CHECKING:
    from tensorglot.torch import dcp as dcp

__all__ = ["load", "load_file", "load_model", "safe_open", "save", "save_file", "save_model", "save_with_checksum"]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _refuse_shared(tensors: Mapping[str, Any], ties: bool) -> None:
    """Refuses tensors that share memory: the file would store it twice, and loaded tensors would not share it."""
    shared = shared_names(tensors, ties=ties)
    if shared:
        names = ", ".join(map(escape, shared))
        raise StateError(
            f"tensors share memory: {names}; use save_model, or clone() those that should not",
            rule="torch.shared",
            tensor=shared[0],
        )


_FUNCTIONS = DropIn("torch", _is_tensor, _refuse_shared)
load, load_file = _FUNCTIONS.load, _FUNCTIONS.load_file
save, save_file, save_with_checksum = _FUNCTIONS.save, _FUNCTIONS.save_file, _FUNCTIONS.save_with_checksum


def __getattr__(name: str) -> Any:
    if name == "dcp":
        return import_module("tensorglot.torch.dcp")
    raise AttributeError(f"module 'tensorglot.torch' has no attribute '{name}'", name=name)


def __dir__() -> list[str]:
    return [*__all__, "dcp"]
