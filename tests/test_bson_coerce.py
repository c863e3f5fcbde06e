"""One door: every function takes the same values, refuses the same, and a vector is the vector that it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bson_samples import binary, document, element, vector
from peers import needs
from tensorglot import bson as vectors
from tensorglot.bson import (
    PackedBits,
    Quantized,
    Vector,
    decode,
    decode_matrix,
    encode,
    encode_documents,
    encode_matrix,
)
from tensorglot.dynd import array as dynd_array
from tensorglot.errors import FormatError, InputError, TensorglotError

ROWS = np.array([[0.5, -2.0, 3.0], [1.0, 4.0, -8.0]], np.float32)

ONE: dict[str, Callable[[Any], Any]] = {
    "encode": lambda value: encode(value, "float32"),
    "Vector": lambda value: bytes(Vector(value, "float32")),
    "a row": lambda value: encode_matrix([value, [0.0] * 3], "float32")[0],
    "a document": lambda value: bytes(
        vectors.decode_document(encode_documents([value], "v", dtype="float32"))["v"],
    ),
}
"""What takes one vector's values, each giving its payload."""

MANY: dict[str, Callable[[Any], list[bytes]]] = {
    "encode_matrix": lambda value: encode_matrix(value, "float32"),
    "encode_documents": lambda value: encode_matrix(decode_matrix(encode_documents(value, "v", dtype="float32"))),
    "quantize": lambda value: encode_matrix(vectors.quantize(value).dequantize()),
}
"""What takes a matrix, each giving its payloads."""


def masked(values: Any, *where: Any) -> Any:
    array = np.ma.masked_array(np.array(values, np.float32), mask=False)
    for index in where:
        array[index] = np.ma.masked
    return array


def objects(values: list[Any]) -> Any:
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def optional(module: str) -> Any:
    """Libraries that no environment of ours has to have."""
    return pytest.importorskip(module)


VECTORS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "masked": lambda values: masked(
        [0.0 if v is None else v for v in values], *(i for i, v in enumerate(values) if v is None)
    ),
    "objects": objects,
    "list with masked": lambda values: [np.ma.masked if v is None else v for v in values],
    "dynd": lambda values: dynd_array(values),
    "arrow": lambda values: needs("pyarrow").array(values, "float32"),
    "arrow, chunked": lambda values: needs("pyarrow").chunked_array([values[:1], values[1:]], "float64"),
    "awkward": lambda values: needs("awkward").Array(values),
    "pandas, nullable": lambda values: optional("pandas").Series(values, dtype="Float32"),
    "pandas, objects": lambda values: optional("pandas").Series(values, dtype=object),
    "polars": lambda values: optional("polars").Series(values),
}  # fmt: skip
"""One vector of numbers, of which None stands for a missing one."""


@pytest.mark.filterwarnings("ignore:.*converting a masked element")
@pytest.mark.parametrize("call", ONE)
@pytest.mark.parametrize("kind", VECTORS)
def test_a_vector_is_the_same_from_every_kind_of_value(kind: str, call: str) -> None:
    assert ONE[call](VECTORS[kind]([0.5, -2.0, 3.0])) == b"\x27\0" + ROWS[0].tobytes()
    with pytest.raises(InputError) as caught:
        ONE[call](VECTORS[kind]([0.5, None, 3.0]))
    assert caught.value.rule == "bson.vector.missing"
    assert "fill" in str(caught.value)


