"""Optional libraries, imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorglot.errors import UnsupportedError

__all__ = ["ak", "compute", "jax", "library", "pa", "pandas", "parquet", "polars", "sparse", "torch"]


def library(module: str, extra: str) -> Any:
    """Imports an optional library; if it is not installed, the error names the extra to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        message = f"{module.partition('.')[0]} is not installed: pip install tensorglot[{extra}]"
        raise UnsupportedError(message, rule=f"extra.{extra}") from error


class _Library:
    """A module of an optional library, which is imported when an attribute of it is first used."""

    def __init__(self, module: str, extra: str) -> None:
        self._module, self._extra = module, extra

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(library(self._module, self._extra), name)
        return found


ak = _Library("awkward", "awkward")
compute = _Library("pyarrow.compute", "arrow")
jax = _Library("jax", "jax")
pa = _Library("pyarrow", "arrow")
pandas = _Library("pandas", "pandas")
parquet = _Library("pyarrow.parquet", "arrow")
polars = _Library("polars", "polars")
sparse = _Library("scipy.sparse", "scipy")
if TYPE_CHECKING:
    import torch
else:
    torch = _Library("torch", "torch")
