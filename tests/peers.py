"""Other implementations, each in an environment of its own.

The real packages pin versions that collide, so a comparison runs as a script under
the peer's interpreter. TENSORGLOT_PEERS names the folder that holds their
environments; `.ci/peers` makes it. Without it a comparison is skipped with a reason,
and with TENSORGLOT_REQUIRE=all it fails.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path
from typing import Any, NoReturn

import pytest

__all__ = ["EXTERNAL", "missing", "needs", "peer", "run"]

EXTERNAL = Path(os.environ.get("TENSORGLOT_EXTERNAL", Path(__file__).parents[2] / "shared" / "external"))
"""Public test suites of others, used in place."""


def missing(reason: str) -> NoReturn:
    """Skips, or fails where everything is required."""
    if os.environ.get("TENSORGLOT_REQUIRE") == "all":
        pytest.fail(f"required, and missing: {reason}")
    pytest.skip(reason, allow_module_level=True)


def needs(module: str) -> Any:
    """An optional library of this environment."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        missing(f"{module} is not installed")


def peer(name: str) -> Path:
    """The interpreter of a peer's environment."""
    folder = os.environ.get("TENSORGLOT_PEERS")
    if folder is None:
        missing("TENSORGLOT_PEERS is not set")
    python = Path(folder) / name / "bin" / "python"
    if not python.exists():
        missing(f"no environment {name}")
    return python


def run(name: str, script: str, *arguments: str | Path, timeout: float = 300) -> str:
    """Runs a script under a peer's interpreter and returns what it printed."""
    command = [str(peer(name)), "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout
