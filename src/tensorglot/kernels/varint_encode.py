"""Encodes varint chains from columns to bytes; `varints` defines the opcodes and answers.

Columns are not trusted: the positions of lists and options are compared with the number
of values of their child before a value is read. A measuring run takes the same walk but
writes nothing and has unlimited room. Knows nothing of types or tensors.
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
        code_point_nbytes,
        copy,
        copy_run,
        exceeds,
        longlongs_of,
        run_stride,
        uchars_of,
        uchars_out,
        uints_of,
        varint_nbytes,
    )

_HUGE = cython.declare(cython.longlong, 1 << 62)


@cython.final
@cython.cclass
class Given:
    """A column to encode. Only one of `data`, `positions` and `codes` is set: that of the memory's dtype."""

    memory: Any
    data: cython.p_const_uchar
    positions: cython.p_const_longlong
    codes: cython.p_const_uint

    def __init__(self, memory: Any) -> None:
        self.memory = memory
        if memory.dtype == np.uint8:
            self.data = uchars_of(memory)
        elif memory.dtype == np.int64:
            self.positions = longlongs_of(memory)
        else:
            self.codes = uints_of(memory)


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
    """Writes a code point as UTF-8; `nbytes` is its `code_point_nbytes`."""
    i: cython.Py_ssize_t
    if nbytes == 1:
        out[at] = code
        return
    for i in range(nbytes - 1, 0, -1):
        out[at + i] = 0x80 | (code & 0x3F)
        code >>= 6
    out[at] = ((0xF00 >> nbytes) & 0xFF) | code  # `nbytes` leading ones, then the rest of the code point


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _outside(begin: cython.longlong, count: cython.longlong, limit: cython.longlong) -> cython.bint:
    """Whether some of the `count` values from `begin` on do not lie in 0 to `limit`, without overflow."""
    return begin < 0 or count < 0 or count > limit or begin > limit - count


