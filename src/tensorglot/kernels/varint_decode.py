"""Decodes varint chains from bytes to columns; `varints` defines the opcodes and answers.

A column is memory of the caller: bytes, int64 for positions, or uint32 for code points.
Every read is compared with the input that is left, and every write with the column's
capacity, before it happens. Knows nothing of types or tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels import varints
    from cython.cimports.tensorglot.kernels.primitives import *  # noqa: F403
else:
    from tensorglot.kernels import varints
    from tensorglot.kernels.primitives import (
        ENDS,
        code_point,
        code_point_nbytes,
        copy,
        copy_run,
        exceeds,
        longlongs_of,
        run_stride,
        uchars_in,
        uchars_of,
        uints_of,
        varint,
        varint_nbytes,
    )

_HALF = cython.declare(cython.longlong, 1 << 31)  # two factors below this have a product below 2**62
_HUGE = cython.declare(cython.longlong, 1 << 62)


@cython.final
@cython.cclass
class Column:
    """Memory for elements of one type, filled from the front. Invariant: 0 <= fill <= capacity, in elements.

    Only one of `data`, `positions` and `codes` is set: that of the memory's dtype.
    """

    memory: Any
    data: cython.p_uchar
    positions: cython.p_longlong
    codes: cython.p_uint
    fill: cython.Py_ssize_t
    capacity: cython.Py_ssize_t

    def __init__(self) -> None:
        self.fill = 0
        self.capacity = 0

    def lend(self, memory: Any, fill: cython.Py_ssize_t) -> None:
        """Gives the column this memory, whose first `fill` elements are already filled."""
        if memory.dtype == np.uint8:
            self.data = uchars_of(memory)
        elif memory.dtype == np.int64:
            self.positions = longlongs_of(memory)
        else:
            self.codes = uints_of(memory)
        self.memory = memory
        self.fill = fill
        self.capacity = len(memory)

    def filled(self) -> Any:
        return self.fill


@cython.final
@cython.cclass
class Decoder:
    """Decodes one value of a program's type into columns.

    Invariant: at <= end, the end of the source. A child is pushed only above its parent, so
    `top` stays below the depth of the program's tree, for which the stack has room.
    """

    program: Any
    ops: cython.p_const_longlong
    sizes: cython.p_const_longlong
    column_of: cython.p_const_longlong
    child_of: cython.p_const_longlong
    arity: cython.p_const_longlong
    children: cython.p_const_longlong
    least: cython.p_const_longlong
    charge: cython.p_const_longlong
    columns: list[Any]
    frames: Any
    present: cython.p_longlong
    stack: cython.p_longlong
    counts: cython.p_longlong
    phases: cython.p_longlong
    top: cython.Py_ssize_t
    source: cython.p_const_uchar
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    beyond: cython.longlong
    charges: cython.longlong
    need: cython.longlong
    wanted: cython.Py_ssize_t

    def __init__(
        self, program: tuple[Any, ...], columns: list[Column], depth: cython.Py_ssize_t, charges: cython.longlong
    ) -> None:
        self.program = program
        self.ops = longlongs_of(program[0])
        self.sizes = longlongs_of(program[1])
        self.column_of = longlongs_of(program[2])
        self.child_of = longlongs_of(program[3])
        self.arity = longlongs_of(program[4])
        self.children = longlongs_of(program[5])
        self.least = longlongs_of(program[6])
        self.charge = longlongs_of(program[7])
        self.columns = columns
        self.frames = [np.zeros(len(program[0]), np.int64), *np.zeros((3, depth), np.int64)]
        self.present = longlongs_of(self.frames[0])
        self.stack = longlongs_of(self.frames[1])
        self.counts = longlongs_of(self.frames[2])
        self.phases = longlongs_of(self.frames[3])
        self.top = -1
        self.at = self.end = 0
        self.beyond = 0
        self.charges = charges
        self.need = 0
        self.wanted = 0
        self.push(0, 1)

    def run(
        self, source: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, beyond: cython.longlong
    ) -> tuple[int, int]:
        """Resumes at position `at` of `source` until the value is complete or something is needed.

        `beyond` is the number of input bytes after the source. Counts are checked against both,
        so that a list longer than the whole input is refused before memory is asked for.
        """
        answer: cython.int = 0
        self.source = uchars_in(source)
        self.at = at
        self.end = len(source)
        self.beyond = beyond
        # Invariant: the frames 0 to `top` are open, each with the number of values still to be read; everything before
        # `at` is decoded, so the next run resumes there.
        while answer == 0 and self.top >= 0:
            if self.counts[self.top] == 0:
                self.top -= 1
            else:
                answer = self.step(self.stack[self.top])
        return answer, self.at

    @cython.cfunc
    def step(self, node: cython.Py_ssize_t) -> cython.int:
        """Decodes values of the innermost frame while input and room suffice: 0, or an answer."""
        op: cython.longlong = self.ops[node]
        if op == varints.BLOCK:
            return self.block(node)
        if op == varints.LIST:
            return self.lists(node)
        if op == varints.SEQUENCE:
            return self.sequence(node)
        if op == varints.OPTION:
            return self.options(node)
        if op == varints.REPEAT:
            return self.repeat(node)
        if op == varints.CHAR:
            return self.chars(node)
        self.counts[self.top] -= 1
        self.wanted = self.column_of[node]
        return varints.HELP

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def push(self, node: cython.Py_ssize_t, count: cython.longlong) -> cython.void:
        """Opens a frame for `count` values of a node. The caller has checked that `count` × size does not overflow."""
        self.top += 1
        self.stack[self.top] = node
        self.counts[self.top] = count * self.sizes[node] if self.ops[node] == varints.BLOCK else count
        self.phases[self.top] = 0

    @cython.cfunc
    @cython.inline
    def column(self, node: cython.Py_ssize_t) -> Column:
        column: Column = cython.cast(Column, self.columns[self.column_of[node]])
        return column

    @cython.cfunc
    @cython.exceptval(check=False)
    def grow(self, node: cython.Py_ssize_t, need: cython.longlong) -> cython.int:
        """Asks the caller for room for at most `need` more elements of the node's column."""
        self.wanted = self.column_of[node]
        self.need = need
        return varints.GROW

    @cython.cfunc
    @cython.inline
    def take_block(self, node: cython.Py_ssize_t) -> cython.bint:
        """Copies one value of a BLOCK if input and room suffice for all of it; returns whether it did.

        Saves the push of a frame for the common case; otherwise the caller pushes one.
        """
        nbytes: cython.longlong = self.sizes[node]
        column: Column = self.column(node)
        if nbytes > self.end - self.at or nbytes > column.capacity - column.fill:
            return False
        copy(column.data, column.fill, self.source, self.at, nbytes)
        column.fill += nbytes
        self.at += nbytes
        return True

    @cython.cfunc
    def block(self, node: cython.Py_ssize_t) -> cython.int:
        """Copies as many bytes of a BLOCK as input and room allow; a value may be cut."""
        column: Column = self.column(node)
        left: cython.longlong = self.counts[self.top]
        nbytes: cython.longlong = min(left, self.end - self.at)
        if nbytes == 0:
            return varints.MORE
        if column.capacity == column.fill:
            return self.grow(node, left)
        nbytes = min(nbytes, column.capacity - column.fill)
        copy(column.data, column.fill, self.source, self.at, nbytes)
        column.fill += nbytes
        self.at += nbytes
        self.counts[self.top] = left - nbytes
        return 0

    @cython.cfunc
    def lists(self, node: cython.Py_ssize_t) -> cython.int:
        """Decodes the lengths of lists, and stores the end of each among the elements of the child.

        Stops at a list with elements: these are pushed, and come next in the input.
        """
        offsets: Column = self.column(node)
        child: cython.Py_ssize_t = self.child_of[node]
        charge: cython.longlong = self.charge[child]
        frame: cython.Py_ssize_t = self.top
        count: cython.longlong
        if self.ops[child] == varints.BLOCK and charge == 0:
            self.runs(node, child)
        # Invariant: offsets.fill >= 1, because the column begins with a zero; a turn writes only at fill < capacity.
        # `exceeds` bounds the count by the input that is left, so a push cannot overflow. Elements of no bytes are
        # not bounded by the input: they are charged against a budget of the caller.
        while self.top == frame and self.counts[frame] > 0:
            if offsets.fill == offsets.capacity:
                return self.grow(node, self.counts[frame])
            count = varint(self.source, self.at, self.end)
            if count < 0:
                return varints.MORE if count == varints.TRUNCATED else count
            if exceeds(count, self.least[child], self.end - self.at + self.beyond):
                return varints.COUNT
            if exceeds(count, charge, self.charges):
                return varints.EMPTY
            self.charges -= count * charge
            self.at += varint_nbytes(count)
            offsets.positions[offsets.fill] = offsets.positions[offsets.fill - 1] + count
            offsets.fill += 1
            self.counts[frame] -= 1
            if count > 0:
                self.push(child, count)
        return 0

    @cython.cfunc
    def runs(self, node: cython.Py_ssize_t, child: cython.Py_ssize_t) -> cython.int:
        """Fast path of `lists` if the elements are a BLOCK: decodes complete lists while input and room suffice.

        Leaves every other case, faults included, to `lists`.
        """
        offsets: Column = self.column(node)
        elements: Column = self.column(child)
        source: cython.p_const_uchar = self.source
        positions: cython.p_longlong = offsets.positions
        data: cython.p_uchar = elements.data
        size: cython.longlong = self.sizes[child]
        at: cython.Py_ssize_t = self.at
        end: cython.Py_ssize_t = self.end
        fill: cython.Py_ssize_t = elements.fill
        room: cython.Py_ssize_t = elements.capacity
        i: cython.Py_ssize_t = offsets.fill
        stop: cython.Py_ssize_t = i + min(self.counts[self.top], offsets.capacity - i)
        last: cython.longlong = positions[i - 1]
        stride: cython.Py_ssize_t = run_stride(end - at, self.counts[self.top])
        count: cython.longlong
        head: cython.Py_ssize_t
        nbytes: cython.longlong
        if size >= _HALF:  # so that count * size cannot overflow
            return 0
        # Invariant: the lists before `i` are in both columns, `at` is the length of the next. A turn copies only if
        # nbytes <= end - head and nbytes <= room - fill, and writes positions[i] with i < stop <= capacity.
        while i < stop and at < end:
            count = source[at]
            head = at + 1
            if count >= 128:
                count = varint(source, at, end)
                if count < 0 or count >= _HALF:
                    break
                head = at + varint_nbytes(count)
            nbytes = count * size
            if nbytes > end - head or nbytes > room - fill:
                break
            copy_run(data, fill, room, source, head, end, nbytes, stride)
            at = head + nbytes
            fill += nbytes
            last += count
            positions[i] = last
            i += 1
        self.counts[self.top] -= i - offsets.fill
        self.at = at
        offsets.fill = i
        elements.fill = fill
        return 0

    @cython.cfunc
    def options(self, node: cython.Py_ssize_t) -> cython.int:
        """Decodes the flags of options, and stores for each the index of its value among those present, or -1."""
        index: Column = self.column(node)
        child: cython.Py_ssize_t = self.child_of[node]
        frame: cython.Py_ssize_t = self.top
        left: cython.longlong = self.counts[frame]
        present: cython.longlong = self.present[node]
        whole: cython.bint = self.ops[child] == varints.BLOCK
        flag: cython.int
        answer: cython.int = 0
        # Invariant: at <= end and fill <= capacity; `present` is the number of flags so far that are 1.
        while left > 0:
            if index.fill == index.capacity:
                answer = self.grow(node, left)
                break
            if self.at == self.end:
                answer = varints.MORE
                break
            flag = self.source[self.at]
            if flag > 1:
                answer = varints.FLAG
                break
            self.at += 1
            left -= 1
            index.positions[index.fill] = present if flag else -1
            index.fill += 1
            present += flag
            if flag and not (whole and self.take_block(child)):
                self.push(child, 1)
                break
        self.counts[frame] = left
        self.present[node] = present
        return answer

    @cython.cfunc
    def sequence(self, node: cython.Py_ssize_t) -> cython.int:
        """Decodes one value of each child in turn; `phases` of the frame is the next child's number."""
        frame: cython.Py_ssize_t = self.top
        arity: cython.longlong = self.arity[node]
        first: cython.Py_ssize_t = self.child_of[node]
        left: cython.longlong = self.counts[frame]
        phase: cython.longlong = self.phases[frame]
        child: cython.Py_ssize_t
        # Invariant: 0 <= phase <= arity; the first `phase` children of the current value are decoded or pushed.
        while left > 0:
            if phase == arity:
                phase = 0
                left -= 1
                continue
            child = self.children[first + phase]
            phase += 1
            if not (self.ops[child] == varints.BLOCK and self.take_block(child)):
                self.push(child, 1)
                break
        self.counts[frame] = left
        self.phases[frame] = phase
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def repeat(self, node: cython.Py_ssize_t) -> cython.int:
        """Replaces `count` values of a REPEAT by count × size values of its child; its frame is finished."""
        count: cython.longlong = self.counts[self.top]
        if exceeds(count, self.sizes[node], _HUGE):
            return varints.COUNT
        self.counts[self.top] = 0
        self.push(self.child_of[node], count * self.sizes[node])
        return 0

    @cython.cfunc
    def chars(self, node: cython.Py_ssize_t) -> cython.int:
        """Decodes characters to code points."""
        column: Column = self.column(node)
        left: cython.longlong = self.counts[self.top]
        code: cython.longlong
        answer: cython.int = 0
        # Invariant: at <= end and fill <= capacity; `code_point` reads only before `end`.
        while left > 0:
            if column.fill == column.capacity:
                answer = self.grow(node, left)
                break
            code = code_point(self.source, self.at, self.end) if self.at < self.end else ENDS
            if code < 0:
                answer = varints.MORE if code == ENDS else varints.UTF8
                break
            column.codes[column.fill] = code
            column.fill += 1
            self.at += code_point_nbytes(code)
            left -= 1
        self.counts[self.top] = left
        return answer

    def request(self) -> tuple[int, int]:
        """After GROW: the column, and the most elements that it needs. After HELP: the column of the BOX."""
        return self.wanted, self.need

    def remaining(self) -> Any:
        """The least number of bytes that the rest of the value takes."""
        frame: cython.Py_ssize_t
        phase: cython.longlong
        node: cython.Py_ssize_t
        total: Any = 0
        # Invariant: `total` is the least size of what the outer frames still need.
        for frame in range(self.top + 1):
            node = self.stack[frame]
            if self.counts[frame] == 0:
                continue
            if self.ops[node] == varints.BLOCK:
                total += self.counts[frame]
                continue
            total += int(self.counts[frame]) * int(self.least[node])
            if self.ops[node] == varints.SEQUENCE:
                for phase in range(self.phases[frame]):
                    total -= int(self.least[self.children[self.child_of[node] + phase]])
        return total
