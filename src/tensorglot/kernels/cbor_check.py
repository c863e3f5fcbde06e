"""Whether bytes are one item of CBOR (RFC 8949) in the forms that a profile allows.

Grammar and strictness are decided once: heads, lengths against the bytes that are left,
nesting, order and uniqueness of keys, floats, tags, UTF-8. Whoever reads afterwards walks
bytes that are known to be good. The loop does not recurse over nesting and makes no object
for what it passes: hostile bytes cost time in proportion to their number and almost no
memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcmp
    from cython.cimports.tensorglot.kernels.cbor_heads import *  # noqa: F403
    from cython.cimports.tensorglot.kernels.primitives import invalid_utf8, is_ascii, longlongs_of
else:
    from tensorglot.kernels.cbor_heads import (
        ARRAY,
        BREAK,
        BYTES,
        ENDS,
        MAP,
        OK,
        OPEN_ENDED,
        RESERVED,
        SPECIAL,
        TAG,
        TEXT,
        argument_of,
        head_end,
    )
    from tensorglot.kernels.primitives import invalid_utf8, is_ascii, longlongs_of

FAULTS = (
    "", "ends", "reserved", "indefinite", "shortest", "order", "duplicate", "key", "tag", "simple", "float", "depth",
    "utf8", "break", "chunk",
)  # fmt: skip
"""What is wrong, by code. The names below are those codes for the compiler; `cbor_heads` has the first three."""
cython.declare(
    _INDEFINITE=cython.int, _LONG=cython.int, _ORDER=cython.int, _DUPLICATE=cython.int, _KEY=cython.int,
    _WRONG_TAG=cython.int, _SIMPLE=cython.int, _FLOAT=cython.int, _DEPTH=cython.int, _NOT_UTF8=cython.int,
    _STRAY_BREAK=cython.int, _CHUNK=cython.int, _OPENED=cython.int,
)  # fmt: skip
(
    _INDEFINITE, _LONG, _ORDER, _DUPLICATE, _KEY, _WRONG_TAG, _SIMPLE, _FLOAT, _DEPTH, _NOT_UTF8, _STRAY_BREAK, _CHUNK,
    _OPENED,
) = range(3, 16)  # fmt: skip
"""The last is no fault: more of a container is to come."""

cython.declare(_IN_ARRAY=cython.int, _AT_KEY=cython.int, _AT_VALUE=cython.int, _TAGGED=cython.int)
_IN_ARRAY, _AT_KEY, _AT_VALUE, _TAGGED = range(4)
_INLINE_KEYS = cython.declare(cython.int, 16)
"""So many keys of a map are compared one by one; with more, or with keys in several forms, a set is made."""


@cython.final
@cython.cclass
class _Open:
    """The containers around the item at hand, the innermost one at `level`; level 0 stands for none."""

    indefinite: cython.bint
    long_heads: cython.bint
    sorted_keys: cython.bint
    text_keys: cython.bint
    any_keys: cython.bint
    shortest_floats: cython.bint
    double_floats: cython.bint
    nonfinite: cython.bint
    simple: cython.bint
    tags: Any
    depth: cython.Py_ssize_t
    data: bytes
    p: cython.p_uchar
    end: cython.Py_ssize_t
    start: cython.Py_ssize_t
    """Where the item at hand begins: what a fault is reported for."""
    level: cython.Py_ssize_t
    memory: Any
    """Memory of all columns, which have a number for each level."""
    states: cython.p_longlong
    left: cython.p_longlong
    """Items or pairs to come, or -1 where a break ends them."""
    starts: cython.p_longlong
    key_counts: cython.p_longlong
    """Number of keys that are compared one by one, or -1 where there is a set."""
    key_marks: cython.p_longlong
    """A bit for each key, by two of its bytes: a key whose bit is not set differs from all before it."""
    key_begins: cython.p_longlong
    key_ends: cython.p_longlong
    """_INLINE_KEYS for each level; of sorted keys only the last one is kept."""
    key_sets: list  # type: ignore[type-arg]

    def __init__(self, data: bytes, end: cython.Py_ssize_t, profile: Any, depth: cython.Py_ssize_t) -> None:
        self.indefinite = profile.indefinite
        self.long_heads = profile.long_heads
        self.sorted_keys = profile.sorted_keys
        self.text_keys = profile.keys == "text"
        self.any_keys = profile.keys == "any"
        self.shortest_floats = profile.floats == "shortest"
        self.double_floats = profile.floats == "double"
        self.nonfinite = profile.nonfinite
        self.simple = profile.simple
        self.tags = profile.tags
        self.depth = depth
        self.data = data
        self.p = data
        self.end = end
        self.start = self.level = 0
        levels: cython.Py_ssize_t = depth + 1
        self.memory = np.zeros((5 + 2 * _INLINE_KEYS) * levels, np.int64)
        self.states = longlongs_of(self.memory)
        if cython.compiled:
            self.left = self.states + levels
            self.starts = self.states + 2 * levels
            self.key_counts = self.states + 3 * levels
            self.key_marks = self.states + 4 * levels
            self.key_begins = self.states + 5 * levels
            self.key_ends = self.key_begins + _INLINE_KEYS * levels
        else:
            self.left = self.states[levels:]
            self.starts = self.states[2 * levels :]
            self.key_counts = self.states[3 * levels :]
            self.key_marks = self.states[4 * levels :]
            self.key_begins = self.states[5 * levels :]
            self.key_ends = self.key_begins[_INLINE_KEYS * levels :]
        self.key_sets = [None] * (depth + 1)


def check(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t, profile: Any) -> tuple[str, int]:
    """Checks the item at `begin` against the fields of a profile: ("", where it ends), or (what is wrong, where)."""
    if not 0 <= begin <= end <= len(data):
        return "ends", begin
    around: _Open = _Open(data, end, profile, max(0, min(profile.depth, end - begin)))
    p: cython.p_uchar = data
    pos: cython.Py_ssize_t = begin
    item_end: cython.Py_ssize_t
    outcome: cython.int
    # Invariant: the bytes before `pos` are heads of the containers around it and whole items inside them.
    while True:
        around.start = begin = pos
        pos = head_end(p, begin, end)
        if pos < 0:
            return FAULTS[-pos], begin
        item_end = _check_item(around, p[begin], pos, argument_of(p, begin, pos))
        if item_end == -_OPENED:
            continue
        if item_end < 0:
            return FAULTS[-item_end], around.start
        pos = item_end
        outcome = _complete(around, pos)
        if outcome == OK:
            return "", pos
        if outcome != _OPENED:
            return FAULTS[outcome], around.start


@cython.cfunc
@cython.inline
def _check_item(
    around: _Open, head: cython.uchar, pos: cython.Py_ssize_t, argument: cython.ulonglong
) -> cython.Py_ssize_t:
    """Where an item ends whose head ends at `pos`; minus OPENED where it has more inside; minus a fault."""
    major: cython.int = head >> 5
    fault: cython.int = OK
    if head & 31 >= 24:
        fault = _check_form(around, head, argument)
    if fault == OK and major != TEXT and around.level > 0 and around.states[around.level] == _AT_KEY:
        fault = _check_key_kind(around, head)
    if fault != OK:
        return -fault
    if BYTES <= major <= TEXT:
        if head & 31 == OPEN_ENDED:
            return _check_chunks(around, major, pos)
        return _check_content(around, major, pos, argument)
    if major <= 1:
        return pos
    if major <= TAG:
        fault = _open(around, head, pos, argument)
    elif head == BREAK:
        fault = _close(around)
    else:
        fault = _check_special(around, head & 31, argument)
    return pos if fault == OK else -fault


@cython.cfunc
@cython.exceptval(check=False)
def _check_form(around: _Open, head: cython.uchar, argument: cython.ulonglong) -> cython.int:
    """Whether the profile allows a head of more than one byte, or an indefinite length."""
    major: cython.int = head >> 5
    if head & 31 == OPEN_ENDED:
        if not around.indefinite:  # §4.2.1
            return _INDEFINITE
        return RESERVED if major <= 1 or major == TAG else OK  # §3.2
    if major != SPECIAL and not around.long_heads and not _is_shortest(head & 31, argument):  # §4.2.1
        return _LONG
    return OK


@cython.cfunc
@cython.exceptval(check=False)
def _is_shortest(info: cython.int, argument: cython.ulonglong) -> cython.bint:
    """Whether a head has the one form that §4.2.1 leaves to its argument; no string of indefinite length has."""
    if info < 24:
        return True
    # A byte is for 24 to 255; a wider argument has a bit in its upper half.
    return info < 28 and argument >= 24 and (info == 24 or argument >> (4 << (info - 24)) != 0)


@cython.cfunc
@cython.exceptval(check=False)
def _check_key_kind(around: _Open, head: cython.uchar) -> cython.int:
    """Whether a head that is not that of a text may begin a key."""
    if head == BREAK:
        return OK
    if around.text_keys:
        return _KEY
    if not around.any_keys and (ARRAY <= head >> 5 <= TAG or head >= 0xF9):  # the first of the floats
        return _KEY
    return OK


@cython.cfunc
@cython.inline
def _check_content(
    around: _Open, major: cython.int, pos: cython.Py_ssize_t, argument: cython.ulonglong
) -> cython.Py_ssize_t:
    """The content of a string of definite length from `pos` on: where it ends, or minus a fault."""
    end: cython.Py_ssize_t
    if argument > cython.cast(cython.ulonglong, around.end - pos):
        return -ENDS
    end = pos + cython.cast(cython.Py_ssize_t, argument)
    if major == TEXT and not is_ascii(around.p, pos, end) and invalid_utf8(around.p, pos, end) >= 0:
        return -_NOT_UTF8  # §3.1, major type 3
    return end


@cython.cfunc
def _check_chunks(around: _Open, major: cython.int, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The chunks of a string of indefinite length (§3.2.3): where it ends, or minus a fault."""
    begin: cython.Py_ssize_t = around.start
    head: cython.uchar
    argument: cython.ulonglong
    # Invariant: the chunks before `pos` are strings of definite length, of the kind of the whole.
    while pos < around.end and around.p[pos] != BREAK:
        around.start = pos
        head = around.p[pos]
        if head >> 5 != major or head & 31 > 27:
            return -_CHUNK
        pos = head_end(around.p, pos, around.end)
        if pos < 0:
            return pos
        argument = argument_of(around.p, around.start, pos)
        if not around.long_heads and not _is_shortest(head & 31, argument):
            return -_LONG
        pos = _check_content(around, major, pos, argument)
        if pos < 0:
            return pos
    if pos >= around.end:
        around.start = pos
        return -ENDS
    around.start = begin
    return pos + 1


