"""Every promise of docs/trust.md has a command that exists, a figure, and a defect that makes the command fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from defects import DEFECTS, run
from promises import figure, promises


def test_there_are_fourteen_promises_and_each_has_a_figure() -> None:
    found = promises()
    assert list(found) == list(range(1, 15)) == list(DEFECTS)
    assert all(any(letter.isdigit() for letter in figure) for _, _, figure in found.values())


def test_every_command_collects_tests() -> None:
    nodes = sorted({node for _, tests, _ in promises().values() for node in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *nodes]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for node in nodes:
        assert node in done.stdout, f"{node} collects nothing"


@pytest.mark.parametrize("number", DEFECTS)
def test_a_defect_in_a_copy_makes_the_command_fail(number: int, tmp_path: Path) -> None:
    test = DEFECTS[number].test
    assert any(test.startswith(node) for node in promises()[number][1]), "not a test of the command"
    failed, said = run(DEFECTS[number], tmp_path, [test])
    assert failed, said


def test_figures_are_what_pytest_says() -> None:
    assert figure("...\nfigures: 3 bits, 1,000 faults\n1234 passed, 1 skipped in 3.0s") == (
        "1,234 tests, 3 bits, 1,000 faults"
    )
    assert figure("2 passed in 1s") == "2 tests"
