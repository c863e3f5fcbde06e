"""Encodes and decodes documents that contain vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorglot.arguments import check_mapping
from tensorglot.bson.coerce import is_vector
from tensorglot.bson.vector import Vector, decode, encode
from tensorglot.errors import InputError
from tensorglot.wire import bson_value
from tensorglot.wire.bson import VECTOR_SUBTYPE, view

__all__ = ["decode_document", "encode_document"]


def encode_document(fields: Mapping[str, Any]) -> bytes:
    """Encodes one BSON document of plain Python values, Vectors, `Raw`, pymongo's ObjectId, Binary and BinaryVector."""
    check_mapping(fields, "a document", "bson.document")
    return bson_value.encode_document(fields, _as_binary)


def decode_document(data: Any) -> dict[str, Any]:
    """Decodes one BSON document; vectors become Vectors, types that Python lacks become `Raw`.

    Encoding the result gives the same bytes again.
    """
    return bson_value.decode_document(view(data), _as_vector)


def _as_binary(value: Any) -> bson_value.Binary:
    if is_vector(value):
        return bson_value.Binary(VECTOR_SUBTYPE, encode(value, ignored_bits="keep"))
    raise InputError(f"BSON does not support {type(value).__name__}", rule="bson.value")


def _as_vector(value: bson_value.Binary) -> bson_value.Binary | Vector:
    return decode(value.data) if value.subtype == VECTOR_SUBTYPE else value
