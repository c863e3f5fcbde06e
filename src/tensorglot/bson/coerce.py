"""One door for every function here: any value becomes one C-contiguous little-endian array of a vector's dtype.

Three steps. What is a vector already is unwrapped and stays what it is: ours, pymongo's
BinaryVector, a Binary of subtype 9, a quantized or packed matrix. Any other value
becomes an array of numbers (`arrays.to_array`). Then come the rules for values: range,
kind, padding, ignored bits. They are checked here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.bson.arrays import array_of_list, first_index, to_array
from tensorglot.errors import FormatError, InputError, TensorglotError
from tensorglot.model.dtypes import dtype_of
from tensorglot.wire.bson import VECTOR_SUBTYPE, view
from tensorglot.wire.bson_value import Binary
from tensorglot.wire.bson_vector import HEAD_NBYTES, IgnoredBits, Kind, Row, check_padding, kind_called, row_of

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
"""A dtype as callers name it: ours, the specification's name or number, pymongo's enumeration, or None to infer it."""

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
    """Data that may be stored as it is: one vector, or a matrix with a vector in each row."""

    data: NDArray[Any]
    kind: Kind
    padding: int

    @property
    def dtype(self) -> str:
        return self.kind.name

    @property
    def row(self) -> Row:
        return Row(self.kind, self.padding, self.data.shape[-1] * self.data.itemsize)

    def unpacked(self) -> NDArray[Any]:
        """The numbers; of bits, a bool for each."""
        return unpack_bits(self.data, self.padding) if self.kind.name == "packed_bit" else self.data


def unpack_bits(data: NDArray[np.uint8], padding: int) -> NDArray[np.bool_]:
    """One bool for each bit of the last axis, without the ignored ones."""
    return np.unpackbits(data, axis=-1, count=8 * data.shape[-1] - padding).view(np.bool_)


def is_vector(value: Any) -> bool:
    """Whether a value carries its own dtype and padding, and so is never taken for plain numbers or bytes."""
    if isinstance(value, (bytes, Binary)):
        return getattr(value, "subtype", None) == VECTOR_SUBTYPE
    return all(hasattr(value, name) for name in ("padding", "dtype", "data"))


def coerce_vector(
    value: Any, dtype: DType | Kind, padding: int | None, ndim: int, ignored_bits: IgnoredBits = "error"
) -> VectorData:
    """The value as vector data of `ndim` dimensions, or a refusal that says what is wrong with it."""
    kind = None if dtype is None else kind_called(dtype)
    padding = None if padding is None else _whole(padding)
    if is_vector(value):
        array, own_kind, own_padding = _unwrap(value)
        if kind not in (None, own_kind) or padding not in (None, own_padding):
            raise InputError(
                f"the vector is {own_kind.name} with padding {own_padding} already", rule="bson.vector.dtype"
            )
        kind, padding = own_kind, own_padding
    else:
        _refuse_raw_bytes(value, kind)
        numbers = to_array(value)
        if ndim == 2 and isinstance(numbers, list) and not _is_plain(numbers):
            return _stack(numbers, kind, ignored_bits)
        array = _dense(numbers)
    family = _family(array)
    if array.ndim != ndim:
        hint = "; encode_matrix takes a matrix" if ndim == 1 and array.ndim == 2 else ""
        raise InputError(f"expected {ndim} dimensions, got {array.ndim}{hint}", rule="bson.vector.rank")
    kind = kind or _infer(array, family, value)
    if family == "bool" and kind.name == "packed_bit":
        return _packed(array, kind, padding)
    data = np.ascontiguousarray(_converted(array, family, kind))
    padding = padding or 0
    check_padding(kind, padding, data.shape[-1] * data.itemsize)
    return VectorData(apply_ignored_bits(data, padding, ignored_bits, InputError), kind, padding)


def coerce_integers(value: Any, low: int, high: int, rule: str) -> NDArray[np.int16]:
    """An array of any shape, of integers in a range that 16 bits hold."""
    array = _unwrap(value)[0] if is_vector(value) else _dense(value)
    if array.size and (array.dtype.kind not in "iu" or array.min() < low or array.max() > high):
        raise InputError(f"expected integers from {low} to {high}", rule=rule)
    return array.astype(np.int16)


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
        raise error(
            f"the last {padding} bits are padding and must be zero; ignored_bits='keep' or 'zero' accepts them",
            rule="bson.vector.ignored_bits",
        )
    data = data.copy()
    data[..., -1] &= 255 ^ mask
    return data


def _unwrap(value: Any) -> tuple[NDArray[Any], Kind, int]:
    """The numbers, dtype and padding of what `is_vector` accepts."""
    if isinstance(value, (bytes, Binary)):
        payload = view(value.data if isinstance(value, Binary) else value)
        row = row_of(payload)
        return np.frombuffer(payload[HEAD_NBYTES:], NUMPY[row.kind.name]), row.kind, row.padding
    return _dense(value.data), kind_called(value.dtype), _whole(value.padding)


def _dense(value: Any) -> NDArray[Any]:
    numbers = to_array(value)
    return array_of_list(numbers) if isinstance(numbers, list) else numbers


def _refuse_raw_bytes(value: Any, kind: Kind | None) -> None:
    """Bytes may be a payload or packed bits: wrapping a payload again as bits would be a silent error."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        return
    subtype = getattr(value, "subtype", 0)
    if subtype:
        raise InputError(f"a binary of subtype {subtype} is not a vector (subtype 9)", rule="bson.vector.subtype")
    if kind is None and (not isinstance(value, memoryview) or value.format in ("B", "c")):
        raise InputError(
            "bytes may be a payload or packed bits: decode() reads a payload, dtype='packed_bit' takes bits",
            rule="bson.vector.dtype",
        )


