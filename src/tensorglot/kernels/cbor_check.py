"""Validates one CBOR item (RFC 8949) against a profile, which says which forms are allowed.

Grammar and strictness are checked once, here: heads, lengths against the bytes that are
left, nesting, order and uniqueness of keys, floats, tags, UTF-8. Readers that follow walk
validated bytes. The loop does not recurse and creates no object for an item, so hostile
bytes take time in proportion to their number, and almost no memory.

Sections (§) are those of RFC 8949.
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
    from cython.cimports.tensorglot.kernels.primitives import invalid_utf8, is_ascii, longlongs_at, longlongs_of
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
    from tensorglot.kernels.primitives import invalid_utf8, is_ascii, longlongs_at, longlongs_of

FAULTS = (
    "", "ends", "reserved", "indefinite", "shortest", "order", "duplicate", "key", "tag", "simple", "float", "depth",
    "utf8", "break", "chunk",
)  # fmt: skip
"""Names of the faults, by code. The C constants below are these codes; `cbor_heads` has the first three."""
cython.declare(
    _INDEFINITE=cython.int, _LONG=cython.int, _ORDER=cython.int, _DUPLICATE=cython.int, _KEY=cython.int,
    _WRONG_TAG=cython.int, _SIMPLE=cython.int, _FLOAT=cython.int, _DEPTH=cython.int, _NOT_UTF8=cython.int,
    _STRAY_BREAK=cython.int, _CHUNK=cython.int, _OPENED=cython.int,
)  # fmt: skip
(
    _INDEFINITE, _LONG, _ORDER, _DUPLICATE, _KEY, _WRONG_TAG, _SIMPLE, _FLOAT, _DEPTH, _NOT_UTF8, _STRAY_BREAK, _CHUNK,
    _OPENED,
) = range(3, 16)  # fmt: skip
"""The last, _OPENED, is not a fault: a container has begun, or goes on."""

# What an open container waits for.
cython.declare(_IN_ARRAY=cython.int, _AT_KEY=cython.int, _AT_VALUE=cython.int, _TAGGED=cython.int)
_IN_ARRAY, _AT_KEY, _AT_VALUE, _TAGGED = range(4)
_INLINE_KEYS = cython.declare(cython.int, 16)
"""Up to this many keys of a map are compared one by one; for more, or for keys in several forms, a set is built."""


@cython.final
@cython.cclass
class _Open:
    """The profile, and the containers that are open around the current item.

    The innermost container is at `level`; levels count from 1, and 0 means that none is open.
    """

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
    """Where the current item begins: the position that a fault reports."""
    level: cython.Py_ssize_t
    memory: Any
    """One allocation for all columns below, which have an entry for each level."""
    states: cython.p_longlong
    left: cython.p_longlong
    """Items or pairs that are still to come, or -1 if the length is indefinite."""
    starts: cython.p_longlong
    key_counts: cython.p_longlong
    """Number of keys in `key_begins`, or -1 if the keys are in `key_sets`."""
    key_marks: cython.p_longlong
    """A Bloom filter of the keys, from two bytes of each: a key whose bit is not set differs from all before it."""
    key_begins: cython.p_longlong
    key_ends: cython.p_longlong
    """Spans of _INLINE_KEYS keys for each level; in a profile with sorted keys, of the last key only."""
    key_sets: list  # type: ignore[type-arg]
    """For each level the set of its keys, if it was built."""

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
        self.left = longlongs_at(self.states, levels)
        self.starts = longlongs_at(self.states, 2 * levels)
        self.key_counts = longlongs_at(self.states, 3 * levels)
        self.key_marks = longlongs_at(self.states, 4 * levels)
        self.key_begins = longlongs_at(self.states, 5 * levels)
        self.key_ends = longlongs_at(self.key_begins, _INLINE_KEYS * levels)
        self.key_sets = [None] * (depth + 1)


def check(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t, profile: Any) -> tuple[str, int]:
    """Validates the item at `begin`: ("", its end), or (name of the fault, its position).

    `profile` is a `tensorglot.wire.cbor.Profile`. Reads no byte at or behind `end`.
    """
    if not 0 <= begin <= end <= len(data):
        return "ends", begin
    # Each level of nesting takes at least a byte: short input needs no more levels, whatever the profile allows.
    around: _Open = _Open(data, end, profile, max(0, min(profile.depth, end - begin)))
    p: cython.p_uchar = data
    pos: cython.Py_ssize_t = begin
    item_end: cython.Py_ssize_t
    outcome: cython.int
    # Invariant: the bytes before `pos` are the heads of the open containers and complete, valid items inside them.
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
    """The end of the item whose head ends at `pos`; -_OPENED if it is a container with items; or a negated fault."""
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
    """Checks a head whose additional information is 24 or more: a longer argument, or an indefinite length."""
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
    """Whether a head is the shortest for its argument (§4.2.1). False for an indefinite length."""
    if info < 24:
        return True
    # One byte is for arguments of 24 to 255. A wider argument is needed if its upper half is not zero.
    return info < 28 and argument >= 24 and (info == 24 or argument >> (4 << (info - 24)) != 0)


@cython.cfunc
@cython.exceptval(check=False)
def _check_key_kind(around: _Open, head: cython.uchar) -> cython.int:
    """Whether the profile allows a key with this head, which is not a text's."""
    if head == BREAK:  # ends the map instead
        return OK
    if around.text_keys:
        return _KEY
    if not around.any_keys and (ARRAY <= head >> 5 <= TAG or head >= 0xF9):  # from 0xF9 on: floats
        return _KEY
    return OK


