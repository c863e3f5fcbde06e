"""Finds PyTorch tensors that share memory, and the tensor that covers all memory of a group.

Two views of one storage share memory only where they have an element in common; what
counts is the memory, so tensors of different storages may share it, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorglot.bridges.torch import to_numpy
from tensorglot.errors import StateError, escape
from tensorglot.extras import torch
from tensorglot.operations._outputs import overlapping, shares_memory

__all__ = ["covering", "extent", "shared_names", "sharing_groups", "tied"]


def tied(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors are the same view of the same memory."""
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == (two.data_ptr(), two.shape, two.stride(), two.dtype)


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte, and the one after the last."""
    begin = tensor.data_ptr()
    if tensor.is_contiguous():
        return begin, begin + tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


def sharing_groups(state: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """The names of tensors that have memory in common, directly or through others, in the order of the state."""
    extents = ((str(tensor.device), *extent(tensor), name) for name, tensor in state.items() if _has_memory(tensor))
    group_of: dict[str, set[str]] = {}
    for name, other in overlapping(extents):
        group = group_of.setdefault(name, {name})
        if other not in group and _overlap(state[name], state[other]):
            group |= group_of.setdefault(other, {other})
            group_of.update(dict.fromkeys(group, group))
    groups = {id(group): group for group in group_of.values() if len(group) > 1}
    return [[name for name in state if name in group] for group in groups.values()]


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements, and memory for them: a distributed one or a parameter without a shape has not."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta or torch.nn.parameter.is_lazy(tensor):
        return False
    return bool(tensor.numel() and tensor.data_ptr())


def _overlap(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether tensors share memory, given that their extents overlap; on another device, assumed."""
    if one.device.type != "cpu":
        return True
    return shares_memory(to_numpy("", one), to_numpy("", two))


def covering(state: Mapping[str, torch.Tensor], group: list[str]) -> list[str]:
    """The names of tensors that cover all memory of the group."""
    if all(tied(state[name], state[group[0]]) for name in group):
        return group
    extents = {name: extent(state[name]) for name in group}
    whole = min(low for low, _ in extents.values()), max(high for _, high in extents.values())
    found = [
        name
        for name in group
        if extents[name] == whole and state[name].numel() * state[name].element_size() == whole[1] - whole[0]
    ]
    if not found:
        raise StateError(
            f"tensors overlap, and none contains all of them: {', '.join(map(escape, group))};"
            " clone() those that should not share memory",
            rule="torch.shared",
            tensor=group[0],
        )
    return found


def shared_names(state: Mapping[str, torch.Tensor], *, ties: bool) -> list[str]:
    """The first group of names that share memory. With `ties`, tensors that are the same view do not count."""
    for group in sharing_groups(state):
        if not (ties and all(tied(state[name], state[group[0]]) for name in group)):
            return group
    return []
