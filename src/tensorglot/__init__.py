"""Every tensor has one identity, and can live in any container.

A public name is imported from its module when it is first used (PEP 562): help on the
command line does not wait for NumPy. This module also connects the layers: it names the
providers of the extension points of lower layers (the exports of a Tensor, the libraries
whose values are accepted), which are imported when they are first called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tensorglot.providers import provide

if TYPE_CHECKING:
    from tensorglot import bridges as bridges
    from tensorglot import bson as bson
    from tensorglot import dynd as dynd
    from tensorglot import jax as jax
    from tensorglot import numpy as numpy
    from tensorglot import report as report
    from tensorglot import store as store
    from tensorglot import torch as torch
    from tensorglot.bridges.drop_in import safe_open as safe_open
    from tensorglot.containers.table import Format as Format
    from tensorglot.containers.table import formats as formats
    from tensorglot.errors import AmbiguousFormat as AmbiguousFormat
    from tensorglot.errors import FormatError as FormatError
    from tensorglot.errors import InputError as InputError
    from tensorglot.errors import IntegrityError as IntegrityError
    from tensorglot.errors import LimitError as LimitError
    from tensorglot.errors import LossWarning as LossWarning
    from tensorglot.errors import MissingFile as MissingFile
    from tensorglot.errors import NotExportable as NotExportable
    from tensorglot.errors import OutOfRange as OutOfRange
    from tensorglot.errors import RemoteError as RemoteError
    from tensorglot.errors import StateError as StateError
    from tensorglot.errors import TensorglotError as TensorglotError
    from tensorglot.errors import TensorNotFound as TensorNotFound
    from tensorglot.errors import TruncatedError as TruncatedError
    from tensorglot.errors import UnsupportedError as UnsupportedError
    from tensorglot.limits import Limits as Limits
    from tensorglot.model.archive import Archive as Archive
    from tensorglot.model.tensor import Tensor as Tensor
    from tensorglot.operations._as_archive import flatten as flatten
    from tensorglot.operations.convert import convert as convert
    from tensorglot.operations.diff import Diff as Diff
    from tensorglot.operations.diff import diff as diff
    from tensorglot.operations.edit import edit as edit
    from tensorglot.operations.identify import Identity as Identity
    from tensorglot.operations.identify import identify as identify
    from tensorglot.operations.load import load as load
    from tensorglot.operations.load import loads as loads
    from tensorglot.operations.open import open as open
    from tensorglot.operations.quantize import quantize as quantize
    from tensorglot.operations.save import dumps as dumps
    from tensorglot.operations.save import save as save
    from tensorglot.operations.split import merge as merge
    from tensorglot.operations.split import split as split
    from tensorglot.operations.stats import Stats as Stats
    from tensorglot.operations.stats import stats as stats
    from tensorglot.operations.verify import Report as Report
    from tensorglot.operations.verify import verify as verify
    from tensorglot.operations.writer import Writer as Writer

__version__ = "0.2.0"

_HOMES = {
    "bridges.drop_in": ("safe_open",),
    "containers.table": ("Format", "formats"),
    "errors": (
        "AmbiguousFormat", "FormatError", "InputError", "IntegrityError", "LimitError", "LossWarning", "MissingFile",
        "NotExportable", "OutOfRange", "RemoteError", "StateError", "TensorNotFound", "TensorglotError",
        "TruncatedError", "UnsupportedError",
    ),
    "limits": ("Limits",),
    "model.archive": ("Archive",),
    "model.tensor": ("Tensor",),
    "operations._as_archive": ("flatten",),
    "operations.convert": ("convert",),
    "operations.diff": ("Diff", "diff"),
    "operations.edit": ("edit",),
    "operations.identify": ("Identity", "identify"),
    "operations.load": ("load", "loads"),
    "operations.open": ("open",),
    "operations.quantize": ("quantize",),
    "operations.save": ("dumps", "save"),
    "operations.split": ("merge", "split"),
    "operations.stats": ("Stats", "stats"),
    "operations.verify": ("Report", "verify"),
    "operations.writer": ("Writer",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("bridges", "bson", "dynd", "jax", "numpy", "report", "store", "torch")
"""Subpackages that are attributes of the package."""

_PROVIDERS = {
    "bridges.find": ("bridges.table", "find"),
    "bridges.framework": ("bridges.table", "framework"),
    "bridges.framework_name": ("bridges.table", "framework_name"),
    "bridges.from_dlpack": ("bridges.dlpack", "to_numpy"),
    "bridges.torch_out": ("bridges.torch", "shared_array"),
    "dynd.from_parquet": ("bridges.parquet", "from_parquet"),
    "dynd.to_pandas": ("bridges.arrow_tables", "to_pandas"),
    "dynd.to_parquet": ("bridges.parquet", "to_parquet"),
    "dynd.to_polars": ("bridges.arrow_tables", "to_polars"),
    "dynd.to_table": ("bridges.arrow_tables", "to_table"),
    "report.html": ("report.notebook", "html"),
    "report.table": ("report.notebook", "table"),
    "store.open": ("store", "open_url"),
    "tensor.arrow": ("bridges.arrow", "from_tensor"),
    "tensor.awkward": ("bridges.awkward", "from_tensor"),
    "tensor.cid": ("dynd", "cid"),
    "tensor.dequantize": ("operations._dequantize", "dequantize"),
    "tensor.dlpack": ("bridges.dlpack", "from_tensor"),
    "tensor.length": ("dynd.export.select", "length"),
    "tensor.numpy": ("dynd", "numpy"),
    "tensor.rows": ("dynd.export.select", "rows"),
    "tensor.scipy": ("bridges.scipy", "from_tensor"),
    "tensor.select": ("dynd.export.select", "select"),
    "tensor.serialize": ("dynd", "serialize"),
    "tensor.tolist": ("dynd", "tolist"),
    "tensor.torch": ("bridges.torch", "from_tensor"),
}
"""The provider of each extension point."""
for _point, (_module, _function) in _PROVIDERS.items():
    provide(_point, f"tensorglot.{_module}", _function)

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tensorglot.{name}")
    if name in _HOME_OF:
        value = getattr(import_module(f"tensorglot.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tensorglot' has no attribute '{name}'", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted({*_MODULES, *__all__})
