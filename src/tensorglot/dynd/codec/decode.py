"""Bytes to values, from memory or from a stream, in one pass.

The kernel fills columns and stops when it needs input, memory, or the type of an
`array[T]`. Memory is allocated in proportion to the bytes read, never to a count in them.
A value of a fixed size in memory is not copied.

The bytes of bools, strings and types are checked on the finished columns. To find the
offset of a fault, the kernel runs again until the column has as many elements as before
the faulty one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tensorglot.dynd.codec.check import Fault, first_fault
from tensorglot.dynd.codec.growable import GrowableBuffer
from tensorglot.dynd.codec.inputs import Input, Memory
from tensorglot.dynd.codec.packing import unpack_columns
from tensorglot.dynd.codec.program import decoding
from tensorglot.dynd.match import check_holds
from tensorglot.dynd.schema import Kind, Plan, plan_of, void_error
from tensorglot.dynd.value import Column, Value, lists_of
from tensorglot.errors import FormatError, InputError, LimitError
from tensorglot.kernels import varint_decode
from tensorglot.kernels import varints as kernel
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.types.algebra import Merkle, Type, TypeType
from tensorglot.model.types.text import parse_canonical

__all__ = ["BOX_DEPTH", "decode", "decode_all", "depth_error", "leading_type", "refusal"]

BOX_DEPTH = 128
"""Upper bound of Limits.type_depth for values in `array[T]`: each level takes a frame of Python's stack."""
LEAST_ROOM = 64
SAMPLE_NBYTES = 4 << 10
"""Input to read before the size of a column is extrapolated from it."""
STEP = 64 << 10

# docs/dynd-format.md, "Varint" and "Refused when reading": what the kernel itself finds.
_REFUSALS = {
    kernel.LONG: ("dynd.varint.long", "a varint has more than nine bytes"),
    kernel.PADDED: ("dynd.varint.minimal", "a varint is not in its shortest form"),
    kernel.COUNT: ("dynd.count", "a count is larger than the remaining bytes can hold"),
    kernel.FLAG: ("dynd.flag", "the flag byte of an option is neither 0 nor 1"),
    kernel.UTF8: ("dynd.utf8", "a char is not valid UTF-8"),
}
_DTYPES = {
    kernel.BLOCK: np.uint8, kernel.LIST: np.int64, kernel.OPTION: np.int64, kernel.CHAR: np.uint32,
}  # fmt: skip


def decode(source: Input, type: Type, limits: Limits, depth: int = 0) -> Value:
    """Decodes the value at the input's position, and moves the position past it."""
    plan = plan_of(type)
    start, most = source.base + source.at, min(limits.type_depth, BOX_DEPTH)
    if depth > most:
        raise depth_error(most, start)
    if plan.root.charge > limits.void_count:
        raise void_error(limits, start)
    # Values of a fixed size in memory become views without running the kernel.
    value = _view_fixed_size(source, plan) or _Reader(source, plan, limits, depth).value()
    fault = first_fault(value, limits)
    if fault is not None:
        raise fault.error(_place(fault, source, start, plan, limits, depth))
    return value


def depth_error(most: int, offset: int) -> LimitError:
    message = f"array[T] nested more than {most} deep (Limits.type_depth)"
    return LimitError(message, rule="dynd.depth", offset=offset)


def refusal(answer: int, limits: Limits, offset: int) -> FormatError:
    """The error for an answer of a kernel that is a fault."""
    if answer == kernel.EMPTY:
        return void_error(limits, offset)
    rule, message = _REFUSALS[answer]
    return FormatError(message, rule=rule, offset=offset)


def decode_all(data: Any, type: Type, limits: Limits = DEFAULT, depth: int = 0) -> Value:
    """Decodes bytes that are exactly one value."""
    source = Memory(data)
    value = decode(source, type, limits, depth)
    source.finish()
    return value


def _view_fixed_size(source: Input, plan: Plan) -> Value | None:
    """A value of a fixed size in memory, without copying it; None for all others."""
    nbytes = plan.root.nbytes
    if nbytes is None or not isinstance(source, Memory):
        return None
    if nbytes > len(source.window) - source.at:
        source.more(nbytes)
    columns: list[Column] = [None] * len(plan.nodes)
    unpack_columns(plan.root, source.window[source.at : source.at + nbytes], 1, columns)
    source.at += nbytes
    return Value(plan, tuple(columns))


_parse = lru_cache(maxsize=1024)(parse_canonical)


def leading_type(source: Input, limits: Limits) -> Type:
    """Reads the type before a value."""
    # The usual case, a text below 128 bytes that is in the window, needs no run of the kernel.
    at, window = source.at, source.window
    size = int(window[at]) if at < len(window) else 0
    if 0 < size < 128 and at + 1 + size <= len(window):
        text = window[at + 1 : at + 1 + size].tobytes().decode("ascii", "replace")
        try:
            type = _parse(text, limits)
        except FormatError as error:
            error.offset = source.base + at + 1
            raise
        source.at += 1 + size
        return type
    value = decode(source, TypeType(), limits)
    return _parse(value.array(value.plan.nodes[1]).tobytes().decode("ascii"), limits)


