"""Imports go one way, and tables are complete.

The layers are a table: what each may import. Every import counts: at the top of a
module, inside a function, and through a string that names a module.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.containers.table import TABLE as FORMATS
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.dtypes import TABLE as DTYPES
from tensorglot.model.payload import Memory
from tensorglot.model.tensor import Part, Tensor
from tensorglot.model.types.algebra import dense

ROOT = Path(__file__).parents[1] / "src" / "tensorglot"

FOUNDATION = {
    "arguments", "arrays", "cached", "errors", "extras", "limits", "memory", "providers", "threads", "tuples"
}  # fmt: skip
VALUES = FOUNDATION | {"kernels", "model", "wire", "dynd"}
CONTAINERS = VALUES | {"containers"}
VERBS = CONTAINERS | {"io", "operations"}
PEOPLE = VERBS | {"bson", "bridges", "report", "store"}
LAYERS: dict[str, set[str]] = {
    "arguments": {"errors"},
    "arrays": set(),
    "cached": set(),
    "errors": {"tuples"},
    "limits": {"errors"},
    "extras": {"errors"},
    "memory": set(),
    "providers": set(),
    "threads": set(),
    "tuples": set(),
    "kernels": set(),
    "model": {"arrays", "cached", "errors", "limits", "memory", "providers", "threads", "tuples", "kernels"},
    "wire": {"arrays", "errors", "limits", "threads", "tuples", "kernels"},
    "io": {"arguments", "cached", "errors", "extras", "threads", "tuples", "memory"},
    "dynd": VALUES - {"dynd"},
    "containers": VALUES,
    "operations": CONTAINERS | {"io"},
    "bson": VERBS,
    "report": VERBS,
    "store": VERBS,
    "bridges": VERBS | {"bson", "store"},
    "jax": PEOPLE,
    "numpy": PEOPLE,
    "torch": PEOPLE,
    "cli": PEOPLE | {"__init__"},
    "__init__": PEOPLE | {"jax", "numpy", "torch"},
    "__main__": {"cli"},
}
"""What each layer may import, itself apart."""
CORE = {"numpy", "ml_dtypes", "zstandard", "xxhash", "blake3", "crc32c"}
"""Libraries that may be imported at the top of a module; `click` and `rich` in the command line."""


NAMES_A_MODULE = re.compile(r"tensorglot\.([a-z_][\w.]*(:[\w.]+)?)?")
"""A string by which a module could be imported. Of an f-string or a sum, the part before the first brace or sign."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def layer(module: str) -> str:
    """`tensorglot.model.index` is of the layer `model`, `tensorglot` of its own."""
    return [*module.split("."), "__init__"][1]


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Every module that is imported, and whether that happens when the module itself is imported.

    `tensorglot.dynd.cid` after `import tensorglot.errors` counts, too: the package loads what is
    looked up in it. Relative imports are not used here.
    """
    at_once = set(map(id, executed(tree)))
    for node in ast.walk(tree):
        now = id(node) in at_once
        if isinstance(node, ast.Import):
            yield from ((alias.name, now) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            name = node.module or ""
            yield name, now
            if name.startswith("tensorglot"):
                yield from ((f"{name}.{alias.name}", now) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMES_A_MODULE.fullmatch(node.value):
            yield node.value.partition(":")[0].rstrip("."), False
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tensorglot":
            yield f"tensorglot.{node.attr}", False
        elif isinstance(node, (ast.Call, ast.Subscript)):
            name = looked_up(node)
            assert not name.startswith("."), "a relative import"
            if name == "tensorglot":
                yield name, False


def looked_up(node: ast.Call | ast.Subscript) -> str:
    """The name that is passed to `import_module` and its like, or looked up in `sys.modules`; else nothing."""
    by, keys = (node.func, node.args) if isinstance(node, ast.Call) else (node.value, [node.slice])
    if not keys or not isinstance(keys[0], ast.Constant) or not isinstance(keys[0].value, str):
        return ""
    return keys[0].value if re.search(r"\b(import_module|__import__|sys\.modules(\.get)?)$", ast.unparse(by)) else ""


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: all but the bodies of functions, and imports for the type checker alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from executed(child)


def ours(name: str) -> bool:
    return name == "tensorglot" or name.startswith("tensorglot.")


def wrong_imports(module: str, tree: ast.AST) -> set[str]:
    """What a module imports of ours and may not."""
    mine = layer(module)
    wrong = set()
    for name, _ in imports(tree):
        theirs = layer(name) if ours(name) else mine
        if theirs in LAYERS and theirs != mine and theirs not in LAYERS[mine]:
            wrong.add(name)
    return wrong


SHARED = {"table", "canonical", "torchsave"}
"""Modules of `containers` that are no format. They import none either."""


def foreign_formats(module: str, tree: ast.AST) -> set[str]:
    """Which formats other than itself the module of a format imports."""
    mine = module.split(".")[2]
    names = (name.split(".") for name, _ in imports(tree) if name.startswith("tensorglot.containers."))
    return {parts[2] for parts in names} - {mine, *SHARED}


def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text())


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_imports_go_one_way(module: str, path: Path) -> None:
    assert layer(module) in LAYERS, "a layer that the table does not have"
    assert wrong_imports(module, parsed(path)) == set()


FORMAT_MODULES = [
    (name, path)
    for name, path in modules()
    if name.startswith("tensorglot.containers.") and name != "tensorglot.containers.table"
]


def test_what_formats_share_is_no_format() -> None:
    assert not SHARED & {spec.name for spec in FORMATS}


@pytest.mark.parametrize(("module", "path"), FORMAT_MODULES)
def test_no_format_imports_another(module: str, path: Path) -> None:
    assert foreign_formats(module, parsed(path)) == set()


@pytest.mark.parametrize(("module", "path"), list(modules()))
def test_only_core_libraries_are_imported_at_the_top(module: str, path: Path) -> None:
    allowed = {*sys.stdlib_module_names, *CORE, "tensorglot"}
    if layer(module) == "cli":
        allowed |= {"click", "rich"}
    if layer(module) == "kernels":
        allowed |= {"cython"}
    assert {name.partition(".")[0] for name, now in imports(parsed(path)) if now} <= allowed


def test_the_page_has_every_layer_and_what_the_lower_ones_import() -> None:
    lines = (ROOT.parents[1] / "ARCHITECTURE.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    told = {layer: may for names, _, may in rows for layer in re.findall(r"`(\w+)", names)}
    assert told.keys() | {"__init__", "__main__"} == LAYERS.keys()
    for layer in ("model", "wire", "io"):
        assert set(told[layer].split(", ")) == LAYERS[layer]


def test_a_forbidden_import_is_found_at_module_level_in_functions_and_in_strings() -> None:
    inside = ast.parse("def f():\n    from tensorglot.containers import ztensor")
    for source in (
        "import tensorglot.wire.x",
        "from tensorglot import wire",
        "def f():\n  import tensorglot.io",
        "import_module('tensorglot.dynd')",
        "EXPORTS = {'cid': 'tensorglot.dynd:cid'}",
        "import_module(f'tensorglot.bridges.{name}')",
        "import_module(f'tensorglot.{name}')",
        "import_module('tensorglot.' + name)",
        "import_module('tensorglot').dynd",
        "sys.modules['tensorglot'].dynd",
        "CID = 'tensorglot.dynd:Frozen.cid'",
        "import tensorglot.errors\ntensorglot.dynd.cid(1)",
    ):
        assert wrong_imports("tensorglot.model.index", ast.parse(source)), source
    assert wrong_imports("tensorglot.wire.cbor", ast.parse("from tensorglot.model.dtypes import TABLE"))
    assert wrong_imports("tensorglot.kernels.x", ast.parse("from tensorglot.errors import FormatError"))
    assert wrong_imports("tensorglot.containers.x", ast.parse("from tensorglot.operations.open import open"))
    assert not wrong_imports("tensorglot.operations.open", ast.parse("from tensorglot.containers.table import detect"))
    assert foreign_formats("tensorglot.containers.bintensors", inside) == {"ztensor"}
    assert foreign_formats("tensorglot.containers.ztensor.v1", inside) == set()
    with pytest.raises(AssertionError, match="relative"):
        wrong_imports("tensorglot.model.index", ast.parse("import_module('.dynd', 'tensorglot')"))


def test_an_import_that_runs_at_import_time_is_found() -> None:
    for source in ("import torch", "try:\n  import torch\nexcept ImportError: pass", "class A:\n  import torch"):
        assert ("torch", True) in imports(ast.parse(source))
    for source in ("def f():\n  import torch", "if TYPE_CHECKING:\n  import torch"):
        assert ("torch", False) in imports(ast.parse(source))


# Public names


def order(name: str) -> tuple[bool, bool, str]:
    """Constants, classes, functions, each by name."""
    return not name.isupper(), not name[0].isupper(), name


@pytest.mark.parametrize("module", [name for name, path in modules() if "__all__" in path.read_text()])
def test_all_is_sorted_and_true(module: str) -> None:
    loaded = importlib.import_module(module)
    names = list(loaded.__all__)
    assert names == sorted(set(names), key=order)
    assert all(hasattr(loaded, name) for name in names)


def test_public_names_are_listed() -> None:
    assert set(tg.__all__) <= set(dir(tg))


# Formats × element types


SAMPLE = (3, 8)


def sample(dtype: DType) -> Any:
    """A matrix, which every format has a place for; an array where NumPy has the type."""
    if dtype.numpy is not None:
        return np.zeros(SAMPLE, dtype.numpy)
    raw = np.zeros(dtype.nbytes(math.prod(SAMPLE)), np.uint8)
    return Tensor("data", {"data": Part(dtype, SAMPLE, Memory(raw))})


WRITABLE = [f"{row.name}@{version}" for row in FORMATS for version in row.writes]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("row", [row for row in FORMATS if row.writes], ids=lambda row: row.name)
def test_every_element_type_is_written_or_refused_by_name(row: tg.Format, dtype: DType) -> None:
    held = []
    for version in row.writes:
        format = f"{row.name}@{version}"
        try:
            data = tg.dumps({"data": sample(dtype)}, format=format)
        except tg.UnsupportedError as error:
            assert error.tensor == "data"  # noqa: PT017
            assert dtype.name in error.message  # noqa: PT017
            continue
        held.append(version)
        (tensor,) = tg.open(data, format=format).values()
        assert tensor.type == dense(dtype, SAMPLE)
    if dtype.name in row.dtypes:
        assert held


@pytest.mark.parametrize("row", FORMATS, ids=lambda row: row.name)
def test_codes_of_a_format_lead_to_our_types(row: tg.Format) -> None:
    assert set(row.container.dtypes.values()) <= BY_NAME.keys()
    assert set(row.writes) <= set(row.versions)


# Tests look from outside


def outsiders() -> list[Path]:
    root = ROOT.parents[1]
    return sorted(path for folder in ("tests", "fuzz", "benchmarks") for path in (root / folder).glob("*.py"))


def private(name: str) -> bool:
    """A part of a dotted name is private: `_cast`, not `__version__`."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def private_names(tree: ast.AST) -> set[str]:
    """Private modules and names that are imported or patched, by a statement or by a string."""
    found = {name for name, _ in imports(tree) if private(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names if private(alias.name)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("setattr", "getattr", "delattr"):
            given = (argument.value for argument in node.args if isinstance(argument, ast.Constant))
            found |= {name for name in given if isinstance(name, str) and private(name)}
    return found


@pytest.mark.parametrize("path", outsiders(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_outside_reaches_for_a_private_name(path: Path) -> None:
    """Private attributes are found by ruff (SLF001)."""
    assert private_names(parsed(path)) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from tensorglot.operations._cast import cast",
        "from tensorglot.operations import _cast",
        "from tensorglot.operations.listing import _entry",
        "import tensorglot.operations._cast",
        "monkeypatch.setattr('tensorglot.operations._digests.default_threads', None)",
        "patched.setattr(zstd, '_decode', None)",
    ],
)
def test_a_private_name_is_found(source: str) -> None:
    assert private_names(ast.parse(source))


# Maps


FOLDERS = sorted({path.parent for _, path in modules()} - {ROOT})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_opens_with_a_map_of_its_modules(folder: Path) -> None:
    """Every module is named where one would look for it."""
    text = ast.get_docstring(parsed(folder / "__init__.py")) or ""  # type: ignore[arg-type]
    inside = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    inside |= {path.parent.name for path in folder.glob("*/__init__.py")}
    named = set(re.findall(r"[a-z_0-9]+", text))
    assert {name for name in inside if name not in named} == set()
