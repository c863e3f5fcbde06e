"""Mutation testing of the library itself: `python tests/mutants.py [COUNT] [SEED] [OPTION]...`, or `make mutants`.

A mutant is the source with one expression or statement changed: a comparison turned, a
constant moved by one, a branch always taken, a call left out. The tests that execute its
line must fail on it; `tests/coverage_map.py` has measured which they are. The quickest run
first, and one that fails ends it; a mutant may take SECONDS of the processor. Each layer of
the library gives the same number of mutants. Those that survive are printed, each with its
line: either a test is missing, or the mutant is equivalent, and then its line belongs into
`equivalent_mutants.py` with the reason. A mutant on which the tests take much longer than
on the original counts as killed.

    --jobs=N      processes at a time; as many as there are processors
    --minutes=N   no new mutant after so long; the same seed goes on another time
    --measured    only mutants of lines that a measured test executes, and only those tests:
                  without it, test files that were not measured and import the module run last

Mutants of kernels are compared with their compiled originals (`tests/test_kernels.py`), then
run interpreted; all others run on compiled kernels. The tests of a mutant run in a fork of a
process that has imported everything but the library. The journal, build/mutants.jsonl, keeps
what became of each; a run with a seed that it knows goes on where it ended, and tries
survivors again. tests/mutants.json has the figures of the last run, its seed and its survivors.
"""

from __future__ import annotations

import ast
import compileall
import copy
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import pytest

import coverage_map
from coverage_map import SOURCE, TOP, Map
from equivalent_mutants import EQUIVALENT

LAYERS: dict[str, tuple[str, ...]] = {
    "kernels": ("kernels/*",),
    "wire": ("wire/*",),
    "model": ("model/*",),
    "writers": (
        "containers/*/write*.py", "containers/ztensor/revise.py", "containers/canonical.py", "io/sink.py",
        "io/target.py", "io/in_place.py", "operations/save.py", "operations/writer.py", "operations/edit.py",
        "operations/split.py", "dynd/codec/encode.py", "bson/writing.py",
    ),
    "readers": ("containers/*", "io/*", "dynd/codec/*", "bson/reading.py"),
    "operations": ("operations/*",),
    "bridges": ("bridges/*", "torch/*", "numpy.py", "jax.py"),
    "store": ("store/*",),
}  # fmt: skip
"""A module belongs to the first layer that has a pattern for it."""
PRELOADED = (
    "numpy", "ml_dtypes", "zstandard", "scipy.sparse", "torch", "awkward", "pyarrow", "pymongo", "h5py", "xxhash",
    "blake3", "click", "rich", "hypothesis.strategies", "cbor2", "safetensors.numpy", "http.server",
)  # fmt: skip
JOURNAL = TOP / "build" / "mutants.jsonl"
SUMMARY = TOP / "tests" / "mutants.json"
FIRST_FILES = 2
FIRST_SECONDS = 3.0
MOST_SECONDS = 20.0
"""Of tests, as measured: first the quickest of them, then as many as that."""
UNKNOWN_SECONDS = 15.0
"""Of a test file that was not measured."""
SECONDS = 120.0
"""Of the processor, for all tests of a mutant."""

