"""Many at once: writers and a collector as processes, threads on one Store, writers of one ref.

What is acknowledged stays, whoever collects meanwhile. TENSORGLOT_STORE_ROUNDS=1000 makes it long.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from figures import seen
from stores import assert_clean, same_tensors, step, stray_files, tensors
from tensorglot.store import Store

ROUNDS = int(os.environ.get("TENSORGLOT_STORE_ROUNDS", "12"))

WRITER = """
import sys
from pathlib import Path
import numpy as np
import tensorglot as tg
from tensorglot.store import Store

root, number, rounds, collected = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
store = Store(root)
random = np.random.default_rng(number)
base = np.random.default_rng(0).normal(0, 1, 8000).astype(np.float32)
acknowledged = {}
for i in range(100 * rounds):
    if i >= rounds and collected.stat().st_size > 2:
        break
    # Both writers make the same versions in another order, so each relies on what the other one wrote or lost.
    version = base.copy()
    version[: 40 * (1 + (i * (2 * number + 1)) % 5)] += 1
    ref = f"writer{number}.{i % 3}"
    made = store.commit(ref, {"w": version, "i": np.int64(i % 4)})
    assert store.checkout(made.cid)["w"].numpy().tobytes() == version.tobytes()
    acknowledged[ref] = made.cid
    if i % 4 == 3:
        store.delete(ref)
        del acknowledged[ref]
    elif i % 7 == 2:
        name = f"tag{number}.{i}"
        store.tag(name, ref)
        acknowledged[name] = made.cid
print("\\n".join(f"{ref} {cid}" for ref, cid in acknowledged.items()))
"""
COLLECTOR = """
import sys
from pathlib import Path
from tensorglot.store import Store

stop = Path(sys.argv[2])
with open(sys.argv[3], "ab", buffering=0) as collected:
    while not stop.exists():
        (Store(sys.argv[1]).repack if collected.tell() % 3 == 2 else Store(sys.argv[1]).collect)(0)
        collected.write(b".")
"""


def start(script: str, *arguments: str | Path | int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=3600)
    assert process.returncode == 0, error
    return out


def test_two_writers_and_a_collector(tmp_path: Path) -> None:
    root = tmp_path / "store"
    Store.create(root)
    stop, collected = tmp_path / "stop", tmp_path / "collected"
    collected.touch()
    collector = start(COLLECTOR, root, stop, collected)
    writers = [start(WRITER, root, number, ROUNDS, collected) for number in range(2)]
    try:
        acknowledged = dict(line.split() for writer in writers for line in finish(writer).splitlines())
    finally:
        stop.touch()
        finish(collector)
    assert collected.stat().st_size > 2, "collections beside the writers"
    seen("rounds of two writers", ROUNDS)
    seen("collections", collected.stat().st_size)
    store = Store(root)
    assert store.refs() == acknowledged
    assert_clean(store)
    for cid in set(acknowledged.values()):
        with store.checkout(cid) as archive:
            assert archive["w"].numpy().shape == (8000,)
    store.collect(0)
    store.collect(0)
    assert stray_files(root) == []
    assert_clean(store)


def test_six_writers_of_one_ref(tmp_path: Path) -> None:
    """Everything that was acknowledged is in the log, once."""
    root = tmp_path / "store"
    Store.create(root)
    script = """
import sys
import numpy as np
from tensorglot.store import Store
store = Store(sys.argv[1])
for i in range(int(sys.argv[3])):
    print(store.commit("main", {"w": np.full(20, int(sys.argv[2]))}, message=f"{sys.argv[2]}.{i}").cid)
"""
    each = max(3, ROUNDS // 4)
    writers = [start(script, root, number, each) for number in range(6)]
    acknowledged = [line for writer in writers for line in finish(writer).splitlines()]
    log = Store(root).log("main")
    assert len(acknowledged) == 6 * each
    assert sorted(commit.cid for commit in log) == sorted(acknowledged)
    assert {commit.message for commit in log} == {f"{number}.{i}" for number in range(6) for i in range(each)}
    for number in range(6):
        own = [commit.message for commit in reversed(log) if commit.message.startswith(f"{number}.")]
        assert own == [f"{number}.{i}" for i in range(each)], "in the order in which they were made"
    assert_clean(Store(root))


def test_sixteen_threads_on_one_store(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    versions = [tensors(1, 70_000)]
    for seed in range(3):
        versions.append(step(versions[-1], seed))
    barrier = threading.Barrier(16)

    def work(number: int) -> list[tuple[str, int]]:
        barrier.wait()
        made = []
        for i in range(3):
            which = (number + i) % len(versions)
            ref = "shared" if number % 4 == 0 else f"own.{number}"
            commit = store.commit(ref, versions[which])
            made.append((commit.cid, which))
            assert same_tensors(store.checkout(commit.cid), versions[which])
            store.put(np.int64(number))
            assert store.log(ref)
            if number == 5:
                store.check()
            if number == 6:
                store.collect(0)
        return made

    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(work, number) for number in range(16)]
        acknowledged = [future.result() for future in futures]
    for cid, which in (pair for made in acknowledged for pair in made):
        assert same_tensors(store.checkout(cid), versions[which])
    shared = {cid for made in acknowledged[::4] for cid, _ in made}
    assert {commit.cid for commit in store.log("shared")} == shared
    assert len(shared) == 12
    assert_clean(store)
    assert_clean(Store(tmp_path / "store"))


def test_a_ref_that_another_writer_moved(tmp_path: Path) -> None:
    """Without `parent` the commit is made again on top of the other one, with it is refused."""
    store, other = Store.create(tmp_path / "store"), Store(tmp_path / "store")
    first = store.commit("main", {"x": np.zeros(3)})

    class Meanwhile:
        """An array in whose making another commit comes in between."""

        def __array__(self, *_: Any, **__: Any) -> Any:
            other.commit("main", {"y": np.ones(1)})
            return np.ones(3)

    made = store.commit("main", {"x": Meanwhile()})
    assert [commit.cid for commit in store.log("main")] == [made.cid, made.parents[0], first.cid]
    with pytest.raises(tg.InputError) as caught:
        store.commit("main", {"x": Meanwhile()}, parent="main")
    assert caught.value.rule == "store.ref.changed"
    assert len(store.log("main")) == 4
    assert_clean(store)
