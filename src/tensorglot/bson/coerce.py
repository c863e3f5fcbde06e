"""Coerces any value to vector data: one C-contiguous little-endian array of a vector dtype.

Three steps. A value that is a vector already (ours, pymongo's BinaryVector, a Binary of
subtype 9, a quantized or packed matrix) is unwrapped and keeps its dtype and padding.
Any other value is converted to an array (`arrays.to_array`). Then kind, range, padding
and ignored bits are checked, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_integer, check_choice
from tensorglot.bson.arrays import array_of_list, first_index, is_raw_bytes, to_array
from tensorglot.dynd.schema import check_void
from tensorglot.errors import FormatError, InputError, TensorglotError
from tensorglot.model.dtypes import dtype_of
from tensorglot.wire.bson import VECTOR_SUBTYPE, view
from tensorglot.wire.bson_value import Binary
from tensorglot.wire.bson_vector import (
    HEAD_NBYTES,
    IGNORED_BITS,
    IgnoredBits,
    Kind,
    Row,
    check_padding,
    find_kind,
    row_of,
)

__all__ = [
    "NUMPY",
    "DType",
    "DTypeName",
    "VectorData",
    "apply_ignored_bits",
    "coerce_integers",
    "coerce_vector",
    "is_vector",
    "unpack_bits",
]

DTypeName: TypeAlias = Literal["int8", "float32", "packed_bit"]
DType: TypeAlias = str | int | Enum | None
"""A vector dtype: our name, the specification's name or number, pymongo's enumeration, or None to infer it."""

NUMPY: Final[dict[str, np.dtype[Any]]] = {
    "int8": np.dtype("<i1"),
    "float32": np.dtype("<f4"),
    "packed_bit": np.dtype("<u1"),
}
"""The stored element type; packed_bit stores eight bits per byte."""

_INFERRED = {"float": "float32", "int8": "int8", "uint8": "packed_bit", "bool": "packed_bit"}
"""Vector dtypes that can be inferred from the type of an array."""


@dataclass(frozen=True, slots=True)
class VectorData:
    """Valid stored data: one vector, or a matrix with a vector per row."""

    data: NDArray[Any]
    kind: Kind
    padding: int

    @property
    def dtype(self) -> str:
        return self.kind.name

    @property
    def row(self) -> Row:
        return Row(self.kind, self.padding, self.data.shape[-1] * self.data.itemsize)

    def numbers(self) -> NDArray[Any]:
        """The numbers; one bool per bit for packed_bit."""
        return unpack_bits(self.data, self.padding) if self.kind.name == "packed_bit" else self.data


def unpack_bits(data: NDArray[np.uint8], padding: int) -> NDArray[np.bool_]:
    """Unpacks the last axis to one bool per bit, without the ignored bits."""
    return np.unpackbits(data, axis=-1, count=8 * data.shape[-1] - padding).view(np.bool_)


def is_vector(value: Any) -> bool:
    """Whether a value carries its own dtype and padding, so that it is not treated as plain numbers or bytes."""
    # pymongo's Binary is a subclass of bytes with a subtype. Its BinaryVector is recognised by its attributes.
    if isinstance(value, (bytes, Binary)):
        return getattr(value, "subtype", None) == VECTOR_SUBTYPE
    return all(hasattr(value, name) for name in ("padding", "dtype", "data"))


def coerce_vector(
    value: Any, dtype: DType | Kind, padding: int | None, ndim: int, ignored_bits: IgnoredBits = "error"
) -> VectorData:
    """Converts a value to vector data of `ndim` dimensions, or raises InputError with the reason."""
    check_choice(ignored_bits, IGNORED_BITS, "ignored_bits", "bson.ignored_bits")
    kind = None if dtype is None else find_kind(dtype)
    padding = None if padding is None else _as_padding(padding)
    if is_vector(value):
        array, own_kind, own_padding = _unwrap(value)
        if kind not in (None, own_kind) or padding not in (None, own_padding):
            raise InputError(
                f"dtype or padding contradicts the vector, which is {own_kind.name} with padding {own_padding}",
                rule="bson.vector.dtype",
            )
        kind, padding = own_kind, own_padding
    else:
        _refuse_raw_bytes(value, kind)
        numbers = to_array(value)
        if ndim == 2 and isinstance(numbers, list) and not _is_plain(numbers):
            return _stack(numbers, kind, ignored_bits)
        array = array_of_list(numbers) if isinstance(numbers, list) else numbers
    family = _family(array)
    if array.ndim != ndim:
        hint = "; call encode_matrix for a matrix" if ndim == 1 and array.ndim == 2 else ""
        raise InputError(f"expected ndim {ndim}, got an array of ndim {array.ndim}{hint}", rule="bson.vector.rank")
    check_void(array.shape)
    kind = kind or _infer(array, family, value)
    if family == "bool" and kind.name == "packed_bit":
        return _pack_bits(array, kind, padding)
    data = np.ascontiguousarray(_convert(array, family, kind))
    padding = padding or 0
    check_padding(kind, padding, data.shape[-1] * data.itemsize)
    return VectorData(apply_ignored_bits(data, padding, ignored_bits, InputError), kind, padding)


def coerce_integers(value: Any, low: int, high: int) -> NDArray[np.int16]:
    """Converts a value to an integer array of any shape, with all elements from `low` to `high`."""
    array = _unwrap(value)[0] if is_vector(value) else _dense(value)
    if array.size and (array.dtype.kind not in "iu" or array.min() < low or array.max() > high):
        raise InputError(f"expected integers from {low} to {high}", rule="quantize.signed")
    return array.astype(np.int16)


def apply_ignored_bits(
    data: NDArray[Any], padding: int, ignored_bits: IgnoredBits, error: type[TensorglotError] = FormatError
) -> NDArray[Any]:
    """Refuses, keeps or clears ignored bits that are set."""
    mask = (1 << padding) - 1
    if not mask or ignored_bits == "keep" or not (data[..., -1] & mask).any():
        return data
    if ignored_bits == "error":
        raise error(
            f"the last {padding} bits are padding and must be zero; pass ignored_bits='keep' or 'zero' to accept them",
            rule="bson.vector.ignored_bits",
        )
    data = data.copy()
    data[..., -1] &= 255 ^ mask
    return data


def _unwrap(value: Any) -> tuple[NDArray[Any], Kind, int]:
    """Returns the numbers, dtype and padding of a value that `is_vector` accepts."""
    if isinstance(value, (bytes, Binary)):
        payload = view(value.data if isinstance(value, Binary) else value)
        row = row_of(payload)
        return np.frombuffer(payload[HEAD_NBYTES:], NUMPY[row.kind.name]), row.kind, row.padding
    return _dense(value.data), find_kind(value.dtype), _as_padding(value.padding)


def _dense(value: Any) -> NDArray[Any]:
    numbers = to_array(value)
    return array_of_list(numbers) if isinstance(numbers, list) else numbers


def _refuse_raw_bytes(value: Any, kind: Kind | None) -> None:
    """Refuses ambiguous bytes: encoding a payload a second time, as packed bits, would be a silent error."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return
    subtype = getattr(value, "subtype", 0)
    if subtype:
        raise InputError(f"binary of subtype {subtype} is not a vector (subtype 9)", rule="bson.vector.subtype")
    if kind is None and is_raw_bytes(value):
        raise InputError(
            "bytes may be a payload or packed bits: call decode() for a payload, pass dtype='packed_bit' for bits",
            rule="bson.vector.dtype",
        )


