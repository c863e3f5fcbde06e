"""Extension points: what a lower layer calls and an upper layer provides.

The model has `Tensor.cid()` and does not know how a CID is made; `coerce` takes arrays
of awkward and does not know awkward. Each asks here for the provider by the name of the
point. The package's `__init__`, which knows every layer, names the providers; one is
imported when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["provide", "provided"]

_MODULES: dict[str, tuple[str, str]] = {}
_LOADED: dict[str, Callable[..., Any]] = {}


def provide(point: str, module: str, function: str) -> None:
    """Names the function that is called at an extension point."""
    _MODULES[point] = module, function


def provided(point: str) -> Callable[..., Any]:
    """The function for an extension point, imported now if it was not before."""
    found = _LOADED.get(point)
    if found is None:
        module, function = _MODULES[point]
        found = _LOADED[point] = getattr(import_module(module), function)
    return found
