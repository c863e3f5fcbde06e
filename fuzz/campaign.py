"""Runs one target: `python fuzz/NAME.py [COUNT] [SEED]`.

A target is a module with `mutants(count, seed)`, which makes inputs, and `check(mutant)`,
which holds the invariant for one of them and returns what became of it. `run` goes through
mutants and counts that. The first that breaks the invariant ends it, with what it takes
to make that mutant again. A warning is an error, and so is much memory or time.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

M = TypeVar("M")
ENDLESS = 1 << 62
MEMORY = 6 << 30
MUTANT_NBYTES = 128 << 20
MUTANT_SECONDS = 10
"""More resident memory than before, or time of the processor, for one of them is a finding."""
FINDINGS = Path(__file__).parents[1] / "build" / "findings"


@dataclass
class Result:
    seed: int
    executions: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    finding: str | None = None
    """What broke the invariant, in a line."""
    details: str = ""
    """The mutant and the traceback."""

    @property
    def rate(self) -> float:
        return self.executions / max(self.seconds, 1e-9)


@dataclass
class Uncounted:
    """A counter for runs whose progress nobody reads."""

    value: int = 0


def run(
    mutants: Callable[[int, int], Iterator[M]],
    check: Callable[[M], str | Iterable[str]],
    seed: int,
    count: int = ENDLESS,
    seconds: float = float("inf"),
    counter: Any = None,
) -> Result:
    """Goes through so many mutants of a seed, or for so long, or to the first that breaks the invariant.

    The `value` of a counter is how many there were.
    """
    result = Result(seed)
    counter = Uncounted() if counter is None else counter
    begun, peak = time.perf_counter(), _bounded_peak(ENDLESS)
    with warnings.catch_warnings(), _alarm():
        warnings.simplefilter("error")
        for mutant in mutants(count, seed):
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, MUTANT_SECONDS)
                outcome = check(mutant)
                peak = _bounded_peak(peak if result.executions else ENDLESS)  # the first one imports modules
            except Exception as error:  # noqa: BLE001 (whatever it is, it is the finding)
                result.finding = " ".join(f"{type(error).__name__}: {error}".split())[:200]
                result.details = f"{mutant!r}\n{traceback.format_exc()}"
                break
            result.executions += 1
            counter.value = result.executions
            if isinstance(outcome, str):
                result.outcomes[outcome] += 1
            else:
                result.outcomes.update(outcome)
            if time.perf_counter() - begun > seconds:
                break
    result.seconds = time.perf_counter() - begun
    return result


@contextmanager
def _alarm() -> Iterator[None]:
    """A timer that ends is an error, wherever it finds the interpreter."""

    def fail(*_: object) -> None:
        raise AssertionError(f"{MUTANT_SECONDS} s of the processor for one mutant")

    before = signal.signal(signal.SIGVTALRM, fail)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _bounded_peak(before: int) -> int:
    """The peak of resident memory; that it has grown much since `before` is a finding."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert peak - before < MUTANT_NBYTES, f"{(peak - before) >> 20} MiB of memory for one mutant"
    return peak


def limit_memory() -> None:
    """An input that takes gigabytes is a finding, not the end of other processes. The sanitizers have such a limit."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def run_target(sender: Any, name: str, seed: int, seconds: float, counter: Any) -> None:
    """Runs the target of a module of this folder and sends the result."""
    limit_memory()
    target = import_module(name)
    sender.send(run(target.mutants, target.check, seed, seconds=seconds, counter=counter))


def describe(name: str, result: Result) -> str:
    """The finding of a target in a few lines. What is long goes to a file, which is named."""
    lines = [f"{name}: mutant {result.executions} of seed {result.seed}: {result.finding}"]
    if result.details:
        FINDINGS.mkdir(parents=True, exist_ok=True)
        path = FINDINGS / f"{name}-{result.seed}-{result.executions}.txt"
        path.write_text(result.details, "utf-8", "backslashreplace")
        lines.append(f"    the mutant and the traceback: {path}")
    lines.append(f"    to repeat it: python fuzz/{name}.py {result.executions + 1} {result.seed}")
    return "\n".join(lines)


def campaign(mutants: Callable[[int, int], Iterator[M]], check: Callable[[M], str | Iterable[str]]) -> None:
    """The target as a program. The seed is a new one unless it is given."""
    given = [int(text) for text in sys.argv[1:]]
    count, seed = given + [200_000, random.SystemRandom().randrange(1 << 32)][len(given) :]
    limit_memory()
    result = run(mutants, check, seed, count)
    if result.finding is not None:
        sys.exit(describe(Path(sys.argv[0]).stem, result))
    for outcome, times in result.outcomes.most_common():
        print(f"{times:9,}  {outcome}")
    print(
        f"{count:9,} mutants of seed {seed} in {result.seconds:.0f} s, {result.rate:,.0f} a second: the invariant holds"
    )