@cython.cfunc
def _open(around: _Open, head: cython.uchar, pos: cython.Py_ssize_t, argument: cython.ulonglong) -> cython.int:
    """An array, a map or a tag: OPENED, or OK where it is empty."""
    major: cython.int = head >> 5
    level: cython.Py_ssize_t = around.level + 1
    counted: cython.bint = major != TAG and head & 31 != OPEN_ENDED
    # Every item takes a byte, every pair two.
    if counted and argument > cython.cast(cython.ulonglong, (around.end - pos) >> (major - ARRAY)):
        return ENDS
    if major == TAG and around.tags is not None and argument not in around.tags:
        return _WRONG_TAG
    if level > around.depth:
        return _DEPTH
    if counted and argument == 0:
        return OK
    around.level = level
    around.starts[level] = around.start
    around.states[level] = _AT_KEY if major == MAP else _TAGGED if major == TAG else _IN_ARRAY
    around.left[level] = cython.cast(cython.longlong, argument) if counted else 1 if major == TAG else -1
    around.key_counts[level] = 0
    around.key_marks[level] = 0
    return _OPENED


@cython.cfunc
@cython.exceptval(check=False)
def _close(around: _Open) -> cython.int:
    """A break: completes the container around it, if that is of indefinite length and not between key and value."""
    if around.level == 0 or around.left[around.level] != -1 or around.states[around.level] == _AT_VALUE:
        return _STRAY_BREAK
    around.start = around.starts[around.level]
    around.level -= 1
    return OK