MATRICES: dict[str, Callable[[list[list[Any]]], Any]] = {
    "lists": list,
    "numpy": lambda rows: np.array(rows, np.float32),
    "rows of numpy": lambda rows: [np.array(row, np.float32) for row in rows],
    "rows of two dtypes": lambda rows: [np.array(rows[0], np.float32), np.array(rows[1], np.float64)],
    "masked": lambda rows: masked(
        [[0.0 if v is None else v for v in row] for row in rows],
        *((i, k) for i, row in enumerate(rows) for k, v in enumerate(row) if v is None),
    ),
    "rows of masked": lambda rows: [VECTORS["masked"](row) for row in rows],
    "objects": lambda rows: objects(rows),
    "table of objects": lambda rows: np.array(rows, object),
    "dynd": lambda rows: dynd_array(rows),
    "arrow lists": lambda rows: needs("pyarrow").array(rows),
    "arrow fixed lists": lambda rows: (pa := needs("pyarrow")).array(rows, pa.list_(pa.float32(), 3)),
    "rows of arrow": lambda rows: [needs("pyarrow").array(row) for row in rows],
    "awkward": lambda rows: needs("awkward").Array(rows),
    "rows of awkward": lambda rows: tuple(needs("awkward").Array(row) for row in rows),
    "pandas lists": lambda rows: optional("pandas").Series(rows),
    "pandas table": lambda rows: optional("pandas").DataFrame(rows, dtype="Float32"),
    "polars lists": lambda rows: optional("polars").Series(rows),
}  # fmt: skip


@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix_is_the_same_from_every_kind_of_value(kind: str) -> None:
    value = MATRICES[kind](ROWS.tolist())
    assert encode_matrix(value, "float32") == [encode(row) for row in ROWS]
    assert encode_documents(value, "v", dtype="float32") == encode_documents(ROWS, "v")
    assert np.array_equal(vectors.quantize(value).data, vectors.quantize(ROWS).data)


@pytest.mark.parametrize("call", MANY)
@pytest.mark.parametrize("kind", [kind for kind in MATRICES if "numpy" not in kind and "dtypes" not in kind])
def test_a_missing_number_in_a_matrix(kind: str, call: str) -> None:
    with pytest.raises(InputError) as caught:
        MANY[call](MATRICES[kind]([[1.0, 2.0, 3.0], [4.0, None, 6.0]]))
    assert caught.value.rule == "bson.vector.missing"


@pytest.mark.parametrize("call", MANY)
def test_a_missing_row(call: str) -> None:
    for value in ([[1.0], None], objects([[1.0], None]), needs("pyarrow").array([[1.0], None])):
        with pytest.raises(InputError) as caught:
            MANY[call](value)
        assert caught.value.rule in ("bson.vector.missing", "bson.vector.kind")


@pytest.mark.parametrize("call", MANY)
def test_what_only_looks_like_an_array_is_refused(call: str) -> None:
    with pytest.raises(InputError) as caught:
        MANY[call](np)  # a module: it has a dtype, which is a class
    assert caught.value.rule == "bson.vector.kind"


def test_the_missing_one_is_named() -> None:
    with pytest.raises(InputError, match=r"element \(1, 0\) is missing"):
        encode_matrix(masked(ROWS, (1, 0)))
    with pytest.raises(InputError, match="row 1: element 2 is missing"):
        encode_matrix([ROWS[0], masked(ROWS[1], 2)])
    with pytest.raises(InputError, match="element 1 is missing"):
        vectors.quantize(ROWS, ranges=(needs("pyarrow").array([1.0, None, 2.0]), ROWS[0]))
    with pytest.raises(InputError, match="element 0 is missing"):
        vectors.from_signed_bits(masked([1, 2], 0))


def test_filled_missing_values_are_accepted() -> None:
    hidden = masked(ROWS, (0, 1))
    assert decode(encode_matrix(hidden.filled(np.nan))[0]).tolist()[0] == 0.5
    assert encode_matrix(hidden.filled(9)) == [encode([0.5, 9, 3], "float32"), encode(ROWS[1])]
    assert encode(needs("pyarrow").array([1.0, None]).fill_null(0)) == encode([1.0, 0.0])
    assert np.isnan(decode(encode([float("nan"), 1.0])).numpy()[0])


def test_strided_bytes_are_packed_bits() -> None:
    bits = memoryview(bytes(range(6)))[::2]
    assert encode(bits, "packed_bit") == encode(bytes(bits), "packed_bit")


@pytest.mark.parametrize("value", [np.array(None, object), np.array({}, object)], ids=["None", "a dict"])
def test_an_object_array_of_one_value_is_refused(value: Any) -> None:
    for call in (encode, encode_matrix, vectors.Vector, lambda value: encode_documents(value, "v")):
        with pytest.raises(InputError):
            call(value)


