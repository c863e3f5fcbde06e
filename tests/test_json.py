"""Strict JSON: what it refuses, by which rule, and at which depth."""

from __future__ import annotations

import pytest

import tensorglot as tg
from tensorglot.wire import json

REFUSED: dict[str, tuple[bytes, type[Exception], str]] = {
    "nothing": (b"", tg.FormatError, "syntax"),
    "a BOM": (b"\xef\xbb\xbf1", tg.FormatError, "syntax"),
    "bytes behind": (b"1 1", tg.FormatError, "syntax"),
    "NaN": (b"[NaN]", tg.FormatError, "syntax"),
    "infinity": (b"[-Infinity]", tg.FormatError, "syntax"),
    "many digits": (b"1" * 5000, tg.FormatError, "syntax"),
    "not UTF-8": (b'"\xff"', tg.FormatError, "utf8"),
    "half of a character": (rb'["\ud800"]', tg.FormatError, "surrogate"),
    "half of a character in a key": (rb'{"a": {"\uDFFF": 1}}', tg.FormatError, "surrogate"),
    "a key twice": (b'{"a": 1, "a": 1}', tg.FormatError, "duplicate"),
    "an inner key twice": (b'[{"a": {"b": 1, "b": 2}}]', tg.FormatError, "duplicate"),
    "lists": (b"[" * 4 + b"]" * 4, tg.LimitError, "depth"),
    "dicts": (b'{"a":' * 4 + b"1" + b"}" * 4, tg.LimitError, "depth"),
    "both in turns": (b'[{"a":[{"a":1}]}]', tg.LimitError, "depth"),
    "far too deep, and never closed": (b'{"a":' * 100_000, tg.LimitError, "depth"),
    "behind a text with a quote": (rb'["\"", [[[1]]]]', tg.LimitError, "depth"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    data, kind, rule = REFUSED[case]
    with pytest.raises(tg.TensorglotError) as caught:
        json.parse(data, depth=3, rule="r")
    assert (type(caught.value), caught.value.rule) == (kind, f"r.{rule}")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"[[[1]]]", [[[1]]]),
        (b'{"a":{"b":{"c":[]}}}', None),
        (b'{"a":{"b":{"c":1}}}', {"a": {"b": {"c": 1}}}),
        (b'[[1],[1],[{"a":1}],{}]', [[1], [1], [{"a": 1}], {}]),
        (rb'["\ud83d\ude00", "\\ud800"]', ["\U0001f600", "\\ud800"]),
        (b'["[[[[{{{{", "\\"[[[["]', ["[[[[{{{{", '"[[[[']),
    ],
)
def test_brackets_count_by_depth_and_outside_of_texts(data: bytes, value: object) -> None:
    """At most three levels are open at a time, however many there are."""
    if value is None:
        with pytest.raises(tg.LimitError):
            json.parse(data, depth=3, rule="r")
    else:
        assert json.parse(data, depth=3, rule="r") == value
