"""A few thousand mutants of zTensor files of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

from bounds import INTERPRETED
from figures import seen
from fuzzing import ztensor


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(ztensor.check(data) for data in ztensor.mutants(1000 if INTERPRETED else 3000, seed=1))
    seen("executions", outcomes.total())
    assert outcomes["accepted"] > 30
    assert outcomes["strict"] > 0
    assert len(outcomes) > 25, "mutants do not reach the rules"


def test_mutants_are_the_same_for_the_same_seed() -> None:
    one, two, other = (list(ztensor.mutants(50, seed)) for seed in (7, 7, 8))
    assert one == two
    assert one != other
