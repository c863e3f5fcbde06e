"""Arrays of the caller to read into, no two of which may overlap in memory.

Several threads write to them at the same time, so shared elements would get a mixture
of values. For contiguous arrays their address ranges decide; interleaved ones are
compared by NumPy, with a bound on its work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from tensorglot.errors import InputError, escape
from tensorglot.kernels.ndarrays import spans
from tensorglot.model.index import first_overlap
from tensorglot.model.tensor import plain_array
from tensorglot.providers import provided

__all__ = ["output_arrays", "overlapping", "shares_memory"]

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
    # The usual case: contiguous arrays, each in memory of its own.
    contiguous = spans([*arrays.values()])
    if contiguous is not None and first_overlap(*contiguous, same=False) is None:
        return
    extents = (("", *byte_bounds(array), name) for name, array in arrays.items() if array.size)
    for name, other in overlapping(extents):
        if shares_memory(arrays[name], arrays[other]):
            raise InputError(
                f"the arrays in out for this tensor and for '{escape(other)}' overlap in memory",
                rule="out.overlap",
                tensor=name,
            )


def overlapping(extents: Iterable[tuple[str, int, int, str]]) -> Iterator[tuple[str, str]]:
    """Pairs of names whose address ranges overlap, given the device, begin and end of each."""
    # In the order of addresses, a range can only overlap those before it that end after its beginning.
    before: list[tuple[str, int, str]] = []
    for device, low, high, name in sorted(extents):
        before = [one for one in before if one[0] == device and one[1] > low]
        yield from [(name, other) for _, _, other in before]
        before.append((device, high, name))


def shares_memory(one: NDArray[Any], two: NDArray[Any]) -> bool:
    """Whether two arrays with overlapping address ranges share an element; True if that is too hard to decide."""
    if one.flags.forc and two.flags.forc:
        return True
    try:
        return np.shares_memory(one, two, max_work=_MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
