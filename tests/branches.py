"""Branches that no test takes: `python tests/branches.py [FOLDER]...`, after `tests/coverage_map.py`.

Prints each branch of a module that was not taken, with its line, and how many of all were.
coverage.py decides what a branch is, from all that was measured: lines of one statement are
one, and leaving a `with` is none. Kernels are those of the interpreted map; what only runs
compiled (COMPILED_ONLY) is C, of which coverage.py sees nothing: `tests/test_kernels.py`
and `fuzz/kernels.py` compare it with the interpreted form. A branch that no test of the map
can take is in EXCEPTIONS, with the reason; an entry that nothing needs is printed, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from coverage import Coverage, CoverageData

import coverage_map
from coverage_map import SOURCE

FOLDERS = ("kernels", "wire", "containers", "store", "io")
COMPILED_ONLY = [r"if cython\.compiled:", r"@cython\.nogil"]
"""Blocks and functions that begin so."""
EXCEPTIONS: dict[str, str] = {
    "kernels/*: if not cython.compiled:": "the other branch runs compiled",
    "kernels/packed_encode.py: if count == 0:": "runs compiled: interpreted, NumPy has packed the delta before it",
    "kernels/packed_encode.py: for i in range(8):": "the same",
    "kernels/packed_encode.py: if _numbers_of(places, planes, count, width, words, words + count):": "the same",
    "kernels/varint_decode.py: if exceeds(count, self.sizes[node], _HUGE):": "a count is bounded by what follows",
    "kernels/varint_encode.py: if not self.measuring:": "a measuring run opens no block, unless sizes exceed 63 bits",
    "wire/checksums.py: if found is None or found.loader is None:": "crc32c as another version of it is packaged",
    "kernels/varint_encode.py: if exceeds(begin + count, self.sizes[node], _HUGE):": "`push` has compared both",
}
"""`pattern of modules: line` of branches that are not taken here, and why."""


def measured(kind: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    """For each module its number of branches, and those not taken, as line and next line."""
    with tempfile.TemporaryDirectory() as name:
        file, report = Path(name) / "data", Path(name) / "report.json"
        data = CoverageData(str(file))
        arcs = coverage_map.load(kind).arcs
        every = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
        data.add_arcs({str(path): arcs[module] for module, path in every.items() if module in arcs})
        data.touch_files(map(str, every.values()))
        data.write()
        coverage = Coverage(data_file=str(file), branch=True, config_file=False, messages=False)
        for pattern in COMPILED_ONLY:
            coverage.exclude(pattern)
        coverage.load()
        coverage.json_report(outfile=str(report), ignore_errors=False)
        files = json.loads(report.read_text("utf-8"))["files"]
    found = {}
    for path, row in files.items():
        module = Path(path).resolve().relative_to(SOURCE).as_posix()
        missing = [(int(begin), int(end)) for begin, end in row["missing_branches"]]
        found[module] = (len(row["executed_branches"]) + len(missing), missing)
    return found


def exception(module: str, line: str) -> Iterator[str]:
    for key in EXCEPTIONS:
        pattern, _, text = key.partition(": ")
        if fnmatch(module, pattern) and line == text:
            yield key


def main() -> int:
    maps = {kind: measured(kind) for kind in ("compiled", "interpreted")}
    unused, missing = set(EXCEPTIONS), 0
    for folder in sys.argv[1:] or FOLDERS:
        total = left = excepted = 0
        for path in sorted((SOURCE / folder).rglob("*.py")):
            module = path.relative_to(SOURCE).as_posix()
            count, arcs = maps["interpreted" if folder == "kernels" else "compiled"][module]
            lines = path.read_text("utf-8").splitlines()
            total += count
            for begin, end in arcs:
                text = lines[begin - 1].strip()
                if reasons := set(exception(module, text)):
                    unused -= reasons
                    excepted += 1
                    continue
                left += 1
                print(f"{module}:{begin} → {'end' if end < 0 else end}: {text[:100]}")
        missing += left
        taken = total - left - excepted
        share = f"{taken / max(1, total):.2%}"
        print(f"{folder}: {taken} of {total} branches taken, {share}; {excepted} excepted, {left} left")
    if len(sys.argv) == 1:
        for key in sorted(unused):
            print(f"not needed in EXCEPTIONS: {key}")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
