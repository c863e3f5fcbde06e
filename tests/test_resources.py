"""Every hostile file in every use, in a child with limits on memory and time: our errors and OSError, nothing else.

A slice of all pairs of a file and a use, in one child, and a larger one of the files that
are accepted. TENSORGLOT_RESOURCES=all tries every pair, with a child for each family and
several for the densest files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from figures import seen
from hostile import FAMILIES
from peers import needs

ALL = os.environ.get("TENSORGLOT_RESOURCES") == "all"
PROGRAM = Path(__file__).with_name("resources.py")
PARTS = 8
GROUPS: dict[str, tuple[str, list[str]]] = (
    {
        **{family: ("1", [family]) for family in FAMILIES if family != "densest"},
        **{f"densest {part}": (f"{part}/{PARTS}", ["densest"]) for part in range(PARTS)},
    }
    if ALL
    else {"a slice": ("149", [family for family in FAMILIES if family != "heavy"]), "heavy": ("19", ["heavy"])}
)


@pytest.mark.parametrize("group", GROUPS)
def test_every_use_of_every_hostile_file_is_bounded(group: str) -> None:
    needs("h5py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    every, families = GROUPS[group]
    command = [sys.executable, "-W", "error", str(PROGRAM), every, *families]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800)
    assert done.returncode == 0, f"exit {done.returncode} at {done.stderr[-2000:]}"
    *findings, figures = map(json.loads, done.stdout.splitlines())
    assert findings == []
    assert figures["uses"] > 100
    seen("hostile files", figures["cases"])
    seen("uses of them", figures["uses"])
