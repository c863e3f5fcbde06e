"""The actions that tests interrupt: the verbs of a store that write, always on the same store.

`prepare` makes a folder with a store, another one to push to, and a bundle for it. An
action changes it; `assert_intact` holds whatever happened to the action. As a program:
`python store_actions.py FOLDER ACTION` does one, and `python store_actions.py FOLDER ACTION N`
kills it at every Nth of its file operations in turn, each time on a copy of FOLDER/prepared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stores import assert_clean, same_tensors, step, stray_files
from tensorglot.io import sink
from tensorglot.store import Store, backend

__all__ = ["ACTIONS", "FIRST", "NEW", "SECOND", "assert_intact", "kill_everywhere", "prepare"]


def _tensors(seed: int) -> dict[str, Any]:
    big = np.random.default_rng(seed).normal(0, 1, 300_000).astype(np.float32)
    return {"big": big, "small": np.arange(seed, 3000), "tiny": np.int8(seed)}


FIRST = _tensors(1)
SECOND = step(FIRST, 2)
NEW = step(SECOND, 3)
GARBAGE = _tensors(4)


def prepare(folder: Path) -> None:
    """Commits, a pack that nothing needs, one that is condemned, another store that lacks the last commit."""
    here = Store.create(folder / "here")
    Store.create(folder / "there")
    here.commit("main", FIRST)
    here.push(folder / "there")
    first = here.commit("gone", {"x": np.arange(999)})
    here.delete("gone")
    here.collect()  # condemned, and removed by the next one
    assert here.show(first.cid)
    here.commit("main", SECOND)
    here.bundle(folder / "part.car", "main", have=here.log("main")[1].cid)
    here.commit("gone", GARBAGE)
    here.delete("gone")


def commit(folder: Path) -> None:
    Store(folder / "here").commit("main", NEW)


def collect(folder: Path) -> None:
    Store(folder / "here").collect(0)


def repack(folder: Path) -> None:
    Store(folder / "here").repack(0)


def push(folder: Path) -> None:
    Store(folder / "here").push(folder / "there")


def unbundle(folder: Path) -> None:
    Store(folder / "there").unbundle(folder / "part.car")


def tag(folder: Path) -> None:
    Store(folder / "here").tag("v1", "main")


ACTIONS: dict[str, Callable[[Path], None]] = {
    action.__name__: action for action in (commit, collect, repack, push, unbundle, tag)
}


def assert_intact(folder: Path, action: str, *, done: bool) -> bool:
    """Both stores are clean and have what they had; returns whether the action took place."""
    here, there = Store(folder / "here"), Store(folder / "there")
    log = here.log("main")
    assert len(log) in (2, 3)
    for made, expected in zip(reversed(log), (FIRST, SECOND, NEW), strict=False):
        assert same_tensors(here.checkout(made.cid), expected)
    pushed = there.log("main")
    for made, expected in zip(reversed(pushed), (FIRST, SECOND), strict=False):
        assert same_tensors(there.checkout(made.cid), expected)
    arrived = len(pushed) == 2
    outcomes = {"commit": len(log) == 3, "push": arrived, "unbundle": arrived, "tag": "v1" in here.refs()}
    happened = outcomes.get(action, done)
    assert happened or not done, "acknowledged, and lost"
    for root in (folder / "here", folder / "there"):
        assert_clean(Store(root))
        Store(root).collect(0)
        assert stray_files(root) == []
        assert_clean(Store(root))
    return happened


class KillingOs:
    """Stands in for `os`: kills this process at one call of what changes a file system."""

    CHANGING = frozenset(
        {"open", "makedirs", "pwrite", "fsync", "ftruncate", "fchmod", "link", "rename", "unlink", "posix_fallocate"}
    )

    def __init__(self, strike: int) -> None:
        self.strike, self.count = strike, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CHANGING:
            return real

        def operation(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.strike:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return operation


def kill_everywhere(folder: Path, action: str, every: int = 1) -> list[bool]:
    """Kills the action at every `every`th operation until it comes to its end; for each whether it had taken place."""
    outcomes: list[bool] = []
    while True:
        work = folder / f"{action}-{len(outcomes)}"
        shutil.copytree(folder / "prepared", work)
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                killing = KillingOs(1 + every * len(outcomes))
                sink.os = backend.os = killing  # type: ignore[assignment]
                ACTIONS[action](work)
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), status
        ended = os.waitstatus_to_exitcode(status) == 0
        outcomes.append(assert_intact(work, action, done=ended))
        shutil.rmtree(work)
        if ended:
            return outcomes


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(*map(int, kill_everywhere(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
    else:
        ACTIONS[sys.argv[2]](Path(sys.argv[1]))
