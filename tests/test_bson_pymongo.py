"""Against pymongo, without a server: it reads what we write, we read what it writes, and where we differ."""

from __future__ import annotations

import math
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from bson_samples import EVERY_KIND, document
from peers import needs
from tensorglot.bson import Vector, decode, decode_document, decode_matrix, encode, encode_document, encode_documents

pytestmark = pytest.mark.mongo

RNG = np.random.default_rng(8)
MATRICES = {
    "float32": RNG.standard_normal((50, 21), np.float32),
    "int8": RNG.integers(-128, 128, (50, 21), np.int8),
    "packed_bit": RNG.integers(0, 256, (50, 21), np.uint8),
}


@pytest.fixture(scope="module")
def bson() -> Any:
    needs("pymongo")
    needs("bson.raw_bson")
    return needs("bson")


@pytest.mark.parametrize("dtype", MATRICES)
def test_it_reads_every_byte_that_we_write(bson: Any, dtype: str) -> None:
    matrix = MATRICES[dtype]
    for row in matrix:
        binary = Vector(row, dtype).binary()
        assert (type(binary), binary.subtype) == (bson.Binary, 9)
        theirs = binary.as_vector()
        assert (theirs.dtype.name, theirs.padding, theirs.data) == (dtype.upper(), 0, row.tolist())
        assert binary.as_vector(return_numpy=True).data.tobytes() == row.tobytes()
    documents = bson.decode_all(encode_documents(matrix, "a.b", range(50)))
    assert [d["_id"] for d in documents] == list(range(50))
    assert [d["a"]["b"].as_vector().data for d in documents] == matrix.tolist()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_it_reads_our_dumps(bson: Any, dtype: str) -> None:
    documents = bson.decode_all(tg.dumps({"a.b": MATRICES[dtype]}, format="bson"))
    assert [d["a"]["b"].as_vector().data for d in documents] == MATRICES[dtype].tolist()


@pytest.mark.parametrize("dtype", MATRICES)
def test_we_read_what_it_writes(bson: Any, dtype: str) -> None:
    kind = bson.binary.BinaryVectorDtype[dtype.upper()]
    matrix = MATRICES[dtype]
    binaries = [bson.Binary.from_vector(row.tolist(), kind) for row in matrix]
    numbers = np.unpackbits(matrix, axis=1) if dtype == "packed_bit" else matrix
    assert np.array_equal(decode_matrix(binaries), numbers)
    documents = [{"_id": i, "v": binary, "x": [1.5, {"y": None}]} for i, binary in enumerate(binaries)]
    raw = b"".join(bson.encode(d) for d in documents)
    for source in (raw, documents, [bson.raw_bson.RawBSONDocument(bson.encode(d)) for d in documents]):
        for key in ("v", None):
            found, ids = decode_matrix(source, key, ids=True)
            assert np.array_equal(found, numbers)
            assert ids == list(range(50))
    assert [decode(binary) for binary in binaries] == [Vector(row, dtype) for row in matrix]


def test_binary_vector(bson: Any) -> None:
    module = bson.binary
    for dtype, values, padding in (("INT8", [1, -2], 0), ("FLOAT32", [1.5], 0), ("PACKED_BIT", [255, 8], 3)):
        theirs = module.BinaryVector(values, module.BinaryVectorDtype[dtype], padding)
        assert encode(theirs) == bytes(bson.Binary.from_vector(theirs))
        ours = Vector(theirs)
        assert ours.binary_vector() == theirs
        assert ours.binary() == bson.Binary.from_vector(theirs)
        numpy = module.BinaryVector(np.array(values), module.BinaryVectorDtype[dtype], padding)
        assert Vector(numpy) == ours
        assert numpy.data.flags.writeable
        assert encode_document({"v": theirs, "w": ours, "x": ours.binary()}).count(bytes(ours)) == 3
        assert decode_matrix([{"v": theirs}], "v").tolist() == [list(ours)]
        with pytest.raises(tg.InputError, match=r"rule bson\.vector\.dtype"):
            encode(theirs, dtype="int8" if dtype != "INT8" else "float32")
    with pytest.raises(tg.InputError, match=r"rule bson\.vector\.subtype"):
        decode(bson.Binary(b"\x03\0a", 0))


