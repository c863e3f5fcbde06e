"""One vector: the published cases, the rules of values, the payload both ways."""

from __future__ import annotations

import array
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from peers import EXTERNAL, missing, needs
from tensorglot import bson as vectors
from tensorglot.bson import Vector, decode, encode
from tensorglot.errors import FormatError, InputError

SUITE = EXTERNAL / "bson-vector"
FILES = ("int8", "float32", "packed_bit")


def published(name: str) -> list[dict[str, Any]]:
    path = SUITE / f"{name}.json"
    if not path.exists():
        return [{"description": name, "absent": True}]
    suite = json.loads(path.read_text())
    return [case | {"key": suite["test_key"], "dtype": name} for case in suite["tests"]]


PUBLISHED = [pytest.param(case, id=f"{name}: {case['description']}") for name in FILES for case in published(name)]


def number(value: Any) -> Any:
    return float(value["$numberDouble"].lower()) if isinstance(value, dict) else value


def as_torch(values: list[Any]) -> Any:
    torch = needs("torch")
    return torch.tensor(values, dtype=torch.float32 if any(isinstance(v, float) for v in values) else torch.int64)


def as_buffer(values: list[Any]) -> Any:
    return array.array("d" if any(isinstance(v, float) for v in values) else "q", values)


KINDS_OF_INPUT: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "strided": lambda values: np.repeat(np.array(values), 3)[::3],
    "big-endian": lambda values: (a := np.array(values)).astype(a.dtype.newbyteorder(">")),
    "read-only": lambda values: np.frombuffer(np.array(values).tobytes(), np.array(values).dtype),
    "buffer": as_buffer,
    "torch": as_torch,
}


@pytest.mark.parametrize("kind", KINDS_OF_INPUT)
@pytest.mark.parametrize("case", PUBLISHED)
def test_published_case(case: dict[str, Any], kind: str) -> None:
    if "absent" in case:
        missing(f"no {SUITE}")
    raw = bytes.fromhex(case.get("canonical_bson", ""))
    values = [number(value) for value in case.get("vector", [])]
    if case["valid"]:
        vector = Vector(KINDS_OF_INPUT[kind](values), case["dtype"], case["padding"])
        assert vectors.encode_document({case["key"]: vector}) == raw
        decoded = vectors.decode_document(raw)[case["key"]]
        assert decoded == vector
        assert (decoded.dtype, decoded.padding) == (case["dtype"], case["padding"])
        assert decoded.tolist() == np.array(values, decoded.data.dtype).tolist()
        matrix = vectors.decode_matrix(raw, case["key"])
        assert matrix[0].tolist() == list(decoded)
        assert vectors.encode_matrix(matrix) == [bytes(decoded)]
        return
    if "vector" in case:
        with pytest.raises(InputError):
            encode(KINDS_OF_INPUT[kind](values), case["dtype"], case.get("padding", 0))
    if raw:
        with pytest.raises(FormatError):
            vectors.decode_document(raw)
        with pytest.raises(FormatError):
            vectors.decode_matrix(raw, case["key"])


def test_there_are_22_published_cases() -> None:
    if not SUITE.exists():
        missing(f"no {SUITE}")
    assert len(PUBLISHED) == 22


class TestIgnoredBits:
    """The prose tests: a single bit with seven ignored ones, all of them set."""

    def test_encoding(self) -> None:
        with pytest.raises(InputError) as caught:
            encode([0b11111111], "packed_bit", 7)
        assert caught.value.rule == "bson.vector.ignored_bits"
        assert encode([0b11111111], "packed_bit", 7, ignored_bits="keep") == b"\x10\x07\xff"
        assert encode([0b11111111], "packed_bit", 7, ignored_bits="zero") == b"\x10\x07\x80"

    def test_decoding(self) -> None:
        with pytest.raises(FormatError) as caught:
            decode(b"\x10\x07\xff")
        assert caught.value.rule == "bson.vector.ignored_bits"
        assert bytes(decode(b"\x10\x07\xff", ignored_bits="keep")) == b"\x10\x07\xff"
        assert bytes(decode(b"\x10\x07\xff", ignored_bits="zero")) == b"\x10\x07\x80"
        assert decode(b"\x10\x07\xff", ignored_bits="keep").bits().tolist() == [True]

    def test_comparison(self) -> None:
        clean, noisy = decode(b"\x10\x07\x80"), decode(b"\x10\x07\xff", ignored_bits="keep")
        assert clean == Vector([0b10000000], "packed_bit", 7)
        assert clean != noisy

    def test_the_given_array_is_not_touched(self) -> None:
        given = np.array([255], np.uint8)
        encode(given, "packed_bit", 3, ignored_bits="zero")
        assert given.tolist() == [255]

    @pytest.mark.parametrize("call", [lambda: encode([1], "packed_bit", 0, "drop"), lambda: decode(b"\x10\0", "drop")])
    def test_unknown_choice(self, call: Callable[[], object]) -> None:
        with pytest.raises(InputError, match=r"rule bson\.ignored_bits"):
            call()


