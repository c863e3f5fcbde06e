"""Every promise of docs/trust.md names tests that exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from promises import promises


def test_there_are_fourteen_promises_and_each_has_a_figure() -> None:
    found = promises()
    assert list(found) == list(range(1, 15))
    assert all(any(letter.isdigit() for letter in figure) for _, _, figure in found.values())


def test_every_command_collects_tests() -> None:
    nodes = sorted({node for _, tests, _ in promises().values() for node in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *nodes]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for node in nodes:
        assert node in done.stdout, f"{node} collects nothing"
