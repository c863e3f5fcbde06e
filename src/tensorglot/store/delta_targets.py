"""Arrays of the caller as memory that a delta changes.

A target is the canonical bytes of one value. Where an array has these bytes in memory, a
target is that memory. Any other array (strided, big-endian, on another device) has a copy,
which is written back at the end. Values that are not arrays can be compared, not changed.

Arrays that are tied, the same memory under several names, are one target. Other overlaps
of memory that is changed are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from tensorglot.arrays import is_masked_array, overlaps_itself
from tensorglot.containers.delta.index import Change, DeltaIndex
from tensorglot.errors import InputError, UnsupportedError, escape, plural
from tensorglot.kernels.ndarrays import spans
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.index import first_overlap
from tensorglot.model.payload import as_bytes
from tensorglot.model.tensor import plain_array
from tensorglot.model.types.algebra import dense
from tensorglot.model.types.text import text_of
from tensorglot.operations._as_archive import named_tensor
from tensorglot.operations._outputs import shares_memory
from tensorglot.providers import provided
from tensorglot.store.delta_file import not_base
from tensorglot.store.units import units_of
from tensorglot.wire.cid import CHUNK_NBYTES

__all__ = ["Target", "targets_of"]


@dataclass(eq=False, slots=True)
class Target:
    """One value in memory."""

    name: str
    row: Change
    data: memoryview
    """The memory of the array, or a copy."""
    array: NDArray[Any] | None = None
    """The array that the memory belongs to."""
    write_back: Callable[[], object] | None = None
    """Copies `data` to where it came from."""
    digests: list[bytes] = field(init=False)
    """Digests of the chunks as they are now."""

    def chunk(self, position: int) -> memoryview:
        return self.data[position * CHUNK_NBYTES : (position + 1) * CHUNK_NBYTES]


def targets_of(index: DeltaIndex, tensors: Mapping[str, Any]) -> list[Target]:
    """The values that a delta was made from, if they can be changed where it does so."""
    missing = [name for name in index.names if name not in tensors]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise not_base(missing[0], f"it is missing{others}")
    found: list[Target] = []
    for name, rows in zip(index.names, index.rows_of(), strict=True):
        found += _targets(name, tensors[name], rows)
    return _apart(found)


def _targets(name: str, value: Any, rows: list[Change]) -> list[Target]:
    array = _array_of(name, value)
    kind = None if array is None else _kind_of(array.dtype, array.shape)
    if array is None or kind is None:
        return _compared(name, value, rows)
    row, text = rows[0], kind[0]
    if len(rows) != 1 or row.base is None or row.base.type != text:
        raise not_base(name, f"it is {text:.80}, the base is {row.type if row.base is None else row.base.type:.80}")
    flags = array.flags
    if not flags.writeable and row.state == "changed":
        raise InputError("the array is read-only and cannot be changed in place", rule="delta.writable", tensor=name)
    if flags.c_contiguous and array.dtype == kind[1] and _is_memory_of(array, value):
        return [Target(name, row, as_bytes(array), array)]
    if row.state == "changed" and overlaps_itself(array.shape, _strides(value), array.itemsize):
        raise InputError(
            "elements of the array overlap in memory, as those of a broadcast view do, and cannot be changed in place",
            rule="delta.overlap",
            tensor=name,
        )
    copy = np.array(array, kind[1], order="C")
    return [Target(name, row, as_bytes(copy), array, lambda: _write(name, value, array, copy))]


@lru_cache(maxsize=4096)
def _kind_of(numpy: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, np.dtype[Any]] | None:
    """The type of an array as text, and its elements in little-endian order; None if it is not supported."""
    try:
        return text_of(dense(dtype_of(numpy), shape)), numpy.newbyteorder("<")
    except UnsupportedError:
        return None


def _array_of(name: str, value: Any) -> NDArray[Any] | None:
    """The array of a value that can be changed in place, or a copy of it from another device."""
    if isinstance(value, np.ndarray) and not is_masked_array(value):
        return plain_array(value, name)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    if value.device.type != "cpu" or value.is_conj() or value.is_neg():
        return named_tensor(name, value).numpy()
    return cast("NDArray[Any]", provided("bridges.torch_out")(name, value))


def _is_memory_of(array: NDArray[Any], value: Any) -> bool:
    return isinstance(value, np.ndarray) or value.data_ptr() == array.__array_interface__["data"][0]


def _strides(value: Any) -> Sequence[int]:
    """In bytes."""
    if isinstance(value, np.ndarray):
        return value.strides
    return [stride * value.element_size() for stride in value.stride()]


def _write(name: str, value: Any, array: NDArray[Any], copy: NDArray[Any]) -> None:
    if _is_memory_of(array, value):
        np.copyto(array, copy)
    else:
        value.detach().copy_(provided("bridges.framework")("torch")(name, copy))


def _compared(name: str, value: Any, rows: list[Change]) -> list[Target]:
    """A value that is no array: it can only stay as it is."""
    if any(row.state == "changed" for row in rows):
        raise InputError(
            f"a {type(value).__name__} cannot be changed in place: pass a NumPy array or a PyTorch tensor",
            rule="delta.writable",
            tensor=name,
        )
    units = list(units_of(named_tensor(name, value)))
    if [text_of(unit.tensor.type) for unit in units] != [row.type for row in rows]:
        raise not_base(name, f"it has {plural(len(units), 'part')} of other types")
    return [Target(name, row, memoryview(b"".join(unit.chunks()))) for row, unit in zip(rows, units, strict=True)]


def _apart(targets: list[Target]) -> list[Target]:
    """The targets without those that are tied to another one."""
    arrays = [(target.array, at) for at, target in enumerate(targets) if target.array is not None and target.data]
    contiguous = spans([array for array, _ in arrays])
    if contiguous is not None and first_overlap(*contiguous, same=False) is None:
        return targets
    extents = sorted((*byte_bounds(array), at) for array, at in arrays)
    before: list[tuple[int, int]] = []
    tied: set[int] = set()
    for low, high, at in extents:
        before = [(end, other) for end, other in before if end > low]
        for other in (other for _, other in before):
            one, two = targets[other], targets[at]
            if "changed" not in (one.row.state, two.row.state) or at in tied:
                continue
            if _same_memory(one, two):
                tied.add(at)
            elif shares_memory(cast("NDArray[Any]", one.array), cast("NDArray[Any]", two.array)):
                raise InputError(
                    f"the tensor shares memory with '{escape(one.name)}', and the delta changes one of them",
                    rule="delta.overlap",
                    tensor=two.name,
                )
        before.append((high, at))
    return [target for at, target in enumerate(targets) if at not in tied]


def _same_memory(one: Target, two: Target) -> bool:
    """The same elements, which the delta changes in the same way."""
    a, b = cast("NDArray[Any]", one.array), cast("NDArray[Any]", two.array)
    return (
        (a.__array_interface__["data"], a.strides, one.row.type)
        == (b.__array_interface__["data"], b.strides, two.row.type)
        and one.row.base == two.row.base
        and one.row.digest == two.row.digest
    )
