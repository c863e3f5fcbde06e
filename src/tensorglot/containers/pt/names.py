"""The vocabulary of a pickle of tensors: every name that it may refer to, and the value that we make of it.

The names are torch's and Python's; what stands here are values of our own. A name that
is called has a function that checks its arguments and makes a value: a view of a
storage, a dict, a text. A name that is not here cannot be said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorglot.containers.pt.machine import Pairs
from tensorglot.errors import FormatError, UnsupportedError

__all__ = ["DTYPES", "ITEMSIZES", "NAMES", "Kind", "Storage", "View", "build_state", "storage"]

DTYPES: dict[str, str] = {
    f"torch.{name}": name
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
        "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "float8_e8m0fnu",
    )
} | {"torch.float4_e2m1fn_x2": "float4_e2m1fn"}  # fmt: skip
ITEMSIZES: dict[str, int] = {"torch.complex32": 4, "torch.float4_e2m1fn_x2": 1}
"""Of types that are not one element of ours each."""

_STORAGES: dict[str, str] = {
    "BoolStorage": "torch.bool", "ByteStorage": "torch.uint8", "CharStorage": "torch.int8",
    "ShortStorage": "torch.int16", "IntStorage": "torch.int32", "LongStorage": "torch.int64",
    "HalfStorage": "torch.float16", "BFloat16Storage": "torch.bfloat16", "FloatStorage": "torch.float32",
    "DoubleStorage": "torch.float64", "ComplexFloatStorage": "torch.complex64",
    "ComplexDoubleStorage": "torch.complex128",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of elements, as a value of the pickle."""

    name: str


@dataclass(frozen=True, slots=True)
class StorageKind:
    """A class of storages; without a type of elements, one of bytes."""

    dtype: Kind | None


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage that a tensor lies in: elements of `dtype`, or bytes."""

    key: str
    dtype: Kind | None
    count: int
    """Of elements, or of bytes."""
    first: int = 0
    """Where a view of another storage begins in it."""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: elements of a storage, from an offset on, some apart."""

    storage: Storage
    dtype: Kind
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _fault(message: str, rule: str) -> FormatError:
    return FormatError(message, rule=f"pt.{rule}")


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or not all(map(_natural, value)):
        raise _fault("shape and strides must be tuples of non-negative integers", "tensor.shape")
    return value


def storage(pid: Any) -> Storage:
    """A persistent id: ('storage', class, key, location, count), and in the legacy form a view of another storage."""
    if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
        raise UnsupportedError("persistent id is not a storage", rule="pt.storage.id")
    _, kind, key, _, count = pid[:5]
    if not isinstance(kind, StorageKind) or type(key) is not str or not _natural(count):
        raise _fault("invalid storage in a persistent id", "storage.id")
    if len(pid) == 5 or pid[5] is None:
        return Storage(key, kind.dtype, count)
    view = pid[5]
    if type(view) is not tuple or len(view) != 3 or not _natural(view[1]) or not _natural(view[2]):
        raise _fault("invalid view of a storage in a persistent id", "storage.id")
    if view[1] + view[2] > count:
        raise _fault("view extends past the end of its storage", "storage.id")
    return Storage(key, kind.dtype, count, view[1])


def _rebuild_tensor(arguments: tuple[Any, ...]) -> View:
    if len(arguments) < 4 or not isinstance(arguments[0], Storage) or arguments[0].dtype is None:
        raise _fault("invalid arguments of a tensor", "tensor.arguments")
    return _view(arguments[0], arguments[0].dtype, *arguments[1:4])


def _rebuild_tensor_v2(arguments: tuple[Any, ...]) -> View:
    if len(arguments) not in (6, 7):
        raise _fault("invalid arguments of a tensor", "tensor.arguments")
    _refuse_flags(arguments[6:])
    return _rebuild_tensor(arguments)


