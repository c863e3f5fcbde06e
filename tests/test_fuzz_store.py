"""A few hundred mutants of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

import pytest

from figures import seen
from fuzzing import store


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(map(store.check, store.mutants(400, seed=1)))
    seen("executions", outcomes.total())
    for kind in ("pack", "index", "node", "ref", "bundle"):
        assert outcomes[f"{kind}: refused"] > 3, (kind, outcomes)
    assert outcomes["bundle: accepted"] > 3


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    unchanged = store.Mutant("pack", store.made().objects)
    assert store.check(unchanged) == "pack: accepted"
    monkeypatch.setattr(store, "CommitArchive", lambda *_: {}["absent"])
    with pytest.raises(KeyError):
        store.check(unchanged)
    monkeypatch.undo()
    monkeypatch.setattr(store, "same", lambda *_: False)
    with pytest.raises(AssertionError):
        store.check(unchanged)
