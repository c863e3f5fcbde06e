"""Runs one of the separate programs and keeps its output: `python -m benchmarks record dcp 420 2 3`.

The output appears as it comes, and is kept with its command, time, commit and load in
benchmarks/results/programs.json, from where `publish` takes it into the pages.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime

from benchmarks.run import RESULTS, commit

__all__ = ["PROGRAMS", "main"]

PROGRAMS = ("dcp", "recall", "size_model", "store_scale", "vectors_scale")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks record", description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    options = parser.parse_args(arguments)
    words = ["-m", f"benchmarks.{options.program}", *options.arguments]
    lines = []
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(process.returncode)
    path = RESULTS / "programs.json"
    kept = json.loads(path.read_text()) if path.exists() else {"programs": {}}
    kept["programs"][options.program] = {
        "command": f"python {' '.join(words)}",
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "load": round(os.getloadavg()[0], 1),
        "output": "".join(lines).strip(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1) + "\n")
