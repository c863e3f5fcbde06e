"""The kernels of varint chains and of UTF-8: inside their memory, and the same in both forms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tensorglot import dynd
from tensorglot.dynd.codec import encode
from tensorglot.dynd.schema import Kind, plan_of
from tensorglot.dynd.tensors import from_tensor
from tensorglot.dynd.value import Lists, Value
from tensorglot.errors import FormatError, InputError
from tensorglot.kernels import utf8


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are protected by mprotect of Linux")
def test_no_byte_beyond_the_memory_is_touched():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("dynd_guarded.py"))], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "in bounds\n"), done.stderr


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 100])
def test_ascii(size):
    text = np.full(size, 0x7F, np.uint8)
    assert utf8.is_ascii(text, 0, size)
    for at in range(size):
        text[at] = 0x80
        assert not utf8.is_ascii(text, 0, size)
        assert utf8.is_ascii(text, 0, at)
        assert utf8.is_ascii(text, at + 1, size)
        text[at] = 0x7F
    assert not utf8.is_ascii(text, 0, size + 1)
    assert not utf8.is_ascii(text, -1, size)


WRONG = {
    "before": ([-1, 0], [1, 1]),
    "behind": ([0, 0], [1, 5]),
    "far behind": ([0, 1 << 62], [1, (1 << 62) + 1]),
    "backwards": ([0, 2], [1, 1]),
    "a difference that overflows": ([0, 5], [1, -(1 << 63) + 4]),
    "another": ([0, -(1 << 63)], [1, (1 << 63) - 1]),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("text", ["2 * string", "2 * var * int32", "2 * var * char", "2 * var * string"])
def test_lists_that_point_outside(text, case):
    plan = plan_of(dynd.parse(text))
    lists = next(node for node in plan.nodes if node.kind is Kind.LIST)
    starts, stops = (np.array(edge, np.int64) for edge in WRONG[case])
    columns = [None] * len(plan.nodes)
    columns[lists.id] = Lists(starts, stops)
    for node in plan.nodes[lists.id + 1 :]:
        one = np.zeros(4, np.int64)
        columns[node.id] = Lists(one, one) if node.children else np.zeros(4, node.atom.base if node.atom else np.uint32)
    value = Value(plan, tuple(columns))
    for call in (encode.encode, lambda value: list(encode.pieces(value))):
        with pytest.raises(InputError) as caught:
            call(value)
        assert caught.value.rule == "dynd.range"


def test_a_value_that_grows_while_it_is_written(monkeypatch):
    """Another thread may change what was measured: then there is no room, and nothing is written beyond it."""
    stops = np.array([1, 2], np.int64)
    plan = plan_of(dynd.parse("2 * bytes"))
    columns = (None, Lists(np.array([0, 1]), stops), np.zeros(300, np.uint8))

    def grow_and_allocate(count, dtype):
        stops[1] = 300
        return np.empty(count, dtype)

    monkeypatch.setattr(encode, "np", SimpleNamespace(**{**vars(np), "empty": grow_and_allocate}))
    with pytest.raises(InputError) as caught:
        encode.encode(Value(plan, columns))
    assert caught.value.rule == "dynd.size"


@pytest.mark.parametrize("row", [0, 1, 699_999, 999_999])
def test_the_byte_of_a_fault_in_a_large_column(row):
    """The column is a mapping of whole pages, of which only a part is to be filled."""
    data = bytearray(b"\x08abcdefgh" * 1_000_000)
    data[9 * row + 3] = 0xFF
    with pytest.raises(FormatError) as caught:
        dynd.deserialize(data, "1000000 * string")
    assert (caught.value.rule, caught.value.offset) == ("dynd.utf8", 9 * row + 1)


@pytest.mark.parametrize(
    ("text", "data", "rule"),
    [
        ("2 * var * 3000000000 * int8", b"\0\0", None),
        ("2 * var * 3000000000 * int8", b"\0\1" + bytes(20), "dynd.count"),
        ("var * 1099511627776 * string", b"\xff\xff\xff\xff\xff\x1f" + bytes(50), "dynd.count"),
        ("var * 1099511627776 * void", b"\xff\xff\xff\xff\xff\x1f", "dynd.void"),
    ],
)
def test_counts_of_huge_elements(text, data, rule):
    """A product that has no place in 64 bits is a count too large, not a small one."""
    if rule is None:
        assert dynd.deserialize(data, text).tolist() == [[], []]
        return
    with pytest.raises(FormatError) as caught:
        dynd.deserialize(data, text)
    assert caught.value.rule == rule


PIECES = {
    "lists": ("var * bytes", [b"a" * 200, b"", b"bc" * 90, b"d"]),
    "lists of wide elements": ("var * var * int64", [[1, 2, 3], [], [4]]),
    "options": ("var * ?bytes", [b"abc", None, b"d" * 40]),
    "options of blocks": ("var * ?{a: int64, b: int8}", [{"a": 1, "b": 2}, None, {"a": 3, "b": 4}]),
    "characters": ("var * char", list("aé€😀" * 9)),
    "records": ("var * {a: bytes, b: int64}", [{"a": b"x" * n, "b": n} for n in range(9)]),
}


@pytest.mark.parametrize("case", PIECES)
def test_a_value_in_pieces_of_any_size(case, monkeypatch):
    """A piece ends between or inside of elements, wherever there is no more room."""
    text, value = PIECES[case]
    whole = bytes(dynd.serialize(value, text))
    value = from_tensor(dynd.array(value, text))
    for nbytes in range(10, 40):
        monkeypatch.setattr(encode, "PIECE_NBYTES", nbytes)
        pieces = [piece.tobytes() for piece in encode.pieces(value)]
        assert b"".join(pieces) == whole
        assert max(map(len, pieces)) <= nbytes


def test_missing_numbers_in_pieces(monkeypatch):
    """Options of numbers that an index selects: the sentinel where it is -1, and nothing outside."""
    plan = plan_of(dynd.parse("var * ?int64"))
    option = next(node for node in plan.nodes if node.kind is Kind.OPTION)
    columns = [None] * len(plan.nodes)
    columns[option.id - 1] = Lists(np.array([0]), np.array([9]))
    columns[option.id] = np.array([0, -1, 1, 2, -1, -1, 1, 0, 2])
    columns[option.id + 1] = np.arange(3, dtype=np.int64)
    expected = b"\x09" + np.where(columns[option.id] < 0, np.iinfo(np.int64).min, columns[option.id]).tobytes()
    value = Value(plan, tuple(columns))
    assert encode.encode(value).tobytes() == expected
    monkeypatch.setattr(encode, "PIECE_NBYTES", 20)
    assert b"".join(piece.tobytes() for piece in encode.pieces(value)) == expected
    columns[option.id][-1] = 3
    with pytest.raises(InputError) as caught:
        encode.encode(value)
    assert caught.value.rule == "dynd.range"


@pytest.mark.parametrize("code", [0xD800, 0xDFFF, 0x110000])
def test_a_char_that_is_no_code_point(code):
    plan = plan_of(dynd.parse("var * char"))
    columns = (Lists(np.array([0]), np.array([2])), np.array([65, code], np.uint32))
    with pytest.raises(InputError) as caught:
        encode.encode(Value(plan, columns))
    assert caught.value.rule == "dynd.utf8"
