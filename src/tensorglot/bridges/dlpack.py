"""DLPack export and import, including the element types that NumPy's own DLPack refuses.

NumPy exchanges integers, floats, complex numbers and bools. A bfloat16 or float8 array is
exported as integers of its width, and then the type code in the exchanged structure is
corrected; imports are the reverse. Nothing is copied. Types of fewer than eight bits have
no agreed packing, and are refused.
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import InputError, NotExportable, UnsupportedError
from tensorglot.model.dtypes import BY_NAME, dtype_of
from tensorglot.model.payload import Memory
from tensorglot.model.tensor import Tensor

__all__ = ["Exporter", "from_tensor", "to_numpy"]

_UINT = 1
_CODES = {
    "bfloat16": 4,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
"""DLDataTypeCode of the types that NumPy does not exchange. Each has one width."""
_NAMES = {code: name for name, code in _CODES.items()}

_CODE_OFFSET = {b"dltensor": 20, b"dltensor_versioned": 52}
"""Offset of the type code in each form of the structure: data, device and rank precede it, and in the versioned
form the version, the manager's two pointers and the flags before those."""
_CPU = (1, 0)
_HOST_DEVICES = (1, 3, 11)
"""CPU, and memory of CUDA and ROCm that the CPU can reach."""


class Exporter(Protocol):
    """An object with DLPack's two methods."""

    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


def from_tensor(
    tensor: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """The capsule of `Tensor.__dlpack__`, by the rules of the array API: BufferError if it cannot be exported."""
    if stream is not None:
        raise InputError("CPU memory has no streams: pass stream=None", rule="dlpack.stream", tensor=tensor.name)
    if dl_device is not None and tuple(dl_device) != _CPU:
        raise NotExportable(
            f"the tensor is in CPU memory: dl_device must be {_CPU} or None", rule="dlpack.device", tensor=tensor.name
        )
    held = _memory_of(tensor)
    if copy is False and held is None:
        raise NotExportable(
            "the tensor must be read from its file, which is a copy", rule="dlpack.copy", tensor=tensor.name
        )
    try:
        array = tensor.numpy()
    except UnsupportedError as error:
        raise NotExportable(error.message, rule=error.rule, tensor=tensor.name) from error
    row = dtype_of(array.dtype) if array.dtype.name in BY_NAME else None
    if row is None or row.packed:
        raise NotExportable(f"DLPack has no type for {array.dtype}", rule="dlpack.dtype", tensor=tensor.name)
    # Only DLPack 1.0 can mark memory as read-only; for an older consumer such an array is copied.
    signalled = max_version is not None and max_version >= (1, 0)
    shared = held is not None and (array.size == 0 or np.may_share_memory(array, held))
    if copy is False and not (shared and (array.flags.writeable or signalled)):
        raise NotExportable("the tensor cannot be exported without a copy", rule="dlpack.copy", tensor=tensor.name)
    if (copy and shared) or not (array.flags.writeable or signalled):
        array = array.copy()
    options: dict[str, Any] = {"max_version": max_version} if signalled else {}
    if row.name not in _CODES:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _type_code(capsule).value = _CODES[row.name]
    return capsule


def _memory_of(tensor: Tensor) -> NDArray[Any] | None:
    """The memory that contains the elements of a tensor; None if they must be read from a file."""
    part = tensor.parts.get("data") if tensor.layout == "dense" else None
    if part is None:
        return None
    if isinstance(part.payload, Memory):
        return part.payload.array
    view = part.payload.view(whole=False)
    return None if view is None else np.frombuffer(view, np.uint8)


def to_numpy(value: Exporter) -> NDArray[Any]:
    """An exporter's data as an array, without a copy if the CPU can reach its memory."""
    incoming = _Incoming(value)
    array: NDArray[Any] = np.from_dlpack(incoming)
    return array if incoming.name is None else array.view(BY_NAME[incoming.name].require_numpy())


class _Incoming:
    """Wraps an exporter: a type that NumPy lacks is presented as an unsigned integer, and remembered in `name`."""

    def __init__(self, value: Exporter) -> None:
        self._value = value
        self.name: str | None = None

    def __dlpack__(self, **options: Any) -> Any:
        if self._value.__dlpack_device__()[0] not in _HOST_DEVICES:
            options["dl_device"] = _CPU
        try:
            capsule = self._value.__dlpack__(**options)
        except TypeError:  # an exporter older than DLPack 1.0, whose method takes no options
            capsule = self._value.__dlpack__()
        code = _type_code(capsule)
        self.name = _NAMES.get(code.value)
        if self.name is not None:
            code.value = _UINT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


def _type_code(capsule: Any) -> ctypes.c_uint8:
    name = _capsule_name(capsule)
    return ctypes.c_uint8.from_address(_capsule_pointer(capsule, name) + _CODE_OFFSET[name])


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.argtypes = [ctypes.py_object]
_capsule_name.restype = ctypes.c_char_p
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p
