"""BSON vectors: one at a time, or a million at once.

    payload = tg.bson.encode([0.1, 0.2], "float32")         # what a BSON binary of subtype 9 holds
    vector = tg.bson.decode(payload)                        # Vector(float32[2]: 0.1, 0.2)
    raw = tg.bson.encode_documents(matrix, "embedding")     # a document for each row
    matrix = tg.bson.decode_matrix(raw, "embedding")        # and back

Reading and writing a collection is in `tensorglot.bridges.pymongo`.
"""

from tensorglot.bson.matrix import decode_matrix, encode_documents, encode_matrix
from tensorglot.bson.vector import Vector, decode, encode

__all__ = ["Vector", "decode", "decode_matrix", "encode", "encode_documents", "encode_matrix"]
