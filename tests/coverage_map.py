"""Which tests execute which lines of the library.

`python tests/coverage_map.py [PATTERN]... [--interpreted] [--seconds=60] [--jobs=N]`

Each test file runs by itself under coverage.py, which notes for every line and branch the test
function that reached it, with its fixtures and in all threads. The result goes to build/coverage,
a JSON file for each test file: `tests/mutants.py` takes from it what has to run for a mutant,
`tests/branches.py` what no test reaches. As many run at a time as there are processors, unless
--jobs says otherwise. A file whose result is newer than itself is not run again. Of a module that
has changed since, what it says of unchanged functions is used.

Kernels are seen interpreted only: `--interpreted` makes a map for them alone.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

__all__ = ["FOLDER", "SOURCE", "TOP", "Map", "is_measured", "load", "test_files"]

TOP = Path(__file__).parents[1]
SOURCE = TOP / "src" / "tensorglot"
FOLDER = TOP / "build" / "coverage"
LEFT_OUT = (
    "benchmarks", "bson_server", "build", "checks_can_fail", "cli_docs", "cli_process", "dcp_killed", "docs",
    "examples", "example_notebook", "faults", "foreign_bounds", "fuzz_campaign", "fuzz_differential", "fuzz_guided",
    "kills", "promises", "remote_kills", "report_browser", "resources", "site", "sixteen_threads", "store_kills",
    "store_machine", "suites_of_others", "two_of_each",
)  # fmt: skip
"""Tests that run programs, whole campaigns, other people's suites or a clock: measured only if a pattern names them."""
SECONDS = 60
"""Of the processor, for a file, unless the caller gives another number. What was reached until then counts: pytest ends
in order when it is interrupted."""

_SETTINGS = """\
[run]
branch = true
source = {measured}
parallel = true
patch = fork, _exit
"""
"""Forked processes write data files of their own."""