@pytest.mark.parametrize(
    ("value", "dtype", "padding", "rule"),
    [
        ([128], "int8", None, "bson.vector.range"),
        ([-129], "int8", None, "bson.vector.range"),
        ([256], "packed_bit", None, "bson.vector.range"),
        ([-1], "packed_bit", None, "bson.vector.range"),
        ([2**70], "int8", None, "bson.vector.kind"),
        ([1e39], "float32", None, "bson.vector.range"),
        ([0.0, -1e39], "float32", None, "bson.vector.range"),
        ([1.0], "int8", None, "bson.vector.kind"),
        ([127.0], "packed_bit", None, "bson.vector.kind"),
        ([True], "int8", None, "bson.vector.kind"),
        ([True], "float32", None, "bson.vector.kind"),
        ([1j], "float32", None, "bson.vector.kind"),
        (["1"], "float32", None, "bson.vector.kind"),
        ([None], "float32", None, "bson.vector.missing"),
        ([[1], [2, 3]], "float32", None, "bson.vector.kind"),
        (object(), "float32", None, "bson.vector.kind"),
        ("text", "int8", None, "bson.vector.kind"),
        (3, "int8", None, "bson.vector.rank"),
        ([[1, 2]], "int8", None, "bson.vector.rank"),
        ([1], "int8", 1, "bson.vector.padding"),
        ([1], "float32", 1, "bson.vector.padding"),
        ([1], "packed_bit", 8, "bson.vector.padding"),
        ([1], "packed_bit", 255, "bson.vector.padding"),
        ([1], "packed_bit", 256, "bson.vector.padding"),
        ([1], "packed_bit", -1, "bson.vector.padding"),
        ([1], "packed_bit", 1.5, "bson.vector.padding"),
        ([1], "packed_bit", True, "bson.vector.padding"),
        ([], "packed_bit", 1, "bson.vector.padding"),
        ([True] * 9, "packed_bit", 1, "bson.vector.padding"),
        ([1, 2], None, None, "bson.vector.dtype"),
        ([], None, None, "bson.vector.dtype"),
        (np.array([1], np.int16), None, None, "bson.vector.dtype"),
        ([1], "int16", None, "bson.vector.dtype"),
        ([1], 4, None, "bson.vector.dtype"),
        ([1], 3.0, None, "bson.vector.dtype"),
        ([1], True, None, "bson.vector.dtype"),
        ([1], b"\x03", None, "bson.vector.dtype"),
        (b"\x03\x00a", None, None, "bson.vector.dtype"),
        (bytearray(b"\x03\x00a"), None, None, "bson.vector.dtype"),
        (memoryview(b"\x03\x00a"), None, None, "bson.vector.dtype"),
    ],
)
def test_refused_input(value: Any, dtype: Any, padding: Any, rule: str) -> None:
    for call in (encode, Vector):
        with pytest.raises(InputError) as caught:
            call(value, dtype, padding)
        assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        (b"", "bson.vector.size"),
        (b"\x03", "bson.vector.size"),
        (b"\x00\x00", "bson.vector.dtype"),
        (b"\x04\x00a", "bson.vector.dtype"),
        (b"\xff\x00a", "bson.vector.dtype"),
        (b"\x03\x01a", "bson.vector.padding"),
        (b"\x27\x01abcd", "bson.vector.padding"),
        (b"\x10\x08a", "bson.vector.padding"),
        (b"\x10\xffa", "bson.vector.padding"),
        (b"\x10\x01", "bson.vector.padding"),
        (b"\x27\x00abc", "bson.vector.length"),
        (b"\x27\x00abcde", "bson.vector.length"),
        (b"\x10\x01\x01", "bson.vector.ignored_bits"),
    ],
)
def test_refused_payload(payload: bytes, rule: str) -> None:
    with pytest.raises(FormatError) as caught:
        decode(payload)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([0.5], np.float16), "float32"),
        (np.array([0.5], np.float64), "float32"),
        (np.array([0.5], ml_dtypes.bfloat16), "float32"),
        (np.array([0.5], ml_dtypes.float8_e5m2), "float32"),
        ([0.5], "float32"),
        (np.array([1], np.int8), "int8"),
        (np.array([1], np.uint8), "packed_bit"),
        ([True], "packed_bit"),
        (memoryview(array.array("b", [1])), "int8"),
        (array.array("f", [0.5]), "float32"),
        (array.array("b", [1]), "int8"),
        (np.empty(0, np.float32), "float32"),
    ],
)
def test_dtype_follows_from_the_array(value: Any, dtype: str) -> None:
    assert decode(encode(value)).dtype == dtype


