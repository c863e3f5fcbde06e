"""Hostile bytes for DyND: refused by rule, within 10 ms and 10 MB for less than 64 KB.

The bounds are those of docs/trust.md. Interpreted kernels are slower and have only the bound of memory.
"""

from __future__ import annotations

import io

import pytest

import tensorglot as tg
from bounds import INTERPRETED, MB, allocated_nbytes, resident_nbytes, seconds
from dynd_random import sized, varint
from peers import needs
from tensorglot import dynd
from tensorglot.errors import FormatError, LimitError, TensorglotError, TruncatedError

BAD_UTF8 = [
    "80", "bf", "c0", "c080", "c1bf", "c2", "c220", "c2c2", "df", "e0", "e080", "e08080", "e09fbf", "e0a0", "e0a020",
    "eda080", "edbfbf", "ed9f", "ef", "efbf", "f0", "f08080", "f0808080", "f08fbfbf", "f09f98", "f09f9820", "f4908080",
    "f5808080", "f7bfbfbf", "f8888080", "fc", "fe", "ff",
]  # fmt: skip
deep_any = lambda levels: sized(b"array[Any]") * levels  # noqa: E731

ATTACKS: dict[str, tuple[str, bytes, str]] = {
    "ten bytes of varint": ("bytes", b"\x80" * 9 + b"\x01", "dynd.varint.long"),
    "a varint without an end": ("bytes", b"\xff" * 60_000, "dynd.varint.long"),
    "a varint cut short": ("bytes", b"\xff" * 8, "dynd.truncated"),
    "a varint of zero in two bytes": ("var * int8", b"\x80\x00", "dynd.varint.minimal"),
    "a varint padded in a list of lists": ("var * var * int8", b"\x01\x81\x80\x00", "dynd.varint.minimal"),
    "2**60 bytes in 12": ("bytes", varint(1 << 60) + b"abc", "dynd.count"),
    "2**60 strings in 12": ("var * string", varint(1 << 60) + b"abc", "dynd.count"),
    "2**60 structs in 12": ("var * {a: string, b: int64}", varint(1 << 60) + b"abc", "dynd.count"),
    "2**62 of a huge dim": ("var * 4611686018427387904 * int64", varint(1 << 62), "dynd.count"),
    "one of a huge dim": ("var * 9223372036854775807 * int64", b"\x01", "dynd.count"),
    "huge dims over strings": ("9223372036854775807 * 9223372036854775807 * string", b"", "dynd.count"),
    "huge dims in another order": (f"storage[{1 << 62} * {1 << 62} * string, axis=[1, 0]]", b"", "dynd.truncated"),
    "a huge fixed dim": ("9223372036854775807 * int64", b"", "dynd.truncated"),
    "huge bytes[N]": ("9223372036854775807 * bytes[9223372036854775807]", b"x", "dynd.truncated"),
    "2**60 voids": ("var * void", varint(1 << 60), "dynd.void"),
    "2**60 empty tuples": ("var * ()", varint(1 << 60), "dynd.void"),
    "2**60 empty dims": ("var * 0 * int64", varint(1 << 60), "dynd.void"),
    "2**60 missing voids": ("var * ?void", varint(1 << 60), "dynd.void"),
    "2**60 records of voids": ("var * {a: void, b: 3 * void}", varint(1 << 60), "dynd.void"),
    "many lists of many voids": ("var * var * void", varint(20_000) + varint(1 << 20) * 20_000, "dynd.void"),
    "a byte with a million voids": ("var * {a: int8, b: 1000000 * void}", varint(60_000) + bytes(60_000), "dynd.void"),
    "two sizes of 2**62": (f"({1 << 62} * int8, {1 << 62} * int8)", b"", "dynd.truncated"),
    "two dims of 2**63 - 1 voids": ("({0} * void, {0} * void)".format((1 << 63) - 1), b"", "dynd.void"),
    "a list of such dims": ("var * ({0} * void, {0} * void)".format((1 << 63) - 1), b"\x01", "dynd.void"),
    "a dim of voids": ("1000000000000 * void", b"", "dynd.void"),
    "a dim of empty dims": ("1000000000000 * 0 * int8", b"", "dynd.void"),
    "bool 2": ("60000 * bool", bytes(59_999) + b"\x02", "dynd.bool"),
    "bool 2 in a record in a list": ("var * {a: int8, b: bool}", b"\x02\x00\x01\x00\x02", "dynd.bool"),
    "?bool 3": ("?bool", b"\x03", "dynd.bool"),
    "int4 beyond four bits": ("2 * int4", b"\x01\x10", "dynd.int4"),
    "flag 2": ("?uint8", b"\x02\x00", "dynd.flag"),
    "flag 255 in a list": ("var * ?string", b"\x02\x00\xff", "dynd.flag"),
    "missing without its flag": ("?string", b"", "dynd.truncated"),
    "trailing byte": ("var * int8", b"\x00\x00", "dynd.trailing"),
    "trailing 60 KB": ("void", bytes(60_000), "dynd.trailing"),
    "a type that is not canonical": ("type", sized(b"3*int32"), "dynd.type.canonical"),
    "an alias of a type": ("var * type", b"\x01" + sized(b"int"), "dynd.type.canonical"),
    "a type of options": ("type", sized(b"?" * 60_000), "dynd.type.depth"),
    "a type of pointers": ("type", sized(b"pointer[" * 7_000), "dynd.type.depth"),
    "a type of dimensions": ("type", sized(b"var * " * 10_000), "dynd.type.rank"),
    "a type that is too long": ("type", sized(b"{" + b"a" * 65_600), "dynd.type.length"),
    "a type in Latin-1": ("type", sized(b"{'\xe9': int8}"), "dynd.type.canonical"),
    "a duplicate field": ("array[Any]", sized(b"{a: int8, a: int8}") + b"\0\0", "dynd.type.field"),
    "an empty field that is not quoted": ("array[Any]", sized(b"{: int8}") + b"\0", "dynd.type.field"),
    "a field quoted without need": ("array[Any]", sized(b"{'a': int8}") + b"\0", "dynd.type.canonical"),
    "a symbolic type with data": ("array[Any]", sized(b"Any") + b"\0", "dynd.symbolic"),
    "a symbolic dimension with data": ("array[Any]", sized(b"N * int8") + b"\0", "dynd.symbolic"),
    "a function with data": ("array[Any]", sized(b"() -> ()") + b"\0", "dynd.symbolic"),
    "an open struct with data": ("array[Any]", sized(b"{...}"), "dynd.symbolic"),
    "another type than array[T] allows": ("array[int32]", sized(b"int64") + bytes(8), "dynd.array.type"),
    "array[Any] in array[Any]": ("array[Any]", deep_any(5_000), "dynd.depth"),
    "array[Any] in array[Any], complete": ("array[Any]", deep_any(5_000) + sized(b"void"), "dynd.depth"),
    "arrays in lists": ("array[Any]", (sized(b"var * array[Any]") + b"\x01") * 3_000, "dynd.depth"),
    "a type and no data": ("array[Any]", sized(b"1000000000 * int64"), "dynd.truncated"),
    "a list of 2**40 in an array": ("array[Any]", sized(b"var * int8") + varint(1 << 40), "dynd.count"),
    "a fixed string with something behind its NUL": ("fixed_string[3]", b"a\0b", "dynd.fixed_string.nul"),
    "half a surrogate pair": ("fixed_string[2, 'utf16']", b"\x3d\xd8\x00\x00", "dynd.utf8"),
    "a low surrogate first": ("fixed_string[2, 'utf16']", b"\x00\xde\x3d\xd8", "dynd.utf8"),
    "a surrogate in UTF-32": ("fixed_string[1, 'utf32']", b"\x00\xd8\x00\x00", "dynd.utf8"),
    "beyond Unicode in UTF-32": ("fixed_string[1, 'utf32']", b"\x00\x00\x11\x00", "dynd.utf8"),
    "beyond ASCII": ("fixed_string[1, 'ascii']", b"\x80", "dynd.utf8"),
    "a character split between two fixed strings": ("2 * fixed_string[1]", "é".encode(), "dynd.utf8"),
    "a character split between two strings": ("2 * string", b"\x01\xc3\x01\xa9", "dynd.utf8"),
    "no CID": ("merkle[int8]", bytes(36), "dynd.merkle"),
    "a CID of SHA-256": ("merkle[int8]", bytes.fromhex("01551220") + bytes(32), "dynd.merkle"),
    "a time beyond the day": ("var * time['s']", b"\x01" + (86_400).to_bytes(8, "little"), "dynd.time"),
    "a time before midnight": ("3 * time['ns']", bytes(16) + b"\xff" * 8, "dynd.time"),
    "a missing time that is not": ("time['us']", bytes(7) + b"\x80", "dynd.time"),
    "a missing time one off": ("?time['us']", b"\x01" + bytes(6) + b"\x80", "dynd.time"),
    "a decimal of too many digits": ("decimal[2, 1]", (100).to_bytes(16, "little"), "dynd.decimal"),
    "a decimal far below": ("2 * decimal[38, 0]", bytes(31) + b"\x80", "dynd.decimal"),
    "a decimal beyond in an option": ("?decimal[38, 0]", bytes(15) + b"\x81", "dynd.decimal"),
    "half a date": ("date", bytes(2), "dynd.truncated"),
    "a map with keys in another order": ("map[int8, int8]", b"\x02\x02\0\x01\0", "dynd.map"),
    "a map with a key twice": ("map[string, int8]", b"\x02\x01a\0\x01a\0", "dynd.map"),
    "a map in a list with a key twice": ("var * map[(int8, string), ()]", b"\x02\0\x02\1\0\1\0", "dynd.map"),
    "a map in a key": ("map[map[int8, int8], int8]", b"\x01\x02\x02\0\x01\0\0", "dynd.map"),
    "2**60 pairs in 12 bytes": ("map[int8, int8]", varint(1 << 60) + b"abc", "dynd.count"),
    "2**60 pairs of nothing": ("map[void, void]", varint(1 << 60), "dynd.void"),
    "an option of many voids": ("?1000000000000 * void", b"\x01", "dynd.void"),
    "options of many voids": ("var * ?1000 * void", varint(60_000) + b"\x01" * 60_000, "dynd.void"),
    "an int8 in array[Float]": ("array[Float]", sized(b"int8") + b"\0", "dynd.array.type"),
    "a list in array[Scalar]": ("array[Scalar]", sized(b"?var * int8") + b"\0", "dynd.array.type"),
    "an option in array[Int]": ("var * array[Int]", b"\x01" + sized(b"?int8") + b"\0", "dynd.array.type"),
    "half of an int128": ("int128", bytes(8), "dynd.truncated"),
    "half of a float128": ("2 * float128", bytes(24), "dynd.truncated"),
}  # fmt: skip
for raw in BAD_UTF8:
    bad = bytes.fromhex(raw)
    ATTACKS[f"string {raw}"] = ("string", sized(b"abcdefgh" + bad), "dynd.utf8")
    ATTACKS[f"string {raw} between"] = ("var * string", b"\x03" + sized(b"x") + sized(bad) + sized(b"y"), "dynd.utf8")
    ATTACKS[f"chars {raw}"] = ("5 * char", b"ab" + bad + b"cde", "dynd.utf8")
    ATTACKS[f"fixed string {raw}"] = ("fixed_string[8]", bad.ljust(8, b"\0"), "dynd.utf8")


