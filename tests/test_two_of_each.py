"""Two writers of one file, whatever they are: what both report is what is there, and nothing is left beside it.

One runs in the middle of the other, before its operation 1, 2, …. If both report success
the file is as if they had run one after the other; if one does, as if it had run alone;
if none does, as it was. The rename itself is left out: the directory is locked from the
check of the target until then, and the one in the middle would wait for its host.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from fault_sweeps import operations, tree
from stores import assert_clean, same_tensors, stray_files
from tensorglot import report
from tensorglot.io import in_place
from tensorglot.store import Store

ALL = os.environ.get("TENSORGLOT_FAULTS") == "all"
EVERY = 1 if ALL else 9
OLD = {"w": np.arange(900, dtype=np.float32), "b": np.ones(5, np.float32)}
ONE = {"w": np.full(900, 1, np.float32), "b": np.full(5, 1, np.float32)}
TWO = {"w": np.full(700, 2, np.float32), "c": np.full(5, 2, np.float32)}

Write = Callable[[Path], object]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that appends waits for others, who here wait for it."""
    monkeypatch.setattr(in_place, "PATIENCE_SECONDS", 0.02)


def append(folder: Path) -> None:
    with tg.Writer(folder / "model.zt", append=True, durable=False) as out:
        out.add("appended", np.arange(7))


def write(folder: Path) -> None:
    with tg.Writer(folder / "model.zt", durable=False) as out:
        out.add("w", TWO["w"])


def sidecar(folder: Path) -> None:
    tg.verify(folder / "model.zt", sums="write")


WRITERS: dict[str, Write] = {
    "save": lambda folder: tg.save(folder / "model.zt", ONE, durable=False),
    "save another": lambda folder: tg.save(folder / "model.zt", TWO, compression="zstd", durable=False),
    "Writer": write,
    "append": append,
    "edit": lambda folder: tg.edit(folder / "model.zt", {"edited": "x" * 50}, durable=False),
    "edit in place": lambda folder: tg.edit(folder / "model.zt", {"placed": "y"}, in_place=True, durable=False),
    "replace": lambda folder: tg.edit(folder / "model.zt", replace={"w": TWO["w"]}, durable=False),
    "drop": lambda folder: tg.edit(folder / "model.zt", drop=["w"], durable=False),
    "convert": lambda folder: tg.convert(folder / "one.bt", folder / "model.zt", durable=False),
    "convert in place": lambda folder: tg.convert(
        folder / "model.zt", folder / "model.zt", dtype="float64", durable=False
    ),
    "merge": lambda folder: tg.merge([folder / "one.bt"], folder / "model.zt", durable=False),
    "merge in place": lambda folder: tg.merge(
        [folder / "model.zt", folder / "c.bt"], folder / "model.zt", durable=False
    ),
    "patch": lambda folder: tg.store.patch(
        folder / "step.tgdelta", folder / "old.bt", folder / "model.zt", durable=False
    ),
    "split": lambda folder: tg.split(folder / "one.bt", folder / "shards", shard_nbytes=1000, durable=False),
    "split another": lambda folder: tg.split(folder / "old.bt", folder / "shards", durable=False),
    "delta": lambda folder: tg.store.delta(OLD, ONE, folder / "new.tgdelta", durable=False),
    "delta another": lambda folder: tg.store.delta(ONE, OLD, folder / "new.tgdelta", durable=False),
    "report": lambda folder: report.write(folder / "one.bt", folder / "page.html"),
    "report another": lambda folder: report.write(folder / "old.bt", folder / "page.html"),
}
SEPARATE = ("split", "delta", "report")
"""These have a target of their own."""


