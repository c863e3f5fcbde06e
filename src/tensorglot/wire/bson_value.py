"""Decodes one BSON document to Python values, and encodes it back to the same bytes.

To round-trip, an int64 becomes `Int64`, and a type that Python lacks becomes `Raw`.
Stricter than drivers: duplicate keys and arrays with other keys than 0, 1, 2, … are
refused. The caller's hooks convert binaries.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np

from tensorglot.errors import FormatError, InputError, escape
from tensorglot.kernels import bson_walk as walk
from tensorglot.wire.bson import ARRAY, BINARY, DEPTH, DOCUMENT, NULL, key_bytes, kind_name, refusal

__all__ = [
    "Binary",
    "Int64",
    "Raw",
    "decode_document",
    "decode_value",
    "document_of",
    "encode_document",
    "encode_value",
    "refuse",
]

_INT32 = struct.Struct("<i")
_INT64 = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

DOUBLE, STRING, OBJECT_ID, BOOL, DATE, REGEX = 0x01, 0x02, 0x07, 0x08, 0x09, 0x0B
INT32, INT64, DECIMAL = 0x10, 0x12, 0x13
_DECIMAL_DIGITS = 34


class Int64(int):
    """An integer that is encoded as int64, however small."""


@dataclass(frozen=True, slots=True)
class Binary:
    """Bytes with a subtype."""

    subtype: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Raw:
    """The bytes of a value that Python has no type for: an ObjectId, a timestamp, a regular expression."""

    kind: int
    data: bytes

    def __repr__(self) -> str:
        return f"Raw({kind_name(self.kind)}, {self.data.hex()})"


def _as_is(value: Any) -> Any:
    return value


def decode_document(data: memoryview, binary: Callable[[Binary], Any] = _as_is) -> dict[str, Any]:
    """Decodes the document that fills `data`. `binary` converts binaries of any subtype but 0."""
    fault, at, count = walk.count(data, 0, len(data))
    if fault:
        raise refusal(fault, at)
    if count != 1:
        raise FormatError(f"expected one document, found {count}", rule="bson.document.one", offset=at)
    return _fields(data, 0, len(data), binary, 1)


def decode_value(
    data: memoryview, kind: int, begin: int, end: int, binary: Callable[[Binary], Any] = _as_is, depth: int = 1
) -> Any:
    """Decodes the value at `begin` to `end`; the bounds are checked already."""
    if kind in (DOCUMENT, ARRAY):
        if depth >= DEPTH:
            raise refusal(walk.DEPTH, begin)
        fields = _fields(data, begin, end, binary, depth + 1)
        return fields if kind == DOCUMENT else _items(fields, begin)
    raw = bytes(data[begin:end])
    if kind == STRING:
        return _text(raw[4:-1], begin)
    if kind == BINARY:
        subtype = raw[4]
        return raw[5:] if subtype == 0 else binary(Binary(subtype, raw[9:] if subtype == 2 else raw[5:]))
    decode = _DECODERS.get(kind)
    return Raw(kind, raw) if decode is None else decode(raw)


def _fields(data: memoryview, begin: int, end: int, binary: Callable[[Binary], Any], depth: int) -> dict[str, Any]:
    at, last = begin + 4, end - 1
    fields: dict[str, Any] = {}
    while at < last:
        kind = data[at]
        value = walk.name_end(data, at + 1, last)
        after = value if value < 0 else walk.value_end(data, kind, value, last)
        if after < 0:
            raise refusal(after, at)
        key = _text(bytes(data[at + 1 : value - 1]), at)
        if key in fields:
            raise refusal(walk.DUPLICATE, at)
        fields[key] = decode_value(data, kind, value, after, binary, depth)
        at = after
    return fields


def _items(fields: dict[str, Any], offset: int) -> list[Any]:
    if any(key != str(i) for i, key in enumerate(fields)):
        raise FormatError("array keys are not 0, 1, 2, …", rule="bson.array.keys", offset=offset)
    return list(fields.values())


def _text(raw: bytes, offset: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise FormatError("invalid UTF-8 in a string or key", rule="bson.utf8", offset=offset) from error


def _date(raw: bytes) -> datetime | Raw:
    try:
        return _EPOCH + int(_INT64.unpack(raw)[0]) * _MILLISECOND
    except OverflowError:
        return Raw(DATE, raw)


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    DOUBLE: lambda raw: _DOUBLE.unpack(raw)[0],
    BOOL: lambda raw: raw == b"\1",
    DATE: _date,
    NULL: lambda raw: None,
    INT32: lambda raw: _INT32.unpack(raw)[0],
    INT64: lambda raw: Int64(_INT64.unpack(raw)[0]),
}


def refuse(value: object) -> NoReturn:
    """Raises the error for a value of a type that BSON lacks."""
    raise InputError(f"BSON does not support {type(value).__name__}", rule="bson.value")


def encode_document(fields: Mapping[str, Any], default: Callable[[Any], Any] = refuse, depth: int = 1) -> bytes:
    """Encodes a document. `default` converts values of other types to a supported one."""
    if depth > DEPTH:
        raise InputError(f"documents nest more than {DEPTH} levels deep", rule="bson.depth")
    body = b"".join(_element(key, *encode_value(value, default, depth)) for key, value in fields.items())
    return document_of(body)


def document_of(elements: bytes) -> bytes:
    """The document that consists of these encoded elements."""
    return _length(len(elements) + 5) + elements + b"\0"


def _length(nbytes: int) -> bytes:
    if nbytes > 0x7FFFFFFF:
        raise InputError("a BSON value must be smaller than 2 GiB", rule="bson.length")
    return _INT32.pack(nbytes)


def _element(key: str, kind: int, value: bytes) -> bytes:
    if not isinstance(key, str):
        raise InputError(f"a key must be a string, not {type(key).__name__}", rule="bson.key")
    return bytes((kind,)) + key_bytes(key) + value


def encode_value(value: Any, default: Callable[[Any], Any] = refuse, depth: int = 1) -> tuple[int, bytes]:
    """Encodes one value, also NumPy scalars and pymongo's ObjectId and Binary; returns its BSON type and bytes."""
    if isinstance(value, np.generic):
        value = _python_value(value)
    if value is None:
        return NULL, b""
    if isinstance(value, bool):
        return BOOL, bytes((value,))
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return DOUBLE, _DOUBLE.pack(value)
    if isinstance(value, str) and type(value).__name__ != "Code":  # pymongo's Code is a str of another BSON type
        return STRING, _string(value)
    if isinstance(value, bytes):
        return BINARY, _binary(getattr(value, "subtype", 0), value)
    if isinstance(value, Binary):
        return BINARY, _binary(value.subtype, value.data)
    if isinstance(value, Raw):
        return value.kind, _check_raw(value)
    if isinstance(value, datetime):
        return DATE, _milliseconds(value)
    if isinstance(value, Decimal):
        return DECIMAL, _decimal(value)
    if isinstance(value, Mapping):
        return DOCUMENT, encode_document(value, default, depth + 1)
    if isinstance(value, (list, tuple)):
        return ARRAY, encode_document({str(i): item for i, item in enumerate(value)}, default, depth + 1)
    if type(value).__name__ == "ObjectId" and isinstance(getattr(value, "binary", None), bytes):
        return OBJECT_ID, value.binary
    return encode_value(default(value), refuse, depth)


