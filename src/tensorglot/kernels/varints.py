"""Varint chains: bytes with counts between them, to columns and back.

A program is the tree of one type, as rows with one for each node (`tensorglot.dynd.schema`
says what is in them). What is open is a stack of frames, so that a run can stop
wherever input, room or help is needed and go on from there; depth costs no recursion.
A frame counts the values of its node that are to come, and of a BLOCK their bytes.

A column is memory that the caller lends: bytes, or int64 for positions and code points.
Every position is compared with the column's length before it is used. Knows no type
and no tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

# What a node is.
BLOCK = 0  # values of a fixed size, as they are
LIST = 1  # a varint, and so many of the child
OPTION = 2  # a flag byte, and the child where it is 1
SENTINEL = 3  # the child, a BLOCK, or certain bytes of the same size where it is missing; only to encode
SEQUENCE = 4  # one each of several children
REPEAT = 5  # a fixed number of the child
CHAR = 6  # one UTF-8 character
BOX = 7  # the caller decodes or encodes it

# Answers. The negative ones are refusals of what is at `at`.
DONE, MORE, GROW, HELP = 0, 1, 2, 3
LONG, PADDED, ENDS, COUNT, FLAG, EMPTY, UTF8, RANGE = -1, -2, -3, -4, -5, -6, -7, -8

_BLOCK = cython.declare(cython.longlong, BLOCK)
_LIST = cython.declare(cython.longlong, LIST)
_OPTION = cython.declare(cython.longlong, OPTION)
_SENTINEL = cython.declare(cython.longlong, SENTINEL)
_SEQUENCE = cython.declare(cython.longlong, SEQUENCE)
_REPEAT = cython.declare(cython.longlong, REPEAT)
_CHAR = cython.declare(cython.longlong, CHAR)
_HALF = cython.declare(cython.longlong, 1 << 31)
_HUGE = cython.declare(cython.longlong, 1 << 62)


def _view(memory: Any) -> Any:
    """What interpreted code indexes: a memoryview gives Python's numbers, which do not overflow as NumPy's do."""
    return memory if cython.compiled else memoryview(memory)


@cython.cclass
class Column:
    """Memory for things of one kind, filled from the front: bytes, positions or code points."""

    data: cython.uchar[::1]
    positions: cython.longlong[::1]
    codes: cython.uint[::1]
    fill: cython.Py_ssize_t
    capacity: cython.Py_ssize_t

    def __init__(self) -> None:
        self.fill = 0
        self.capacity = 0

    def lend(self, memory: Any, fill: cython.Py_ssize_t) -> None:
        """Gives the column memory, `fill` of it full."""
        view: Any = _view(memory)
        if memory.dtype == np.uint8:
            self.data = view
        elif memory.dtype == np.int64:
            self.positions = view
        else:
            self.codes = view
        self.fill = fill
        self.capacity = len(memory)

    def filled(self) -> Any:
        return self.fill


@cython.cclass
class Given:
    """A column to encode, which nobody writes to."""

    data: cython.const[cython.uchar][::1]
    positions: cython.const[cython.longlong][::1]
    codes: cython.const[cython.uint][::1]

    def __init__(self, memory: Any) -> None:
        view: Any = _view(memory)
        if memory.dtype == np.uint8:
            self.data = view
        elif memory.dtype == np.int64:
            self.positions = view
        else:
            self.codes = view


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _copy(
    to: cython.uchar[::1],
    to_at: cython.Py_ssize_t,
    source: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    nbytes: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        memcpy(cython.address(to[to_at]), cython.address(source[at]), nbytes)
    else:
        to[to_at : to_at + nbytes] = source[at : at + nbytes]


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _copy_short(
    to: cython.uchar[::1],
    to_at: cython.Py_ssize_t,
    source: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    nbytes: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
) -> cython.void:
    """As _copy; up to `stride` bytes always in the same number of steps, which the processor can foresee.

    Bytes behind are read, and written where later ones will come.
    """
    i: cython.Py_ssize_t
    if cython.compiled:
        if nbytes <= stride and to_at + stride <= to.shape[0] and at + stride <= source.shape[0]:
            for i in range(0, stride, 32):
                memcpy(cython.address(to[to_at + i]), cython.address(source[at + i]), 32)
        elif nbytes > 0:
            memcpy(cython.address(to[to_at]), cython.address(source[at]), nbytes)
    else:
        to[to_at : to_at + nbytes] = source[at : at + nbytes]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _stride(nbytes: cython.longlong, count: cython.longlong) -> cython.Py_ssize_t:
    """Steps of 32 that hold most of `count` runs which have `nbytes` together."""
    mean: cython.longlong = nbytes // count if count > 0 else 0
    return min(256, (2 * mean + 31) // 32 * 32) if mean > 0 else 32


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _varint(source: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """The number at `at`, or a refusal."""
    value: cython.longlong = 0
    byte: cython.longlong
    shift: cython.int = 0
    while at < end:
        byte = source[at]
        if byte < 128:
            if byte == 0 and shift > 0:
                return PADDED
            return value | (byte << shift)
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift == 63:
            return LONG
    return ENDS


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_nbytes(value: cython.longlong) -> cython.Py_ssize_t:
    nbytes: cython.Py_ssize_t = 1
    while value > 127:
        value >>= 7
        nbytes += 1
    return nbytes


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _put_varint(out: cython.uchar[::1], at: cython.Py_ssize_t, value: cython.longlong) -> cython.void:
    while value > 127:
        out[at] = (value & 127) | 128
        at += 1
        value >>= 7
    out[at] = value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _exceeds(count: cython.longlong, size: cython.longlong, room: cython.longlong) -> cython.bint:
    """Whether count × size > room, all of them not negative."""
    if size == 0:
        return False
    if count < _HALF and size < _HALF:
        return count * size > room
    return count > room // size


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _code_point(
    source: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """The character at `at`, or a refusal."""
    first: cython.longlong
    code: cython.longlong
    least: cython.longlong
    following: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if at >= end:
        return ENDS
    first = source[at]
    if first < 0x80:
        return first
    if 0xC2 <= first < 0xE0:
        following, code, least = 1, first & 0x1F, 0x80
    elif 0xE0 <= first < 0xF0:
        following, code, least = 2, first & 0x0F, 0x800
    elif 0xF0 <= first < 0xF5:
        following, code, least = 3, first & 0x07, 0x10000
    else:
        return UTF8
    for i in range(at + 1, at + 1 + following):
        if i >= end:
            return ENDS
        if source[i] & 0xC0 != 0x80:
            return UTF8
        code = (code << 6) | (source[i] & 0x3F)
    if code < least or code > 0x10FFFF or 0xD800 <= code < 0xE000:
        return UTF8
    return code


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _code_point_nbytes(code: cython.longlong) -> cython.Py_ssize_t:
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


@cython.cclass
class Decoder:
    """One value on its way from bytes to columns."""

    ops: cython.longlong[::1]
    sizes: cython.longlong[::1]
    column_of: cython.longlong[::1]
    child_of: cython.longlong[::1]
    arity: cython.longlong[::1]
    children: cython.longlong[::1]
    least: cython.longlong[::1]
    charge: cython.longlong[::1]
    columns: list[Any]
    present: cython.longlong[::1]
    stack: cython.longlong[::1]
    counts: cython.longlong[::1]
    phases: cython.longlong[::1]
    top: cython.Py_ssize_t
    at: cython.Py_ssize_t
    charges: cython.longlong
    need: cython.longlong
    wanted: cython.Py_ssize_t

    def __init__(
        self, program: tuple[Any, ...], columns: list[Column], depth: cython.Py_ssize_t, charges: cython.longlong
    ) -> None:
        self.ops, self.sizes, self.column_of, self.child_of = map(_view, program[:4])
        self.arity, self.children, self.least, self.charge = map(_view, program[4:])
        self.columns = columns
        self.present = _view(np.zeros(len(program[0]), np.int64))
        self.stack = _view(np.zeros(depth, np.int64))
        self.counts = _view(np.zeros(depth, np.int64))
        self.phases = _view(np.zeros(depth, np.int64))
        self.top = -1
        self.at = 0
        self.charges = charges
        self.need = 0
        self.wanted = 0
        self.push(0, 1)

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def push(self, node: cython.Py_ssize_t, count: cython.longlong) -> cython.void:
        self.top += 1
        self.stack[self.top] = node
        self.counts[self.top] = count * self.sizes[node] if self.ops[node] == _BLOCK else count
        self.phases[self.top] = 0

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def taken(
        self, source: cython.const[cython.uchar][::1], node: cython.Py_ssize_t, nbytes: cython.longlong
    ) -> cython.bint:
        """Copies a whole run of a BLOCK if input and room are there."""
        column: Column
        if nbytes > source.shape[0] - self.at:
            return False
        column = self.columns[self.column_of[node]]
        if nbytes > column.capacity - column.fill:
            return False
        if nbytes > 0:
            _copy(column.data, column.fill, source, self.at, nbytes)
            column.fill += nbytes
            self.at += nbytes
        return True

    @cython.boundscheck(False)
    def run(self, source: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, beyond: cython.longlong) -> Any:
        """Goes on at `at` of the source, behind which lie `beyond` bytes more, until it is done or needs something."""
        node: cython.Py_ssize_t
        op: cython.longlong
        answer: cython.int
        if not cython.compiled:
            source = memoryview(source)
        self.at = at
        while self.top >= 0:
            if self.counts[self.top] == 0:
                self.top -= 1
                continue
            node = self.stack[self.top]
            op = self.ops[node]
            if op == _BLOCK:
                answer = self.block(source, node)
            elif op == _LIST:
                answer = self.lists(source, node, beyond)
            elif op == _SEQUENCE:
                answer = self.sequence(source, node)
            elif op == _OPTION:
                answer = self.options(source, node)
            elif op == _REPEAT:
                answer = self.repeat(node)
            elif op == _CHAR:
                answer = self.chars(source, node)
            else:
                self.counts[self.top] -= 1
                self.wanted = self.column_of[node]
                return HELP
            if answer != 0:
                return answer
        return DONE

    @cython.cfunc
    @cython.exceptval(check=False)
    def grow(self, column: cython.Py_ssize_t, need: cython.longlong) -> cython.int:
        self.wanted = column
        self.need = need
        return GROW

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def block(self, source: cython.const[cython.uchar][::1], node: cython.Py_ssize_t) -> cython.int:
        column: Column = self.columns[self.column_of[node]]
        count: cython.longlong = self.counts[self.top]
        nbytes: cython.longlong = min(count, source.shape[0] - self.at)
        if nbytes == 0:
            return MORE
        if column.capacity == column.fill:
            return self.grow(self.column_of[node], count)
        nbytes = min(nbytes, column.capacity - column.fill)
        _copy(column.data, column.fill, source, self.at, nbytes)
        column.fill += nbytes
        self.at += nbytes
        self.counts[self.top] = count - nbytes
        return DONE

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def lists(
        self, source: cython.const[cython.uchar][::1], node: cython.Py_ssize_t, beyond: cython.longlong
    ) -> cython.int:
        offsets: Column = self.columns[self.column_of[node]]
        child: cython.Py_ssize_t = self.child_of[node]
        charge: cython.longlong = self.charge[child]
        frame: cython.Py_ssize_t = self.top
        count: cython.longlong
        answer: cython.int = 0
        if self.ops[child] == _BLOCK and charge == 0:
            answer = self.runs(source, node, beyond)
        while answer == 0 and self.top == frame and self.counts[frame] > 0:
            if offsets.fill == offsets.capacity:
                return self.grow(self.column_of[node], self.counts[frame])
            count = _varint(source, self.at, source.shape[0])
            if count < 0:
                return MORE if count == ENDS else count
            if _exceeds(count, self.least[child], source.shape[0] - self.at + beyond):
                return COUNT
            if _exceeds(count, charge, self.charges):
                return EMPTY
            self.charges -= count * charge
            self.at += _varint_nbytes(count)
            offsets.positions[offsets.fill] = offsets.positions[offsets.fill - 1] + count
            offsets.fill += 1
            self.counts[frame] -= 1
            if count > 0:
                self.push(child, count)
        return answer

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def runs(
        self, source: cython.const[cython.uchar][::1], node: cython.Py_ssize_t, beyond: cython.longlong
    ) -> cython.int:
        """Lists of a BLOCK, as long as input and room are there for whole ones."""
        child: cython.Py_ssize_t = self.child_of[node]
        offsets: Column = self.columns[self.column_of[node]]
        elements: Column = self.columns[self.column_of[child]]
        positions: cython.longlong[::1] = offsets.positions
        data: cython.uchar[::1] = elements.data
        size: cython.longlong = self.sizes[child]
        at: cython.Py_ssize_t = self.at
        end: cython.Py_ssize_t = source.shape[0]
        fill: cython.Py_ssize_t = elements.fill
        room: cython.Py_ssize_t = elements.capacity
        i: cython.Py_ssize_t = offsets.fill
        stop: cython.Py_ssize_t = i + min(self.counts[self.top], offsets.capacity - i)
        last: cython.longlong = positions[i - 1]
        stride: cython.Py_ssize_t = _stride(end - at, self.counts[self.top])
        count: cython.longlong
        head: cython.Py_ssize_t
        nbytes: cython.longlong
        if size >= _HALF:
            return DONE
        while i < stop and at < end:
            count = source[at]
            head = at + 1
            if count >= 128:
                count = _varint(source, at, end)
                if count < 0 or count >= _HALF:
                    break
                head = at + _varint_nbytes(count)
            nbytes = count * size
            if nbytes > end - head or nbytes > room - fill:
                break
            _copy_short(data, fill, source, head, nbytes, stride)
            at = head + nbytes
            fill += nbytes
            last += count
            positions[i] = last
            i += 1
        self.counts[self.top] -= i - offsets.fill
        self.at = at
        offsets.fill = i
        elements.fill = fill
        return DONE

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def options(self, source: cython.const[cython.uchar][::1], node: cython.Py_ssize_t) -> cython.int:
        index: Column = self.columns[self.column_of[node]]
        child: cython.Py_ssize_t = self.child_of[node]
        frame: cython.Py_ssize_t = self.top
        left: cython.longlong = self.counts[frame]
        whole: cython.bint = self.ops[child] == _BLOCK
        flag: cython.int
        answer: cython.int = 0
        while left > 0:
            if index.fill == index.capacity:
                answer = self.grow(self.column_of[node], left)
                break
            if self.at == source.shape[0]:
                answer = MORE
                break
            flag = source[self.at]
            if flag > 1:
                answer = FLAG
                break
            self.at += 1
            left -= 1
            index.positions[index.fill] = self.present[node] if flag else -1
            index.fill += 1
            if flag:
                self.present[node] += 1
                if not (whole and self.taken(source, child, self.sizes[child])):
                    self.push(child, 1)
                    break
        self.counts[frame] = left
        return answer

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def sequence(self, source: cython.const[cython.uchar][::1], node: cython.Py_ssize_t) -> cython.int:
        frame: cython.Py_ssize_t = self.top
        arity: cython.longlong = self.arity[node]
        first: cython.Py_ssize_t = self.child_of[node]
        left: cython.longlong = self.counts[frame]
        phase: cython.longlong = self.phases[frame]
        child: cython.Py_ssize_t
        while left > 0:
            if phase == arity:
                phase = 0
                left -= 1
                continue
            child = self.children[first + phase]
            phase += 1
            if not (self.ops[child] == _BLOCK and self.taken(source, child, self.sizes[child])):
                self.push(child, 1)
                break
        self.counts[frame] = left
        self.phases[frame] = phase
        return DONE

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def repeat(self, node: cython.Py_ssize_t) -> cython.int:
        count: cython.longlong = self.counts[self.top]
        if _exceeds(count, self.sizes[node], _HUGE):
            return COUNT
        self.counts[self.top] = 0
        self.push(self.child_of[node], count * self.sizes[node])
        return DONE

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def chars(self, source: cython.const[cython.uchar][::1], node: cython.Py_ssize_t) -> cython.int:
        column: Column = self.columns[self.column_of[node]]
        left: cython.longlong = self.counts[self.top]
        code: cython.longlong
        answer: cython.int = 0
        while left > 0:
            if column.fill == column.capacity:
                answer = self.grow(self.column_of[node], left)
                break
            code = _code_point(source, self.at, source.shape[0])
            if code < 0:
                answer = MORE if code == ENDS else code
                break
            column.codes[column.fill] = code
            column.fill += 1
            self.at += _code_point_nbytes(code)
            left -= 1
        self.counts[self.top] = left
        return answer

    def where(self) -> Any:
        """The byte of the source where the run stopped."""
        return self.at

    def wish(self) -> tuple[int, int]:
        """The column that GROW is about and what it needs at most, or that HELP is about."""
        return self.wanted, self.need

    @cython.boundscheck(False)
    def remaining(self) -> Any:
        """The number of bytes that are still to come, at least."""
        frame: cython.Py_ssize_t
        phase: cython.longlong
        node: cython.Py_ssize_t
        total: Any = 0
        for frame in range(self.top + 1):
            node = self.stack[frame]
            if self.counts[frame] == 0:
                continue
            if self.ops[node] == _BLOCK:
                total += self.counts[frame]
            else:
                total += int(self.counts[frame]) * int(self.least[node])
                if self.ops[node] == _SEQUENCE:
                    for phase in range(self.phases[frame]):
                        total -= int(self.least[self.children[self.child_of[node] + phase]])
        return total


@cython.cclass
class Encoder:
    """One value on its way from columns to bytes.

    `limits` has the number of values that the columns of each node have. Measuring writes nothing and has no end.
    """

    ops: cython.longlong[::1]
    sizes: cython.longlong[::1]
    column_of: cython.longlong[::1]
    child_of: cython.longlong[::1]
    arity: cython.longlong[::1]
    children: cython.longlong[::1]
    other_of: cython.longlong[::1]
    limits: cython.longlong[::1]
    columns: list[Any]
    stack: cython.longlong[::1]
    begins: cython.longlong[::1]
    counts: cython.longlong[::1]
    phases: cython.longlong[::1]
    top: cython.Py_ssize_t
    at: cython.longlong
    end: cython.longlong
    measuring: cython.bint
    wanted: cython.longlong
    box: cython.longlong

    def __init__(self, program: tuple[Any, ...], columns: list[Given], limits: Any, depth: cython.Py_ssize_t) -> None:
        self.ops, self.sizes, self.column_of, self.child_of = map(_view, program[:4])
        self.arity, self.children, self.other_of = map(_view, program[4:])
        self.columns = columns
        self.limits = _view(limits)
        self.stack = _view(np.zeros(depth, np.int64))
        self.begins = _view(np.zeros(depth, np.int64))
        self.counts = _view(np.zeros(depth, np.int64))
        self.phases = _view(np.zeros(depth, np.int64))
        self.top = -1
        self.at = self.end = 0
        self.measuring = False
        self.wanted = self.box = 0

    @cython.boundscheck(False)
    def start(self) -> Any:
        """Puts the root on the stack."""
        self.top = -1
        return self.push(0, 0, 1)

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def push(self, node: cython.Py_ssize_t, begin: cython.longlong, count: cython.longlong) -> cython.int:
        """Opens `count` values of a node from `begin` on, if the node has them."""
        size: cython.longlong = self.sizes[node] if self.ops[node] == _BLOCK else 1
        if begin < 0 or count < 0 or count > self.limits[node] or begin > self.limits[node] - count:
            return RANGE
        self.top += 1
        self.stack[self.top] = node
        self.begins[self.top] = begin * size
        self.counts[self.top] = count * size
        self.phases[self.top] = 0
        return DONE

    @cython.cfunc
    @cython.inline
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def given(
        self, out: cython.uchar[::1], node: cython.Py_ssize_t, begin: cython.longlong, count: cython.longlong
    ) -> cython.bint:
        """Writes a whole run of a BLOCK if there is room and the values exist."""
        size: cython.longlong = self.sizes[node]
        nbytes: cython.longlong
        column: Given
        if begin < 0 or count > self.limits[node] or begin > self.limits[node] - count:
            return False
        nbytes = count * size
        if nbytes > self.end - self.at:
            return False
        if not self.measuring and nbytes > 0:
            column = self.columns[self.column_of[node]]
            _copy(out, self.at, column.data, begin * size, nbytes)
        self.at += nbytes
        return True

    @cython.boundscheck(False)
    def run(self, out: cython.uchar[::1], measuring: cython.bint) -> Any:
        """Goes on at the start of `out` until it is done, or needs more room, or help."""
        node: cython.Py_ssize_t
        op: cython.longlong
        answer: cython.int
        if not cython.compiled:
            out = memoryview(out)
        self.at = 0
        self.measuring = measuring
        self.end = _HUGE if measuring else out.shape[0]
        while self.top >= 0:
            if self.counts[self.top] == 0:
                self.top -= 1
                continue
            node = self.stack[self.top]
            op = self.ops[node]
            if op == _BLOCK:
                answer = self.block(out, node)
            elif op == _LIST:
                answer = self.lists(out, node)
            elif op == _SEQUENCE:
                answer = self.sequence(out, node)
            elif op in (_OPTION, _SENTINEL):
                answer = self.options(out, node, op == _OPTION)
            elif op == _REPEAT:
                answer = self.repeat(node)
            elif op == _CHAR:
                answer = self.chars(out, node)
            else:
                self.wanted = self.column_of[node]
                self.box = self.begins[self.top]
                self.begins[self.top] += 1
                self.counts[self.top] -= 1
                return HELP
            if answer != 0:
                return answer
        return DONE

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def block(self, out: cython.uchar[::1], node: cython.Py_ssize_t) -> cython.int:
        column: Given
        count: cython.longlong = self.counts[self.top]
        nbytes: cython.longlong = min(count, self.end - self.at)
        if nbytes == 0:
            return MORE
        if not self.measuring:
            column = self.columns[self.column_of[node]]
            _copy(out, self.at, column.data, self.begins[self.top], nbytes)
        self.at += nbytes
        self.begins[self.top] += nbytes
        self.counts[self.top] = count - nbytes
        return DONE

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def lists(self, out: cython.uchar[::1], node: cython.Py_ssize_t) -> cython.int:
        starts: Given = self.columns[self.column_of[node]]
        stops: Given = self.columns[self.other_of[node]]
        child: cython.Py_ssize_t = self.child_of[node]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong
        count: cython.longlong
        answer: cython.int = 0
        if self.ops[child] == _BLOCK:
            if self.measuring:
                self.measured_runs(node)
            else:
                self.runs(out, node)
        while answer == 0 and self.top == frame and self.counts[frame] > 0:
            i = self.begins[frame]
            count = stops.positions[i] - starts.positions[i]
            if count < 0:
                return RANGE
            if _varint_nbytes(count) > self.end - self.at:
                return MORE
            if not self.measuring:
                _put_varint(out, self.at, count)
            self.at += _varint_nbytes(count)
            self.begins[frame] = i + 1
            self.counts[frame] -= 1
            if count > 0:
                answer = self.push(child, starts.positions[i], count)
        return answer

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def runs(self, out: cython.uchar[::1], node: cython.Py_ssize_t) -> cython.void:
        """Lists of a BLOCK, as long as there is room for whole ones."""
        child: cython.Py_ssize_t = self.child_of[node]
        starts_column: Given = self.columns[self.column_of[node]]
        stops_column: Given = self.columns[self.other_of[node]]
        elements: Given = self.columns[self.column_of[child]]
        starts: cython.const[cython.longlong][::1] = starts_column.positions
        stops: cython.const[cython.longlong][::1] = stops_column.positions
        data: cython.const[cython.uchar][::1] = elements.data
        size: cython.longlong = self.sizes[child]
        limit: cython.longlong = self.limits[child]
        at: cython.longlong = self.at
        end: cython.longlong = self.end - 9
        i: cython.longlong = self.begins[self.top]
        stop: cython.longlong = i + self.counts[self.top]
        stride: cython.Py_ssize_t = _stride(limit * size, stop - i)
        begin: cython.longlong
        count: cython.longlong
        nbytes: cython.longlong
        while i < stop and at < end:
            begin = starts[i]
            count = stops[i] - begin
            if begin < 0 or count < 0 or count > limit or begin > limit - count:
                break
            nbytes = count * size
            if nbytes > end - at:
                break
            if count < 128:
                out[at] = count
                at += 1
            else:
                _put_varint(out, at, count)
                at += _varint_nbytes(count)
            _copy_short(out, at, data, begin * size, nbytes, stride)
            at += nbytes
            i += 1
        self.at = at
        self.counts[self.top] = stop - i
        self.begins[self.top] = i

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def measured_runs(self, node: cython.Py_ssize_t) -> cython.void:
        """The bytes of lists of a BLOCK, up to one that points outside its elements, or beyond all sizes."""
        child: cython.Py_ssize_t = self.child_of[node]
        starts_column: Given = self.columns[self.column_of[node]]
        stops_column: Given = self.columns[self.other_of[node]]
        starts: cython.const[cython.longlong][::1] = starts_column.positions
        stops: cython.const[cython.longlong][::1] = stops_column.positions
        limit: cython.longlong = self.limits[child]
        i: cython.longlong = self.begins[self.top]
        stop: cython.longlong = i + self.counts[self.top]
        most: cython.longlong = _HUGE // max(1, self.sizes[child])
        heads: cython.longlong = 0
        total: cython.longlong = 0
        begin: cython.longlong
        count: cython.longlong
        while i < stop:
            begin = starts[i]
            count = stops[i] - begin
            if begin < 0 or count < 0 or count > limit or begin > limit - count:
                break
            if count > most - total:
                break
            heads += 1 if count < 128 else _varint_nbytes(count)
            total += count
            i += 1
        self.at += heads + total * self.sizes[child]
        self.counts[self.top] = stop - i
        self.begins[self.top] = i

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def options(self, out: cython.uchar[::1], node: cython.Py_ssize_t, flags: cython.bint) -> cython.int:
        index: Given = self.columns[self.column_of[node]]
        sentinel: Given
        child: cython.Py_ssize_t = self.child_of[node]
        size: cython.longlong = self.sizes[child]
        frame: cython.Py_ssize_t = self.top
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        whole: cython.bint = self.ops[child] == _BLOCK
        begin: cython.longlong
        answer: cython.int = 0
        while i < end:
            begin = index.positions[i]
            if (1 if flags else size) > self.end - self.at:
                answer = MORE
                break
            i += 1
            if flags:
                if not self.measuring:
                    out[self.at] = begin >= 0
                self.at += 1
            elif begin < 0:
                if not self.measuring:
                    sentinel = self.columns[self.other_of[node]]
                    _copy(out, self.at, sentinel.data, 0, size)
                self.at += size
            if begin >= 0 and not (whole and self.given(out, child, begin, 1)):
                answer = self.push(child, begin, 1)
                break
        self.begins[frame] = i
        self.counts[frame] = end - i
        return answer

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def sequence(self, out: cython.uchar[::1], node: cython.Py_ssize_t) -> cython.int:
        frame: cython.Py_ssize_t = self.top
        arity: cython.longlong = self.arity[node]
        first: cython.Py_ssize_t = self.child_of[node]
        i: cython.longlong = self.begins[frame]
        end: cython.longlong = i + self.counts[frame]
        phase: cython.longlong = self.phases[frame]
        child: cython.Py_ssize_t
        answer: cython.int = 0
        while i < end:
            if phase == arity:
                phase = 0
                i += 1
                continue
            child = self.children[first + phase]
            phase += 1
            if not (self.ops[child] == _BLOCK and self.given(out, child, i, 1)):
                answer = self.push(child, i, 1)
                break
        self.begins[frame] = i
        self.counts[frame] = end - i
        self.phases[frame] = phase
        return answer

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def repeat(self, node: cython.Py_ssize_t) -> cython.int:
        begin: cython.longlong = self.begins[self.top]
        count: cython.longlong = self.counts[self.top]
        if _exceeds(begin + count, self.sizes[node], _HUGE):
            return RANGE
        self.counts[self.top] = 0
        return self.push(self.child_of[node], begin * self.sizes[node], count * self.sizes[node])

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.exceptval(check=False)
    def chars(self, out: cython.uchar[::1], node: cython.Py_ssize_t) -> cython.int:
        column: Given = self.columns[self.column_of[node]]
        i: cython.longlong = self.begins[self.top]
        end: cython.longlong = i + self.counts[self.top]
        code: cython.longlong
        shift: cython.longlong
        nbytes: cython.Py_ssize_t
        answer: cython.int = 0
        while i < end:
            code = column.codes[i]
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                answer = UTF8
                break
            nbytes = _code_point_nbytes(code)
            if nbytes > self.end - self.at:
                answer = MORE
                break
            if not self.measuring:
                if nbytes == 1:
                    out[self.at] = code
                else:
                    shift = 6 * (nbytes - 1)
                    out[self.at] = ((0xF00 >> nbytes) & 0xFF) | (code >> shift)
                    while shift > 0:
                        shift -= 6
                        out[self.at + nbytes - 1 - shift // 6] = 0x80 | ((code >> shift) & 0x3F)
            self.at += nbytes
            i += 1
        self.begins[self.top] = i
        self.counts[self.top] = end - i
        return answer

    def written(self) -> Any:
        """Bytes of the last run."""
        return self.at

    def wish(self) -> tuple[int, int]:
        """The column of boxes that HELP is about, and which of them."""
        return self.wanted, self.box
