"""The promises of docs/trust.md and their tests: `python tests/promises.py` runs each and prints a table."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["PAGE", "promises"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trust.md"
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| `pytest ([^`]+)` \| (.+?) \|$", re.MULTILINE)


def promises() -> dict[int, tuple[str, list[str], str]]:
    """By number: what is promised, the arguments of pytest, the number of tests."""
    return {
        int(number): (text, command.split(), figure)
        for number, text, command, figure in _ROW.findall(PAGE.read_text("utf-8"))
    }


def main() -> int:
    failed = 0
    for number, (text, tests, _) in promises().items():
        start = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        failed += done.returncode != 0
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-200:]
        print(f"{number:2} {last} ({time.monotonic() - start:.0f} s): {text}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