@dataclass
class Map:
    """The lines that each test executes, of all test files that were measured."""

    lines: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))
    """The tests that execute each line of a module, as arguments of pytest; "" for its import."""
    arcs: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the processor, for a test, under coverage."""


def load(kind: str = "compiled") -> Map:
    found = Map()
    for path in sorted((FOLDER / kind).glob("*.json")):
        content = json.loads(path.read_text("utf-8"))
        found.seconds |= content["seconds"]
        for module, digest in content["digests"].items():
            now = _lines_now(module, digest)
            for line, contexts in content["lines"][module].items():
                if int(line) in now:
                    found.lines[module][now[int(line)]].update(contexts)
            found.arcs[module].update(
                (now[begin], now[end]) for begin, end in content["arcs"][module] if begin in now and end in now
            )
    return found


@cache
def _lines_now(module: str, digest: str) -> dict[int, int]:
    """The numbers that the lines of a measured version of a module have now; none for what has changed.

    With those that coverage.py gives to the ends of functions: -1 times their first line.
    """
    path, measured = SOURCE / module, FOLDER / "sources" / digest
    if not path.exists() or not measured.exists():
        return {}
    old, new = measured.read_text("utf-8"), path.read_text("utf-8")
    if old == new:
        pairs = [(line, line) for line in range(1, old.count("\n") + 2)]
    else:
        functions = dict(_functions(new))
        pairs = [
            (begin + i, functions[text] + i)
            for text, begin in _functions(old)
            if text in functions
            for i in range(text.count("\n") + 1)
        ]
    return dict(pairs) | {-before: -after for before, after in pairs}


def _functions(text: str) -> Iterator[tuple[str, int]]:
    """The functions of a module and of its classes: the text of each, and its first line."""
    lines, nodes = text.splitlines(), list(ast.parse(text).body)
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            begin = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield "\n".join(lines[begin - 1 : node.end_lineno]), begin
        elif isinstance(node, ast.ClassDef | ast.If):
            nodes += node.body


def _keep_source(module: str) -> str:
    """Keeps the text of a module, of which line numbers speak, and returns its name."""
    text = (SOURCE / module).read_bytes()
    target = FOLDER / "sources" / sha256(text).hexdigest()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text)
    return target.name


def test_files(patterns: list[str]) -> list[Path]:
    """Test files that match the patterns; without patterns all but the excluded ones. The smallest first."""
    chosen = _matching(patterns) if patterns else _matching(["*"]) - _matching(LEFT_OUT)
    return sorted(chosen, key=lambda path: path.stat().st_size)


def _matching(patterns: Iterable[str]) -> set[Path]:
    return {path for name in patterns for path in (TOP / "tests").glob(f"test_{name}.py")}


def is_measured(test: Path, kind: str) -> bool:
    result = FOLDER / kind / f"{test.stem}.json"
    return result.exists() and result.stat().st_mtime > test.stat().st_mtime


def measure(test: Path, kind: str, limit: int) -> None:
    """Runs one test file and keeps what it reached."""
    if is_measured(test, kind):
        return
    target = FOLDER / kind / f"{test.stem}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    data, seconds, settings = (target.with_suffix(suffix) for suffix in (".data", ".seconds", ".rc"))
    measured = SOURCE / "kernels" if kind == "interpreted" else SOURCE
    settings.write_text(_SETTINGS.format(measured=measured))
    command = [
        sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", f"--data-file={data}",
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "coverage_map", str(test),
    ]  # fmt: skip
    path = f"{SOURCE.parent}{os.pathsep}{TOP / 'tests'}"
    environment = {**os.environ, "PYTHONPATH": path, "TENSORGLOT_KERNELS": kind, "TENSORGLOT_SECONDS": str(seconds)}
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(command, cwd=TOP, env=environment, stdout=out, stderr=out) as run,
    ):
        while run.poll() is None and processor_seconds(run.pid) < limit:
            time.sleep(0.2)
        run.send_signal(signal.SIGINT)
        run.wait()
        out.seek(0)
        said = out.read()
    if run.returncode:
        print(f"{test.stem}: {said[-1500:]}", flush=True)
    if run.returncode not in (0, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        return
    files = sorted(data.parent.glob(f"{data.name}.*"))
    content = {**_reached(files), "seconds": json.loads(seconds.read_text("utf-8"))}
    target.write_text(json.dumps(content), "utf-8")
    for path in (*files, seconds, settings):
        path.unlink(missing_ok=True)
    print(f"{test.stem}: {sum(content['seconds'].values()):.1f} s", flush=True)


def processor_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _reached(paths: Iterable[Path]) -> dict[str, Any]:
    from coverage import CoverageData

    data = CoverageData(no_disk=True)
    for path in paths:
        part = CoverageData(str(path))
        part.read()
        data.update(part)
    lines: dict[str, dict[int, list[str]]] = {}
    arcs: dict[str, list[tuple[int, int]]] = {}
    for file in data.measured_files():
        module = Path(file).relative_to(SOURCE).as_posix()
        lines[module] = {line: sorted(contexts) for line, contexts in data.contexts_by_lineno(file).items() if line > 0}
        arcs[module] = data.arcs(file) or []
    return {"lines": lines, "arcs": arcs, "digests": {module: _keep_source(module) for module in lines}}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """This module is also a plugin of pytest: it tells coverage.py which test function runs, and measures its time."""
    from coverage import Coverage

    node = item.nodeid.partition("[")[0]
    coverage = Coverage.current()
    if coverage is not None and node not in _seconds:
        coverage.switch_context(node)
    start = os.times()[:4]
    try:
        return (yield)
    finally:
        _seconds[node] += sum(os.times()[:4]) - sum(start)  # with programs that it has run


def pytest_sessionfinish() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # too late: coverage is about to write what it has
    Path(os.environ["TENSORGLOT_SECONDS"]).write_text(json.dumps(_seconds), "utf-8")


_seconds: dict[str, float] = defaultdict(float)


def main() -> None:
    kind = "interpreted" if "--interpreted" in sys.argv else "compiled"
    numbers = dict(word[2:].split("=") for word in sys.argv if word.startswith("--") and "=" in word)
    tests = test_files([word for word in sys.argv[1:] if not word.startswith("--")])
    limit, jobs = int(numbers.get("seconds", SECONDS)), int(numbers.get("jobs", len(os.sched_getaffinity(0))))
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda test: measure(test, kind, limit), tests))


if __name__ == "__main__":
    main()
