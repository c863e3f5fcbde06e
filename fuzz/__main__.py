"""All targets at once: `python fuzz [SECONDS] [SEED]`, or `make fuzz SECONDS=60`.

Each target runs in a process of its own, as many at a time as there are processors. Most
of the time goes to readers: a kernel alone gives many executions and few new states (see
WEIGHTS). A row is printed when its target is done. A finding is a mutant that broke the
invariant of its target, or a process that died; then the exit code is 1, and the mutant is
printed with what it takes to make it again.

The seed is printed, and with the executions of each target added to build/campaigns.jsonl:
`python fuzz/NAME.py EXECUTIONS SEED` goes through the same mutants again.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from campaign import Result, run_target

FOLDER = Path(__file__).parent
RECORD = FOLDER.parent / "build" / "campaigns.jsonl"
WEIGHTS = {"kernels": 0.1, "chunk_encodings": 0.3, "opening": 2.0, "foreign": 2.0, "differential": 2.0}
"""Shares of the time, of targets whose share is not 1."""


def targets() -> list[str]:
    """Modules of this folder that have mutants and a check."""
    modules = sorted(path.stem for path in FOLDER.glob("*.py"))
    return [name for name in modules if re.search("^def mutants", (FOLDER / f"{name}.py").read_text("utf-8"), re.M)]


def run_apart(name: str, seed: int, seconds: float) -> Result:
    """Runs a target in a process of its own, which may die."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(run_target, name, seed, seconds).result()
        except BrokenProcessPool:
            return Result(seed, finding=f"the process of seed {seed} died")


def results(names: list[str], seed: int, seconds: float) -> Iterator[tuple[str, Result]]:
    """The result of each target, when it is known."""
    workers = min(len(names), len(os.sched_getaffinity(0)))
    share = seconds * workers / sum(WEIGHTS.get(name, 1.0) for name in names)
    with ThreadPoolExecutor(workers) as pool:
        jobs = {pool.submit(run_apart, name, seed, share * WEIGHTS.get(name, 1.0)): name for name in names}
        for done in as_completed(jobs):
            yield jobs[done], done.result()


def main() -> int:
    given = sys.argv[1:]
    seconds = float(given[0]) if given else 60.0
    seed = int(given[1]) if len(given) > 1 else random.SystemRandom().randrange(1 << 32)
    names = targets()
    print(f"{'target':<16} {'executions':>12} {'a second':>9} {'outcomes':>9}  findings   (seed {seed})")
    executions: dict[str, int] = {}
    findings = []
    for name, result in results(names, seed, seconds):
        executions[name] = result.executions
        print(
            f"{name:<16} {result.executions:>12,} {result.rate:>9,.0f} {len(result.outcomes):>9,}  "
            f"{int(result.finding is not None)}",
            flush=True,
        )
        if result.finding is not None:
            findings.append(f"{name}: {result.finding}")
    print(f"{'all':<16} {sum(executions.values()):>12,} {'':>9} {'':>9}  {len(findings)}")
    RECORD.parent.mkdir(exist_ok=True)
    with RECORD.open("a", encoding="utf-8") as record:
        row = {"seed": seed, "seconds": seconds, "executions": executions, "findings": findings}
        record.write(json.dumps(row) + "\n")
    for finding in findings:
        print(f"\n{finding}")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
