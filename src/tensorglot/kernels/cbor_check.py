"""Checks one CBOR item, with all that is inside it, against the options of a profile.

`check` is the only place where the grammar of CBOR and its strictness are decided:
heads, lengths against the bytes that are left, nesting, order and uniqueness of keys,
floats, tags, UTF-8. Whoever reads the item afterwards walks bytes that are known to
be good. The walk keeps a stack of its own, bounded by `depth`, and makes no object
for what it passes, so hostile bytes cost time in proportion to their number and
almost no memory.

`skip` finds the end of an item that has been checked.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

INDEFINITE = 1
"""Indefinite lengths are allowed."""
LONG = 2
"""Heads longer than needed are allowed."""
SORTED = 4
"""Keys are sorted by their encoded bytes."""
TEXT_KEYS = 8
"""A key is a text string."""
ANY_KEYS = 16
"""A key is anything, else only text, bytes, an integer or a simple value. Needs SORTED."""
SHORTEST = 32
"""Floats are as short as the value allows, NaN is f97e00."""
DOUBLE = 64
"""Floats are eight bytes."""
FINITE = 128
"""Floats are finite."""
SIMPLE = 256
"""Simple values beside false, true and null are allowed."""

(
    OK,
    ENDS,
    RESERVED,
    LENGTH_FORM,
    HEAD_FORM,
    KEY_ORDER,
    KEY_TWICE,
    KEY_KIND,
    TAG,
    SIMPLE_VALUE,
    FLOAT_FORM,
    NESTING,
    UTF8,
    BREAK,
    CHUNK,
) = range(15)

_ARRAY = cython.declare(cython.int, 0)
_MAP_KEY = cython.declare(cython.int, 1)
_MAP_VALUE = cython.declare(cython.int, 2)
_TAGGED = cython.declare(cython.int, 3)

_INLINE_KEYS = cython.declare(cython.int, 16)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _half_holds_single(bits: cython.ulonglong) -> cython.bint:
    """Whether the float32 with these bits is a float16 too; NaN is."""
    exponent: cython.longlong = ((bits >> 23) & 0xFF) - 127
    fraction: cython.ulonglong = bits & 0x7FFFFF
    if exponent == 128:
        return True
    if exponent == -127:
        return fraction == 0
    if exponent > 15 or exponent < -24:
        return False
    spare: cython.longlong = 13 if exponent >= -14 else -1 - exponent
    return fraction & ((cython.cast(cython.ulonglong, 1) << spare) - 1) == 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _single_holds_double(bits: cython.ulonglong) -> cython.bint:
    """Whether the float64 with these bits is a float32 too; NaN is."""
    exponent: cython.longlong = ((bits >> 52) & 0x7FF) - 1023
    fraction: cython.ulonglong = bits & 0xFFFFFFFFFFFFF
    if exponent == 1024:
        return True
    if exponent == -1023:
        return fraction == 0
    if exponent > 127 or exponent < -149:
        return False
    spare: cython.longlong = 29 if exponent >= -126 else -97 - exponent
    return fraction & ((cython.cast(cython.ulonglong, 1) << spare) - 1) == 0


@cython.cfunc
@cython.exceptval(check=False)
def _float_form(info: cython.int, bits: cython.ulonglong, options: cython.int) -> cython.bint:
    """Whether a float of two, four or eight bytes (info 25, 26, 27) has the form that is asked for."""
    if options & DOUBLE and info != 27:
        return False
    if options & FINITE:
        if info == 25 and (bits >> 10) & 0x1F == 0x1F:
            return False
        if info == 26 and (bits >> 23) & 0xFF == 0xFF:
            return False
        if info == 27 and (bits >> 52) & 0x7FF == 0x7FF:
            return False
    if options & SHORTEST:
        if info == 25:
            return (bits >> 10) & 0x1F != 0x1F or bits & 0x3FF == 0 or bits == 0x7E00
        if info == 26:
            return not _half_holds_single(bits)
        return not _single_holds_double(bits)
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _ascii(p: cython.p_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether text is ASCII; said of none where decoding it is as quick as looking."""
    i: cython.Py_ssize_t
    high: cython.uchar = 0
    if not cython.compiled:
        return False
    for i in range(begin, end):
        high |= p[i]
    return high < 0x80