def test_a_value_whose_buffer_is_not_bytes_is_no_payload() -> None:
    for value in (memoryview(b"\x03\0\1\2")[::2], dynd_array([[1], [2, 3]])):
        with pytest.raises(InputError) as caught:
            decode(value)
        assert caught.value.rule == "bson.input"


def test_masked_ids_and_ids_without_a_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"rule bson\.value"):
        encode_documents(ROWS, "v", np.ma.masked_array([1, 2], mask=[False, True]))
    for ids in (iter([1, 2]), 5):
        with pytest.raises(InputError, match=r"rule bson\.ids"):
            encode_documents(ROWS, "v", ids)  # type: ignore[arg-type]


PAYLOADS = {
    "float32": b"\x27\0" + ROWS[0].tobytes(),
    "int8": b"\x03\0\x01\xff",
    "bits": b"\x10\0\xf0\x0f",
    "bits with padding": b"\x10\x05\xa0",
    "empty": b"\x27\0",
}


def forms(payload: bytes) -> Iterator[Any]:
    """One vector in every form that it has."""
    bson = needs("bson.binary")
    yield decode(payload)
    yield vectors.Binary(9, payload)
    yield bson.Binary(payload, 9)
    yield bson.Binary(payload, 9).as_vector()
    yield bson.Binary(payload, 9).as_vector(return_numpy=True)


@pytest.mark.mongo
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_vector_is_the_vector_that_it_is(name: str) -> None:
    payload = PAYLOADS[name]
    expected = decode(payload)
    text = json.dumps(vectors.to_extjson(expected))
    for form in forms(payload):
        assert encode(form) == payload
        assert encode(form, expected.dtype, expected.padding) == payload
        assert Vector(form) == decode(form) == expected
        assert encode_matrix([form, form]) == encode_matrix((form, form)) == encode_matrix(objects([form])) * 2
        assert encode_matrix([form]) == [payload]
        assert encode_matrix([form, expected]) == [payload] * 2
        assert encode_documents([form], "v") == vectors.encode_document({"v": form}) == document(vector("v", payload))
        assert np.array_equal(decode_matrix([form, form]), decode_matrix([payload] * 2))
        assert np.array_equal(decode_matrix([{"v": form}], "v"), decode_matrix([payload]))
        assert json.dumps(vectors.to_extjson(form)) == text
        if expected.dtype == "float32" and len(expected):
            assert np.array_equal(vectors.quantize([form] * 2, "packed_bit").data, [[0b10100000]] * 2)
            assert vectors.to_database(form, "pgvector") == vectors.to_database(expected, "pgvector")
        with pytest.raises(InputError, match=r"rule bson\.vector\.dtype"):
            encode(form, "int8" if expected.dtype != "int8" else "float32")


@pytest.mark.mongo
def test_a_binary_that_is_not_a_vector() -> None:
    bson = needs("bson.binary")
    for other in (bson.Binary(b"\3\0a", 4), bson.Binary(b"\3\0a", 128), vectors.Binary(4, b"\3\0a")):
        for call in (encode, Vector, lambda value: encode_matrix([value]), vectors.to_extjson):
            with pytest.raises(InputError):
                call(other)
    for payload, fault in ((b"", "size"), (b"\3", "size"), (b"\x99\0", "dtype"), (b"\x10\x08a", "padding")):
        for call in (encode, Vector, lambda value: encode_matrix([value])):
            with pytest.raises(FormatError, match=f"rule bson.vector.{fault}"):
                call(bson.Binary(payload, 9))


