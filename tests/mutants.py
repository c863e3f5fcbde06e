"""Mutation testing of the library itself: `python tests/mutants.py [COUNT] [SEED]`, or `make mutants`.

A mutant is the source with one expression or statement changed: a comparison turned, a
constant moved by one, a branch always taken, a call left out. The tests of its part of the
library must fail on it. Those that survive are printed, each with its line: either a test
is missing, or the mutant is equivalent, and then its line belongs into EQUIVALENT with the
reason. Kernels run interpreted, so that nothing is compiled for a mutant.

Each part of the library names the tests that run for it, the quickest first. A mutant on
which they take ten times as long as on the original counts as noticed.
"""

from __future__ import annotations

import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[1]
SOURCE = TOP / "src" / "tensorglot"

TESTS: dict[str, tuple[str, ...]] = {
    "kernels/bintensors": ("attacks_bintensors", "corpus_bintensors", "kernels"),
    "kernels/bson": ("bson_walk", "attacks_bson", "kernels"),
    "kernels/cbor": ("cbor_kernel", "cbor", "attacks_ztensor", "kernels"),
    "kernels/planes": ("store_encodings", "kernels"),
    "kernels/safetensors": ("safetensors", "kernels"),
    "kernels/varint": ("varint_bounds", "dynd_bijection", "attacks_dynd", "kernels"),
    "kernels/": ("kernels", "index", "reading", "zstd", "ztensor_01", "attacks_dynd"),
    "model/types": ("dynd_types", "dynd_time", "dynd_bijection"),
    "model/": ("index", "slicing", "reading", "layouts", "strided", "refusals", "roundtrip"),
    "wire/bson": ("bson_vector", "bson_walk", "attacks_bson", "bson_matrix"),
    "wire/": ("cbor", "checksums", "cid", "zstd", "numpy_files", "attacks_ztensor", "ztensor_2"),
    "io/": ("saving", "host", "closing", "writing", "two_writers"),
    "containers/bintensors": ("corpus_bintensors", "attacks_bintensors", "roundtrip"),
    "containers/ztensor": ("ztensor_01", "ztensor_2", "attacks_ztensor", "corpus_ztensor", "ztensor_writing"),
    "containers/pt": ("pt", "foreign_bounds"),
    "containers/torchsave": ("pt", "foreign_bounds", "dcp*"),
    "containers/dcp": ("dcp*",),
    "containers/gguf": ("gguf",),
    "containers/": ("roundtrip", "safetensors", "numpy_files", "dynd_files", "bson_format", "matrix", "public"),
    "dynd/": ("dynd_python", "dynd_numpy", "dynd_vectors", "dynd_cbor", "links", "dynd_select", "attacks_dynd"),
    "bson/": ("bson_vector", "bson_matrix", "bson_coerce", "bson_walk", "bson_other_databases"),
    "bridges/": ("dynd_libraries", "coerce", "frameworks"),
    "operations/diff": ("diff", "diff_rows"),
    "operations/_equal_rows": ("diff_rows",),
    "operations/_compare": ("diff",),
    "operations/": (
        "writing",
        "convert",
        "edit",
        "shards",
        "verify_ztensor",
        "stats",
        "cli_hash",
        "sums",
        "save_limits",
    ),
    "store/": ("store_encodings", "store*"),
}
"""The beginning of a module's path to the tests that must notice its mutants; the first that fits."""

EQUIVALENT: dict[str, str] = {}
"""`module: line` of mutants that change nothing that anyone could see, and why."""

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
    elif isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            changed = copy.copy(node)
            changed.test = ast.Constant(value)
            yield changed
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield ast.Pass()


def _skipped(node: ast.AST) -> bool:
    """Imports for types, `__all__`, and what only a reader of the source sees."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
        return True
    return isinstance(node, ast.ImportFrom | ast.Import)


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """The nodes below a node: parent, field, position in the field, node."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _skipped(child):
                yield node, name, at, child
                yield from _places(child)


def pick(path: Path, count: int, r: random.Random) -> list[Mutant]:
    """Some mutants of a module."""
    text, module = path.read_text("utf-8"), path.relative_to(SOURCE).as_posix()
    tree = ast.parse(text)
    every = [(place, at) for place in _places(tree) for at in range(len(list(changes(place[3]))))]
    every = [(place, at) for place, at in every if hasattr(place[3], "lineno")]
    found = []
    for place, at in r.sample(every, min(count, len(every))):
        parent, name, position, node = place
        changed = ast.copy_location(list(changes(node))[at], node)
        what = f"{_first_line(node)}  →  {_first_line(changed)}"
        if f"{module}: {what}" not in EQUIVALENT:
            _put(parent, name, position, changed)
            found.append(Mutant(module, getattr(node, "lineno", 0), what, ast.unparse(ast.fix_missing_locations(tree))))
            _put(parent, name, position, node)
    return found


def _put(parent: ast.AST, name: str, position: int | None, node: ast.AST) -> None:
    if position is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[position] = node


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:90]


def tests_for(module: str) -> list[str]:
    for beginning, names in TESTS.items():
        if module.startswith(beginning):
            return [str(path) for name in names for path in sorted((TOP / "tests").glob(f"test_{name}.py"))]
    return []


def sample(count: int, seed: int) -> list[Mutant]:
    """Mutants of all parts, as many of each as it has lines."""
    r = random.Random(seed)
    modules = [path for path in sorted(SOURCE.rglob("*.py")) if tests_for(path.relative_to(SOURCE).as_posix())]
    weights = [len(path.read_text("utf-8").splitlines()) for path in modules]
    return [
        mutant
        for path, number in Counter(r.choices(modules, weights, k=count)).items()
        for mutant in pick(path, number, r)
    ]


def run(copy_of: Path, tests: list[str], timeout: float | None = None) -> bool:
    """Whether the tests pass on a copy of the source."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy_of),
        "TENSORGLOT_KERNELS": "interpreted",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *tests,
    ]
    try:
        return (
            subprocess.run(
                command, cwd=TOP, env=environment, capture_output=True, timeout=timeout, check=False
            ).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False


def survives(mutant: Mutant, patience: dict[str, float]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE, Path(folder, "tensorglot"), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        Path(folder, "tensorglot", mutant.module).write_text(mutant.source, "utf-8")
        tests = tests_for(mutant.module)
        return run(Path(folder), tests, patience[" ".join(tests)])


def main() -> int:
    given = [int(text) for text in sys.argv[1:]]
    count, seed = given + [300, random.SystemRandom().randrange(1 << 32)][len(given) :]
    chosen = sample(count, seed)
    patience: dict[str, float] = {}
    for tests in {" ".join(tests_for(mutant.module)): tests_for(mutant.module) for mutant in chosen}.values():
        begun = time.perf_counter()
        if not run(SOURCE.parent, tests):
            sys.exit(f"the tests fail without a mutant: {' '.join(tests)}")
        patience[" ".join(tests)] = 30 + 10 * (time.perf_counter() - begun)
    survivors = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, alive in zip(chosen, pool.map(lambda m: survives(m, patience), chosen), strict=True):
            survivors += alive
            if alive:
                print(re.sub(r"\s+", " ", str(mutant)), flush=True)
    killed = len(chosen) - survivors
    print(f"{killed} of {len(chosen)} mutants of seed {seed} noticed, {killed / max(1, len(chosen)):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
