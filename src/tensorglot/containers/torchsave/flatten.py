"""Flattens nested dicts and lists: tensors by the keys that lead to them, other values as metadata.

A pickle may refer to one container many times, so a small pickle can expand without end.
The depth, the number of values and the total length of names and texts are bounded,
whatever they share.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from tensorglot.containers.table import UNNAMED
from tensorglot.containers.torchsave.names import TENSORS, ElementType, Pairs
from tensorglot.errors import FormatError, LimitError, UnsupportedError, escape
from tensorglot.kernels.pickle_values import KEY, LARGE, least_nbytes, leaves

__all__ = ["flatten"]

DEPTH = 64
_CONTAINERS = frozenset({list, tuple, Pairs})
_AS_THEY_ARE = frozenset({type(None), bool, int, float, str, bytes, list})


def flatten(root: Any, pickle_nbytes: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the tensors by name, in order, and the other values as metadata, or None."""
    if isinstance(root, TENSORS):
        return {UNNAMED: root}, None
    fault = least_nbytes(root, Pairs, DEPTH) if type(root) in _CONTAINERS else 0
    names: list[str] = []
    values: list[Any] = []
    fits = 0 <= fault <= 2000 + pickle_nbytes
    fault = leaves(root, Pairs, 8 * pickle_nbytes + (4 << 20), DEPTH, names, values) if fits else LARGE
    if fault == KEY:
        raise UnsupportedError("dict keys must be text or numbers", rule="pt.key")
    if fault < 0:
        raise LimitError("nested containers expand to far more than the size of the pickle", rule="pt.nest")
    tensors, metadata = _split(names, values)
    if len(tensors) + len(metadata) < len(names) or tensors.keys() & metadata.keys():
        raise FormatError(
            "duplicate name: the keys of two values are equal when joined by dots",
            rule="pt.name.duplicate",
            tensor=next(name for name, times in Counter(names).items() if times > 1),
        )
    return tensors, metadata or None


def _split(names: list[str], values: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and metadata."""
    if set(map(type, values)) <= _AS_THEY_ARE:
        return {}, dict(zip(names, values, strict=True))
    tensors: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        kind = type(value)
        if kind in TENSORS:
            tensors[name] = value
        else:
            metadata[name] = value if kind in _AS_THEY_ARE else list(value) if kind is tuple else _plain(value)
    return tensors, metadata


def _plain(value: Any) -> Any:
    if type(value) is Pairs:
        return {}
    if isinstance(value, ElementType):
        return value.name
    raise UnsupportedError(f"unsupported value of type {escape(type(value).__name__)}", rule="pt.value")
