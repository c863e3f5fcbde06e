"""The globals that a pickle of tensors may refer to, and our value of each. All others are refused.

Names are torch's and Python's; values are ours. A global that can be called is a function
that checks its arguments and makes a value: a view of a storage, a dict, a text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.dtypes import BY_NAME
from tensorglot.tuples import NamedTuple

__all__ = [
    "DTYPES",
    "ITEMSIZES",
    "NAMES",
    "QUANTIZED",
    "TENSORS",
    "WORK",
    "ElementType",
    "Pairs",
    "QuantizedView",
    "SparseViews",
    "Storage",
    "View",
    "build_state",
    "storage",
]

DTYPES: dict[str, str] = {
    f"torch.{name}": name
    for name in (
        "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "bfloat16",
        "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
        "float8_e5m2fnuz", "float8_e8m0fnu",
    )
} | {"torch.float4_e2m1fn_x2": "float4_e2m1fn"}  # fmt: skip
QUANTIZED: dict[str, int] = {
    "torch.qint8": 1, "torch.quint8": 1, "torch.qint32": 4, "torch.quint4x2": 1, "torch.quint2x4": 1,
}  # fmt: skip
"""Types of quantized tensors, whose scales are beside the elements; with the bytes of an element."""
ITEMSIZES: dict[str, int] = {"torch.complex32": 4, "torch.float4_e2m1fn_x2": 1, **QUANTIZED}
"""Bytes per element of torch types that are not one element of ours."""

_STORAGES: dict[str, str] = {
    "BoolStorage": "torch.bool", "ByteStorage": "torch.uint8", "CharStorage": "torch.int8",
    "ShortStorage": "torch.int16", "IntStorage": "torch.int32", "LongStorage": "torch.int64",
    "HalfStorage": "torch.float16", "BFloat16Storage": "torch.bfloat16", "FloatStorage": "torch.float32",
    "DoubleStorage": "torch.float64", "ComplexFloatStorage": "torch.complex64",
    "ComplexDoubleStorage": "torch.complex128", "QInt8Storage": "torch.qint8", "QUInt8Storage": "torch.quint8",
    "QInt32Storage": "torch.qint32", "QUInt4x2Storage": "torch.quint4x2", "QUInt2x4Storage": "torch.quint2x4",
}  # fmt: skip


class Pairs(list[Any]):
    """A dict: keys and values in turn, in their order."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class ElementType:
    """A torch.dtype."""

    name: str

    @property
    def itemsize(self) -> int:
        return ITEMSIZES.get(self.name) or BY_NAME[DTYPES[self.name]].bits // 8


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A class of storages."""

    dtype: ElementType | None
    """None for a storage of bytes."""


class Storage(NamedTuple):
    """A storage, which several tensors may share."""

    key: str
    dtype: ElementType | None
    """None for a storage of bytes."""
    size: int
    """Number of elements, or of bytes."""
    first: int = 0
    """The position of the first element, for a view of another storage."""

    @property
    def itemsize(self) -> int:
        return 1 if self.dtype is None else self.dtype.itemsize


class View(NamedTuple):
    """A tensor: a strided view of a storage."""

    storage: Storage
    dtype: ElementType
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SparseViews:
    """A sparse tensor: the tensors that it consists of."""

    layout: str
    """PyTorch's name: sparse_coo, sparse_csr, …"""
    indices: tuple[View, ...]
    """Coordinates of COO; the compressed and the plain indices of all others."""
    values: View
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QuantizedView:
    """A quantized tensor: a view of its codes, and what makes real values of them."""

    codes: View
    scales: float | View
    zeros: int | View
    axis: int
    """The axis of the scales and zeros, if these are views."""


TENSORS = (View, SparseViews, QuantizedView)


