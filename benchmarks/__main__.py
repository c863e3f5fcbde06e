"""Runs the cases in turns and reports ratios."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import GROUPS
from benchmarks.case import Case


def measure(group: str, case: Case, folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The quickest of several rounds for each library, which take turns, and the most memory of them all."""
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for library in case.actions:
            command = [sys.executable, "-m", "benchmarks.measure", group, case.name, library, str(folder)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{case.name}, {library}:\n{done.stderr}")
            result = json.loads(done.stdout.splitlines()[-1])
            kept = best.setdefault(library, result)
            most = max(kept["extra_nbytes"], result["extra_nbytes"])
            best[library] = {"ms": min(kept["ms"], result["ms"]), "extra_nbytes": most}
    return best


def row(case: Case, results: dict[str, dict[str, float]]) -> dict[str, Any]:
    ours, *peers = case.actions
    mine = results[ours]["ms"]
    return {
        "case": case.name,
        "payload_nbytes": case.payload_nbytes,
        "ms": {library: round(result["ms"], 3) for library, result in results.items()},
        "extra_nbytes": {library: int(result["extra_nbytes"]) for library, result in results.items()},
        "times_faster": {peer: round(results[peer]["ms"] / mine, 2) for peer in peers},
        "goals": dict(case.goals),
        "extra_nbytes_goal": case.extra_nbytes,
        "met": all(results[peer]["ms"] / mine >= goal for peer, goal in case.goals.items())
        and (case.extra_nbytes is None or results[ours]["extra_nbytes"] <= case.extra_nbytes),
    }


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="times faster than each peer, in one run")
    for column in ("case", "ours", "peer", "times faster", "goal", "memory, ours / peer"):
        shown.add_column(column, justify="left" if column in ("case", "peer") else "right")
    for entry in rows:
        ours, *_ = entry["ms"]
        for i, (peer, ratio) in enumerate(entry["times_faster"].items()):
            goal = entry["goals"].get(peer)
            mark = "" if goal is None else f"{goal:.3g} {'met' if ratio >= goal else 'MISSED'}"
            memory = " / ".join(f"{entry['extra_nbytes'][library] / 1e6:.0f} MB" for library in (ours, peer))
            most = entry["extra_nbytes_goal"]
            if i == 0 and most is not None:
                memory += f", {most / 1e6:.0f} {'met' if entry['extra_nbytes'][ours] <= most else 'MISSED'}"
            first = (entry["case"], f"{entry['ms'][ours]:.2f} ms") if i == 0 else ("", "")
            shown.add_row(*first, f"{peer} {entry['ms'][peer]:.2f} ms", f"{ratio:.2f} ×", mark, memory)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("prefixes", nargs="*", help="cases whose names begin so; all without")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/results.json"))
    parser.add_argument("--folder", type=Path, help="where the files are made; a temporary one without")
    options = parser.parse_args()
    rows = []
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for group in GROUPS:
            for case in import_module(f"benchmarks.{group}").cases():
                if options.prefixes and not case.name.startswith(tuple(options.prefixes)):
                    continue
                console.print(case.name, highlight=False)
                case.prepare(Path(folder))
                rows.append(row(case, measure(group, case, Path(folder), options.rounds)))
    Console(width=None if sys.stdout.isatty() else 120).print(table(rows))
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
