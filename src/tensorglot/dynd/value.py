"""One value of any type, as the columns of its plan.

Every way in (Python, NumPy, awkward, Arrow, a Tensor, bytes) ends in a Value, and
every way out begins with one. Arrays are in the order and shape of the values that
they hold, whatever their strides, and little-endian.

Lists and options are positions in their child, which a selection of values leaves
unchanged: `take` gathers only elements, fields and fixed dims, and a slice copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.dynd.schema import HUGE, Kind, Node, Plan
from tensorglot.tuples import NamedTuple

__all__ = ["Column", "Lists", "Positions", "Value", "child_need", "lists_of", "lists_of_sizes", "subtree", "take"]

Positions: TypeAlias = NDArray[np.int64]
Picked: TypeAlias = "slice | Positions"
"""A selection of values: a slice with a start and a stop, or positions."""


class Lists(NamedTuple):
    """Where each list begins and ends in the elements."""

    starts: Positions
    stops: Positions


Column: TypeAlias = "NDArray[Any] | Lists | list[Value] | None"
"""BLOCK: the array, one row for each value. LIST: Lists. OPTION: positions, or None where a bit pattern says missing.
CHAR: code points. BOX: values. SEQUENCE and REPEAT: None."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One value: a plan, and a column for each of its nodes."""

    plan: Plan
    columns: tuple[Column, ...]

    def array(self, node: Node) -> NDArray[Any]:
        """The column of a BLOCK or a CHAR."""
        column = self.columns[node.id]
        assert isinstance(column, np.ndarray)  # noqa: S101
        return column

    def lists(self, node: Node) -> Lists:
        column = self.columns[node.id]
        assert isinstance(column, Lists)  # noqa: S101
        return column

    def index(self, node: Node) -> Positions | None:
        """The column of an OPTION."""
        column = self.columns[node.id]
        assert column is None or isinstance(column, np.ndarray)  # noqa: S101
        return column

    def boxes(self, node: Node) -> list[Value]:
        column = self.columns[node.id]
        assert isinstance(column, list)  # noqa: S101
        return column

    def counts(self) -> list[int]:
        """How many values the columns of each node have."""
        counts = [0] * len(self.columns)
        for node in self.plan.inside_out():
            counts[node.id] = self._count(node, counts)
        return counts

    def _count(self, node: Node, counts: list[int]) -> int:
        column = self.columns[node.id]
        if isinstance(column, Lists):
            return min(len(column.starts), len(column.stops))
        if column is not None:
            return len(column)
        if node.kind is Kind.REPEAT:
            return counts[node.child.id] // node.size if node.size else HUGE
        return min((counts[child.id] for child in node.children), default=HUGE)

    def needs(self) -> list[int]:
        """The number of values of each node up to the last one that is used."""
        # Parents come first in a plan, so the need of a node is known before that of its children.
        needs = [1] * len(self.columns)
        for node in self.plan.nodes:
            for child in node.children:
                needs[child.id] = child_need(node, self.columns[node.id], needs[node.id])
        return needs


def child_need(node: Node, column: Column, need: int) -> int:
    """How many values of its children the first `need` values of a node use."""
    if isinstance(column, Lists):
        return int(column.stops[:need].max(initial=0))
    if node.kind is Kind.OPTION and isinstance(column, np.ndarray):
        return int(column[:need].max(initial=-1)) + 1
    return need * node.size if node.kind is Kind.REPEAT else need


def lists_of(offsets: Positions) -> Lists:
    return Lists(offsets[:-1], offsets[1:])


def lists_of_sizes(sizes: Iterable[int], count: int) -> Lists:
    """Lists one after the other, from the first element on."""
    return lists_of(prefix_sums(np.fromiter(sizes, np.int64, count)))


def subtree(root: Node) -> list[Node]:
    """A node and all below it, parents first: the order of the nodes of a plan of its type."""
    nodes = []
    stack = [root]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(reversed(node.children))
    return nodes


def take(root: Node, columns: Sequence[Column], picked: Picked) -> list[Column]:
    """The columns of some values of a node, in the order of `subtree(root)`. `columns` has one per node of the plan."""
    out: list[Column] = []
    stack: list[tuple[Node, Picked | None]] = [(root, picked)]
    while stack:
        node, rows = stack.pop()
        column = columns[node.id]
        out.append(column if rows is None else _take_rows(column, rows))
        # Lists and options refer to their child by position: below them the columns stay as they are (None).
        apart = rows is None or node.kind is Kind.LIST or (node.kind is Kind.OPTION and column is not None)
        inner = None if apart or rows is None else _repeat(rows, node.size) if node.kind is Kind.REPEAT else rows
        stack.extend((child, inner) for child in reversed(node.children))
    return out


def _take_rows(column: Column, rows: Picked) -> Column:
    if column is None:
        return None
    if isinstance(column, Lists):
        return Lists(column.starts[rows], column.stops[rows])
    if isinstance(column, list):
        return column[rows] if isinstance(rows, slice) else [column[i] for i in rows.tolist()]
    return column[rows]


def _repeat(rows: Picked, size: int) -> Picked:
    if isinstance(rows, slice):
        return slice(rows.start * size, rows.stop * size)
    spread: Positions = (rows[:, np.newaxis] * size + np.arange(size)).reshape(-1)
    return spread