def test_every_byte_of_bits() -> None:
    every = list(range(256))
    assert encode(every, "packed_bit") == encode(np.array(every), "packed_bit") == b"\x10\x00" + bytes(every)
    assert decode(b"\x10\x00" + bytes(every)).tolist() == every


@pytest.mark.parametrize(("dtype", "code"), [("int8", 3), ("float32", 0x27), ("packed_bit", 0x10)])
@pytest.mark.parametrize("empty", [[], (), np.empty(0), np.empty(0, np.int64), b"", array.array("d")])
def test_empty(dtype: str, code: int, empty: Any) -> None:
    assert encode(empty, dtype) == bytes((code, 0))
    vector = decode(bytes((code, 0)))
    assert (vector.count, vector.numpy().size, repr(vector)) == (0, 0, f"Vector({dtype}[0])")


def test_nan_payloads_are_kept() -> None:
    raw = bytes.fromhex("27000100807f0100c07f0000c0ff0100a0ff")
    assert bytes(decode(raw)) == raw
    assert encode(np.frombuffer(raw, "<f4", offset=2), "float32") == raw
    assert decode(raw) == decode(raw)


def test_numbers_at_the_edge_of_float32() -> None:
    largest = float(np.finfo(np.float32).max)
    half_a_step = largest * 2.0**-25
    assert decode(encode([largest, math.inf, -math.inf, largest + half_a_step * 0.9], "float32")).tolist() == [
        largest,
        math.inf,
        -math.inf,
        largest,
    ]
    with pytest.raises(InputError, match=r"rule bson\.vector\.range"):
        encode([largest + half_a_step * 1.1], "float32")


def test_bits_are_most_significant_first() -> None:
    vector = Vector([True, False, False, False, False, False, False, True, True])
    assert bytes(vector) == b"\x10\x07\x81\x80"
    assert vector.bits().tolist() == [True, False, False, False, False, False, False, True, True]
    assert vector.bits().dtype == np.bool_
    assert vector.count == 9
    with pytest.raises(InputError, match=r"rule bson\.vector\.bits"):
        Vector([1.0]).bits()


def test_equality_and_hash() -> None:
    assert Vector([1.0, math.nan]) == Vector(np.array([1.0, math.nan], np.float32))
    assert Vector([0.0]) != Vector([-0.0])
    assert Vector([1], "int8") != Vector([1], "packed_bit")
    assert (Vector([1.0]) == [1.0]) is False
    assert len({Vector([1.0]), Vector([1.0]), Vector([2.0])}) == 2


def test_repr() -> None:
    assert repr(Vector([0.5, -2.0])) == "Vector(float32[2]: 0.5, -2.0)"
    assert repr(Vector(range(100), "int8")) == "Vector(int8[100]: 0, 1, 2, 3, 4, 5, …)"
    assert repr(Vector([True, False])) == "Vector(packed_bit[2]: 1, 0)"


def test_a_vector_is_immutable_and_owns_its_memory() -> None:
    given = np.array([1.0, 2.0], np.float32)
    vector = Vector(given)
    given[0] = 9
    assert vector.tolist() == [1.0, 2.0]
    assert given.flags.writeable
    with pytest.raises(ValueError):
        vector.data[0] = 3
    with pytest.raises(AttributeError):
        vector.padding = 3  # type: ignore[misc]
    own = vector.numpy()
    own[0] = 7
    assert vector.tolist() == [1.0, 2.0]
    assert np.asarray(vector).tolist() == [1.0, 2.0]


def test_pickle() -> None:
    for vector in (Vector([1.5]), decode(b"\x10\x07\xff", ignored_bits="keep")):
        assert pickle.loads(pickle.dumps(vector)) == vector


def test_torch() -> None:
    torch = needs("torch")
    values = [0.5, -2.0]
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        assert encode(torch.tensor(values, dtype=dtype)) == encode(values, "float32")
    assert encode(torch.tensor(values, requires_grad=True)) == encode(values, "float32")
    assert encode(torch.tensor([1, -1], dtype=torch.int8)) == encode([1, -1], "int8")
    assert encode(torch.tensor([[1.0, 2.0], [3.0, 4.0]])[:, 1]) == encode([2.0, 4.0], "float32")
    assert encode(torch.tensor([True, False])) == encode([True, False])


