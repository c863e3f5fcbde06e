"""Flattens nested dicts and lists: tensors by the keys that lead to them, other values as metadata.

A pickle may refer to one container many times, so a small pickle can expand without end.
The depth, the number of visited values and the total length of names and texts are
bounded, whatever they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorglot.containers.table import UNNAMED
from tensorglot.containers.torchsave.names import TENSORS, ElementType, Pairs
from tensorglot.errors import FormatError, LimitError, UnsupportedError, escape

__all__ = ["flatten"]

DEPTH = 64
_SCALARS = (type(None), bool, int, float, str, bytes)


def flatten(root: Any, pickle_nbytes: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the tensors by name, in order, and the other values as metadata, or None."""
    if isinstance(root, TENSORS):
        return {UNNAMED: root}, None
    found: dict[str, Any] = {}
    visits = 1000 + pickle_nbytes // 2
    letters = 8 * pickle_nbytes + (4 << 20)
    left: list[Iterator[tuple[str, Any]]] = [iter([("", root)])]
    """What is still to visit, of each container on the way to the value."""
    while left:
        name, value = next(left[-1], (None, None))
        if name is None:
            left.pop()
            continue
        depth = len(left) - 1
        if isinstance(value, (list, tuple)):
            visits -= len(value)
            letters -= len(name) * len(value) + sum(len(item) for item in value if isinstance(item, (str, bytes)))
            if visits < 0 or letters < 0 or depth > DEPTH:
                raise LimitError("nested containers expand to far more than the size of the pickle", rule="pt.nest")
        children = _children(value)
        if children is not None:
            left.append(_named(f"{name}." if depth else "", children))
        elif name in found:
            raise FormatError(
                "duplicate name: the keys of two values are equal when joined by dots",
                rule="pt.name.duplicate",
                tensor=name,
            )
        else:
            found[name] = value if isinstance(value, TENSORS) else _plain(value)
    tensors = {name: value for name, value in found.items() if isinstance(value, TENSORS)}
    return tensors, {name: value for name, value in found.items() if name not in tensors} or None


def _children(value: Any) -> Iterator[tuple[Any, Any]] | None:
    """Returns the keys and items of a container; None for a scalar or a list of scalars."""
    if type(value) is Pairs and value:
        return zip(value[::2], value[1::2], strict=True)
    if type(value) in (list, tuple) and not all(isinstance(item, _SCALARS) for item in value):
        return enumerate(value)
    return None


def _named(prefix: str, children: Iterator[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    for key, child in children:
        yield prefix + _key(key), child


def _key(key: Any) -> str:
    if isinstance(key, (str, bool, int, float, type(None))):
        return str(key)
    raise UnsupportedError("dict keys must be text or numbers", rule="pt.key")


def _plain(value: Any) -> Any:
    if isinstance(value, _SCALARS):
        return value
    if type(value) in (list, tuple):
        return list(value)
    if type(value) is Pairs:
        return {}
    if isinstance(value, ElementType):
        return value.name
    raise UnsupportedError(f"unsupported value of type {escape(type(value).__name__)}", rule="pt.value")
