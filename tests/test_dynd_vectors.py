"""The published vectors: every valid one both ways, every invalid one refused with its rule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tensorglot import dynd
from tensorglot.errors import FormatError, InputError, TruncatedError
from tensorglot.model.types import algebra as T

VECTORS = json.loads((Path(__file__).parent / "corpus" / "dynd" / "vectors.json").read_text())

RULES = {
    "02": "dynd.bool",
    "03": "dynd.bool",
    "8000": "dynd.varint.minimal",
    "8100": "dynd.varint.minimal",
    "8180808080808080808000": "dynd.varint.long",
    "ffffffffffffffffff01": "dynd.varint.long",
    "02c328": "dynd.utf8",
    "04f4908080": "dynd.utf8",
    "eda080": "dynd.utf8",
    "80": "dynd.utf8",
    "ffffffff0f01000000": "dynd.count",
    "02016102": "dynd.count",
    "0100020003": "dynd.truncated",
    "0000": "dynd.trailing",
    "01": "dynd.truncated",
    "05696e74333200": "dynd.trailing",
    "04666f6f21": "dynd.type.token",
    "0c6f7074696f6e5b696e74385d": "dynd.type.canonical",
    "05696e743332010000": "dynd.truncated",
    "610062": "dynd.fixed_string.nul",
    "00": "dynd.trailing",
}
ENCODE_RULES = {
    "?int32": "dynd.sentinel",
    "?float64": "dynd.sentinel",
    "string": "dynd.utf8",
    "char": "dynd.char",
    "int8": "dynd.range",
    "3 * int8": "dynd.length",
    "array[int32]": "dynd.array.type",
    "Any": "dynd.symbolic",
}


def value_of(vector, t):
    """A vector's JSON as a Python value."""
    if isinstance(vector, dict) and "$hex" in vector:
        return bytes.fromhex(vector["$hex"])
    if isinstance(vector, dict) and "$type" in vector:
        inner = dynd.parse(vector["$type"])
        if isinstance(inner, T.Array):
            return dynd.deserialize(dynd.pack(value_of(vector["$value"], inner)), inner)
        return dynd.array(value_of(vector["$value"], inner), inner)
    while vector is not None and isinstance(t, T.Pointer | T.Option | T.Storage):
        t = t.element
    match t:
        case T.Scalar() if isinstance(vector, str):
            bits = int(vector, 16).to_bytes(t.dtype.bits // 8, "little")
            return np.frombuffer(bits, t.dtype.numpy)[0]
        case T.Complex() if vector is not None:
            return complex(*vector)
        case T.Fixed() | T.Var() if vector is not None:
            return [value_of(item, t.element) for item in vector]
        case T.Tuple() if vector is not None:
            return tuple(map(value_of, vector, t.elements))
        case T.Struct() if vector is not None:
            return {name: value_of(vector[name], element) for name, element in t.fields}
    return vector


def serialized(value, t):
    """Where the type is array[T], the Tensor at hand is what lies in it."""
    return dynd.pack(value) if isinstance(t, T.Array) else dynd.serialize(value, t)


@pytest.mark.parametrize("vector", VECTORS["valid"], ids=lambda v: f"{v['type']} {v['hex'][:20]}")
def test_valid(vector):
    t = dynd.parse(vector["type"])
    assert str(t) == vector["canonical_type"]
    assert serialized(value_of(vector["value"], t), t).hex() == vector["hex"]
    tensor = dynd.deserialize(bytes.fromhex(vector["hex"]), vector["type"])
    assert tensor.type == t
    assert tensor.serialize().hex() == vector["hex"]
    assert serialized(tensor.tolist(), t).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS["invalid_bytes"], ids=lambda v: f"{v['type']} {v['hex']}")
def test_invalid_bytes(vector):
    data = bytes.fromhex(vector["hex"])
    with pytest.raises(FormatError) as caught:
        dynd.deserialize(data, vector["type"])
    assert caught.value.rule == RULES[vector["hex"]]
    assert 0 <= caught.value.offset <= len(data)
    assert isinstance(caught.value, TruncatedError) == (caught.value.rule == "dynd.truncated")


@pytest.mark.parametrize("vector", VECTORS["encode_errors"], ids=lambda v: v["type"])
def test_encode_errors(vector):
    t = dynd.parse(vector["type"])
    value = value_of(vector["value"], t)
    with pytest.raises(InputError) as caught:
        dynd.serialize(value, t)
    assert caught.value.rule == ENCODE_RULES[vector["type"]]


@pytest.mark.parametrize("vector", VECTORS["type_canonical"], ids=lambda v: ascii(v["in"]))
def test_type_canonical(vector):
    t = dynd.parse(vector["in"])
    assert str(t) == vector["canonical"]
    assert dynd.parse(str(t)) == t
    data = dynd.serialize(t, "type")
    assert dynd.deserialize(data, "type").tolist() == t


@pytest.mark.parametrize("vector", VECTORS["type_invalid"], ids=lambda v: v["in"])
def test_type_invalid(vector):
    with pytest.raises(InputError, match="line 1, column") as caught:
        dynd.parse(vector["in"])
    assert caught.value.rule.startswith("dynd.type.")
