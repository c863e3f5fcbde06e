"""Every tensor has one identity, and can live in any container.

A public name is loaded from its module when it is first used: the command line prints
its help without waiting for NumPy, and who opens a file does not wait for `convert`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorglot import bson as bson
    from tensorglot import dynd as dynd
    from tensorglot.errors import AmbiguousFormat as AmbiguousFormat
    from tensorglot.errors import FormatError as FormatError
    from tensorglot.errors import InputError as InputError
    from tensorglot.errors import IntegrityError as IntegrityError
    from tensorglot.errors import LimitError as LimitError
    from tensorglot.errors import LossWarning as LossWarning
    from tensorglot.errors import OutOfRange as OutOfRange
    from tensorglot.errors import TensorglotError as TensorglotError
    from tensorglot.errors import TensorNotFound as TensorNotFound
    from tensorglot.errors import TruncatedError as TruncatedError
    from tensorglot.errors import UnsupportedError as UnsupportedError
    from tensorglot.formats.table import Format as Format
    from tensorglot.formats.table import formats as formats
    from tensorglot.limits import Limits as Limits
    from tensorglot.model.archive import Archive as Archive
    from tensorglot.model.tensor import Tensor as Tensor
    from tensorglot.operations.convert import convert as convert
    from tensorglot.operations.diff import Diff as Diff
    from tensorglot.operations.diff import diff as diff
    from tensorglot.operations.edit import edit as edit
    from tensorglot.operations.load import load as load
    from tensorglot.operations.load import loads as loads
    from tensorglot.operations.open import open as open
    from tensorglot.operations.save import dumps as dumps
    from tensorglot.operations.save import save as save
    from tensorglot.operations.split import merge as merge
    from tensorglot.operations.split import split as split
    from tensorglot.operations.verify import Report as Report
    from tensorglot.operations.verify import verify as verify
    from tensorglot.operations.writer import Writer as Writer

_HOMES = {
    "errors": (
        "AmbiguousFormat", "FormatError", "InputError", "IntegrityError", "LimitError", "LossWarning", "OutOfRange",
        "TensorNotFound", "TensorglotError", "TruncatedError", "UnsupportedError",
    ),
    "formats.table": ("Format", "formats"),
    "limits": ("Limits",),
    "model.archive": ("Archive",),
    "model.tensor": ("Tensor",),
    "operations.convert": ("convert",),
    "operations.diff": ("Diff", "diff"),
    "operations.edit": ("edit",),
    "operations.load": ("load", "loads"),
    "operations.open": ("open",),
    "operations.save": ("dumps", "save"),
    "operations.split": ("merge", "split"),
    "operations.verify": ("Report", "verify"),
    "operations.writer": ("Writer",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("bson", "dynd")
"""Modules that need no import of their own."""

__all__ = sorted(_HOME_OF)


def _public(name: str) -> Any:
    return getattr(import_module(f"tensorglot.{_HOME_OF[name]}"), name)


class _Package(ModuleType):
    """This module's class, because one public name is also that of a folder."""

    @property
    def formats(self) -> Any:
        return _public("formats")

    @formats.setter
    def formats(self, folder: ModuleType) -> None:
        """The import system would bind the folder here; the function stays."""

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return import_module(f"tensorglot.{name}")
        if name in _HOME_OF:
            value = self.__dict__[name] = _public(name)
            return value
        raise AttributeError(f"module 'tensorglot' has no attribute '{name}'", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_MODULES, *_HOME_OF})


sys.modules[__name__].__class__ = _Package