@cython.cfunc
def _utf8(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    p: cython.p_uchar = data
    try:
        p[begin:end].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _compare(
    data: bytes, a: cython.Py_ssize_t, a_end: cython.Py_ssize_t, b: cython.Py_ssize_t, b_end: cython.Py_ssize_t
) -> cython.int:
    """-1, 0 or 1 as the first span is before, the same as or after the second."""
    if not cython.compiled:
        left, right = data[a:a_end], data[b:b_end]
        return (left > right) - (left < right)
    p: cython.p_uchar = data
    while a < a_end and b < b_end:
        if p[a] != p[b]:
            return -1 if p[a] < p[b] else 1
        a += 1
        b += 1
    if a == a_end:
        return 0 if b == b_end else -1
    return 1


@cython.cfunc
@cython.exceptval(check=False)
def _same(
    data: bytes, a: cython.Py_ssize_t, a_end: cython.Py_ssize_t, b: cython.Py_ssize_t, b_end: cython.Py_ssize_t
) -> cython.bint:
    if a_end - a != b_end - b:
        return False
    if not cython.compiled:
        return data[a:a_end] == data[b:b_end]
    p: cython.p_uchar = data
    while a < a_end:
        if p[a] != p[b]:
            return False
        a += 1
        b += 1
    return True


@cython.cfunc
def _key_value(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> object:
    """A key as a value that is equal for equal keys, whatever the form of their heads."""
    major = data[begin] >> 5
    pieces = []
    pos = begin
    while pos < end:
        info = data[pos] & 31
        pos += 1
        argument = info
        if 24 <= info < 28:
            width = 1 << (info - 24)
            argument = int.from_bytes(data[pos : pos + width], "big")
            pos += width
        if major != 2 and major != 3:
            return major, argument
        if info != 31:
            pieces.append(data[pos : pos + argument])
            pos += argument
    return major, b"".join(pieces)


@cython.boundscheck(False)
def check(
    data: bytes,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    options: cython.int,
    depth: cython.Py_ssize_t,
    tags: Any,
) -> tuple[int, int]:
    """Checks the item at `begin`: (OK, where it ends), or (what is wrong, where).

    `tags` holds the numbers of the tags that are allowed; None allows all.
    """
    if not 0 <= begin <= end <= len(data):
        return ENDS, begin
    depth = max(0, min(depth, end - begin))
    # One frame for each open container; frame 0 stands for none.
    states: cython.longlong[::1] = array("q", bytes(8 * (depth + 1)))
    left: cython.longlong[::1] = array("q", bytes(8 * (depth + 1)))  # items or pairs to come; -1 until a break
    starts: cython.longlong[::1] = array("q", bytes(8 * (depth + 1)))
    key_count: cython.longlong[::1] = array("q", bytes(8 * (depth + 1)))
    key_begin: cython.longlong[::1] = array("q", bytes(8 * (depth + 1) * _INLINE_KEYS))
    key_end: cython.longlong[::1] = array("q", bytes(8 * (depth + 1) * _INLINE_KEYS))
    key_sets: list[Any] = [None] * (depth + 1)

    long_heads: cython.bint = options & LONG != 0
    indefinite: cython.bint = options & INDEFINITE != 0
    sorted_keys: cython.bint = options & SORTED != 0
    text_keys: cython.bint = options & TEXT_KEYS != 0
    any_keys: cython.bint = options & ANY_KEYS != 0
    simple: cython.bint = options & SIMPLE != 0
    p: cython.p_uchar = data
    pos: cython.Py_ssize_t = begin
    start: cython.Py_ssize_t
    level: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    width: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    major: cython.int
    info: cython.int
    argument: cython.ulonglong
    size: cython.Py_ssize_t
    done: cython.bint
    uniform: cython.bint

    while True:
        start = pos
        if pos >= end:
            return ENDS, pos
        major = p[pos] >> 5
        info = p[pos] & 31
        pos += 1
        argument = info
        uniform = info < 24  # the one form that a head of this value can have
        if 24 <= info < 28:
            width = 1 << (info - 24)
            if end - pos < width:
                return ENDS, start
            argument = 0
            for i in range(width):
                argument = (argument << 8) | p[pos + i]
            pos += width
            uniform = argument >= 24 and (info == 24 or argument >> (4 * width) != 0)
            if major != 7 and not uniform and not long_heads:
                return HEAD_FORM, start
        elif 28 <= info < 31:
            return RESERVED, start
        if info == 31:
            if not indefinite:
                return LENGTH_FORM, start
            if major == 0 or major == 1 or major == 6:
                return RESERVED, start

        done = True
        if level > 0 and states[level] == _MAP_KEY and not (major == 7 and info == 31):
            if text_keys and major != 3:
                return KEY_KIND, start
            if not any_keys and (4 <= major <= 6 or (major == 7 and info >= 25)):
                return KEY_KIND, start

        if major == 2 or major == 3:
            if info != 31:
                if argument > cython.cast(cython.ulonglong, end - pos):
                    return ENDS, start
                size = cython.cast(cython.Py_ssize_t, argument)
                if major == 3 and not _ascii(p, pos, pos + size) and not _utf8(data, pos, pos + size):
                    return UTF8, start
                pos += size
            else:
                while True:
                    if pos >= end:
                        return ENDS, pos
                    if p[pos] == 0xFF:
                        pos += 1
                        break
                    slot = pos
                    info = p[pos] & 31
                    if p[pos] >> 5 != major or info > 27:
                        return CHUNK, slot
                    pos += 1
                    argument = info
                    if info >= 24:
                        width = 1 << (info - 24)
                        if end - pos < width:
                            return ENDS, slot
                        argument = 0
                        for i in range(width):
                            argument = (argument << 8) | p[pos + i]
                        pos += width
                        if not long_heads and (argument < 24 or (info > 24 and argument >> (4 * width) == 0)):
                            return HEAD_FORM, slot
                    if argument > cython.cast(cython.ulonglong, end - pos):
                        return ENDS, slot
                    size = cython.cast(cython.Py_ssize_t, argument)
                    if major == 3 and not _ascii(p, pos, pos + size) and not _utf8(data, pos, pos + size):
                        return UTF8, slot
                    pos += size
        elif major == 4 or major == 5 or major == 6:
            # Every item takes a byte, every pair two.
            if major != 6 and info != 31 and argument > cython.cast(cython.ulonglong, (end - pos) >> (major - 4)):
                return ENDS, start
            if major == 6 and tags is not None and argument not in tags:
                return TAG, start
            if info == 31 or argument > 0 or major == 6:
                if level >= depth:
                    return NESTING, start
                level += 1
                starts[level] = start
                states[level] = _ARRAY if major == 4 else (_MAP_KEY if major == 5 else _TAGGED)
                left[level] = -1 if info == 31 else (1 if major == 6 else cython.cast(cython.longlong, argument))
                key_count[level] = 0
                if not sorted_keys:
                    key_sets[level] = None
                done = False
            elif level >= depth:
                return NESTING, start
        elif major == 7:
            if info == 31:
                if level == 0 or left[level] != -1 or states[level] == _MAP_VALUE:
                    return BREAK, start
                start = starts[level]
                level -= 1
            elif info >= 25:
                if not _float_form(info, argument, options):
                    return FLOAT_FORM, start
            elif info == 24 and argument < 32:
                return RESERVED, start
            elif not simple and not 20 <= argument <= 22:
                return SIMPLE_VALUE, start

        # An item is complete, and with it perhaps the containers that it ends.
        while done:
            if level == 0:
                return OK, pos
            if states[level] == _MAP_KEY:
                i = key_count[level]
                slot = level * _INLINE_KEYS
                if sorted_keys:
                    if i > 0:
                        order: cython.int = _compare(data, key_begin[slot], key_end[slot], start, pos)
                        if order == 0:
                            return KEY_TWICE, start
                        if order > 0:
                            return KEY_ORDER, start
                    key_begin[slot] = start
                    key_end[slot] = pos
                elif key_sets[level] is None and uniform and i < _INLINE_KEYS:
                    for width in range(i):
                        if _same(data, key_begin[slot + width], key_end[slot + width], start, pos):
                            return KEY_TWICE, start
                    key_begin[slot + i] = start
                    key_end[slot + i] = pos
                else:
                    if key_sets[level] is None:
                        key_sets[level] = {
                            _key_value(data, key_begin[slot + width], key_end[slot + width]) for width in range(i)
                        }
                    key = _key_value(data, start, pos)
                    if key in key_sets[level]:
                        return KEY_TWICE, start
                    key_sets[level].add(key)
                key_count[level] = i + 1
                states[level] = _MAP_VALUE
                break
            if states[level] == _MAP_VALUE:
                states[level] = _MAP_KEY
            if left[level] == -1:
                break
            left[level] -= 1
            if left[level] > 0:
                break
            start = starts[level]
            level -= 1


def skip(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the item at `begin` ends, in bytes that have been checked; -1 if they have not."""
    p: cython.p_uchar = data
    pos: cython.Py_ssize_t = begin
    width: cython.Py_ssize_t
    i: cython.Py_ssize_t
    left: cython.ulonglong = 1  # items to come; 0 where only a break ends them
    outer: list[Any] = []  # `left` of what surrounds each container of indefinite length
    counted: cython.bint
    major: cython.int
    info: cython.int
    argument: cython.ulonglong
    if not 0 <= begin <= end <= len(data):
        return -1
    while True:
        if pos >= end:
            return -1
        major = p[pos] >> 5
        info = p[pos] & 31
        pos += 1
        argument = info
        if 24 <= info < 28:
            width = 1 << (info - 24)
            if end - pos < width:
                return -1
            argument = 0
            for i in range(width):
                argument = (argument << 8) | p[pos + i]
            pos += width
        if info == 31 and major != 7:
            outer.append(left)
            left = 0
            continue
        if info == 31:
            if not outer:
                return -1
            left = outer.pop()
        counted = left > 0
        if major == 2 or major == 3:
            if argument > cython.cast(cython.ulonglong, end - pos):
                return -1
            pos += cython.cast(cython.Py_ssize_t, argument)
        elif major == 4 or major == 5:
            if argument > cython.cast(cython.ulonglong, end - pos):
                return -1
            left += argument if major == 4 else 2 * argument
        elif major == 6:
            left += 1
        if counted:
            left -= 1
        if left == 0 and not outer:
            return pos