def _python_value(value: np.generic) -> Any:
    plain = value.item()
    if isinstance(value, (np.datetime64, np.timedelta64)) and isinstance(plain, int):  # a unit below microseconds
        raise InputError(f"BSON does not support {value.dtype}: use milliseconds", rule="bson.value")
    return plain


def _check_raw(value: Raw) -> bytes:
    if walk.value_end(value.data, value.kind, 0, len(value.data)) != len(value.data):
        raise InputError(f"{value!r} is not one valid value of its type", rule="bson.value")
    return value.data


def _integer(value: int) -> tuple[int, bytes]:
    wide = type(value).__name__ == "Int64"
    if not wide and -(1 << 31) <= value < 1 << 31:
        return INT32, _INT32.pack(value)
    if -(1 << 63) <= value < 1 << 63:
        return INT64, _INT64.pack(value)
    raise InputError(f"{value} does not fit int64", rule="bson.value")


def _string(value: str) -> bytes:
    try:
        raw = value.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"'{escape(value)}' is not valid Unicode", rule="bson.utf8") from error
    return _length(len(raw) + 1) + raw + b"\0"


def _binary(subtype: int, data: bytes) -> bytes:
    inner = _length(len(data)) if subtype == 2 else b""
    return _length(len(inner) + len(data)) + bytes((subtype,)) + inner + data


def _decimal(value: Decimal) -> bytes:
    """IEEE 754 decimal128 with a binary integer significand. 34 digits fit in the 113 bits of its first form."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or len(digits) > _DECIMAL_DIGITS or not -6176 <= exponent <= 6111:
        raise InputError(
            f"Decimal128 holds {_DECIMAL_DIGITS} digits and exponents from -6176 to 6111, not {value}",
            rule="bson.decimal",
        )
    number = sign << 127 | (exponent + 6176) << 113 | int("".join(map(str, digits)))
    return number.to_bytes(16, "little")


def _milliseconds(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise InputError("a datetime needs a time zone; pass tzinfo=UTC", rule="bson.date")
    count, rest = divmod(value - _EPOCH, _MILLISECOND)
    if rest:
        raise InputError("BSON dates have millisecond precision; round the microseconds", rule="bson.date")
    return _INT64.pack(count)
