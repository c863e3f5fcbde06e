"""The promises of docs/trust.md and their commands: `python tests/promises.py [NUMBER]... [update | defects]`.

Runs the command of each promise and prints what it has gone through. `update` writes the
figures into the page; `defects` plants the defect of each promise in a copy of the library
instead, on which its command must fail.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import LABEL

__all__ = ["PAGE", "promises"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trust.md"
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| `pytest ([^`]+)` \| (.+?) \|$", re.MULTILINE)


def promises() -> dict[int, tuple[str, list[str], str]]:
    """By number: what is promised, the arguments of pytest, the figure last seen."""
    return {
        int(number): (text, command.split(), figure)
        for number, text, command, figure in _ROW.findall(PAGE.read_text("utf-8"))
    }


def figure(output: str) -> str:
    """What the command has gone through, from what pytest says: `120 tests, 4,000 faults`."""
    passed = re.search(r"(\d+) passed", output)
    tests = f"{int(passed[1]) if passed else 0:,} tests"
    counted = [line.removeprefix(LABEL) for line in output.splitlines() if line.startswith(LABEL)]
    return ", ".join([tests, *counted])


def show(number: int) -> tuple[bool, str]:
    """Runs the command of a promise: whether it holds, and the figure."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *promises()[number][1]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-1000:])
    return done.returncode == 0, figure(done.stdout)


def write_figures(found: dict[int, str]) -> None:
    def row(match: re.Match[str]) -> str:
        number, text, command, old = match.groups()
        return f"| {number} | {text} | `pytest {command}` | {found.get(int(number), old)} |"

    PAGE.write_text(_ROW.sub(row, PAGE.read_text("utf-8")), "utf-8")


def main() -> int:
    words = sys.argv[1:]
    numbers = [int(word) for word in words if word.isdigit()] or list(promises())
    failed, found = 0, {}
    for number in numbers:
        text, tests, _ = promises()[number]
        start = time.monotonic()
        if "defects" in words:
            from defects import DEFECTS, run

            with tempfile.TemporaryDirectory() as folder:
                right, said = run(DEFECTS[number], Path(folder), tests)
            shown = f"{DEFECTS[number].what}: {'fails' if right else 'NOT NOTICED ' + said}"
        else:
            right, shown = show(number)
            found[number] = shown
        failed += not right
        print(f"{number:2} {shown} ({time.monotonic() - start:.0f} s): {text}", flush=True)
    if "update" in words and not failed:
        write_figures(found)
    return failed


if __name__ == "__main__":
    sys.exit(main())
