"""Large stores: `python -m benchmarks.store_scale [--gigabytes 10] [--commits 1000]`.

A file of that size is committed, and converted back from the store, each in a process of
its own, whose peak of resident memory is printed. Then many small tensors are committed
again and again, ten of them changed each time: bytes and seconds of a commit, of opening,
of the log without and with what each commit cost, and of loading the last. Opening reads
the indexes of all packs, and listing the names the nodes of all tensors.
Seconds are of the clock, and of the processors, which is what counts on a machine that
others use.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import tensorglot as tg

CHILD = """
import sys, tensorglot as tg
if sys.argv[1] == "commit":
    tg.store.Store(sys.argv[2]).commit("main", sys.argv[3])
else:
    tg.convert(f"store://{sys.argv[2]}#main", sys.argv[3])
"""


def timed(what: str, work: Callable[[], Any]) -> Any:
    start, busy = time.perf_counter(), time.process_time()
    result = work()
    print(f"{what:40} {_seconds(time.perf_counter() - start, time.process_time() - busy)}", flush=True)
    return result


def _seconds(clock: float, busy: float) -> str:
    return f"{clock:9.3f} s, {busy:9.3f} s of processors"


def child(*arguments: str | Path) -> None:
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", CHILD, *map(str, arguments)], check=True)
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{arguments[0]:40} {_seconds(clock, busy)}, peak of {after.ru_maxrss / 1024:.0f} MiB so far", flush=True)


def large(folder: Path, gigabytes: float) -> None:
    rng = np.random.default_rng(1)
    piece = (0.05 * rng.standard_normal((16, 1 << 20))).astype(np.float32)
    with tg.Writer(folder / "large.safetensors") as out:
        for i in range(max(1, int(gigabytes * 1e9 / 2**30))):
            with out.stream(f"layer.{i}.weight", "float32", (256, 1 << 20)) as sink:
                for _ in range(16):
                    sink.write(piece + np.float32(rng.standard_normal()))
    tg.store.Store.create(folder / "large")
    child("commit", folder / "large", folder / "large.safetensors")
    child("checkout and convert", folder / "large", folder / "again.safetensors")
    assert tg.diff(folder / "large.safetensors", folder / "again.safetensors").same


def many(folder: Path, tensors: int, commits: int) -> None:
    rng = np.random.default_rng(2)
    values = {f"block.{i}.bias": rng.standard_normal(4).astype(np.float32) for i in range(tensors)}
    store = tg.store.Store.create(folder / "many")
    names = list(values)
    sizes: list[int] = []
    seconds: list[tuple[float, float]] = []
    timed("first commit", lambda: store.commit("main", values))
    for i in range(1, commits):
        for at in rng.integers(0, tensors, 10).tolist():
            values[names[at]] = rng.standard_normal(4).astype(np.float32)
        start, busy = time.perf_counter(), time.process_time()
        store.commit("main", values)
        seconds.append((time.perf_counter() - start, time.process_time() - busy))
        sizes.append(max((folder / "many/packs").iterdir(), key=lambda path: path.stat().st_mtime_ns).stat().st_size)
        if i in (1, 10, 100, commits - 1):
            print(f"{f'commit {i}, {sizes[-1]:,} bytes':40} {_seconds(*seconds[-1])}", flush=True)
    print(f"{f'all: {min(sizes):,} to {max(sizes):,} bytes':40} {_seconds(*map(median, zip(*seconds, strict=True)))}")
    with timed("open the last", lambda: tg.open(f"store://{folder}/many#main")) as archive:
        timed("one tensor of it", lambda: archive[names[0]].numpy())
        timed("the names of all", lambda: len(archive))
    timed("log", lambda: tg.store.Store(folder / "many").log("main"))
    timed("log with costs", lambda: tg.store.Store(folder / "many").costs("main"))
    timed("the same of the last three", lambda: tg.store.Store(folder / "many").costs("main", 3))
    loaded = timed("load the last", lambda: tg.load(f"store://{folder}/many#main"))
    assert all(np.array_equal(loaded[name], value) for name, value in values.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_scale", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.gigabytes:
            large(Path(folder), options.gigabytes)
        if options.tensors:
            many(Path(folder), options.tensors, options.commits)


if __name__ == "__main__":
    main()
