"""Arrays of the caller to read into, no two of which may overlap in memory.

Several threads write to them at the same time, so shared elements would get a mixture
of values. For contiguous arrays their address ranges decide; interleaved ones are
compared by NumPy, with a bound on its work.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from tensorglot.errors import InputError, escape
from tensorglot.model.tensor import plain_array
from tensorglot.providers import provided

__all__ = ["output_arrays", "shares_memory"]

_MOST_WORK = 100_000
"""Steps that NumPy may take to decide whether two strided arrays overlap."""


def output_arrays(out: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The arrays, by name; tensors of PyTorch as arrays over their memory."""
    torch = sys.modules.get("torch")
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in out.items():
        if torch is not None and isinstance(value, torch.Tensor):
            value = provided("bridges.torch_out")(name, value)
        if not isinstance(value, np.ndarray):
            raise InputError(
                f"out must be a NumPy array or a PyTorch tensor, not {type(value).__name__}",
                rule="out.array",
                tensor=name,
            )
        arrays[name] = plain_array(value, name)
    _check_apart(arrays)
    return arrays


def _check_apart(arrays: Mapping[str, NDArray[Any]]) -> None:
    # The usual case: memory of their own. Asking an array for its address takes ten times as many instructions.
    if len(set(map(id, arrays.values()))) == len(arrays) and all(map(_owns_contiguous_memory, arrays.values())):
        return
    # In the order of addresses, an array can only overlap those before it that end after its beginning.
    extents = sorted((*byte_bounds(array), name) for name, array in arrays.items() if array.size)
    if all(array.flags.forc for array in arrays.values()) and all(
        high <= low for (_, high, _), (low, _, _) in pairwise(extents)
    ):
        return
    before: list[tuple[int, str]] = []
    for low, high, name in extents:
        before = [(end, other) for end, other in before if end > low]
        if not arrays[name].flags.forc and _overlaps_itself(arrays[name]):
            raise InputError(
                "elements of the array in out overlap in memory, as those of a broadcast view do: pass a copy",
                rule="out.overlap",
                tensor=name,
            )
        for _, other in before:
            if shares_memory(arrays[name], arrays[other]):
                raise InputError(
                    f"the arrays in out for this tensor and for '{escape(other)}' overlap in memory",
                    rule="out.overlap",
                    tensor=name,
                )
        before.append((high, name))


def _owns_contiguous_memory(array: NDArray[Any]) -> bool:
    flags = array.flags
    return flags.owndata and flags.forc


def _overlaps_itself(array: NDArray[Any]) -> bool:
    """Whether elements of an array overlap; True if its strides do not decide it."""
    # From the smallest stride up: the elements so far span `reached` bytes, so a larger stride keeps them apart.
    reached = array.itemsize
    for stride, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and stride < reached:
            return True
        reached += (size - 1) * stride
    return False


def shares_memory(one: NDArray[Any], two: NDArray[Any]) -> bool:
    """Whether two arrays with overlapping address ranges share an element; True if that is too hard to decide."""
    if one.flags.forc and two.flags.forc:
        return True
    try:
        return np.shares_memory(one, two, max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
