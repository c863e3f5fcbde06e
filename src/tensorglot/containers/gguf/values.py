"""The metadata values of GGUF, which have more types than Python: widths of numbers, types of array elements.

A value is read as a plain Python value if the writer would choose the type that it has in
the file. Otherwise it is an `Integer`, `Real` or `Array`, which remembers its type. So
metadata that passes through a dict is written with the types that it was read with.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorglot.errors import UnsupportedError

__all__ = ["ARRAY", "BOOL", "DEPTH", "SCALARS", "STRING", "encode_pairs", "encode_text", "find_faults", "typed"]

SCALARS: dict[int, str] = {
    0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8",
}  # fmt: skip
"""NumPy dtypes of numeric types."""
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = 4, 5, 6, 7, 8, 9, 10, 11, 12
DEPTH = 8
"""Levels of nested arrays."""
_KINDS = {np.dtype(name): kind for kind, name in SCALARS.items()}
_RANGES = {
    kind: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for kind, name in SCALARS.items() if name[0] in "iu"
}
_SMALLEST_FIRST = (INT32, UINT32, INT64, UINT64)
"""Types tried for the integers of an array; a single integer is unsigned if it can be, as in llama.cpp's keys."""


class Integer(int):
    """An integer of another type than the writer would choose."""

    kind: int


class Real(float):
    """A float of another width than the writer would choose."""

    kind: int


class Array(list[Any]):
    """Elements of another type than the writer would choose."""

    kind: int
    """Type code of the elements."""


def typed(value: Any, kind: int) -> Any:
    """A value as read; for an array, `kind` is that of its elements."""
    if isinstance(value, list):
        if _elements_kind(value) == kind:
            return value
        array = Array(value)
        array.kind = kind
        return array
    if isinstance(value, (bool, str, bytes)) or _kind(value) == kind:
        return value
    number: Integer | Real = Real(value) if isinstance(value, float) else Integer(value)
    number.kind = kind
    return number


def _kind(value: Any) -> int:
    """The type to write a value as; ValueError if there is none."""
    if isinstance(value, (Integer, Real)):
        return value.kind
    if isinstance(value, np.generic):
        return _numpy_kind(value.dtype)
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, (str, bytes)):
        return STRING
    if isinstance(value, int):
        return _integer_kind(value, value, (UINT32, INT32, UINT64, INT64))
    if isinstance(value, float):
        return _float_kind([value])
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _numpy_kind(value.dtype)
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (bytearray, memoryview)):
        return ARRAY
    raise ValueError(f"GGUF has no metadata type for {type(value).__name__}")


def _numpy_kind(dtype: np.dtype[Any]) -> int:
    kind = _KINDS.get(dtype.newbyteorder("=")) if dtype.kind in "iufb" else None
    if kind is None:
        raise ValueError(f"GGUF has no metadata type for {dtype}")
    return kind


def _integer_kind(least: int, largest: int, kinds: Sequence[int]) -> int:
    for kind in kinds:
        if _RANGES[kind][0] <= least and largest <= _RANGES[kind][1]:
            return kind
    raise ValueError("an integer exceeds 64 bits")


def _float_kind(values: Sequence[float]) -> int:
    """float32 if that represents all values exactly, as for llama.cpp's own keys; otherwise float64."""
    layout = struct.Struct(f"<{len(values)}f")
    try:
        narrow = layout.unpack(layout.pack(*values))
    except OverflowError:
        return FLOAT64
    exact = all(one == other or one != one for one, other in zip(narrow, values, strict=True))
    return FLOAT32 if exact else FLOAT64


def _elements_kind(values: Any) -> int:
    if isinstance(values, Array):
        return values.kind
    if isinstance(values, np.ndarray):
        return ARRAY if values.ndim > 1 else _numpy_kind(values.dtype)
    if len(values) == 0:
        return INT32
    kinds = set(map(type, values))
    if kinds <= {str, bytes}:
        return STRING
    if kinds == {bool}:
        return BOOL
    if kinds == {int}:
        return _integer_kind(min(values), max(values), _SMALLEST_FIRST)
    if kinds == {float}:
        return _float_kind(values)
    if kinds <= {list, Array}:
        return ARRAY
    found = {_kind(value) for value in values}
    if len(found) > 1:
        raise ValueError("the elements of a GGUF array must have one type")
    return found.pop()


def find_faults(metadata: Mapping[str, Any], version: str) -> dict[str, str]:
    """The keys that cannot be written, each with the reason."""
    faults: dict[str, str] = {}
    for key, value in metadata.items():
        try:
            _encode_pair(key, value)
        except ValueError as error:
            faults[key] = str(error)
    return faults


def encode_pairs(metadata: Mapping[str, Any]) -> bytes:
    """The pairs of the header."""
    try:
        return b"".join(_encode_pair(key, value) for key, value in metadata.items())
    except ValueError as error:
        raise UnsupportedError(str(error), rule="gguf.write.metadata") from None


def _encode_pair(key: str, value: Any) -> bytes:
    kind = _kind(value)
    return encode_text(key) + struct.pack("<I", kind) + _encode(value, kind, DEPTH)


def encode_text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _encode(value: Any, kind: int, depth: int) -> bytes:
    if kind == STRING:
        if isinstance(value, bytes) and _is_text(value):
            raise ValueError("these bytes would be read as text: pass a str")
        return encode_text(value)
    if kind != ARRAY:
        return _encode_numbers([value], kind)
    if depth == 0:
        raise ValueError(f"arrays nested deeper than {DEPTH} levels")
    inner = _elements_kind(value)
    head = struct.pack("<IQ", inner, len(value))
    if inner in SCALARS:
        return head + _encode_numbers(value, inner)
    return head + b"".join(_encode(item, inner, depth - 1) for item in value)


def _encode_numbers(values: Any, kind: int) -> bytes:
    try:
        return np.asarray(values, f"<{SCALARS[kind]}" if kind != BOOL else "?").tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None
