"""Flattens nested dicts and lists: tensors by the keys that lead to them, other values as metadata.

A pickle may refer to one container many times, so a small pickle can expand without end.
The depth, the number of values and the total length of names and texts are bounded,
whatever they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorglot.containers.table import UNNAMED
from tensorglot.containers.torchsave.names import TENSORS, ElementType, Pairs
from tensorglot.errors import FormatError, LimitError, UnsupportedError, escape

__all__ = ["flatten"]

DEPTH = 64
_CONTAINERS = frozenset({list, tuple, Pairs})
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_TEXTS = frozenset({str, bytes})
_BYTES = frozenset({type(None), bool})
"""What takes one byte of a pickle."""


def flatten(root: Any, pickle_nbytes: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the tensors by name, in order, and the other values as metadata, or None."""
    if isinstance(root, TENSORS):
        return {UNNAMED: root}, None
    found: dict[str, Any] = {}
    if type(root) in _CONTAINERS and _least_nbytes(root, 0, {}) > 2000 + pickle_nbytes:
        raise _too_large()
    letters = 8 * pickle_nbytes + (4 << 20)
    left: list[Iterator[tuple[str, Any]]] = [iter([("", root)])]
    """What is still to visit, of each container on the way to the value."""
    while left:
        depth = len(left) - 1
        for name, value in left[-1]:
            if type(value) in _CONTAINERS and value:
                types = set(map(type, value))
                letters -= len(name) * len(value)
                if types & _TEXTS:
                    letters -= sum(len(item) for item in value if type(item) in _TEXTS)
                if letters < 0 or depth > DEPTH:
                    raise _too_large()
                if type(value) is Pairs or not types <= _SCALARS:
                    left.append(_children(f"{name}." if depth else "", value))
                    break
            if name in found:
                raise FormatError(
                    "duplicate name: the keys of two values are equal when joined by dots",
                    rule="pt.name.duplicate",
                    tensor=name,
                )
            found[name] = value if isinstance(value, TENSORS) else _plain(value)
        else:
            left.pop()
    tensors = {name: value for name, value in found.items() if isinstance(value, TENSORS)}
    return tensors, {name: value for name, value in found.items() if name not in tensors} or None


def _least_nbytes(value: Any, depth: int, known: dict[int, int]) -> int:
    """The size of the smallest pickle that has these values and shares none. A container is counted once, by its id."""
    if depth > DEPTH:
        raise _too_large()
    types = set(map(type, value))
    nbytes = 2 * len(value)
    if types & _BYTES:
        nbytes -= sum(type(item) in _BYTES for item in value)
    if not types <= _SCALARS:
        for item in value:
            if type(item) in _CONTAINERS and item:
                inside = known.get(id(item))
                nbytes += _least_nbytes(item, depth + 1, known) if inside is None else inside
    known[id(value)] = nbytes
    return nbytes


def _too_large() -> LimitError:
    return LimitError("nested containers expand to far more than the size of the pickle", rule="pt.nest")


def _children(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The items of a container, each with its name."""
    keys = map(_key, value[::2]) if type(value) is Pairs else map(str, range(len(value)))
    return zip(map(prefix.__add__, keys), value[1::2] if type(value) is Pairs else value, strict=True)


def _key(key: Any) -> str:
    if isinstance(key, (str, bool, int, float, type(None))):
        return str(key)
    raise UnsupportedError("dict keys must be text or numbers", rule="pt.key")


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if type(value) in (list, tuple):
        return list(value)
    if type(value) is Pairs:
        return {}
    if isinstance(value, ElementType):
        return value.name
    raise UnsupportedError(f"unsupported value of type {escape(type(value).__name__)}", rule="pt.value")
