"""Compiles the kernels where that is possible; pyproject.toml has everything else.

Without Cython or a C compiler the package installs all the same and runs the
kernels interpreted. TENSORGLOT_COMPILE=0 asks for that.

What every kernel would carry of Cython's own (typed memoryviews, most of the C code)
is compiled once, into `kernels/_shared`: 17 s for all instead of 76.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup

KERNELS = Path("src/tensorglot/kernels")
PLAIN = {"__init__", "nocython"}
FLAGS = ["-O2", "-g0"]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,  # kernels check every bound before they touch a byte
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
}


def kernels() -> list[Extension]:
    if os.environ.get("TENSORGLOT_COMPILE") == "0":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    shared = Path("build/kernels/_shared.c")  # the file gives the module its name
    shared.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "cython", f"--generate-shared={shared}"], check=True)
    modules: list[Extension] = cythonize(
        [
            Extension(f"tensorglot.kernels.{path.stem}", [path.as_posix()])
            for path in sorted(KERNELS.glob("*.py"))
            if path.stem not in PLAIN
        ],
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name="tensorglot.kernels._shared",
        build_dir="build",
    )
    modules.append(Extension("tensorglot.kernels._shared", [shared.as_posix()]))
    for module in modules:
        module.extra_compile_args = FLAGS
        module.optional = True
    return modules


setup(ext_modules=kernels(), options={"build_ext": {"parallel": os.cpu_count()}})
