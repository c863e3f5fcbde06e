"""Some thousand mutants of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

from bounds import INTERPRETED
from figures import seen
from fuzzing import foreign


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(foreign.check(mutant) for mutant in foreign.mutants(800 if INTERPRETED else 3000, seed=1))
    seen("executions", outcomes.total())
    assert outcomes["strict"] > 50
    assert outcomes["accepted"] > 20
    assert len(outcomes) > 50, "mutants do not reach the rules"
