"""Walks BSON: skips documents, finds one field by its path or every vector, copies numbers.

Values that are not wanted are neither decoded nor looked into: a value is skipped by its
length, after that length was checked against the enclosing document. Positions are bytes
from the start of `data`. A fault is a negative code, so that an inner function can return
a position or a fault; the functions that Python calls return the code together with the
position of the element at fault. The messages are in `tensorglot.wire.bson`.

Element kinds are the type bytes of the BSON specification, version 1.1: 0x03 is a
document, 0x04 an array, 0x05 a binary, whose subtype 9 is a vector.
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
PAST_END = -1  # a value reaches beyond its document
TOO_SMALL = -2  # a length is smaller than what it must at least include
NO_NUL = -3  # a name, string or document does not end with a zero byte
KIND = -4  # unknown type byte
BOOL = -5  # a boolean is neither 0 nor 1
INNER = -6  # the second length of a binary of subtype 2 disagrees with the first
DUPLICATE = -7  # a document has the wanted name twice
DEPTH = -8  # documents nest too deeply
FULL = -9  # the caller's columns are full
NOT_NUMBER = -10  # an array has an element that is not a double, int32 or int64
PATHS = -11  # the paths of all vectors together exceed the budget

# The functions `_after_…` return the position after a value, or a fault. `end` is the position of the zero byte that
# closes the enclosing document; nothing at or behind it is part of the value, and it is compared before every read.


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
    """The position after a value with an int32 length, or a fault.

    The value has `length` + `extra` bytes from `at` on; a length below `least` is TOO_SMALL.
    """
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
    """The same for strings and documents, whose last byte must be zero."""
    after: cython.Py_ssize_t = _after_sized(data, at, end, least, extra)
    if after > 0 and data[after - 1] != 0:
        return NO_NUL
    return after


@cython.cfunc
@cython.exceptval(check=False)
def _after_binary(data: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after a binary, or a fault. Subtype 2 repeats the length inside, which must agree."""
    after: cython.Py_ssize_t = _after_sized(data, at, end, 0, 5)
    if after > 0 and data[at + 4] == 2 and (after - at < 9 or i32(data, at + 5) != after - at - 9):
        return INNER
    return after


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _fixed_nbytes(kind: cython.int) -> cython.Py_ssize_t:
    """The size of values of a kind whose size is fixed, or KIND if there is no such kind."""
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
    """A position in nested documents, and the element that was stepped over last.

    Invariant: at <= last, the position of the zero byte that closes the innermost open
    document; closings[0] to closings[depth] are these positions for all open documents,
    outermost first. An element's parts are at `name`, `value` and `after`, where it ends.
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
        """Opens the outermost document at `at`: 0, or a fault at `self.at`."""
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
        """Steps over the next element: 1; 0 at the end of the outermost document; or a fault at `self.at`."""
        # Invariant: at <= last. A document ends inside the enclosing one, so this also holds after it is closed.
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
        """Opens the document that is the current element's value. The caller has room in `closings`."""
        self.depth += 1
        self.last = self.closings[self.depth] = self.after - 1
        self.at = self.value + 4


