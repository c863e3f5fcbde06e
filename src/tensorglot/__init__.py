"""Every tensor has one identity, and can live in any container.

The public names are those of `tensorglot.public`, which is loaded when one of them is
first used: the command line prints its help without waiting for NumPy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorglot import bson as bson
    from tensorglot import dynd as dynd
    from tensorglot.public import *  # noqa: F403
    from tensorglot.public import __all__ as __all__


_MODULES = ("bson", "dynd")
"""Modules that need no import of their own."""


class _Package(ModuleType):
    """This module's class, because one public name is also that of a folder."""

    @property
    def formats(self) -> Any:
        return import_module("tensorglot.public").formats

    @formats.setter
    def formats(self, folder: ModuleType) -> None:
        """The import system would bind the folder here; the function stays."""

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return import_module(f"tensorglot.{name}")
        if name == "__all__" or not name.startswith("_"):
            public = import_module("tensorglot.public")
            if name == "__all__" or name in public.__all__:
                value = self.__dict__[name] = getattr(public, name)
                return value
        raise AttributeError(f"module 'tensorglot' has no attribute '{name}'", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_MODULES, *import_module("tensorglot.public").__all__})


sys.modules[__name__].__class__ = _Package
