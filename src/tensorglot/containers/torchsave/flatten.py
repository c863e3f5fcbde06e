"""Flattens nested dicts and lists: tensors by the keys that lead to them, other values as metadata.

A pickle may refer to one container many times, so a small pickle can expand without end.
The depth, the number of values and the total length of names and texts are bounded,
whatever they share.
"""

from __future__ import annotations

from typing import Any

from tensorglot.containers.table import UNNAMED
from tensorglot.containers.torchsave.names import TENSORS, ElementType, Pairs
from tensorglot.errors import FormatError, LimitError, UnsupportedError, escape
from tensorglot.kernels.pickle_values import DUPLICATE, KEY, least_nbytes, leaves

__all__ = ["flatten"]

DEPTH = 64
_CONTAINERS = frozenset({list, tuple, Pairs})


def flatten(root: Any, pickle_nbytes: int) -> tuple[dict[str, int], list[Any], dict[str, Any] | None]:
    """The names of the tensors, in order, with the position of each in a list; that list; and the other values as
    metadata, or None. A tensor of several names is in the list once."""
    if isinstance(root, TENSORS):
        return {UNNAMED: 0}, [root], None
    names: dict[str, int] = {}
    tensors: list[Any] = []
    metadata: dict[str, Any] = {}
    fault = least_nbytes(root, Pairs, DEPTH, 2000 + pickle_nbytes) if type(root) in _CONTAINERS else 0
    if fault >= 0:
        fault = leaves(root, Pairs, ElementType, 8 * pickle_nbytes + (4 << 20), DEPTH, metadata, names, tensors)
    if fault == KEY:
        raise UnsupportedError("dict keys must be text or numbers", rule="pt.key")
    if fault == DUPLICATE:
        raise FormatError(
            "duplicate name: the keys of two values are equal when joined by dots",
            rule="pt.name.duplicate",
            tensor=tensors[-1],
        )
    if fault < 0:
        raise LimitError("nested containers expand to far more than the size of the pickle", rule="pt.nest")
    for unknown in set(map(type, tensors)).difference(TENSORS):
        raise UnsupportedError(f"unsupported value of type {escape(unknown.__name__)}", rule="pt.value")
    return names, tensors, metadata or None