@cython.cfunc
@cython.inline
def _complete(around: _Open, pos: cython.Py_ssize_t) -> cython.int:
    """Counts a complete item in what is around it: OPENED where more is to come, OK where the root is complete."""
    level: cython.Py_ssize_t = around.level
    # Invariant: the item from around.start to `pos` is complete.
    while level > 0:
        if around.states[level] == _AT_KEY:
            around.states[level] = _AT_VALUE
            return _take_sorted_key(around, pos) if around.sorted_keys else _take_key(around, pos)
        if around.states[level] == _AT_VALUE:
            around.states[level] = _AT_KEY
        if around.left[level] == -1:
            return _OPENED
        around.left[level] -= 1
        if around.left[level] > 0:
            return _OPENED
        around.start = around.starts[level]
        level -= 1
        around.level = level
    return OK


@cython.cfunc
@cython.exceptval(check=False)
def _take_sorted_key(around: _Open, end: cython.Py_ssize_t) -> cython.int:
    """§4.2.1: a key is behind its predecessor in the order of their bytes."""
    slot: cython.Py_ssize_t = around.level * _INLINE_KEYS
    order: cython.int
    if around.key_counts[around.level] > 0:
        order = _compare(around, around.key_begins[slot], around.key_ends[slot], end)
        if order >= 0:
            return _DUPLICATE if order == 0 else _ORDER
    around.key_counts[around.level] = 1
    around.key_begins[slot] = around.start
    around.key_ends[slot] = end
    return _OPENED


