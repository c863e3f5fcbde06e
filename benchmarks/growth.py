"""Time and memory of every verb against the number of tensors and of bytes: `python -m benchmarks growth`.

Each point is the quickest of several new processes, and the most memory of them. The
exponent is the slope of processor time, which other work on the machine changes less than
the clock, and of memory, in logarithms and by least squares, over the last decade and a
half: at small sizes fixed costs make every curve flat. Above LIMIT is a defect. "views" is
no verb: it makes as many NumPy views in a dict, for what Python and the caches of the
processor add. A size that would not fit in memory twice is left out for the verbs that have
all tensors in memory, and named. With the defaults it needs 45 GB of disk and an hour or two.

    python -m benchmarks growth --tensors 100000 --bytes 1e9 --rounds 2 --verbs open load
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Counted
from benchmarks.measure import temporary, timed

__all__ = ["LIMIT", "VERBS", "exponent", "main", "sizes"]

LIMIT = 1.05
MEMORY_FLOOR = 16_000_000
"""Peaks below this are fixed costs and say nothing about growth."""
RESULTS = Path("benchmarks/results")


def write_source(axis: str, size: int, path: Path) -> None:
    """A file of so many tensors of 4 elements, or of so many bytes in 16 tensors."""
    import tensorglot as tg

    rng = np.random.default_rng(0)
    if axis == "tensors":
        values = rng.standard_normal((size, 4), np.float32)
        tg.save(path, {f"block.{i}.bias": values[i].copy() for i in range(size)}, durable=False)
        return
    noise = rng.standard_normal(size // 64, np.float32)
    with tg.Writer(path, durable=False) as out:
        for i in range(16):
            out.add(f"layer.{i}.weight", np.roll(noise, i))


def views(folder: Path) -> Callable[[], object]:
    import tensorglot as tg

    with tg.open(folder / "a.zt") as archive:
        count = len(archive)
    room = np.zeros(16 * count, np.uint8)
    return lambda: {f"block.{i}.bias": np.ndarray((4,), np.float32, room, 16 * i) for i in range(count)}


def commit(folder: Path) -> Callable[[], object]:
    import tensorglot as tg

    store = tg.store.Store.create(tempfile.mkdtemp(dir=folder, prefix="saved"))
    return lambda: store.commit("main", folder / "a.zt")


def checkout(folder: Path) -> Callable[[], object]:
    import tensorglot as tg

    home = tempfile.mkdtemp(dir=folder, prefix="saved")
    tg.store.Store.create(home).commit("main", folder / "a.zt")
    return lambda: tg.load(f"store://{home}#main")


def delta_of(folder: Path) -> Path:
    """From a.zt to tensors of which each has one other element."""
    import tensorglot as tg

    path = Path(tempfile.mkdtemp(dir=folder, prefix="saved")) / "step.tgdelta"
    new = tg.load(folder / "a.zt")
    for array in new.values():
        array.reshape(-1)[0] += 1
    tg.store.delta(folder / "a.zt", new, path, durable=False)
    return path


def applying(folder: Path) -> Callable[[], object]:
    import tensorglot as tg

    path, tensors = delta_of(folder), tg.load(folder / "a.zt")
    return lambda: tg.store.apply(path, tensors)


def patching(folder: Path) -> Callable[[], object]:
    import tensorglot as tg

    path = delta_of(folder)
    return lambda: tg.store.patch(path, folder / "a.zt", folder / "saved.zt", durable=False)


def _verbs() -> dict[str, Callable[[Path], Callable[[], object]]]:
    """The verbs. Each is given a folder with the equal files a.zt and b.zt, prepares, and returns the call to time."""
    import tensorglot as tg

    def loaded(work: Callable[[dict[str, Any], Path], object]) -> Callable[[Path], Callable[[], object]]:
        def ready(folder: Path) -> Callable[[], object]:
            tensors = tg.load(folder / "a.zt")
            return lambda: work(tensors, folder)

        return ready

    def on_file(work: Callable[[Path], object]) -> Callable[[Path], Callable[[], object]]:
        return lambda folder: lambda: work(folder)

    return {
        "open": on_file(lambda f: tg.open(f / "a.zt")),
        "load": on_file(lambda f: tg.load(f / "a.zt")),
        "save": loaded(lambda tensors, f: tg.save(f / "saved.zt", tensors, durable=False)),
        "dumps": loaded(lambda tensors, f: tg.dumps(tensors, format="ztensor")),
        "convert": on_file(lambda f: tg.convert(f / "a.zt", f / "saved.safetensors", durable=False)),
        "verify": on_file(lambda f: tg.verify(f / "a.zt")),
        "diff": on_file(lambda f: tg.diff(f / "a.zt", f / "b.zt")),
        "identify": on_file(lambda f: tg.identify(f / "a.zt")),
        "stats": on_file(lambda f: tg.stats(f / "a.zt")),
        "edit": on_file(lambda f: tg.edit(f / "b.zt", {"step": "1"}, durable=False)),
        "split": on_file(lambda f: tg.split(f / "a.zt", f / "saved", durable=False)),
        "merge": on_file(lambda f: tg.merge([f / "a.zt"], f / "saved.zt", durable=False)),
        "delta": on_file(lambda f: tg.store.delta(f / "a.zt", f / "b.zt", f / "saved.tgdelta", durable=False)),
        "apply": applying,
        "patch": patching,
        "store commit": commit,
        "store checkout": checkout,
        "views": views,
    }


VERBS = tuple(_verbs())
IN_MEMORY = ("load", "save", "dumps", "apply", "store checkout")
"""Verbs that have all tensors in memory, some of them twice."""


def sizes(least: int, most: int) -> list[int]:
    """1, 3.16, 10, … times the least, up to the most."""
    steps = round(2 * math.log10(most / least))
    return [round(least * 10 ** (i / 2)) for i in range(steps + 1)]


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the upper end in logarithms; None for fewer than two points."""
    last = [(math.log(x), math.log(y)) for x, y in points[-4:] if y > 0]
    if len(last) < 2:
        return None
    xs, ys = zip(*last, strict=True)
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in last) / sum((x - x_mean) ** 2 for x in xs)


