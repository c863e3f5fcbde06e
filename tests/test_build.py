"""The build compiles all kernels or none, and leaves a package that can be imported either way.

The package built here has three modules of the real one: enough to see what becomes of
them, and few enough to compile in a test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from peers import needs

ROOT = Path(__file__).parents[1]
FILES = (
    "__init__.py", "nocython.py", "primitives.py", "primitives.pxd", "varints.py", "varints.pxd", "gather.py",
    "zstd_blocks.py",
)  # fmt: skip
USE = """
import numpy as np, sys
from tensorglot.kernels import gather, zstd_blocks
out = np.zeros(2, np.uint8)
assert gather.gather(b"abc", np.array([1]), np.array([2]), out, np.array([0])) and bytes(out) == b"bc"
assert zstd_blocks.walk(b"\\1\\0\\0", 0, 0, 128) == (zstd_blocks.LAST, 3)
print(*sorted({module.__file__.endswith(".py") for module in (gather, zstd_blocks)}))
"""


PYPROJECT = """
[project]
name = "tensorglot"
version = "0"
[tool.setuptools.packages.find]
where = ["src"]
"""


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after a build without a compiler: the kernels are in C, and nothing is compiled."""
    needs("Cython")
    needs("setuptools")
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    project = tmp_path_factory.mktemp("project")
    (project / "pyproject.toml").write_text(PYPROJECT)
    shutil.copy(ROOT / "setup.py", project)
    folder = project / "src" / "tensorglot" / "kernels"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    for name in FILES:
        shutil.copy2(ROOT / "src" / "tensorglot" / "kernels" / name, folder)
    assert build(project, CC="false") == set()
    return project


@pytest.fixture
def project(translated: Path, tmp_path: Path) -> Path:
    return shutil.copytree(translated, tmp_path / "project")


def use(project: Path) -> list[str]:
    """Whether kernels are interpreted, as far as they differ."""
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    used = subprocess.run([sys.executable, "-c", USE], env=environment, cwd=project, capture_output=True, text=True)
    assert used.returncode == 0, used.stderr
    return used.stdout.split()


def build(project: Path, script: str = "setup.py", **environment: str) -> set[str]:
    """The libraries that a build leaves in the source folder, for a package that works."""
    command = [sys.executable, script, "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=project, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    libraries = {file.name.partition(".")[0] for file in (project / "src/tensorglot/kernels").glob("*.so")}
    assert use(project) == ["False" if libraries else "True"]
    return libraries


def failing_compiler(project: Path, name: str) -> str:
    """A compiler that fails for one file."""
    script = project / "cc"
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    script.write_text(f'#!/bin/sh\ncase "$*" in *{name}*) exit 1;; esac\nexec {compiler} "$@"\n')
    script.chmod(0o755)
    return str(script)


def test_all_kernels_are_compiled_and_replace_those_of_an_older_build(project: Path) -> None:
    folder = project / "src" / "tensorglot" / "kernels"
    (folder / f"gather{sysconfig.get_config_var('EXT_SUFFIX')}").write_bytes(b"not a library")
    assert build(project) == {"_shared", "gather", "zstd_blocks"}
    next(folder.glob("gather*.so")).unlink()
    assert use(project) == ["False", "True"]


@pytest.mark.parametrize("name", ["_shared.c", "gather.c"])
def test_where_one_cannot_be_compiled_all_run_interpreted(project: Path, name: str) -> None:
    assert build(project, CC=failing_compiler(project, name)) == set()


def test_compiling_can_be_declined(project: Path) -> None:
    assert build(project, TENSORGLOT_COMPILE="0") == set()


def test_free_threaded_python_gets_kernels_of_its_own(project: Path) -> None:
    """It has no stable ABI, and enables the GIL for a module that does not declare that it needs none."""
    shutil.rmtree(project / "build")
    (project / "free.py").write_text(
        "import runpy, sysconfig\n"
        "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1\n"
        "runpy.run_path('setup.py', run_name='__main__')\n"
    )
    assert build(project, "free.py") == {"_shared", "gather", "zstd_blocks"}
    folder = project / "src" / "tensorglot" / "kernels"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert {path.name.partition(".")[2] for path in folder.glob("*.so")} == {suffix.removeprefix(".")}
    for name in ("gather", "zstd_blocks"):
        (source,) = (project / "build").rglob(f"{name}.c")
        default = re.findall("define __Pyx_FREETHREADING_COMPATIBLE (.*)", source.read_text("utf-8"))[-1]
        assert default == "Py_MOD_GIL_NOT_USED"
