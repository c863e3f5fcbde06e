"""Which tests execute which lines of the library: `python tests/coverage_map.py [PATTERN]... [--interpreted]`.

Each test file runs by itself under coverage.py, which notes for every line and branch the test
function that reached it. The result goes to build/coverage, a JSON file for each test file:
`tests/mutants.py` takes from it what has to run for a mutant, `tests/branches.py` what no
test reaches. A file whose result is newer than itself is not run again.

Kernels are seen interpreted only: `--interpreted` makes a map for them alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

__all__ = ["FOLDER", "SOURCE", "TOP", "Map", "is_measured", "load", "test_files"]

TOP = Path(__file__).parents[1]
SOURCE = TOP / "src" / "tensorglot"
FOLDER = TOP / "build" / "coverage"
LEFT_OUT = (
    "benchmarks", "bson_server", "build", "checks_can_fail", "cli_docs", "cli_process", "crashes", "docs", "examples",
    "example_notebook", "faults", "fuzz_*", "kills", "promises", "remote_kills", "report_browser", "resources", "site",
    "sixteen_threads", "store_kills", "store_machine", "suites_of_others", "two_of_each",
)  # fmt: skip
"""Tests that run programs, whole campaigns or other people's suites: nothing that should notice first."""
SECONDS = 60
"""For a file. What was reached until then counts: pytest ends in order when it is interrupted."""


@dataclass
class Map:
    """Of all test files that were measured."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    """The tests that execute each line of a module, as arguments of pytest; "" for its import."""
    arcs: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=dict)
    """What a test takes, under coverage."""


def load(kind: str = "compiled") -> Map:
    found = Map()
    for path in sorted((FOLDER / kind).glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        found.seconds |= content["seconds"]
        for module, rows in content["lines"].items():
            for line, contexts in rows.items():
                found.lines[module][int(line)].update(contexts)
        for module, arcs in content["arcs"].items():
            found.arcs[module].update((begin, end) for begin, end in arcs)
    return found


def test_files(patterns: list[str]) -> list[Path]:
    folder = TOP / "tests"
    out = {path for name in LEFT_OUT for path in folder.glob(f"test_{name}.py")}
    chosen = {path for name in patterns or ["*"] for path in folder.glob(f"test_{name}.py")}
    return sorted(chosen - out, key=lambda path: path.stat().st_size)


def is_measured(test: Path, kind: str) -> bool:
    result = FOLDER / kind / f"{test.stem}.json"
    return result.exists() and result.stat().st_mtime > test.stat().st_mtime


def measure(test: Path, kind: str) -> None:
    """Runs one test file and keeps what it reached."""
    if is_measured(test, kind):
        return
    target = FOLDER / kind / f"{test.stem}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    data, junit, settings = (target.with_suffix(suffix) for suffix in (".data", ".xml", ".rc"))
    measured = SOURCE / "kernels" if kind == "interpreted" else SOURCE
    settings.write_text(f"[run]\nbranch = true\ndynamic_context = test_function\nsource = {measured}\n")
    command = [
        sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", f"--data-file={data}",
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={junit}", str(test),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "TENSORGLOT_KERNELS": kind}
    with subprocess.Popen(command, cwd=TOP, env=environment, stdout=subprocess.PIPE, text=True) as run:
        try:
            said = run.communicate(timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)
            said = run.communicate()[0]
    if run.returncode not in (0, pytest.ExitCode.INTERRUPTED):
        print(f"{test.stem}: fails\n{said[-1500:]}", flush=True)
        return
    content = {**_reached(data), "seconds": _seconds(junit)}
    target.write_text(json.dumps(content), "utf-8")
    for path in (data, junit, settings):
        path.unlink(missing_ok=True)
    print(f"{test.stem}: {sum(content['seconds'].values()):.1f} s", flush=True)


def _reached(path: Path) -> dict[str, Any]:
    from coverage import CoverageData

    data = CoverageData(str(path))
    data.read()
    lines: dict[str, dict[int, list[str]]] = {}
    arcs: dict[str, list[tuple[int, int]]] = {}
    for file in data.measured_files():
        module = Path(file).relative_to(SOURCE).as_posix()
        lines[module] = {
            line: sorted(map(_node, contexts)) for line, contexts in data.contexts_by_lineno(file).items() if line > 0
        }
        arcs[module] = data.arcs(file) or []
    return {"lines": lines, "arcs": arcs}


def _node(context: str) -> str:
    """`test_cid.TestX.test_y` as an argument of pytest."""
    if not context.startswith("test_"):
        return ""
    module, _, rest = context.partition(".")
    return f"tests/{module}.py::{rest.replace('.', '::')}"


def _seconds(path: Path) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for case in ElementTree.parse(path).iter("testcase"):
        name = str(case.get("name")).partition("[")[0]
        classes = str(case.get("classname")).removeprefix("tests.").replace(".", "::")
        module, _, inner = classes.partition("::")
        total[f"tests/{module}.py::" + (f"{inner}::" if inner else "") + name] += float(case.get("time", 0))
    return dict(total)


def main() -> None:
    kind = "interpreted" if "--interpreted" in sys.argv else "compiled"
    for test in test_files([word for word in sys.argv[1:] if not word.startswith("--")]):
        measure(test, kind)


if __name__ == "__main__":
    main()
