"""Some hundred mutants of distributed checkpoints in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter

from bounds import INTERPRETED
from figures import seen
from fuzzing import dcp


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(dcp.check(mutant) for mutant in dcp.mutants(500 if INTERPRETED else 600, seed=1))
    seen("executions", outcomes.total())
    assert outcomes["accepted"] > 30
    assert {"dcp.index", "dcp.item.missing", "dcp.file.path"} <= outcomes.keys()
    assert len(outcomes) > 20, "mutants do not reach the rules"
