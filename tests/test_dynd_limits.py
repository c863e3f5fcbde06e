"""What is written is read: kinds, nesting, values without bytes; and arguments of the wrong kind."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

import tensorglot as tg
from dynd_random import sized, varint
from tensorglot import dynd
from tensorglot.dynd.json import from_json, to_json
from tensorglot.errors import FormatError, InputError, LimitError, TensorglotError

INSTANCES = {
    "Any": ("int8", "?string", "3 * float32", "{a: int8}", "array[Any]", "map[int8, int8]"),
    "Bool": ("bool",),
    "Int": ("int8", "int128", "int4", "int1"),
    "UInt": ("uint8", "uint64", "uint128", "uint2"),
    "Float": ("float16", "float64", "float128", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float6_e2m3fn",
              "float4_e2m1fn"),
    "Complex": ("complex[float16]", "complex[float64]"),
    "String": ("string", "fixed_string[3]", "fixed_string[3, 'utf16']", "char"),
    "Bytes": ("bytes", "bytes[3]"),
    "Scalar": ("int8", "string", "?int8", "(int8, string)", "{a: 3 * int8}", "date", "decimal[3, 1]", "pointer[int8]",
               "array[Any]", "void", "type"),
}  # fmt: skip
NO_SCALARS = ("3 * int8", "3 * float32",
              "var * int8", "?var * int8", "pointer[3 * int8]", "storage[2 * 3 * int8, axis=[1, 0]]",
              "map[int8, int8]")  # fmt: skip
TYPES = sorted({text for texts in INSTANCES.values() for text in texts} | set(NO_SCALARS))


def a_value(text):
    """Bytes of some value of a type."""
    t = dynd.parse(text)
    for size in range(60):
        for data in (bytes(size), sized(b"int8") + bytes(size), b"x" * size):
            try:
                return dynd.deserialize(data, t)
            except FormatError:
                pass
    raise AssertionError(text)


@pytest.mark.parametrize("kind", INSTANCES)
@pytest.mark.parametrize("text", TYPES)
def test_an_array_of_a_kind_holds_its_instances_and_no_others(kind, text):
    value = a_value(text)
    data = sized(str(value.type).encode()) + bytes(value.serialize())
    if text in INSTANCES[kind] or kind == "Any" or (kind == "Scalar" and text not in NO_SCALARS):
        assert dynd.serialize(value, f"array[{kind}]") == data
        assert dynd.deserialize(data, f"array[{kind}]").serialize() == data
        assert dynd.serialize([value], f"1 * array[{kind}]") == data
        return
    for call in (lambda: dynd.serialize(value, f"array[{kind}]"), lambda: dynd.serialize([value], f"1 * array[{kind}]"),
                 lambda: dynd.dump(value, io.BytesIO(), f"array[{kind}]")):  # fmt: skip
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.rule == "dynd.array.type"
    with pytest.raises(FormatError) as caught:
        dynd.deserialize(data, f"array[{kind}]")
    assert caught.value.rule == "dynd.array.type"


def test_kinds_inside_larger_types():
    assert dynd.serialize(np.zeros(3, np.float32), "array[3 * Float]")
    assert dynd.serialize(dynd.array((1, 2.5), "(int8, float64)"), "array[(Int, Float)]")
    assert dynd.serialize(dynd.array((1, 2), "(int8, int16)"), "array[(Int, Int)]")
    with pytest.raises(InputError, match=r"rule dynd\.array\.type"):
        dynd.serialize(dynd.array((1, 2), "(int8, int16)"), "array[(T, T)]")


def test_an_array_can_hold_an_array():
    inner = dynd.array(5, "int8")
    data = sized(b"int8") + b"\5"
    for _ in range(3):
        outer = dynd.array(inner, "array[Any]")
        assert str(outer.type) == "array[Any]"
        assert outer.serialize() == data
        assert outer.tolist().type == inner.type
        assert outer.tolist().serialize() == inner.serialize()
        assert dynd.serialize(inner, "array[Any]") == data
        assert dynd.deserialize(data, "array[Any]").tolist().cid() == inner.cid()
        assert dynd.serialize(dynd.deserialize(data, "array[Any]").tolist(), "array[Any]") == data
        assert from_json(json.dumps(to_json(outer)), outer.type).serialize() == data
        out = io.BytesIO()
        assert dynd.dump(inner, out, "array[Any]") == len(data)
        assert out.getvalue() == data
        assert dynd.unpack(dynd.pack(inner)).cid() == inner.cid()
        inner, data = outer, sized(b"array[Any]") + data
    plain = dynd.array(5, "array[int64]")
    assert dynd.array(plain, "array[int64]").cid() == plain.cid()


def nested(levels):
    value = dynd.array(5, "int8")
    for _ in range(levels):
        value = dynd.array(value, "array[Any]")
    return value


def test_arrays_nest_as_deep_as_a_reader_takes():
    deepest = nested(64)
    data = bytes(deepest.serialize())
    assert dynd.deserialize(data, "array[Any]").serialize() == data
    assert dynd.unpack(dynd.pack(deepest)).cid() == deepest.cid()
    assert tg.open(tg.dumps({"t": deepest}, format="dynd"), format="dynd")["t"].cid() == deepest.cid()
    for call in (lambda: dynd.array(deepest, "array[Any]"), lambda: dynd.array([deepest], "var * array[Any]"),
                 lambda: dynd.dump(deepest, io.BytesIO(), "array[Any]")):  # fmt: skip
        with pytest.raises(InputError, match="type_depth") as caught:
            call()
        assert caught.value.rule == "dynd.depth"
    with pytest.raises(LimitError):
        dynd.deserialize(sized(b"array[Any]") + data, "array[Any]")


VOIDS = {
    "dims of nothing": (np.zeros((2**21, 0)), None),
    "dims of nothing, turned": (np.zeros((2**21, 0)).T[:, ::2].T, None),
    "voids": ([None] * (2**20 + 1), "var * void"),
    "empty tuples": ([()] * (2**20 + 1), "var * ()"),
    "voids in options": ([[None] * 1000] * 2000, "var * ?1000 * void"),
    "dims in a struct": ({"a": np.zeros((2**21, 0)), "b": 1}, "{a: 2097152 * 0 * float64, b: int8}"),
}


@pytest.mark.parametrize("case", VOIDS)
def test_values_without_bytes_that_no_reader_takes_are_not_written(case):
    value, text = VOIDS[case]
    calls = [lambda: dynd.serialize(value, text), lambda: dynd.dump(value, io.BytesIO(), text),
             lambda: dynd.to_cbor(value, text)]  # fmt: skip
    if text is None:
        calls += [lambda: dynd.pack(value), lambda: dynd.dump(value, io.BytesIO(), "array[Any]"),
                  lambda: tg.dumps({"a": value}, format="dynd")]  # fmt: skip
    for call in calls:
        with pytest.raises(InputError, match="void_count") as caught:
            call()
        assert caught.value.rule == "dynd.void"


def test_values_without_bytes_that_a_reader_takes_are_written():
    for array in (np.zeros((2**20 - 1, 0)), np.zeros((0, 2**40)), np.zeros((2**10, 2**9, 0))):
        data = dynd.serialize(array)
        assert dynd.deserialize(data, dynd.typeof(array)).shape == array.shape
        assert dynd.unpack(dynd.pack(array)).shape == array.shape
    full = [None] * (2**20)
    assert len(dynd.deserialize(dynd.serialize(full, "var * void"), "var * void")) == 2**20


def test_tolist_of_vast_dims_is_refused():
    tensor = tg.open(sized(b"1000000000000 * 0 * int8"), format="dynd")["data"]
    assert tensor.shape == (10**12, 0)
    with pytest.raises(LimitError):
        tensor.tolist()


class Text:
    def read(self, _):
        return "text"

    def write(self, data):
        raise TypeError("text, please")


WRONG = {
    "a type that is None": lambda: dynd.deserialize(b"\0", None),
    "a type that is a number": lambda: dynd.serialize(1, 8),
    "a type that is bytes": lambda: dynd.array(1, b"int8"),
    "a NumPy type": lambda: dynd.array(1, np.int8),
    "limits that are a number": lambda: dynd.deserialize(b"\0", "int8", limits=3),
    "limits that are a dict": lambda: dynd.unpack(dynd.pack(1), limits={}),
    "limits of parse": lambda: dynd.parse("int8", 5),
    "limits of load": lambda: dynd.load(io.BytesIO(b"\0"), "int8", limits="x"),
    "limits of CBOR": lambda: dynd.from_cbor(dynd.to_cbor(1), limits=1),
    "limits of CBOR to write": lambda: dynd.to_cbor(1, limits=1),
    "a stream without read": lambda: dynd.load(b"\0", "int8"),
    "a stream that is None": lambda: dynd.load(None, "int8"),
    "a stream of text": lambda: dynd.load(io.StringIO("x"), "int8"),
    "a stream that reads text": lambda: dynd.load(Text(), "int8"),
    "a stream without write": lambda: dynd.dump(1, b""),
    "a stream to write that is None": lambda: dynd.dump(1, None),
    "a stream that takes text": lambda: dynd.dump(1, io.StringIO()),
    "a stream that refuses": lambda: dynd.dump(1, Text()),
    "bytes that are text": lambda: dynd.unpack("int8"),
    "bytes that are None": lambda: dynd.from_cbor(None),
    "a profile": lambda: dynd.to_cbor(1, profile="json"),
    "a profile to read": lambda: dynd.from_cbor(b"\1", profile=None),
    "a value without a type": lambda: dynd.serialize(object()),
    "a value of no type in a list": lambda: dynd.pack([1, object()]),
    "a set": lambda: dynd.typeof({1, 2}),
    "a function": lambda: dynd.array(len),
    "keys that are no text": lambda: dynd.typeof({1: 2}),
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_of_the_wrong_kind(case):
    with pytest.raises(TensorglotError) as caught:
        WRONG[case]()
    assert isinstance(caught.value, InputError)


def test_limits_can_be_none():
    assert dynd.deserialize(b"\1", "int8", limits=None).tolist() == 1
    assert dynd.load(io.BytesIO(varint(1) + b"\1"), "var * int8", limits=None).tolist() == [1]
