"""The CBOR reader and writer: round trips, every form against every profile, hostile bytes, and cbor2."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bounds import allocated_nbytes, seconds
from tensorglot.errors import FormatError, InputError, LimitError, TensorglotError, TruncatedError
from tensorglot.kernels import cbor_scan
from tensorglot.wire.cbor import DETERMINISTIC, LENIENT, Cursor, Pairs, Profile, Simple, Tag, check, decode, encode

DAG = Profile(
    indefinite=False,
    long_heads=False,
    sorted_keys=True,
    keys="text",
    floats="double",
    nonfinite=False,
    simple=False,
    tags=frozenset({42}),
    depth=64,
)
"""DAG-CBOR, which the table must be able to express."""
DYND = dataclasses.replace(DAG, nonfinite=True, tags=frozenset({40, 1040, 64, 69, 70, 71, 0x64796E64}))
"""DyND's exchange profile, likewise."""
PROFILES = {"lenient": LENIENT, "deterministic": DETERMINISTIC, "dag": DAG, "dynd": DYND}


# RFC 8949, appendix A: diagnostic value, bytes.
VALUES = [
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (65536, "1a00010000"),
    (1 << 32, "1b0000000100000000"),
    (2**64 - 1, "1bffffffffffffffff"),
    (-1, "20"),
    (-(2**64), "3bffffffffffffffff"),
    (False, "f4"),
    (True, "f5"),
    (None, "f6"),
    (0.0, "f90000"),
    (-0.0, "f98000"),
    (1.5, "f93e00"),
    (65504.0, "f97bff"),
    (5.960464477539063e-8, "f90001"),
    (0.00006103515625, "f90400"),
    (100000.0, "fa47c35000"),
    (3.4028234663852886e38, "fa7f7fffff"),
    (1.1754943508222875e-38, "fa00800000"),
    (1.401298464324817e-45, "fa00000001"),
    (1.1, "fb3ff199999999999a"),
    (1.0e300, "fb7e37e43c8800759c"),
    (5e-324, "fb0000000000000001"),
    (math.inf, "f97c00"),
    (-math.inf, "f9fc00"),
    (b"", "40"),
    (b"\1\2\3\4", "4401020304"),
    ("", "60"),
    ("IETF", "6449455446"),
    ("ü水𐅑", "69c3bce6b0b4f0908591"),
    ([], "80"),
    ([1, [2, 3], [4, 5]], "8301820203820405"),
    ({}, "a0"),
    ({"a": 1, "b": [2, 3]}, "a26161016162820203"),
    ({"b": 1, "aa": 2}, "a2616201626161" + "02"),
    ({1: 2, "a": None}, "a20102" + "6161f6"),
]


@pytest.mark.parametrize(("value", "encoded"), VALUES, ids=[encoded for _, encoded in VALUES])
@pytest.mark.parametrize("profile", [LENIENT, DETERMINISTIC], ids=["lenient", "deterministic"])
def test_one_value_one_form(value: object, encoded: str, profile: Profile) -> None:
    data = bytes.fromhex(encoded)
    assert encode(value, profile) == data
    read = decode(data, profile)
    assert read == value
    assert type(read) is type(value)
    assert math.copysign(1, read) == math.copysign(1, value) if isinstance(value, float) else True