@given(hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=True)))
def test_float32_round_trip(values: np.ndarray[Any, Any]) -> None:
    payload = encode(values, "float32")
    assert decode(payload).numpy().tobytes() == values.tobytes()


@given(st.lists(st.integers(-300, 300), max_size=20), st.sampled_from(["int8", "packed_bit"]))
def test_lists_and_arrays_are_one_path(values: list[int], dtype: str) -> None:
    def outcome(value: Any) -> bytes | str:
        try:
            return encode(value, dtype)
        except InputError as error:
            return error.rule

    low, high = (-128, 127) if dtype == "int8" else (0, 255)
    expected = isinstance(outcome(values), bytes)
    assert expected == all(low <= value <= high for value in values)
    assert outcome(values) == outcome(np.array(values, np.int64)) == outcome(np.array(values, np.int16))


@given(st.lists(st.booleans(), max_size=40))
def test_bits_round_trip(bits: list[bool]) -> None:
    assert decode(encode(np.array(bits, bool))).bits().tolist() == bits


heads = st.tuples(st.sampled_from([0x03, 0x10, 0x27]), st.integers(0, 7)).map(bytes)


@given(
    st.binary(max_size=16) | st.builds(bytes.__add__, heads, st.binary(max_size=14)),
    st.sampled_from(["error", "keep", "zero"]),
)
def test_a_payload_is_refused_or_what_its_vector_encodes_to(payload: bytes, ignored_bits: Any) -> None:
    try:
        vector = decode(payload, ignored_bits=ignored_bits)
    except FormatError:
        return
    if ignored_bits != "zero":
        assert bytes(vector) == payload
    assert decode(bytes(vector), ignored_bits="keep") == vector
    assert repr(vector).isprintable()


def test_a_binary_of_another_subtype() -> None:
    class Other(bytes):
        subtype = 0

    with pytest.raises(InputError, match=r"rule bson\.vector\.subtype"):
        decode(Other(b"\x03\x00a"))
    with pytest.raises(InputError, match=r"rule bson\.input"):
        decode("text")


class TestExtendedJson:
    def cases(self) -> list[dict[str, str]]:
        path = SUITE / "bson-corpus-binary.json"
        if not path.exists():
            missing(f"no {path}")
        return [case for case in json.loads(path.read_text())["valid"] if "Vector" in case["description"]]

    def test_corpus(self) -> None:
        assert len(self.cases()) == 6
        for case in self.cases():
            raw, text = bytes.fromhex(case["canonical_bson"]), case["canonical_extjson"]
            document = vectors.decode_document(raw)
            assert isinstance(document["x"], Vector)
            assert json.loads(json.dumps(document, default=vectors.to_extjson)) == json.loads(text)
            read = json.loads(text, object_hook=vectors.from_extjson)
            assert read == document
            assert vectors.encode_document(read) == raw

    def test_legacy_and_short_subtype(self) -> None:
        vector = Vector([127, 7], "int8")
        assert vectors.to_extjson(vector, legacy=True) == {"$binary": "AwB/Bw==", "$type": "09"}
        for form in (
            {"$binary": "AwB/Bw==", "$type": "09"},
            {"$binary": "AwB/Bw==", "$type": "9"},
            {"$binary": {"base64": "AwB/Bw==", "subType": "9"}},
            {"$binary": {"subType": "09", "base64": "AwB/Bw=="}},
        ):
            assert vectors.from_extjson(form) == vector

    @pytest.mark.parametrize(
        "other",
        [
            {},
            {"$binary": {"base64": "AwB/Bw==", "subType": "00"}},
            {"$binary": {"base64": "AwB/Bw==", "subType": "09", "more": 1}},
            {"$binary": 3, "$type": "09"},
            {"$type": "string"},
            {"$binary": {"base64": 3, "subType": "09"}},
        ],
    )
    def test_other_objects_pass(self, other: dict[str, Any]) -> None:
        assert vectors.from_extjson(other) is other

    @pytest.mark.parametrize("text", ["AwB/Bw", "A-B_", "ä", "AwB/Bw==="])
    def test_bad_base64(self, text: str) -> None:
        with pytest.raises(FormatError, match=r"rule extjson\.base64"):
            vectors.from_extjson({"$binary": {"base64": text, "subType": "09"}})

    def test_only_vectors(self) -> None:
        with pytest.raises(InputError, match=r"rule extjson\.value"):
            json.dumps({"x": object()}, default=vectors.to_extjson)
