"""PyTorch: its tensors to arrays and back without a copy, and whole modules.

The names of element types are the same on both sides, so there is no table of them.
What NumPy has no type of its own for crosses as integers of its width; PyTorch has
float4 in pairs, which are taken apart and put together. A module's
tied weights are stored once: as names for the same bytes where the format can, else
under the first of their names, with the others noted in the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bridges.table import Bridge
from tensorglot.containers.table import for_target
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.extras import library
from tensorglot.io.local import Readable
from tensorglot.io.sink import Writable
from tensorglot.model.dtypes import BY_NAME, dtype_of, pack, unpack
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type
from tensorglot.operations._options import AUTO, Choice
from tensorglot.operations._progress import Progress
from tensorglot.operations.load import load
from tensorglot.operations.open import open
from tensorglot.operations.save import save

if TYPE_CHECKING:
    import torch

_PAIR = "float4_e2m1fn_x2"
_FLOAT4 = BY_NAME["float4_e2m1fn"]

__all__ = ["BRIDGE", "from_numpy", "load_model", "save_model", "to_numpy"]


def from_numpy(name: str, array: NDArray[Any]) -> torch.Tensor:
    """A tensor that shares the array's memory; a copy of an array that must not be written to."""
    torch = library("torch", "torch")
    row = dtype_of(array.dtype, name)
    if row is _FLOAT4 and hasattr(torch, _PAIR) and array.ndim and array.shape[-1] % 2 == 0:
        pairs = pack(array, row).reshape(*array.shape[:-1], array.shape[-1] // 2)
        return torch.from_numpy(pairs).view(getattr(torch, _PAIR))
    dtype = getattr(torch, row.name, None)
    if row.packed or not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"PyTorch has no {row.name}", rule="torch.dtype", tensor=name)
    writable = array if array.flags.writeable else array.copy()
    if _native(row.name):
        return torch.from_numpy(writable)
    return torch.from_numpy(writable.view(f"u{array.itemsize}")).view(dtype)


def to_numpy(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    """The array of a tensor of any stride, on any device; on the CPU it shares the tensor's memory."""
    torch = library("torch", "torch")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise InputError(f"a {kind} tensor: make it dense, or give its parts", rule="torch.layout", tensor=name or None)
    if tensor.is_meta:
        raise InputError("a tensor on the meta device has no values", rule="torch.meta", tensor=name)
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind == _PAIR and tensor.ndim:
        pairs = tensor.detach().cpu().view(torch.uint8).contiguous().numpy()
        values = unpack(pairs.reshape(-1), 2 * pairs.size, _FLOAT4)
        return values.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
    if kind not in BY_NAME or BY_NAME[kind].packed:
        raise UnsupportedError(f"no element type for PyTorch's {kind}", rule="torch.dtype", tensor=name)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    row = BY_NAME[kind]
    exchanged = plain if _native(kind) else plain.view(getattr(torch, f"uint{row.bits}"))
    array: NDArray[Any] = exchanged.numpy()
    return array.view(row.require_numpy(name))


def _native(dtype: str) -> bool:
    """A type of NumPy itself, not of ml_dtypes."""
    return np.dtype(BY_NAME[dtype].require_numpy()).isbuiltin == 1


def save_model(
    target: Writable,
    model: torch.nn.Module,
    *,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    compression: Choice = None,
    level: int | None = None,
    checksum: Choice = AUTO,
    durable: bool = True,
    progress: Progress | bool | None = None,
) -> None:
    """Writes all parameters and buffers of a module, tied ones once."""
    spec, version = for_target(target, format)
    state = _state(model)
    notes = dict(metadata or {})
    if not spec.ties:
        for name, first in _tied(state).items():
            del state[name]
            if spec.metadata != "none":
                notes[name] = first
    save(
        target,
        state,
        format=f"{spec.name}@{version}",
        metadata=notes if notes or metadata is not None else None,
        compression=compression,
        level=level,
        checksum=checksum,
        durable=durable,
        progress=progress,
    )


def load_model(
    source: Readable, model: torch.nn.Module, *, strict: bool = True, format: str | None = None
) -> tuple[list[str], list[str]]:
    """Reads a file into a module, in place. Returns the names that it misses and those that the module has not.

    Shapes and types must be the module's own. A tied weight may stand in the file under
    any of its names. With `strict`, a missing or an unexpected name is an error. Nothing
    of the module changes unless all of it fits.
    """
    torch = library("torch", "torch")
    state = _state(model)
    first = _tied(state)
    with open(source, format=format) as archive:
        covered = {first.get(name, name) for name in archive if name in state}
        missing = [name for name in state if first.get(name, name) not in covered]
        unexpected = [name for name in archive if name not in state]
        if strict and (missing or unexpected):
            raise InputError(
                f"missing: {', '.join(missing) or 'none'}; unexpected: {', '.join(unexpected) or 'none'}",
                rule="torch.names",
            )
        wanted = [name for name in archive if name in state]
        for name in wanted:
            found, own = archive[name], state[name]
            kind = str(own.dtype).removeprefix("torch.")
            if found.shape != tuple(own.shape) or found.dtype is None or found.dtype.name != kind:
                raise InputError(
                    f"the file has {found!r}, the module {kind}{list(own.shape)}", rule="torch.shape", tensor=name
                )
    direct = {name: to_numpy(name, own) for name in wanted if _in_place(own := state[name])}
    arrays = load(source, names=wanted, out=direct, format=format)
    with torch.no_grad():
        for name in wanted:
            if name not in direct:
                state[name].copy_(from_numpy(name, arrays[name]))
    return missing, unexpected


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    torch = library("torch", "torch")
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"a torch.nn.Module, not {type(model).__name__}", rule="torch.module")
    state = dict(model.state_dict())
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(f"extra state of {type(value).__name__} is no tensor", rule="torch.state", tensor=name)
    return state


def _tied(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Names of tensors that are another one, to the first name of that one."""
    seen: dict[tuple[object, ...], str] = {}
    tied: dict[str, str] = {}
    for name, tensor in state.items():
        key = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        first = seen.setdefault(key, name) if tensor.numel() and not tensor.is_meta else name
        if first != name:
            tied[name] = first
    return tied


def _in_place(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _to_tensor(value: torch.Tensor, type: Type | None) -> Tensor:
    return coerce(to_numpy("", value), type)


BRIDGE = Bridge(_to_tensor, from_numpy=from_numpy)
