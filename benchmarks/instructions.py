"""Instructions of short paths: counted by callgrind, kept in instructions.json, compared with a margin.

Time on a shared machine hides a change of ten percent; instructions repeat to a fraction of
one. One process under valgrind runs all paths: each N times and then 2 N times, with a
call of a C function between, at which callgrind writes its counters. The difference
divided by N is free of the interpreter's start, the imports and whatever is done once.
The counts depend on Python, the libraries and the compiler: where these are not those of
the kept counts a difference is printed and is no error.

    python -m benchmarks instructions            # prints counts and changes
    python -m benchmarks instructions --check    # exit status 1 above the margin, where the versions are the same
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
MARKER = "hdestroy_r"
"""What `hdestroy` of the C library calls; nothing in Python calls either."""
DISTRIBUTIONS = ("numpy", "ml-dtypes", "xxhash", "blake3", "crc32c", "zstandard", "cython")
SUFFIXES = ("bt", "zt", "safetensors")


def paths(folder: Path) -> dict[str, tuple[Callable[[], object], int]]:
    """What is counted, and N."""
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
    found["look up one tensor of 1000"] = (lambda: archive["block.700.weight"], 20)
    found["slice of a small tensor"] = (lambda: tensor[2:6], 20)
    found["save one tensor, .bt"] = (lambda: tg.save(folder / "saved.bt", {"w": small}, durable=False), 10)
    found["cid of a small tensor"] = (lambda: tg.identify({"w": small}), 10)
    found["numpy() of a small tensor"] = (held.numpy, 20)
    return found


def run(folder: Path) -> None:
    """Under callgrind: every path, with markers around N and 2 N calls."""
    mark = ctypes.CDLL(None).hdestroy
    chosen = paths(folder)
    gc.disable()
    for action, n in chosen.values():
        for _ in range(3):
            action()
        gc.collect()
        for repeats in (n, 2 * n):
            mark()
            for _ in range(repeats):
                action()
        mark()
    print(json.dumps({name: n for name, (_, n) in chosen.items()}))


def count() -> dict[str, int]:
    """Instructions of one call, by path."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counters"
        command = ["valgrind", "--tool=callgrind", f"--dump-before={MARKER}", f"--callgrind-out-file={out}"]
        command += [sys.executable, "-m", "benchmarks", "instructions", "--run", folder]
        fixed = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, env=os.environ | fixed, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        repeats: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
        written = sorted(out.parent.glob("counters.*"), key=lambda path: int(path.suffix[1:]))
        totals = [int(found[1]) for path in written if (found := re.search(r"^totals: (\d+)", path.read_text(), re.M))]
    if len(totals) != 3 * len(repeats):
        raise SystemExit(f"callgrind wrote {len(totals)} counters, not {3 * len(repeats)}: {MARKER} was not found")
    # Of three dumps of a path the first is what came before it, the second N calls, the third 2 N.
    pairs = zip(repeats.items(), totals[1::3], totals[2::3], strict=True)
    return {name: round((twice - once) / n) for (name, n), once, twice in pairs}


def versions() -> dict[str, str]:
    """What the counts depend on, other than our code."""
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


def compare(kept: dict[str, int], counted: dict[str, int]) -> dict[str, float]:
    """The paths that take more instructions than the margin allows, and how many times as many."""
    return {
        name: counted[name] / before
        for name, before in kept.items()
        if name in counted and counted[name] > before * (1 + MARGIN)
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks instructions", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail above the margin, where versions are the same")
    parser.add_argument("--update", action="store_true", help="keep what was counted")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.run:
        run(options.run)
        return
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: nothing was counted")
        raise SystemExit(1 if options.update else 0)
    counted, here = count(), versions()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"versions": {}, "counts": {}}
    for name, instructions in counted.items():
        before = kept["counts"].get(name)
        change = "" if before is None else f"{instructions / before - 1:+8.1%}"
        print(f"{name:32}{instructions:12,}{change}")
    if options.update:
        KEPT.write_text(json.dumps({"margin": MARGIN, "versions": here, "counts": counted}, indent=1) + "\n")
        return
    more = compare(kept["counts"], counted)
    other = {name for name in here.keys() | kept["versions"].keys() if here.get(name) != kept["versions"].get(name)}
    if other:
        print(f"the kept counts are of other versions ({', '.join(sorted(other))}): a difference is no error")
    for name, times in more.items():
        print(f"{name}: {times:.3f} times the kept count, more than {1 + MARGIN}; --update if that is meant")
    if options.check and more and not other:
        raise SystemExit(1)
