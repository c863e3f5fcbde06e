"""Files of DyND, nested values in other containers, and links."""

from __future__ import annotations

import numpy as np
import pytest

import tensorglot as tg
from dynd_random import sized
from tensorglot import dynd
from tensorglot.errors import FormatError, InputError, IntegrityError, TensorNotFound, TruncatedError, UnsupportedError

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
    "offsets beyond the content": ({"offsets": [0, 9], "content.data": np.zeros(3, np.int8)}, "var * int8"),
    "offsets below zero": ({"offsets": [-5, 2], "content.data": np.zeros(3, np.int8)}, "var * int8"),
    "offsets that fall": ({"offsets": [2, 0], "content.data": np.zeros(3, np.int8)}, "var * int8"),
    "no offsets": ({"offsets": np.zeros(0, np.int64), "content.data": np.zeros(3, np.int8)}, "var * int8"),
    "huge offsets of nothing": ({"offsets": [0, 1 << 60], "content.data": np.zeros((0, 0), np.uint8)}, "var * void"),
    "huge offsets of empty tuples": ({"offsets": [0, 1 << 60]}, "var * ()"),
    "an index beyond the content": ({"index": [7], "content.data": np.zeros(1, np.uint8)}, "?uint8"),
    "no index": ({"content.data": np.zeros(1, np.uint8)}, "?uint8"),
    "another element type": ({"offsets": [0, 1], "content.data": np.zeros(1, np.int32)}, "var * int8"),
    "text that is none": ({"offsets": [0, 1], "content.data": np.array([255], np.uint8)}, "string"),
    "a value that stands for missing": ({"index": [0], "content.data": np.array([-128], np.int8)}, "?int8"),
    "boxes of rubbish": ({"offsets": [0, 2], "data": np.array([255, 255], np.uint8)}, "array[Any]"),
    "boxes beyond their bytes": ({"offsets": [0, 99], "data": np.array([4], np.uint8)}, "array[Any]"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_parts_from_a_file_are_checked(tmp_path, attack):
    path = tmp_path / "x.zt"
    tg.save(path, {"t": hostile(*HOSTILE[attack])})
    for verb in (tg.Tensor.tolist, tg.Tensor.serialize, tg.Tensor.cid, tg.Tensor.awkward, tg.Tensor.arrow):
        with tg.open(path) as archive, pytest.raises(FormatError):
            verb(archive["t"])


def test_a_type_that_is_none_is_refused_at_the_door(tmp_path):
    for text in ("3*int8", "Any", 7):
        parts, _ = HOSTILE["text that is none"]
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
    "half a type": (b"\x05int", "dynd.truncated"),
    "no type": (b"\x03foo", "dynd.type.name"),
    "another spelling": (b"\x03int\0\0\0\0", "dynd.type.canonical"),
    "a symbolic type": (b"\x03Any", "dynd.symbolic"),
    "too little": (sized(b"2 * int8") + b"\0", "dynd.truncated"),
    "too much": (sized(b"2 * int8") + b"\0\0\0", "dynd.trailing"),
    "too much behind a list": (sized(b"{a: var * int8, b: int8}") + b"\0\0\0", "dynd.trailing"),
    "a list that has no end": (sized(b"{a: var * int8, b: int8}") + b"\xff\x01", "dynd.truncated"),
    "voids": (sized(b"{a: var * void, b: int8}") + b"\xff\xff\xff\xff\x7f\0", "dynd.void"),
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
    with pytest.raises(UnsupportedError) as caught:
        tg.dumps({f"{i:0>40}": np.int8(0) for i in range(2_000)}, format="dynd")
    assert caught.value.rule == "dynd.type.length"
    with pytest.raises(UnsupportedError):
        tg.dumps({"a": np.int8(0)}, format="dynd", metadata={"a": "b"})
    with pytest.raises(UnsupportedError):
        tg.dumps({"a": np.int8(0)}, format="dynd", attributes={"a": {"b": 1}})


def test_links():
    value = dynd.array(list(range(10)), "var * int64")
    link = dynd.Link.to(value)
    assert link.state == "mutable"
    store = {}
    cid = link.freeze(store)
    assert link.state == "frozen"
    assert store == {cid: bytes(value.serialize())}
    assert str(dynd.Link.to(np.array([10, 20, 30], np.int32)).cid) == (
        "bafkr4ibj2ndi3jybh2t2eqto4ypepn5uamjbuv23lipofvtcihlf3dtwim"
    )

    text = "var * merkle[var * int64]"
    data = dynd.serialize([link, cid, str(cid)], text)
    assert data == b"\x03" + bytes(cid) * 3
    lazy = dynd.deserialize(data, text).tolist()[0]
    assert lazy.state == "lazy"
    assert lazy == link
    with pytest.raises(InputError):
        lazy.value
    assert lazy.load(store).tolist() == list(range(10))
    assert lazy.state == "frozen"
    lazy.set([1])
    assert lazy.state == "mutable"
    assert lazy != link

    empty = dynd.Link(value.type)
    assert empty.state == "empty"
    with pytest.raises(InputError):
        dynd.serialize(empty, "merkle[var * int64]")
    assert dynd.serialize([None, cid], "2 * ?merkle[var * int64]") == b"\0\x01" + bytes(cid)


def test_links_to_much_data():
    array = np.arange(400_000)
    store = {}
    cid = dynd.Link.to(array).freeze(store)
    assert len(store) == 5
    link = dynd.deserialize(dynd.serialize(cid, "merkle[400000 * int64]"), "merkle[400000 * int64]").tolist()
    assert (link.load(store).numpy() == array).all()


def test_links_are_checked():
    link = dynd.Link.to(np.arange(3))
    store = {}
    cid = link.freeze(store)
    lazy = dynd.Link(link.type, cid)
    with pytest.raises(TensorNotFound):
        lazy.load({})
    with pytest.raises(IntegrityError):
        lazy.load({cid: b"another block"})
    with pytest.raises(TruncatedError):
        dynd.Link(dynd.parse("9 * int64"), cid).load(store)
    with pytest.raises(InputError):
        dynd.serialize(link, "merkle[4 * int64]")
    for item in (3, "bafk", b"x", dynd.CID(bytes(32), 0x55, 0x12)):
        with pytest.raises(InputError):
            dynd.serialize(item, "merkle[3 * int64]")
