"""One measurement, in this process: `python -m benchmarks.measure GROUP CASE LIBRARY FOLDER [check]`.

Whatever a library does at its first use, it does on a small file before the clock starts.
Memory that a virtual machine gave back to its host is slow at the first touch, so as
much as the action needs is touched and freed, too. What was written before is on disk by
then, and files that are to be saved are not there yet: to let go of an old file's pages
takes the system as long as to write them. With `check` the result of the last timed call
is compared with what it should be. Prints JSON: milliseconds, how far the resident set
rose above where it began, and what the action counted.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.case import FIRST_USE, Case, Counted

__all__ = ["memory", "ready", "temporary", "timed", "warm"]


@contextmanager
def temporary(parent: Path | None) -> Iterator[Path]:
    """A folder for the files of a run, in another one that is made if need be."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as name:
        yield Path(name)


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


def timed(action: Callable[[], Any], repeats: int, touched_nbytes: int) -> tuple[dict[str, float], Any]:
    """The quickest of several calls and the peak of memory over all of them; and the last result."""
    if touched_nbytes:
        warm(touched_nbytes)
        os.sync()
    gc.collect()
    gc.disable()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = memory("VmRSS")
    found, result = [], None
    for _ in range(repeats):
        result = None
        start = time.perf_counter()
        result = action()
        elapsed = time.perf_counter() - start
        found.append({"ms": elapsed * 1000, **(result if isinstance(result, Counted) else {})})
    return {**min(found, key=lambda one: one["ms"]), "extra_nbytes": memory("VmHWM") - before}, result


def ready(case: Case, library: str, folder: Path) -> Callable[[], object]:
    """The action, after a first use of the library."""
    action = case.actions[library]
    if case.first_use:
        _remove_saved(folder / FIRST_USE)
        action(folder / FIRST_USE)()
    return action(folder)


def _remove_saved(folder: Path) -> None:
    for old in folder.glob("saved*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()


def main() -> None:
    group, name, library, path, *options = sys.argv[1:]
    folder = Path(path)
    case = next(case for case in import_module(f"benchmarks.{group}").cases() if case.name == name)
    action = ready(case, library, folder)
    _remove_saved(folder)
    found, result = timed(action, case.repeats, 2 * case.payload_nbytes)
    if "check" in options and case.check is not None:
        case.check(folder, library, result)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
