"""What every target does when it is run: `python fuzz/NAME.py [COUNT] [SEED]`.

A target is a module with `mutants(count, seed)`, which makes inputs, and `check(mutant)`,
which holds the invariant for one of them and returns what became of it. `run` goes through
mutants and counts that. The first that breaks the invariant ends it, with what it takes
to make that mutant again. A warning is an error.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import TypeVar

M = TypeVar("M")
ENDLESS = 1 << 62


@dataclass
class Result:
    seed: int
    executions: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    finding: str | None = None
    """The mutant that broke the invariant, and the traceback."""

    @property
    def rate(self) -> float:
        return self.executions / max(self.seconds, 1e-9)


def run(
    mutants: Callable[[int, int], Iterator[M]],
    check: Callable[[M], str | Iterable[str]],
    seed: int,
    count: int = ENDLESS,
    seconds: float = float("inf"),
) -> Result:
    """Goes through so many mutants of a seed, or for so long, or to the first that breaks the invariant."""
    result = Result(seed)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for mutant in mutants(count, seed):
            try:
                outcome = check(mutant)
            except Exception:  # noqa: BLE001 (whatever it is, it is the finding)
                at = f"mutant {result.executions} of seed {seed}: {mutant!r}"
                result.finding = f"{at}\n{traceback.format_exc()}"
                break
            result.executions += 1
            if isinstance(outcome, str):
                result.outcomes[outcome] += 1
            else:
                result.outcomes.update(outcome)
            if time.perf_counter() - begun > seconds:
                break
    result.seconds = time.perf_counter() - begun
    return result


def run_target(name: str, seed: int, seconds: float) -> Result:
    """Runs the target of a module of this folder."""
    target = import_module(name)
    return run(target.mutants, target.check, seed, seconds=seconds)


def campaign(mutants: Callable[[int, int], Iterator[M]], check: Callable[[M], str | Iterable[str]]) -> None:
    """The target as a program. The seed is a new one unless it is given."""
    given = [int(text) for text in sys.argv[1:]]
    count, seed = given + [200_000, random.SystemRandom().randrange(1 << 32)][len(given) :]
    result = run(mutants, check, seed, count)
    if result.finding is not None:
        sys.exit(result.finding)
    for outcome, times in result.outcomes.most_common():
        print(f"{times:9,}  {outcome}")
    print(
        f"{count:9,} mutants of seed {seed} in {result.seconds:.0f} s, {result.rate:,.0f} a second: the invariant holds"
    )