class TestWhereItIsWrong:
    """Five cases of its NumPy path, and truncated payloads. Each shows what it does and what we do."""

    def test_packed_bytes_from_128(self, bson: Any) -> None:
        values = np.array([128, 255], np.uint8)
        with pytest.raises(ValueError):
            bson.Binary.from_vector(values, bson.binary.BinaryVectorDtype.PACKED_BIT)
        assert encode(values, "packed_bit") == b"\x10\0\x80\xff"

    @pytest.mark.parametrize("dtype", ["INT8", "PACKED_BIT"])
    def test_empty(self, bson: Any, dtype: str) -> None:
        with pytest.raises(ValueError):
            bson.Binary.from_vector(np.empty(0, np.int8), bson.binary.BinaryVectorDtype[dtype])
        assert len(encode(np.empty(0, np.int8), dtype.lower())) == 2

    def test_padding(self, bson: Any) -> None:
        wrong = bson.Binary.from_vector(np.zeros(1, np.float32), bson.binary.BinaryVectorDtype.FLOAT32, 3)
        with pytest.raises(tg.FormatError, match=r"rule bson\.vector\.padding"):
            decode(wrong)
        with pytest.raises(tg.InputError, match=r"rule bson\.vector\.padding"):
            encode(np.zeros(1, np.float32), "float32", 3)

    def test_floats_as_int8(self, bson: Any) -> None:
        assert bytes(bson.Binary.from_vector(np.array([1.9]), bson.binary.BinaryVectorDtype.INT8)) == b"\3\0\1"
        with pytest.raises(tg.InputError, match=r"rule bson\.vector\.kind"):
            encode(np.array([1.9]), "int8")

    def test_beyond_float32(self, bson: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = bson.Binary.from_vector(np.array([1e39]), bson.binary.BinaryVectorDtype.FLOAT32)
        assert theirs.as_vector().data == [math.inf]
        with pytest.raises(tg.InputError, match=r"rule bson\.vector\.range"):
            encode(np.array([1e39]), "float32")

    @pytest.mark.parametrize("payload", [b"", b"\3"])
    def test_truncated(self, bson: Any, payload: bytes) -> None:
        with pytest.raises(struct.error):
            bson.Binary(payload, 9).as_vector()
        with pytest.raises(tg.FormatError, match=r"rule bson\.vector\.size"):
            decode(payload)

    def test_equality(self, bson: Any) -> None:
        one, two = (bson.Binary(b"\3\0\1\2", 9).as_vector(return_numpy=True) for _ in range(2))
        with pytest.raises(ValueError):
            bool(one == two)
        assert decode(b"\3\0\1\2") == decode(b"\3\0\1\2")


def test_object_ids(bson: Any) -> None:
    ids = [bson.ObjectId() for _ in range(50)]
    raw = encode_documents(MATRICES["int8"], "v", ids)
    assert [d["_id"] for d in bson.decode_all(raw)] == ids
    found = decode_matrix(raw, "v", ids=True)[1]
    assert [value.data for value in found] == [value.binary for value in ids]
    assert encode_document({"x": ids[0]}) == bson.encode({"x": ids[0]})
    assert encode_document({"x": bson.int64.Int64(3)}) == bson.encode({"x": bson.int64.Int64(3)})


@pytest.mark.parametrize("name", EVERY_KIND)
def test_every_kind_of_value_is_valid_and_round_trips(bson: Any, name: str) -> None:
    raw = document(EVERY_KIND[name])
    if name == "date, far":
        with pytest.raises(bson.errors.InvalidBSON):
            bson.decode(raw)
    else:
        bson.decode(raw)
    assert encode_document(decode_document(raw)) == raw


@settings(max_examples=200)
@given(st.data())
def test_what_we_accept_it_accepts(bson: Any, data: st.DataObject) -> None:
    """A mutated document: where we give a vector, it gives the same numbers."""
    raw = bytearray(encode_documents(MATRICES["int8"][:2], "v", range(2)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        ours = decode_matrix(bytes(raw), "v")
    except tg.TensorglotError:
        return
    try:
        theirs = bson.decode_all(bytes(raw))
    except bson.errors.InvalidBSON as error:
        assert "utf" in str(error).lower() or "date" in str(error).lower()  # noqa: PT017 (skipped values are not decoded)
        return
    assert [d["v"].as_vector().data for d in theirs] == ours.tolist()


payloads = st.one_of(
    st.lists(st.integers(-128, 127), max_size=9).map(lambda values: (values, "INT8", 0)),
    st.lists(st.floats(width=32, allow_nan=False), max_size=9).map(lambda values: (values, "FLOAT32", 0)),
    st.lists(st.integers(0, 255), max_size=9).map(lambda values: ([*values, 0xF8], "PACKED_BIT", 3)),
)


@given(payloads)
def test_the_same_bytes(bson: Any, payload: tuple[Any, ...]) -> None:
    values, dtype, padding = payload
    theirs = bson.Binary.from_vector(values, bson.binary.BinaryVectorDtype[dtype], padding)
    assert encode(values, dtype.lower(), padding) == bytes(theirs)
    assert decode(theirs).tolist() == theirs.as_vector().data


def test_extended_json(bson: Any) -> None:
    json_util = needs("bson.json_util")
    vector = Vector([1.5, -2.0])
    assert json_util.dumps({"v": vector.binary()}, json_options=json_util.CANONICAL_JSON_OPTIONS) == json_util.dumps(
        {"v": tg.bson.to_extjson(vector)}
    )
    for legacy in (False, True):
        assert decode(json_util.object_hook(tg.bson.to_extjson(vector, legacy=legacy))) == vector
    import json

    legacy_text = json_util.dumps({"v": vector.binary()}, json_options=json_util.LEGACY_JSON_OPTIONS)
    assert json.loads(legacy_text, object_hook=tg.bson.from_extjson) == {"v": vector}
