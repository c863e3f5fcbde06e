"""Fails every function that writes at each file operation: then the old state is intact, or the new one complete.

The functions of `os` itself are replaced, so that nothing of ours escapes: readers,
writers, spools and directories. One operation of a run fails, N = 1, 2, … until a run has
none left to fail. Afterwards the folder has exactly the entries and bytes of before or
of a run without a fault. A kill is the same with SIGKILL in a forked process, at every
operation that changes something; a temporary file may stay then, and nothing else.
`python tests/fault_sweeps.py` runs all actions with every errno, a migration in MongoDB
included, and prints how many faults struck and how many processes were killed.
`python tests/fault_sweeps.py system-calls` kills each action at every system call that
changes something, through strace, in a fork: also between what Python does.

Removing is not failed: a file that cannot be removed stays, whoever made it.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import migration_sweeps
import mongod
import store_actions
import tensorglot as tg
from stores import stray_files
from tensorglot import report
from tensorglot.io.sink import is_temporary
from tensorglot.store import Store
from traced import CALLS, TracedCall

__all__ = [
    "ACTIONS",
    "CHANGING",
    "ERRNOS",
    "STORE",
    "Struck",
    "kill",
    "kill_at_calls",
    "operations",
    "prepare",
    "sweep",
    "sweep_store",
    "tree",
]

ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EINTR)
OPERATIONS = (
    "chmod", "close", "copy_file_range", "fchmod", "fchown", "fstat", "fsync", "ftruncate", "link", "mkdir", "open",
    "posix_fallocate", "pread", "preadv", "pwrite", "rename", "stat", "truncate", "write",
)  # fmt: skip
CHANGING = frozenset(OPERATIONS) - {"close", "fstat", "pread", "preadv", "stat"} | {"unlink", "rmdir", "replace"}
"""What a kill can interrupt between one state and another."""
ROOM = 140_000
"""Elements: a file of them is large enough to be preallocated."""

Action = Callable[[Path], object]


class Struck(OSError):
    """The injected fault."""


@contextmanager
def operations(
    before: Callable[[int, str], OSError | None], names: Collection[str] = OPERATIONS
) -> Iterator[list[str]]:
    """Calls `before` with number and name of each file operation, whose error is raised instead of doing it."""
    calls: list[str] = []
    real = {name: getattr(os, name) for name in names}
    numbering = threading.Lock()

    def wrap(name: str) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            with numbering:
                calls.append(name)
                number = len(calls)
            error = before(number, name)
            if error is None or name == "close":  # a close that fails has closed, as on Linux
                result = real[name](*arguments, **options)
            if error is not None:
                raise error
            return result

        return operation

    for name in real:
        setattr(os, name, wrap(name))
    try:
        yield calls
    finally:
        for name, function in real.items():
            setattr(os, name, function)


Tree = dict[str, bytes | None]


def tree(folder: Path) -> Tree:
    """Everything below a folder, hidden entries included; a directory has no bytes."""
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")}


# What is there before

OLD = {"w": np.arange(700, dtype=np.float64), "b": np.ones(5, np.float32)}
NEW = {"w": np.arange(ROOM, dtype=np.float64)[::-1].copy(), "b": np.zeros(5, np.float32)}
FILES = ("model.bt", "model.zt", "model.npz", "model.safetensors", "model.gguf", "model.dynd")
SUMMED = ("summed.bt", "summed.zt")
"""With a sidecar of checksums."""


def prepare(folder: Path) -> None:
    """A file of each format, a second source, a delta and a store."""
    folder.mkdir()
    for name in FILES:
        tg.save(folder / name, OLD, durable=False)
    tg.save(folder / "new.bt", NEW, durable=False)
    for name in SUMMED:
        tg.save(folder / name, OLD, checksum=None, durable=False)
        tg.verify(folder / name, sums="write")
    tg.save(folder / "third.bt", {"c": np.arange(7)}, durable=False)
    tg.store.delta(OLD, {**OLD, "b": NEW["b"]}, folder / "step.tgdelta", durable=False)
    (folder / "other.tgdelta").write_bytes(b"old")
    (folder / "page.html").write_text("old")
    Store.create(folder / "store").commit("main", {"b": OLD["b"]})
    (folder / "part.car").write_bytes(b"old")


def write(name: str) -> Action:
    def action(folder: Path) -> None:
        with tg.Writer(folder / name) as out:
            out.add("b", NEW["b"])
            with out.stream("w", "float64", (ROOM,)) as stream:
                for start in range(0, ROOM, ROOM // 4):
                    stream.write(NEW["w"][start : start + ROOM // 4])

    return action


def append(folder: Path) -> None:
    with tg.Writer(folder / "model.zt", append=True) as out:
        out.add("c", np.arange(7))


def bundle(folder: Path) -> None:
    with Store(folder / "store") as store:
        store.bundle(folder / "part.car", "main")


ACTIONS: dict[str, Action] = {
    **{f"save {name}": lambda folder, name=name: tg.save(folder / name, NEW) for name in FILES},
    "save zstd": lambda folder: tg.save(folder / "model.zt", NEW, compression="zstd"),
    "save a new file": lambda folder: tg.save(folder / "none.bt", NEW),
    **{f"Writer {name}": write(name) for name in ("model.bt", "model.zt", "model.npz")},
    **{f"convert to {name}": lambda folder, name=name: tg.convert(folder / "new.bt", folder / name) for name in FILES},
    "convert in place": lambda folder: tg.convert(folder / "model.zt", folder / "model.zt", dtype="float32"),
    "convert and cast": lambda folder: tg.convert(
        folder / "new.bt", folder / "model.zt", dtype={"w": "float32"}, compression="zstd"
    ),
    **{f"edit {name}": lambda folder, name=name: tg.edit(folder / name, {"a": "b"}) for name in FILES[:2] + FILES[3:5]},
    "edit in place": lambda folder: tg.edit(folder / "model.zt", {"a": "b"}, in_place=True),
    "replace": lambda folder: tg.edit(folder / "model.zt", replace={"w": NEW["w"]}),
    "drop": lambda folder: tg.edit(folder / "model.bt", drop=["w"]),
    "add": lambda folder: tg.edit(folder / "model.zt", add={"c": np.arange(7)}),
    "append": append,
    "split": lambda folder: tg.split(folder / "model.bt", folder / "shards", shard_nbytes=1000),
    "merge": lambda folder: tg.merge([folder / "model.bt", folder / "third.bt"], folder / "model.zt"),
    "merge in place": lambda folder: tg.merge([folder / "model.bt", folder / "third.bt"], folder / "model.bt"),
    "sidecar": lambda folder: tg.verify(folder / "model.bt", sums="write"),
    "save beside a sidecar": lambda folder: tg.save(folder / "summed.bt", NEW),
    "convert beside a sidecar": lambda folder: tg.convert(folder / "new.bt", folder / "summed.bt", sums=True),
    "patch beside a sidecar": lambda folder: tg.store.patch(
        folder / "step.tgdelta", folder / "summed.bt", folder / "summed.bt"
    ),
    "edit beside a sidecar": lambda folder: tg.edit(folder / "summed.bt", {"a": "b"}),
    "edit in place beside a sidecar": lambda folder: tg.edit(folder / "summed.zt", {"a": "b"}, in_place=True),
    "delta": lambda folder: tg.store.delta(folder / "model.bt", folder / "new.bt", folder / "other.tgdelta"),
    "patch": lambda folder: tg.store.patch(folder / "step.tgdelta", folder / "model.bt", folder / "model.zt"),
    "patch in place": lambda folder: tg.store.patch(folder / "step.tgdelta", folder / "model.bt", folder / "model.bt"),
    "report": lambda folder: report.write(folder / "model.bt", folder / "page.html"),
    "bundle": bundle,
}


def between(name: str, before: Tree, after: Tree, *, killed: bool) -> list[Tree]:
    """Further states that an action may be interrupted in: a file whose sidecar is about to be removed or written.

    A sidecar is never beside a file that it does not describe.
    """
    if not name.endswith("beside a sidecar"):
        return []
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    old, new = (
        {path: state[path] for path in state if path not in changed or path[-5:] != ".sums"}
        for state in (before, after)
    )
    # A fault before the file has changed is undone. One in the new sidecar leaves the new file without one,
    # one that is undone in place the old file.
    return [old, new] if killed or "in place" in name else [new]


def copy(source: Path, target: Path) -> None:
    """A copy of the prepared folder."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def sweep(folder: Path, name: str, errnos: tuple[int, ...], every: int = 1) -> Counter[str]:
    """Fails each operation of an action with each errno, or every so many of them. Counts what was struck."""
    action, start, work = ACTIONS[name], folder / "start", folder / "work"
    before = tree(start)
    copy(start, work)
    with operations(lambda *_: None) as calls:
        action(work)
    after = tree(work)
    assert before != after, "it changes nothing"
    states = between(name, before, after, killed=False)
    struck: Counter[str] = Counter()
    for turn, number in enumerate(errnos):
        for strike in range(1 + turn * every // len(errnos), len(calls) + 1, every):
            copy(start, work)
            fault = Struck(number, os.strerror(number))
            raised = False
            with operations(lambda n, _, at=strike, error=fault: error if n == at else None) as made:
                try:
                    action(work)
                except OSError as error:
                    raised = True
                    assert error is fault or error.errno == number, (name, strike, error)  # noqa: PT017
                except tg.TensorglotError:
                    raised = True
            if len(made) < strike:
                continue  # threads made fewer calls this time
            struck[made[strike - 1]] += 1
            now = tree(work)
            where = (name, errno.errorcode[number], strike, made[strike - 1])
            assert now in (before, after, *states), (*where, sorted(now.keys() ^ before.keys()))
            assert raised or now == after, (*where, "acknowledged, and not done")
    return struck


def _kill_at(strike: int, number: int, _: str) -> None:
    if number == strike:
        os.kill(os.getpid(), signal.SIGKILL)


def kill(folder: Path, name: str, every: int = 1) -> int:
    """Kills an action at every operation that changes something, or every so many. Returns how often."""
    action, start, work = ACTIONS[name], folder / "start", folder / "work"
    before = tree(start)
    copy(start, work)
    action(work)
    after = tree(work)
    states = between(name, before, after, killed=True)
    outcomes: list[bool] = []
    while True:
        copy(start, work)
        strike = 1 + every * len(outcomes)
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                with operations(partial(_kill_at, strike), CHANGING):
                    action(work)
                os._exit(0)
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL), (name, strike, code)
        now = {path: data for path, data in tree(work).items() if not is_temporary(path.partition(os.sep)[0])}
        assert now in (before, after, *states), (name, strike, sorted(now.keys() ^ before.keys()))
        if code == 0:
            assert now == after, (name, "ended, and not done")
            break
        outcomes.append(now == after)
    assert outcomes == sorted(outcomes), (name, "what has taken place is undone")
    return len(outcomes)


