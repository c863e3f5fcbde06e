"""Walks BSON: hops over documents, finds one field by its path or every vector, copies numbers.

Nothing that is skipped is built or looked into: a value is stepped over by its
length, after that length was checked against the document that holds it. Positions
are bytes from the start of `data`. A fault is a negative code, so that a function can
return a position or a fault; what Python calls returns the code with the position of
the element at fault. The messages are in `tensorglot.wire.bson`.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import *  # noqa: F403
else:
    from tensorglot.kernels.primitives import (
        bytes_of,
        copy,
        i32,
        longlongs_out,
        same,
        uchars_in,
        uchars_out,
        zero_byte,
    )

OK = 0
PAST_END = -1
TOO_SMALL = -2
NO_NUL = -3
KIND = -4
BOOL = -5
INNER = -6
DUPLICATE = -7
DEPTH = -8
FULL = -9
NOT_NUMBER = -10
PATHS = -11

# Where a value ends. `end` is the closing zero byte of the document that holds it, so that data[end] can always be
# read; every function compares what it reads with `end` first.


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _after_nul(data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after the next zero byte, or a fault."""
    zero: cython.Py_ssize_t = zero_byte(data, at, end) if at < end else -1
    return zero + 1 if zero >= 0 else NO_NUL


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _after_sized(
    data: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    least: cython.longlong,
    extra: cython.longlong,
) -> cython.Py_ssize_t:
    """After an int32 length of at least `least`, that many bytes and `extra` ones."""
    length: cython.longlong
    if end - at < 4:
        return PAST_END
    length = i32(data, at)
    if length < least:
        return TOO_SMALL
    length += extra
    if length > end - at:
        return PAST_END
    return at + length


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _after_closed(
    data: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    least: cython.longlong,
    extra: cython.longlong,
) -> cython.Py_ssize_t:
    """The same, for what ends with a zero byte: strings and documents."""
    after: cython.Py_ssize_t = _after_sized(data, at, end, least, extra)
    if after > 0 and data[after - 1] != 0:
        return NO_NUL
    return after


