"""The table of supported libraries, looked up by the package of a value's class.

The module of a library has a `BRIDGE`: functions that convert its values to tensors, tell
their type, and make its arrays of NumPy's. The module is imported when the first value
of the library is converted; the library itself has been imported by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from tensorglot.arguments import check_choice
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type

__all__ = ["FRAMEWORKS", "Bridge", "find", "framework", "framework_name"]


@dataclass(frozen=True, slots=True)
class Bridge:
    """The conversions of one library."""

    to_tensor: Callable[[Any, Type | None], Tensor]
    """A value as a tensor of the type given if the library can make that, else of the value's type."""
    type_of: Callable[[Any], Type] | None = None
    """The type of a value, where that is known without making the tensor."""
    from_numpy: Callable[[str, NDArray[Any]], Any] | None = None
    """The library's own array for a NumPy array; the name of the tensor is for errors."""


_MODULES = {
    "awkward": "awkward",
    "bson": "pymongo",
    "jax": "jax",
    "jaxlib": "jax",
    "pandas": "pandas",
    "polars": "polars",
    "pyarrow": "arrow_tables",
    "scipy": "scipy",
    "tensorglot.bson.vector": "pymongo",
    "torch": "torch",
}
"""The package or module of a class, and the bridge for it."""
FRAMEWORKS = {
    "numpy": "numpy", "np": "numpy",
    "torch": "torch", "pt": "torch", "pytorch": "torch",
    "jax": "jax", "flax": "jax",
    "awkward": "awkward",
}  # fmt: skip
"""The frameworks whose arrays `load` returns, by every name that is accepted: safetensors uses the short ones."""

_LOADED: dict[str, Bridge] = {}
_OF_CLASS: dict[type, Bridge | None] = {}


def _bridge(module: str) -> Bridge:
    found = _LOADED.get(module)
    if found is None:
        found = _LOADED[module] = import_module(f"tensorglot.bridges.{module}").BRIDGE
    return found


def find(value: Any) -> Bridge | None:
    """The bridge for a value, by its class or a base class of it."""
    kind = type(value)
    if kind not in _OF_CLASS:  # once for each class: coerce calls this for every value
        places = (place for base in kind.__mro__ for place in (base.__module__, base.__module__.partition(".")[0]))
        module = next((_MODULES[place] for place in places if place in _MODULES), None)
        _OF_CLASS[kind] = None if module is None else _bridge(module)
    return _OF_CLASS[kind]


def framework_name(name: str) -> str:
    """Our name of a framework, for any name that is accepted."""
    check_choice(name, FRAMEWORKS, "framework", "load.framework")
    return FRAMEWORKS[name]


def framework(name: str) -> Callable[[str, NDArray[Any]], Any] | None:
    """The function that makes a framework's array of a NumPy array, by our name of the framework.

    None for NumPy itself, and for awkward, whose arrays are made of Tensors.
    """
    return None if name == "numpy" else _bridge(name).from_numpy