@cython.cfunc
def _take_key(around: _Open, end: cython.Py_ssize_t) -> cython.int:
    """§5.6: no duplicate keys, however the two are encoded."""
    count: cython.Py_ssize_t = around.key_counts[around.level]
    slot: cython.Py_ssize_t = around.level * _INLINE_KEYS
    size: cython.Py_ssize_t = end - around.start
    i: cython.Py_ssize_t
    mark: cython.longlong
    if 0 <= count < _INLINE_KEYS and around.p[around.start] & 31 < 24:
        # Keys with a head of one byte are equal exactly if their bytes are.
        mark = cython.cast(cython.longlong, 1) << (7 * around.p[around.start] + around.p[around.start + size // 2]) % 63
        if around.key_marks[around.level] & mark:
            for i in range(slot, slot + count):
                if around.key_ends[i] - around.key_begins[i] == size and (
                    _compare(around, around.key_begins[i], around.key_ends[i], end) == 0
                ):
                    return _DUPLICATE
        around.key_marks[around.level] |= mark
        around.key_begins[slot + count] = around.start
        around.key_ends[slot + count] = end
        around.key_counts[around.level] = count + 1
        return _OPENED
    return _take_key_value(around, end)


@cython.cfunc
def _take_key_value(around: _Open, end: cython.Py_ssize_t) -> cython.int:
    """The same for many keys, or for keys in several forms."""
    slot: cython.Py_ssize_t = around.level * _INLINE_KEYS
    if around.key_counts[around.level] >= 0:
        around.key_sets[around.level] = {
            _key_value(around.data, around.key_begins[i], around.key_ends[i])
            for i in range(slot, slot + around.key_counts[around.level])
        }
        around.key_counts[around.level] = -1
    keys: set = around.key_sets[around.level]  # type: ignore[type-arg]
    key = _key_value(around.data, around.start, end)
    if key in keys:
        return _DUPLICATE
    keys.add(key)
    return _OPENED


@cython.cfunc
def _key_value(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> object:
    """A checked key as a value that is equal for equal keys, whatever the forms of their heads."""
    p: cython.p_uchar = data
    pos: cython.Py_ssize_t = head_end(p, begin, end)
    major: cython.int = p[begin] >> 5
    if major != BYTES and major != TEXT:
        return major, argument_of(p, begin, pos)
    if p[begin] & 31 != OPEN_ENDED:
        return major, data[pos:end]
    chunks: list[bytes] = []
    while p[pos] != BREAK:
        begin = head_end(p, pos, end)
        pos = begin + cython.cast(cython.Py_ssize_t, argument_of(p, pos, begin))
        chunks.append(data[begin:pos])
    return major, b"".join(chunks)


@cython.cfunc
@cython.exceptval(check=False)
def _compare(
    around: _Open, begin: cython.Py_ssize_t, end: cython.Py_ssize_t, item_end: cython.Py_ssize_t
) -> cython.int:
    """Negative, 0 or positive as the span is before, the same as or after the item at hand."""
    size: cython.Py_ssize_t = item_end - around.start
    order: cython.int
    if cython.compiled:
        order = around.p[begin] - around.p[around.start]  # most keys differ in their length, and so in their heads
        if order == 0:
            order = memcmp(around.p + begin, around.p + around.start, min(end - begin, size))
        if order == 0:
            order = (end - begin > size) - (end - begin < size)
    else:
        one, other = around.data[begin:end], around.data[around.start : item_end]
        order = (one > other) - (one < other)
    return order


@cython.cfunc
@cython.exceptval(check=False)
def _check_special(around: _Open, info: cython.int, argument: cython.ulonglong) -> cython.int:
    """A float or a simple value (§3.3)."""
    if info >= 25:
        return OK if _has_float_form(around, info, argument) else _FLOAT
    if info == 24 and argument < 32:
        return RESERVED
    return OK if around.simple or 20 <= argument <= 22 else _SIMPLE


@cython.cfunc
@cython.exceptval(check=False)
def _has_float_form(around: _Open, info: cython.int, bits: cython.ulonglong) -> cython.bint:
    """Whether a float of two, four or eight bytes (info 25, 26, 27) has the form that is asked for."""
    special: cython.bint = (bits >> 10) & 0x1F == 0x1F if info == 25 else (bits >> 23) & 0xFF == 0xFF
    if info == 27:
        special = (bits >> 52) & 0x7FF == 0x7FF
    if (around.double_floats and info != 27) or (special and not around.nonfinite):
        return False
    if around.shortest_floats:  # §4.2.1
        if info == 25:
            return not special or bits & 0x3FF == 0 or bits == 0x7E00
        return not (_is_narrower(bits, 32, 23, 10, -14) if info == 26 else _is_narrower(bits, 64, 52, 23, -126))
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _is_narrower(
    bits: cython.ulonglong, width: cython.int, fraction_bits: cython.int, half_bits: cython.int, least: cython.int
) -> cython.bint:
    """Whether a float of `width` bits is one of half the width, too; NaN is.

    That has so many bits of fraction, and `least` as its smallest exponent.
    """
    exponents: cython.longlong = (1 << (width - 1 - fraction_bits)) - 1
    exponent: cython.longlong = ((bits >> fraction_bits) & exponents) - (exponents >> 1)
    fraction: cython.ulonglong = bits & ((cython.cast(cython.ulonglong, 1) << fraction_bits) - 1)
    if exponent > exponents >> 1:
        return True
    if exponent == -(exponents >> 1):
        return fraction == 0
    if exponent > 1 - least or exponent < least - half_bits:
        return False
    spare: cython.longlong = fraction_bits - half_bits + max(0, least - exponent)
    return fraction & ((cython.cast(cython.ulonglong, 1) << spare) - 1) == 0
