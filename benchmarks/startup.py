"""Start-up: importing the package, the command line's help, and setting up a fresh clone.

The import is timed by the process that does it, so that starting Python, the same for
both, does not hide the difference. It imports `load` and `save`, because the package
itself imports nothing before one of its names is used. The first of several repeats
compiles both to byte code. `make demo` is measured in processor time, which a slow download
does not change; unpacking the download is included.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.case import Case, Counted

ROOT = Path(__file__).parents[1]
IMPORT = "import time; begun = time.perf_counter(); {}; print((time.perf_counter() - begun) * 1000)"


def importing(statement: str, folder: Path) -> Callable[[], Counted]:
    command = [sys.executable, "-c", IMPORT.format(statement)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def run() -> Counted:
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return Counted(ms=float(done.stdout))

    return run


def show_help(folder: Path) -> Callable[[], object]:
    return lambda: subprocess.run(
        [sys.executable, "-m", "tensorglot", "--help"], check=True, capture_output=True, text=True
    )


def check_help(folder: Path, library: str, result: subprocess.CompletedProcess[str]) -> None:
    assert "convert" in result.stdout


def make_demo(folder: Path) -> Callable[[], Counted]:
    home = tempfile.mkdtemp(dir=folder, prefix="saved")
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), home], check=True)
    inherited = {"MAKEFLAGS", "MAKELEVEL", "PYTHONPATH", "VIRTUAL_ENV"}  # of a `make bench` around this
    environment = {name: value for name, value in os.environ.items() if name not in inherited}

    def run() -> Counted:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["make", "-C", home, "demo"], check=True, capture_output=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Counted({"s of processors": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime})

    return run


def check_demo(folder: Path, library: str, result: object) -> None:
    (home,) = folder.glob("saved*")
    assert any((home / ".venv/demo").iterdir())


def nothing(folder: Path) -> None:
    """There are no files to prepare."""


def cases() -> list[Case]:
    packages = {
        "tensorglot": partial(importing, "from tensorglot import load, save"),
        "numpy": partial(importing, "import numpy"),
    }
    return [
        Case("import load and save", packages, nothing, 0, 5, {"numpy": 1 / 1.3}, check=check_import, quick=True),
        Case(
            "help of the command line",
            {"tensorglot": show_help},
            nothing,
            0,
            5,
            limits={"ms": 250},
            check=check_help,
            quick=True,
        ),
        Case(
            "make demo, fresh clone",
            {"tensorglot": make_demo},
            nothing,
            0,
            limits={"s of processors": 30},
            check=check_demo,
            requires=("git", "make", "cc"),
            rounds=1,
        ),
    ]


def check_import(folder: Path, library: str, result: Counted) -> None:
    assert result["ms"] > 0
