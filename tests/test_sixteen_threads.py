"""Sixteen threads on one archive, with closes, forks and pickles in between: right values, or `archive.closed`.

Every tensor has one value throughout, its number. A file of other values is opened and
closed all the time, so that descriptors are reused.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.store import Store

THREADS = 16
ROUNDS = int(os.environ.get("TENSORGLOT_ROUNDS", "6"))
COUNT = 5000
TENSORS = {f"t{i}": np.full((10, COUNT // 10), i, np.int32) for i in range(12)}


def saved(name: str, **options: Any) -> Callable[[Path], Callable[[], tg.Archive]]:
    def make(folder: Path) -> Callable[[], tg.Archive]:
        tg.save(folder / name, TENSORS, durable=False, **options)
        return lambda: tg.open(folder / name)

    return make


def mapped(folder: Path) -> Callable[[], tg.Archive]:
    tg.save(folder / "mapped.bt", TENSORS, durable=False)
    return lambda: tg.open(folder / "mapped.bt", backend="mmap")


def sharded(folder: Path) -> Callable[[], tg.Archive]:
    tg.save(folder / "one.safetensors", TENSORS, durable=False)
    tg.split(folder / "one.safetensors", folder / "many", shard_nbytes=12 * COUNT, durable=False)
    return lambda: tg.open(folder / "many")


def checkout(folder: Path) -> Callable[[], tg.Archive]:
    Store.create(folder / "store").commit("main", TENSORS)
    return lambda: tg.open(f"store://{folder / 'store'}#main")


KINDS = {
    ".bt": saved("a.bt"),
    ".zt": saved("a.zt"),
    ".zt zstd, checksums": saved("b.zt", format="ztensor@2", compression="zstd"),
    ".npz": saved("a.npz"),
    ".npz deflated": saved("b.npz", compression="deflate"),
    "shards": sharded,
    "checkout": checkout,
    "mmap": mapped,
}


def look(archive: tg.Archive, rng: random.Random) -> set[int]:
    """What one read of one tensor gives; what is allowed is one number."""
    number = rng.randrange(len(TENSORS))
    tensor = archive[f"t{number}"]
    way = rng.randrange(4)
    if way == 0:
        values = tensor.numpy()
    elif way == 1:
        values = tensor[rng.randrange(10), ::7]
    elif way == 2:
        values = tensor.numpy(np.empty(TENSORS["t0"].shape, np.int32))
    else:
        values = np.frombuffer(tensor.serialize(), np.int32)
    return set(values.ravel().tolist()) ^ {number}  # np.unique imports, under a lock that a fork inherits


def in_a_fork(archive: tg.Archive) -> int:
    """Reads in a forked process, whose locks may have been held by threads that it does not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: what is tested here
        pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 2 if any(look(archive, random.Random(seed)) for seed in range(20)) else 0
        except tg.InputError as error:
            code = 0 if error.rule == "archive.closed" else 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture(autouse=True)
def short_turns() -> Iterator[None]:
    """The main thread would wait for sixteen turns after each of its system calls."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", KINDS)
def test_sixteen_threads(kind: str, tmp_path: Path) -> None:
    reopen = KINDS[kind](tmp_path)
    other = tmp_path / "other.bt"
    tg.save(other, {"t0": np.full(12 * COUNT, -1, np.int32)}, durable=False)
    current, stop = [reopen()], threading.Event()
    wrong: list[object] = []
    reads = [0] * THREADS

    def read(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            try:
                found: object = look(current[0], rng)
                reads[number] += 1
            except tg.TensorglotError as error:
                found = None if error.rule == "archive.closed" else error
            except BaseException as error:  # noqa: BLE001
                found = error
            if found:
                wrong.append(found)
                return

    def churn() -> None:
        while not stop.is_set():
            with other.open("rb") as file:
                file.read(1)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(THREADS)]
    threads.append(threading.Thread(target=churn))
    for thread in threads:
        thread.start()
    forks = []
    try:
        for turn in range(ROUNDS):
            old = current[0]
            if turn % 3 == 0:
                current[0] = pickle.loads(pickle.dumps(old))
            else:
                current[0] = reopen()
            old.close()
            if turn % 4 == 1:
                forks.append(in_a_fork(current[0]))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert forks == [0] * len(forks)
    assert len(forks) == len(range(1, ROUNDS, 4))
    assert sum(reads) > THREADS
    current[0].close()
    with pytest.raises(tg.InputError) as caught:
        look(current[0], random.Random(1))
    assert caught.value.rule == "archive.closed"
