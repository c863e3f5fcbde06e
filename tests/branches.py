"""Branches that no test takes: `python tests/branches.py [FOLDER]...`, after `tests/coverage_map.py`.

Prints each branch of a module that was not taken, with its line, and how many of all were.
Kernels are those of the interpreted map. A branch that no test can take is in EXCEPTIONS,
with the reason; one that is there and is taken after all is printed, too.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from fnmatch import fnmatch

from coverage.parser import PythonParser

import coverage_map
from coverage_map import SOURCE

FOLDERS = ("kernels", "wire", "containers", "store", "io")
EXCEPTIONS: dict[str, str] = {
    "kernels/*: if cython.compiled:": "one form of a kernel imports one of the two modules of primitives",
    "kernels/*: except ModuleNotFoundError:": "taken where Cython is not installed; CI runs it in the pure wheel",
    "*: if TYPE_CHECKING:": "for type checkers",
}
"""`pattern of modules: line` of branches that are not taken here, and why."""


def branches(module: str) -> dict[int, set[int]]:
    """The lines that each branching line may go on with."""
    parser = PythonParser((SOURCE / module).read_text("utf-8"), filename=module)
    parser.parse_source()
    exits: dict[int, set[int]] = defaultdict(set)
    for begin, end in parser.arcs():
        if begin > 0:
            exits[begin].add(end)
    return {line: ends for line, ends in exits.items() if len(ends) > 1}


def excepted(module: str, line: str) -> bool:
    patterns = (key.split(": ", 1) for key in EXCEPTIONS)
    return any(fnmatch(module, pattern) and line == text for pattern, text in patterns)


def main() -> int:
    folders = sys.argv[1:] or FOLDERS
    taken = {kind: coverage_map.load(kind).arcs for kind in ("compiled", "interpreted")}
    missing = 0
    for folder in folders:
        all_of_folder = covered = 0
        for path in sorted((SOURCE / folder).rglob("*.py")):
            module = path.relative_to(SOURCE).as_posix()
            arcs = taken["interpreted" if folder == "kernels" else "compiled"].get(module, set())
            lines = path.read_text("utf-8").splitlines()
            for line, ends in sorted(branches(module).items()):
                text = lines[line - 1].strip()
                if excepted(module, text):
                    continue
                left = sorted(end for end in ends if (line, end) not in arcs)
                all_of_folder, covered = all_of_folder + len(ends), covered + len(ends) - len(left)
                for end in left:
                    print(f"{module}:{line} → {'end' if end < 0 else end}: {text[:90]}")
        missing += all_of_folder - covered
        print(f"{folder}: {covered} of {all_of_folder} branches taken, {covered / max(1, all_of_folder):.1%}")
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
