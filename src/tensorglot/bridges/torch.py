"""PyTorch: its tensors to arrays and back without a copy, and whole modules.

The names of element types are the same on both sides, so there is no table of them.
Types of ml_dtypes are exchanged as integers of their width; PyTorch packs float4 in
pairs, which are unpacked and packed.

Tensors of a module that share memory are stored once. Tied weights become names of the
same bytes where the format supports that; otherwise, and for views, the tensor that
covers the memory is stored, and the metadata names it for the others. Loading writes the
memory once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tensorglot.bridges.table import Bridge
from tensorglot.bridges.torch_layouts import from_sparse, of_quantized, of_sparse, plain_sparse
from tensorglot.containers.table import for_target
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.extras import library
from tensorglot.io.sink import Writable
from tensorglot.io.source import Readable
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, dtype_of, pack, unpack
from tensorglot.model.layouts import COO, CSR
from tensorglot.model.payload import location
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type
from tensorglot.operations._outputs import output_arrays, shares_memory
from tensorglot.operations.load import load_archive
from tensorglot.operations.open import open
from tensorglot.operations.save import save

if TYPE_CHECKING:
    import torch

_PAIR = "float4_e2m1fn_x2"
_FLOAT4 = BY_NAME["float4_e2m1fn"]

__all__ = ["BRIDGE", "from_numpy", "from_tensor", "load_model", "save_model", "shared_array", "to_numpy", "to_tensor"]


def from_numpy(name: str, array: NDArray[Any]) -> torch.Tensor:
    """A tensor that shares the array's memory; a copy of an array that must not be written to."""
    torch = library("torch", "torch")
    row = dtype_of(array.dtype, name)
    if row is _FLOAT4 and hasattr(torch, _PAIR) and array.ndim and array.shape[-1] % 2 == 0:
        pairs = pack(array, row).reshape(*array.shape[:-1], array.shape[-1] // 2)
        return torch.from_numpy(pairs).view(getattr(torch, _PAIR))
    dtype = getattr(torch, row.name, None)
    if row.packed or not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"PyTorch does not support {row.name}", rule="torch.dtype", tensor=name)
    writable = array if array.flags.writeable else array.copy()
    if _native(row.name):
        return torch.from_numpy(writable)
    return torch.from_numpy(writable.view(f"u{array.itemsize}")).view(dtype)


def from_tensor(tensor: Tensor, device: Any = None) -> torch.Tensor:
    """The result of `Tensor.torch`."""
    if tensor.layout in (COO, CSR):
        found = from_sparse(tensor, from_numpy(tensor.name, tensor.parts["values"].array(tensor.name)))
    else:
        found = from_numpy(tensor.name, tensor.numpy())
    return found if device is None else found.to(device)


def to_tensor(value: torch.Tensor, wanted: Type | None) -> Tensor:
    """A tensor of any layout that a container can hold."""
    torch = library("torch", "torch")
    if value.is_quantized:
        return of_quantized(value)
    if value.layout is not torch.strided and not value.is_nested:
        plain = plain_sparse(value)
        return of_sparse(plain, to_numpy("", plain.values()))
    return coerce(to_numpy("", value), wanted)


def to_numpy(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    """The array of a tensor of any stride, on any device; on the CPU it shares the tensor's memory."""
    torch = library("torch", "torch")
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else tensor.layout
        raise InputError(
            f"a {kind} tensor is not supported here: convert it with to_dense()",
            rule="torch.layout",
            tensor=name or None,
        )
    if tensor.is_meta:
        raise InputError("a tensor on the meta device has no values", rule="torch.meta", tensor=name)
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind == _PAIR and tensor.ndim:
        pairs = tensor.detach().cpu().view(torch.uint8).contiguous().numpy()
        values = unpack(pairs.reshape(-1), 2 * pairs.size, _FLOAT4)
        return values.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
    if kind not in BY_NAME or BY_NAME[kind].packed:
        raise UnsupportedError(f"PyTorch's {kind} is not supported", rule="torch.dtype", tensor=name)
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    row = BY_NAME[kind]
    exchanged = plain if _native(kind) else plain.view(getattr(torch, f"uint{row.bits}"))
    array: NDArray[Any] = exchanged.numpy()
    return array.view(row.require_numpy(name))


def shared_array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    """An array over the memory of a tensor, to be written to."""
    if tensor.device.type != "cpu":
        raise InputError(
            f"out is on {tensor.device}: load to the CPU, then copy_() to the device", rule="out.device", tensor=name
        )
    if tensor.is_conj() or tensor.is_neg() or str(tensor.dtype).endswith(_PAIR):
        raise InputError(
            "out is a conjugate, negative or packed view: pass a plain tensor", rule="out.view", tensor=name
        )
    return to_numpy(name, tensor)


def _native(dtype: str) -> bool:
    """A type of NumPy itself, not of ml_dtypes."""
    return np.dtype(BY_NAME[dtype].require_numpy()).isbuiltin == 1


def save_model(
    target: Writable,
    model: torch.nn.Module,
    *,
    format: str | None = None,
    metadata: Mapping[str, str] | None = None,
    **options: Any,
) -> None:
    """Writes all parameters and buffers of a module. Shared memory is written once.

    Tensors that overlap are refused unless one of them covers the others. `options` are
    those of `save`.
    """
    spec, version = for_target(target, format)
    state = _state(model)
    notes = dict(metadata or {})
    for group in _sharing(state):
        kept = _covering(state, group)[0]
        for name in group:
            if name != kept and not (spec.ties and _tied(state[name], state[kept])):
                del state[name]
                if spec.metadata != "none":
                    notes.setdefault(name, kept)
    save(
        target,
        state,
        format=f"{spec.name}@{version}",
        metadata=notes if notes or metadata is not None else None,
        **options,
    )


def load_model(
    source: Readable, model: torch.nn.Module, *, strict: bool = True, format: str | None = None
) -> tuple[list[str], list[str]]:
    """Reads a file into a module, in place. Returns the missing and the unexpected names.

    Shapes and types must be the module's own. Of tensors that share memory one is read,
    under any of their names in the file; others of them in the file are unexpected unless
    they are tied to it. With `strict`, a missing or unexpected name is an error. The module
    stays unchanged unless all names, types and shapes match.
    """
    torch = library("torch", "torch")
    state = _state(model)
    with open(source, format=format) as archive:
        others = _others(state, archive)
        missing = [name for name in state if name not in archive and name not in others]
        unexpected = [name for name in archive if name not in state or others.get(name) == "unexpected"]
        if strict and (missing or unexpected):
            raise _wrong_names(type(model).__name__, missing, unexpected)
        wanted = [name for name in archive if name in state and name not in others]
        for name in wanted:
            found, own = archive[name], state[name]
            kind = str(own.dtype).removeprefix("torch.")
            if found.shape != tuple(own.shape) or found.dtype is None or found.dtype.name != kind:
                raise InputError(
                    f"the file has {found!r}, the module {kind}{list(own.shape)}", rule="torch.shape", tensor=name
                )
        direct = {name: to_numpy(name, own) for name in wanted if _in_place(own := state[name])}
        arrays = load_archive(archive, wanted, output_arrays(direct))
    with torch.no_grad():
        for name in wanted:
            if name not in direct:
                state[name].copy_(from_numpy(name, np.asarray(arrays[name])))
    return missing, unexpected


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    torch = library("torch", "torch")
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, not {type(model).__name__}", rule="torch.module")
    state = dict(model.state_dict())
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"the state_dict has a {type(value).__name__}, not a tensor", rule="torch.state", tensor=name
            )
    return state


