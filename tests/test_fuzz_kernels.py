"""A slice of the mutants of the kernels and of opening, of a fixed seed; `make fuzz` has the campaign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bounds import INTERPRETED
from figures import seen
from fuzzing import kernels, opening


def test_the_invariant_holds_for_kernels() -> None:
    outcomes = Counter(map(kernels.check, kernels.mutants(3000 if INTERPRETED else 30_000, seed=1)))
    seen("executions", outcomes.total())
    assert {outcome.partition(":")[0] for outcome in outcomes} == set(kernels.ENTRIES)
    assert len(outcomes) > 60, "mutants do not reach the faults"


def test_the_invariant_holds_for_opening() -> None:
    outcomes = Counter(map(opening.check, opening.mutants(800 if INTERPRETED else 3000, seed=1)))
    seen("executions", outcomes.total())
    formats = {format for format, _, _ in opening.bases()}
    assert {outcome.partition(":")[0] for outcome in outcomes} >= formats
    assert len(outcomes) > 100, "mutants do not reach the rules"


DEFECTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "invalid text that is not found": ("utf8", "first_invalid", lambda *_: -1),
    "a position outside": ("safetensors", "scan", lambda *_: (1, 10_000)),
    "an error that is raised": ("cbor skip", "skip", lambda *_: {}["absent"]),
    "a form that differs": ("zstd blocks", "walk", lambda *_: (2, 0)),
}


@pytest.mark.parametrize("what", DEFECTS)
def test_a_defect_of_a_kernel_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, function, wrong = DEFECTS[what]
    monkeypatch.setattr(kernels, "compiled", lambda _: SimpleNamespace(**{function: wrong}))
    inputs = [data for name, data, _ in kernels.mutants(3000, seed=2) if name == entry]
    with pytest.raises((AssertionError, KeyError)):
        [kernels.check((entry, data, True)) for data in inputs]
