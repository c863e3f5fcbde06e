"""CBOR in both profiles: the vectors, any value both ways, and nothing but what the encoders write."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynd_random import mutant, random_bytes, random_type
from tensorglot import dynd
from tensorglot.dynd.cbor import TAG, is_native
from tensorglot.errors import FormatError, InputError, LimitError, TensorglotError, TensorNotFound
from tensorglot.limits import Limits
from test_dynd_vectors import value_of

VECTORS = json.loads((Path(__file__).parent / "corpus" / "dynd" / "cbor_vectors.json").read_text())
CAS = json.loads((Path(__file__).parent / "corpus" / "dynd" / "cas_vectors.json").read_text())
many = settings(deadline=None, max_examples=300, database=None)


def test_the_tag():
    assert VECTORS["tag"] == TAG == int.from_bytes(b"dynd", "big")


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda v: f"{v['type']} {v['cbor'][:16]}")
def test_vectors(vector):
    t = dynd.parse(vector["type"])
    value = value_of(vector["value"], t)
    assert is_native(t) == vector["native"]
    assert dynd.to_cbor(value, t).hex() == vector["cbor"]
    tensor = dynd.from_cbor(bytes.fromhex(vector["cbor"]))
    assert tensor.type == t
    assert tensor.serialize() == dynd.serialize(value, t)
    assert dynd.from_cbor(bytes.fromhex(vector["cbor"]), vector["type"]).type == t


NATIVE = {
    "()": True,
    "{}": True,
    "(int64, (bool, void), 3 * uint16)": True,
    "{a: int64, b: string}": True,
    "{b: int64, aa: string}": True,
    "{aa: int64, b: string}": False,
    "int32": False,
    "uint8": False,
    "?int64": False,
    "pointer[int64]": False,
    "var * float64": False,
    "2 * 2 * float128": True,
    "2 * bfloat16": False,
    "2 * 3 * bool": False,
    "3 * storage[2 * 2 * int8, axis=[1, 0]]": False,
    "storage[2 * 2 * 2 * int8, axis=[2, 1, 0]]": True,
    "storage[2 * 2 * 2 * int8, axis=[1, 0]]": False,
    "storage[2 * 2 * string, axis=[1, 0]]": False,
    "(char, int64)": False,
    "2 * (int64, int64)": False,
}


@pytest.mark.parametrize("text", NATIVE)
def test_the_form_follows_from_the_type(text):
    t = dynd.parse(text)
    assert is_native(t) == NATIVE[text]
    data = random_bytes(Random(1), t)
    item = dynd.to_cbor(dynd.deserialize(data, t))
    assert item.startswith(b"\xda" + TAG.to_bytes(4, "big")) == (not NATIVE[text])
    assert dynd.from_cbor(item).type == t
    assert dynd.from_cbor(item).serialize() == data


@many
@given(st.integers(0, 2**32))
def test_any_value_both_ways(seed):
    rng = Random(seed)
    t = random_type(rng, 3)
    data = random_bytes(rng, t)
    tensor = dynd.deserialize(data, t)
    for profile in ("exchange", "dag"):
        item = dynd.to_cbor(tensor, profile=profile)
        again = dynd.from_cbor(item, profile=profile)
        assert again.type == t
        assert again.serialize() == data
    store = {}
    linked = dynd.to_cbor(tensor, profile="dag", store=store)
    assert dynd.from_cbor(linked, profile="dag", store=store).serialize() == data


@settings(many, max_examples=1000)
@given(st.integers(0, 2**32))
def test_whatever_is_accepted_is_what_we_write(seed):
    rng = Random(seed)
    t = random_type(rng, 2)
    profile = rng.choice(["exchange", "dag"])
    item = mutant(rng, dynd.to_cbor(dynd.deserialize(random_bytes(rng, t), t), profile=profile))
    try:
        tensor = dynd.from_cbor(item, profile=profile)
    except FormatError as error:
        assert error.rule.partition(".")[0] in ("dynd", "cbor", "cid")  # noqa: PT017
        return
    except InputError as error:  # a link, by chance
        assert error.rule == "dynd.cbor.link"  # noqa: PT017
        return
    assert dynd.to_cbor(tensor, profile=profile) == item


DYND = "da64796e64"
REFUSED = {
    "": "cbor.ends",
    "0100": "cbor.trailing",
    "1800": "cbor.shortest",
    "1b8000000000000000": "dynd.cbor.integer",
    "3b8000000000000000": "dynd.cbor.integer",
    "f93c00": "cbor.float",
    "fa3f800000": "cbor.float",
    "9fff": "cbor.indefinite",
    "bfff": "cbor.indefinite",
    "5f4100ff": "cbor.indefinite",
    "f7": "cbor.simple",
    "c11a00000000": "cbor.tag",
    "d81c80": "cbor.tag",
    "d842440000": "cbor.tag",
    "a2616201616101": "cbor.order",
    "a2616101616102": "cbor.duplicate",
    "a10101": "cbor.key",
    "62c328": "cbor.utf8",
    "d84e4101": "dynd.cbor.array",
    "d84e01": "dynd.cbor.array",
    "d82880": "dynd.cbor.array",
    "d82882820203d84e4400000000": "dynd.cbor.array",
    "d8288281": "cbor.ends",
    "d828828103d8404101": "dynd.cbor.array",
    "d8288282020120": "dynd.cbor.array",
    "d8288282f501d8404101": "dynd.cbor.array",
    DYND + "8265696e7436344100": "dynd.cbor.native",
    DYND + "8265696e7436344400000000": "dynd.cbor.native",
    DYND + "826333202a4100": "dynd.type.syntax",
    DYND + "82636f6e654100": "dynd.type.name",
    DYND + "8263416e7940": "dynd.symbolic",
    DYND + "8267332a696e743332" + "4c" + "00" * 12: "dynd.type.canonical",
    DYND + "8164626f6f6c": "dynd.cbor.array",
    DYND + "8264626f6f6c01": "dynd.cbor.array",
    "81" + DYND + "82653f626f6f6c4101": "dynd.cbor.native",
    "a16161" + DYND + "82653f626f6f6c4101": "dynd.cbor.native",
    DYND + "82653f626f6f6c4103": "dynd.bool",
    DYND + "82653f626f6f6c420000": "dynd.trailing",
    DYND + "82653f626f6f6c40": "dynd.truncated",
}


@pytest.mark.parametrize("item", REFUSED)
def test_refusals(item):
    with pytest.raises(FormatError) as caught:
        dynd.from_cbor(bytes.fromhex(item))
    assert caught.value.rule == REFUSED[item]


def test_depth_has_a_bound():
    for item in (b"\x81" * 100_000, b"\xa1\x61a" * 100_000, b"\xd8\x28\x82" * 100_000):
        with pytest.raises(FormatError, match=r"rule cbor\.depth"):
            dynd.from_cbor(item)
    deep = b"\x81" * 40 + b"\xf6"
    with pytest.raises(LimitError):
        dynd.from_cbor(deep)
    assert dynd.to_cbor(dynd.from_cbor(deep, limits=Limits(cbor_depth=50)), limits=Limits(cbor_depth=50)) == deep


def test_a_struct_of_too_many_fields_has_no_type_text():
    fields = {f"{i:05}": 0 for i in range(6000)}
    item = b"\xb9" + len(fields).to_bytes(2, "big") + b"".join(b"\x65" + name.encode() + b"\0" for name in fields)
    with pytest.raises(LimitError) as caught:
        dynd.from_cbor(item)
    assert caught.value.rule == "dynd.type.length"


ODD = [None, 5, 5.5, "x", True, [1], {}, object(), memoryview(b"abc")[::2], np.arange(5)[::2], np.array([None])]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{type(odd).__name__} {str(odd)[:10]!a}")
def test_any_bytes_raise_only_errors_of_the_library(odd):
    for profile in ("exchange", "dag"):
        with pytest.raises(TensorglotError):
            dynd.from_cbor(odd, profile=profile)
    for call in (
        lambda: dynd.from_cbor(b"\x01", profile=odd),
        lambda: dynd.to_cbor(1, profile=odd),
        lambda: dynd.from_cbor(bytes.fromhex(CAS["array_node_hex"]), profile="dag", store=[odd]),
    ):
        with pytest.raises(InputError):
            call()
    if odd is not None:
        for call in (lambda: dynd.from_cbor(b"\x01", odd), lambda: dynd.to_cbor(1, odd)):
            with pytest.raises(InputError):
                call()


def test_raised_limits_do_not_reach_the_end_of_the_stack():
    deep = Limits(cbor_depth=1 << 20, type_depth=1 << 20)
    for item in (b"\x81" * 100_000 + b"\xf6", b"\xa1\x61a" * 100_000 + b"\xf6"):
        with pytest.raises(LimitError):
            dynd.from_cbor(item, limits=deep)
    assert dynd.from_cbor(b"\x81" * 128 + b"\xf6", limits=deep).serialize() == b""


def test_floats_keep_their_bits():
    for bits in (0x7FF00000000007A2, 0xFFF8000000000001, 0x8000000000000000, 0x7FF0000000000000):
        value = np.array(bits, np.uint64).view(np.float64)
        item = dynd.to_cbor(value)
        assert item == b"\xfb" + bits.to_bytes(8, "big")
        assert dynd.from_cbor(item).serialize() == bits.to_bytes(8, "little")


def test_dag_nodes():
    values = np.array([10, 20, 30], np.int32)
    store = {}
    assert dynd.to_cbor(values, profile="dag", store=store).hex() == CAS["array_node_hex"]
    assert dynd.from_cbor(bytes.fromhex(CAS["array_node_hex"]), profile="dag", store=store).tolist() == [10, 20, 30]
    with pytest.raises(InputError) as caught:
        dynd.from_cbor(bytes.fromhex(CAS["array_node_hex"]), profile="dag")
    assert caught.value.rule == "dynd.cbor.link"
    with pytest.raises(TensorNotFound) as caught:
        dynd.from_cbor(bytes.fromhex(CAS["array_node_hex"]), profile="dag", store={})
    assert caught.value.rule == "dynd.merkle.store"
    whole = dynd.to_cbor(values, profile="dag")
    for wrong, rule in (
        (whole.replace(b"dynd\x01", b"dynd\x02"), "dynd.cbor.node"),
        (whole.replace(b"dynd\x01", b"dynd\xf5"), "dynd.cbor.node"),
        (whole.replace(b"size\x0c", b"size\x0b"), "dynd.cbor.node"),
        (whole.replace(b"int32", b"int16"), "dynd.trailing"),
        (whole.replace(b"\xa4", b"\xa5") + b"\x64zero\0", "dynd.cbor.node"),
        (whole.replace(b"data", b"dato"), "dynd.cbor.node"),
        (b"\x80", "dynd.cbor.node"),
    ):
        assert wrong != whole
        with pytest.raises(FormatError) as caught:
            dynd.from_cbor(wrong, profile="dag")
        assert caught.value.rule == rule, wrong
    with pytest.raises(FormatError) as caught:
        dynd.from_cbor(whole, "3 * int16", profile="dag")
    assert caught.value.rule == "dynd.cbor.type"