def _rebuild_tensor_v3(arguments: tuple[Any, ...]) -> View:
    if len(arguments) not in (7, 8) or not isinstance(arguments[0], Storage) or not isinstance(arguments[6], Kind):
        raise _fault("invalid arguments of a tensor", "tensor.arguments")
    _refuse_flags(arguments[7:])
    return _view(arguments[0], arguments[6], *arguments[1:4])


def _refuse_flags(metadata: tuple[Any, ...]) -> None:
    """Flags that change the values: a tensor that is the conjugate or the negative of what is stored."""
    for flags in metadata:
        if flags is not None and (type(flags) is not Pairs or any(value is not False for value in flags[1::2])):
            raise UnsupportedError(
                "a tensor with a conjugate or negative bit: resolve it first", rule="pt.tensor.flags"
            )


def _view(held: Storage, dtype: Kind, offset: Any, shape: Any, strides: Any) -> View:
    if not _natural(offset) or len(_sizes(shape)) != len(_sizes(strides)):
        raise _fault("invalid arguments of a tensor", "tensor.arguments")
    return View(held, dtype, offset, shape, strides)


def _rebuild_parameter(arguments: tuple[Any, ...]) -> View:
    if not arguments or not isinstance(arguments[0], View):
        raise _fault("a parameter that is no tensor", "tensor.arguments")
    return arguments[0]


def _rebuild_from_type(arguments: tuple[Any, ...]) -> View:
    """A tensor with attributes of its own, which are left aside: (function, class, its arguments, state)."""
    if len(arguments) != 4 or arguments[1] not in _CLASSES or type(arguments[2]) is not tuple:
        raise _fault("invalid arguments of a tensor", "tensor.arguments")
    if arguments[0] not in (_rebuild_tensor_v2, _rebuild_tensor_v3, _rebuild_parameter):
        raise _fault("unknown function to rebuild a tensor", "tensor.arguments")
    result: View = arguments[0](arguments[2])
    return result


def _ordered_dict(arguments: tuple[Any, ...]) -> Pairs:
    if not arguments:
        return Pairs()
    if len(arguments) != 1 or type(arguments[0]) is not list:
        raise _fault("invalid arguments of OrderedDict", "dict.arguments")
    pairs = Pairs()
    for item in arguments[0]:
        if type(item) not in (list, tuple) or len(item) != 2:
            raise _fault("invalid arguments of OrderedDict", "dict.arguments")
        pairs.extend(item)
    return pairs


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if len(arguments) != 1:
        raise _fault("invalid arguments of torch.Size", "size.arguments")
    return _sizes(arguments[0])


def _device(arguments: tuple[Any, ...]) -> str:
    if not 1 <= len(arguments) <= 2 or type(arguments[0]) is not str or not all(map(_natural, arguments[1:])):
        raise _fault("invalid arguments of torch.device", "device.arguments")
    return ":".join(map(str, arguments))


def _encode(arguments: tuple[Any, ...]) -> bytes:
    """How protocol 2 writes bytes: as text, with the name of an encoding that keeps every byte."""
    if len(arguments) == 2 and type(arguments[0]) is str and arguments[1] == "latin1":
        try:
            return arguments[0].encode("latin-1")
        except UnicodeEncodeError:
            pass
    raise _fault("invalid arguments of _codecs.encode", "bytes.arguments")


@dataclass(frozen=True, slots=True)
class _Class:
    """A class that is only named."""

    name: str


_CLASSES = (_Class("torch.Tensor"), _Class("torch.nn.parameter.Parameter"))


def build_state(target: Any, state: Any) -> None:
    """State of a dict (torch keeps the versions of modules there) is left aside; nothing else has any."""
    if type(target) is not Pairs:
        raise UnsupportedError("objects with state are not supported", rule="pt.pickle.build")


_FUNCTIONS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "_codecs.encode": _encode,
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch.Size": _size,
    "torch.device": _device,
}

NAMES: dict[str, Any] = {
    **_FUNCTIONS,
    **{name: Kind(name) for name in (*DTYPES, *ITEMSIZES)},
    **{f"torch.{name}": StorageKind(Kind(dtype)) for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": StorageKind(None),
    **{held.name: held for held in _CLASSES},
}
