"""PyTorch: its tensors to arrays and back, without a copy.

The names of element types are the same on both sides, so there is no table of them.
Types of ml_dtypes are exchanged as integers of their width; PyTorch packs float4 in
pairs, which are unpacked and packed. An array that must not be written to is copied,
unless it is memory of a file that is mapped privately.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bridges.table import Bridge
from tensorglot.bridges.torch_layouts import from_sparse, of_quantized, of_sparse, plain_sparse
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError, StateError, UnsupportedError
from tensorglot.extras import torch
from tensorglot.io.local import PrivateMapping
from tensorglot.model.dtypes import BY_NAME, dtype_of, pack, unpack
from tensorglot.model.layouts import COO, CSR
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type

_PAIR = "float4_e2m1fn_x2"
_FLOAT4 = BY_NAME["float4_e2m1fn"]

__all__ = ["BRIDGE", "array_type", "as_device", "from_numpy", "from_tensor", "shared_array", "to_numpy", "to_tensor"]


def from_numpy(name: str, array: NDArray[Any]) -> torch.Tensor:
    """A PyTorch tensor that shares the memory of the array, or of the private mapping it is a view of; else a copy."""
    exchanged, dtype = _exchange(array.dtype)
    if exchanged is None:
        if array.dtype == _FLOAT4.numpy and hasattr(torch, _PAIR) and array.ndim and array.shape[-1] % 2 == 0:
            pairs = pack(array, _FLOAT4).reshape(*array.shape[:-1], array.shape[-1] // 2)
            return torch.from_numpy(pairs).view(getattr(torch, _PAIR))
        raise UnsupportedError(f"PyTorch does not support {array.dtype}", rule="torch.dtype", tensor=name)
    if not array.flags.writeable:
        array = _private(array)
    if array.size and min(array.strides, default=0) < 0:
        array = array.copy()
    if dtype is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(exchanged)).view(dtype)


@cache
def _exchange(dtype: np.dtype[Any]) -> tuple[np.dtype[Any] | None, Any]:
    """The NumPy type in which an array is passed to PyTorch (None if unsupported), and PyTorch's type if it differs."""
    try:
        row = dtype_of(dtype)
    except UnsupportedError:  # an array of records, times or text
        return None, None
    own = getattr(torch, row.name, None)
    if row.packed or not isinstance(own, torch.dtype):
        return None, None
    return (dtype, None) if _native(row.name) else (np.dtype(f"u{dtype.itemsize}"), own)


def _private(array: NDArray[Any]) -> NDArray[Any]:
    """A writable array for a read-only one: the same memory if it is mapped privately, else a copy.

    PyTorch has no read-only tensors, and a write to a private mapping does not reach the file.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, PrivateMapping):
        return array.copy()
    offset = array.__array_interface__["data"][0] - base.address
    return np.ndarray(array.shape, array.dtype, base, offset, array.strides) if array.size else array.copy()


def from_tensor(tensor: Tensor, device: Any = None) -> torch.Tensor:
    """The result of `Tensor.torch`."""
    if tensor.layout in (COO, CSR):
        found = from_sparse(tensor, from_numpy(tensor.name, tensor.parts["values"].array(tensor.name)))
    else:
        found = from_numpy(tensor.name, tensor.numpy())
    return found if device is None else found.to(as_device(device))


def as_device(device: Any) -> torch.device:
    """The device of a name, a number or a device; the CPU for None. A device that is not available is refused."""
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError) as error:
        message = str(error).partition("\n")[0]
        raise StateError(f"{device!r} is not a device: {message}", rule="torch.device") from error
    try:
        torch.empty(0, device=found)
    except (AssertionError, ImportError, RuntimeError) as error:  # PyTorch asserts that it was compiled for the device
        message = str(error).partition("\n")[0]
        raise StateError(f"{device!r} is not available: {message}", rule="torch.device") from error
    return found


def to_tensor(value: torch.Tensor | torch.Size, wanted: Type | None) -> Tensor:
    """A tensor of any layout that a container can hold."""
    if isinstance(value, torch.Size):  # the only value of PyTorch that is plain Python, too
        return coerce(tuple(value), wanted)
    if value.is_quantized:
        return of_quantized(value)
    if value.layout is not torch.strided and not (value.is_nested or value.is_mkldnn):
        plain = plain_sparse(value)
        return of_sparse(plain, to_numpy("", plain.values()))
    return coerce(to_numpy("", value), wanted)


def to_numpy(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    """The array of a tensor of any stride, on any device; on the CPU it shares the tensor's memory."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind, dense = ("nested", "to_padded_tensor()") if tensor.is_nested else (tensor.layout, "to_dense()")
        raise InputError(
            f"a {kind} tensor is not supported here: convert it with {dense}", rule="torch.layout", tensor=name or None
        )
    if tensor.is_meta:
        raise StateError("Cannot copy out of meta tensor: it has no values", rule="torch.meta", tensor=name or None)
    if torch.nn.parameter.is_lazy(tensor):
        raise StateError(
            "the parameter has no shape yet: call the module once, or load into it",
            rule="torch.lazy",
            tensor=name or None,
        )
    dtype, exchanged = _array_type(tensor.dtype)
    if dtype is None:
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind == _PAIR and tensor.ndim:
            pairs = tensor.detach().cpu().view(torch.uint8).contiguous().numpy()
            values = unpack(pairs.reshape(-1), 2 * pairs.size, _FLOAT4)
            return values.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
        raise UnsupportedError(f"PyTorch's {kind} is not supported", rule="torch.dtype", tensor=name)
    plain = tensor.detach() if tensor.requires_grad else tensor
    if not plain.is_cpu:
        plain = plain.cpu()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    try:
        array: NDArray[Any] = (plain if exchanged is None else plain.view(exchanged)).numpy()
    except RuntimeError as error:  # a subclass without memory of its own, as of torch.distributed
        raise InputError(
            f"a {type(tensor).__name__} has no array: convert it to a plain tensor, as with full_tensor()",
            rule="torch.subclass",
            tensor=name or None,
        ) from error
    return array if exchanged is None else array.view(dtype)


def array_type(dtype: torch.dtype) -> np.dtype[Any] | None:
    """NumPy's type for an element type of PyTorch; None if NumPy has none."""
    return _array_type(dtype)[0]


@cache
def _array_type(dtype: torch.dtype) -> tuple[np.dtype[Any] | None, torch.dtype | None]:
    """NumPy's type for one of PyTorch, and the integer type in which it is exchanged if NumPy itself lacks it."""
    kind = str(dtype).removeprefix("torch.")
    row = BY_NAME.get(kind)
    if row is None or row.packed:
        return None, None
    return row.require_numpy(), None if _native(kind) else getattr(torch, f"uint{row.bits}")


def shared_array(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    """A writable array over the memory of a tensor."""
    if not tensor.is_cpu:
        raise InputError(
            f"out is on {tensor.device}: load to the CPU, then copy_() to the device", rule="out.device", tensor=name
        )
    if tensor.is_conj() or tensor.is_neg() or tensor.dtype is getattr(torch, _PAIR, None):
        raise InputError(
            "out is a conjugate, negative or packed view: pass a plain tensor", rule="out.view", tensor=name
        )
    return to_numpy(name, tensor)


def _native(dtype: str) -> bool:
    """A type of NumPy itself, not of ml_dtypes."""
    return np.dtype(BY_NAME[dtype].require_numpy()).isbuiltin == 1


BRIDGE = Bridge(to_tensor, from_numpy=from_numpy)
