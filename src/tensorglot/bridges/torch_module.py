"""Modules of PyTorch: all parameters and buffers to a file and back.

Tensors of a module that share memory are stored once. Tied weights become names of the
same bytes where the format supports that; otherwise, and for views, the tensor that
covers the memory is stored, and the metadata names it for the others. Loading reads into
the module's own memory, once. A module with hooks or methods of its own for its state may
have none for what the state contains: PyTorch gives it the values that were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tensorglot.arguments import check_flags
from tensorglot.bridges.drop_in import format_for, their_errors
from tensorglot.bridges.torch import array_type, as_device, from_numpy, to_numpy
from tensorglot.bridges.torch_sharing import covering, sharing_groups, tied
from tensorglot.containers.table import for_target
from tensorglot.errors import InputError, StateError, escape
from tensorglot.extras import torch
from tensorglot.io.sink import Writable
from tensorglot.io.source import Backend, Readable
from tensorglot.model.archive import Archive
from tensorglot.model.payload import location
from tensorglot.model.tensor import Tensor
from tensorglot.operations.load import load_archive
from tensorglot.operations.open import open
from tensorglot.operations.save import save

__all__ = ["load_model", "save_model"]

_HOOKS = ("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
_METHODS = ("state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict", "get_extra_state")
"""What a module changes its state by, or how it is loaded."""


def save_model(
    model: torch.nn.Module,
    filename: Writable,
    metadata: Mapping[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    format: str | None = None,
    **options: Any,
) -> None:
    """Writes all parameters and buffers of a module. Shared memory is written once.

    Tensors that overlap are refused unless one of them covers the others, and without
    `force_contiguous` those that are not contiguous. `options` are passed to `tg.save`.
    """
    check_flags(force_contiguous=force_contiguous)
    spec, version = for_target(filename, format_for(filename, format))
    state = _state(model)
    notes = dict(metadata or {})
    # Of tensors that share memory one is kept: the one that covers it, the first by name, as in safetensors.
    for group in sharing_groups(state):
        kept = min(covering(state, group))
        for name in group:
            if name != kept and not (spec.ties and tied(state[name], state[kept])):
                del state[name]
                if spec.metadata != "none":
                    notes.setdefault(name, kept)
    if not force_contiguous:
        for name, tensor in state.items():
            if not tensor.is_contiguous():
                raise InputError(
                    "the tensor is not contiguous: use save_model(..., force_contiguous=True)",
                    rule="torch.contiguous",
                    tensor=name,
                )
    save(
        filename,
        state,
        format=f"{spec.name}@{version}",
        metadata=notes if notes or metadata is not None else None,
        **options,
    )


def load_model(
    model: torch.nn.Module,
    filename: Readable,
    strict: bool = True,
    device: Any = "cpu",
    *,
    backend: Backend = "auto",
    format: str | None = None,
) -> tuple[list[str], list[str]]:
    """Reads a file into a module, in place. Returns the missing and the unexpected names.

    Values go to where the module's tensors are, whatever `device` says, and are cast to
    their types, as `load_state_dict` does. Of tensors that share memory one is read, under
    any of their names in the file; others of them in the file are unexpected unless they
    are tied to it. With `strict`, a missing or unexpected name is an error. The module
    stays unchanged unless all names and shapes match; if it has hooks or methods of its own
    for loading, it is given the values before its names are known to match.
    """
    check_flags(strict=strict)
    as_device(device)
    state = _state(model)
    with their_errors(), open(filename, format=format, backend=backend) as archive:
        others = _other_names(state, archive)
        wanted = [name for name in archive if name in state and name not in others]
        for name in wanted:
            _check_memory(name, state[name])
        if _loads_itself(model):
            return _give(model, archive, others, strict)
        optional = _counters(model)
        missing = [name for name in state if name not in archive and name not in others and name not in optional]
        unexpected = [name for name in archive if name not in state or others.get(name) == "unexpected"]
        if strict:
            _check_names(model, missing, unexpected)
        kinds = [_check_fit(archive, name, state[name]) for name in wanted]
        # No two of these overlap: of each group that shares memory, `others` has all but one.
        direct = {
            name: to_numpy(name, state[name])
            for name, kind in zip(wanted, kinds, strict=True)
            if _in_place(state[name], kind)
        }
        arrays = load_archive(archive, wanted, direct)()
    with torch.no_grad():
        for name in wanted:
            if name not in direct:
                state[name].copy_(from_numpy(name, np.asarray(arrays[name])))
    return missing, unexpected


def _loads_itself(model: torch.nn.Module) -> bool:
    """Whether a module of this one has hooks or methods of its own; those of PyTorch's layers only check names."""
    plain = {name: getattr(torch.nn.Module, name) for name in _METHODS}
    for module in model.modules():
        if any(getattr(module, hooks) for hooks in _HOOKS):
            return True
        for name, method in plain.items():
            own = getattr(getattr(module, name), "__func__", None)
            if own is not method and not getattr(own, "__module__", "").startswith("torch.nn.modules."):
                return True
    return False


