"""Files of DyND, and nested values in other containers."""

from __future__ import annotations

import io
from contextlib import suppress
from itertools import accumulate
from random import Random

import numpy as np
import pytest

import tensorglot as tg
from bounds import MB, allocated_nbytes
from dynd_random import mutant, random_bytes, random_type, sized, varint
from tensorglot import dynd
from tensorglot.dynd.codec.inputs import Memory, Stream
from tensorglot.dynd.codec.skip import skip
from tensorglot.dynd.schema import plan_of
from tensorglot.dynd.sizes import VARIABLE, fixed_nbytes, measure, read_types
from tensorglot.errors import (
    FormatError,
    InputError,
    LimitError,
    UnsupportedError,
)
from tensorglot.limits import DEFAULT

NESTED = dynd.array([{"a": [1, 2], "s": "x"}, {"a": [], "s": "yé"}], "var * {a: var * int16, s: string}")
TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "nested": NESTED,
    "b": np.array([True, False]),
    "a name: with 'signs'\n": np.arange(3),
    "missing": dynd.array([1, None], "2 * ?int8"),
    "boxes": dynd.array([dynd.array(1), dynd.array("x")], "var * array[Any]"),
}


def test_a_struct_is_an_archive_of_its_fields(tmp_path):
    path = tmp_path / "x.dynd"
    tg.save(path, TENSORS)
    with tg.open(path) as archive:
        assert archive.format == "dynd@1"
        assert list(archive) == list(TENSORS)
        for name, value in TENSORS.items():
            assert archive[name].cid() == dynd.array(value).cid()
            assert archive[name].type == dynd.typeof(value)
        assert (archive["w"].numpy() == TENSORS["w"]).all()
        assert archive["w"][1, ::2].tolist() == [3, 5]
        assert archive["nested"].tolist() == NESTED.tolist()
        assert archive["nested"].layout == "nested"
        assert [box.tolist() for box in archive["boxes"].tolist()] == [1, "x"]
        assert archive["missing"].tolist() == [1, None]
    whole = dynd.unpack(path.read_bytes())
    assert list(whole.tolist()) == list(TENSORS)
    assert dynd.pack(whole) == path.read_bytes()
    assert tg.verify(path, deep=True).ok
    assert tg.dumps(tg.open(path), format="dynd") == path.read_bytes()


@pytest.mark.parametrize("value", [np.arange(4), NESTED, np.float64(2.5)], ids=["dense", "nested", "scalar"])
def test_any_other_value_is_an_archive_of_one(tmp_path, value):
    path = tmp_path / "x.dynd"
    path.write_bytes(dynd.pack(value))
    with tg.open(path) as archive:
        assert list(archive) == ["data"]
        assert archive["data"].cid() == dynd.array(value).cid()
    tg.save(tmp_path / "y.dynd", {"data": value})
    assert (tmp_path / "y.dynd").read_bytes() == path.read_bytes()


def test_the_first_field_of_nested_records_keeps_its_name():
    value = {"first": {"x": 1, "y": 2}, "second": {"x": 1}}
    assert list(tg.open(dynd.pack(value), format="dynd")) == ["first", "second"]


def test_a_struct_alone_keeps_its_name(tmp_path):
    record = dynd.array({"x": 1})
    tg.save(tmp_path / "x.dynd", {"data": record})
    with tg.open(tmp_path / "x.dynd") as archive:
        assert archive["data"].tolist() == {"x": 1}
    tg.save(tmp_path / "e.dynd", {})
    assert (tmp_path / "e.dynd").read_bytes() == b"\x02{}"
    assert dict(tg.open(tmp_path / "e.dynd")) == {}


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_nested_values_live_in_ztensor_files(tmp_path, format):
    path = tmp_path / "x.zt"
    tg.save(path, TENSORS, format=format)
    with tg.open(path) as archive:
        for name, value in TENSORS.items():
            assert archive[name].type == dynd.typeof(value)
            assert archive[name].cid() == dynd.array(value).cid()
        assert archive["nested"].tolist() == NESTED.tolist()
        tg.save(tmp_path / "back.dynd", archive)
    assert dynd.array(NESTED).cid() == tg.open(tmp_path / "back.dynd")["nested"].cid()
    assert tg.verify(path, deep=True).ok


