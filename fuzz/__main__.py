"""All targets at once: `python fuzz [SECONDS] [SEED]`, or `make fuzz SECONDS=60`.

Each target runs in a process of its own, as many at a time as there are processors. Most
of the time goes to readers: a kernel alone gives many executions and few new states (see
WEIGHTS). A row is printed when its target is done. A finding is a mutant that broke the
invariant of its target, or a process that died; then the exit code is 1, the mutant is in
a file below build/findings, and what it takes to make it again is printed.

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
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from campaign import Result, describe, run_target

FOLDER = Path(__file__).parent
RECORD = FOLDER.parent / "build" / "campaigns.jsonl"
WEIGHTS = {"kernels": 0.5, "chunk_encodings": 0.3, "opening": 2.0, "foreign": 2.0, "differential": 2.0}
"""Shares of the time, of targets whose share is not 1."""


def targets() -> list[str]:
    """Modules of this folder that have mutants and a check."""
    modules = sorted(path.stem for path in FOLDER.glob("*.py"))
    return [name for name in modules if re.search("^def mutants", (FOLDER / f"{name}.py").read_text("utf-8"), re.M)]


def run_apart(name: str, seed: int, seconds: float) -> Result:
    """Runs a target in a process of its own, which may die."""
    context = get_context("spawn")
    counter = context.RawValue("Q")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_target, args=(sender, name, seed, seconds, counter))
    process.start()
    sender.close()
    try:
        result: Result = receiver.recv()
    except EOFError:
        process.join()
        result = Result(seed, counter.value, seconds, finding=f"the process died (exit code {process.exitcode})")
    process.join()
    return result


def results(names: list[str], seed: int, seconds: float) -> Iterator[tuple[str, Result]]:
    """The result of each target, when it is known. Those that take longest come first, so that none runs alone."""
    workers = min(len(names), len(os.sched_getaffinity(0)))
    weights = {name: WEIGHTS.get(name, 1.0) for name in names}
    share = seconds * workers / sum(weights.values())
    with ThreadPoolExecutor(workers) as pool:
        order = sorted(names, key=lambda name: -weights[name])
        jobs = {pool.submit(run_apart, name, seed, share * weights[name]): name for name in order}
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
            findings.append(describe(name, result))
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