class _Reader:
    """Decodes one value from an input to columns. `stop` is a column and how far to fill it."""

    def __init__(
        self, source: Input, plan: Plan, limits: Limits, depth: int, stop: tuple[int, int] | None = None
    ) -> None:
        self.plan, self.stop = plan, stop
        self.source, self.limits, self.depth = source, limits, depth
        program = self.program = decoding(plan)
        self.boxes: dict[int, list[Value]] = {}
        self.buffers: dict[int, GrowableBuffer] = {}
        columns = [varint_decode.Column()] * (2 * len(program.ops))
        for op in program.ops:
            if op.code in _DTYPES:
                buffer = self.buffers[op.column] = GrowableBuffer(_DTYPES[op.code], int(op.code == kernel.LIST))
                columns[op.column] = buffer.column
            elif op.code == kernel.BOX:
                self.boxes[op.column] = []
        self.kernel = varint_decode.Decoder(
            program.to_decode, columns, program.depth, limits.void_count - plan.root.charge
        )
        self.begin = source.base + source.at

    def value(self) -> Value:
        self.run()
        return Value(self.plan, self.columns())

    def run(self) -> None:
        """Runs the kernel until the value is complete, or the column to stop at is full."""
        source = self.source
        while True:
            answer, source.at = self.kernel.run(source.window, source.at, source.beyond)
            if answer == kernel.DONE:
                return
            if answer == kernel.MORE:
                source.more(self.kernel.remaining())
            elif answer == kernel.GROW:
                column, need = self.kernel.request()
                if not self.grow(column, need):
                    return
            elif answer == kernel.HELP:
                self.box(self.kernel.request()[0])
            else:
                raise refusal(answer, self.limits, source.base + source.at)

    def grow(self, column: int, need: int) -> bool:
        """Enlarges the memory of a column, in proportion to the input read so far."""
        buffer = self.buffers[column]
        fill = buffer.column.filled()
        left = len(self.source.window) - self.source.at
        if self.source.beyond:
            # A stream, of unknown length: grow by half, and never by more than was read plus one STEP, so that
            # a large count in a short stream allocates little.
            capacity = fill + max(LEAST_ROOM, fill // 2, min(need, max(fill, STEP)))
        else:
            # In memory: extrapolate from the input read so far, but every element takes a byte or more of
            # what is left, which bounds the capacity.
            done = self.source.at - self.begin
            expected = fill * left // done * 9 // 8 if done > SAMPLE_NBYTES else 0
            capacity = fill + min(max(1, left), max(LEAST_ROOM, need, fill, expected))
        if self.stop is not None and self.stop[0] == column:
            capacity = min(capacity, self.stop[1])
        if capacity <= fill:
            return False
        buffer.grow(capacity)
        return True

    def box(self, column: int) -> None:
        """Reads the type and the value of an `array[T]`, or the type and the link of a symbolic `merkle[T]`."""
        op = self.program.ops[column // 2]
        at = self.source.base + self.source.at
        type = leading_type(self.source, self.limits)
        try:
            if isinstance(op.node.type, Merkle):
                type = Merkle(plan_of(type).type)  # plan_of refuses a symbolic type
            check_holds(op.node.type, type)
            self.boxes[column].append(decode(self.source, type, self.limits, self.depth + 1))
        except InputError as error:
            raise FormatError(error.message, rule=error.rule, offset=at) from error

    def columns(self) -> tuple[Column, ...]:
        columns: list[Column] = [None] * len(self.plan.nodes)
        counts = [1] * len(self.program.ops)
        for i, op in enumerate(self.program.ops):
            count = counts[i]
            if op.code == kernel.BLOCK:
                unpack_columns(op.node, self.buffers[op.column].array(), count, columns)
            elif op.code == kernel.LIST:
                offsets = self.buffers[op.column].array()
                columns[op.node.id] = lists_of(offsets)
                count = int(offsets[-1])
            elif op.code == kernel.OPTION:
                index = columns[op.node.id] = self.buffers[op.column].array()
                count = int(index.max(initial=-1)) + 1
            elif op.code == kernel.CHAR:
                columns[op.node.id] = self.buffers[op.column].array()
            elif op.code == kernel.BOX:
                columns[op.node.id] = self.boxes[op.column]
            elif op.code == kernel.REPEAT:
                count *= op.node.size
            for child in op.children:
                counts[child] = count
        return tuple(columns)


def _place(fault: Fault, source: Input, start: int, plan: Plan, limits: Limits, depth: int) -> int | None:
    """The offset of a fault; None for a stream, which cannot be read again."""
    if not isinstance(source, Memory):
        return None
    parents = {child.id: node for node in plan.nodes for child in node.children}
    node, row, offset = fault.node, fault.row, fault.byte
    # Within values of a fixed size the offset is arithmetic. Above them the kernel has to run.
    while (parent := parents.get(node.id)) is not None and parent.nbytes is not None:
        if parent.kind is Kind.REPEAT:
            row, element = divmod(row, parent.size)
            offset += element * (node.nbytes or 0)
        for sibling in parent.children[: parent.children.index(node)]:
            offset += sibling.nbytes or 0
        node = parent
    offset += row * (1 if node.nbytes is None else node.nbytes)
    if node is plan.root:
        return start + offset
    again = Memory(source.window)
    again.at = start
    column = next(op.column for op in decoding(plan).ops if op.node is node)
    _Reader(again, plan, limits, depth, (column, offset + (node.kind is Kind.LIST))).run()  # offsets begin with a 0
    return again.at
