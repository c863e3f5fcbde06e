"""Values of a distributed checkpoint that are no tensors, as JSON: every type and value comes back as it was."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from typing import Any

import pytest

import tensorglot as tg
from tensorglot.containers.dcp.plain import DEPTH, TAG, decode, encode

VALUES: list[Any] = [
    None, True, 3, 1 << 80, "a", 1.5, -0.0, math.inf, -math.inf, 1j, complex(-0.0, math.inf), b"", b"\0\xff",
    [], [1, [2]], (), (1, (2,)), {1, 2}, {}, {"a": [1, {"b": None}]}, {1: 2}, {(1, 2): "x"}, {TAG: "float"},
    OrderedDict(b=1, a=2), [math.inf, (math.inf,), {"a": -math.inf}],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_it_comes_back_as_it_was(value: Any) -> None:
    text = json.dumps(encode(value), allow_nan=False)
    found = decode(json.loads(text), {})
    assert (type(found), repr(found)) == (type(value), repr(value))


def test_nan() -> None:
    text = json.dumps(encode([math.nan, complex(0, math.nan)]), allow_nan=False)
    one, two = decode(json.loads(text), {})
    assert (type(one), type(two), repr(one), repr(two)) == (float, complex, "nan", "nanj")


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(tg.UnsupportedError) as caught:
        encode([object()])
    assert caught.value.rule == "dcp.value.type"
    deep: Any = 1
    for _ in range(DEPTH):
        deep = [deep]
    with pytest.raises(tg.UnsupportedError) as caught:
        encode(deep)
    assert caught.value.rule == "dcp.value.depth"
    assert encode(deep[0]) == deep[0]


@pytest.mark.parametrize(
    "value",
    [{TAG: "float", "of": "x"}, {TAG: "complex", "of": [1, 2, 3]}, {TAG: "bytes", "of": 5}, {TAG: "set", "of": [[]]}],
)
def test_a_value_that_its_type_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises(tg.FormatError) as caught:
        decode(value, {})
    assert caught.value.rule == "dcp.value"


def test_an_unknown_type() -> None:
    with pytest.raises(tg.FormatError) as caught:
        decode({TAG: "os.system", "of": "x"}, {})
    assert caught.value.rule == "dcp.value"
    assert decode({TAG: "os.system", "of": "x"}) == "x"
