"""Extended JSON for vectors, canonical and legacy.

Two functions that fit the hooks of `json`, so that documents of any shape pass:
`json.dumps(document, default=to_extjson)` and `json.loads(text, object_hook=from_extjson)`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from tensorglot.bson.coerce import is_vector
from tensorglot.bson.vector import decode, encode
from tensorglot.errors import FormatError, InputError

__all__ = ["from_extjson", "to_extjson"]

_SUBTYPES = ("09", "9")


def to_extjson(vector: Any, *, legacy: bool = False) -> dict[str, Any]:
    """Encodes a Vector, pymongo's BinaryVector or a Binary of subtype 9.

    As `{"$binary": {"base64": "…", "subType": "09"}}`; legacy, as `{"$binary": "…", "$type": "09"}`.
    """
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
