"""Coverage-guided fuzzing of the readers of files: `python fuzz/guided.py [SECONDS]`, or `make fuzz-guided`.

atheris keeps inputs that reach new code and mutates them further. The kernels run
interpreted, so that their branches count as well. The invariants are those of the targets
that take bytes; valid and mutated files of these targets are the first inputs. Each target
runs in a process of its own, since libFuzzer ends its process; a finding is printed, with
the file that it was written to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import import_module
from itertools import islice
from pathlib import Path

TARGETS = ("bintensors", "ztensor", "bson")
SEEDS = 300


def guide(name: str, folder: str, seconds: int) -> None:
    """Runs one target; does not return."""
    import atheris

    with atheris.instrument_imports(include=["tensorglot"]):
        import tensorglot  # noqa: F401
    target = import_module(name)
    for number, mutant in enumerate(islice(target.mutants(SEEDS, 1), SEEDS)):
        Path(folder, f"seed{number}").write_bytes(mutant)
    limits = [f"-max_total_time={seconds}", f"-artifact_prefix={name}-", "-timeout=10", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], folder, *limits, "-print_final_stats=1"], lambda data: target.check(data))
    atheris.Fuzz()


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    findings = 0
    for name in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--guide", name, folder, str(max(1, int(seconds / len(TARGETS))))]
            environment = {**os.environ, "TENSORGLOT_KERNELS": "interpreted"}
            run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        stats = dict(line.split(": ", 1) for line in run.stderr.splitlines() if line.startswith("stat::"))
        executions = int(stats.get("stat::number_of_executed_units", "0"))
        print(f"{name:<12} {executions:>12,} executions, {int(run.returncode != 0)} findings", flush=True)
        if run.returncode:
            findings += 1
            print("\n".join(run.stderr.splitlines()[-30:]))
    return int(findings > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guide"]:
        guide(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    sys.exit(main())