def _give(
    model: torch.nn.Module, archive: Archive, others: Mapping[str, Literal["same", "unexpected"]], strict: bool
) -> tuple[list[str], list[str]]:
    """What `load_model` does by the module's own `load_state_dict`."""
    wanted = [name for name in archive if name not in others]
    arrays = load_archive(archive, wanted, {})()
    try:
        result = model.load_state_dict(
            {name: from_numpy(name, np.asarray(arrays.pop(name))) for name in wanted}, strict=False
        )
    except RuntimeError as error:
        raise StateError(str(error), rule="torch.state") from error
    missing = [name for name in result.missing_keys if name not in others]
    unexpected = [*result.unexpected_keys, *(name for name in archive if others.get(name) == "unexpected")]
    if strict:
        _check_names(model, missing, unexpected)
    return missing, unexpected


def _counters(model: torch.nn.Module) -> set[str]:
    """The names of the counters of batch norms: PyTorch loads files without them, and keeps their values."""
    return {
        f"{name}.num_batches_tracked".removeprefix(".")
        for name, module in model.named_modules(remove_duplicate=False)
        if any(kind.__module__ == "torch.nn.modules.batchnorm" for kind in type(module).__mro__)
    }


def _check_memory(name: str, own: torch.Tensor) -> None:
    if own.is_meta:
        raise StateError(
            "the module is on the meta device, which has no memory: call to_empty(device=...) first",
            rule="torch.meta",
            tensor=name,
        )


def _check_fit(archive: Archive, name: str, own: torch.Tensor) -> np.dtype[Any]:
    """The element type of a tensor of the file. Raises StateError if it cannot be copied to the module's tensor."""
    shape, dtype = archive.array_type(name)
    wanted = tuple(own.shape)
    if wanted and array_type(own.dtype) is None and str(own.dtype).endswith("_x2"):
        wanted = (*wanted[:-1], 2 * wanted[-1])  # PyTorch counts pairs
    if shape != wanted or dtype is None:
        kind = str(own.dtype).removeprefix("torch.")
        raise StateError(
            f"size mismatch: the file has {archive[name]!r}, the module {kind}{list(own.shape)}",
            rule="torch.shape",
            tensor=name,
        )
    return dtype


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, not {type(model).__name__}", rule="torch.module")
    state = dict(model.state_dict())
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"the state_dict has a {type(value).__name__}, not a tensor", rule="torch.state", tensor=name
            )
    return state


def _check_names(model: torch.nn.Module, missing: list[str], unexpected: list[str]) -> None:
    """Raises StateError with the message of PyTorch's own load_state_dict."""
    if not (missing or unexpected):
        return
    lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
    for what, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            quoted = ", ".join(f'"{escape(name)}"' for name in sorted(names))
            lines.append(f"    {what} key(s) in state_dict: {quoted}")
    raise StateError("\n".join(lines), rule="torch.names")


def _other_names(state: Mapping[str, torch.Tensor], archive: Archive) -> dict[str, Literal["same", "unexpected"]]:
    """Names whose memory is read under another name: "same", or "unexpected" if the file has other bytes for it."""
    found: dict[str, Literal["same", "unexpected"]] = {}
    for group in sharing_groups(state):
        whole = covering(state, group)
        kept = next((name for name in whole if name in archive), whole[0])
        for name in group:
            if name != kept:
                same = name not in archive or (
                    kept in archive
                    and tied(state[name], state[kept])
                    and _place(archive[name]) == _place(archive[kept])
                )
                found[name] = "same" if same else "unexpected"
    return found


def _place(tensor: Tensor) -> list[tuple[object, ...]]:
    return [location(part.payload) for part in tensor.parts.values()]


def _in_place(own: torch.Tensor, kind: np.dtype[Any]) -> bool:
    """Whether the file can be read directly into a tensor's memory."""
    plain = own.is_cpu and own.is_contiguous() and not own.is_conj() and not own.is_neg()
    return plain and array_type(own.dtype) == kind