@cython.cfunc
@cython.inline
def _check_content(
    around: _Open, major: cython.int, pos: cython.Py_ssize_t, argument: cython.ulonglong
) -> cython.Py_ssize_t:
    """The end of a string of definite length whose content begins at `pos`, or a negated fault."""
    end: cython.Py_ssize_t
    if argument > cython.cast(cython.ulonglong, around.end - pos):
        return -ENDS
    end = pos + cython.cast(cython.Py_ssize_t, argument)
    if major == TEXT and not is_ascii(around.p, pos, end) and invalid_utf8(around.p, pos, end) >= 0:
        return -_NOT_UTF8  # §3.1, major type 3
    return end


@cython.cfunc
def _check_chunks(around: _Open, major: cython.int, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The end of a string of indefinite length whose chunks begin at `pos` (§3.2.3), or a negated fault."""
    begin: cython.Py_ssize_t = around.start
    head: cython.uchar
    argument: cython.ulonglong
    # Invariant: the chunks before `pos` are valid strings of definite length and of the same major type.
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
    """Opens an array, a map or a tag: _OPENED, OK if it is empty, or a fault."""
    major: cython.int = head >> 5
    level: cython.Py_ssize_t = around.level + 1
    counted: cython.bint = major != TAG and head & 31 != OPEN_ENDED
    # An item takes at least one byte, a pair two, so a count beyond that is refused before anything is done for it.
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
    """A break: closes the innermost container, which must be of indefinite length and not wait for a value."""
    if around.level == 0 or around.left[around.level] != -1 or around.states[around.level] == _AT_VALUE:
        return _STRAY_BREAK
    around.start = around.starts[around.level]
    around.level -= 1
    return OK


@cython.cfunc
@cython.inline
def _complete(around: _Open, pos: cython.Py_ssize_t) -> cython.int:
    """Counts a complete item in its containers: _OPENED if one goes on, OK if the root is complete, or a fault."""
    level: cython.Py_ssize_t = around.level
    # Invariant: the item from around.start to `pos` is complete. If it is the last of its container, that is the
    # complete item of the next turn.
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
    """§4.2.1: keys are in the lexicographic order of their encodings, so only the predecessor is compared."""
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
    """§5.6: no duplicate keys, even if they are encoded differently."""
    count: cython.Py_ssize_t = around.key_counts[around.level]
    slot: cython.Py_ssize_t = around.level * _INLINE_KEYS
    size: cython.Py_ssize_t = end - around.start
    i: cython.Py_ssize_t
    mark: cython.longlong
    if 0 <= count < _INLINE_KEYS and around.p[around.start] & 31 < 24:
        # Keys whose heads are one byte are equal if and only if their encodings are.
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
    """The same with a set of decoded keys, for many keys or for keys with longer heads."""
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
    """A validated key as a Python value: equal if and only if the keys are, however they are encoded."""
    p: cython.p_uchar = data
    pos: cython.Py_ssize_t = head_end(p, begin, end)
    major: cython.int = p[begin] >> 5
    if major != BYTES and major != TEXT:
        return major, argument_of(p, begin, pos)
    if p[begin] & 31 != OPEN_ENDED:
        return major, data[pos:end]
    chunks: list[bytes] = []
    # Invariant: `pos` is the head of a chunk or the break; the string was validated, so both lie before `end`.
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
    """Negative, 0 or positive as the bytes of the span sort before, equal to or after those of the current item."""
    size: cython.Py_ssize_t = item_end - around.start
    order: cython.int
    if cython.compiled:
        order = around.p[begin] - around.p[around.start]  # most keys differ in length, and so in their first byte
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
    if info == 24 and argument < 32:  # §3.3: these values are encoded in one byte only
        return RESERVED
    return OK if around.simple or 20 <= argument <= 22 else _SIMPLE  # 20 to 22: false, true, null


@cython.cfunc
@cython.exceptval(check=False)
def _has_float_form(around: _Open, info: cython.int, bits: cython.ulonglong) -> cython.bint:
    """Whether the profile allows this float; `info` is 25, 26 or 27 for two, four or eight bytes."""
    special: cython.bint = (bits >> 10) & 0x1F == 0x1F if info == 25 else (bits >> 23) & 0xFF == 0xFF
    if info == 27:
        special = (bits >> 52) & 0x7FF == 0x7FF
    if (around.double_floats and info != 27) or (special and not around.nonfinite):
        return False
    if around.shortest_floats:  # §4.2.1
        if info == 25:  # 0x7E00 is the one NaN that the deterministic encoding allows
            return not special or bits & 0x3FF == 0 or bits == 0x7E00
        return not (_is_narrower(bits, 32, 23, 10, -14) if info == 26 else _is_narrower(bits, 64, 52, 23, -126))
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _is_narrower(
    bits: cython.ulonglong, width: cython.int, fraction_bits: cython.int, half_bits: cython.int, least: cython.int
) -> cython.bint:
    """Whether a float of `width` bits can be encoded exactly in half the width. NaN and infinities can.

    The narrower format has `half_bits` bits of fraction, and `least` is the smallest exponent
    of its normal numbers.
    """
    exponents: cython.longlong = (1 << (width - 1 - fraction_bits)) - 1
    exponent: cython.longlong = ((bits >> fraction_bits) & exponents) - (exponents >> 1)
    fraction: cython.ulonglong = bits & ((cython.cast(cython.ulonglong, 1) << fraction_bits) - 1)
    if exponent > exponents >> 1:  # NaN or infinity
        return True
    if exponent == -(exponents >> 1):  # zero can; a subnormal is too small
        return fraction == 0
    if exponent > 1 - least or exponent < least - half_bits:
        return False
    # Fraction bits that the narrower format lacks must be zero; a subnormal there lacks more of them.
    spare: cython.longlong = fraction_bits - half_bits + max(0, least - exponent)
    return fraction & ((cython.cast(cython.ulonglong, 1) << spare) - 1) == 0