def test_payloads_are_not_wrapped_again() -> None:
    payloads = encode_matrix(ROWS)
    for call in (encode_matrix, lambda value: encode_documents(value, "v")):
        with pytest.raises(InputError, match=r"row 0: .* decode"):
            call(payloads)
    assert encode_matrix([b"\xff\x00", b"\x01\x02"], "packed_bit") == [b"\x10\0\xff\x00", b"\x10\0\x01\x02"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([Vector([1.0]), Vector([1.0, 2.0])], "row 0 is float32\\[1\\], row 1 is float32\\[2\\]"),
        ([Vector([1.0]), Vector([1], "int8")], "row 0 is float32\\[1\\], row 1 is int8\\[1\\]"),
        ([Vector([True]), Vector([True, False])], "row 0 is packed_bit\\[1\\], row 1 is packed_bit\\[2\\]"),
        ([Vector([1.0]), 3.0], "row 1: expected ndim 1, got an array of ndim 0"),
    ],
)
def test_rows_that_disagree(rows: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        encode_matrix(rows)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("int8", "int8"), ("INT8", "int8"), (0x03, "int8"), ("float32", "float32"), ("FLOAT32", "float32"),
        (0x27, "float32"), ("packed_bit", "packed_bit"), ("PACKED_BIT", "packed_bit"), (0x10, "packed_bit"),
    ],
)  # fmt: skip
def test_dtypes_by_the_names_and_numbers_of_the_specification(dtype: Any, name: str) -> None:
    assert Vector([1, 2], dtype).dtype == name
    assert encode_matrix([[1, 2]], dtype) == encode_matrix([[1, 2]], name)
    assert encode_documents([[1, 2]], "v", dtype=dtype) == encode_documents([[1, 2]], "v", dtype=name)
    if name != "packed_bit":
        raw = vectors.to_database(Vector([1, 2], name), "sqlite-vec")
        assert vectors.from_database(raw, "sqlite-vec", dtype) == Vector([1, 2], name)


@pytest.mark.mongo
def test_dtypes_of_pymongo() -> None:
    for dtype in needs("bson.binary").BinaryVectorDtype:
        assert Vector([1, 2], dtype).dtype == dtype.name.lower()


class TestSequence:
    @pytest.mark.parametrize(
        ("found", "numbers"),
        [
            (Vector([0.5, -2.0, 3.0]), [0.5, -2.0, 3.0]),
            (Vector([1, -2, 3, -4], "int8"), [1, -2, 3, -4]),
            (Vector([True, False, True]), [True, False, True]),
            (Vector([0xF0, 0x0F], "packed_bit"), [True] * 4 + [False] * 8 + [True] * 4),
            (Vector([], "float32"), []),
        ],
    )
    def test_len_iteration_and_indices(self, found: Vector, numbers: list[Any]) -> None:
        assert len(found) == found.count == len(numbers)
        assert list(found) == [found[i] for i in range(len(found))] == numbers
        assert [found[i - len(numbers)] for i in range(len(found))] == numbers
        assert all(type(one) is type(other) for one, other in zip(found, numbers, strict=True))
        for index in (slice(1, 3), slice(None, None, -2), slice(5, 1)):
            assert list(found[index]) == numbers[index]
            assert found[index] == Vector(
                np.array(numbers)[index] if found.dtype == "packed_bit" else numbers[index], found.dtype
            )
        for outside in (len(numbers), -len(numbers) - 1):
            with pytest.raises(IndexError) as caught:
                found[outside]
            assert isinstance(caught.value, InputError)

    def test_other_indices(self) -> None:
        for index in ("0", 0.5, None, (0,)):
            with pytest.raises(InputError, match=r"rule bson\.vector\.index"):
                Vector([1.0])[index]  # type: ignore[index, call-overload]


