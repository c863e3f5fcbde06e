"""A plan compiled to rows for the kernel.

A node of a fixed size, with all nodes inside it, can be one BLOCK if its values are packed
in memory in serialized form; so a list of packed records is copied at once. The caller
chooses these nodes: all of a fixed size to decode, those packed in memory to encode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tensorglot.dynd.schema import HUGE, Kind, Node, Plan
from tensorglot.kernels import varints as kernel

__all__ = ["Op", "Program", "decoding", "program_for"]

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row: the kernel's code for a node, its columns, and the rows of its children."""

    code: int
    node: Node
    column: int
    children: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The rows of a plan. Each has two columns: 2i and 2i + 1 belong to row i."""

    ops: tuple[Op, ...]
    depth: int
    codes: Column
    sizes: Column
    column_of: Column
    child_of: Column
    arity: Column
    children: Column
    least: Column
    charge: Column

    @property
    def to_decode(self) -> tuple[Column, ...]:
        return self.codes, self.sizes, self.column_of, self.child_of, self.arity, self.children, self.least, self.charge

    @property
    def to_encode(self) -> tuple[Column, ...]:
        return self.codes, self.sizes, self.column_of, self.child_of, self.arity, self.children, self.column_of + 1


@lru_cache(maxsize=1024)
def decoding(plan: Plan) -> Program:
    """The program in which every node of a fixed size is one BLOCK."""
    return program_for(plan, frozenset(node.id for node in plan.nodes if node.nbytes is not None), frozenset())


@lru_cache(maxsize=1024)
def program_for(plan: Plan, whole: frozenset[int], indexed: frozenset[int]) -> Program:
    """The program in which the nodes in `whole` are one BLOCK each, and the options in `indexed` have positions."""
    rows: list[tuple[int, Node, list[int]]] = []
    depth = 0
    stack: list[tuple[Node, int, int]] = [(plan.root, -1, 1)]
    while stack:
        node, parent, level = stack.pop()
        row = len(rows)
        depth = max(depth, level)
        if parent >= 0:
            rows[parent][2].append(row)
        code = _code(node, whole, indexed)
        rows.append((code, node, []))
        if code != kernel.BLOCK:
            stack.extend((child, row, level + 1) for child in reversed(node.children))
    return _assemble([Op(code, node, 2 * i, tuple(kids)) for i, (code, node, kids) in enumerate(rows)], depth)


def _code(node: Node, whole: frozenset[int], indexed: frozenset[int]) -> int:
    if node.id in whole:
        return kernel.BLOCK
    if node.id in indexed:
        return kernel.SENTINEL
    if node.kind is Kind.OPTION and node.atom is not None:
        # Missing values have their sentinel in the child's column already: its bytes are written as they are.
        return kernel.SEQUENCE
    return int(node.kind)


def _assemble(ops: list[Op], depth: int) -> Program:
    children: list[int] = []
    child_of = []
    for op in ops:
        # The kernel has one child per row; a SEQUENCE instead has its place in the list of all children.
        several = op.code == kernel.SEQUENCE
        child_of.append(len(children) if several else op.children[0] if op.children else 0)
        children += op.children if several else ()
    return Program(
        tuple(ops),
        depth + 1,
        _column(op.code for op in ops),
        _column((op.node.nbytes or 0) if op.code == kernel.BLOCK else min(op.node.size, HUGE) for op in ops),
        _column(op.column for op in ops),
        _column(child_of),
        _column(len(op.children) for op in ops),
        _column(children or [0]),
        _column(op.node.least for op in ops),
        _column(op.node.charge for op in ops),
    )


def _column(numbers: object) -> Column:
    return np.array(list(numbers), np.int64)  # type: ignore[call-overload]
