"""The door: whatever holds numbers becomes one C-contiguous little-endian array of a vector's dtype.

Lists, NumPy, torch, buffers, our own vectors and pymongo's all pass here, once, for
single vectors and for matrices; behind it there is one path. Every rule for values
(range, kind, padding, ignored bits) is checked here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, InputError, TensorglotError
from tensorglot.model.dtypes import dtype_of
from tensorglot.wire.bson_vector import IgnoredBits, Kind, check_padding, kind_called

__all__ = ["NUMPY", "DTypeName", "VectorData", "apply_ignored_bits", "coerce_vector"]

DTypeName: TypeAlias = Literal["int8", "float32", "packed_bit"]

NUMPY: Final[dict[str, np.dtype[Any]]] = {
    "int8": np.dtype("<i1"),
    "float32": np.dtype("<f4"),
    "packed_bit": np.dtype("<u1"),
}
"""What the elements of each dtype are at rest; of bits, eight together."""

_INFERRED = {"float": "float32", "int8": "int8", "uint8": "packed_bit", "bool": "packed_bit"}
"""The dtypes that an array's own type leaves no doubt about."""


@dataclass(frozen=True, slots=True)
class VectorData:
    """Data that may be stored as it is."""

    data: NDArray[Any]
    kind: Kind
    padding: int


def coerce_vector(
    value: Any, dtype: str | None, padding: int | None, ndim: int, ignored_bits: IgnoredBits = "error"
) -> VectorData:
    """The value as vector data of `ndim` dimensions, or a refusal that says what is wrong with it."""
    value, dtype, padding = _unwrap(value, dtype, padding)
    array = _array(value)
    family = _family(array)
    if array.ndim != ndim:
        hint = ": encode_matrix takes two" if ndim == 1 and array.ndim == 2 else ""
        raise InputError(f"{ndim} dimensions are needed, here are {array.ndim}{hint}", rule="bson.vector.rank")
    if dtype is None:
        dtype = None if isinstance(value, (list, tuple)) and not array.size else _INFERRED.get(family)
        if dtype is None:
            what = array.dtype if array.size else "an empty list"
            raise InputError(f"name a dtype for {what}: int8, float32 or packed_bit", rule="bson.vector.dtype")
    kind = kind_called(dtype)
    if family == "bool" and kind.name == "packed_bit":
        return _packed(array, kind, padding)
    data = np.ascontiguousarray(_converted(array, family, kind))
    padding = _whole(padding)
    nbytes = data.shape[-1] * data.itemsize
    check_padding(kind, padding, nbytes)
    return VectorData(apply_ignored_bits(data, padding, ignored_bits, InputError), kind, padding)


def apply_ignored_bits(
    data: NDArray[Any], padding: int, ignored_bits: IgnoredBits, error: type[TensorglotError] = FormatError
) -> NDArray[Any]:
    """The data with the ignored bits refused, kept or cleared where they are set."""
    if ignored_bits not in ("error", "keep", "zero"):
        raise InputError(f"ignored_bits is 'error', 'keep' or 'zero', not {ignored_bits!r}", rule="bson.ignored_bits")
    mask = (1 << padding) - 1
    if not mask or ignored_bits == "keep" or not (data[..., -1] & mask).any():
        return data
    if ignored_bits == "error":
        raise error(f"the last {padding} bits are ignored and must be zero", rule="bson.vector.ignored_bits")
    data = data.copy()
    data[..., -1] &= 255 ^ mask
    return data


def _unwrap(value: Any, dtype: str | None, padding: int | None) -> tuple[Any, str | None, int | None]:
    """What carries its own dtype and padding: our vectors and quantized matrices, pymongo's BinaryVector."""
    if not all(hasattr(value, name) for name in ("padding", "dtype", "data")):
        return value, dtype, padding
    own = str(getattr(value.dtype, "name", value.dtype)).lower()
    if dtype not in (None, own) or padding not in (None, value.padding):
        raise InputError(f"it is {own} with padding {value.padding} already", rule="bson.vector.dtype")
    return value.data, own, value.padding


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, NotImplementedError):
        pass
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"not an array of numbers: {error}", rule="bson.vector.kind") from error


def _family(array: NDArray[Any]) -> str:
    """bool, float, int8, uint8 or int, whatever the width."""
    if array.dtype.kind in "OSUMmc" or array.dtype.fields:
        raise InputError(f"a vector holds real numbers, not {array.dtype}", rule="bson.vector.kind")
    name = dtype_of(array.dtype).name
    if name in _INFERRED:
        return name
    return "float" if "float" in name else "int"


def _converted(array: NDArray[Any], family: str, kind: Kind) -> NDArray[Any]:
    """The values in the form of the kind, none of them changed beyond rounding to float32."""
    target = NUMPY[kind.name]
    if array.size == 0:
        return array.astype(target)
    if kind.name == "float32" and family != "bool":
        return _as_float32(array, target)
    if family in ("float", "bool"):
        raise InputError(f"{kind.name} is made of integers, not of {array.dtype}", rule="bson.vector.kind")
    info = np.iinfo(target)
    if array.dtype != target:
        array = array.astype(np.int8) if array.dtype.kind == "V" else array
        _refuse_first((array < info.min) | (array > info.max), array, f"{info.min} to {info.max}")
    return array.astype(target, copy=False)


def _as_float32(array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype == target:
        return array
    with np.errstate(over="ignore"):
        data = array.astype(target)
    if array.dtype.itemsize > 4 and array.dtype.kind == "f":
        _refuse_first(np.isinf(data) & np.isfinite(array), array, "the range of float32")
    return data


def _refuse_first(wrong: NDArray[Any], array: NDArray[Any], span: str) -> None:
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        where = at[0] if len(at) == 1 else at
        raise InputError(f"element {where} is {array[at]}, outside {span}", rule="bson.vector.range")


def _packed(bits: NDArray[Any], kind: Kind, padding: int | None) -> VectorData:
    """One bool an element to eight in a byte, the first in the highest bit."""
    own = -bits.shape[-1] % 8
    if padding not in (None, own):
        raise InputError(f"{bits.shape[-1]} bits need padding {own}, not {padding}", rule="bson.vector.padding")
    return VectorData(np.packbits(bits, axis=-1), kind, own)


def _whole(padding: int | None) -> int:
    if padding is None:
        return 0
    if isinstance(padding, bool) or not isinstance(padding, (int, np.integer)):
        raise InputError(f"padding is a whole number, not {padding!r}", rule="bson.vector.padding")
    return int(padding)
