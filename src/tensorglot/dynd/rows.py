"""A selection of the values of a node, as columns.

Lists and options are positions in their child, which a selection leaves unchanged. Only
elements, fields and fixed dims are gathered; a slice without a step copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.schema import Kind, Node
from tensorglot.dynd.value import Column, Lists, Positions

__all__ = ["Picked", "inside", "take"]

Picked: TypeAlias = "slice | Positions"
"""Which values: a slice with a start and a stop, or their positions."""


def inside(root: Node) -> list[Node]:
    """A node and all below it, parents first: the order of the nodes of a plan of its type."""
    nodes = []
    stack = [root]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(reversed(node.children))
    return nodes


def take(root: Node, columns: Sequence[Column], picked: Picked) -> list[Column]:
    """The columns of some of the values of a node, in the order of `inside`. `columns` are those of its plan."""
    out: list[Column] = []
    stack: list[tuple[Node, Picked | None]] = [(root, picked)]
    while stack:
        node, rows = stack.pop()
        column = columns[node.id]
        out.append(column if rows is None else _picked(column, rows))
        apart = rows is None or node.kind is Kind.LIST or (node.kind is Kind.OPTION and column is not None)
        inner = None if apart or rows is None else _repeated(rows, node.size) if node.kind is Kind.REPEAT else rows
        stack.extend((child, inner) for child in reversed(node.children))
    return out


def _picked(column: Column, rows: Picked) -> Column:
    if column is None:
        return None
    if isinstance(column, Lists):
        return Lists(column.starts[rows], column.stops[rows])
    if isinstance(column, list):
        return column[rows] if isinstance(rows, slice) else [column[i] for i in rows.tolist()]
    return column[rows]


def _repeated(rows: Picked, size: int) -> Picked:
    if isinstance(rows, slice):
        return slice(rows.start * size, rows.stop * size)
    spread: NDArray[np.int64] = (rows[:, np.newaxis] * size + np.arange(size)).reshape(-1)
    return spread
