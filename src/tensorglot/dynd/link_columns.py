"""Columns of links: arrays of CIDs that also carry the Link objects, or the store that links load from.

So freezing a value can find the links inside it, and a link that is read from a column
can load its value without another argument. Knows CIDs and columns; does not know the
states of a link (`merkle.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.schema import Kind, Node
from tensorglot.dynd.value import Column, Value
from tensorglot.model.types.algebra import Array, Merkle, Type, walk
from tensorglot.wire.cid import CID

__all__ = ["LinkArray", "connect", "has_cids", "may_link"]


class LinkArray(np.ndarray[Any, np.dtype[np.uint8]]):
    """The CIDs of links, 36 bytes each along the last axis, with the known links and the store.

    A subclass of ndarray, so that slices and reshaped views keep both attributes.
    """

    known: Mapping[CID, Any]
    store: Mapping[CID, Any] | None

    @staticmethod
    def of(cids: NDArray[np.uint8], known: Mapping[CID, Any], store: Mapping[CID, Any] | None = None) -> LinkArray:
        array = cids.view(LinkArray)
        array.known, array.store = known, store
        return array

    def __array_finalize__(self, origin: object) -> None:
        self.known, self.store = getattr(origin, "known", {}), getattr(origin, "store", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return LinkArray.of, (self.view(np.ndarray), dict(self.known), self.store)


def connect(value: Value, known: Mapping[CID, Any], store: Mapping[CID, Any] | None) -> Value:
    """The same value with links: the known ones, and for other CIDs lazy links that load from `store`."""
    if not may_link(value.plan.type):
        return value
    columns: list[Column] = list(value.columns)
    for node in value.plan.nodes:
        column = columns[node.id]
        if isinstance(column, list):
            columns[node.id] = [connect(box, known, store) for box in column]
        if has_cids(node):
            columns[node.id] = LinkArray.of(value.array(node), known, store)
    return Value(value.plan, tuple(columns))


def has_cids(node: Node) -> bool:
    return node.kind is Kind.BLOCK and node.atom is not None and isinstance(node.atom.type, Merkle)


@lru_cache(256)
def may_link(type: Type) -> bool:
    """Whether values may have links in them. An `array[T]` may hold anything."""
    return any(isinstance(inner, Merkle | Array) for inner in walk(type))