def kill_at_calls(folder: Path, name: str, every: int = 1) -> int:
    """Kills an action at every system call that changes something, or every so many. Returns how often."""
    start, work = folder / "start", folder / "work"
    action = TracedCall(lambda: ACTIONS[name](work), f"{CALLS},flock,mkdir,rmdir,unlink,write")
    before = tree(start)
    copy(start, work)
    calls = action.system_calls()
    after = tree(work)
    assert before != after, "it changes nothing"
    states = between(name, before, after, killed=True)
    outcomes = []
    for at in range(every // 2, len(calls), every):
        copy(start, work)
        action.kill(calls, at)
        now = {path: data for path, data in tree(work).items() if not is_temporary(path.partition(os.sep)[0])}
        assert now in (before, after, *states), (name, at, calls[at], sorted(now.keys() ^ before.keys()))
        outcomes.append(now == after)
    assert outcomes == sorted(outcomes), (name, "what has taken place is undone")
    return len(outcomes)


def kill_store_at_calls(folder: Path, action: str, every: int = 1) -> int:
    """`kill_at_calls` for a store."""
    start, work = folder / "prepared", folder / "work"
    traced = TracedCall(lambda: store_actions.ACTIONS[action](work), STORE_CALLS)
    copy(start, work)
    calls = traced.system_calls()
    outcomes = []
    for at in range(every // 2, len(calls), every):
        copy(start, work)
        traced.kill(calls, at)
        outcomes.append(store_actions.assert_intact(work, action, done=False))
    assert outcomes == sorted(outcomes), (action, "what has taken place is undone")
    return len(outcomes)


STORE = tuple(store_actions.ACTIONS)
STORE_CALLS = f"{CALLS},mkdir,unlink,flock"


def sweep_store(folder: Path, action: str, errnos: tuple[int, ...], every: int = 1) -> Counter[str]:
    """`sweep` for a store, whose bytes differ from run to run: all commits are there, all checks are clean."""
    start, work = folder / "prepared", folder / "work"
    struck: Counter[str] = Counter()
    for turn, number in enumerate(errnos):
        strike = 1 + turn * every // len(errnos)
        while True:
            copy(start, work)
            fault = Struck(number, os.strerror(number))
            raised = False
            with operations(lambda n, _, at=strike, error=fault: error if n == at else None) as made:
                try:
                    store_actions.ACTIONS[action](work)
                except (OSError, tg.TensorglotError):
                    raised = True
            if len(made) < strike:
                break
            at = made[strike - 1]
            struck[at] += 1
            left = [name for name in stray_files(work / "here") + stray_files(work / "there") if name.endswith(".tmp")]
            assert left == [], (action, strike, at, left)
            store_actions.assert_intact(work, action, done=not raised)
            strike += every
    return struck


def sweep_migration(folder: Path) -> tuple[Counter[str], int]:
    """`sweep` for a migration in MongoDB, at its network operations."""
    import pymongo

    folder.mkdir()
    with mongod.serve(folder) as url, pymongo.MongoClient(url) as client:
        collection = client["tensorglot"]["faults"]
        return migration_sweeps.sweep(url, collection), len(migration_sweeps.kill(url, collection))


def main_system_calls(folder: Path) -> None:
    total = 0
    for kind, actions, kill_one in (("", ACTIONS, kill_at_calls), ("store ", STORE, kill_store_at_calls)):
        for action in actions:
            kills = kill_one(folder, action)
            total += kills
            print(f"{kills:4} kills  {kind}{action}", flush=True)
    print(f"{total:4} kills at system calls")


def main() -> None:
    total: Counter[str] = Counter()
    kills = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder / "start")
        store_actions.prepare(folder / "prepared")
        if sys.argv[1:] == ["system-calls"]:
            main_system_calls(folder)
            return
        for action in ACTIONS:
            struck, killed = sweep(folder, action, ERRNOS), kill(folder, action)
            print(f"{struck.total():6} faults {killed:4} kills  {action}", flush=True)
            total, kills = total + struck, kills + killed
        for action in STORE:
            struck = sweep_store(folder, action, ERRNOS)
            killed = len(store_actions.kill_everywhere(folder, action)) - 1
            print(f"{struck.total():6} faults {killed:4} kills  store {action}", flush=True)
            total, kills = total + struck, kills + killed
        struck, killed = sweep_migration(folder / "mongod")
        print(f"{struck.total():6} faults {killed:4} kills  migrate", flush=True)
        total, kills = total + struck, kills + killed
    print(f"{total.total():6} faults {kills:4} kills: " + ", ".join(f"{n} {name}" for name, n in total.most_common()))


if __name__ == "__main__":
    main()