# Bytes that some profile refuses: the rule of each profile, None where it accepts.
FORMS = [
    # a head longer than needed
    ("1800", None, "shortest", "shortest", "shortest"),
    ("1817", None, "shortest", "shortest", "shortest"),
    ("1900ff", None, "shortest", "shortest", "shortest"),
    ("1a0000ffff", None, "shortest", "shortest", "shortest"),
    ("1b00000000ffffffff", None, "shortest", "shortest", "shortest"),
    ("3800", None, "shortest", "shortest", "shortest"),
    ("780161", None, "shortest", "shortest", "shortest"),
    ("580161", None, "shortest", "shortest", "shortest"),
    ("980100", None, "shortest", "shortest", "shortest"),
    ("b801616100", None, "shortest", "shortest", "shortest"),
    # indefinite lengths
    ("9f01ff", None, "indefinite", "indefinite", "indefinite"),
    ("9fff", None, "indefinite", "indefinite", "indefinite"),
    ("bf616101ff", None, "indefinite", "indefinite", "indefinite"),
    ("7f61616162ff", None, "indefinite", "indefinite", "indefinite"),
    ("5f41004101ff", None, "indefinite", "indefinite", "indefinite"),
    ("7fff", None, "indefinite", "indefinite", "indefinite"),
    # order and uniqueness of keys
    ("a2616201616102", None, "order", "order", "order"),
    ("a26261610161620" + "2", None, "order", "order", "order"),
    ("a2616101616102", "duplicate", "duplicate", "duplicate", "duplicate"),
    ("a261610178016102", "duplicate", "shortest", "shortest", "shortest"),
    ("bf6161017f6161ff02ff", "duplicate", "indefinite", "indefinite", "indefinite"),
    ("a201001800" + "00", None, "shortest", "key", "key"),
    ("a20100180100", "duplicate", "shortest", "key", "key"),
    ("a2f97e0000f97e0000", "key", "duplicate", "key", "key"),
    ("a2f97e0000f97e0100", "key", "float", "key", "key"),
    # kinds of keys
    ("a10102", None, None, "key", "key"),
    ("a1410002", None, None, "key", "key"),
    ("a1f502", None, None, "key", "key"),
    ("a1f93c0002", "key", None, "key", "key"),
    ("a18002", "key", None, "key", "key"),
    ("a1a002", "key", None, "key", "key"),
    ("a1c10002", "key", "tag", "key", "key"),
    # floats
    ("fa3fc00000", None, "float", "float", "float"),
    ("fb3ff8000000000000", None, "float", None, None),
    ("fb3ff199999999999a", None, None, None, None),
    ("f93e00", None, None, "float", "float"),
    ("f97e00", None, None, "float", "float"),
    ("f97e01", None, "float", "float", "float"),
    ("fa7fc00000", None, "float", "float", "float"),
    ("fb7ff8000000000000", None, "float", "float", None),
    ("fb7ff0000000000000", None, "float", "float", None),
    ("fb7ff8000000000001", None, "float", "float", None),
    ("fa7f800000", None, "float", "float", "float"),
    # tags
    ("c000", None, "tag", "tag", "tag"),
    ("c249010000000000000000", None, "tag", "tag", "tag"),
    ("c34100", None, "tag", "tag", "tag"),
    ("c4820100", None, "tag", "tag", "tag"),
    ("d81c80", None, "tag", "tag", "tag"),
    ("d81d00", None, "tag", "tag", "tag"),
    ("d82361" + "61", None, "tag", "tag", "tag"),
    ("d82a4100", None, "tag", None, "tag"),
    ("d84041ff", None, "tag", "tag", None),
    ("d82882820102d84042" + "0102", None, "tag", "tag", None),
    ("d9041082820102d840420102", None, "tag", "tag", None),
    ("da64796e6482616140", None, "tag", "tag", None),
    # simple values
    ("f7", None, "simple", "simple", "simple"),
    ("f0", None, "simple", "simple", "simple"),
    ("f8ff", None, "simple", "simple", "simple"),
    ("f820", None, "simple", "simple", "simple"),
    # what nobody may
    ("", "ends", "ends", "ends", "ends"),
    ("18", "ends", "ends", "ends", "ends"),
    ("1b00000000000000", "ends", "ends", "ends", "ends"),
    ("6261", "ends", "ends", "ends", "ends"),
    ("5b7fffffffffffffff00", "ends", "ends", "ends", "ends"),
    ("7bffffffffffffffff00", "ends", "ends", "ends", "ends"),
    ("9b1000000000000000", "ends", "ends", "ends", "ends"),
    ("bb0800000000000000", "ends", "ends", "ends", "ends"),
    ("bbffffffffffffffff", "ends", "ends", "ends", "ends"),
    ("a16161", "ends", "ends", "ends", "ends"),
    ("8201", "ends", "ends", "ends", "ends"),
    ("c1", "ends", "tag", "tag", "tag"),
    ("0000", "trailing", "trailing", "trailing", "trailing"),
    ("1c", "reserved", "reserved", "reserved", "reserved"),
    ("7d", "reserved", "reserved", "reserved", "reserved"),
    ("fc", "reserved", "reserved", "reserved", "reserved"),
    ("f800", "reserved", "reserved", "reserved", "reserved"),
    ("f81f", "reserved", "reserved", "reserved", "reserved"),
    ("1f", "reserved", "indefinite", "indefinite", "indefinite"),
    ("3f", "reserved", "indefinite", "indefinite", "indefinite"),
    ("df00", "reserved", "indefinite", "indefinite", "indefinite"),
    ("ff", "break", "indefinite", "indefinite", "indefinite"),
    ("81ff", "break", "indefinite", "indefinite", "indefinite"),
    ("bf6161ff", "break", "indefinite", "indefinite", "indefinite"),
    ("9fc1ff", "break", "indefinite", "indefinite", "indefinite"),
    ("9f01", "ends", "indefinite", "indefinite", "indefinite"),
    ("7f6161", "ends", "indefinite", "indefinite", "indefinite"),
    ("7f4161ff", "chunk", "indefinite", "indefinite", "indefinite"),
    ("5f01ff", "chunk", "indefinite", "indefinite", "indefinite"),
    ("7f7f6161ffff", "chunk", "indefinite", "indefinite", "indefinite"),
    ("7f62c3ff", "utf8", "indefinite", "indefinite", "indefinite"),
    ("7f61c361bcff", "utf8", "indefinite", "indefinite", "indefinite"),
    ("61ff", "utf8", "utf8", "utf8", "utf8"),
    ("62c0af", "utf8", "utf8", "utf8", "utf8"),
    ("63eda080", "utf8", "utf8", "utf8", "utf8"),
    ("64f4908080", "utf8", "utf8", "utf8", "utf8"),
    ("a161ff00", "utf8", "utf8", "utf8", "utf8"),
]


