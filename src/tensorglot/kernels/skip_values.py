"""Finds where serialized values end, by the rows of their types (`type_rows`) and the sizes of these (`type_sizes`).

The walk keeps a stack of frames instead of recursion, so that it can stop where it needs
more input and resume there. A frame counts the values of its row that are still to come, or
their bytes if all have the same size. Nothing is checked of a value but what its end depends
on. A value that brings its type has the text before it: each distinct one is read once, to
rows behind those of the types that the caller has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorglot.kernels import type_rows, type_sizes

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels import type_codes as codes
    from cython.cimports.tensorglot.kernels import varints
    from cython.cimports.tensorglot.kernels.primitives import *  # noqa: F403
else:
    from tensorglot.kernels import type_codes as codes
    from tensorglot.kernels import varints
    from tensorglot.kernels.primitives import (
        ENDS,
        bytes_of,
        code_point,
        code_point_nbytes,
        exceeds,
        longlongs_at,
        longlongs_of,
        uchars_in,
        varint,
        varint_nbytes,
    )

_ON = cython.declare(cython.int, 100)  # no answer yet
# In place of the row of a frame: bytes, and what is below the frame of a value that brings its type.
_BYTES = cython.declare(cython.Py_ssize_t, -1)
_BOX = cython.declare(cython.Py_ssize_t, -2)
_HUGE = cython.declare(cython.longlong, 1 << 62)
_CID_NBYTES = cython.declare(cython.longlong, 36)
_KEPT = cython.declare(cython.Py_ssize_t, 1 << 14)  # rows of types in the input beyond those in use


@cython.final
@cython.cclass
class Skipper:
    """Skips values of `roots`, which are rows, one after the other; `ends` has the end of each.

    Invariant: at <= end, the end of the source. The frames 0 to `top` are open, below the capacity of their columns.
    """

    columns: Any
    sizes: Any
    reader: Any
    measurer: Any
    types: dict[Any, Any]
    own: cython.Py_ssize_t
    rows: cython.Py_ssize_t
    most_rows: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    code: cython.p_const_longlong
    after: cython.p_const_longlong
    number: cython.p_const_longlong
    symbolic: cython.p_const_longlong
    nbytes: cython.p_const_longlong
    least: cython.p_const_longlong
    charge: cython.p_const_longlong
    held: list[Any]
    roots: cython.p_const_longlong
    ends: cython.p_longlong
    total: cython.Py_ssize_t
    done: cython.Py_ssize_t
    frames: Any
    depth: cython.Py_ssize_t
    row_of: cython.p_longlong
    counts: cython.p_longlong
    phases: cython.p_longlong
    top: cython.Py_ssize_t
    boxes: cython.longlong
    charges: cython.longlong
    most_charges: cython.longlong
    most_boxes: cython.longlong
    most_text: cython.longlong
    source: cython.p_const_uchar
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t
    beyond: cython.longlong
    need: cython.longlong

    def __init__(
        self,
        columns: Any,
        sizes: Any,
        rows: cython.Py_ssize_t,
        roots: Any,
        ends: Any,
        types: tuple[Any, Any],
        most_text: cython.longlong,
        most_boxes: cython.longlong,
        charges: cython.longlong,
        most_charges: cython.longlong,
    ) -> None:
        """`types` are what reads texts, of up to `most_text` bytes, and what measures types. Values that bring their
        types nest up to `most_boxes` deep. All lists together have up to `charges` values without bytes, and a value
        that brings its type up to `most_charges`.
        """
        self.reader, self.measurer = types
        self.types = {}
        self.own = self.rows = rows
        self.most_rows = rows + _KEPT
        self.held = [roots, ends]
        self.roots = longlongs_of(roots)
        self.ends = longlongs_of(ends)
        self.total = len(roots)
        self.done = 0
        self.top = -1
        self.boxes = 0
        self.charges = charges
        self.most_charges = most_charges
        self.most_boxes = most_boxes
        self.most_text = most_text
        self.use(columns, sizes, rows)
        self.deepen(64)

    @cython.cfunc
    def use(self, columns: Any, sizes: Any, capacity: cython.Py_ssize_t) -> cython.void:
        """Reads rows from these columns."""
        column: cython.p_longlong = longlongs_of(columns)
        size: cython.p_longlong = longlongs_of(sizes)
        self.columns = columns
        self.sizes = sizes
        self.capacity = capacity
        self.code = column
        self.after = longlongs_at(column, 4 * self.capacity)
        self.number = longlongs_at(column, 5 * self.capacity)
        self.symbolic = longlongs_at(column, 8 * self.capacity)
        self.nbytes = size
        self.least = longlongs_at(size, self.capacity)
        self.charge = longlongs_at(size, 2 * self.capacity)

    @cython.cfunc
    def deepen(self, depth: cython.Py_ssize_t) -> cython.void:
        """Makes room for as many frames."""
        frames: Any = np.zeros(3 * depth, np.int64)
        if self.top >= 0:
            frames.reshape(3, depth)[:, : self.depth] = self.frames.reshape(3, self.depth)
        self.frames = frames
        self.depth = depth
        self.row_of = longlongs_of(frames)
        self.counts = longlongs_at(self.row_of, depth)
        self.phases = longlongs_at(self.row_of, 2 * depth)

    def run(
        self,
        source: cython.const[cython.uchar][::1],
        at: cython.Py_ssize_t,
        base: cython.longlong,
        beyond: cython.longlong,
    ) -> tuple[int, int]:
        """Resumes at position `at` of `source`, which begins at `base` and is followed by at most `beyond` bytes."""
        answer: cython.int = _ON
        self.source = uchars_in(source)
        self.at = at
        self.end = len(source)
        self.beyond = beyond
        self.need = 1
        # Invariant: everything before `at` is skipped, so the next run resumes there.
        while answer == _ON:
            if self.top < 0:
                if self.done > 0:
                    self.ends[self.done - 1] = base + self.at
                if self.done == self.total:
                    return varints.DONE, self.at
                answer = self.push(self.roots[self.done], 1)
                self.done += 1
            elif self.counts[self.top] == 0:
                self.top -= 1
            else:
                answer = self.step(self.row_of[self.top])
        return answer, self.at

    def needed(self) -> int:
        """The least number of bytes that are needed to go on."""
        return int(self.need)

    @cython.cfunc
    def push(self, row: cython.Py_ssize_t, count: cython.longlong) -> cython.int:
        """Opens a frame for values of a row."""
        if row >= 0 and self.nbytes[row] >= 0:
            if exceeds(count, self.nbytes[row], _HUGE):
                return varints.COUNT
            count *= self.nbytes[row]
        if self.top + 1 == self.depth:
            self.deepen(2 * self.depth)
        self.top += 1
        self.row_of[self.top] = row
        self.counts[self.top] = count
        self.phases[self.top] = row + 1
        return _ON

    @cython.cfunc
    def step(self, row: cython.Py_ssize_t) -> cython.int:
        """Skips values of the innermost frame."""
        code: cython.longlong
        count: cython.longlong = self.counts[self.top]
        if row == _BOX:
            self.boxes -= 1
            self.counts[self.top] = 0
            return _ON
        if row == _BYTES or self.nbytes[row] >= 0:
            count = min(count, self.end - self.at)
            self.at += count
            self.counts[self.top] -= count
            return _ON if self.counts[self.top] == 0 else self.more(self.counts[self.top])
        code = self.code[row]
        if code == codes.TEXT:
            return self.lists(_BYTES)
        if code == codes.VAR or code == codes.MAP:
            return self.lists(row + 1)
        if code == codes.OPTION:
            return self.option(row + 1)
        if code == codes.CHAR:
            return self.char()
        if code == codes.ARRAY or code == codes.MERKLE:
            return self.box(code)
        if code >= codes.PAIR:
            return self.items(row)
        self.counts[self.top] = 0  # the frame is finished: what is inside takes its place
        if code != codes.FIXED:
            return self.push(row + 1, count)
        if exceeds(count, self.number[row], _HUGE):
            return varints.COUNT
        return self.push(row + 1, count * self.number[row])

    @cython.cfunc
    @cython.exceptval(check=False)
    def more(self, need: cython.longlong) -> cython.int:
        self.need = need
        return varints.MORE

    @cython.cfunc
    def lists(self, inner: cython.Py_ssize_t) -> cython.int:
        """Skips lists, up to one whose elements are not here, or differ in size: these are pushed."""
        nbytes: cython.longlong = 1 if inner == _BYTES else self.nbytes[inner]
        least: cython.longlong = 1 if inner == _BYTES else self.least[inner]
        charge: cython.longlong = 0 if inner == _BYTES else self.charge[inner]
        frame: cython.Py_ssize_t = self.top
        count: cython.longlong
        # Invariant: `exceeds` bounds the count by the input that is left; elements without bytes, which the input
        # does not bound, by what is left of `charges`.
        while self.counts[frame] > 0:
            count = varint(self.source, self.at, self.end)
            if count < 0:
                return self.more(1) if count == varints.TRUNCATED else count
            if exceeds(count, least, self.end - self.at + self.beyond):
                return varints.COUNT
            if exceeds(count, charge, self.charges):
                return varints.EMPTY
            self.charges -= count * charge
            self.at += varint_nbytes(count)
            self.counts[frame] -= 1
            if nbytes >= 0 and not exceeds(count, nbytes, self.end - self.at):
                self.at += count * nbytes
            elif count > 0:
                return self.push(inner, count)
        return _ON

    @cython.cfunc
    def option(self, inner: cython.Py_ssize_t) -> cython.int:
        flag: cython.int
        # Invariant: at < end where a flag is read.
        while self.counts[self.top] > 0:
            if self.at == self.end:
                return self.more(1)
            flag = self.source[self.at]
            if flag > 1:
                return varints.FLAG
            self.at += 1
            self.counts[self.top] -= 1
            if flag == 1:
                return self.push(inner, 1)
        return _ON

    @cython.cfunc
    def char(self) -> cython.int:
        code: cython.longlong
        # Invariant: `code_point` reads only before `end`.
        while self.counts[self.top] > 0:
            code = code_point(self.source, self.at, self.end) if self.at < self.end else ENDS
            if code < 0:
                return self.more(1) if code == ENDS else varints.UTF8
            self.at += code_point_nbytes(code)
            self.counts[self.top] -= 1
        return _ON

    @cython.cfunc
    def items(self, row: cython.Py_ssize_t) -> cython.int:
        """Skips one value of each item in turn; the phase of the frame is the row of the next."""
        frame: cython.Py_ssize_t = self.top
        item: cython.Py_ssize_t = self.phases[frame]
        # Invariant: row < item <= after[row]; the items before `item` of the current value are skipped.
        while item < self.after[row]:
            if self.nbytes[item] < 0 or self.nbytes[item] > self.end - self.at:
                self.phases[frame] = self.after[item]
                return self.push(item, 1)
            self.at += self.nbytes[item]
            item = self.after[item]
        self.phases[frame] = row + 1
        self.counts[frame] -= 1
        return _ON

    @cython.cfunc
    def box(self, code: cython.longlong) -> cython.int:
        """Skips the text of a type, and pushes a value of it, or a link."""
        size: cython.longlong = varint(self.source, self.at, self.end)
        begin: cython.Py_ssize_t
        row: cython.Py_ssize_t
        if size < 0:
            return self.more(1) if size == varints.TRUNCATED else size
        begin = self.at + varint_nbytes(size)
        if size > self.most_text:
            return varints.TYPE
        if size > self.end - begin:
            return varints.COUNT if size > self.end - begin + self.beyond else self.more(begin + size - self.at)
        row = self.type_of(bytes_of(self.source, begin, begin + size))
        if row < 0 or self.symbolic[row] != 0:
            return varints.TYPE
        self.at = begin + size
        self.counts[self.top] -= 1
        if code == codes.MERKLE:
            return self.push(_BYTES, _CID_NBYTES)
        if self.charge[row] > self.most_charges:
            return varints.EMPTY
        if self.boxes == self.most_boxes:
            return varints.DEPTH
        self.boxes += 1
        self.push(_BOX, 1)
        return self.push(row, 1)

    @cython.cfunc
    def type_of(self, text: bytes) -> cython.Py_ssize_t:
        """The row of a type; -1 if the text is not canonical."""
        known: Any = self.types.get(text)
        columns: Any
        sizes: Any
        capacity: cython.Py_ssize_t
        row: cython.Py_ssize_t
        if known is not None:
            return cython.cast(cython.Py_ssize_t, known)
        if self.rows > self.most_rows:
            self.forget()
        row = self.rows
        if row + len(text) > self.capacity:  # a type takes a character or more
            capacity = max(row + len(text), self.capacity + self.capacity // 2, 1024)
            columns = np.empty((type_rows.COLUMNS, capacity), np.int64)
            sizes = np.empty((type_sizes.COLUMNS, capacity), np.int64)
            columns[:, :row] = self.columns.reshape(type_rows.COLUMNS, self.capacity)[:, :row]
            sizes[:, :row] = self.sizes.reshape(type_sizes.COLUMNS, self.capacity)[:, :row]
            self.use(columns.reshape(-1), sizes.reshape(-1), capacity)
            self.reader.use(self.columns, capacity)
            self.measurer.use(self.columns, self.sizes, capacity)
        end: cython.Py_ssize_t = self.reader.type(text, row)
        if end < 0:
            return -1
        self.measurer.measure(row, end)
        self.types[text] = row
        self.rows = end
        return row

    @cython.cfunc
    def forget(self) -> cython.int:
        """Drops the rows of types in the input behind those that frames refer to."""
        frame: cython.Py_ssize_t
        row: cython.Py_ssize_t
        self.types.clear()
        self.rows = self.own
        for frame in range(self.top + 1):
            row = self.row_of[frame]
            if row >= 0:
                self.rows = max(self.rows, self.after[row])
        self.most_rows = self.rows + _KEPT
        return 0
