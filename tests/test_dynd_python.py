"""Plain Python values: the types that they have, and what a type refuses."""

from __future__ import annotations

from collections import namedtuple
from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest

from tensorglot import dynd
from tensorglot.errors import InputError
from tensorglot.model.types import algebra as T

Pair = namedtuple("Pair", "a b")

TYPES = [
    (True, "bool"),
    (3, "int64"),
    (2**63, "uint64"),
    (2**64, "int128"),
    (2**127, "uint128"),
    ([2**63, -1], "2 * int128"),
    (1.5, "float64"),
    ([1, 2.5], "2 * float64"),
    (1j, "complex[float64]"),
    ([1, 2.5, 1j], "3 * complex[float64]"),
    ("x", "string"),
    (b"x", "bytes"),
    (None, "void"),
    ([None, None], "2 * void"),
    ([1, None], "2 * ?int64"),
    ([], "0 * void"),
    ([[], []], "2 * 0 * void"),
    ([[1], [2, 3]], "2 * var * int64"),
    ([[1, 2], [3, 4]], "2 * 2 * int64"),
    ([[[1], [2]], [[3], [4]]], "2 * 2 * 1 * int64"),
    ([[1], None, [2, 3]], "3 * ?var * int64"),
    ((1, "a"), "(int64, string)"),
    ([(1, "a"), (2, None)], "2 * (int64, ?string)"),
    (Pair(1, 2), "(int64, int64)"),
    ({"a": 1, "b c": [1.5]}, "{a: int64, 'b c': 1 * float64}"),
    ([{"a": 1}, {"a": None}], "2 * {a: ?int64}"),
    (MappingProxyType({"a": 1}), "{a: int64}"),
    ({}, "{}"),
    ((), "()"),
    (dynd.parse("3 * int8"), "type"),
    ([dynd.array(1), dynd.array("x")], "2 * array[Any]"),
    (np.int8(3), "int8"),
    ([np.float32(1), np.float32(2)], "2 * float32"),
    ([np.arange(2, dtype=np.int16), np.arange(3, dtype=np.int16)], "2 * var * int16"),
    (ml_dtypes.bfloat16(1), "bfloat16"),
    (range(3), "3 * int64"),
    (bytearray(b"ab"), "bytes"),
]


@pytest.mark.parametrize(("value", "text"), TYPES, ids=lambda case: str(case)[:40])
def test_types(value, text):
    assert str(dynd.typeof(value)) == text
    data = dynd.serialize(value)
    assert data == dynd.serialize(value, text)
    assert dynd.deserialize(data, text).serialize() == data


@pytest.mark.parametrize(
    "value",
    [[1, "a"], [True, 1], [{"a": 1}, {"b": 1}], [(1,), (1, 2)], [[1], 2], {1: 2}, object(), [{"a": 1}, (1,)], {1, 2},
     2**200, [np.int8(1), np.int16(1)], [1, b"a"]],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_values_without_a_type(value):
    with pytest.raises(InputError, match=r"rule dynd\.(infer|range)"):
        dynd.typeof(value)


def in_itself(container, put):
    put(container)
    return container


IN_THEMSELVES = {
    "a list": lambda: in_itself([], lambda it: it.append(it)),
    "a list, many times": lambda: in_itself([], lambda it: it.extend([it] * 100)),
    "a list in a tuple": lambda: in_itself([], lambda it: it.append((1, it))),
    "a dict": lambda: in_itself({}, lambda it: it.update(a=[it])),
    "an array of objects": lambda: in_itself(np.empty((2, 1), object), lambda it: it.fill(it)),
}


@pytest.mark.parametrize("make", IN_THEMSELVES.values(), ids=IN_THEMSELVES)
@pytest.mark.parametrize("verb", [dynd.typeof, dynd.array, dynd.pack, lambda v: dynd.array([v], "1 * array[Any]")])
def test_values_that_contain_themselves_are_refused(make, verb):
    with pytest.raises(InputError, match="contains itself") as caught:
        verb(make())
    assert caught.value.rule == "dynd.infer"


def test_values_deeper_than_any_type_are_refused():
    value = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InputError) as caught:
        dynd.typeof(value)
    assert caught.value.rule == "dynd.depth"
    while isinstance(value, list):  # to free it without recursion
        value = value[0]