def _is_plain(rows: Sequence[Any]) -> bool:
    """Whether NumPy sees the rows as they are: lists of numbers, or its own arrays of one dtype."""
    types = set(map(type, rows))
    if types == {np.ndarray}:
        return len({row.dtype for row in rows}) == 1 and not rows[0].dtype.hasobject
    return types <= {list, tuple, int, float, bool}


def _stack(rows: Sequence[Any], kind: Kind | None, ignored_bits: IgnoredBits) -> VectorData:
    """Rows that are values of their own, each through the door, as one matrix."""
    found: list[VectorData] = []
    for number, row in enumerate(rows):
        if row is None:
            raise InputError(f"row {number} is missing: leave it out", rule="bson.vector.missing")
        try:
            found.append(coerce_vector(row, kind, None, 1, ignored_bits))
        except TensorglotError as error:
            raise type(error)(f"row {number}: {error.message}", rule=error.rule) from error
        if found[-1].row != found[0].row:
            raise InputError(
                f"rows disagree: row 0 is {found[0].row}, row {number} is {found[-1].row}",
                rule="bson.vector.disagree",
            )
    return VectorData(np.stack([row.data for row in found]), found[0].kind, found[0].padding)


def _infer(array: NDArray[Any], family: str, value: Any) -> Kind:
    """The dtype that follows from an array's own; from an empty list none does."""
    if family not in _INFERRED or (isinstance(value, (list, tuple)) and not array.size):
        what = array.dtype if array.size else "an empty list"
        raise InputError(f"pass dtype= for {what}: int8, float32 or packed_bit", rule="bson.vector.dtype")
    return kind_called(_INFERRED[family])


def _family(array: NDArray[Any]) -> str:
    """bool, float, int8, uint8 or int, whatever the width."""
    if array.dtype.kind in "OSUTMmc" or array.dtype.fields:
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
        raise InputError(f"{kind.name} holds integers, not {array.dtype}", rule="bson.vector.kind")
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
    if array.dtype.itemsize > 4 and array.dtype.kind == "f":
        _refuse_outside(np.isinf(data) & np.isfinite(array), array, "the range of float32")
    return data


def _refuse_outside(wrong: NDArray[np.bool_], array: NDArray[Any], span: str) -> None:
    if wrong.any():
        at = first_index(wrong)
        raise InputError(f"element {at} is {array[at]}, outside {span}", rule="bson.vector.range")


def _packed(bits: NDArray[Any], kind: Kind, padding: int | None) -> VectorData:
    """One bool an element to eight in a byte, the first in the highest bit."""
    own = -bits.shape[-1] % 8
    if padding not in (None, own):
        raise InputError(f"{bits.shape[-1]} bits need padding {own}, not {padding}", rule="bson.vector.padding")
    return VectorData(np.packbits(bits, axis=-1), kind, own)


def _whole(padding: Any) -> int:
    if isinstance(padding, bool) or not isinstance(padding, (int, np.integer)):
        raise InputError(f"padding is an integer from 0 to 7, not {padding!r}", rule="bson.vector.padding")
    return int(padding)
