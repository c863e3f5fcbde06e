"""Walks BSON: hops over documents, finds one field by its path, finds every vector, copies rows.

Nothing that is skipped is built or looked into: a value is stepped over by its
length, after that length was checked against the document that holds it. Positions
are bytes from the start of `data`. A refusal is a rule code with the position of the
element at fault; the words are in `tensorglot.wire.bson`.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

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


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _int32(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = data[at] | (data[at + 1] << 8) | (data[at + 2] << 16)
    high: cython.longlong = data[at + 3]
    return value + ((high - 256) << 24 if high > 127 else high << 24)


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _after_nul(
    data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position after the next zero byte, or a rule."""
    if cython.compiled:
        while at < end:
            if data[at] == 0:
                return at + 1
            at += 1
        return NO_NUL
    while at < end:
        piece = bytes(data[at : min(at + 64, end)])
        found = piece.find(0)
        if found >= 0:
            return at + found + 1
        at += len(piece)
    return NO_NUL


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _after_sized(
    data: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    least: cython.longlong,
    extra: cython.longlong,
) -> cython.Py_ssize_t:
    """After an int32 length of at least `least`, that many bytes and `extra` ones."""
    length: cython.longlong
    if end - at < 4:
        return PAST_END
    length = _int32(data, at)
    if length < least:
        return TOO_SMALL
    length += extra
    if length > end - at:
        return PAST_END
    return at + length


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _after_closed(
    data: cython.const[cython.uchar][::1],
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
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _after_value(
    data: cython.const[cython.uchar][::1], kind: cython.int, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position after a value of this kind, or a rule. `end` is where the closing zero byte of its document is."""
    after: cython.Py_ssize_t
    if kind == 0x05:
        after = _after_sized(data, at, end, 0, 5)
        if after > 0 and data[at + 4] == 2 and (after - at < 9 or _int32(data, at + 5) != after - at - 9):
            return INNER
        return after
    if kind == 0x03 or kind == 0x04:
        return _after_closed(data, at, end, 5, 0)
    if kind == 0x02 or kind == 0x0D or kind == 0x0E:
        return _after_closed(data, at, end, 1, 4)
    if kind == 0x08:
        if at >= end:
            return PAST_END
        return at + 1 if data[at] <= 1 else BOOL
    if kind == 0x0B:
        after = _after_nul(data, at, end)
        return _after_nul(data, after, end) if after > 0 else after
    if kind == 0x0C:
        after = _after_closed(data, at, end, 1, 4)
        if after > 0:
            after += 12
    elif kind == 0x0F:
        after = _after_closed(data, at, end, 14, 0)
    elif kind == 0x01 or kind == 0x09 or kind == 0x11 or kind == 0x12:
        after = at + 8
    elif kind == 0x10:
        after = at + 4
    elif kind == 0x07:
        after = at + 12
    elif kind == 0x13:
        after = at + 16
    elif kind == 0x06 or kind == 0x0A or kind == 0x7F or kind == 0xFF:
        after = at
    else:
        return KIND
    return after if after <= end else PAST_END


@cython.boundscheck(False)
def value_end(
    data: cython.const[cython.uchar][::1], kind: cython.int, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position after one value, or a rule."""
    return _after_value(data, kind, at, end)


@cython.boundscheck(False)
def name_end(data: cython.const[cython.uchar][::1], at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after the zero byte of a name, or a rule."""
    return _after_nul(data, at, end)


@cython.boundscheck(False)
def count(data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> tuple[Any, ...]:
    """How many documents lie one after the other: (rule, position, documents)."""
    at: cython.Py_ssize_t = begin
    after: cython.Py_ssize_t
    documents: cython.Py_ssize_t = 0
    while at < end:
        after = _after_closed(data, at, end, 5, 0)
        if after < 0:
            return after, at, documents
        at = after
        documents += 1
    return OK, at, documents


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.exceptval(check=False)
def _same_name(
    data: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    names: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
) -> cython.bint:
    """Whether the name at `begin`, its zero byte included, is the one at `at` of `names`."""
    i: cython.Py_ssize_t
    left: cython.Py_ssize_t = len(names) - at
    if end - begin > left:
        return False
    if not cython.compiled:
        return bytes(data[begin:end]) == bytes(names[at : at + end - begin])
    for i in range(end - begin):  # noqa: SIM110 (a generator would not compile to a loop)
        if data[begin + i] != names[at + i]:
            return False
    return True


@cython.boundscheck(False)
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
    """One field in each of as many documents as there are rows: (rule, position, row).

    `path` has the names from the outside in, each with its zero byte, and `starts` where
    each begins. A row gets the kind and the span of the value, or kind 0 where the field is
    absent. `closings` is scratch, one place for each name.
    """
    at: cython.Py_ssize_t = begin
    end: cython.Py_ssize_t = len(data)
    rows: cython.Py_ssize_t = len(kinds)
    deepest: cython.Py_ssize_t = len(starts) - 1
    last: cython.Py_ssize_t
    name: cython.Py_ssize_t
    value: cython.Py_ssize_t
    after: cython.Py_ssize_t
    row: cython.Py_ssize_t
    depth: cython.Py_ssize_t
    matched: cython.bint
    kind: cython.int
    for row in range(rows):
        kinds[row] = 0
        begins[row] = ends[row] = 0
        after = _after_closed(data, at, end, 5, 0)
        if after < 0:
            return after, at, row
        depth = 0
        last = closings[0] = after - 1
        matched = False
        at += 4
        while True:
            if at == last:
                at += 1
                if depth == 0:
                    break
                depth -= 1
                last = closings[depth]
                matched = True
                continue
            kind = data[at]
            name = at + 1
            value = _after_nul(data, name, last)
            if value < 0:
                return value, at, row
            after = _after_value(data, kind, value, last)
            if after < 0:
                return after, at, row
            if _same_name(data, name, value, path, starts[depth]):
                if matched:
                    return DUPLICATE, at, row
                matched = True
                if depth == deepest:
                    kinds[row] = kind
                    begins[row] = value
                    ends[row] = after
                elif kind == 0x03 or kind == 0x04:
                    depth += 1
                    last = closings[depth] = after - 1
                    matched = False
                    after = value + 4
            at = after
    return OK, at, rows


@cython.boundscheck(False)
def vectors(
    data: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    closings: cython.longlong[::1],
    names: cython.longlong[::1],
    values: cython.longlong[::1],
    paths: dict[bytes, int],
    budget: cython.longlong,
    first: cython.longlong,
    documents: cython.longlong[::1],
    fields: cython.longlong[::1],
    begins: cython.longlong[::1],
    ends: cython.longlong[::1],
) -> tuple[Any, ...]:
    """Every vector in the documents from `begin` on: (rule, position, rows, documents, budget).

    A row gets the number of its document, counted from `first`, the number of its path in
    `paths` and the span of its payload. A path is its names with their zero bytes; new ones
    are added. Documents nest as deep as `closings`, `names` and `values`, which are scratch,
    are long. Stops with FULL before the document that no longer fits the columns.

    Vectors below one long name have it in each of their paths, so paths can be far larger
    than the data: their bytes are charged to `budget` before they are built.
    """
    at: cython.Py_ssize_t = begin
    start: cython.Py_ssize_t
    last: cython.Py_ssize_t
    value: cython.Py_ssize_t
    after: cython.Py_ssize_t
    room: cython.Py_ssize_t = len(begins)
    deepest: cython.Py_ssize_t = len(closings)
    rows: cython.Py_ssize_t = 0
    kept: cython.Py_ssize_t
    document: cython.Py_ssize_t = 0
    depth: cython.Py_ssize_t
    length: cython.longlong
    size: cython.longlong
    unspent: cython.longlong
    kind: cython.int
    while at < end:
        start = at
        kept = rows
        unspent = budget
        after = _after_closed(data, at, end, 5, 0)
        if after < 0:
            return after, at, rows, document, budget
        depth = 0
        length = 0  # of the names of the levels outside the present one
        last = closings[0] = after - 1
        at += 4
        while True:
            if at == last:
                at += 1
                if depth == 0:
                    break
                depth -= 1
                length -= values[depth] - names[depth]
                last = closings[depth]
                continue
            kind = data[at]
            value = _after_nul(data, at + 1, last)
            if value < 0:
                return value, at, rows, document, budget
            after = _after_value(data, kind, value, last)
            if after < 0:
                return after, at, rows, document, budget
            names[depth] = at + 1
            values[depth] = value
            if kind == 0x03 or kind == 0x04:
                length += value - at - 1
                depth += 1
                if depth == deepest:
                    return DEPTH, at, rows, document, budget
                last = closings[depth] = after - 1
                after = value + 4
            elif kind == 0x05 and data[value + 4] == 9:
                if rows == room:
                    return FULL, start, kept, document, unspent
                size = length + value - at - 1
                budget -= size
                if budget < 0:
                    return PATHS, at, rows, document, budget
                path = _path(data, names, values, depth, size)
                documents[rows] = first + document
                fields[rows] = paths.setdefault(path, len(paths))
                begins[rows] = value + 5
                ends[rows] = after
                rows += 1
            at = after
        document += 1
    return OK, at, rows, document, budget


@cython.cfunc
@cython.boundscheck(False)
def _path(
    data: cython.const[cython.uchar][::1],
    names: cython.longlong[::1],
    values: cython.longlong[::1],
    depth: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
) -> bytes:
    """The names on the way down, each with its zero byte, `length` bytes. A name ends where its value begins."""
    level: cython.Py_ssize_t
    i: cython.longlong
    at: cython.Py_ssize_t = 0
    if not cython.compiled:
        return b"".join([bytes(data[names[level] : values[level]]) for level in range(depth + 1)])
    if depth == 0:
        path: bytes = cython.cast(cython.p_uchar, cython.address(data[0]))[names[0] : values[0]]
        return path
    path = bytes(length)
    target: cython.p_uchar = cython.cast(cython.p_uchar, path)  # nobody else has seen it yet
    for level in range(depth + 1):
        for i in range(names[level], values[level]):
            target[at] = data[i]
            at += 1
    return path


@cython.boundscheck(False)
def numbers(
    data: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    kinds: cython.uchar[::1],
    out: cython.uchar[::1],
) -> tuple[Any, ...]:
    """The numbers of a BSON array whose value is at `begin` to `end`: (rule, position, how many).

    Each takes eight bytes of `out`: a double, or an integer of that width, as `kinds` says.
    FULL where there are more than `kinds` has room for.
    """
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
    while at < last:
        kind = data[at]
        value = _after_nul(data, at + 1, last)
        if value < 0:
            return value, at, done
        after = _after_value(data, kind, value, last)
        if after < 0:
            return after, at, done
        if kind != 0x01 and kind != 0x10 and kind != 0x12:
            return NOT_NUMBER, at, done
        if done == room:
            return FULL, at, done
        kinds[done] = kind
        for i in range(after - value):
            out[8 * done + i] = data[value + i]
        if kind == 0x10:
            for i in range(4, 8):
                out[8 * done + i] = 255 if data[after - 1] > 127 else 0
        done += 1
        at = after
    return OK, at, done