@cython.final
@cython.cclass
class Encoder:
    """Encodes one value of a program's type from columns.

    `limits` has, for each node, the number of values in its columns. Invariant: the values
    begins[frame] to begins[frame] + counts[frame] of a frame are among them; at <= end, the
    end of the output; `top` stays below the depth of the program's tree, as in `Decoder`.
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
        self.ops = longlongs_of(program[0])
        self.sizes = longlongs_of(program[1])
        self.column_of = longlongs_of(program[2])
        self.child_of = longlongs_of(program[3])
        self.arity = longlongs_of(program[4])
        self.children = longlongs_of(program[5])
        self.other_of = longlongs_of(program[6])
        self.limits = longlongs_of(limits)
        self.columns = columns
        self.frames = list(np.zeros((4, depth), np.int64))
        self.stack = longlongs_of(self.frames[0])
        self.begins = longlongs_of(self.frames[1])
        self.counts = longlongs_of(self.frames[2])
        self.phases = longlongs_of(self.frames[3])
        self.top = -1
        self.at = self.end = 0
        self.measuring = False
        self.wanted = self.box = 0

    def start(self) -> Any:
        """Opens the root's frame: 0, or RANGE. To be called before each encoding or measuring."""
        self.top = -1
        return self.push(0, 0, 1)

    def run(self, out: cython.uchar[::1], measuring: cython.bint) -> tuple[int, int]:
        """Continues the encoding, writing from the start of `out`, until it is complete or needs room or help."""
        answer: cython.int = 0
        self.out = uchars_out(out)
        self.at = 0
        self.measuring = measuring
        self.end = _HUGE if measuring else len(out)
        # Invariant: the frames 0 to `top` are open, each with the values still to be written; at <= end, and the
        # bytes before `at` are final.
        while answer == 0 and self.top >= 0:
            if self.counts[self.top] == 0:
                self.top -= 1
            else:
                answer = self.step(self.stack[self.top])
        return answer, self.at

    @cython.cfunc
    def step(self, node: cython.Py_ssize_t) -> cython.int:
        """Encodes values of the innermost frame while there is room: 0, or an answer."""
        op: cython.longlong = self.ops[node]
        if op == varints.BLOCK:
            return self.block(node)
        if op == varints.LIST:
            return self.lists(node)
        if op == varints.SEQUENCE:
            return self.sequence(node)
        if op == varints.OPTION:
            return self.options(node)
        if op == varints.SENTINEL:
            return self.sentinels(node)
        if op == varints.REPEAT:
            return self.repeat(node)
        if op == varints.CHAR:
            return self.chars(node)
        self.wanted = self.column_of[node]
        self.box = self.begins[self.top]
        self.begins[self.top] += 1
        self.counts[self.top] -= 1
        return varints.HELP

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def push(self, node: cython.Py_ssize_t, begin: cython.longlong, count: cython.longlong) -> cython.int:
        """Opens a frame for `count` values of a node from `begin` on: 0, or RANGE if the node lacks them."""
        size: cython.longlong = self.sizes[node] if self.ops[node] == varints.BLOCK else 1
        if _outside(begin, count, self.limits[node]):
            return varints.RANGE
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
        """Writes one value of a BLOCK if it exists and there is room for all of it; returns whether it did."""
        nbytes: cython.longlong = self.sizes[node]
        if _outside(begin, 1, self.limits[node]) or nbytes > self.end - self.at:
            return False
        if not self.measuring and nbytes > 0:
            copy(self.out, self.at, self.column(self.column_of[node]).data, begin * nbytes, nbytes)
        self.at += nbytes
        return True

    @cython.cfunc
    def block(self, node: cython.Py_ssize_t) -> cython.int:
        """Copies as many bytes of a BLOCK as there is room for; a value may be cut."""
        left: cython.longlong = self.counts[self.top]
        nbytes: cython.longlong = min(left, self.end - self.at)
        if nbytes == 0:
            return varints.MORE
        if not self.measuring:
            copy(self.out, self.at, self.column(self.column_of[node]).data, self.begins[self.top], nbytes)
        self.at += nbytes
        self.begins[self.top] += nbytes
        self.counts[self.top] = left - nbytes
        return 0

    @cython.cfunc
    def lists(self, node: cython.Py_ssize_t) -> cython.int:
        """Encodes the lengths of lists. Stops at a list with elements: these are pushed, and come next."""
        starts: cython.p_const_longlong = self.column(self.column_of[node]).positions
        stops: cython.p_const_longlong = self.column(self.other_of[node]).positions
        child: cython.Py_ssize_t = self.child_of[node]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong
        count: cython.longlong
        answer: cython.int = 0
        if self.ops[child] == varints.BLOCK and self.measuring:
            self.measure_runs(child, starts, stops)
        elif self.ops[child] == varints.BLOCK:
            self.runs(child, starts, stops)
        # Invariant: row i exists, because `push` has checked it; a count is written only if it fits before `end`.
        while answer == 0 and self.top == frame and self.counts[frame] > 0:
            i = self.begins[frame]
            count = stops[i] - starts[i]
            if count < 0:
                return varints.RANGE
            if varint_nbytes(count) > self.end - self.at:
                return varints.MORE
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
        """Fast path of `lists` if the elements are a BLOCK: encodes complete lists while there is room.

        Leaves every other case, faults included, to `lists`.
        """
        out: cython.p_uchar = self.out
        data: cython.p_const_uchar = self.column(self.column_of[child]).data
        size: cython.longlong = self.sizes[child]
        limit: cython.longlong = self.limits[child]
        at: cython.longlong = self.at
        end: cython.longlong = self.end - 9  # a length takes at most nine bytes
        i: cython.longlong = self.begins[self.top]
        stop: cython.longlong = i + self.counts[self.top]
        stride: cython.Py_ssize_t = run_stride(limit * size, stop - i)
        begin: cython.longlong
        count: cython.longlong
        nbytes: cython.longlong
        # Invariant: the lists before `i` end at `at` <= self.end. A turn writes only if the elements exist, and the
        # nine bytes and nbytes <= end - at fit.
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
        """Adds up the sizes of lists of a BLOCK, up to one whose elements do not exist or whose size overflows."""
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
        """Encodes options: for each position a flag, and the value at that position unless it is negative."""
        positions: cython.p_const_longlong = self.column(self.column_of[node]).positions
        child: cython.Py_ssize_t = self.child_of[node]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        whole: cython.bint = self.ops[child] == varints.BLOCK
        begin: cython.longlong
        answer: cython.int = 0
        # Invariant: row i exists; a flag is written only at at < end, and `put_block` checks its own bounds.
        while i < end:
            begin = positions[i]
            if self.at == self.end:
                answer = varints.MORE
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
        """Encodes the value at each position, or the sentinel's bytes if the position is negative."""
        positions: cython.p_const_longlong = self.column(self.column_of[node]).positions
        sentinel: cython.p_const_uchar = self.column(self.other_of[node]).data
        child: cython.Py_ssize_t = self.child_of[node]
        size: cython.longlong = self.sizes[child]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        answer: cython.int = 0
        # Invariant: the values of the positions before `i` are written, and at <= end. Room was compared before
        # `put_block`, so that can only fail because the value does not exist.
        while i < end:
            if size > self.end - self.at:
                answer = varints.MORE
                break
            if positions[i] < 0:
                if not self.measuring:
                    copy(self.out, self.at, sentinel, 0, size)
                self.at += size
            elif not self.put_block(child, positions[i]):
                answer = varints.RANGE
                break
            i += 1
        self.begins[frame] = i
        self.counts[frame] = end - i
        return answer

    @cython.cfunc
    def sequence(self, node: cython.Py_ssize_t) -> cython.int:
        """Encodes one value of each child in turn; `phases` of the frame is the next child's number."""
        frame: cython.Py_ssize_t = self.top
        arity: cython.longlong = self.arity[node]
        first: cython.Py_ssize_t = self.child_of[node]
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        phase: cython.longlong = self.phases[frame]
        child: cython.Py_ssize_t
        answer: cython.int = 0
        # Invariant: the sequences before `i`, and the first `phase` children of sequence `i`, are written or pushed.
        while i < end:
            if phase == arity:
                phase = 0
                i += 1
                continue
            child = self.children[first + phase]
            phase += 1
            if not (self.ops[child] == varints.BLOCK and self.put_block(child, i)):
                answer = self.push(child, i, 1)
                break
        self.begins[frame] = i
        self.counts[frame] = end - i
        self.phases[frame] = phase
        return answer

    @cython.cfunc
    @cython.exceptval(check=False)
    def repeat(self, node: cython.Py_ssize_t) -> cython.int:
        """Replaces `count` values of a REPEAT by count × size values of its child; its frame is finished."""
        begin: cython.longlong = self.begins[self.top]
        count: cython.longlong = self.counts[self.top]
        if exceeds(begin + count, self.sizes[node], _HUGE):
            return varints.RANGE
        self.counts[self.top] = 0
        return self.push(self.child_of[node], begin * self.sizes[node], count * self.sizes[node])

    @cython.cfunc
    def chars(self, node: cython.Py_ssize_t) -> cython.int:
        """Encodes code points as UTF-8."""
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
                answer = varints.UTF8
                break
            nbytes = code_point_nbytes(code)
            if nbytes > self.end - self.at:
                answer = varints.MORE
                break
            if not self.measuring:
                _put_code_point(self.out, self.at, code, nbytes)
            self.at += nbytes
            i += 1
        self.begins[self.top] = i
        self.counts[self.top] = end - i
        return answer

    def request(self) -> tuple[int, int]:
        """After HELP: the column of boxes, and the index of the box in it."""
        return self.wanted, self.box
