"""The walk over documents: what it finds, what it skips, what it refuses; and single documents as values."""

from __future__ import annotations

import mmap
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bson_samples import EVERY_KIND, array, binary, document, element, string, vector
from tensorglot import bson as vectors
from tensorglot.bson import Binary, Int64, Raw, Vector, decode_document, encode_document
from tensorglot.errors import FormatError, InputError, LimitError, TensorglotError, TruncatedError
from tensorglot.wire import bson as wire
from tensorglot.wire.bson_fields import scan
from tensorglot.wire.bson_vector import gather, row_of_head

PAYLOAD = b"\x03\x00\x01\x02"
BEFORE_AND_AFTER = [value.replace(b"k\0", bytes((97 + i,)) + b"\0", 1) for i, value in enumerate(EVERY_KIND.values())]


def find(data: bytes, path: str) -> list[tuple[int, bytes]]:
    column = wire.find(wire.view(data), wire.path_bytes(path))
    rows = zip(column.kinds.tolist(), column.begins.tolist(), column.ends.tolist(), strict=True)
    return [(kind, data[begin:end]) for kind, begin, end in rows]


class TestFind:
    @pytest.mark.parametrize("name", EVERY_KIND)
    def test_every_kind(self, name: str) -> None:
        kind, value = EVERY_KIND[name][0], EVERY_KIND[name][3:]
        data = document(EVERY_KIND[name])
        assert find(data, "k") == [(kind, value)]
        assert find(data, "j") == [(0, b"")]

    def test_between_everything_else(self) -> None:
        data = document(*BEFORE_AND_AFTER, element(3, "out", document(vector("v", PAYLOAD))), *BEFORE_AND_AFTER)
        assert find(data * 3, "out.v") == [(5, binary(9, PAYLOAD))] * 3

    def test_path(self) -> None:
        data = document(
            element(3, "a", document(element(10, "x", b""), element(3, "b", document(vector("c", PAYLOAD))))),
            element(10, "b", b""),
        )
        assert find(data, "a.b.c") == [(5, binary(9, PAYLOAD))]
        for path in ("a.b.d", "b.c", "c", "a.x.y", "a.b.c.d", "a.bb.c", "a.b.c\u00e9"):
            assert find(data, path) == [(0, b"")], path
        assert find(data, "b") == [(10, b"")]

    def test_an_array_by_its_numbers(self) -> None:
        data = document(element(4, "list", array(element(10, "0", b""), vector("1", PAYLOAD))))
        assert find(data, "list.1") == [(5, binary(9, PAYLOAD))]

    def test_a_key_that_begins_like_another(self) -> None:
        data = document(element(10, "key", b""), element(8, "ke", b"\1"), element(8, "", b"\0"))
        assert find(data, "ke") == [(8, b"\1")]

    def test_no_documents(self) -> None:
        assert find(b"", "k") == []

    @pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "a\0", "\ud800", ".".join("a" * 101)])
    def test_bad_path(self, path: str) -> None:
        with pytest.raises(InputError):
            find(document(), path)

    def test_duplicates_on_the_path(self) -> None:
        inner = document(vector("v", PAYLOAD))
        for data in (
            document(vector("v", PAYLOAD), vector("v", PAYLOAD)),
            document(element(3, "v", inner), element(3, "v", inner)),
            document(element(3, "a", document(vector("v", PAYLOAD), vector("v", PAYLOAD)))),
        ):
            path = "a.v" if b"a\0" in data else "v.v" if data.count(b"v\0") == 4 else "v"
            with pytest.raises(FormatError) as caught:
                find(data, path)
            assert caught.value.rule == "bson.key.duplicate"

    def test_an_error_has_the_offset_of_the_fault(self) -> None:
        good, bad = document(element(8, "a", b"\0")), document(element(8, "a", b"\2"))
        with pytest.raises(FormatError) as caught:
            find(good * 5 + bad, "a")
        assert (caught.value.rule, caught.value.offset) == ("bson.bool", 5 * len(good) + 4)