def pairs() -> list[tuple[str, str]]:
    shared = [name for name in WRITERS if name.split()[0] not in SEPARATE]
    apart = [(name, f"{name} another") for name in SEPARATE]
    return [(one, two) for one in shared for two in shared][:: 1 if ALL else 4] + apart


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "start"
    folder.mkdir()
    tg.save(folder / "model.zt", OLD, durable=False)
    tg.save(folder / "old.bt", OLD, durable=False)
    tg.save(folder / "one.bt", ONE, durable=False)
    tg.save(folder / "c.bt", {"merged": np.arange(4)}, durable=False)
    tg.store.delta(OLD, ONE, folder / "step.tgdelta", durable=False)
    return folder


def attempt(write: Write, folder: Path) -> bool:
    try:
        write(folder)
    except (tg.TensorglotError, FileNotFoundError):
        return False
    return True


def fresh(start: Path) -> Path:
    work = start.with_name("work")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(start, work)
    return work


def in_turn(start: Path, *writers: str) -> tuple[tuple[bool, ...], dict[str, bytes | None]]:
    work = fresh(start)
    done = tuple(attempt(WRITERS[name], work) for name in writers)
    return done, tree(work)


def outcomes(start: Path, one: str, two: str) -> list[tuple[tuple[bool, bool], dict[str, bytes | None]]]:
    """Who succeeded, and what is there: in one order, in the other, one alone, the other alone, none."""
    first, second = in_turn(start, one, two), in_turn(start, two, one)
    return [
        ((first[0][0], first[0][1]), first[1]),
        ((second[0][1], second[0][0]), second[1]),
        ((True, False), in_turn(start, one)[1]),
        ((False, True), in_turn(start, two)[1]),
        ((False, False), tree(start)),
        # A reader sees what is changed in place before the editor finds that it has been replaced.
        *([((False, True), first[1])] if one == "edit in place" else []),
    ]


@pytest.mark.parametrize(("one", "two"), pairs())
def test_one_in_the_middle_of_the_other(one: str, two: str, start: Path) -> None:
    allowed = outcomes(start, one, two)
    at = 1 + pairs().index((one, two)) % EVERY
    while True:
        work = fresh(start)
        other: list[bool] = []

        def meanwhile(number: int, name: str, at: int = at, work: Path = work, other: list[bool] = other) -> None:
            if number == at and name != "rename" and not other:
                other.append(attempt(WRITERS[two], work))

        with operations(meanwhile) as calls:
            done = attempt(WRITERS[one], work)
        if len(calls) < at:
            break
        if not other:
            at += 1
            continue
        now = tree(work)
        assert ((done, other[0]), now) in allowed, (at, calls[at - 1], done, other[0], sorted(now.keys()))
        at += EVERY


def test_two_sidecars_at_once(start: Path) -> None:
    work = fresh(start)
    threads = [threading.Thread(target=attempt, args=(sidecar, work)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tree(work).keys() == tree(start).keys() | {"model.zt.sums"}
    assert tg.verify(work / "model.zt", deep=True).ok


@pytest.mark.parametrize("name", ["save", "edit", "append", "merge in place", "patch"])
def test_a_commit_of_a_file_that_is_written_meanwhile(name: str, start: Path) -> None:
    """It has the old version, the new one, or none."""
    work = fresh(start)
    versions = [read(work), read_after(start, name)]
    at = 1
    while True:
        work = fresh(start)
        store = Store.create(work / "store")
        other: list[bool] = []

        def meanwhile(number: int, _: str, at: int = at, work: Path = work, other: list[bool] = other) -> None:
            if number == at and not other:
                other.append(True)
                attempt(WRITERS[name], work)

        with operations(meanwhile):
            done = attempt(lambda folder: Store(folder / "store").commit("main", folder / "model.zt"), work)
        if not other:
            break
        if done:
            assert any(same_tensors(store.checkout("main"), version) for version in versions)
        else:
            assert store.refs() == {}
        assert_clean(store)
        assert stray_files(work / "store") == []
        at += 7 * EVERY


def read(folder: Path) -> dict[str, Any]:
    return tg.load(folder / "model.zt")


def read_after(start: Path, name: str) -> dict[str, Any]:
    work = fresh(start)
    WRITERS[name](work)
    return read(work)
