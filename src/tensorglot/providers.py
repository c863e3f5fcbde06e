"""Extension points: functions that a lower layer calls and an upper layer provides.

`Tensor.cid()` is in the model, which does not know how a CID is computed; `coerce` accepts
awkward arrays and does not know awkward. Both look up their provider here, by the name of
the extension point. The package's `__init__`, which may import every layer, registers the
providers; each is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["provide", "provided"]

_MODULES: dict[str, tuple[str, str]] = {}
_LOADED: dict[str, Callable[..., Any]] = {}


def provide(point: str, module: str, function: str) -> None:
    """Registers the function for an extension point."""
    _MODULES[point] = module, function


def provided(point: str) -> Callable[..., Any]:
    """The function for an extension point, imported at its first use."""
    found = _LOADED.get(point)
    if found is None:
        module, function = _MODULES[point]
        found = _LOADED[point] = getattr(import_module(module), function)
    return found