def _is_plain(rows: Sequence[Any]) -> bool:
    """Whether np.asarray can convert the rows at once: lists of numbers, or arrays of one dtype."""
    types = set(map(type, rows))
    if types == {np.ndarray}:
        return len({row.dtype for row in rows}) == 1 and not rows[0].dtype.hasobject
    return types <= {list, tuple, int, float, bool}


def _stack(rows: Sequence[Any], kind: Kind | None, ignored_bits: IgnoredBits) -> VectorData:
    """Coerces each row on its own, and stacks them."""
    found: list[VectorData] = []
    for number, row in enumerate(rows):
        if row is None:
            raise InputError(f"row {number} is missing (None): remove it", rule="bson.vector.missing")
        try:
            found.append(coerce_vector(row, kind, None, 1, ignored_bits))
        except TensorglotError as error:
            raise type(error)(f"row {number}: {error.message}", rule=error.rule) from error
        if found[-1].row != found[0].row:
            raise InputError(
                f"rows differ: row 0 is {found[0].row}, row {number} is {found[-1].row}", rule="bson.vector.disagree"
            )
    return VectorData(np.stack([row.data for row in found]), found[0].kind, found[0].padding)


def _infer(array: NDArray[Any], family: str, value: Any) -> Kind:
    """The vector dtype for an array's element type. An empty list has no element type to infer from."""
    if family not in _INFERRED or (isinstance(value, (list, tuple)) and not array.size):
        what = array.dtype if array.size else "an empty list"
        raise InputError(
            f"cannot infer a vector dtype from {what}; pass dtype= int8, float32 or packed_bit",
            rule="bson.vector.dtype",
        )
    return find_kind(_INFERRED[family])