@pytest.mark.parametrize("form", FORMS, ids=[form[0] for form in FORMS])
def test_each_form_is_accepted_or_refused_by_each_profile(
    form: tuple[str, str | None, str | None, str | None, str | None],
) -> None:
    data = bytes.fromhex(form[0])
    for name, rule in zip(PROFILES, form[1:], strict=True):
        if rule is None:
            decode(data, PROFILES[name])
            continue
        with pytest.raises(FormatError) as caught:
            decode(data, PROFILES[name], base=1000)
        assert caught.value.rule == f"cbor.{rule}", name
        assert 1000 <= caught.value.offset <= 1000 + len(data)


@pytest.mark.parametrize("profile", [LENIENT, DETERMINISTIC], ids=["lenient", "deterministic"])
def test_depth_is_counted_from_the_root(profile: Profile) -> None:
    for opening in (b"\x81", b"\xa1\x61a"):
        assert decode(opening * 32 + b"\0", profile)
        decode(opening * 31 + b"\x80", profile)
        for closing in (b"\x80", b"\xa0", b"\x81\0"):
            with pytest.raises(LimitError) as caught:
                decode(opening * 32 + closing, profile)
            assert caught.value.rule == "cbor.depth"
    nested: list[object] = []
    nested.append(nested)
    with pytest.raises(InputError, match=r"rule cbor\.depth"):
        encode(nested, profile)


@pytest.mark.parametrize("opening", [b"\x81", b"\x9f", b"\xc1", b"\xa1\0", b"\xbf\0", b"\xd8\x20"])
def test_deep_nesting_is_refused_cheaply(opening: bytes) -> None:
    data = opening * 100_000

    def refused() -> None:
        with pytest.raises(TensorglotError, match=r"rule cbor\.depth"):
            decode(data, LENIENT)

    assert allocated_nbytes(refused) < 1 << 20
    assert seconds(refused, 0.1) < 0.1


def test_a_raised_depth_needs_no_recursion() -> None:
    deep = dataclasses.replace(LENIENT, depth=5_000)
    data = b"\x81" * 5_000 + b"\0"
    value = decode(data, deep)
    assert encode(value, deep) == data


def test_values_python_has_no_equal_for() -> None:
    assert decode(bytes.fromhex("c11a514b67b0"), LENIENT) == Tag(1, 1363896240)
    assert decode(b"\xf7", LENIENT) == Simple(23)
    both = bytes.fromhex("a3016161" + "61636163" + "f56162")
    assert decode(both, LENIENT) == Pairs(((1, "a"), ("c", "c"), (True, "b")))
    listed = bytes.fromhex("a18000")
    assert decode(listed, DETERMINISTIC) == Pairs((([], 0),))
    for data, profile in ((both, LENIENT), (listed, DETERMINISTIC), (b"\xf7", LENIENT)):
        assert decode(encode(decode(data, profile), profile), profile) == decode(data, profile)


@pytest.mark.parametrize(
    ("value", "profile", "rule"),
    [
        (1 << 64, LENIENT, "integer"),
        (-(1 << 64) - 1, LENIENT, "integer"),
        (object(), LENIENT, "value"),
        (Simple(23), DETERMINISTIC, "value"),
        (Tag(1, 0), DETERMINISTIC, "tag"),
        (math.nan, DAG, "float"),
        (math.inf, DAG, "float"),
        ({1: 2}, DAG, "key"),
        ({(): 2}, LENIENT, "key"),
        (Pairs((("a", 1), ("a", 2))), LENIENT, "duplicate"),
        ("\ud800", LENIENT, "utf8"),
    ],
)
def test_what_cannot_be_written(value: object, profile: Profile, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        encode(value, profile)
    assert caught.value.rule == f"cbor.{rule}"


plain = st.one_of(
    st.integers(-(2**64), 2**64 - 1),
    st.floats(allow_nan=False),
    st.floats(width=16, allow_nan=False),
    st.floats(width=32, allow_nan=False),
    st.text(),
    st.binary(),
    st.booleans(),
    st.none(),
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=30) | st.integers(0, 40), inner),
    max_leaves=20,
)


