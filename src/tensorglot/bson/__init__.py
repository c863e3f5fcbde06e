"""BSON vectors: one at a time, or a million at once.

    payload = tg.bson.encode([0.1, 0.2], "float32")         # what a BSON binary of subtype 9 holds
    vector = tg.bson.decode(payload)                        # Vector(float32[2]: 0.1, 0.2)
    raw = tg.bson.encode_documents(matrix, "embedding")     # a document for each row
    matrix = tg.bson.decode_matrix(raw, "embedding")        # and back

A map of the folder. Bytes and their rules are in `tensorglot.wire.bson*`.

    coerce           the one door: any value to vector data, and the rules for values
    arrays           what coerce stands on: the array of any library's value, nothing missing
    vector           Vector, encode, decode
    documents        one document with vectors, to and from bytes
    extjson          vectors in extended JSON
    matrix           encode_matrix, encode_documents, decode_matrix
    sources          where vectors come from: raw BSON, dumps, cursors, documents, payloads
    assemble         batches of them to one matrix
    inspect          which vector fields documents have
    quantize         a byte or a bit for each number
    other_databases  the bytes of pgvector, sqlite-vec and Redis
    mongodb          read_matrix and write_matrix on a collection
    migrate          arrays of numbers in a collection, turned into vectors
    places           matrices in files and collections, by name: what the command line reads and writes
"""

from tensorglot.bson.assemble import PackedBits
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
    "PackedBits",
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
