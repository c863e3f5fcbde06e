"""BSON vectors: one at a time, or a million at once.

    payload = tg.bson.encode([0.1, 0.2], "float32")         # the data of a BSON binary of subtype 9
    vector = tg.bson.decode(payload)                        # Vector(float32[2]: 0.1, 0.2)
    raw = tg.bson.encode_documents(matrix, "embedding")     # a document for each row
    matrix = tg.bson.decode_matrix(raw, "embedding")        # and back

A map of the folder. Bytes and their rules are in `tensorglot.wire.bson*`.

    coerce           converts any value to vector data and checks dtype, range and padding
    arrays           converts a value of any library to a NumPy array, refusing missing elements
    vector           Vector, encode, decode
    documents        vectors in a BSON document and in extended JSON
    codec            pymongo stores and reads Vectors by itself
    matrix           encode_matrix, encode_documents, decode_matrix
    sources          where vectors come from: raw BSON, dumps, cursors, documents, payloads
    assemble         collects batches of vectors in one matrix
    inspect          lists the vector fields of documents with their problems, and arrays of numbers
    quantize         float32 to int8 or to packed bits
    nearest          exact search in a matrix; recall: what quantization costs
    other_databases  the bytes of pgvector, sqlite-vec and Redis
    mongodb          read_matrix and write_matrix on a collection
    lookup           errors for collections and fields that do not exist
    migrate          converts arrays of numbers in a collection to vectors
    embeddings       vectors with their ids and other fields
    columns          ids and fields, as columns of BSON values
    places           files and collections; connects to the collection of a URL
    stored_columns   columns as tensors of a container, written and read in order
    streams          embeddings of a place in batches; parquet for Parquet files
    reading          read_embeddings: from any place
    writing          write_embeddings: to any place; upload for collections
    transfer         from any place to any other, in batches
"""

from tensorglot.bson.assemble import PackedBits
from tensorglot.bson.codec import type_codec, type_registry
from tensorglot.bson.documents import decode_document, encode_document, from_extjson, to_extjson
from tensorglot.bson.embeddings import Embeddings
from tensorglot.bson.inspect import FieldReport, inspect
from tensorglot.bson.matrix import decode_matrix, encode_documents, encode_matrix
from tensorglot.bson.migrate import Migration, migrate
from tensorglot.bson.mongodb import read_matrix, write_matrix
from tensorglot.bson.nearest import Nearest, nearest
from tensorglot.bson.other_databases import from_database, to_database
from tensorglot.bson.quantize import Quantized, from_signed_bits, quantize, to_signed_bits
from tensorglot.bson.reading import read_embeddings
from tensorglot.bson.recall import Recall, recall
from tensorglot.bson.transfer import Transfer, transfer
from tensorglot.bson.upload import Written
from tensorglot.bson.vector import Vector, decode, encode
from tensorglot.bson.writing import write_embeddings
from tensorglot.wire.bson_value import Binary, Int64, Raw

__all__ = [
    "Binary",
    "Embeddings",
    "FieldReport",
    "Int64",
    "Migration",
    "Nearest",
    "PackedBits",
    "Quantized",
    "Raw",
    "Recall",
    "Transfer",
    "Vector",
    "Written",
    "decode",
    "decode_document",
    "decode_matrix",
    "encode",
    "encode_document",
    "encode_documents",
    "encode_matrix",
    "from_database",
    "from_extjson",
    "from_signed_bits",
    "inspect",
    "migrate",
    "nearest",
    "quantize",
    "read_embeddings",
    "read_matrix",
    "recall",
    "to_database",
    "to_extjson",
    "to_signed_bits",
    "transfer",
    "type_codec",
    "type_registry",
    "write_embeddings",
    "write_matrix",
]


def __dir__() -> list[str]:
    return __all__