def value_end(
    data: cython.const[cython.uchar][::1], kind: cython.int, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position after a value of this kind at `at`, or a fault."""
    return _after_value(uchars_in(data), kind, at, end)


def name_end(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after the zero byte of a name, or a fault."""
    return _after_nul(uchars_in(data), at, end)


def count(data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> tuple[Any, ...]:
    """Counts the concatenated documents from `begin` to `end`: (fault, position, documents)."""
    start: cython.p_const_uchar = uchars_in(data)
    at: cython.Py_ssize_t = begin
    after: cython.Py_ssize_t
    documents: cython.Py_ssize_t = 0
    # Invariant: begin <= at <= end; a document takes at least five bytes, so each turn advances.
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
    """Finds one field in each of len(kinds) concatenated documents: (fault, position, row).

    `path` has the names from the outermost on, each with its zero byte, and `starts` the begin
    of each name in it. A row receives the kind and the span of the value, or kind 0 if the
    field is absent. `closings` is scratch memory with an entry for each name.
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
        # Invariant: the open documents are the values of the first `depth` names of the path; `matched` says whether
        # an element of the innermost one had the next name.
        while True:
            step = walk.step()
            if step < 0:
                return step, walk.at, row
            if step == 0:
                break
            if walk.depth < depth:  # the document that ended was entered because its name matched
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
    """Finds every vector in the documents from `begin` to `end`, or with `arrays` every array of numbers.

    Returns (fault, position, rows, documents, budget). Each vector or array is a row:
    `documents` receives the number of its document, counted from `first`; `fields` the number
    of its path in `paths`; `begins` and `ends` the span of a vector's payload, or for an array
    the result of `_number_kinds` and its size in bytes. Vectors are found inside arrays, too,
    arrays of numbers only inside documents. A path is its names, each with its zero byte; new
    paths are added. `closings`, `names` and `values` are scratch memory, and their length is
    the deepest nesting allowed. Stops with FULL before a document that does not fit the columns.

    A long name is part of the path of every value below it, so the paths can be far larger
    than the data: their bytes are taken from `budget` before a path is built.
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
    # Invariant: `document` documents are complete, their vectors are the first `rows` rows, and `budget` is what
    # their paths left of it. If a document does not fit, rows and budget go back to `kept` and `unspent`.
    while walk.at < end:
        start = walk.at
        kept = rows
        unspent = budget
        step = walk.start(start, end)
        while step >= 0:
            step = walk.step()
            if step <= 0:
                break
            # Invariant: walk.depth < deepest, and the name at each level is name_begins[level] to name_ends[level].
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
            else:
                low = walk.value + 5 if walk.data[walk.value + 4] == 9 else 0
                high = walk.after
            if low == 0:
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
    """The names from the outermost level to `depth`, each with its zero byte, concatenated; `nbytes` in all.

    A name ends where its value begins.
    """
    level: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    path: bytes
    if depth == 0:
        path = bytes_of(data, names[0], values[0])
        return path
    if cython.compiled:
        path = bytes(nbytes)
        target: cython.p_uchar = cython.cast(cython.p_uchar, path)  # nobody else has seen it yet
        # Invariant: the names of the levels before end at `at`; `nbytes` is the sum of their sizes.
        for level in range(depth + 1):
            copy(target, at, data, names[level], values[level] - names[level])
            at += values[level] - names[level]
    else:
        path = b"".join([bytes_of(data, names[level], values[level]) for level in range(depth + 1)])
    return path


@cython.cfunc
@cython.exceptval(check=False)
def _number_kinds(data: cython.p_const_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Eight times the number of elements of the array from `begin` to `end`, plus flags of their types.

    The flags are 1 for double, 2 for int32 and 4 for int64. Returns 0 if the array is empty,
    malformed, or has an element of another type.
    """
    at: cython.Py_ssize_t = begin + 4
    last: cython.Py_ssize_t = end - 1
    found: cython.longlong = 0
    seen: cython.longlong = 0
    kind: cython.int
    # Invariant: at <= last, the zero byte that closes the array; an element that reaches beyond it ends the walk.
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
    """Copies the numbers of the BSON array from `begin` to `end`: (fault, position, how many).

    Each takes eight bytes of `out`: a double, or an int64 to which an int32 is extended.
    `kinds` receives the type byte of each. FULL if `kinds` has fewer entries than the array.
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
    # Invariant: at <= last and done <= room; the first `done` numbers are stored; `out` has eight bytes for each.
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
            for i in range(4, 8):  # extend the sign of an int32
                target[8 * done + i] = 255 if source[after - 1] > 127 else 0
        done += 1
        at = after
    return OK, at, done
