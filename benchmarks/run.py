"""Runs cases in turns, prints each row when it is known and keeps the results as JSON.

A library that is not installed is left out of its rows and noted; so is a case whose
comparison needs it. A row replaces the one of the same name in the file: each is complete
in itself, because ours and the peers took turns, and says when it was measured and how
busy the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import GROUPS
from benchmarks.case import Case
from benchmarks.peers import DISTRIBUTIONS, installed, version

__all__ = ["available", "environment", "main", "measure", "row"]

RESULTS = Path("benchmarks/results")
SLOW = ("h5py", "pymongo lists", "python", "torch", "zarr")
"""Libraries that a quick run leaves out: they take most of the time, and are never the fastest."""


def available(case: Case) -> list[str]:
    """The libraries of a case that are installed."""
    return [library for library in case.actions if installed(library)]


def measure(group: str, case: Case, libraries: list[str], folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The quickest of several rounds for each library, which take turns, and the most memory of them all."""
    best: dict[str, dict[str, float]] = {}
    for i in range(rounds):
        for library in libraries:
            command = [sys.executable, "-m", "benchmarks.measure", group, case.name, library, str(folder)]
            done = subprocess.run([*command, *["check"][i:]], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{case.name}, {library}:\n{done.stderr}")
            result = json.loads(done.stdout.splitlines()[-1])
            kept = best.setdefault(library, result)
            most = max(kept["extra_nbytes"], result["extra_nbytes"])
            best[library] = {"ms": min(kept["ms"], result["ms"]), "extra_nbytes": most}
    return best


def row(group: str, case: Case, results: dict[str, dict[str, float]], rounds: int) -> dict[str, Any]:
    ours, *peers = results
    mine = results[ours]["ms"]
    goals = {peer: goal for peer, goal in case.goals.items() if peer in results}
    return {
        "group": group,
        "case": case.name,
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "load": round(os.getloadavg()[0], 1),
        "rounds": rounds,
        "payload_nbytes": case.payload_nbytes,
        "ms": {library: float(f"{result['ms']:.4g}") for library, result in results.items()},
        "extra_nbytes": {library: int(result["extra_nbytes"]) for library, result in results.items()},
        "times_faster": {peer: float(f"{results[peer]['ms'] / mine:.3g}") for peer in peers},
        "goals": goals,
        "extra_nbytes_goal": case.extra_nbytes,
        "met": all(results[peer]["ms"] / mine >= goal for peer, goal in goals.items())
        and (case.extra_nbytes is None or results[ours]["extra_nbytes"] <= case.extra_nbytes),
    }


def lines(entry: dict[str, Any]) -> list[str]:
    """A row as text: ours, then one line for each peer."""
    ours = next(iter(entry["ms"]))
    memory = f"{entry['extra_nbytes'][ours] / 1e6:.0f} MB"
    most = entry["extra_nbytes_goal"]
    if most is not None:
        memory += f" ({most / 1e6:.0f} {'met' if entry['extra_nbytes'][ours] <= most else 'MISSED'})"
    found = [f"{entry['case']:42}{entry['ms'][ours]:10.2f} ms   {memory}"]
    for peer, ratio in entry["times_faster"].items():
        goal = entry["goals"].get(peer)
        mark = "" if goal is None else f"   goal {goal:.3g} {'met' if ratio >= goal else 'MISSED'}"
        peer_memory = f"{entry['extra_nbytes'][peer] / 1e6:.0f} MB"
        found.append(f"    {peer:38}{entry['ms'][peer]:10.2f} ms   {peer_memory:>8}{ratio:9.2f} ×{mark}")
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
    tools = {"restic": "restic", "borg": "borg", "git-lfs": "git-lfs", "dvc": "dvc"}
    found["missing"] = [name for name, program in tools.items() if shutil.which(program) is None]
    found["when"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("prefixes", nargs="*", help="cases whose names begin so; all without, and the store")
    parser.add_argument("--quick", action="store_true", help="the essentials, two rounds: about two minutes")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path, default=RESULTS / "run.json")
    parser.add_argument("--folder", type=Path, help="where the files are made, 25 GB; a temporary one without")
    parser.add_argument("--copies", type=int, default=1, help="of the model of 45 MB in a checkpoint of the store")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (2 if options.quick else 5)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(options.json.read_text()) if options.json.exists() else {"rows": []}
    rows = {entry["case"]: entry for entry in kept["rows"]}
    noted: set[str] = set()
    missed = []

    every = [(group, case) for group in GROUPS for case in import_module(f"benchmarks.{group}").cases()]

    def write(**sections: Any) -> None:
        ordered = [rows[case.name] for _, case in every if case.name in rows]
        kept.update(environment=environment(), rows=ordered, **sections)
        partial = options.json.with_suffix(".partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n")
        partial.replace(options.json)

    def note(text: str) -> None:
        if text not in noted:
            noted.add(text)
            print(text, flush=True)

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for group, case in every:
            if options.prefixes and not case.name.startswith(tuple(options.prefixes)):
                continue
            if options.quick and not case.quick:
                continue
            if absent := [name for name in case.requires if version(name) is None]:
                note(f"{group}: needs {', '.join(absent)}, not installed")
                continue
            for library in sorted(case.actions.keys() - available(case)):
                note(f"{library}: not installed ({DISTRIBUTIONS[library]})")
            case.prepare(Path(folder))
            libraries = [name for name in available(case) if not options.quick or name not in SLOW]
            entry = row(group, case, measure(group, case, libraries, Path(folder), rounds), rounds)
            print("\n".join(lines(entry)), flush=True)
            rows[case.name] = entry
            missed += [] if entry["met"] else [case.name]
            write()
    if not options.quick and not options.prefixes:
        write(store=store(options.json.with_name("store.json"), options.copies))
    print(f"\nwritten: {options.json}; {'below a goal: ' + '; '.join(missed) if missed else 'every goal met'}")
