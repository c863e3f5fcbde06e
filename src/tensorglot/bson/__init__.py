"""BSON vectors: one at a time, or a million at once.

    payload = tg.bson.encode([0.1, 0.2], "float32")         # what a BSON binary of subtype 9 holds
    vector = tg.bson.decode(payload)                        # Vector(float32[2]: 0.1, 0.2)
    raw = tg.bson.encode_documents(matrix, "embedding")     # a document for each row
    matrix = tg.bson.decode_matrix(raw, "embedding")        # and back

Reading and writing a collection is in `tensorglot.bson.mongodb`.
"""

from tensorglot.bson.documents import decode_document, encode_document
from tensorglot.bson.extjson import from_extjson, to_extjson
from tensorglot.bson.inspect import FieldReport, inspect
from tensorglot.bson.matrix import decode_matrix, encode_documents, encode_matrix
from tensorglot.bson.other_databases import from_neighbour, to_neighbour
from tensorglot.bson.quantize import Quantized, from_signed_bits, quantize, to_signed_bits
from tensorglot.bson.vector import Vector, decode, encode
from tensorglot.wire.bson_value import Binary, Int64, Raw

__all__ = [
    "Binary",
    "FieldReport",
    "Int64",
    "Quantized",
    "Raw",
    "Vector",
    "decode",
    "decode_document",
    "decode_matrix",
    "encode",
    "encode_document",
    "encode_documents",
    "encode_matrix",
    "from_extjson",
    "from_neighbour",
    "from_signed_bits",
    "inspect",
    "quantize",
    "to_extjson",
    "to_neighbour",
    "to_signed_bits",
]
