"""Rows, slices and fields of nested values are those of `.tolist()`, and share its memory."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from dynd_random import random_bytes, random_type
from tensorglot import dynd
from tensorglot.errors import InputError, OutOfRange
from tensorglot.model.types import algebra as T

EVENTS = dynd.array(
    [{"a": [1, 2], "s": "x"}, {"a": [], "s": "é"}, {"a": [5], "s": ""}], "var * {a: var * int16, s: string}"
)
OPTIONS = dynd.array([{"x": 1, "y": None}, None, {"x": 3, "y": "b"}], "3 * ?{x: int8, y: ?string}")
STORED = dynd.array(np.arange(12.0).reshape(3, 4), "storage[3 * 4 * float64, order='F']")
TEXTS = dynd.array([["a", "b", "c"], ["d", "e", "f"]], "storage[2 * 3 * string, order='F']")
RECORDS = dynd.array([{"a": [[1, 2, 3], [4, 5, 6]]}], "var * {a: 2 * 3 * int8}")
RAGGED = dynd.array([[[1], [2, 3]], [[4, 5, 6], []]], "2 * 2 * var * int32")


def plain(value):
    return value.tolist() if isinstance(value, tg.Tensor | np.generic) else value


SELECTIONS = {
    "a row": (EVENTS, 0, {"a": [1, 2], "s": "x"}),
    "the last row": (EVENTS, -1, {"a": [5], "s": ""}),
    "rows": (EVENTS, slice(1, 3), [{"a": [], "s": "é"}, {"a": [5], "s": ""}]),
    "no rows": (EVENTS, slice(3, 1), []),
    "rows backwards": (EVENTS, slice(None, None, -2), [{"a": [5], "s": ""}, {"a": [1, 2], "s": "x"}]),
    "rows by number": (EVENTS, [2, 0, -1], [{"a": [5], "s": ""}, {"a": [1, 2], "s": "x"}, {"a": [5], "s": ""}]),
    "rows by a mask": (EVENTS, np.array([False, True, False]), [{"a": [], "s": "é"}]),
    "rows by a range": (EVENTS, range(1), [{"a": [1, 2], "s": "x"}]),
    "rows by small numbers": (EVENTS, np.array([-1], np.int8), [{"a": [5], "s": ""}]),
    "a step beyond all rows": (EVENTS, slice(None, None, -(1 << 70)), [{"a": [5], "s": ""}]),
    "a step beyond all columns": (TEXTS, (slice(None), slice(1, None, 1 << 70)), [["b"], ["e"]]),
    "no rows, and a large step": (EVENTS, slice(7, None, 1 << 70), []),
    "a field": (EVENTS, "s", ["x", "é", ""]),
    "a field of lists": (EVENTS, "a", [[1, 2], [], [5]]),
    "a field of a row": (EVENTS, (0, "a"), [1, 2]),
    "an element of a field of a row": (EVENTS, (0, "a", 1), 2),
    "a row of a field": (EVENTS, ("s", 1), "é"),
    "a slice of every list": (EVENTS, (slice(None), "a", slice(0, 1)), [[1], [], [5]]),
    "everything": (EVENTS, ..., EVENTS.tolist()),
    "nothing at all": (EVENTS, (), EVENTS.tolist()),
    "a missing row": (OPTIONS, 1, None),
    "a row that could be missing": (OPTIONS, 2, {"x": 3, "y": "b"}),
    "a field of rows that could be missing": (OPTIONS, "x", [1, None, 3]),
    "a missing field of rows that could be missing": (OPTIONS, "y", [None, None, "b"]),
    "a row of another order": (STORED, 1, [4.0, 5.0, 6.0, 7.0]),
    "a column of another order": (STORED, (slice(None), -1), [3.0, 7.0, 11.0]),
    "a block of another order": (STORED, (slice(1, None), slice(None, None, 2)), [[4.0, 6.0], [8.0, 10.0]]),
    "an element of another order": (STORED, (2, 1), 9.0),
    "texts of another order": (TEXTS, (slice(None), 1), ["b", "e"]),
    "the first list of every row": (RAGGED, (slice(None), 0), [[1], [4, 5, 6]]),
    "lists behind dots": (RAGGED, (..., slice(1, None)), [[[], [3]], [[5, 6], []]]),
    "behind dots in a field": (RECORDS, ("a", ..., 0), [[1, 4]]),
    "a field behind dots": (RECORDS, (..., "a", 0), [[1, 4]]),
    "a row behind dots, and its field": (RECORDS, (..., 0, "a", 1), [4, 5, 6]),
    "dots of a field": (RECORDS, ("a", 0, ...), [[1, 2, 3], [4, 5, 6]]),
    "behind dots in a pointer": (dynd.array([[1, 2], [3, 4]], "2 * pointer[2 * int8]"), (..., 0), [1, 3]),
    "behind dots in an option": (dynd.array([[1, 2], None], "var * ?2 * int8"), (..., 0), [1, None]),
    "behind dots in maps": (dynd.array([{"a": 1}, {"b": 2}], "2 * map[string, int8]"), (..., 0), [("a", 1), ("b", 2)]),
    "dots of a missing value": (dynd.array([None], "1 * ?{a: int8}"), (0, ...), None),
    "a number of a tuple": (dynd.array((1, "x"), "(int8, string)"), 1, "x"),
    "a field of a struct": (dynd.array({"x": [1, 2]}, "{x: 2 * int8}"), "x", [1, 2]),
    "a pair of a map": (dynd.array({"b": 1, "a": 2}, "map[string, int8]"), 0, ("a", 2)),
    "pairs of a map": (dynd.array({"b": 1, "a": 2}, "map[string, int8]"), slice(1, 2), [("b", 1)]),
    "an element of no bytes": (dynd.array([None, None], "var * void"), 1, None),
}


@pytest.mark.parametrize("case", SELECTIONS)
def test_selections(case):
    tensor, index, expected = SELECTIONS[case]
    found = tensor[index]
    assert plain(found) == expected
    if isinstance(found, tg.Tensor):
        assert dynd.deserialize(found.serialize(), found.type).tolist() == expected


def test_elements_are_those_of_numpy():
    assert type(RAGGED[0, 0, 0]) is np.int32
    assert type(STORED[0, 0]) is np.float64
    assert type(EVENTS[0, "s"]) is str
    assert type(dynd.array([1.5], "var * bfloat16")[0]).__name__ == "bfloat16"
    assert dynd.array([dynd.array([1, 2])], "var * array[Any]")[0].numpy().tolist() == [1, 2]
    assert isinstance(EVENTS[0]["a"], tg.Tensor)


@pytest.mark.parametrize(
    "index",
    [3, -4, "b", 1.5, None, True, (0, 0), (0, "a", 9), (slice(None), "a", 0), slice("a"), slice(None, None, 0), [9],
     [1.5], [True], [[0]], [[0], [0, 1]], object(), (0, "a", 0, 0), ("s", 0, 0), (..., ...), ([0], "a", [0]),
     np.array([]), np.array([2**64 - 1], np.uint64)],
)  # fmt: skip
def test_bad_indices(index):
    with pytest.raises(OutOfRange) as caught:
        EVENTS[index]
    assert caught.value.rule.startswith("index.")


@pytest.mark.parametrize("index", ["q", 7, (0, 0, 0), None])
def test_bad_indices_of_other_tensors(index):
    for tensor in (dynd.array({"a": 1}), dynd.array("text"), OPTIONS[0], dynd.array((1, "x"), "(int8, string)")):
        with pytest.raises(OutOfRange):
            tensor[index]
    with pytest.raises(OutOfRange):
        dynd.array(np.arange(3))["field"]


def test_length_and_iteration(tmp_path):
    assert (len(EVENTS), EVENTS.ndim, EVENTS.size, EVENTS.shape) == (3, 0, 1, ())
    assert (len(RAGGED), RAGGED.ndim, RAGGED.size, RAGGED.shape) == (2, 2, 4, (2, 2))
    assert (len(STORED), len(TEXTS), len(OPTIONS)) == (3, 2, 3)
    assert [plain(row) for row in EVENTS] == EVENTS.tolist()
    assert [plain(row) for row in OPTIONS] == OPTIONS.tolist()
    dense = dynd.array(np.zeros((2, 3)))
    assert (dense.ndim, dense.size, len(dense)) == (2, 6, 2)
    for tensor in (dynd.array("x"), dynd.array({"a": 1})):
        with pytest.raises(TypeError):
            len(tensor)
    tg.save(tmp_path / "x.zt", {"t": EVENTS})
    with tg.open(tmp_path / "x.zt") as archive:
        assert archive["t"]["s"].tolist() == ["x", "é", ""]
        assert len(archive["t"]) == 3
        with pytest.raises(OutOfRange) as caught:
            archive["t"][5]
        assert caught.value.tensor == "t"


def test_rows_share_memory():
    array = np.arange(30.0).reshape(3, 10)
    tensor = dynd.array(array, "var * 10 * float64")
    assert np.shares_memory(tensor[1].numpy(), array)
    assert np.shares_memory(tensor[1:].numpy(), array)


def test_a_value_that_would_become_missing_is_refused():
    tensor = dynd.array([{"x": -128}, None], "2 * ?{x: int8}")
    with pytest.raises(InputError) as caught:
        tensor["x"]
    assert caught.value.rule == "dynd.sentinel"


@pytest.mark.parametrize("rows", [[], [None], [{"x": 1, "y": None}], [None, {"x": 2, "y": 3}, {"x": 4, "y": None}]])
def test_fields_of_optional_rows_have_one_type(rows):
    given = dynd.array(rows, "var * ?{x: int8, y: ?int8}")
    for tensor in (given, dynd.deserialize(given.serialize(), given.type)):
        for name in "xy":
            assert tensor[name].tolist() == [row and row[name] for row in rows]
            assert str(tensor[name].type) == "var * ?int8"


def rows_of(value, t):
    """What `tolist` has for a value that has rows."""
    while isinstance(t, T.Pointer | T.Option):
        t = t.element
    return value if isinstance(t, T.Fixed | T.Var | T.Storage | T.Map) else None


@settings(deadline=None, max_examples=300, database=None)
@given(st.integers(0, 2**32))
def test_rows_of_anything(seed):
    rng = Random(seed)
    t = random_type(rng, 4)
    tensor = dynd.deserialize(random_bytes(rng, t), t)
    expected = tensor.tolist()
    if tensor.layout != "nested" or expected is None or (rows := rows_of(expected, t)) is None:
        return
    assert len(tensor) == len(rows)
    found = [plain(row) for row in tensor]
    assert repr(found) == repr([plain(row) for row in rows])
    begin, step = rng.randint(-3, 3), rng.choice((1, 1, 2, -1))
    part = tensor[begin::step]
    assert repr(part.tolist()) == repr(rows[begin::step])
    assert repr(dynd.deserialize(part.serialize(), part.type).tolist()) == repr(part.tolist())
    for i in (0, -1, len(rows), -len(rows) - 1):
        if -len(rows) <= i < len(rows):
            assert repr(plain(tensor[i])) == repr(plain(rows[i]))
        else:
            with pytest.raises(OutOfRange):
                tensor[i]