@dataclass(frozen=True, slots=True)
class _LayoutName:
    name: str


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How a tensor is quantized."""

    name: str


_PER_TENSOR = (_Scheme("torch.per_tensor_affine"), _Scheme("torch.per_tensor_symmetric"))
_PER_CHANNEL = (_Scheme("torch.per_channel_affine"), _Scheme("torch.per_channel_symmetric"))


def _require(valid: bool, message: str, rule: str) -> None:
    if not valid:
        raise FormatError(message, rule=f"pt.{rule}")


def _require_arguments(valid: bool, what: str, rule: str) -> None:
    if not valid:
        raise _invalid_arguments(what, rule)


def _invalid_arguments(what: str, rule: str) -> FormatError:
    return FormatError(f"invalid arguments of {what}", rule=f"pt.{rule}.arguments")


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _sizes(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or (value and not all(map(_natural, value))):
        raise FormatError("shape and strides must be tuples of non-negative integers", rule="pt.tensor.shape")
    sizes: tuple[int, ...] = value
    return sizes


def storage(pid: Any) -> Storage:
    """Parses a persistent id: ('storage', class, key, location, count); legacy files add a view of another storage."""
    if type(pid) is not tuple or len(pid) not in (5, 6) or pid[0] != "storage":
        raise UnsupportedError("persistent id is not a storage", rule="pt.storage.id")
    _, kind, key, _, count = pid[:5]
    valid = isinstance(kind, StorageClass) and type(key) is str and _natural(count)
    _require(valid, "invalid storage in a persistent id", "storage.id")
    if len(pid) == 5 or pid[5] is None:
        return Storage(key, kind.dtype, count)
    view = pid[5]
    valid = type(view) is tuple and len(view) == 3 and _natural(view[1]) and _natural(view[2])
    _require(valid, "invalid view of a storage in a persistent id", "storage.id")
    _require(view[1] + view[2] <= count, "view extends past the end of its storage", "storage.id")
    return Storage(key, kind.dtype, count, view[1])


def _rebuild_tensor(arguments: tuple[Any, ...]) -> View:
    held = arguments[0] if len(arguments) >= 4 else None
    if type(held) is not Storage or held.dtype is None:
        raise _invalid_arguments("a tensor", "tensor")
    return _view(held, held.dtype, arguments[1], arguments[2], arguments[3])


def _rebuild_tensor_v2(arguments: tuple[Any, ...]) -> View:
    if len(arguments) != 6:
        _require_arguments(len(arguments) == 7, "a tensor", "tensor")
        _refuse_flags(arguments[6:])
    return _rebuild_tensor(arguments)


def _rebuild_tensor_v3(arguments: tuple[Any, ...]) -> View:
    valid = len(arguments) in (7, 8) and isinstance(arguments[0], Storage) and isinstance(arguments[6], ElementType)
    _require_arguments(valid, "a tensor", "tensor")
    _refuse_flags(arguments[7:])
    return _view(arguments[0], arguments[6], *arguments[1:4])


def _refuse_flags(metadata: tuple[Any, ...]) -> None:
    """Refuses flags that change the values: the conjugate and the negative bit."""
    for flags in metadata:
        if flags is not None and (type(flags) is not Pairs or any(value is not False for value in flags[1::2])):
            raise UnsupportedError(
                "conjugate and negative bits are not supported; save tensor.resolve_conj().resolve_neg()",
                rule="pt.tensor.flags",
            )


def _view(held: Storage, dtype: ElementType, offset: Any, shape: Any, strides: Any) -> View:
    if not _natural(offset) or len(_sizes(shape)) != len(_sizes(strides)):
        raise _invalid_arguments("a tensor", "tensor")
    return View(held, dtype, offset, shape, strides)


def _layout(arguments: tuple[Any, ...]) -> _LayoutName:
    valid = len(arguments) == 1 and type(arguments[0]) is str and arguments[0].startswith("torch.sparse_")
    _require_arguments(valid, "a layout", "layout")
    return _LayoutName(arguments[0].removeprefix("torch."))


def _rebuild_sparse(arguments: tuple[Any, ...]) -> SparseViews:
    """(layout, (indices, values, size, coalesced)) for COO, (layout, (compressed, plain, values, size)) for others."""
    valid = len(arguments) == 2 and isinstance(arguments[0], _LayoutName) and type(arguments[1]) is tuple
    _require_arguments(valid, "a sparse tensor", "sparse")
    layout, given = arguments[0].name, arguments[1]
    count = 1 if layout == "sparse_coo" else 2
    valid = count + 2 <= len(given) <= 4 and all(isinstance(view, View) for view in given[: count + 1])
    _require_arguments(valid, "a sparse tensor", "sparse")
    return SparseViews(layout, given[:count], given[count], _sizes(given[count + 1]))


def _rebuild_quantized(arguments: tuple[Any, ...]) -> QuantizedView:
    """(storage, offset, shape, strides, (scheme, scales, zeros, axis), …); no axis if there is one scale."""
    valid = len(arguments) in (6, 7) and type(arguments[4]) is tuple and len(arguments[4]) in (3, 4)
    _require_arguments(valid, "a quantized tensor", "quantized")
    codes = _rebuild_tensor(arguments)
    scheme, scales, zeros, *axis = arguments[4]
    one = scheme in _PER_TENSOR and not axis and type(scales) is float and type(zeros) is int
    many = scheme in _PER_CHANNEL and len(axis) == 1 and _natural(axis[0])
    many = many and isinstance(scales, View) and isinstance(zeros, View)
    _require_arguments(codes.dtype.name in QUANTIZED and (one or many), "a quantized tensor", "quantized")
    return QuantizedView(codes, scales, zeros, axis[0] if axis else 0)


def _rebuild_parameter(arguments: tuple[Any, ...]) -> Any:
    _require_arguments(bool(arguments) and isinstance(arguments[0], TENSORS), "a parameter", "tensor")
    return arguments[0]


def _rebuild_from_type(arguments: tuple[Any, ...]) -> Any:
    """Rebuilds a tensor with Python attributes, which are ignored: (function, class, arguments, state)."""
    valid = len(arguments) == 4 and arguments[1] in _CLASSES and type(arguments[2]) is tuple
    _require_arguments(valid, "a tensor", "tensor")
    known = arguments[0] in (
        _rebuild_tensor_v2,
        _rebuild_tensor_v3,
        _rebuild_parameter,
        _rebuild_sparse,
        _rebuild_quantized,
    )
    _require(known, "unknown function to rebuild a tensor", "tensor.arguments")
    return arguments[0](arguments[2])


def _ordered_dict(arguments: tuple[Any, ...]) -> Pairs:
    items = arguments[0] if arguments else []
    valid = len(arguments) <= 1 and type(items) is list
    valid = valid and all(type(item) in (list, tuple) and len(item) == 2 for item in items)
    _require_arguments(valid, "OrderedDict", "dict")
    return Pairs(value for item in items for value in item)


def _size(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    _require_arguments(len(arguments) == 1, "torch.Size", "size")
    return _sizes(arguments[0])


def _device(arguments: tuple[Any, ...]) -> str:
    valid = 1 <= len(arguments) <= 2 and type(arguments[0]) is str and all(map(_natural, arguments[1:]))
    _require_arguments(valid, "torch.device", "device")
    return ":".join(map(str, arguments))


def _encode(arguments: tuple[Any, ...]) -> bytes:
    """Protocol 2 writes bytes as text in Latin-1."""
    valid = len(arguments) == 2 and type(arguments[0]) is str and arguments[1] == "latin1"
    _require_arguments(valid and max(arguments[0], default="") <= "\xff", "_codecs.encode", "bytes")
    encoded: bytes = arguments[0].encode("latin-1")
    return encoded


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of tensors, which is never instantiated."""

    name: str