@given(values)
def test_cbor2_agrees(value: object) -> None:
    ours = encode(value, DETERMINISTIC)
    assert repr(cbor2.loads(ours)) == repr(decode(ours, DETERMINISTIC))
    assert ours == cbor2.dumps(value, canonical=True) or _mixed_keys(value)
    theirs = cbor2.dumps(value)
    assert encode(decode(theirs, LENIENT), DETERMINISTIC) == ours


def _mixed_keys(value: object) -> bool:
    """cbor2 sorts keys by length first, which differs from the order of bytes where their kinds differ."""
    if isinstance(value, dict):
        return len({type(key) for key in value}) > 1 or any(map(_mixed_keys, value.values()))
    return isinstance(value, list) and any(map(_mixed_keys, value))


@given(st.binary(max_size=64))
@settings(max_examples=500)
def test_any_bytes(data: bytes) -> None:
    for profile in PROFILES.values():
        try:
            value = decode(data, profile)
        except FormatError:
            continue
        again = encode(value, profile)
        if profile is not LENIENT:
            assert again == data, "one value has one form"
        assert cbor_scan.skip(data, 0, len(data)) == len(data)


@given(values, st.data())
def test_every_prefix_and_every_byte(value: object, data: st.DataObject) -> None:
    encoded = bytearray(encode(value, DETERMINISTIC))
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(TruncatedError):
        decode(bytes(encoded[:cut]), DETERMINISTIC)
    encoded[cut] ^= data.draw(st.integers(1, 255))
    try:
        changed = decode(bytes(encoded), DETERMINISTIC)
    except FormatError:
        return
    assert encode(changed, DETERMINISTIC) == encoded


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=2000)
def test_shortest_floats(bits: int) -> None:
    for form, prefix, shorter in ((">f", b"\xfa", (">e",)), (">d", b"\xfb", (">e", ">f"))):
        wide = bits if form == ">f" else bits << 29 | (bits & 7)
        payload = wide.to_bytes(struct.calcsize(form), "big")
        value = struct.unpack(form, payload)[0]
        fits = value != value or any(_holds(value, short) for short in shorter)
        try:
            check(prefix + payload, DETERMINISTIC)
            refused = False
        except FormatError:
            refused = True
        assert refused == fits


def _holds(value: float, form: str) -> bool:
    try:
        return struct.unpack(form, struct.pack(form, value))[0] == value
    except OverflowError:
        return False


def test_skip_and_cursor() -> None:
    data = bytes.fromhex("bf6161" + "9f0102ff" + "6162" + "7f616161" + "62ff" + "6163" + "c1a10102" + "ff")
    check(data, LENIENT)
    cursor = Cursor(data, base=100, rule="some.rule")
    found = {}
    for _ in cursor.map("root"):
        key = cursor.text("key")
        begin, end = cursor.skip()
        found[key] = Cursor(data, pos=begin).value()
        assert end <= len(data)
    assert found == {"a": [1, 2], "b": "ab", "c": Tag(1, {1: 2})}
    assert cursor.pos == len(data)
    with pytest.raises(FormatError, match="'root' is not an array") as caught:
        Cursor(data, base=100, rule="some.rule").array("root")
    assert (caught.value.rule, caught.value.offset) == ("some.rule", 100)
    for wrong in (b"", b"\x82\0", b"\xff", b"\x61", b"\x9f", b"\x1b"):
        assert cbor_scan.skip(wrong, 0, len(wrong)) == -1
    assert cbor_scan.skip(b"\0", 2, 1) == -1


def test_other_keys_than_text() -> None:
    data = encode({"a": 1, 5: 2, "b": [3]}, LENIENT)
    assert list(Cursor(data).fields("m", others=True)) == ["a", "b"]
    with pytest.raises(FormatError, match="'key' is not text"):
        Cursor(data).fields("m")


@pytest.mark.parametrize("value", [np.float32(1.5), np.int16(-3), np.bool_(True), np.array(7)])
def test_scalars_of_numpy(value: Any) -> None:
    assert encode({"a": [value]}, LENIENT) == encode({"a": [value.item()]}, LENIENT)


def test_many_keys_in_linear_time() -> None:
    value = {f"key {i}": i for i in range(50_000)}
    unsorted = cbor2.dumps(dict(reversed(value.items())))
    assert decode(unsorted, LENIENT) == value
    assert seconds(lambda: decode(unsorted, LENIENT), 5) < 5
    twice = bytearray(unsorted)
    twice[-len(b"\x65key 0\0") : -1] = b"\x65key 1"
    with pytest.raises(FormatError, match="duplicate"):
        decode(bytes(twice), LENIENT)
