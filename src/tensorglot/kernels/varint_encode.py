"""Varint chains from columns to bytes; `varints` has the vocabulary.

A list or an option may point anywhere: whatever a row of a column says is compared with
the number of values that its child has before one of them is read. Measuring walks the
same way, writes nothing and has no end. Knows no type and no tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorglot.kernels import varints

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import *  # noqa: F403
else:
    from tensorglot.kernels.primitives import (
        code_point_nbytes,
        copy,
        copy_run,
        exceeds,
        longlongs_in,
        longlongs_out,
        run_stride,
        uchars_in,
        uchars_out,
        uints_in,
        varint_nbytes,
    )

# As C numbers: a name of another module would be looked up each time.
_BLOCK = cython.declare(cython.longlong, varints.BLOCK)
_LIST = cython.declare(cython.longlong, varints.LIST)
_OPTION = cython.declare(cython.longlong, varints.OPTION)
_SENTINEL = cython.declare(cython.longlong, varints.SENTINEL)
_SEQUENCE = cython.declare(cython.longlong, varints.SEQUENCE)
_REPEAT = cython.declare(cython.longlong, varints.REPEAT)
_CHAR = cython.declare(cython.longlong, varints.CHAR)
_MORE = cython.declare(cython.int, varints.MORE)
_HELP = cython.declare(cython.int, varints.HELP)
_UTF8 = cython.declare(cython.int, varints.UTF8)
_RANGE = cython.declare(cython.int, varints.RANGE)
_HUGE = cython.declare(cython.longlong, 1 << 62)


@cython.final
@cython.cclass
class Given:
    """A column to encode, which nobody writes to."""

    memory: Any
    data: cython.p_const_uchar
    positions: cython.p_const_longlong
    codes: cython.p_const_uint

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        if memory.dtype == np.uint8:
            self.data = uchars_in(memory)
        elif memory.dtype == np.int64:
            self.positions = longlongs_in(memory)
        else:
            self.codes = uints_in(memory)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(out: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    while value > 127:
        out[at] = (value & 127) | 128
        at += 1
        value >>= 7
    out[at] = value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_code_point(
    out: cython.p_uchar, at: cython.Py_ssize_t, code: cython.longlong, nbytes: cython.Py_ssize_t
) -> cython.void:
    i: cython.Py_ssize_t
    if nbytes == 1:
        out[at] = code
        return
    for i in range(nbytes - 1, 0, -1):
        out[at + i] = 0x80 | (code & 0x3F)
        code >>= 6
    out[at] = ((0xF00 >> nbytes) & 0xFF) | code


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _outside(begin: cython.longlong, count: cython.longlong, limit: cython.longlong) -> cython.bint:
    """Whether values from `begin` on are not all below `limit`, without a sum that might overflow."""
    return begin < 0 or count < 0 or count > limit or begin > limit - count


@cython.final
@cython.cclass
class Encoder:
    """One value on its way from columns to bytes.

    `limits` has the number of values that the columns of each node have. Invariant: a frame's
    values from `begins` on, `counts` of them, are among those; at <= end, where the output
    ends. `top` is at most one less than the depth of the program, as in `Decoder`.
    """

    program: Any
    ops: cython.p_const_longlong
    sizes: cython.p_const_longlong
    column_of: cython.p_const_longlong
    child_of: cython.p_const_longlong
    arity: cython.p_const_longlong
    children: cython.p_const_longlong
    other_of: cython.p_const_longlong
    limits: cython.p_const_longlong
    columns: list[Any]
    frames: Any
    stack: cython.p_longlong
    begins: cython.p_longlong
    counts: cython.p_longlong
    phases: cython.p_longlong
    top: cython.Py_ssize_t
    out: cython.p_uchar
    at: cython.longlong
    end: cython.longlong
    measuring: cython.bint
    wanted: cython.longlong
    box: cython.longlong

    def __init__(self, program: tuple[Any, ...], columns: list[Given], limits: Any, depth: cython.Py_ssize_t) -> None:
        self.program = (program, limits)
        self.ops = longlongs_in(program[0])
        self.sizes = longlongs_in(program[1])
        self.column_of = longlongs_in(program[2])
        self.child_of = longlongs_in(program[3])
        self.arity = longlongs_in(program[4])
        self.children = longlongs_in(program[5])
        self.other_of = longlongs_in(program[6])
        self.limits = longlongs_in(limits)
        self.columns = columns
        self.frames = list(np.zeros((4, depth), np.int64))
        self.stack = longlongs_out(self.frames[0])
        self.begins = longlongs_out(self.frames[1])
        self.counts = longlongs_out(self.frames[2])
        self.phases = longlongs_out(self.frames[3])
        self.top = -1
        self.at = self.end = 0
        self.measuring = False
        self.wanted = self.box = 0

    def start(self) -> Any:
        """Puts the root on the stack."""
        self.top = -1
        return self.push(0, 0, 1)

    def run(self, out: cython.uchar[::1], measuring: cython.bint) -> tuple[int, int]:
        """Goes on at the start of `out` until it is done, or needs more room, or help."""
        answer: cython.int = 0
        self.out = uchars_out(out)
        self.at = 0
        self.measuring = measuring
        self.end = _HUGE if measuring else len(out)
        # Invariant: the frames 0 to `top` are open, each with the values of its node that are still to be written;
        # at <= end, and everything before `at` is final. It is where a call with new room goes on.
        while answer == 0 and self.top >= 0:
            if self.counts[self.top] == 0:
                self.top -= 1
            else:
                answer = self.step(self.stack[self.top])
        return answer, self.at

    @cython.cfunc
    def step(self, node: cython.Py_ssize_t) -> cython.int:
        """As many values of the node as there is room for: 0, or an answer."""
        op: cython.longlong = self.ops[node]
        if op == _BLOCK:
            return self.block(node)
        if op == _LIST:
            return self.lists(node)
        if op == _SEQUENCE:
            return self.sequence(node)
        if op == _OPTION:
            return self.options(node)
        if op == _SENTINEL:
            return self.sentinels(node)
        if op == _REPEAT:
            return self.repeat(node)
        if op == _CHAR:
            return self.chars(node)
        self.wanted = self.column_of[node]
        self.box = self.begins[self.top]
        self.begins[self.top] += 1
        self.counts[self.top] -= 1
        return _HELP

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def push(self, node: cython.Py_ssize_t, begin: cython.longlong, count: cython.longlong) -> cython.int:
        """Opens `count` values of a node from `begin` on, if the node has them."""
        size: cython.longlong = self.sizes[node] if self.ops[node] == _BLOCK else 1
        if _outside(begin, count, self.limits[node]):
            return _RANGE
        self.top += 1
        self.stack[self.top] = node
        self.begins[self.top] = begin * size
        self.counts[self.top] = count * size
        self.phases[self.top] = 0
        return 0

    @cython.cfunc
    @cython.inline
    def column(self, number: cython.Py_ssize_t) -> Given:
        column: Given = cython.cast(Given, self.columns[number])
        return column

    @cython.cfunc
    @cython.inline
    def put_block(self, node: cython.Py_ssize_t, begin: cython.longlong) -> cython.bint:
        """Writes one value of a BLOCK if it exists and there is room for all of it."""
        nbytes: cython.longlong = self.sizes[node]
        if _outside(begin, 1, self.limits[node]) or nbytes > self.end - self.at:
            return False
        if not self.measuring and nbytes > 0:
            copy(self.out, self.at, self.column(self.column_of[node]).data, begin * nbytes, nbytes)
        self.at += nbytes
        return True

    @cython.cfunc
    def block(self, node: cython.Py_ssize_t) -> cython.int:
        left: cython.longlong = self.counts[self.top]
        nbytes: cython.longlong = min(left, self.end - self.at)
        if nbytes == 0:
            return _MORE
        if not self.measuring:
            copy(self.out, self.at, self.column(self.column_of[node]).data, self.begins[self.top], nbytes)
        self.at += nbytes
        self.begins[self.top] += nbytes
        self.counts[self.top] = left - nbytes
        return 0

    @cython.cfunc
    def lists(self, node: cython.Py_ssize_t) -> cython.int:
        """Counts; the elements of one are pushed and come next."""
        starts: cython.p_const_longlong = self.column(self.column_of[node]).positions
        stops: cython.p_const_longlong = self.column(self.other_of[node]).positions
        child: cython.Py_ssize_t = self.child_of[node]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong
        count: cython.longlong
        answer: cython.int = 0
        if self.ops[child] == _BLOCK and self.measuring:
            self.measure_runs(child, starts, stops)
        elif self.ops[child] == _BLOCK:
            self.runs(child, starts, stops)
        # Invariant: row i is among the node's, as `push` has found; a count is written where it fits before `end`.
        while answer == 0 and self.top == frame and self.counts[frame] > 0:
            i = self.begins[frame]
            count = stops[i] - starts[i]
            if count < 0:
                return _RANGE
            if varint_nbytes(count) > self.end - self.at:
                return _MORE
            if not self.measuring:
                _put_varint(self.out, self.at, count)
            self.at += varint_nbytes(count)
            self.begins[frame] = i + 1
            self.counts[frame] -= 1
            if count > 0:
                answer = self.push(child, starts[i], count)
        return answer

    @cython.cfunc
    def runs(
        self, child: cython.Py_ssize_t, starts: cython.p_const_longlong, stops: cython.p_const_longlong
    ) -> cython.int:
        """Lists of a BLOCK, as long as there is room for whole ones; `lists` does what is left.

        `end` leaves room for the nine bytes that a count can take, and each turn has nbytes
        <= end - at; the elements from `begin` on were found to exist.
        """
        out: cython.p_uchar = self.out
        data: cython.p_const_uchar = self.column(self.column_of[child]).data
        size: cython.longlong = self.sizes[child]
        limit: cython.longlong = self.limits[child]
        at: cython.longlong = self.at
        end: cython.longlong = self.end - 9
        i: cython.longlong = self.begins[self.top]
        stop: cython.longlong = i + self.counts[self.top]
        stride: cython.Py_ssize_t = run_stride(limit * size, stop - i)
        begin: cython.longlong
        count: cython.longlong
        nbytes: cython.longlong
        while i < stop and at < end:
            begin = starts[i]
            count = stops[i] - begin
            if _outside(begin, count, limit):
                break
            nbytes = count * size
            if nbytes > end - at:
                break
            if count < 128:
                out[at] = count
                at += 1
            else:
                _put_varint(out, at, count)
                at += varint_nbytes(count)
            copy_run(out, at, self.end, data, begin * size, limit * size, nbytes, stride)
            at += nbytes
            i += 1
        self.at = at
        self.counts[self.top] = stop - i
        self.begins[self.top] = i
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def measure_runs(
        self, child: cython.Py_ssize_t, starts: cython.p_const_longlong, stops: cython.p_const_longlong
    ) -> cython.void:
        """The bytes of lists of a BLOCK, up to one that points outside its elements, or beyond all sizes."""
        limit: cython.longlong = self.limits[child]
        i: cython.longlong = self.begins[self.top]
        stop: cython.longlong = i + self.counts[self.top]
        most: cython.longlong = _HUGE // max(1, self.sizes[child])
        heads: cython.longlong = 0
        total: cython.longlong = 0
        begin: cython.longlong
        count: cython.longlong
        # Invariant: total * size <= _HUGE, and a head takes at most nine bytes: no sum overflows.
        while i < stop:
            begin = starts[i]
            count = stops[i] - begin
            if _outside(begin, count, limit) or count > most - total:
                break
            heads += 1 if count < 128 else varint_nbytes(count)
            total += count
            i += 1
        self.at += heads + total * self.sizes[child]
        self.counts[self.top] = stop - i
        self.begins[self.top] = i

    @cython.cfunc
    def options(self, node: cython.Py_ssize_t) -> cython.int:
        """A flag for each position, and the value where it is not -1."""
        positions: cython.p_const_longlong = self.column(self.column_of[node]).positions
        child: cython.Py_ssize_t = self.child_of[node]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        whole: cython.bint = self.ops[child] == _BLOCK
        begin: cython.longlong
        answer: cython.int = 0
        # Invariant: row i is among the node's; at < end before a flag is written, and `put_block` compares for itself.
        while i < end:
            begin = positions[i]
            if self.at == self.end:
                answer = _MORE
                break
            if not self.measuring:
                self.out[self.at] = begin >= 0
            self.at += 1
            i += 1
            if begin >= 0 and not (whole and self.put_block(child, begin)):
                answer = self.push(child, begin, 1)
                break
        self.begins[frame] = i
        self.counts[frame] = end - i
        return answer

    @cython.cfunc
    def sentinels(self, node: cython.Py_ssize_t) -> cython.int:
        """The value at each position, or the bytes that stand for a missing one."""
        positions: cython.p_const_longlong = self.column(self.column_of[node]).positions
        sentinel: cython.p_const_uchar = self.column(self.other_of[node]).data
        child: cython.Py_ssize_t = self.child_of[node]
        size: cython.longlong = self.sizes[child]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        answer: cython.int = 0
        # Invariant: the positions before `i` are written, and at <= end.
        while i < end:
            if size > self.end - self.at:
                answer = _MORE
                break
            if positions[i] < 0:
                if not self.measuring:
                    copy(self.out, self.at, sentinel, 0, size)
                self.at += size
            elif not self.put_block(child, positions[i]):
                answer = _RANGE
                break
            i += 1
        self.begins[frame] = i
        self.counts[frame] = end - i
        return answer

    @cython.cfunc
    def sequence(self, node: cython.Py_ssize_t) -> cython.int:
        """One child after the other; the phase says which is next."""
        frame: cython.Py_ssize_t = self.top
        arity: cython.longlong = self.arity[node]
        first: cython.Py_ssize_t = self.child_of[node]
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        phase: cython.longlong = self.phases[frame]
        child: cython.Py_ssize_t
        answer: cython.int = 0
        # Invariant: the sequences before `i`, and the first `phase` children of the next, are written or pushed.
        while i < end:
            if phase == arity:
                phase = 0
                i += 1
                continue
            child = self.children[first + phase]
            phase += 1
            if not (self.ops[child] == _BLOCK and self.put_block(child, i)):
                answer = self.push(child, i, 1)
                break
        self.begins[frame] = i
        self.counts[frame] = end - i
        self.phases[frame] = phase
        return answer

    @cython.cfunc
    @cython.exceptval(check=False)
    def repeat(self, node: cython.Py_ssize_t) -> cython.int:
        begin: cython.longlong = self.begins[self.top]
        count: cython.longlong = self.counts[self.top]
        if exceeds(begin + count, self.sizes[node], _HUGE):
            return _RANGE
        self.counts[self.top] = 0
        return self.push(self.child_of[node], begin * self.sizes[node], count * self.sizes[node])

    @cython.cfunc
    def chars(self, node: cython.Py_ssize_t) -> cython.int:
        codes: cython.p_const_uint = self.column(self.column_of[node]).codes
        i: cython.longlong = self.begins[self.top]
        end: cython.longlong = i + self.counts[self.top]
        code: cython.longlong
        nbytes: cython.Py_ssize_t
        answer: cython.int = 0
        # Invariant: the characters before `i` are written, and at <= end.
        while i < end:
            code = codes[i]
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                answer = _UTF8
                break
            nbytes = code_point_nbytes(code)
            if nbytes > self.end - self.at:
                answer = _MORE
                break
            if not self.measuring:
                _put_code_point(self.out, self.at, code, nbytes)
            self.at += nbytes
            i += 1
        self.begins[self.top] = i
        self.counts[self.top] = end - i
        return answer

    def request(self) -> tuple[int, int]:
        """The column of boxes that HELP is about, and which of them."""
        return self.wanted, self.box
