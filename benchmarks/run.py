"""Runs cases in turns, prints each row when it is known and keeps the results as JSON.

A library that is not installed is left out of its rows and noted; a case whose comparison
needs it is listed as not measured. A row replaces the one of the same name in the file: each
is complete in itself, because ours and the peers took turns, and says when and of which
commit it was measured, how busy the machine was, and every sample.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks import GROUPS
from benchmarks.case import FIRST_USE, Case
from benchmarks.claims import of_row
from benchmarks.measure import temporary
from benchmarks.peers import DISTRIBUTIONS, PROGRAMS, absent, installed, version

__all__ = ["available", "commit", "environment", "main", "measure", "row"]

RESULTS = Path("benchmarks/results")
SLOW = ("h5py", "pymongo lists", "python", "torch", "zarr")
"""Libraries that a quick run leaves out: they take most of the time, and are never the fastest."""
LEAST_ROUNDS = 3
CASE_SECONDS = 25.0
"""A case that takes longer than this has no more rounds than these: starting the processes takes most of a full run."""
FIGURES = ("ms", "extra_nbytes")
"""What every measurement has; anything else was counted by the action."""

Samples = dict[str, list[dict[str, float]]]
"""By library, what each of its processes measured."""


def available(case: Case) -> list[str]:
    """The libraries of a case that are installed."""
    return [library for library in case.actions if installed(library)]


def commit() -> str:
    """The commit of the working tree, and whether it has changes."""
    git = ["git", "-C", str(Path(__file__).parent)]
    done = subprocess.run([*git, "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def measure(
    group: str, cases: list[Case], quick: bool, folder: Path, rounds: int, seconds: float = math.inf
) -> tuple[list[Samples], float]:
    """What every library of each case measured, in turns; an action that several cases have runs once in a turn.

    And the highest load of the machine, by its average over a minute. After `seconds` no
    further round begins, if there were LEAST_ROUNDS.
    """
    actions = {
        (case.name, library): id(case.actions[library])
        for case in cases
        for library in available(case)
        if not quick or library not in SLOW
    }
    first = {action: job for job, action in reversed(actions.items())}
    samples: dict[int, list[dict[str, float]]] = {action: [] for action in actions.values()}
    load, end = 0.0, time.monotonic() + seconds
    for i in range(rounds):
        if i >= LEAST_ROUNDS and time.monotonic() > end:
            break
        for action in samples:
            name, library = first[action]
            command = [sys.executable, "-m", "benchmarks.measure", group, name, library, str(folder)]
            done = subprocess.run([*command, *["check"][i:]], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{name}, {library}:\n{done.stderr}")
            samples[action].append(json.loads(done.stdout.splitlines()[-1]))
        load = max(load, os.getloadavg()[0])
    found: dict[str, Samples] = {case.name: {} for case in cases}
    for (name, library), action in actions.items():
        found[name][library] = samples[action]
    return [found[case.name] for case in cases], load


def row(group: str, case: Case, samples: Samples, load: float) -> dict[str, Any]:
    best = {library: min(one["ms"] for one in found) for library, found in samples.items()}
    ours, *peers = samples
    counted = {figure for one in samples[ours] for figure in one} - {*FIGURES}
    found = {
        "group": group,
        "case": case.name,
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "load": round(load, 1),
        "rounds": len(samples[ours]),
        "payload_nbytes": case.payload_nbytes,
        "ms": {library: _rounded(ms) for library, ms in best.items()},
        "samples": {library: [_rounded(one["ms"]) for one in found] for library, found in samples.items()},
        "extra_nbytes": {library: int(max(one["extra_nbytes"] for one in found)) for library, found in samples.items()},
        "times_faster": {peer: float(f"{best[peer] / best[ours]:.3g}") for peer in peers},
        "goals": {peer: goal for peer, goal in case.goals.items() if peer in samples},
        "counted": {figure: max(one[figure] for one in samples[ours]) for figure in sorted(counted)},
        "limits": dict(case.limits),
    }
    return {**found, "met": all(claim.met for claim in of_row(found))}


def _rounded(ms: float) -> float:
    return float(f"{ms:.4g}")


def lines(entry: dict[str, Any]) -> list[str]:
    """A row as text: ours, then one line for each peer, then each limit."""
    ours = next(iter(entry["ms"]))

    def line(title: str, library: str) -> str:
        return f"{title:42}{entry['ms'][library]:10.2f} ms   {entry['extra_nbytes'][library] / 1e6:8.0f} MB"

    found = [line(entry["case"], ours)]
    for peer, ratio in entry["times_faster"].items():
        goal = entry["goals"].get(peer)
        mark = "" if goal is None else f"   goal {goal:.3g} {'met' if ratio >= goal else 'MISSED'}"
        found.append(f"{line(f'    {peer}', peer)}{ratio:9.2f} ×{mark}")
    for claim in of_row(entry):
        if not claim.at_least:
            verdict = "met" if claim.met else "MISSED"
            found.append(f"    {claim.value:,.4g} {claim.what}, at most {claim.goal:,.4g}: {verdict}")
    return found


def environment() -> dict[str, Any]:
    """What the times depend on."""
    memory_nbytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    distributions = sorted({*DISTRIBUTIONS.values(), "numpy"})
    return {
        "cpus": os.cpu_count(),
        "memory_nbytes": memory_nbytes,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "tensorglot": import_module("tensorglot").__version__,
        "versions": {name: version(name) for name in distributions if version(name)},
        "missing": [name for name in distributions if not version(name)],
    }


def store(path: Path, copies: int) -> dict[str, Any]:
    """W7 by its own program, whose rows appear as they are known."""
    command = [sys.executable, "-m", "benchmarks.store", "--copies", str(copies), "--json", str(path)]
    subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads(path.read_text())
    found["missing"] = [name for name in TOOLS if shutil.which(name) is None]
    return {**found, "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), "commit": commit()}


TOOLS = {"restic": "restic", "borg": "borgbackup", "git-lfs": "git-lfs", "dvc": "dvc"}
"""Programs that the store is compared with, and the package that each is in: of PyPI for dvc, else of Debian."""


def lacking() -> Iterable[str]:
    """What a full run leaves out here, and what to install for it."""
    for name in sorted({*DISTRIBUTIONS.values()}):
        if version(name) is None:
            yield f"{name}: not installed (pip install {name})"
    for name in PROGRAMS:
        if absent(name):
            yield f"{name}: not installed ({PROGRAMS[name].way_out})"
    for name, package in TOOLS.items():
        if shutil.which(name) is None:
            installer = "pip install" if name == "dvc" else "apt-get install"
            yield f"{name}: not installed ({installer} {package})"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("prefixes", nargs="*", help="cases whose names begin so; all without, and the store")
    parser.add_argument("--quick", action="store_true", help="the essentials, two rounds: about two minutes")
    parser.add_argument(
        "--rounds",
        type=int,
        help="processes for each library; by default what the case asks for, fewer if it takes long",
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "run.json")
    parser.add_argument("--folder", type=Path, help="where the files are made, 25 GB; a temporary one without")
    parser.add_argument("--copies", type=int, default=1, help="of the model of 45 MB in a checkpoint of the store")
    options = parser.parse_args(arguments)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(options.json.read_text()) if options.json.exists() else {"rows": []}
    rows = {entry["case"]: entry for entry in kept["rows"]}
    skipped: dict[str, dict[str, str]] = {entry["case"]: entry for entry in kept.get("not_measured", [])}
    missed = []

    every = [(group, case) for group in GROUPS for case in import_module(f"benchmarks.{group}").cases()]

    def write(**sections: Any) -> None:
        ordered = [rows[case.name] for _, case in every if case.name in rows]
        unknown = [skipped[case.name] for _, case in every if case.name in skipped and case.name not in rows]
        kept.update(environment=environment(), rows=ordered, not_measured=unknown, **sections)
        partial = options.json.with_suffix(".partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n")
        partial.replace(options.json)

    def wanted(case: Case) -> bool:
        named = not options.prefixes or case.name.startswith(tuple(options.prefixes))
        return named and (case.quick or not options.quick)

    print("\n".join(lacking()), flush=True)
    with temporary(options.folder) as folder:
        (folder / FIRST_USE).mkdir()
        chosen = [(group, case) for group, case in every if wanted(case)]
        for (group, _), turn in groupby(chosen, lambda pair: (pair[0], pair[1].together or pair[1].name)):
            cases = []
            for _, case in turn:
                if reason := ", ".join(filter(absent, case.requires)):
                    skipped[case.name] = {"group": group, "case": case.name, "reason": f"no {reason}"}
                    print(f"{case.name}: not measured: no {reason}", flush=True)
                else:
                    cases.append(case)
            for case in cases:
                case.prepare(folder)
                if case.first_use:
                    case.prepare(folder / FIRST_USE)
            rounds = options.rounds or (2 if options.quick else max((case.rounds for case in cases), default=0))
            seconds = math.inf if options.rounds else CASE_SECONDS * len(cases)
            found, load = measure(group, cases, options.quick, folder, rounds, seconds)
            for case, samples in zip(cases, found, strict=True):
                entry = rows[case.name] = row(group, case, samples, load)
                print("\n".join(lines(entry)), flush=True)
                missed += [] if entry["met"] else [case.name]
            write()
    if not options.quick and not options.prefixes:
        write(store=store(options.json.with_name("store.json"), options.copies))
    print(f"\nwritten: {options.json}; {'below a goal: ' + '; '.join(missed) if missed else 'every goal met'}")