def refused(attack):
    text, data, _ = ATTACKS[attack]
    with pytest.raises(TensorglotError) as caught:
        dynd.deserialize(data, text)
    return caught.value


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_by_its_rule(attack):
    _, data, rule = ATTACKS[attack]
    error = refused(attack)
    assert error.rule == rule
    assert isinstance(error, FormatError)
    assert error.offset is not None
    assert 0 <= error.offset <= len(data)
    assert isinstance(error, LimitError) == (rule in ("dynd.void", "dynd.depth", "dynd.type.depth", "dynd.type.rank",
                                                      "dynd.type.length"))  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_costs_10_ms_and_10_mb(attack):
    refused(attack)
    assert allocated_nbytes(lambda: refused(attack)) <= 10 * MB
    assert resident_nbytes(lambda: refused(attack)) <= 10 * MB
    if not INTERPRETED:
        assert seconds(lambda: refused(attack), 0.010) <= 0.010


@pytest.mark.parametrize("attack", [name for name, (_, _, rule) in ATTACKS.items() if rule != "dynd.trailing"])
def test_an_attack_in_a_stream_is_refused_by_its_rule(attack):
    """A stream does not know its end: a count that memory refuses is missing bytes there."""
    text, data, rule = ATTACKS[attack]
    with pytest.raises(FormatError) as caught:
        dynd.load(io.BytesIO(data), text)
    assert caught.value.rule == rule or (rule == "dynd.count" and isinstance(caught.value, TruncatedError))


