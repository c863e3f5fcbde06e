"""Compiles the kernels where that is possible; pyproject.toml has everything else.

Without Cython or a C compiler the package installs all the same and runs the
kernels interpreted. TENSORGLOT_COMPILE=0 asks for that.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

PLAIN = {"__init__", "nocython"}


def kernels() -> list[Extension]:
    if os.environ.get("TENSORGLOT_COMPILE") == "0":
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    extensions = [
        Extension(f"tensorglot.kernels.{path.stem}", [path.as_posix()], extra_compile_args=["-O3"])
        for path in sorted(Path("src/tensorglot/kernels").glob("*.py"))
        if path.stem not in PLAIN
    ]
    directives = {
        "language_level": 3,
        "boundscheck": False,  # kernels check every bound before they touch a byte
        "wraparound": False,
        "initializedcheck": False,
        "cdivision": True,
    }
    modules: list[Extension] = cythonize(extensions, compiler_directives=directives, build_dir="build")
    for module in modules:
        module.optional = True
    return modules


setup(ext_modules=kernels(), options={"build_ext": {"parallel": os.cpu_count()}})
