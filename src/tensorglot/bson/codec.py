"""A codec for pymongo: documents with a `Vector` are stored and read by pymongo's own calls.

    registry = tg.bson.type_registry()
    collection = database.get_collection("products", CodecOptions(type_registry=registry))
    collection.insert_one({"embedding": tg.bson.Vector([0.5, 1.0])})
    collection.find_one()["embedding"]                      # Vector(float32[2]: 0.5, 1.0)

A binary of another subtype, and a payload that breaks a rule of vectors, stay pymongo's
Binary, so that every collection can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tensorglot.bson.vector import Vector, decode
from tensorglot.errors import FormatError
from tensorglot.extras import library
from tensorglot.wire.bson import VECTOR_SUBTYPE

if TYPE_CHECKING:
    from bson.codec_options import TypeCodec, TypeRegistry

__all__ = ["type_codec", "type_registry"]


def type_codec() -> TypeCodec:
    """pymongo's TypeCodec for `Vector`, to add to a TypeRegistry of your own."""
    options, binary = library("bson.codec_options", "mongo"), library("bson.binary", "mongo")

    class VectorCodec(options.TypeCodec):  # type: ignore[misc, name-defined]
        python_type = Vector
        bson_type = binary.Binary

        def transform_python(self, value: Vector) -> Any:
            return value.binary()

        def transform_bson(self, value: Any) -> Any:
            if value.subtype != VECTOR_SUBTYPE:
                return value
            try:
                return decode(value)
            except FormatError:
                return value

    codec: TypeCodec = VectorCodec()
    return codec


def type_registry(codecs: Iterable[Any] = ()) -> TypeRegistry:
    """A TypeRegistry of pymongo that encodes and decodes `Vector`, and has the other codecs given."""
    registry: TypeRegistry = library("bson.codec_options", "mongo").TypeRegistry([type_codec(), *codecs])
    return registry