_CLASSES = (_Class("torch.Tensor"), _Class("torch.nn.parameter.Parameter"))


def build_state(target: Any, state: Any) -> Pairs:
    """Ignores the state of a dict, where torch keeps module versions; refuses that of any other object."""
    if type(target) is not Pairs:
        raise UnsupportedError("objects with state are not supported", rule="pt.pickle.build")
    return target


_FUNCTIONS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "_codecs.encode": _encode,
    "collections.OrderedDict": _ordered_dict,
    "torch._utils._rebuild_tensor": _rebuild_tensor,
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch._utils._rebuild_qtensor": _rebuild_quantized,
    "torch.serialization._get_layout": _layout,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch.Size": _size,
    "torch.device": _device,
}

WORK: dict[Any, int] = {
    **dict.fromkeys((_rebuild_tensor, _rebuild_tensor_v2, _rebuild_tensor_v3), 60),
    **dict.fromkeys((_rebuild_sparse, _rebuild_quantized), 90),
}
"""The work of calls that make tensors, whose arguments are made for each of them: of the bytes that a pickler writes,
at least 18 for a view, 33 for a quantized tensor and 56 for a sparse one, each allows 4."""

NAMES: dict[str, Any] = {
    **_FUNCTIONS,
    **{name: ElementType(name) for name in (*DTYPES, *ITEMSIZES)},
    **{f"torch.{name}": StorageClass(ElementType(dtype)) for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": StorageClass(None),
    **{held.name: held for held in (*_CLASSES, *_PER_TENSOR, *_PER_CHANNEL)},
}
