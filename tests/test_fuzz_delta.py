"""Some hundred mutants of a fixed seed in every run of the tests; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tensorglot as tg
from figures import seen
from fuzzing import delta


def test_the_invariant_holds_for_mutants() -> None:
    outcomes = Counter(map(delta.check, delta.mutants(600, seed=1)))
    seen("executions", outcomes.total())
    assert outcomes["applied"] > 3
    assert outcomes["patched"] > 3
    assert outcomes["delta.index"] > 50
    assert outcomes["delta.checksum"] > 3
    assert outcomes["delta.result"] + outcomes["store.encoding"] > 3


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(data: bytes, tensors: dict[str, Any]) -> None:
        tensors["b"][:] = 0
        raise tg.FormatError("refused too late", rule="delta.result")

    monkeypatch.setattr(tg.store, "apply", careless)
    with pytest.raises(AssertionError, match="has changed a tensor"):
        delta.check(delta.bases()[0])