def _wrong_names(model: str, missing: list[str], unexpected: list[str]) -> InputError:
    """The message of PyTorch's own load_state_dict."""
    lines = [f"Error(s) in loading state_dict for {model}:"]
    for what, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            quoted = ", ".join(f'"{escape(name)}"' for name in sorted(names))
            lines.append(f"    {what} key(s) in state_dict: {quoted}")
    return InputError("\n".join(lines), rule="torch.names")


def _others(state: Mapping[str, torch.Tensor], archive: Archive) -> dict[str, Literal["same", "unexpected"]]:
    """Names whose memory is read under another name, and whether the file also has them untied."""
    found: dict[str, Literal["same", "unexpected"]] = {}
    for group in _sharing(state):
        covering = _covering(state, group)
        kept = next((name for name in covering if name in archive), covering[0])
        for name in group:
            if name != kept:
                same = name not in archive or (
                    kept in archive
                    and _tied(state[name], state[kept])
                    and _place(archive[name]) == _place(archive[kept])
                )
                found[name] = "same" if same else "unexpected"
    return found


def _place(tensor: Tensor) -> list[tuple[object, ...]]:
    return [location(part.payload) for part in tensor.parts.values()]


def _tied(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors are the same view of the same memory."""
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == (two.data_ptr(), two.shape, two.stride(), two.dtype)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte, and the one after the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _sharing(state: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The names of tensors that have memory in common, directly or through others, in the order of the state."""
    extents = sorted(
        (str(tensor.device), *_extent(tensor), name)
        for name, tensor in state.items()
        if tensor.numel() and not tensor.is_meta
    )
    group_of: dict[str, set[str]] = {}
    before: list[tuple[str, int, str]] = []
    for device, low, high, name in extents:
        before = [one for one in before if one[0] == device and one[1] > low]
        group = group_of[name] = {name}
        for _, _, other in before:
            if other not in group and _overlap(state[name], state[other]):
                group |= group_of[other]
                group_of.update(dict.fromkeys(group, group))
        before.append((device, high, name))
    groups = {id(group): group for group in group_of.values() if len(group) > 1}
    return [[name for name in state if name in group] for group in groups.values()]


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether tensors share memory, given that their extents overlap; on another device, assumed."""
    if one.device.type != "cpu":
        return True
    return shares_memory(to_numpy("", one), to_numpy("", two))


def _covering(state: Mapping[str, torch.Tensor], group: list[str]) -> list[str]:
    """The names of tensors that cover all memory of the group."""
    if all(_tied(state[name], state[group[0]]) for name in group):
        return group
    extents = {name: _extent(state[name]) for name in group}
    whole = min(low for low, _ in extents.values()), max(high for _, high in extents.values())
    found = [
        name
        for name in group
        if extents[name] == whole and state[name].numel() * state[name].element_size() == whole[1] - whole[0]
    ]
    if not found:
        raise InputError(
            f"tensors overlap, and none contains all of them: {', '.join(map(escape, group))};"
            " clone() those that should not share memory",
            rule="torch.shared",
            tensor=group[0],
        )
    return found


def _in_place(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


BRIDGE = Bridge(to_tensor, from_numpy=from_numpy)
