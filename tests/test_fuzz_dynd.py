"""A few thousand mutants of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

from figures import seen
from fuzzing import dynd


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(dynd.check(case) for case in dynd.mutants(3000, seed=3))
    seen("executions", outcomes.total())
    for way in dynd.WAYS:
        assert outcomes[f"{way}: accepted"] > 20, way
    refused = Counter(outcome.split(": ")[0] for outcome in outcomes if not outcome.endswith("accepted"))
    assert set(refused) == set(dynd.WAYS)
    assert sum(refused.values()) > 90, "mutants do not reach the rules"


def test_mutants_are_the_same_for_the_same_seed() -> None:
    one, two, other = (list(dynd.mutants(50, seed)) for seed in (7, 7, 8))
    assert one == two
    assert one != other


@pytest.mark.parametrize("error", [KeyError, RecursionError, AssertionError])
def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def broken(given: object) -> None:
        raise error

    monkeypatch.setitem(dynd.WAYS, "type", broken)
    with pytest.raises(error):
        dynd.check(("type", "int8"))


@pytest.mark.parametrize("way", ["value", "packed", "exchange", "dag", "file", "saved"])
def test_a_defect_is_found(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """A serializer that loses the last byte of what it should write."""
    whole = dynd.dynd.serialize
    monkeypatch.setattr(dynd.tg.Tensor, "serialize", lambda tensor: whole(tensor)[:-1])
    monkeypatch.setattr(dynd.dynd, "pack", lambda tensor: b"")
    monkeypatch.setattr(dynd.dynd, "to_cbor", lambda *given, **options: b"")
    data = whole(["ab"], "var * string")
    given = {
        "value": (bytes(data), dynd.dynd.parse("var * string")),
        "packed": b"\x04int8\x01",
        "exchange": b"\x01",
        "dag": bytes.fromhex("a4646461746141016464796e64016473697a6501647479706564696e7438"),
        "file": b"\x04int8\x01",
        "saved": (bytes(data), dynd.dynd.parse("var * string"), "ztensor@0.1"),
    }
    with pytest.raises((AssertionError, dynd.tg.FormatError)) as caught:
        dynd.WAYS[way](given[way])
    assert way == "file" or isinstance(caught.value, AssertionError)
