"""The state machine of stores finds defects of collectors and writers: each is planted in a copy of the library.

TENSORGLOT_STORE_DEFECTS=all plants all of them; else the two that it finds soonest.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from defects import DEFECTS, Defect, run

MACHINE = "tests/test_store_machine.py::TestStore"

PLANTED = {
    "what is condemned stays condemned": DEFECTS[10],
    "a collector does not ask which writers rely on a pack": Defect(
        "writers' notes are not read",
        "store/collect.py",
        " and all(pack in note.split() for note in writers.values()):",
        ":",
        MACHINE,
    ),
    "the bases of deltas are garbage": Defect(
        "bases are not followed",
        "store/collect.py",
        "            wanted += [] if base is None else [(base, homes)]\n",
        "",
        MACHINE,
    ),
    "a writer relies on what is condemned": Defect(
        "condemned packs are not hidden",
        "store/session.py",
        "packs.without(hidden)",
        "packs",
        MACHINE,
    ),
    "a ref is not compared before it is replaced": Defect(
        "a lost update",
        "store/backend.py",
        "            if self.get(key) != old:\n",
        "            if old is not None and self.get(key) is None:\n",
        MACHINE,
    ),
    "damage is not marked": Defect(
        "damage is not marked",
        "store/check.py",
        "        _mark(backend, packs, damage)\n",
        "",
        MACHINE,
    ),
}


SOON = ("what is condemned stays condemned", "the bases of deltas are garbage")


@pytest.mark.parametrize("what", PLANTED if os.environ.get("TENSORGLOT_STORE_DEFECTS") == "all" else SOON)
def test_the_machine_finds(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORGLOT_STORE_EXAMPLES", "1000")  # until it is found
    monkeypatch.setenv("TENSORGLOT_STORE_SHRINK", "no")
    failed, said = run(PLANTED[what], tmp_path, [MACHINE])
    assert failed, said
