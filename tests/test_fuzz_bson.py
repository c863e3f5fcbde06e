"""A few thousand mutants of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

import tensorglot as tg
from fuzzing import bson


def test_the_invariant_holds_for_mutants() -> None:
    outcomes: Counter[str] = Counter()
    for data in bson.mutants(3000, seed=1):
        outcomes.update(bson.check(data))
    for way in bson.WAYS:
        if way != "decode":
            assert outcomes[f"{way}: accepted"] > 3, way
    assert len(outcomes) > 60, "mutants do not reach the rules"


def test_mutants_are_the_same_for_the_same_seed() -> None:
    one, two, other = (list(bson.mutants(50, seed)) for seed in (7, 7, 8))
    assert one == two
    assert one != other


@pytest.mark.parametrize("error", [KeyError, RecursionError, AssertionError])
def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def broken(data: bytes) -> None:
        raise error

    monkeypatch.setitem(bson.WAYS, "broken", broken)
    with pytest.raises(error):
        bson.check(tg.bson.encode_document({}))