def hostile(parts, text):
    """A nested tensor in a file, with the parts that are given."""
    arrays = {name: np.asarray(array) for name, array in parts.items()}
    made = {name: dynd.array(array).parts["data"] for name, array in arrays.items()}
    return tg.Tensor("t", made, "nested", dynd.parse(text), {"dynd": text})


HOSTILE = {
    "offsets beyond the content": (
        {"offsets": [0, 9], "content.data": np.zeros(3, np.int8)},
        "var * int8",
        "dynd.range",
    ),
    "offsets below zero": ({"offsets": [-5, 2], "content.data": np.zeros(3, np.int8)}, "var * int8", "dynd.range"),
    "offsets that fall": ({"offsets": [2, 0], "content.data": np.zeros(3, np.int8)}, "var * int8", "dynd.range"),
    "no offsets": (
        {"offsets": np.zeros(0, np.int64), "content.data": np.zeros(3, np.int8)},
        "var * int8",
        "dynd.range",
    ),
    "huge offsets of nothing": (
        {"offsets": [0, 1 << 60], "content.data": np.zeros((0, 0), np.uint8)},
        "var * void",
        "dynd.void",
    ),
    "huge offsets of empty tuples": ({"offsets": [0, 1 << 60]}, "var * ()", "dynd.void"),
    "an index beyond the content": ({"index": [7], "content.data": np.zeros(1, np.uint8)}, "?uint8", "dynd.range"),
    "no index": ({"content.data": np.zeros(1, np.uint8)}, "?uint8", "dynd.parts"),
    "another element type": ({"offsets": [0, 1], "content.data": np.zeros(1, np.int32)}, "var * int8", "dynd.parts"),
    "text that is none": ({"offsets": [0, 1], "content.data": np.array([255], np.uint8)}, "string", "dynd.utf8"),
    "a value that stands for missing": (
        {"index": [0], "content.data": np.array([-128], np.int8)},
        "?int8",
        "dynd.sentinel",
    ),
    "offsets of another kind": (
        {"offsets": [0.0, 2.0], "content.data": np.zeros(3, np.int8)},
        "var * int8",
        "dynd.parts",
    ),
    "offsets that are bools": (
        {"offsets": np.array([False, True]), "content.data": np.zeros(3, np.int8)},
        "var * int8",
        "dynd.parts",
    ),
    "an index of floats": (
        {"index": np.array([np.nan]), "content.data": np.zeros(1, np.uint8)},
        "?uint8",
        "dynd.parts",
    ),
    "an index of huge numbers": (
        {"index": np.array([2**64 - 1, 2**63], np.uint64), "content.data": [1]},
        "2 * ?uint64",
        "dynd.range",
    ),
    "chars that are floats": ({"data": np.array([97.0])}, "1 * char", "dynd.parts"),
    "chars beyond Unicode": ({"data": np.array([0x110000], np.uint32)}, "1 * char", "dynd.utf8"),
    "chars that are surrogates": ({"data": np.array([0xD800], np.uint32)}, "1 * char", "dynd.utf8"),
    "boxes that fall": (
        {"offsets": [5, 0, 5], "data": np.frombuffer(b"\x04void", np.uint8)},
        "2 * array[Any]",
        "dynd.range",
    ),
    "boxes from below": (
        {"offsets": [-5, 5], "data": np.frombuffer(b"\x04void", np.uint8)},
        "array[Any]",
        "dynd.range",
    ),
    "bytes behind a box": (
        {"offsets": [0, 6], "data": np.frombuffer(b"\x04voidx", np.uint8)},
        "array[Any]",
        "dynd.trailing",
    ),
    "boxes of rubbish": ({"offsets": [0, 2], "data": np.array([255, 255], np.uint8)}, "array[Any]", "dynd.truncated"),
    "boxes beyond their bytes": ({"offsets": [0, 99], "data": np.array([4], np.uint8)}, "array[Any]", "dynd.range"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_parts_from_a_file_are_checked(tmp_path, attack):
    path = tmp_path / "x.zt"
    parts, type, rule = HOSTILE[attack]
    tg.save(path, {"t": hostile(parts, type)})
    for verb in (tg.Tensor.tolist, tg.Tensor.serialize, tg.Tensor.cid, tg.Tensor.awkward, tg.Tensor.arrow):
        with tg.open(path) as archive, pytest.raises(FormatError) as caught:
            verb(archive["t"])
        assert caught.value.rule == rule


SHARED = {
    "lists": ({"starts": np.zeros(9999, np.int64), "stops": np.full(9999, 9999), "content.data": np.zeros(9999)},
              "9999 * var * float64"),
    "lists of lists": ({"starts": np.zeros(9999, np.int64), "stops": np.full(9999, 9999),
                        "content.offsets": np.minimum(np.arange(10_000), 1) * 9999,
                        "content.content.data": np.zeros(9999, np.uint8)}, "9999 * var * bytes"),
    "lists of nothing": ({"starts": np.zeros(9999, np.int64), "stops": np.full(9999, 9999)}, "9999 * var * void"),
    "options": ({"index": np.zeros(9999, np.int64), "content.offsets": [0, 9999],
                 "content.content.data": np.zeros(9999)}, "9999 * ?var * float64"),
}  # fmt: skip


@pytest.mark.parametrize("attack", SHARED)
def test_lists_that_share_their_elements_do_not_multiply_memory(tmp_path, attack):
    """A small file whose value would be vast."""
    path = tmp_path / "x.zt"
    tg.save(path, {"t": hostile(*SHARED[attack])})
    assert path.stat().st_size < 400_000
    for verb in (tg.Tensor.tolist, tg.Tensor.serialize, tg.Tensor.cid):
        with tg.open(path) as archive, pytest.raises(LimitError) as caught:
            verb(archive["t"])
        assert caught.value.rule == "dynd.shared"


def test_lists_that_share_some_elements_are_read(tmp_path):
    parts = {"starts": [0, 1, 0], "stops": [2, 3, 0], "content.data": np.array([5, 6, 7], np.int8)}
    tg.save(tmp_path / "x.zt", {"t": hostile(parts, "3 * var * int8")})
    with tg.open(tmp_path / "x.zt") as archive:
        assert archive["t"].tolist() == [[5, 6], [6, 7], []]
        assert archive["t"].serialize() == b"\2\5\6\2\6\7\0"


EMPTY = ["()", "3 * {}", "var * void", "{a: var * 0 * int32, b: 2 * void}", "var * 2 * 0 * bytes[3]", "?()",
         "var * ?bool", "2 * bytes[0]", "storage[3 * 0 * int4, axis=[1, 0]]", "?1 * var * {a: bytes}"]  # fmt: skip


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2", "dynd"])
@pytest.mark.parametrize("text", EMPTY)
def test_values_with_few_bytes_or_columns_live_in_files(text, format):
    accepted = 0
    for data in (b"", b"\0", b"\1", b"\3", b"\3\0\1\2"):
        try:
            tensor = dynd.deserialize(data, text)
        except FormatError:
            continue
        accepted += 1
        assert (tensor.offset, tensor.checksum, tensor.encoding) == (None, None, "raw")
        with tg.open(tg.dumps({"t": tensor}, format=format), format=format) as archive:
            assert archive["t"].serialize() == data
            assert repr(archive["t"].tolist()) == repr(tensor.tolist())
            assert archive["t"].cid() == tensor.cid()
    assert accepted


def test_pieces_of_a_large_value_stay_as_they_are(tmp_path):
    """Whoever collects the pieces before it joins them gets the same bytes."""
    lists = dynd.array(np.arange(3_000_000).reshape(-1, 3), "var * var * int64")
    assert tg.dumps({"data": lists}, format="dynd") == dynd.pack(lists)
    records = dynd.array([{"x": dynd.array([str(i)], "var * string"), "y": i} for i in range(50)],
                         "var * {x: array[Any], y: int64}")  # fmt: skip
    assert tg.dumps({"data": records}, format="dynd") == dynd.pack(records)
    tg.save(tmp_path / "x.dynd", {"data": records})
    assert (tmp_path / "x.dynd").read_bytes() == dynd.pack(records)


def test_strict_accepts_one_file_for_a_value():
    plain, wrapped = sized(b"int8") + b"\7", sized(b"{data: int8}") + b"\7"
    for data in (plain, wrapped):
        assert tg.open(data, format="dynd")["data"].tolist() == 7
    assert tg.open(plain, format="dynd", strict=True)["data"].tolist() == 7
    with pytest.raises(FormatError) as caught:
        tg.open(wrapped, format="dynd", strict=True)
    assert caught.value.rule == "dynd.strict"


TABLE = "{tensors: var * {name: string, type: type, nbytes: int64}, values: bytes}"


def row(name, text, nbytes):
    return sized(name.encode()) + sized(text.encode()) + nbytes.to_bytes(8, "little", signed=True)


def table(rows, values):
    return sized(TABLE.encode()) + varint(len(rows)) + b"".join(rows) + sized(values)


@pytest.mark.parametrize("count", [1_500, 2_500, 100_000])
def test_any_number_of_tensors(tmp_path, count):
    tensors = {f"layer.{i}.weight": np.full(3, i, np.float32) for i in range(count)}
    tensors |= {"flags": np.array([True, False]), "é": NESTED, "narrow": dynd.array([1, -8], "2 * int4")}
    tg.save(tmp_path / "x.dynd", tensors)
    data = (tmp_path / "x.dynd").read_bytes()
    assert (dynd.unpack(data).type == dynd.parse(TABLE)) == (count > 1_500)
    with tg.open(tmp_path / "x.dynd", strict=True) as archive:
        assert list(archive) == list(tensors)
        for name in ("layer.0.weight", f"layer.{count - 1}.weight", "flags", "é", "narrow"):
            assert archive[name].cid() == dynd.array(tensors[name]).cid()
        assert tg.dumps(archive, format="dynd") == data
    assert tg.verify(tmp_path / "x.dynd", deep=True).ok


def test_a_type_too_deep_for_a_field_stands_alone():
    text = "var * (" * 64 + "int8" + ",)" * 64
    t = dynd.parse(text)
    deep = dynd.deserialize(b"\1" * 64 + b"\5", t)
    data = tg.dumps({"a": deep, "b": np.int8(0)}, format="dynd")
    assert data.startswith(sized(TABLE.encode()))
    assert tg.open(data, format="dynd", strict=True)["a"].serialize() == deep.serialize()


def test_tensors_that_look_like_a_table_are_written_as_one():
    rows = dynd.array([{"name": "x", "type": "int8", "nbytes": 9}], dynd.parse(TABLE).fields[0][1])
    data = tg.dumps({"tensors": rows, "values": dynd.array(b"abc", "bytes")}, format="dynd")
    with tg.open(data, format="dynd", strict=True) as archive:
        assert list(archive) == ["tensors", "values"]
        assert archive["tensors"].cid() == rows.cid()
        assert archive["values"].tolist() == b"abc"


TABLES = {
    "a size too small": ([row("a", "int8", 0)], b"", "dynd.table.size"),
    "a size too large": ([row("a", "int8", 2)], b"ab", "dynd.table.size"),
    "sizes below zero": ([row("a", "var * int8", -1), row("b", "var * int8", 2)], b"\0", "dynd.table.size"),
    "sizes beyond the values": ([row("a", "var * int8", 3)], b"\0", "dynd.table.size"),
    "huge sizes": ([row("a", "bytes", 2**62), row("b", "bytes", 2**62)], b"\0", "dynd.table.size"),
    "values of nobody": ([row("a", "int8", 1)], b"ab", "dynd.table.size"),
    "a name twice": ([row("a", "int8", 1), row("a", "int8", 1)], b"ab", "dynd.table.name"),
    "a symbolic type": ([row("a", "Any", 0)], b"", "dynd.symbolic"),
    "another spelling": ([row("a", "int", 4)], b"abcd", "dynd.type.canonical"),
    "no type": ([row("a", "", 0)], b"", "dynd.type.syntax"),
    "a name that is not UTF-8": ([b"\1\xff" + sized(b"int8") + bytes(8)], b"", "dynd.utf8"),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_that_are_refused(case):
    rows, values, rule = TABLES[case]
    data = table(rows, values)
    with pytest.raises(FormatError) as caught:
        tg.open(data, format="dynd")
    assert caught.value.rule == rule
    assert 0 <= caught.value.offset <= len(data)


def test_a_table_cut_short_or_followed_by_bytes_is_refused():
    data = table([row("a", "int8", 1), row("bc", "var * string", 3)], b"\7\1\1x")
    assert tg.open(data, format="dynd")["bc"].tolist() == ["x"]
    for size in range(len(data)):
        with pytest.raises(FormatError):
            tg.open(data[:size], format="dynd")
    with pytest.raises(FormatError) as caught:
        tg.open(data + b"\0", format="dynd")
    assert caught.value.rule == "dynd.trailing"


def test_strict_refuses_a_table_that_a_struct_could_say():
    data = table([row("a", "int8", 1)], b"\7")
    assert tg.open(data, format="dynd")["a"].tolist() == 7
    with pytest.raises(FormatError) as caught:
        tg.open(data, format="dynd", strict=True)
    assert caught.value.rule == "dynd.strict"


@pytest.mark.parametrize(
    ("limit", "rule"),
    [
        ({"tensors": 1}, "dynd.limit.tensors"),
        ({"name_nbytes": 1}, "dynd.limit.name"),
        ({"header_nbytes": 5}, "dynd.limit.header"),
    ],
)
def test_tables_have_limits(limit, rule):
    data = table([row("ab", "int8", 1), row("c", "int8", 1)], b"\7\7")
    with pytest.raises(LimitError) as caught:
        tg.open(data, format="dynd", limits=tg.Limits(**limit))
    assert caught.value.rule == rule


def test_an_invalid_type_attribute_is_refused_on_reading(tmp_path):
    for text in ("3*int8", "Any", 7):
        parts, *_ = HOSTILE["text that is none"]
        tensor = hostile(parts, "string")
        tensor.attributes["dynd"] = text
        tg.save(tmp_path / "x.zt", {"t": tensor})
        with pytest.raises((FormatError, InputError)), tg.open(tmp_path / "x.zt") as archive:
            archive["t"].tolist()


FILES = {
    "nothing": (b"", "dynd.truncated"),
    "half a length": (b"\x80", "dynd.truncated"),
    "a padded length": (b"\x84\x00bool\x00", "dynd.varint.minimal"),
    "a long length": (b"\xff\xff\xff\x01", "dynd.type.length"),
    "a length of ten bytes": (b"\xff" * 9 + b"\x01", "dynd.varint.long"),
    "half a type": (b"\x05int", "dynd.truncated"),
    "no type": (b"\x03foo", "dynd.type.name"),
    "another spelling": (b"\x03int\0\0\0\0", "dynd.type.canonical"),
    "a symbolic type": (b"\x03Any", "dynd.symbolic"),
    "too little": (sized(b"2 * int8") + b"\0", "dynd.truncated"),
    "too much": (sized(b"2 * int8") + b"\0\0\0", "dynd.trailing"),
    "too much behind a list": (sized(b"{a: var * int8, b: int8}") + b"\0\0\0", "dynd.trailing"),
    "a list that has no end": (sized(b"{a: var * int8, b: int8}") + b"\xff\x01", "dynd.truncated"),
    "voids": (sized(b"{a: var * void, b: int8}") + b"\xff\xff\xff\xff\x7f\0", "dynd.void"),
    "voids of all fields": (sized(b"{a: 600000 * void, b: 600000 * void}"), "dynd.void"),
    "huge dims": (sized(b"9223372036854775807 * 9223372036854775807 * int64"), "dynd.truncated"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_that_are_refused_at_the_door(case):
    data, rule = FILES[case]
    with pytest.raises(FormatError) as caught:
        tg.open(data, format="dynd")
    assert caught.value.rule == rule
    assert 0 <= caught.value.offset <= len(data)
    assert not tg.verify(data, format="dynd").ok


def test_what_a_field_holds_is_checked_when_it_is_read():
    data = sized(b"{a: bool, b: var * string}") + b"\x02\x01\x01\xff"
    archive = tg.open(data, format="dynd")
    for name, rule in (("a", "values.bool"), ("b", "dynd.utf8")):
        with pytest.raises(FormatError) as caught:
            archive[name].serialize()
        assert caught.value.rule == rule
        assert caught.value.tensor == name
    assert {problem.tensor for problem in tg.verify(data, format="dynd", deep=True).problems} == {"a", "b"}


def test_what_a_file_cannot_say():
    with pytest.raises(UnsupportedError, match=r"rule save\.metadata"):
        tg.dumps({"a": np.int8(0)}, format="dynd", metadata={"a": "b"})
    with pytest.raises(UnsupportedError, match=r"rule save\.attributes"):
        tg.dumps({"a": np.int8(0)}, format="dynd", attributes={"a": {"b": 1}})


def test_values_are_skipped_beyond_what_is_read_at_a_time() -> None:
    """Fields of every kind of size, also across the windows in which they are read; boxes have types of their own."""
    rng = np.random.default_rng(1)
    values: dict[str, object] = {}
    for i in range(120):
        text = "x" * int(rng.integers(0, 3000))
        values[f"s{i}"] = dynd.array(text, "string")
        values[f"b{i}"] = dynd.array(dynd.array([i, i + 1], "2 * int16"), "array[Any]")
        values[f"d{i}"] = dynd.array(bytes(int(rng.integers(0, 9))), "bytes")
        values[f"f{i}"] = np.full(int(rng.choice([2, 5000])), i, np.int8)
        values[f"c{i}"] = dynd.array("é", "char")
        values[f"o{i}"] = dynd.array(None if i % 2 else [1, 2], "?var * int16")
    data = tg.dumps(values, format="dynd")
    with tg.open(data, format="dynd") as archive:
        assert list(archive) == list(values)
        assert all(archive[name].cid() == tg.dynd.array(value).cid() for name, value in values.items())
    with pytest.raises(tg.TruncatedError) as caught:
        tg.open(data[: len(data) // 2], format="dynd")
    assert caught.value.rule == "dynd.truncated"


@pytest.mark.parametrize(
    ("type", "data", "rule"),
    [
        ("(int8, bool)", b"\xff\1", None),
        ("(int8, bool)", b"\xff\2", "dynd.bool"),
        ("(2 * {a: int16, b: 0 * bool}, 3 * int4)", b"\xff\xff\xff\xff\x0f\x0f\x0f", None),
        ("(2 * {a: int16, b: 0 * bool}, 3 * int4)", b"\xff\xff\xff\xff\x0f\x0f\x10", "dynd.int4"),
        ("(?bool, bool)", b"\2\1", None),
        ("(?bool, bool)", b"\3\1", "dynd.bool"),
        ("(?bool, bool)", b"\2\2", "dynd.bool"),
        ("(time['us'], void)", b"\xff" * 8, "dynd.time"),
        ("(string, bool)", b"\1a\2", "dynd.bool"),
    ],
)
def test_stored_bytes_are_written_again_if_they_are_valid(type, data, rule):
    with tg.open(sized(type.encode()) + data, format="dynd") as archive:
        if rule is None:
            assert archive["data"].serialize() == data
            assert dynd.serialize(archive["data"].tolist(), type) == data
            return
        with pytest.raises(FormatError) as caught:
            archive["data"].serialize()
        assert caught.value.rule == rule
        assert caught.value.offset >= 1 + len(type)


@pytest.mark.parametrize("value", [["abc", "d"], [("abc", [1])]], ids=["text", "records"])
def test_load_refuses_a_damaged_value_that_no_array_has(value):
    data = bytearray(tg.dumps({"x": tg.dynd.array(value)}, format="dynd"))
    data[bytes(data).rindex(b"abc")] = 0xFF
    for load in (tg.loads, lambda data, **options: tg.open(data, **options)["x"].numpy()):
        with pytest.raises(FormatError) as caught:
            load(bytes(data), format="dynd")
        assert (caught.value.rule, caught.value.tensor) == ("dynd.utf8", "x")


class Dribble(io.BytesIO):
    """A stream that has a byte at a time."""

    def read(self, nbytes: int | None = -1, /) -> bytes:
        return super().read(1)


def found_ends(types: list[dynd.Type], data: bytes) -> list[int]:
    """Where values that follow each other end, by their types alone, whatever pieces the bytes arrive in."""
    rows = read_types([str(type) for type in types])
    found = [skip(source, rows, measure(rows), rows.roots, DEFAULT) for source in (Memory(data), Stream(Dribble(data)))]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("seed", range(300))
def test_ends_and_sizes_of_values_of_any_type(seed: int) -> None:
    rng = Random(seed)
    types = [random_type(rng, rng.randrange(1, 6)) for _ in range(8)]
    values = [random_bytes(rng, type) for type in types]
    assert found_ends(types, b"".join(values)) == list(accumulate(map(len, values)))
    rows = read_types([str(type) for type in types])
    sizes = measure(rows)
    for type, row in zip(types, rows.roots.tolist(), strict=True):
        root = plan_of(type).root
        assert sizes.nbytes[row] == (VARIABLE if root.nbytes is None else root.nbytes), type
        assert (sizes.least[row], sizes.charge[row]) == (root.least, root.charge), type
        assert fixed_nbytes(type) == root.nbytes
    for _ in range(20):
        data = mutant(rng, b"".join(values))
        with suppress(FormatError):
            ends = found_ends(types, data)
            assert sorted(ends) == ends
            assert ends[-1] <= len(data)


@pytest.mark.parametrize(
    ("type", "data", "rule"),
    [
        ("array[Any]", b"\3int\0", "dynd.type.canonical"),
        ("array[Any]", b"\1T", "dynd.symbolic"),
        ("merkle[Any]", b"\1T", "dynd.symbolic"),
        ("array[Any]", b"\xff\xff\x07", "dynd.type.length"),
        ("array[Any]", b"\x86\0string\0", "dynd.varint.minimal"),
        ("array[Any]", b"\x0e2097152 * void", "dynd.void"),
        ("var * 0 * string", b"\x81\x80\x80\x01", "dynd.void"),
        ("array[Any]", b"\x0aarray[Any]" * 65 + b"\4int8\0", "dynd.depth"),
        ("array[Any]", b"\x20int8", "dynd.truncated"),
        ("string", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "dynd.count"),
        ("?string", b"\2", "dynd.flag"),
        ("char", b"\xff", "dynd.utf8"),
        ("3 * 4611686018427387904 * string", b"\0", "dynd.count"),
    ],
)
def test_a_value_that_cannot_be_skipped(type: str, data: bytes, rule: str) -> None:
    text = f"{{a: {type}, b: string}}"
    if rule == "dynd.type.length":
        data += bytes(1 << 17)
    with pytest.raises(FormatError) as caught:
        tg.open(sized(text.encode()) + data, format="dynd")
    assert caught.value.rule == rule


def test_boxes_of_more_types_than_are_kept() -> None:
    boxes = b"".join(sized(f"({i} * void, {{a{i}: string}})".encode()) + b"\1x" for i in range(9000))
    within = sized(b"var * array[Any]") + varint(9000) + boxes
    for type, value in (
        ("var * array[Any]", varint(9000) + boxes),
        ("array[Any]", within),
        ("?array[Any]", b"\1" + within),
    ):
        data = sized(f"{{a: {type}, b: string}}".encode()) + value + b"\3end"
        with tg.open(data, format="dynd") as archive:
            assert archive["b"].tolist() == "end"
            assert archive["a"].nbytes == len(value)


def test_types_of_boxes_take_little_memory() -> None:
    """Those inside a box, too, while its own type is in use."""
    text = f"{{}} * void, {', '.join(['?(' * 30 + ')' * 30] * 300)}"
    boxes = b"".join(sized(f"({text.format(i)})".encode()) + bytes(300) for i in range(16))
    value = sized(b"var * array[Any]") + varint(16) + boxes
    data = sized(b"{a: array[Any], b: string}") + value + b"\3end"
    assert allocated_nbytes(lambda: tg.open(data, format="dynd").close()) < 16 * MB


HUGE_TYPES = (
    "({0} * int8, {0} * int8)",
    "({0} * int8, string, {0} * ?bool)",
    "{{a: {0} * void, b: {0} * (void, void)}}",
    "{0} * {0} * int8",
    "var * ({0} * {{a: void}}, {0} * {0} * void)",
    "storage[{0} * 2 * string, axis=[1, 0]]",
)


@pytest.mark.parametrize("count", [(1 << 62) - 1, 1 << 62, (1 << 63) - 1])
@pytest.mark.parametrize("text", HUGE_TYPES)
def test_sizes_near_64_bits(text: str, count: int) -> None:
    rows, sizes = (rows := read_types([text.format(count)])), measure(rows)
    for row in range(len(rows.code)):
        root = plan_of(rows.type(row)).root
        assert sizes.nbytes[row] == (VARIABLE if root.nbytes is None else root.nbytes)
        assert (sizes.least[row], sizes.charge[row]) == (root.least, root.charge)


def test_huge_sizes_do_not_cancel_out() -> None:
    half = 1 << 62
    text = f"{{a: ({half} * int8, {half} * int8), b: {half} * int8, c: {half} * int8}}"
    with pytest.raises(tg.TruncatedError):
        tg.open(sized(text.encode()), format="dynd")


def test_values_of_many_types_are_found():
    """With values of a fixed size between them."""
    fields = [(f"f{i}", f"{i} * int8" if i % 5 == 0 else f"{i % 50} * var * bytes[{i}]") for i in range(1, 1300)]
    values = [bytes([i % 128]) * i if i % 5 == 0 else (b"\1" + b"x" * i) * (i % 50) for i in range(1, 1300)]
    type = "{" + ", ".join(f"{name}: {of}" for name, of in fields) + "}"
    with tg.open(sized(type.encode()) + b"".join(values), format="dynd") as archive:
        assert list(archive) == [name for name, _ in fields]
        assert [bytes(tensor.serialize()) for tensor in archive.values()] == values
