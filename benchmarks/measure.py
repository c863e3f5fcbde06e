"""One measurement, in this process: `python -m benchmarks.measure GROUP CASE LIBRARY FOLDER`.

Memory that a virtual machine gave back to its host is slow at the first touch, so as
much as the action needs is touched and freed before the clock starts. What was written
before is on disk by then, and files that are to be saved are not there yet: to let go
of an old file's pages takes the system as long as to write them. Prints JSON: milliseconds, and how far the resident
set rose above where it began.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import time
from importlib import import_module
from pathlib import Path


def warm(nbytes: int) -> None:
    room = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    for start in range(0, nbytes, 4096):
        room[start] = 1
    room.close()


def memory(field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    group, name, library, folder = sys.argv[1:]
    case = next(case for case in import_module(f"benchmarks.{group}").cases() if case.name == name)
    action = case.actions[library](Path(folder))
    for old in Path(folder).glob("saved*"):
        old.unlink()
    warm(2 * case.payload_nbytes)
    os.sync()
    gc.collect()
    gc.disable()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = memory("VmRSS")
    best = float("inf")
    for _ in range(case.repeats):
        start = time.perf_counter()
        result = action()
        best = min(best, time.perf_counter() - start)
        del result
    print(json.dumps({"ms": best * 1000, "extra_nbytes": memory("VmHWM") - before}))


if __name__ == "__main__":
    main()