def _family(array: NDArray[Any]) -> str:
    """Classifies an array as bool, float, int8, uint8 or int (any other width)."""
    if array.dtype.kind in "OSUTMmc" or array.dtype.fields:
        raise InputError(f"a vector needs real numbers, found {array.dtype}", rule="bson.vector.kind")
    name = dtype_of(array.dtype).name
    if name in _INFERRED:
        return name
    return "float" if "float" in name else "int"


def _convert(array: NDArray[Any], family: str, kind: Kind) -> NDArray[Any]:
    """Converts the values to the stored type; nothing but rounding to float32 may change them."""
    target = NUMPY[kind.name]
    if array.size == 0:
        return array.astype(target)
    if kind.name == "float32" and family != "bool":
        return _as_float32(array, target)
    if family in ("float", "bool"):
        raise InputError(f"{kind.name} needs integers, found {array.dtype}", rule="bson.vector.kind")
    info = np.iinfo(target)
    if array.dtype != target:
        array = array.astype(np.int8) if array.dtype.kind == "V" else array
        _refuse_outside((array < info.min) | (array > info.max), array, f"{info.min} to {info.max}")
    return array.astype(target, copy=False)


def _as_float32(array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype == target:
        return array
    with np.errstate(over="ignore"):
        data = array.astype(target)
    # Only a wider float can overflow: every integer of 64 bits is below the largest float32.
    if array.dtype.itemsize > 4 and array.dtype.kind == "f":
        _refuse_outside(np.isinf(data) & np.isfinite(array), array, "the range of float32")
    return data


def _refuse_outside(wrong: NDArray[np.bool_], array: NDArray[Any], span: str) -> None:
    if wrong.any():
        at = first_index(wrong)
        raise InputError(f"element {at} is {array[at]}, outside {span}", rule="bson.vector.range")


def _pack_bits(bits: NDArray[Any], kind: Kind, padding: int | None) -> VectorData:
    """Packs bools to eight bits per byte, the first in the highest bit."""
    own = -bits.shape[-1] % 8
    if padding not in (None, own):
        raise InputError(f"{bits.shape[-1]} bits need padding {own}, not {padding}", rule="bson.vector.padding")
    return VectorData(np.packbits(bits, axis=-1), kind, own)


def _as_padding(padding: Any) -> int:
    return as_integer(padding, "padding", "bson.vector.padding", 0, 7)