def all_serialized(path):
    with tg.open(path) as archive:
        return [tensor.serialize() for tensor in archive.values()]


DENSE = "1000000000000 * 0 * int8"
"""A tensor without elements, which needs no decoding."""
IN_FILES = [
    name
    for name, (text, _, rule) in ATTACKS.items()
    if "array[" not in text and rule != "dynd.trailing" and text != DENSE
]


@pytest.mark.parametrize("attack", IN_FILES)
def test_an_attack_in_a_file_is_found_by_verify_and_by_reading(attack, tmp_path):
    """As a field of a file, before and behind others."""
    text, data, _ = ATTACKS[attack]
    t = str(dynd.parse(text))
    for kind, content in ((t, data), (f"{{a: {t}, b: int8}}", data + b"\0"), (f"{{a: int8, b: {t}}}", b"\0" + data)):
        path = tmp_path / "x.dynd"
        path.write_bytes(sized(kind.encode()) + content)
        report = tg.verify(path, deep=True)
        assert not report.ok
        with pytest.raises(FormatError):
            all_serialized(path)


@pytest.mark.parametrize(
    "text",
    [f"0 * {1 << 62} * 2 * int8", f"storage[0 * {1 << 62} * 2 * string, axis=[2, 1, 0]]", f"{1 << 60} * 0 * 8 * int8"],
)
def test_shapes_that_numpy_cannot_represent(text):
    """Without elements, and so without bytes; NumPy counts the other dims."""
    for call in (lambda: dynd.deserialize(b"", text), lambda: dynd.unpack(sized(text.encode()))):
        with pytest.raises(tg.UnsupportedError) as caught:
            call()
        assert caught.value.rule == "dynd.shape"


