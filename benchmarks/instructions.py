"""Instructions of short paths: counted by callgrind, kept in instructions.json, compared with a margin.

Time on a shared machine hides a change of ten percent; instructions repeat to a fraction of
one. One process under valgrind runs all paths. It imports, prepares and warms up at
valgrind's full speed; then callgrind counts N calls of each path, between two requests
that a small C library passes on to it. Hashes are fixed and the garbage collector is off.
The counts depend on Python, the libraries and the compiler: where these are not those of
the kept counts, the margin is wider.

    python -m benchmarks instructions            # prints counts and changes
    python -m benchmarks instructions --check    # exit status 1 above the margin
    python -m benchmarks instructions --update   # keeps what was counted
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

__all__ = ["compare", "main", "versions"]

KEPT = Path(__file__).with_name("instructions.json")
MARGIN = 0.03
WIDE_MARGIN = 0.25
"""Where other versions were counted."""
WARM_UP = 20
"""Calls after which the interpreter has specialised a path, and nothing is done for the first time."""
REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(void) { CALLGRIND_DUMP_STATS; }
"""
DISTRIBUTIONS = ("numpy", "ml-dtypes", "xxhash", "blake3", "crc32c", "zstandard", "cython")
SUFFIXES = ("bt", "zt", "safetensors")


def paths(folder: Path) -> dict[str, tuple[Callable[[], object], int]]:
    """The paths that are counted, each with its number of calls."""
    import numpy as np

    import tensorglot as tg

    small = np.arange(16, dtype=np.float32)
    found: dict[str, tuple[Callable[[], object], int]] = {}
    for count, n in ((1, 20), (1000, 4)):
        tensors = {f"block.{i}.weight": small for i in range(count)}
        for suffix in SUFFIXES:
            path = folder / f"{count}.{suffix}"
            tg.save(path, {name: array.copy() for name, array in tensors.items()}, durable=False)
            found[f"open .{suffix}, {count} tensor{'s' * (count > 1)}"] = (lambda path=path: tg.open(path).close(), n)
    archive = tg.open(folder / "1000.bt")
    tensor = archive["block.500.weight"]
    held = tg.open(tg.dumps({"w": small}, format="bintensors"))["w"]
    found["load .bt, 1 tensor"] = (lambda: tg.load(folder / "1.bt"), 20)
    found["load .zt, 1 tensor"] = (lambda: tg.load(folder / "1.zt"), 20)
    arrays = tg.load(folder / "1000.bt")
    found["load .bt into out=, 1000 tensors"] = (lambda: tg.load(folder / "1000.bt", out=arrays, threads=1), 4)
    found["look up one tensor of 1000"] = (lambda: archive["block.700.weight"], 20)
    found["slice of a small tensor"] = (lambda: tensor[2:6], 20)
    found["open and slice, .bt"] = (lambda: tg.open(folder / "1.bt")["block.0.weight"][2:6], 20)
    found["save one tensor, .bt"] = (lambda: tg.save(folder / "saved.bt", {"w": small}, durable=False), 10)
    found["cid of a small tensor"] = (lambda: tg.identify({"w": small}), 10)
    found["numpy() of a small tensor"] = (held.numpy, 20)
    return found


def requests(folder: Path) -> ctypes.CDLL:
    """Functions that switch callgrind's counting on and off and reset it."""
    source, library = folder / "requests.c", folder / "requests.so"
    source.write_text(REQUESTS)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return ctypes.CDLL(str(library))


def run(folder: Path) -> None:
    """Under callgrind: every path, counted."""
    ask = requests(folder)
    chosen = paths(folder)
    gc.disable()
    for action, _ in chosen.values():
        for _ in range(WARM_UP):
            action()
    gc.collect()
    ask.start()
    for action, n in chosen.values():
        action()
        ask.zero()
        for _ in range(n):
            action()
        ask.dump()
    print(json.dumps({name: n for name, (_, n) in chosen.items()}))


def count() -> dict[str, int]:
    """Instructions of one call, by path."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counters"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        command += [sys.executable, "-m", "benchmarks", "instructions", "--run", folder]
        fixed = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=os.environ | fixed, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        repeats: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
        written = sorted(out.parent.glob("counters.*"), key=lambda path: int(path.suffix[1:]))
        totals = [int(found[1]) for path in written if (found := re.search(r"^totals: (\d+)", path.read_text(), re.M))]
    if len(totals) != len(repeats):
        raise SystemExit(f"callgrind wrote {len(totals)} counters, not {len(repeats)}")
    return {name: round(total / n) for (name, n), total in zip(repeats.items(), totals, strict=True)}


def versions() -> dict[str, str]:
    """The versions that the counts depend on, besides our code."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    found["libc"] = " ".join(platform.libc_ver())
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    for program, option in (("valgrind", "--version"), ("cc", "-dumpfullversion")):
        if shutil.which(program):
            found[program] = subprocess.run([program, option], capture_output=True, text=True).stdout.strip()
    return found


def compare(kept: dict[str, int], counted: dict[str, int], margin: float = MARGIN) -> dict[str, float]:
    """The paths that take more instructions than the margin allows, and how many times as many."""
    return {
        name: counted[name] / before
        for name, before in kept.items()
        if name in counted and counted[name] > before * (1 + margin)
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks instructions", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail above the margin")
    parser.add_argument("--update", action="store_true", help="keep what was counted")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run:
        run(options.run)
        return
    absent = [program for program in ("valgrind", "cc") if shutil.which(program) is None]
    if absent:
        print(f"{' and '.join(absent)} not installed: nothing was counted")
        raise SystemExit(1 if options.update or os.environ.get("TENSORGLOT_REQUIRE") == "all" else 0)
    counted, here = count(), versions()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"versions": {}, "counts": {}}
    for name, instructions in counted.items():
        before = kept["counts"].get(name)
        change = "" if before is None else f"{instructions / before - 1:+8.1%}"
        print(f"{name:32}{instructions:12,}{change}")
    if options.update:
        KEPT.write_text(json.dumps({"margin": MARGIN, "versions": here, "counts": counted}, indent=1) + "\n")
        return
    other = {name for name in here.keys() | kept["versions"].keys() if here.get(name) != kept["versions"].get(name)}
    margin = WIDE_MARGIN if other else MARGIN
    if other:
        print(f"the kept counts are of other versions ({', '.join(sorted(other))}): the margin is {margin:.0%}")
    more = compare(kept["counts"], counted, margin)
    for name, times in more.items():
        print(f"{name}: {times:.3f} times the kept count, more than {1 + margin}; --update if that is meant")
    if options.check and more:
        raise SystemExit(1)
