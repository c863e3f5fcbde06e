"""Flattens nested dicts and lists: tensors by the keys that lead to them, other values as metadata.

A pickle may refer to one container many times, so a small pickle can expand without end.
The depth, the number of values and the total length of names and texts are bounded,
whatever they share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tensorglot.containers.table import UNNAMED
from tensorglot.containers.torchsave.names import TENSORS, ElementType, Pairs
from tensorglot.errors import FormatError, LimitError, UnsupportedError, escape
from tensorglot.kernels.pickle_values import KEY, least_nbytes, leaves

__all__ = ["flatten"]

DEPTH = 64
_CONTAINERS = frozenset({list, tuple, Pairs})


def flatten(root: Any, pickle_nbytes: int) -> tuple[Sequence[str], Sequence[Any], dict[str, Any] | None]:
    """Returns the names of the tensors, the tensors, and the other values as metadata, or None."""
    if isinstance(root, TENSORS):
        return [UNNAMED], [root], None
    names: list[str] = []
    tensors: list[Any] = []
    keys: list[str] = []
    values: list[Any] = []
    fault = least_nbytes(root, Pairs, DEPTH, 2000 + pickle_nbytes) if type(root) in _CONTAINERS else 0
    if fault >= 0:
        fault = leaves(root, Pairs, ElementType, 8 * pickle_nbytes + (4 << 20), DEPTH, keys, values, names, tensors)
    if fault == KEY:
        raise UnsupportedError("dict keys must be text or numbers", rule="pt.key")
    if fault < 0:
        raise LimitError("nested containers expand to far more than the size of the pickle", rule="pt.nest")
    for unknown in set(map(type, tensors)).difference(TENSORS):
        raise UnsupportedError(f"unsupported value of type {escape(unknown.__name__)}", rule="pt.value")
    metadata = dict(zip(keys, values, strict=True))
    alone = len(metadata) == len(keys) and len(set(names)) == len(names) and metadata.keys().isdisjoint(names)
    if not alone:
        raise FormatError(
            "duplicate name: the keys of two values are equal when joined by dots",
            rule="pt.name.duplicate",
            tensor=next(name for name, times in Counter([*names, *keys]).items() if times > 1),
        )
    return names, tensors, metadata or None