class TestBits:
    """A matrix of bits knows how many a row has, and encodes to the same bytes again."""

    @pytest.mark.parametrize("count", [0, 1, 3, 7, 8, 9, 16, 21])
    def test_round_trip(self, count: int) -> None:
        bits = np.random.default_rng(count).integers(0, 2, (6, count)).astype(bool)
        payloads = encode_matrix(bits)
        raw = encode_documents(bits, "v", range(6))
        for source, key in ((payloads, None), (raw, "v"), ([decode(payload) for payload in payloads], None)):
            found = decode_matrix(source, key)
            assert (found.dtype, found.shape) == (np.bool_, (6, count))
            assert np.array_equal(found, bits)
            assert encode_matrix(found) == payloads
            packed = decode_matrix(source, key, packed=True)
            data, padding = packed
            assert isinstance(packed, PackedBits)
            assert (data.dtype, data.shape, padding) == (np.uint8, (6, -(-count // 8)), -count % 8)
            assert np.array_equal(packed.bits(), bits)
            assert encode_matrix(packed) == payloads
        assert encode_documents(packed, "v", range(6)) == raw
        again, ids = decode_matrix(raw, "v", packed=True, ids=True)
        assert (np.array_equal(again.data, data), ids) == (True, list(range(6)))

    def test_out(self) -> None:
        bits = np.random.default_rng(0).integers(0, 2, (5000, 11)).astype(bool)
        raw = encode_documents(bits, "v")
        out = np.zeros((5000, 11), bool)
        assert decode_matrix(raw, "v", out) is out
        assert np.array_equal(out, bits)
        longer = np.zeros((6000, 11), bool)
        assert decode_matrix(raw, "v", longer).base is longer
        packed = np.zeros((5000, 2), np.uint8)
        assert decode_matrix(raw, "v", packed, packed=True).data is packed
        for other in (packed, np.zeros((5000, 16), bool), np.zeros((4999, 11), bool)):
            with pytest.raises(InputError) as caught:
                decode_matrix(raw, "v", other)
            assert caught.value.rule == "out.shape"
        with pytest.raises(InputError, match="NumPy"):
            decode_matrix(raw, "v", [[1]])  # type: ignore[call-overload]

    def test_other_paddings_are_refused_by_name(self) -> None:
        for one, other in ((b"\x10\x05\xa0", b"\x10\x04\xa0"), (b"\x10\x00\xa0", b"\x10\x05\xa0")):
            sources: list[tuple[Any, str | None]] = [
                ([one, one, other], None), (b"".join(document(vector("v", p)) for p in (one, one, other)), "v")
            ]  # fmt: skip
            for source, key in sources:
                with pytest.raises(
                    FormatError, match=f"vector 2 is packed_bit.* with padding {other[1]}, not {one[1]}"
                ):
                    decode_matrix(source, key)

    def test_packed_is_for_bits(self) -> None:
        with pytest.raises(InputError) as caught:
            decode_matrix(encode_matrix(ROWS), packed=True)
        assert caught.value.rule == "bson.packed"
        assert decode_matrix([], packed=True).data.shape == (0, 0)

    def test_quantized(self) -> None:
        small = vectors.quantize(ROWS, to="packed_bit")
        assert isinstance(small, Quantized)
        assert np.array_equal(decode_matrix(encode_matrix(small)), ROWS > 0)


@pytest.mark.parametrize(
    "source",
    [
        [1, 2], [None], [None, document()], [object()], ["text"], [{"v": None}, document()], [document(), {"v": None}],
        [[1.0]], {"v": 3}, [{}, 3],
    ],
)  # fmt: skip
def test_values_that_are_not_documents(source: Any) -> None:
    with pytest.raises(TensorglotError, match=r"rule bson\.source"):
        decode_matrix(source, "v", on_missing="error")


@pytest.mark.parametrize("key", [3, b"v", ["v"], "", "a..b", "9" * 5000 + "."])
def test_keys_that_are_not_a_path(key: Any) -> None:
    for source in (document(), [document()], [{"v": 1}]):
        with pytest.raises(InputError, match=r"rule bson\.path"):
            decode_matrix(source, key)
    with pytest.raises(InputError, match=r"rule bson\.path"):
        encode_documents(ROWS, key)


def test_positions_in_lists_are_those_of_bson() -> None:
    raw = document(element(4, "l", document(element(5, "0", binary(9, b"\3\0a")))))
    documents = [{"l": [Vector([97], "int8")]}]
    for key in ("l.00", "l.٠", "l.-1", "l." + "9" * 5000, "l.1"):
        for source in (raw, documents):
            assert decode_matrix(source, key, on_missing="skip").shape == (0, 0)
    assert decode_matrix(raw, "l.0").tolist() == decode_matrix(documents, "l.0").tolist() == [[97]]