BROKEN: dict[str, tuple[bytes, str]] = {
    "length field cut": (b"\x05\0\0", "bson.length"),
    "length 0": (b"\0\0\0\0\0", "bson.length"),
    "length 4": (b"\4\0\0\0\0", "bson.length"),
    "length -1": (b"\xff\xff\xff\xff\0", "bson.length"),
    "length 2**31 - 1": (b"\xff\xff\xff\x7f\0", "bson.length"),
    "length one more": (b"\6\0\0\0\0", "bson.length"),
    "no closing zero": (b"\5\0\0\0\1", "bson.nul"),
    "an early zero": (document(b"\0"), "bson.nul"),
    "unknown kind": (document(element(0x14, "k", b"")), "bson.kind"),
    "unknown kind 0x80": (document(element(0x80, "k", bytes(20))), "bson.kind"),
    "key without a zero": (document(b"\x0akkkk")[:-1] + b"\1", "bson.nul"),
    "key up to the end": (document(b"\x0akkkk"), "bson.nul"),
    "double cut": (document(element(1, "k", bytes(7))), "bson.length"),
    "int32 cut": (document(element(0x10, "k", bytes(3))), "bson.length"),
    "object id cut": (document(element(7, "k", bytes(11))), "bson.length"),
    "decimal cut": (document(element(0x13, "k", bytes(15))), "bson.length"),
    "bool cut": (document(element(8, "k", b"")), "bson.length"),
    "bool 2": (document(element(8, "k", b"\2")), "bson.bool"),
    "string of length 0": (document(element(2, "k", b"\0\0\0\0")), "bson.length"),
    "string of length -1": (document(element(2, "k", b"\xff\xff\xff\xff\0")), "bson.length"),
    "string of length 2**31 - 1": (document(element(2, "k", b"\xff\xff\xff\x7f\0")), "bson.length"),
    "string into the closing zero": (document(element(2, "k", b"\2\0\0\0a")), "bson.length"),
    "string without a zero": (document(element(2, "k", b"\2\0\0\0ab")), "bson.nul"),
    "length field of a string cut": (document(element(2, "k", b"\1\0")), "bson.length"),
    "document of length 4": (document(element(3, "k", b"\4\0\0\0")), "bson.length"),
    "document past its parent": (document(element(3, "k", b"\7\0\0\0\0")), "bson.length"),
    "document without a zero": (document(element(3, "k", b"\5\0\0\0\1")), "bson.nul"),
    "binary of length -1": (document(element(5, "k", b"\xff\xff\xff\xff\0")), "bson.length"),
    "binary of length 2**31 - 1": (document(element(5, "k", b"\xff\xff\xff\x7f\x09")), "bson.length"),
    "binary without a subtype": (document(element(5, "k", b"\0\0\0\0")), "bson.length"),
    "binary one byte short": (document(element(5, "k", b"\2\0\0\0\x09a")), "bson.length"),
    "old binary too short": (document(element(5, "k", binary(2, b"abc"))), "bson.binary.inner"),
    "old binary, inner too long": (document(element(5, "k", binary(2, b"\3\0\0\0ab"))), "bson.binary.inner"),
    "old binary, inner too short": (document(element(5, "k", binary(2, b"\1\0\0\0ab"))), "bson.binary.inner"),
    "old binary, inner -1": (document(element(5, "k", binary(2, b"\xff\xff\xff\xffab"))), "bson.binary.inner"),
    "regex with one text": (document(element(0x0B, "k", b"a\0")), "bson.nul"),
    "regex without a zero": (document(element(0x0B, "k", b"abc")), "bson.nul"),
    "pointer cut": (document(element(0x0C, "k", string("x") + bytes(11))), "bson.length"),
    "code of length 0": (document(element(0x0D, "k", bytes(4))), "bson.length"),
    "code with scope too small": (document(element(0x0F, "k", struct.pack("<i", 13) + bytes(9))), "bson.length"),
    "code with scope past the end": (document(element(0x0F, "k", struct.pack("<i", 99) + bytes(20))), "bson.length"),
    "bytes behind the last document": (document() + b"\5", "bson.length"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    data, rule = BROKEN[name]
    calls = (
        lambda: find(data, "v"),
        lambda: scan([(0, wire.view(data))]),
        lambda: decode_document(data),
        lambda: vectors.decode_matrix(data, "v"),
    )
    for call in calls:
        with pytest.raises(FormatError) as caught:
            call()
        assert caught.value.rule == rule


class TestScan:
    def test_every_vector_at_any_depth(self) -> None:
        inner = document(*BEFORE_AND_AFTER, vector("v", PAYLOAD))
        data = document(
            vector("top", PAYLOAD),
            element(3, "d", inner),
            element(4, "l", array(element(3, "0", inner))),
            vector("", PAYLOAD),
        )
        found = scan([(0, wire.view(data)), (len(data), wire.view(data))])
        letter = next(
            name for name, raw in zip("abcdefghijklmnopqrstuvwxyz", EVERY_KIND, strict=False) if raw == "vector"
        )
        assert found.names == ["top", f"d.{letter}", "d.v", f"l.0.{letter}", "l.0.v", ""]
        assert found.documents == 2
        assert not found.troubles
        for field in range(6):
            assert [data[begin % len(data) :][:4] for begin in found.begins_of(field).tolist()] in (
                [PAYLOAD] * 2,
                [b"\x03\0\1\xff"] * 2,
            )

    @pytest.mark.parametrize(
        ("documents", "trouble"),
        [
            ([vector("v", b"\x03\0a"), vector("v", b"\x03\0ab")], "int8[1], then int8[2]"),
            ([vector("v", b"\x03\0abcd"), vector("v", b"\x27\0abcd")], "int8[4], then float32[1]"),
            ([vector("v", b"\x10\0\0"), vector("v", b"\x10\1\0")], "packed_bit[8], then packed_bit[7]"),
            ([vector("v", b"\x03\0a"), element(10, "v", b"")], "1 of 2 documents"),
            ([element(10, "x", b""), vector("v", b"\x03\0a")], "1 of 2 documents"),
            ([vector("v", b"\x10\1\1"), vector("v", b"\x10\1\0")], "ignored bits"),
            ([vector("v", b"\x03\0a"), vector("v", b"")], "int8[1], then truncated vector"),
            ([vector("v", b"")], "truncated vector"),
            ([vector("v", b"\x03")], "truncated vector"),
            ([vector("v", b"\x99\0")], "0x99"),
            ([vector("v", b"\x10\x08\0")], "padding"),
            ([vector("v", b"\x27\0abc")], "3 bytes"),
        ],
    )
    def test_trouble(self, documents: list[bytes], trouble: str) -> None:
        data = b"".join(document(one) for one in documents)
        found = scan([(0, wire.view(data))])
        assert found.names == ["v"]
        assert trouble in found.troubles[0]

    def test_duplicates(self) -> None:
        data = document(vector("v", PAYLOAD), vector("w", PAYLOAD), vector("v", PAYLOAD))
        with pytest.raises(FormatError) as caught:
            scan([(0, wire.view(data))])
        assert (caught.value.rule, caught.value.offset) == ("bson.key.duplicate", data.rindex(PAYLOAD))
        dotted = document(vector("a.b", PAYLOAD), element(3, "a", document(vector("b", PAYLOAD))))
        with pytest.raises(FormatError, match=r"rule bson\.key\.duplicate"):
            scan([(0, wire.view(dotted))])

    def test_a_key_that_is_not_text(self) -> None:
        with pytest.raises(FormatError) as caught:
            scan([(0, wire.view(document(element(5, b"\xff", binary(9, PAYLOAD)))))])
        assert caught.value.rule == "bson.utf8"

    def test_more_vectors_than_the_columns_had_room_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        many = document(*(vector(f"v{i}", PAYLOAD) for i in range(5000)))
        monkeypatch.setattr(wire, "ROOM_ROWS", 1000)
        found = scan([(0, wire.view(document(vector("v0", PAYLOAD)) * 900 + many))])
        assert len(found.names) == 5000
        assert len(found.begins_of(0)) == 901


class TestDepth:
    def nested(self, levels: int, kind: int = 3) -> bytes:
        data = document(vector("0", PAYLOAD))
        for _ in range(levels - 1):
            data = document(element(kind, "0", data))
        return data

    @pytest.mark.parametrize("kind", [3, 4])
    def test_within_bounds(self, kind: int) -> None:
        data = self.nested(100, kind)
        assert scan([(0, wire.view(data))]).names == [".".join("0" * 100)]
        assert find(data, "0." * 99 + "0") == [(5, binary(9, PAYLOAD))]
        assert encode_document(decode_document(data)) == data

    @pytest.mark.parametrize("levels", [101, 10_000])
    def test_beyond(self, levels: int) -> None:
        data = self.nested(levels)
        for call in (lambda: scan([(0, wire.view(data))]), lambda: decode_document(data)):
            with pytest.raises(LimitError) as caught:
                call()
            assert caught.value.rule == "bson.depth"
        assert find(data, "v") == [(0, b"")]


class TestPieces:
    def read(self, data: bytes, nbytes: int) -> list[tuple[int, bytes]]:
        left = memoryview(data)

        def read_into(out: memoryview) -> int:
            nonlocal left
            size = min(len(out), len(left))
            out[:size], left = left[:size], left[size:]
            return size

        return [(start, bytes(piece)) for start, piece in wire.pieces(read_into, nbytes)]

    @given(st.lists(st.integers(0, 60), max_size=30), st.integers(80, 300))
    def test_whole_documents(self, sizes: list[int], nbytes: int) -> None:
        data = b"".join(document(element(5, "k", binary(0, bytes(size)))) for size in sizes)
        pieces = self.read(data, nbytes)
        assert b"".join(piece for _, piece in pieces) == data
        assert [start for start, _ in pieces] == np.cumsum([0, *(len(piece) for _, piece in pieces)])[:-1].tolist()
        assert all(len(piece) <= nbytes for _, piece in pieces)

    def test_a_document_larger_than_the_room(self) -> None:
        large = document(element(5, "k", binary(0, bytes(1000))))
        for nbytes in (1, 10, len(large), 2000):
            assert b"".join(piece for _, piece in self.read(document() + large + document(), nbytes)) == (
                document() + large + document()
            )

    def test_a_document_larger_than_mongodb_allows(self) -> None:
        with pytest.raises(LimitError):
            self.read(document(element(5, "k", binary(0, bytes(17 << 20)))), 100)

    @pytest.mark.parametrize("cut", range(1, 20))
    def test_cut_short(self, cut: int) -> None:
        with pytest.raises(TruncatedError):
            self.read((document(element(5, "k", binary(0, bytes(100)))) * 3)[:-cut], 150)


class TestDocuments:
    @pytest.mark.parametrize("name", EVERY_KIND)
    def test_every_kind_both_ways(self, name: str) -> None:
        data = document(EVERY_KIND[name])
        assert encode_document(decode_document(data)) == data

    def test_values(self) -> None:
        when = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=timezone(timedelta(hours=2)))
        fields: dict[str, Any] = {
            "n": None, "b": True, "i": 1, "l": Int64(1), "big": 2**40, "f": 1.5, "s": "ä", "bytes": b"ab",
            "d": {"x": [1, [2.0, "y"]]}, "when": when, "v": Vector([1.0, 2.0]), "id": Raw(7, bytes(12)),
            "np": np.int64(3),
        }  # fmt: skip
        decoded = decode_document(encode_document(fields))
        assert decoded == fields
        assert isinstance(decoded["l"], Int64)
        assert not isinstance(decoded["i"], Int64)
        assert decoded["when"].tzinfo == UTC
        assert repr(decoded["id"]) == f"Raw(ObjectId, {'00' * 12})"

    @pytest.mark.parametrize(
        ("fields", "rule"),
        [
            ({"x": object()}, "bson.value"),
            ({"x": 2**63}, "bson.value"),
            ({"x": -(2**63) - 1}, "bson.value"),
            ({"x": "\ud800"}, "bson.utf8"),
            ({"\0": 1}, "bson.key"),
            ({1: 1}, "bson.document"),
            ({"x": {1: 1}}, "bson.key"),
            ({"\ud800": 1}, "bson.document"),
            ({"x": datetime(2020, 1, 1)}, "bson.date"),
            ({"x": datetime(2020, 1, 1, microsecond=1, tzinfo=UTC)}, "bson.date"),
            ({"x": Raw(7, b"short")}, "bson.value"),
            ({"x": Raw(7, bytes(13))}, "bson.value"),
            ({"x": Raw(0x99, b"")}, "bson.value"),
        ],
    )
    def test_what_has_no_form(self, fields: Any, rule: str) -> None:
        with pytest.raises(InputError) as caught:
            encode_document(fields)
        assert caught.value.rule == rule

    def test_a_cycle(self) -> None:
        cycle: dict[str, Any] = {}
        cycle["x"] = cycle
        with pytest.raises(InputError, match=r"rule bson\.depth"):
            encode_document(cycle)

    @pytest.mark.parametrize(
        ("data", "rule"),
        [
            (document(element(10, "k", b""), element(10, "k", b"")), "bson.key.duplicate"),
            (document(element(4, "k", array(element(10, "1", b"")))), "bson.array.keys"),
            (document(element(2, "k", b"\2\0\0\0\xff\0")), "bson.utf8"),
            (document(element(10, b"\xff", b"")), "bson.utf8"),
            (document() * 2, "bson.document.one"),
            (b"", "bson.document.one"),
            (document(vector("k", b"\x03")), "bson.vector.size"),
        ],
    )
    def test_refused(self, data: bytes, rule: str) -> None:
        with pytest.raises(FormatError) as caught:
            decode_document(data)
        assert caught.value.rule == rule


KEYS = st.text("ab.é😀 ", max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text("aé😀\0", max_size=5) | st.binary(max_size=5)
    | st.integers(-(2**31), 2**31 - 1) | st.integers(-(2**63), 2**63 - 1).map(Int64)
    | st.binary(min_size=12, max_size=12).map(lambda raw: Raw(7, raw))
    | st.lists(st.floats(width=32), max_size=3).map(lambda numbers: Vector(numbers, "float32")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)  # fmt: skip
DOCUMENTS = st.dictionaries(KEYS, values, max_size=4)


@given(DOCUMENTS)
def test_documents_round_trip(fields: dict[str, Any]) -> None:
    data = encode_document(fields)
    assert encode_document(decode_document(data)) == data


@settings(max_examples=300)
@given(st.lists(DOCUMENTS, min_size=1, max_size=3), st.data())
def test_any_bytes_raise_only_errors_of_the_library(documents: list[dict[str, Any]], data: st.DataObject) -> None:
    raw = bytearray(b"".join(map(encode_document, documents)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 3, 4, 5, 9, 127, 128, 255]) | st.integers(0, 255))
    raw = raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, len(raw) // 2]))]
    for call in (
        lambda: find(bytes(raw), "a.b"),
        lambda: scan([(0, wire.view(raw))]),
        lambda: decode_document(raw),
        lambda: vectors.decode_matrix(raw),
        lambda: vectors.decode_matrix(raw, "a", on_missing="nan", ids=True),
    ):
        try:
            call()
        except TensorglotError as error:
            assert error.rule  # noqa: PT017


class TestNumbers:
    def test_kinds(self) -> None:
        items = [
            element(1, "0", struct.pack("<d", -1.5)),
            element(0x10, "1", struct.pack("<i", -7)),
            element(0x12, "2", struct.pack("<q", 2**40)),
            element(0x10, "3", struct.pack("<i", 2**31 - 1)),
        ]
        raw = wire.view(array(*items))
        assert wire.numbers(raw, 0, len(raw))[0].tolist() == [-1.5, -7, 2**40, 2**31 - 1]
        assert wire.numbers(wire.view(array()), 0, 5)[0].size == 0

    def test_many(self) -> None:
        raw = wire.view(array(*(element(0x10, str(i), struct.pack("<i", i)) for i in range(1500))))
        assert wire.numbers(raw, 0, len(raw))[0].tolist() == list(range(1500))

    def test_refused(self) -> None:
        raw = wire.view(array(element(1, "0", bytes(8)), element(2, "1", string("x"))))
        with pytest.raises(FormatError) as caught:
            wire.numbers(raw, 0, len(raw))
        assert (caught.value.rule, caught.value.offset) == ("bson.array.number", 15)
        for kind, value in ((0x0A, b""), (8, b"\0"), (3, document())):
            raw = wire.view(array(element(kind, "0", value)))
            with pytest.raises(FormatError, match=r"rule bson\.array\.number"):
                wire.numbers(raw, 0, len(raw))
        short_keys = wire.view(array(*(element(0x10, "", bytes(4)) for _ in range(50))))
        assert wire.numbers(short_keys, 0, len(short_keys))[0].tolist() == [0] * 50


@pytest.mark.parametrize("value", [object(), 1j, {1}, timedelta(1), [object()], {"inner": object()}])
def test_values_that_bson_lacks_are_named(value: object) -> None:
    with pytest.raises(InputError, match=r"BSON does not support (object|complex|set|timedelta)") as caught:
        encode_document({"x": value})
    assert caught.value.rule == "bson.value"


@pytest.mark.parametrize("subtype", [0, 2])
def test_a_binary_of_2_gib_is_refused_before_it_is_copied(subtype: int) -> None:
    with mmap.mmap(-1, 1 << 31) as never_touched, memoryview(never_touched) as view:
        fields = {"x": Binary(subtype, view)}  # type: ignore[arg-type]
        with pytest.raises(InputError, match="smaller than 2 GiB") as caught:
            encode_document(fields)
        assert caught.value.rule == "bson.length"
        del fields, caught


def test_a_vector_past_the_end_of_the_data_is_not_gathered() -> None:
    row, out = row_of_head(6, 0x03, 0), bytearray(8)
    gather(memoryview(b"\x03\x00abcd" * 2), np.array([0, 6]), row, memoryview(out))
    assert out == b"abcdabcd"
    for begins in ([0, 7], [-3, 0], [0, 1 << 62]):
        with pytest.raises(InputError) as caught:
            gather(memoryview(b"\x03\x00abcd" * 2), np.array(begins), row, memoryview(out))
        assert caught.value.rule == "bson.vector.gather"