def test_valid_data_near_the_bounds():
    assert len(dynd.deserialize(varint(1 << 20), "var * void").tolist()) == 1 << 20
    assert dynd.deserialize(deep_any(60) + sized(b"void"), "array[Any]").type == dynd.parse("array[Any]")
    many = dynd.deserialize(varint(60_000) + bytes(60_000), "var * string")
    assert many.tolist() == [""] * 60_000
    wide = "{" + ", ".join(f"f{i}: string" for i in range(4_000)) + "}"
    assert dynd.deserialize(bytes(4_000), wide).serialize() == bytes(4_000)
    record = "int8"
    for _ in range(63):
        record = f"1 * {{a: {record}, b: int8}}"
    assert dynd.deserialize(bytes(64), record).serialize() == bytes(64)


def test_missing_values_take_no_memory():
    """A flag byte does not bring the dims with it that are not there."""
    data = varint(50_000) + bytes(50_000)
    text = "var * ?1000000 * int64"
    assert allocated_nbytes(lambda: dynd.deserialize(data, text)) <= 10 * MB
    tensor = dynd.deserialize(data, text)
    assert tensor.serialize() == data
    assert tensor.tolist() == [None] * 50_000
    needs("pyarrow")
    with pytest.raises(LimitError):
        tensor.arrow()


@pytest.mark.parametrize("text", ["var * string", "array[Any]", "var * ?{a: string, b: var * int32}", "5 * char"])
def test_every_prefix_is_refused(text):
    value = {"var * string": ["ab", "", "é"], "5 * char": list("aé😀bc")}.get(text, [None, {"a": "x", "b": [1, 2]}])
    data = bytes(dynd.pack("x") if text == "array[Any]" else dynd.serialize(value, text))
    assert dynd.deserialize(data, text).serialize() == data
    for size in range(len(data)):
        with pytest.raises(FormatError, match=r"rule dynd\.(truncated|count)"):
            dynd.deserialize(data[:size], text)
        with pytest.raises(TruncatedError):
            dynd.load(io.BytesIO(data[:size]), text)


def test_what_is_not_bytes():
    for data in (3, "abc", None, [1]):
        with pytest.raises(tg.InputError, match=r"rule dynd\.data"):
            dynd.deserialize(data, "int8")