@cython.cfunc
@cython.exceptval(check=False)
def _after_binary(data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """After a binary, of which subtype 2 has its length a second time."""
    after: cython.Py_ssize_t = _after_sized(data, at, end, 0, 5)
    if after > 0 and data[at + 4] == 2 and (after - at < 9 or i32(data, at + 5) != after - at - 9):
        return INNER
    return after


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _fixed_nbytes(kind: cython.int) -> cython.Py_ssize_t:
    """The size of every value of a kind, or KIND."""
    if kind in (0x01, 0x09, 0x11, 0x12):
        return 8
    if kind in (0x06, 0x0A, 0x7F, 0xFF):
        return 0
    if kind == 0x10:
        return 4
    if kind == 0x07:
        return 12
    return 16 if kind == 0x13 else KIND


@cython.cfunc
@cython.exceptval(check=False)
def _after_value(
    data: cython.p_const_uchar, kind: cython.int, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position after a value of this kind, or a fault."""
    after: cython.Py_ssize_t
    if kind == 0x05:
        return _after_binary(data, at, end)
    if kind in (0x03, 0x04):
        return _after_closed(data, at, end, 5, 0)
    if kind in (0x02, 0x0D, 0x0E):
        return _after_closed(data, at, end, 1, 4)
    if kind == 0x08:
        if at >= end:
            return PAST_END
        return at + 1 if data[at] <= 1 else BOOL
    if kind == 0x0B:
        after = _after_nul(data, at, end)
        return _after_nul(data, after, end) if after > 0 else after
    if kind == 0x0F:
        return _after_closed(data, at, end, 14, 0)
    if kind == 0x0C:  # a string, and twelve bytes
        after = _after_closed(data, at, end, 1, 4)
        return after if after < 0 else after + 12 if end - after >= 12 else PAST_END
    after = _fixed_nbytes(kind)
    return after if after < 0 else at + after if end - at >= after else PAST_END


@cython.final
@cython.cclass
class Walk:
    """A place in nested documents.

    Invariant: begin <= at <= last for the innermost open document, whose closing zero byte is
    at `last`; `closings` has that of each open one, from the outside in.
    """

    data: cython.p_const_uchar
    closings: cython.p_longlong
    depth: cython.Py_ssize_t
    at: cython.Py_ssize_t
    last: cython.Py_ssize_t
    kind: cython.int
    name: cython.Py_ssize_t
    value: cython.Py_ssize_t
    after: cython.Py_ssize_t

    @cython.cfunc
    @cython.exceptval(check=False)
    def start(self, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Opens a document: 0, or a fault at `at`."""
        after: cython.Py_ssize_t = _after_closed(self.data, at, end, 5, 0)
        self.at = at
        if after < 0:
            return after
        self.depth = 0
        self.last = self.closings[0] = after - 1
        self.at = at + 4
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def step(self) -> cython.Py_ssize_t:
        """Goes to the next element: 1, or 0 behind the outermost document, or a fault at `at`."""
        # Invariant: at <= last, the zero byte that closes the innermost open document, whose end lies in the outer one.
        while self.at == self.last:
            self.at += 1
            if self.depth == 0:
                return 0
            self.depth -= 1
            self.last = self.closings[self.depth]
        self.kind = self.data[self.at]
        self.name = self.at + 1
        self.value = _after_nul(self.data, self.name, self.last)
        if self.value < 0:
            return self.value
        self.after = _after_value(self.data, self.kind, self.value, self.last)
        if self.after < 0:
            return self.after
        self.at = self.after
        return 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def enter(self) -> cython.void:
        """Opens the document that is the element's value; there is room for one more in `closings`."""
        self.depth += 1
        self.last = self.closings[self.depth] = self.after - 1
        self.at = self.value + 4


def value_end(
    data: cython.const[cython.uchar][::1], kind: cython.int, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position after one value, or a fault."""
    return _after_value(uchars_in(data), kind, at, end)


def name_end(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after the zero byte of a name, or a fault."""
    return _after_nul(uchars_in(data), at, end)


def count(data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> tuple[Any, ...]:
    """How many documents lie one after the other: (fault, position, documents)."""
    start: cython.p_const_uchar = uchars_in(data)
    at: cython.Py_ssize_t = begin
    after: cython.Py_ssize_t
    documents: cython.Py_ssize_t = 0
    # Invariant: begin <= at <= end; a document takes at least five bytes, so each turn goes forward.
    while at < end:
        after = _after_closed(start, at, end, 5, 0)
        if after < 0:
            return after, at, documents
        at = after
        documents += 1
    return OK, at, documents


def find(
    data: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    path: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    kinds: cython.uchar[::1],
    begins: cython.longlong[::1],
    ends: cython.longlong[::1],
    closings: cython.longlong[::1],
) -> tuple[Any, ...]:
    """One field in each of as many documents as there are rows: (fault, position, row).

    `path` has the names from the outside in, each with its zero byte, and `starts` where
    each begins. A row gets the kind and the span of the value, or kind 0 where the field is
    absent. `closings` is scratch, one place for each name.
    """
    walk: Walk = Walk()
    walk.data = uchars_in(data)
    walk.closings = longlongs_out(closings)
    walk.at = begin
    names: cython.p_const_uchar = uchars_in(path)
    end: cython.Py_ssize_t = len(data)
    rows: cython.Py_ssize_t = len(kinds)
    deepest: cython.Py_ssize_t = len(starts) - 1
    nbytes: cython.Py_ssize_t
    step: cython.Py_ssize_t
    row: cython.Py_ssize_t
    depth: cython.Py_ssize_t
    matched: cython.bint
    for row in range(rows):
        kinds[row] = 0
        begins[row] = ends[row] = 0
        step = walk.start(walk.at, end)
        if step < 0:
            return step, walk.at, row
        matched = False
        depth = 0
        # Invariant: the open documents are those of the first `depth` names; `matched` says whether an element of the
        # innermost one had the next name.
        while True:
            step = walk.step()
            if step < 0:
                return step, walk.at, row
            if step == 0:
                break
            if walk.depth < depth:  # the name of the document that was left had matched
                matched = True
                depth = walk.depth
            nbytes = walk.value - walk.name
            if nbytes > len(path) - starts[depth] or not same(walk.data, walk.name, names, starts[depth], nbytes):
                continue
            if matched:
                return DUPLICATE, walk.name - 1, row
            matched = True
            if depth == deepest:
                kinds[row] = walk.kind
                begins[row] = walk.value
                ends[row] = walk.after
            elif walk.kind in (0x03, 0x04):
                walk.enter()
                depth += 1
                matched = False
    return OK, walk.at, rows


def find_all(
    data: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    closings: cython.longlong[::1],
    names: cython.longlong[::1],
    values: cython.longlong[::1],
    paths: dict[bytes, int],
    budget: cython.longlong,
    first: cython.longlong,
    arrays: cython.bint,
    documents: cython.longlong[::1],
    fields: cython.longlong[::1],
    begins: cython.longlong[::1],
    ends: cython.longlong[::1],
) -> tuple[Any, ...]:
    """Every vector in the documents from `begin` on, or with `arrays` every array of numbers.

    Returns (fault, position, rows, documents, budget). A row gets the number of its document,
    counted from `first`, and the number of its path in `paths`; a vector the span of its
    payload; an array, reached through documents alone, what `_number_kinds` says of it and
    its bytes. A path is its names with their zero bytes; new ones are added. Documents nest as
    deep as `closings`, `names` and `values`, which are scratch, are long. Stops with FULL before
    the document that no longer fits the columns.

    Values below one long name have it in each of their paths, so paths can be far larger than
    the data: their bytes are charged to `budget` before they are built.
    """
    walk: Walk = Walk()
    walk.data = uchars_in(data)
    walk.closings = longlongs_out(closings)
    walk.at = begin
    name_begins: cython.p_longlong = longlongs_out(names)
    name_ends: cython.p_longlong = longlongs_out(values)
    start: cython.Py_ssize_t
    step: cython.Py_ssize_t
    level: cython.Py_ssize_t
    room: cython.Py_ssize_t = len(begins)
    deepest: cython.Py_ssize_t = len(closings)
    rows: cython.Py_ssize_t = 0
    kept: cython.Py_ssize_t
    document: cython.Py_ssize_t = 0
    wanted: cython.int = 0x04 if arrays else 0x05
    entered: cython.int = 0x03 if arrays else 0x04
    low: cython.longlong
    high: cython.longlong
    nbytes: cython.longlong
    unspent: cython.longlong
    # Invariant: the documents before walk.at are counted in `document`, what they have is in the first `rows`
    # entries, and `budget` is what their paths have left. One that does not fit is taken back to `kept`, `unspent`.
    while walk.at < end:
        start = walk.at
        kept = rows
        unspent = budget
        step = walk.start(start, end)
        while step >= 0:
            step = walk.step()
            if step <= 0:
                break
            # walk.depth < deepest: the names of all open levels are at name_begins[level] to name_ends[level]
            name_begins[walk.depth] = walk.name
            name_ends[walk.depth] = walk.value
            if walk.kind == 0x03 or walk.kind == entered:
                if walk.depth + 1 == deepest:
                    return DEPTH, walk.name - 1, rows, document, budget
                walk.enter()
                continue
            if walk.kind != wanted:
                continue
            if arrays:
                low = _number_kinds(walk.data, walk.value, walk.after)
                high = walk.after - walk.value
                if low == 0:
                    continue
            else:
                low = walk.value + 5
                high = walk.after
                if walk.data[walk.value + 4] != 9:
                    continue
            if rows == room:
                return FULL, start, kept, document, unspent
            nbytes = 0
            for level in range(walk.depth + 1):
                nbytes += name_ends[level] - name_begins[level]
            budget -= nbytes
            if budget < 0:
                return PATHS, walk.name - 1, rows, document, budget
            path = _path(walk.data, name_begins, name_ends, walk.depth, nbytes)
            field = paths.get(path)
            if field is None:
                field = paths[path] = len(paths)
            documents[rows] = first + document
            fields[rows] = field
            begins[rows] = low
            ends[rows] = high
            rows += 1
        if step < 0:
            return step, walk.at, rows, document, budget
        document += 1
    return OK, walk.at, rows, document, budget


@cython.cfunc
def _path(
    data: cython.p_const_uchar,
    names: cython.p_const_longlong,
    values: cython.p_const_longlong,
    depth: cython.Py_ssize_t,
    nbytes: cython.Py_ssize_t,
) -> bytes:
    """The names on the way down, each with its zero byte, `nbytes` in all. A name ends where its value begins."""
    level: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    path: bytes
    if depth == 0:
        path = bytes_of(data, names[0], values[0])
        return path
    if cython.compiled:
        path = bytes(nbytes)
        target: cython.p_uchar = cython.cast(cython.p_uchar, path)  # nobody else has seen it yet
        for level in range(depth + 1):
            copy(target, at, data, names[level], values[level] - names[level])
            at += values[level] - names[level]
    else:
        path = b"".join([bytes_of(data, names[level], values[level]) for level in range(depth + 1)])
    return path


@cython.cfunc
@cython.exceptval(check=False)
def _number_kinds(data: cython.p_const_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """The number types of an array at `begin` to `end`: 1 double, 2 int32, 4 int64, added; and its count times 8.

    0 for an array that is empty, or has anything else, or is broken.
    """
    at: cython.Py_ssize_t = begin + 4
    last: cython.Py_ssize_t = end - 1
    found: cython.longlong = 0
    seen: cython.longlong = 0
    kind: cython.int
    # Invariant: at <= last, where the array is closed; a number that would lie across it ends the walk.
    while at < last:
        kind = data[at]
        if kind == 0x01:
            seen |= 1
        elif kind == 0x10:
            seen |= 2
        elif kind == 0x12:
            seen |= 4
        else:
            return 0
        at = _after_nul(data, at + 1, last)
        if at < 0:
            return 0
        at += 4 if kind == 0x10 else 8
        if at > last:
            return 0
        found += 8
    return found + seen


def numbers(
    data: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    kinds: cython.uchar[::1],
    out: cython.uchar[::1],
) -> tuple[Any, ...]:
    """The numbers of a BSON array whose value is at `begin` to `end`: (fault, position, how many).

    Each takes eight bytes of `out`: a double, or an integer of that width, as `kinds` says.
    FULL where there are more than `kinds` has room for.
    """
    source: cython.p_const_uchar = uchars_in(data)
    target: cython.p_uchar = uchars_out(out)
    at: cython.Py_ssize_t = begin + 4
    last: cython.Py_ssize_t = end - 1
    value: cython.Py_ssize_t
    after: cython.Py_ssize_t
    room: cython.Py_ssize_t = len(kinds)
    done: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    kind: cython.int
    if begin < 0 or end - begin < 5 or end > len(data) or len(out) < 8 * room:
        return PAST_END, begin, 0
    # Invariant: at <= last; `done` <= room, and `out` has eight bytes for each.
    while at < last:
        kind = source[at]
        value = _after_nul(source, at + 1, last)
        if value < 0:
            return value, at, done
        after = _after_value(source, kind, value, last)
        if after < 0:
            return after, at, done
        if kind not in (0x01, 0x10, 0x12):
            return NOT_NUMBER, at, done
        if done == room:
            return FULL, at, done
        kinds[done] = kind
        copy(target, 8 * done, source, value, after - value)
        if kind == 0x10:
            for i in range(4, 8):  # the sign of an int32
                target[8 * done + i] = 255 if source[after - 1] > 127 else 0
        done += 1
        at = after
    return OK, at, done
