"""DyND values as JSON and back, for people and for tools that read only JSON.

The type decides how JSON is read. Values that JSON has no form for are written as:

    bytes     {"$hex": "00ff"}           complex   [real, imaginary]
    NaN, ±∞   "NaN" "Infinity" …         type      its text
    float128  {"$hex": …}                bits      "0x7ff00000000007a2", only read
    array[T]  {"$type": …, "$value": …}  merkle    the CID; merkle[Any] as array[merkle[T]]
    dates, times and durations: ISO 8601 text; decimals: text; a map: a list of pairs
"""

from __future__ import annotations

import json
import math
import reprlib
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from tensorglot.dynd.coerce.anything import coerce, typeof
from tensorglot.dynd.export.python import to_python
from tensorglot.dynd.merkle import Link
from tensorglot.dynd.temporal import from_iso, to_iso
from tensorglot.dynd.tensors import from_tensor, to_tensor
from tensorglot.errors import InputError
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import Complex, Fixed, Map, Option, Pointer, Scalar, Storage, Struct, Tuple, Var
from tensorglot.model.types.base import Type
from tensorglot.model.types.temporal import Date, Unit
from tensorglot.model.types.temporal import Decimal as DecimalType
from tensorglot.model.types.text import parse

__all__ = ["from_json", "to_json"]

_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(tensor: Tensor) -> Any:
    """A value that `json.dumps(…, allow_nan=False)` accepts."""
    return _plain(to_python(from_tensor(tensor), to_tensor, to_tensor))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if value != value else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Tensor):
        return {"$type": str(value.type), "$value": to_json(value)}
    if isinstance(value, Decimal):
        return str(value)
    if (text := to_iso(value)) is not None:
        return text
    return str(value.cid) if isinstance(value, Link) else str(value) if isinstance(value, Type) else value


def _finite(digits: str) -> float:
    """A finite number; a number that would round to infinity is an error."""
    if math.isinf(number := float(digits)):
        raise InputError(f"{digits:.60} is out of range for float64", rule="dynd.range")
    return number


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InputError("an object has a duplicate key", rule="dynd.json")
    return found


def from_json(text: str | bytes, type: Type | None = None) -> Tensor:
    """The value of a JSON text."""
    try:
        document = json.loads(
            text, parse_constant=_NUMBERS.__getitem__, parse_float=_finite, object_pairs_hook=_refuse_duplicates
        )
        value = _decode(document) if type is None else _decode_typed(document, type)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"invalid JSON: {error}", rule="dynd.json") from error
    return coerce(value, typeof(value) if type is None else type)


def _decode(value: Any) -> Any:
    """JSON without a type: objects with $ are decoded, everything else stays."""
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        special = _special(value)
        return {name: _decode(item) for name, item in value.items()} if special is None else special
    return value


def _special(value: dict[str, Any]) -> Any | None:
    if value.keys() == {"$hex"}:
        try:
            return bytes.fromhex(value["$hex"])
        except (TypeError, ValueError) as error:
            raise InputError(
                "$hex must be a string of hexadecimal digits, two for each byte", rule="dynd.json"
            ) from error
    if value.keys() == {"$type", "$value"}:
        type = parse(str(value["$type"]))
        return coerce(_decode_typed(value["$value"], type), type)
    return None


def _decode_typed(value: Any, type: Type) -> Any:
    """A JSON value converted to what `coerce` takes for a type."""
    while isinstance(type, Pointer | Option | Storage):
        type = type.element
    if isinstance(value, list):
        if isinstance(type, Complex) and len(value) == 2:
            return _complex(type, [_decode_typed(part, type.part) for part in value])
        if isinstance(type, Fixed | Var):
            return [_decode_typed(item, type.element) for item in value]
        if isinstance(type, Map):
            return [_decode_typed(item, Tuple(type.children)) for item in value]
        if isinstance(type, Tuple) and len(value) == len(type.elements):
            return tuple(map(_decode_typed, value, type.elements))
        return value
    if isinstance(value, dict):
        if isinstance(type, Struct):
            fields = dict(type.fields)
            return {name: _decode_typed(item, fields[name]) if name in fields else item for name, item in value.items()}
        special = _special(value)
        return value if special is None else special
    return _read(value, type) if isinstance(value, str) else value


def _complex(type: Complex, parts: list[Any]) -> complex:
    if all(isinstance(part, int | float | np.floating) for part in parts):
        with suppress(OverflowError):
            return complex(*parts)
    raise InputError(f"{reprlib.repr(parts)} is not a valid {type}", rule="dynd.value")


def _read(text: str, type: Type) -> Any:
    """The value that a JSON string stands for in a position of this type."""
    if isinstance(type, Scalar):
        return _number(text, type)
    if isinstance(type, Date | Unit):
        return from_iso(type, text)
    if not isinstance(type, DecimalType):
        return text
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise InputError(f"{text!r:.60} is not a valid {type}", rule="dynd.value") from error


def _number(text: str, type: Scalar) -> Any:
    """A number written as a string: NaN, an infinity, or its bits in hexadecimal. Other text is returned unchanged."""
    if text in _NUMBERS:
        return _NUMBERS[text]
    try:
        bits = int(text, 16).to_bytes(type.dtype.bits // 8, "little") if text.startswith("0x") else b""
    except (ValueError, OverflowError):
        return text
    if not bits or type.dtype.numpy is None:
        return bits or text
    return np.frombuffer(bits, type.dtype.numpy)[0]