def test_a_value_may_be_in_several_places():
    shared = [1, 2]
    assert str(dynd.typeof([[shared, shared], [shared]])) == "2 * var * 2 * int64"


REFUSED = {
    "bool": [1, 0, "a", None, 1.0],
    "int8": [128, -129, 1.0, "1", None, [1], 1j, 2**100],
    "uint64": [-1, 2**64],
    "int4": [8, -9],
    "uint1": [2],
    "int128": [2**127, 1.5],
    "float32": ["a", 1j, 1e39, None],
    "float64": ["a", None, [1.0]],
    "float8_e4m3fn": [1000.0, float("inf")],
    "float8_e8m0fnu": [-1.0, 0.0],
    "complex[float32]": ["a", None],
    "bytes[2]": [b"a", b"abc", "ab", None],
    "bytes": ["a", 3, None],
    "string": [b"a", 3, None, "\ud800"],
    "fixed_string[2]": ["abc", "éé", "a\0", b"a"],
    "fixed_string[2, 'ascii']": ["é"],
    "fixed_string[1, 'utf16']": ["😀"],
    "char": ["", "ab", 3, "\ud800"],
    "type": ["foo", 3],
    "void": [0, ""],
    "2 * int8": [[1], [1, 2, 3], 3, "ab", {"a": 1}, None],
    "var * int8": [3, "ab", {"a": 1}, [None], b"ab", None],
    "(int8, int8)": [(1,), (1, 2, 3), {"a": 1}, 3],
    "{a: int8}": [{}, {"a": 1, "b": 2}, {"b": 1}, (1,), [("a", 1)], 3],
    "?int8": [-128, 200, "a"],
    "?var * int8": [[None], 3],
    "2 * ?uint8": [None, [1]],
    "array[int8]": [dynd.array(1), 300],
    "storage[2 * 2 * int8, order='F']": [[[1, 2]], [[1], [2]]],
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    for value in REFUSED[text]:
        with pytest.raises(InputError) as caught:
            dynd.serialize(value, text)
        assert caught.value.rule.startswith("dynd.")


def test_values_of_every_kind_come_back():
    value = {
        "b": True, "i": -3, "f": 2.5, "c": 1 + 2j, "s": "é", "y": b"\0", "n": None, "l": [[1], [], [2, 3]],
        "t": (1, "x"), "o": [None, "a"], "k": dynd.parse("var * T"), "q": ["a", "é"],
    }  # fmt: skip
    text = (
        "{b: bool, i: int8, f: float32, c: complex[float64], s: string, y: bytes, n: void, l: 3 * var * int16, "
        "t: (int8, fixed_string[3]), o: var * ?string, k: type, q: 2 * char}"
    )
    back = dynd.deserialize(dynd.serialize(value, text), text).tolist()
    assert back == value
    assert type(back["t"]) is tuple
    assert type(back["k"]) is T.Var
    assert dynd.array(value, text).tolist() == value


def test_a_text_is_a_row_of_chars():
    assert dynd.serialize("naïf", "4 * char") == "naïf".encode()
    assert dynd.serialize(["ab", ""], "var * var * char").hex() == "0202616200"


def test_numpy_among_python_values():
    rows = [np.arange(3, dtype=np.int16), np.arange(3, 6, dtype=np.int16)]
    assert dynd.serialize(rows, "2 * 3 * int16") == np.arange(6, dtype=np.int16).tobytes()
    assert dynd.serialize({"x": np.arange(2)}, "{x: var * int8}").hex() == "020001"


def test_a_tensor_given_as_another_type():
    tensor = dynd.array([1, 2, 3], "3 * int64")
    assert dynd.serialize(tensor, "var * int8").hex() == "03010203"
    ragged = dynd.array([[1], []], "2 * var * int64")
    assert dynd.array(ragged, "var * var * int8").serialize().hex() == "02010100"
    with pytest.raises(InputError, match=r"rule dynd\.length"):
        dynd.serialize(tensor, "2 * int64")


def test_deep_values_need_no_recursion():
    depth = 50
    value = 1
    text = "int8"
    for _ in range(depth):
        value, text = {"a": [value]}, f"{{a: var * {text}}}"
    data = dynd.serialize(value, text)
    assert dynd.deserialize(data, text).tolist() == value
    lists = 1
    for _ in range(3000):
        lists = [lists]
    with pytest.raises(InputError, match=r"rule dynd\.value"):
        dynd.serialize(lists, "var * int8")
    assert str(dynd.typeof(lists)).startswith("1 * 1 * 1")
    for verb in (dynd.pack, dynd.to_cbor, lambda value: dynd.array(value).cid()):
        with pytest.raises(InputError) as caught:
            verb(lists)
        assert caught.value.rule == "dynd.type.rank"


def test_array_patterns():
    for pattern, text, fits in [
        ("Any", "var * {a: int8}", True),
        ("T", "int8", True),
        ("var * T", "var * string", True),
        ("var * T", "3 * string", False),
        ("N * N * T", "3 * 3 * int8", True),
        ("N * N * T", "3 * 4 * int8", False),
        ("Fixed * T", "3 * int8", True),
        ("Fixed * T", "var * int8", False),
        ("... * int8", "2 * var * 3 * int8", True),
        ("... * int8", "int8", True),
        ("... * 3 * int8", "2 * 4 * int8", False),
        ("2 * ... * T", "2 * var * string", True),
        ("N * T", "2 * 3 * int8", True),
        ("(T, T)", "(int8, int8)", True),
        ("(T, T)", "(int8, int16)", False),
        ("(T, ...)", "(int8, int16)", True),
        ("{a: T, ...}", "{b: int8, a: string}", True),
        ("{a: T, ...}", "{b: int8}", False),
        ("{a: T}", "{a: int8}", True),
        ("{a: T}", "{b: int8}", False),
        ("?T", "?string", True),
        ("?T", "string", False),
        ("pointer[T]", "pointer[int8]", True),
        ("storage[2 * 3 * T, axis=[1, 0]]", "storage[2 * 3 * int8, axis=[1, 0]]", True),
        ("(T) -> T", "int8", False),
        ("bytes[N]", "bytes[3]", True),
        ("bytes[N]", "bytes", False),
        ("(bytes[N], N * int8)", "(bytes[3], 3 * int8)", True),
        ("(bytes[N], N * int8)", "(bytes[3], 4 * int8)", False),
        ("complex[T]", "complex[float16]", True),
        ("(complex[T], T)", "(complex[float16], float32)", False),
        ("complex[Int]", "complex[float16]", False),
    ]:
        assert dynd.match.matches(dynd.parse(pattern), dynd.parse(text)) == fits, (pattern, text)


def test_integers_of_numpy_that_have_no_common_integer_type() -> None:
    values = [np.int64(1), np.uint64(1 << 63), True]
    assert dynd.array(values, "3 * uint64").tolist() == [1, 1 << 63, 1]


@pytest.mark.parametrize("wrong", [None, 2.5, 2j, "x", b"x", np.timedelta64(1, "s")])
def test_the_item_that_is_no_integer_is_named(wrong: object) -> None:
    for item in (1, np.int64(1)):
        with pytest.raises(InputError) as caught:
            dynd.array([item, wrong], "2 * int64")
        assert caught.value.message == f"{wrong!r} is not a valid int64"