def count_processor_time(work: Callable[[], object]) -> Counted:
    start = time.process_time()
    work()
    return Counted(cpu_ms=(time.process_time() - start) * 1000)


def available_nbytes() -> int:
    """Memory that can be had without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def measure(verb: str, folder: Path, rounds: int) -> dict[str, float]:
    found = []
    for _ in range(rounds):
        command = [sys.executable, "-m", "benchmarks", "growth", "--measure", verb, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{verb}:\n{done.stderr}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
        subprocess.run(["rm", "-rf", *map(str, folder.glob("saved*"))], check=True)
    quickest = {key: min(one[key] for one in found) for key in ("ms", "cpu_ms")}
    return {**quickest, "extra_nbytes": max(one["extra_nbytes"] for one in found)}


def curve(points: list[dict[str, float]]) -> dict[str, Any]:
    """Points with their two exponents."""
    above = [(p["size"], p["extra_nbytes"]) for p in points if p["extra_nbytes"] > MEMORY_FLOOR]
    busy = exponent([(p["size"], p["cpu_ms"]) for p in points])
    return {"points": points, "time": busy, "memory": exponent(above)}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth", description=__doc__)
    parser.add_argument("--tensors", type=float, default=1e6, help="the most, from 100 on; 0 for none")
    parser.add_argument("--bytes", type=float, default=1e10, help="the most, from 1e6 on; 0 for none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=VERBS, metavar="VERB")
    parser.add_argument("--json", type=Path, default=RESULTS / "growth.json")
    parser.add_argument("--folder", type=Path, help="where the files are made; a temporary one without")
    parser.add_argument("--measure", nargs=2, metavar=("VERB", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        verb, folder = options.measure
        with tempfile.TemporaryDirectory() as tiny:  # imports and whatever else a first use does
            for name in ("a.zt", "b.zt"):
                write_source("tensors", 2, Path(tiny) / name)
            _verbs()[verb](Path(tiny))()
        ready = _verbs()[verb](Path(folder))
        touched = min(2 * (Path(folder) / "a.zt").stat().st_size, available_nbytes() // 2)
        # What the preparation freed, 20 to 120 MB, would be used again, and the memory of small sizes look smaller.
        ctypes.CDLL(None).malloc_trim(0)
        print(json.dumps(timed(partial(count_processor_time, ready), 1, touched)[0]))
        return
    axes: dict[str, dict[str, Any]] = {}
    for axis, least, most in (("tensors", 100, int(options.tensors)), ("bytes", 1_000_000, int(options.bytes))):
        points: dict[str, list[dict[str, float]]] = {verb: [] for verb in options.verbs}
        if axis == "bytes":
            points.pop("views", None)
        for size in sizes(least, most) if most else ():
            with temporary(options.folder) as folder:
                for name in ("a.zt", "b.zt"):
                    write_source(axis, size, folder / name)
                fits = available_nbytes() > 2.5 * (folder / "a.zt").stat().st_size
                for verb, found in points.items():
                    if verb in IN_MEMORY and not fits:
                        print(f"{axis:8}{size:14,} {verb:16}left out: does not fit in memory twice", flush=True)
                        continue
                    found.append({"size": size, **measure(verb, folder, options.rounds)})
                    shown = f"{found[-1]['ms']:12.2f} ms {found[-1]['extra_nbytes'] / 1e6:8.0f} MB"
                    print(f"{axis:8}{size:14,} {verb:16}{shown}", flush=True)
        if most:
            axes[axis] = {verb: curve(found) for verb, found in points.items()}
    for axis, curves in axes.items():
        for verb, found in curves.items():
            for what in ("time", "memory"):
                if found[what] is not None and found[what] > LIMIT:
                    print(f"ABOVE {LIMIT}: {what} of {verb} grows with the power {found[what]:.2f} of {axis}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    when, load = datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), round(os.getloadavg()[0], 1)
    growth = {"when": when, "load": load, "rounds": options.rounds, "axes": axes}
    options.json.write_text(json.dumps({"growth": growth}, indent=1) + "\n")
