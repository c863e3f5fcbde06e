"""A long run of races, faults and kills on stores: `python tests/store_campaign.py [ROUNDS]`, or `make store-campaign`.

ROUNDS (1,000) rounds of two writers beside a collector, as many examples of the state
machine, the machine on planted defects, and a kill at every file operation and at every
system call of each verb (with fewer rounds, at some of them). Each part ends with what it
went through and its time; the first that fails ends the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

FULL = 1000


def parts(rounds: int) -> dict[str, tuple[str, dict[str, str]]]:
    """The parts of the run: a name, tests, and the environment that makes them long."""
    return {
        f"{rounds:,} rounds of two writers and a collector": (
            "test_store_concurrency.py",
            {"TENSORGLOT_STORE_ROUNDS": str(rounds)},
        ),
        f"{rounds:,} examples of the state machine": (
            "test_store_machine.py",
            {"TENSORGLOT_STORE_EXAMPLES": str(rounds)},
        ),
        "the state machine on planted defects": ("test_store_machine_finds.py", {"TENSORGLOT_STORE_DEFECTS": "all"}),
        "a kill at every operation and system call" if rounds >= FULL else "a kill at some operations": (
            "test_store_kills.py",
            {"TENSORGLOT_STORE_KILLS": "all"} if rounds >= FULL else {},
        ),
    }


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else FULL
    folder = Path(__file__).parent
    for what, (tests, environment) in parts(rounds).items():
        print(f"{what} ({tests})", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:xdist", str(folder / tests)]
        done = subprocess.run(command, cwd=folder.parent, env={**os.environ, **environment})
        print(f"{'passed' if done.returncode == 0 else 'FAILED'} in {time.monotonic() - start:,.0f} s\n", flush=True)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
