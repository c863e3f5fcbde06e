"""Vectors in BSON documents and in extended JSON, canonical and legacy.

A document is encoded and decoded whole. For JSON there are two functions that fit the hooks
of `json`, for documents of any shape: `json.dumps(document, default=to_extjson)` and
`json.loads(text, object_hook=from_extjson)`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from tensorglot.arguments import check_flags, check_mapping
from tensorglot.bson.coerce import is_vector
from tensorglot.bson.columns import as_bson
from tensorglot.bson.vector import Vector, decode, encode
from tensorglot.errors import FormatError, InputError
from tensorglot.wire import bson_value
from tensorglot.wire.bson import VECTOR_SUBTYPE, view

__all__ = ["decode_document", "encode_document", "from_extjson", "to_extjson"]

_SUBTYPES = ("09", "9")


def encode_document(fields: Mapping[str, Any]) -> bytes:
    """Encodes one BSON document of plain Python values, Vectors, `Raw`, and any value that pymongo can encode."""
    check_mapping(fields, "a document", "bson.document")
    return bson_value.encode_document(fields, as_bson)


def decode_document(data: Any) -> dict[str, Any]:
    """Decodes one BSON document; vectors become Vectors, types that Python lacks become `Raw`.

    Encoding the result gives the same bytes again.
    """
    return bson_value.decode_document(view(data), _as_vector)


def _as_vector(value: bson_value.Binary) -> bson_value.Binary | Vector:
    return decode(value.data) if value.subtype == VECTOR_SUBTYPE else value


def to_extjson(vector: Any, *, legacy: bool = False) -> dict[str, Any]:
    """Encodes a Vector, pymongo's BinaryVector or a Binary of subtype 9.

    As `{"$binary": {"base64": "…", "subType": "09"}}`; legacy, as `{"$binary": "…", "$type": "09"}`.
    """
    check_flags(legacy=legacy)
    if not is_vector(vector):
        raise InputError(f"expected a vector, got {type(vector).__name__}", rule="extjson.value")
    text = base64.b64encode(encode(vector, ignored_bits="keep")).decode("ascii")
    return {"$binary": text, "$type": "09"} if legacy else {"$binary": {"base64": text, "subType": "09"}}


def from_extjson(value: dict[str, Any]) -> Any:
    """Returns the Vector that the object encodes; any other value is returned unchanged."""
    found = _vector_text(value) if isinstance(value, dict) else None
    if found is None:
        return value
    try:
        payload = base64.b64decode(found, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError("invalid base64 in the $binary of a vector", rule="extjson.base64") from error
    return decode(payload)


def _vector_text(value: dict[str, Any]) -> str | None:
    """Returns the base64 text if the object is a binary of subtype 9, in either form."""
    inner = value.get("$binary")
    if isinstance(inner, dict) and value.keys() == {"$binary"} and inner.keys() == {"base64", "subType"}:
        text, subtype = inner["base64"], inner["subType"]
    elif value.keys() == {"$binary", "$type"}:
        text, subtype = inner, value["$type"]
    else:
        return None
    return text if isinstance(text, str) and subtype in _SUBTYPES else None
