"""A fault or a kill at any file operation of what writes: the old state is identical, or the new one complete.

TENSORGLOT_FAULTS=all fails every operation with every errno, as `make faults` does.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import store_actions
from fault_sweeps import (
    ACTIONS,
    ERRNOS,
    OPERATIONS,
    STORE,
    kill,
    kill_at_calls,
    operations,
    prepare,
    sweep,
    sweep_store,
)
from figures import seen

EVERY, EVERY_OF_STORE = (1, 1) if os.environ.get("TENSORGLOT_FAULTS") == "all" else (25, 250)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    prepare(folder / "start")
    store_actions.prepare(folder / "prepared")
    return folder


@pytest.mark.parametrize("action", ACTIONS)
def test_a_fault_in_a_file(action: str, prepared: Path) -> None:
    struck = sweep(prepared, action, ERRNOS, EVERY).total()
    seen("faults", struck)
    assert struck >= 3


@pytest.mark.parametrize("action", ACTIONS)
def test_a_kill_in_a_file(action: str, prepared: Path) -> None:
    kills = kill(prepared, action, 1 if EVERY == 1 else 5)
    seen("kills", kills)
    assert kills >= 1


@pytest.mark.parametrize("action", ["convert to model.zt", "edit model.zt", "split", "merge", "patch", "bundle"])
def test_a_kill_at_a_system_call(action: str, prepared: Path) -> None:
    """`python tests/fault_sweeps.py system-calls` has all of them, of all actions."""
    kills = kill_at_calls(prepared, action, 1 if EVERY == 1 else 9)
    seen("kills", kills)
    assert kills >= 1


@pytest.mark.parametrize("action", STORE)
def test_a_fault_in_a_store(action: str, prepared: Path) -> None:
    struck = sweep_store(prepared, action, ERRNOS, EVERY_OF_STORE).total()
    seen("faults", struck)
    assert struck >= 1


def test_every_file_operation_of_the_library_is_failed() -> None:
    """What is left out reads names, or removes, or has no errno that a disk gives."""
    source = Path(str(store_actions.sink.__file__)).parents[1]
    used = set()
    for path in source.rglob("*.py"):
        used |= set(re.findall(r"\bos\.([a-z_]+)\(", path.read_text()))
    left_out = {
        "_exit", "access", "cpu_count", "dup", "dup2", "fsdecode", "fsencode", "fspath", "fstatvfs", "getcwd", "getpid",
        "isatty", "kill", "listdir", "lseek", "lstat", "makedirs", "replace", "scandir", "sched_getaffinity",
        "strerror", "sysconf", "unlink", "urandom",
    }  # fmt: skip
    assert used - left_out <= set(OPERATIONS)


def test_operations_are_seen_wherever_they_are_made(tmp_path: Path) -> None:
    with operations(lambda *_: None) as calls:
        (tmp_path / "a").mkdir()
        (tmp_path / "a").rename(tmp_path / "b")
        os.close(os.open(tmp_path, os.O_RDONLY))
    assert calls == ["mkdir", "rename", "open", "close"]
