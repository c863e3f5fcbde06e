"""Compiles the kernels if possible; everything else is in pyproject.toml.

All kernels are compiled, or none: without Cython or a C compiler the package installs,
too, and runs them interpreted. TENSORGLOT_COMPILE=0 turns compiling off.

Cython's own code for typed memoryviews, most of what every kernel would carry, is
compiled once, into `kernels/_shared`. The stable ABI makes one wheel for every Python
from 3.11 on. Free-threaded Python has no stable ABI: there the kernels are compiled for
that Python alone, and declare that they need no GIL (they share no state).
"""

import os
import runpy
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/tensorglot/kernels")
SHARED = Path("build/kernels/_shared.c")  # the file gives the module its name
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
STABLE_ABI = [] if FREE_THREADED else [("Py_LIMITED_API", "0x030B0000")]
FLAGS = ["-O1", "-g0"]  # as fast as -O2 or -O3 here, in half of the time to compile
OPTIMIZED = {
    "cbor_check",
    "cbor_scan",
    "packed_decode",
    "packed_encode",
    "planes",
    "safetensors",
    "sparse_decode",
    "sparse_encode",
}
"""Kernels that -O3 makes faster: `planes` and those for deltas have loops that become vector instructions,
`safetensors` reads 1,000 tensors in 161 instead of 184 microseconds, those of CBOR execute an eighth fewer
instructions for each tensor."""
DIRECTIVES = {
    "boundscheck": False,  # kernels check every bound before they touch a byte
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    # Turns off features that no kernel uses, so that there is less C to compile:
    "auto_pickle": False,
    "binding": False,
    "emit_code_comments": False,
} | ({"freethreading_compatible": True} if FREE_THREADED else {})


def kernels() -> list[Extension]:
    """Every module in the folder that imports Cython, and the shared one. `translate` replaces the sources by C."""
    if os.environ.get("TENSORGLOT_COMPILE") == "0":
        return []
    if sys.implementation.name != "cpython":
        return []
    paths = [path for path in sorted(FOLDER.glob("*.py")) if "import cython\n" in path.read_text("utf-8")]
    return [
        Extension(
            f"tensorglot.kernels.{path.stem}",
            [path.as_posix()],
            define_macros=STABLE_ABI,
            extra_compile_args=["-O3", "-g0"] if path.stem in OPTIMIZED else FLAGS,
            py_limited_api=not FREE_THREADED,
            optional=True,
        )
        for path in [*paths, SHARED]
    ]


def generate_shared() -> None:
    """Runs `python -m cython` in this process, so that the compiler is imported once."""
    before, sys.argv = sys.argv, ["cython", f"--generate-shared={SHARED}"]
    try:
        runpy.run_module("cython", run_name="__main__", alter_sys=True)
    finally:
        sys.argv = before


def translate(modules: list[Extension]) -> None:
    """Gives the modules sources in C."""
    from Cython.Build import cythonize

    if not SHARED.exists():
        SHARED.parent.mkdir(parents=True, exist_ok=True)
        generate_shared()
    translated = cythonize(
        [module for module in modules if module.sources != [SHARED.as_posix()]],
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=f"tensorglot.kernels.{SHARED.stem}",
        build_dir="build",
    )
    sources = {module.name: module.sources for module in translated}
    for module in modules:
        module.sources = sources.get(module.name, module.sources)


class BuildKernels(build_ext):
    def build_extensions(self) -> None:
        """Builds all kernels; if one fails, removes the others, since none can be imported without `_shared`."""
        try:
            translate(self.extensions)
            super().build_extensions()
        except Exception as error:  # noqa: BLE001 (whatever it is, the package works without)
            self.warn(str(error))
        made = [Path(self.get_ext_fullpath(module.name)) for module in self.extensions]
        if not all(path.exists() for path in made):
            self.warn("the kernels could not be compiled and will run interpreted")
            for path in made:
                path.unlink(missing_ok=True)

    def copy_extensions_to_source(self) -> None:
        """For editable installs: removes files of older builds first, which Python might find before the new ones."""
        for old in (*FOLDER.glob("*.so"), *FOLDER.glob("*.pyd")):
            old.unlink()
        super().copy_extensions_to_source()


setup(
    ext_modules=kernels(),
    cmdclass={"build_ext": BuildKernels},
    options={
        "build_ext": {"parallel": os.cpu_count()},
        "bdist_wheel": {} if FREE_THREADED else {"py_limited_api": "cp311"},
    },
)