_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    module: str
    line: int
    end: int
    """The last line that is certainly executed with it."""
    at_import: bool
    """Outside of functions: whichever test imports the module first executes it."""
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.what}"


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Other nodes for one node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _TURNED:
        yield ast.Compare(node.left, [_TURNED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        yield ast.BinOp(node.left, _SWAPPED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.If | ast.IfExp) and "cython.compiled" not in ast.unparse(node.test):
        for value in (True, False):
            changed = copy.copy(node)
            changed.test = ast.Constant(value)
            yield changed
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()


def _skipped(node: ast.AST) -> bool:
    """Imports, `__all__`, and what only type checkers or the C compiler see."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
        return True
    if isinstance(node, ast.FunctionDef) and "cython.nogil" in map(ast.unparse, node.decorator_list):
        return True
    return isinstance(node, ast.ImportFrom | ast.Import)


def _is_strict_zip(call: ast.AST, child: ast.AST) -> bool:
    """`strict=` of a zip asserts that lengths are equal, which no caller can change."""
    return isinstance(child, ast.keyword) and isinstance(call, ast.Call) and ast.unparse(call.func) == "zip"


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """The nodes below a node: parent, field, position in the field, node."""
    compiled = isinstance(node, ast.If | ast.IfExp) and ast.unparse(node.test) == "cython.compiled"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment") or (compiled and name == "body"):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _skipped(child) and not _is_strict_zip(node, child):
                yield node, name, at, child
                yield from _places(child)


def pick(path: Path, count: int, r: random.Random) -> list[Mutant]:
    """Some mutants of a module."""
    text, module = path.read_text("utf-8"), path.relative_to(SOURCE).as_posix()
    tree = ast.parse(text)
    bodies = [(f.body[0].lineno, f.end_lineno or 0) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]
    every = [(place, at) for place in _places(tree) for at in range(len(list(changes(place[3]))))]
    every = [(place, at) for place, at in every if hasattr(place[3], "lineno")]
    found = []
    for place, at in r.sample(every, min(count, len(every))):
        parent, name, position, node = place
        changed = ast.copy_location(list(changes(node))[at], node)
        what = f"{_first_line(node)}  →  {_first_line(changed)}"
        line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        said = f"{module}: {what}"
        if not {said, f"{said}  in  {text.splitlines()[line - 1].strip()}"} & EQUIVALENT.keys():
            _put(parent, name, position, changed)
            end = line if isinstance(node, ast.If) else end
            at_import = not any(first <= line <= last for first, last in bodies)
            found.append(Mutant(module, line, end, at_import, what, ast.unparse(ast.fix_missing_locations(tree))))
            _put(parent, name, position, node)
    return found


def _put(parent: ast.AST, name: str, position: int | None, node: ast.AST) -> None:
    if position is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[position] = node


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:90]


def layer_of(module: str) -> str | None:
    return next((name for name, patterns in LAYERS.items() if any(fnmatch(module, p) for p in patterns)), None)


def sample(count: int, seed: int) -> list[Mutant]:
    """As many mutants of each layer, and inside a layer of each module as it has lines."""
    r = random.Random(seed)
    chosen: list[Mutant] = []
    for layer in LAYERS:
        modules = [
            path for path in sorted(SOURCE.rglob("*.py")) if layer_of(path.relative_to(SOURCE).as_posix()) == layer
        ]
        weights = [len(path.read_text("utf-8").splitlines()) for path in modules]
        for path, number in Counter(r.choices(modules, weights, k=-(-count // len(LAYERS)))).items():
            chosen += pick(path, number, r)
    r.shuffle(chosen)
    return chosen


def tests_for(mutant: Mutant, measured: Map) -> list[str]:
    """The tests that execute its line, the quickest first; of a line that an import executes, those of the module."""
    lines = measured.lines[mutant.module]
    nodes = {node for line in range(mutant.line, mutant.end + 1) for node in lines[line]} - {""}
    if mutant.at_import or not nodes:
        nodes = {node for contexts in lines.values() for node in contexts} - {""}
    return sorted(nodes, key=lambda node: measured.seconds.get(node, UNKNOWN_SECONDS))


def unmeasured_tests(module: str, kind: str) -> list[str]:
    """Test files that import a module or its folder, and were not measured as they are; the smallest first, a few."""
    path = "tensorglot." + module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    folder, _, stem = path.rpartition(".")
    words = (f"from {path} import", f"from {folder} import {stem}", f'"{stem}"', f"from {folder} import")
    files = [file for file in coverage_map.test_files([]) if not coverage_map.is_measured(file, kind)]
    texts = {str(file.relative_to(TOP)): file.read_text("utf-8") for file in files}
    found = {name: None for word in words for name, text in texts.items() if word in text}
    return list(found)[:2]


def batches(tests: list[str], seconds: dict[str, float]) -> Iterator[tuple[list[str], float]]:
    """The quickest tests of a mutant, of the files that have most of them, then the others, each with what they take.

    Collecting a file takes as long as many of its tests.
    """
    files = Counter(node.partition("::")[0] for node in tests)
    likely = {name for name, _ in files.most_common(FIRST_FILES)}
    first: list[str] = []
    rest: list[str] = []
    total = 0.0
    for node in sorted(tests, key=lambda node: node.partition("::")[0] not in likely):
        total += seconds.get(node, UNKNOWN_SECONDS)
        if (total <= FIRST_SECONDS and node.partition("::")[0] in likely) or not first:
            first.append(node)
        elif total <= MOST_SECONDS:
            rest.append(node)
    for batch in (first, rest):
        if batch:
            yield batch, sum(seconds.get(node, UNKNOWN_SECONDS) for node in batch)


_BROKEN = 99
Outcome = Literal["survives", "killed", "late"]


def outcome(copy_of: Path, tests: list[str], timeout: float) -> tuple[Outcome, str]:
    """Runs the tests on a copy of the source, in a fork of this process; returns the result and the test that fails."""
    said = copy_of / "said"
    child = os.fork()
    if child == 0:
        os.setsid()
        with said.open("wb") as out:
            for descriptor in (1, 2):
                os.dup2(out.fileno(), descriptor)
        os.environ |= {
            "PYTHONPATH": str(copy_of),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(copy_of))
        os.chdir(TOP)
        options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider"]
        code = _BROKEN
        try:
            code = int(pytest.main([*options, *tests]))
        except BaseException:  # noqa: BLE001 (whatever it is, it must not go on in this fork)
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    status = _wait(child, timeout)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
        return "late", ""
    code = os.waitstatus_to_exitcode(status)
    if code in (_BROKEN, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.INTERNAL_ERROR):
        sys.exit(f"pytest itself fails ({code}):\n{said.read_text(errors='replace')[-2000:]}")
    failed = [line for line in said.read_text(errors="replace").splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ("killed" if code else "survives"), "".join(failed[:1])[:160]


def _wait(child: int, timeout: float) -> int | None:
    """The status of a process; None if its session takes more time of the processor than that, or ten times as long."""
    end = time.monotonic() + 10 * timeout
    while time.monotonic() < end and _session_seconds(child) < timeout:
        for _ in range(25):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.02)
    return None


def _session_seconds(leader: int) -> float:
    """Processor time of a process and of those that it has started."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


class Copies:
    """Two copies of the source: with compiled kernels, and without."""

    def __init__(self, folder: Path) -> None:
        self.folders = {"compiled": folder / "compiled", "interpreted": folder / "interpreted"}
        self.passing: set[str] = set()
        self.unusable: set[str] = set()
        """Tests that pass without a mutant, and those that fail here anyway."""
        for kind, path in self.folders.items():
            left_out = ["__pycache__"] + (["*.so"] if kind == "interpreted" else [])
            shutil.copytree(SOURCE, path / "tensorglot", ignore=shutil.ignore_patterns(*left_out))
            compileall.compile_dir(path, quiet=2)

    def try_out(self, mutant: Mutant, measured: Map, others: list[str]) -> tuple[Outcome, str]:
        """What the measured tests say of a mutant, and then other test files. A test must pass without the mutant."""
        kind = kind_of(mutant)
        tests = tests_for(mutant, measured)
        while True:
            known = batches([node for node in tests if node not in self.unusable], measured.seconds)
            more = [([name], UNKNOWN_SECONDS) for name in others if name not in self.unusable]
            found, by = self._compare(mutant) if kind == "interpreted" else ("survives", "")
            if found == "survives":
                found, by = self._judge(mutant, kind, [*known, *more])
            test = by.partition(" ")[2].partition(" ")[0].partition("[")[0]
            if found != "killed" or not test or test in self.passing:
                return found, by
            if outcome(self.folders[kind], [test], SECONDS)[0] == "survives":
                self.passing.add(test)
                return found, by
            self.unusable |= {test, test.partition("::")[0]}

    def _compare(self, mutant: Mutant) -> tuple[Outcome, str]:
        """What the tests say that compare a kernel's two forms: the compiled one is that of the original."""
        name = Path(mutant.module).stem
        files = ["tests/test_kernels.py", *(["tests/test_cbor_kernel.py"] if name.startswith("cbor") else [])]
        # With those of the kernels that it is a part of.
        chosen = f"{name.partition('_')[0]} or cbor_kernel or (same and not does_the_same)"
        return self._judge(mutant, "compiled", [([*files, "-k", chosen], UNKNOWN_SECONDS)])

    def _judge(self, mutant: Mutant, kind: str, batches: list[tuple[list[str], float]]) -> tuple[Outcome, str]:
        file = self.folders[kind] / "tensorglot" / mutant.module
        file.write_text(mutant.source, "utf-8")
        left = SECONDS
        try:
            for tests, seconds in batches:
                begun = os.times().children_user
                found = outcome(self.folders[kind], tests, min(left, 30 + 10 * seconds))
                left -= os.times().children_user - begun
                if found[0] != "survives" or left < 1:
                    return found
            return "survives", ""
        finally:
            shutil.copy2(SOURCE / mutant.module, file)


def kind_of(mutant: Mutant) -> str:
    return "interpreted" if mutant.module.startswith("kernels/") else "compiled"


def options() -> tuple[int, int, int, float, bool]:
    """Count, seed, processes, minutes, and whether only measured tests count."""
    numbers = [int(word) for word in sys.argv[1:] if not word.startswith("--")]
    named = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
    count, seed = numbers + [300, random.SystemRandom().randrange(1 << 32)][len(numbers) :]
    jobs = int(named.get("jobs") or len(os.sched_getaffinity(0)))
    return count, seed, jobs, float(named.get("minutes") or "inf"), "measured" in named


def said_of(mutant: Mutant) -> str:
    return re.sub(r"\s+", " ", str(mutant))


def work(mutants: list[Mutant], seed: int, end: float, measured: dict[str, Map], *, others: bool) -> None:
    """Tries mutants out, until it is time, in copies of its own. Adds a line to the journal for each."""
    with tempfile.TemporaryDirectory() as name, JOURNAL.open("a", encoding="utf-8") as journal:
        copies = Copies(Path(name))
        for mutant in mutants:
            if time.monotonic() > end:
                break
            kind = kind_of(mutant)
            more = unmeasured_tests(mutant.module, kind) if others else []
            found, by = copies.try_out(mutant, measured[kind], more)
            row = {"seed": seed, "mutant": said_of(mutant), "outcome": found, "by": by}
            journal.write(json.dumps(row) + "\n")
            journal.flush()
            if found == "survives":
                print(said_of(mutant), flush=True)


def check_copies(measured: dict[str, Map]) -> None:
    """A copy without a mutant passes."""
    with tempfile.TemporaryDirectory() as name:
        for kind, folder in Copies(Path(name)).folders.items():
            quickest = min(measured[kind].seconds, key=lambda node: measured[kind].seconds[node])
            if outcome(folder, [quickest], 300)[0] != "survives":
                sys.exit(f"{quickest} fails without a mutant, on {kind} kernels")


def main() -> int:
    count, seed, jobs, minutes, only_measured = options()
    for kind in ("compiled", "interpreted"):
        if not (coverage_map.FOLDER / kind).exists():
            sys.exit("run python tests/coverage_map.py and python tests/coverage_map.py --interpreted first")
    measured = {kind: coverage_map.load(kind) for kind in ("compiled", "interpreted")}
    for name in PRELOADED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    check_copies(measured)
    chosen = sample(count, seed)
    if only_measured:
        chosen = [
            mutant
            for mutant in chosen
            if kind_of(mutant) == "interpreted" or tests_for(mutant, measured[kind_of(mutant)])
        ]
    known = _journal(seed)
    left = [mutant for mutant in chosen if known.get(said_of(mutant), "survives") == "survives"]
    left.sort(key=lambda mutant: said_of(mutant) in known)  # those that were not tried first
    end = time.monotonic() + 60 * minutes
    workers = []
    for number in range(jobs):
        child = os.fork()
        if child == 0:
            work(left[number::jobs], seed, end, measured, others=not only_measured)
            os._exit(0)
        workers.append(child)
    for child in workers:
        os.waitpid(child, 0)
    summarize(chosen, seed)
    return 0


def summarize(chosen: list[Mutant], seed: int) -> None:
    """Prints the figures of a seed, and writes them to the summary."""
    known = _journal(seed)
    figures: dict[str, Counter[str]] = {layer: Counter() for layer in LAYERS}
    for mutant in chosen:
        if said_of(mutant) in known:
            figures[str(layer_of(mutant.module))][known[said_of(mutant)]] += 1
    layers = {
        layer: {"killed": outcomes.total() - outcomes["survives"], "tried": outcomes.total()}
        for layer, outcomes in figures.items()
    }
    tried, killed = (sum(row[key] for row in layers.values()) for key in ("tried", "killed"))
    survivors = sorted(said for said in map(said_of, chosen) if known.get(said) == "survives")
    summary = {"seed": seed, "chosen": len(chosen), "tried": tried, "killed": killed, "layers": layers}
    SUMMARY.write_text(json.dumps({**summary, "survivors": survivors}, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for layer, row in layers.items():
        print(f"{layer:<12} {row['killed']:4} of {row['tried']:4} killed")
    print(f"{killed} of {tried} mutants of seed {seed} killed, {killed / max(1, tried):.1%}")


def _journal(seed: int) -> dict[str, Outcome]:
    """What was last seen of each mutant of a seed."""
    JOURNAL.parent.mkdir(exist_ok=True)
    JOURNAL.touch()
    rows = map(json.loads, JOURNAL.read_text("utf-8").splitlines())
    return {row["mutant"]: row["outcome"] for row in rows if row["seed"] == seed}


if __name__ == "__main__":
    sys.exit(main())
