"""CBOR (RFC 8949): one walker, and the three things that are done with it.

`Walk.head` is the only place where a head is decoded. On it stand

    check   whether bytes are one item in the forms that a profile allows
    skip    where an item ends
    scan    maps of known fields to columns, as a table of the fields says

`check` decides grammar and strictness once: heads, lengths against the bytes that are
left, nesting, order and uniqueness of keys, floats, tags, UTF-8. Whoever reads
afterwards walks bytes that are known to be good. No loop here recurses over nesting,
none makes an object for what it passes: hostile bytes cost time in proportion to their
number and almost no memory.

Knows bytes and columns; what the fields of a map mean is the caller's.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcmp
    from cython.cimports.tensorglot.kernels.primitives import invalid_utf8, is_ascii, longlongs_of, same, zero_byte
else:
    from tensorglot.kernels.primitives import invalid_utf8, is_ascii, longlongs_of, same, zero_byte

FAULTS = (
    "", "ends", "reserved", "indefinite", "shortest", "order", "duplicate", "key", "tag", "simple", "float", "depth",
    "utf8", "break", "chunk", "not uint", "not text", "not array", "not map", "not pair", "name", "digest", "missing",
)  # fmt: skip
"""What is wrong, by code. The names below are those codes for the compiler."""
cython.declare(
    _OK=cython.int, _ENDS=cython.int, _RESERVED=cython.int, _INDEFINITE=cython.int, _LONG=cython.int,
    _ORDER=cython.int, _DUPLICATE=cython.int, _KEY=cython.int, _WRONG_TAG=cython.int, _SIMPLE=cython.int,
    _FLOAT=cython.int, _DEPTH=cython.int, _NOT_UTF8=cython.int, _STRAY_BREAK=cython.int, _CHUNK=cython.int,
    _NOT_UINT=cython.int, _NOT_TEXT=cython.int, _NOT_ARRAY=cython.int, _NOT_MAP=cython.int, _NOT_PAIR=cython.int,
    _NOT_NAME=cython.int, _NOT_DIGEST=cython.int, _MISSING=cython.int, _OPENED=cython.int,
)  # fmt: skip
(
    _OK, _ENDS, _RESERVED, _INDEFINITE, _LONG, _ORDER, _DUPLICATE, _KEY, _WRONG_TAG, _SIMPLE, _FLOAT, _DEPTH,
    _NOT_UTF8, _STRAY_BREAK, _CHUNK, _NOT_UINT, _NOT_TEXT, _NOT_ARRAY, _NOT_MAP, _NOT_PAIR, _NOT_NAME, _NOT_DIGEST,
    _MISSING, _OPENED,
) = range(24)  # fmt: skip
"""The last is no fault: more of a container is to come."""

cython.declare(_UINT=cython.int, _BYTES=cython.int, _TEXT=cython.int, _ARRAY=cython.int, _MAP=cython.int)
cython.declare(_TAG=cython.int, _SPECIAL=cython.int)
_UINT, _BYTES, _TEXT, _ARRAY, _MAP, _TAG, _SPECIAL = 0, 2, 3, 4, 5, 6, 7
_OPEN_ENDED = cython.declare(cython.int, 31)
"""The additional information of an indefinite length, and of the break that ends it."""
_BREAK = cython.declare(cython.int, 0xFF)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _head_end(p: cython.p_uchar, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the head at `pos` ends (§3), or minus a fault."""
    info: cython.int
    if pos >= end:
        return -_ENDS
    info = p[pos] & 31
    if info < 24 or info == _OPEN_ENDED:
        return pos + 1
    if info > 27:
        return -_RESERVED
    return pos + 1 + (1 << (info - 24)) if end - pos > 1 << (info - 24) else -_ENDS


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _argument(p: cython.p_uchar, pos: cython.Py_ssize_t, head_end: cython.Py_ssize_t) -> cython.ulonglong:
    """The argument of the head at `pos`; 31 of an indefinite length."""
    argument: cython.ulonglong = 0
    if head_end == pos + 1:
        return p[pos] & 31
    while pos + 1 < head_end:
        pos += 1
        argument = (argument << 8) | p[pos]
    return argument


@cython.cfunc
@cython.exceptval(check=False)
def _is_shortest(info: cython.int, argument: cython.ulonglong) -> cython.bint:
    """Whether a head has the one form that §4.2.1 leaves to its argument; no string of indefinite length has."""
    if info < 24:
        return True
    # A byte is for 24 to 255; a wider argument has a bit in its upper half.
    return info < 28 and argument >= 24 and (info == 24 or argument >> (4 << (info - 24)) != 0)


@cython.final
@cython.cclass
class Walk:
    """A position in checked bytes, and the head that was read last."""

    data: bytes
    p: cython.p_uchar
    end: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    start: cython.Py_ssize_t
    """Where the item at hand begins: what a fault is reported for."""
    major: cython.int
    info: cython.int
    argument: cython.ulonglong

    def __init__(self, data: bytes, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> None:
        self.data = data
        self.p = data
        self.end = end
        self.pos = self.start = pos
        self.major = self.info = 0
        self.argument = 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def head(self) -> cython.int:
        """Reads the head at the position."""
        begin: cython.Py_ssize_t = self.pos
        end: cython.Py_ssize_t = _head_end(self.p, begin, self.end)
        self.start = begin
        if end < 0:
            return cython.cast(cython.int, -end)
        self.major = self.p[begin] >> 5
        self.info = self.p[begin] & 31
        self.argument = _argument(self.p, begin, end)
        self.pos = end
        return _OK

    @cython.cfunc
    @cython.exceptval(check=False)
    def content(self) -> cython.int:
        """Passes over the bytes of a string of definite length, whose head was read."""
        if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
            return _ENDS
        self.pos += cython.cast(cython.Py_ssize_t, self.argument)
        return _OK

    @cython.cfunc
    @cython.exceptval(check=False)
    def at_break(self) -> cython.bint:
        """Whether a break follows."""
        return self.pos < self.end and self.p[self.pos] == _BREAK

    @cython.cfunc
    def skip(self) -> cython.int:
        """Passes over one item, of whatever form: OK, or a fault in bytes that were not checked."""
        fault: cython.int
        begin: cython.Py_ssize_t = self.pos
        left: cython.ulonglong = 1  # items to come; 0 where only a break ends them
        outer: Any = None  # `left` of what is around each container of indefinite length
        # Invariant: the item ends behind `left` more items and, where there is an outer one, its break.
        while left > 0 or outer:
            fault = self.head()
            if fault != _OK:
                return fault
            if self.info == _OPEN_ENDED and self.major != _SPECIAL:
                outer = [] if outer is None else outer
                outer.append(left)
                left = 0
                continue
            if self.info == _OPEN_ENDED:
                if not outer:
                    return _STRAY_BREAK
                left = outer.pop()
            if left > 0:
                left -= 1
            if self.major == _BYTES or self.major == _TEXT:
                fault = self.content()
                if fault != _OK:
                    return fault
            elif self.major == _ARRAY or self.major == _MAP:
                if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
                    return _ENDS
                left += self.argument * (2 if self.major == _MAP else 1)
            elif self.major == _TAG:
                left += 1
        self.start = begin
        return _OK


def head(data: bytes, pos: cython.Py_ssize_t) -> tuple[int, int, int, int]:
    """The head at `pos` of checked bytes: major type, additional information, argument, and where it ends."""
    walk: Walk = Walk(data, pos, len(data))
    if pos < 0 or walk.head() != _OK:
        raise IndexError(pos)
    return walk.major, walk.info, walk.argument, walk.pos


def skip(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the item at `begin` ends, in bytes that have been checked; -1 if they have not."""
    walk: Walk = Walk(data, begin, end)
    if not 0 <= begin <= end <= len(data) or walk.skip() != _OK:
        return -1
    return walk.pos


# Checking.

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
        pos = _head_end(p, begin, end)
        if pos < 0:
            return FAULTS[-pos], begin
        item_end = _check_item(around, p[begin], pos, _argument(p, begin, pos))
        if item_end == -_OPENED:
            continue
        if item_end < 0:
            return FAULTS[-item_end], around.start
        pos = item_end
        outcome = _complete(around, pos)
        if outcome == _OK:
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
    fault: cython.int = _OK
    if head & 31 >= 24:
        fault = _check_form(around, head, argument)
    if fault == _OK and major != _TEXT and around.level > 0 and around.states[around.level] == _AT_KEY:
        fault = _check_key_kind(around, head)
    if fault != _OK:
        return -fault
    if _BYTES <= major <= _TEXT:
        if head & 31 == _OPEN_ENDED:
            return _check_chunks(around, major, pos)
        return _check_content(around, major, pos, argument)
    if major <= 1:
        return pos
    if major <= _TAG:
        fault = _open(around, head, pos, argument)
    elif head == _BREAK:
        fault = _close(around)
    else:
        fault = _check_special(around, head & 31, argument)
    return pos if fault == _OK else -fault


@cython.cfunc
@cython.exceptval(check=False)
def _check_form(around: _Open, head: cython.uchar, argument: cython.ulonglong) -> cython.int:
    """Whether the profile allows a head of more than one byte, or an indefinite length."""
    major: cython.int = head >> 5
    if head & 31 == _OPEN_ENDED:
        if not around.indefinite:  # §4.2.1
            return _INDEFINITE
        return _RESERVED if major <= 1 or major == _TAG else _OK  # §3.2
    if major != _SPECIAL and not around.long_heads and not _is_shortest(head & 31, argument):  # §4.2.1
        return _LONG
    return _OK


@cython.cfunc
@cython.exceptval(check=False)
def _check_key_kind(around: _Open, head: cython.uchar) -> cython.int:
    """Whether a head that is not that of a text may begin a key."""
    if head == _BREAK:
        return _OK
    if around.text_keys:
        return _KEY
    if not around.any_keys and (_ARRAY <= head >> 5 <= _TAG or head >= 0xF9):  # the first of the floats
        return _KEY
    return _OK


@cython.cfunc
@cython.inline
def _check_content(
    around: _Open, major: cython.int, pos: cython.Py_ssize_t, argument: cython.ulonglong
) -> cython.Py_ssize_t:
    """The content of a string of definite length from `pos` on: where it ends, or minus a fault."""
    end: cython.Py_ssize_t
    if argument > cython.cast(cython.ulonglong, around.end - pos):
        return -_ENDS
    end = pos + cython.cast(cython.Py_ssize_t, argument)
    if major == _TEXT and not is_ascii(around.p, pos, end) and invalid_utf8(around.p, pos, end) >= 0:
        return -_NOT_UTF8  # §3.1, major type 3
    return end


@cython.cfunc
def _check_chunks(around: _Open, major: cython.int, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The chunks of a string of indefinite length (§3.2.3): where it ends, or minus a fault."""
    begin: cython.Py_ssize_t = around.start
    head: cython.uchar
    argument: cython.ulonglong
    # Invariant: the chunks before `pos` are strings of definite length, of the kind of the whole.
    while pos < around.end and around.p[pos] != _BREAK:
        around.start = pos
        head = around.p[pos]
        if head >> 5 != major or head & 31 > 27:
            return -_CHUNK
        pos = _head_end(around.p, pos, around.end)
        if pos < 0:
            return pos
        argument = _argument(around.p, around.start, pos)
        if not around.long_heads and not _is_shortest(head & 31, argument):
            return -_LONG
        pos = _check_content(around, major, pos, argument)
        if pos < 0:
            return pos
    if pos >= around.end:
        around.start = pos
        return -_ENDS
    around.start = begin
    return pos + 1


@cython.cfunc
def _open(around: _Open, head: cython.uchar, pos: cython.Py_ssize_t, argument: cython.ulonglong) -> cython.int:
    """An array, a map or a tag: OPENED, or OK where it is empty."""
    major: cython.int = head >> 5
    level: cython.Py_ssize_t = around.level + 1
    counted: cython.bint = major != _TAG and head & 31 != _OPEN_ENDED
    # Every item takes a byte, every pair two.
    if counted and argument > cython.cast(cython.ulonglong, (around.end - pos) >> (major - _ARRAY)):
        return _ENDS
    if major == _TAG and around.tags is not None and argument not in around.tags:
        return _WRONG_TAG
    if level > around.depth:
        return _DEPTH
    if counted and argument == 0:
        return _OK
    around.level = level
    around.starts[level] = around.start
    around.states[level] = _AT_KEY if major == _MAP else _TAGGED if major == _TAG else _IN_ARRAY
    around.left[level] = cython.cast(cython.longlong, argument) if counted else 1 if major == _TAG else -1
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
    return _OK


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
    return _OK


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
    walk: Walk = Walk(data, begin, end)
    walk.head()
    major: cython.int = walk.major
    if major != _BYTES and major != _TEXT:
        return major, walk.argument
    if walk.info != _OPEN_ENDED:
        return major, data[walk.pos : end]
    chunks: list[bytes] = []
    while not walk.at_break():
        walk.head()
        begin = walk.pos
        walk.content()
        chunks.append(data[begin : walk.pos])
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
        return _OK if _has_float_form(around, info, argument) else _FLOAT
    if info == 24 and argument < 32:
        return _RESERVED
    return _OK if around.simple or 20 <= argument <= 22 else _SIMPLE


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


# Scanning.

KINDS = ("name", "uint", "text", "digest", "word", "shape", "pair", "attributes", "parts", "silent", "mark")
"""What the value of a field is, and what it becomes. Positions are those of items; 0 is absent.

    name         text: two numbers, where its bytes begin and end
    uint         an unsigned integer: a number, 2**63 - 1 for all that are larger
    text         text: its position
    digest       text that is an algorithm, a colon and hex in lower case: its position
    word         text: a code, one more than its place in the field's words, or UNKNOWN
    shape        an array of unsigned integers, the dims: two numbers, their product (-1 from 2**63 on,
                 zeros left out) and where they end in the column of dims
    pair         an array of two unsigned integers: two numbers
    attributes   a map whose keys are names: its position
    parts        a map from names to records of the other table, at least one: where they end there
    silent       text that is the field's one word says nothing; anything else makes the record CUSTOM
    mark         anything: makes the record CUSTOM and MARKED
"""
cython.declare(
    _NAME_FIELD=cython.int, _UINT_FIELD=cython.int, _TEXT_FIELD=cython.int, _DIGEST_FIELD=cython.int,
    _WORD_FIELD=cython.int, _SHAPE_FIELD=cython.int, _PAIR_FIELD=cython.int, _ATTRIBUTES_FIELD=cython.int,
    _PARTS_FIELD=cython.int, _SILENT_FIELD=cython.int, _MARK_FIELD=cython.int,
)  # fmt: skip
(
    _NAME_FIELD, _UINT_FIELD, _TEXT_FIELD, _DIGEST_FIELD, _WORD_FIELD, _SHAPE_FIELD, _PAIR_FIELD, _ATTRIBUTES_FIELD,
    _PARTS_FIELD, _SILENT_FIELD, _MARK_FIELD,
) = range(len(KINDS))  # fmt: skip
UNKNOWN = 255
"""The code of a word that is not in its table."""
CUSTOM = 1
"""A flag: the record has fields beside the known ones."""
MARKED = 2
_UNKNOWN = cython.declare(cython.uchar, UNKNOWN)
_CUSTOM = cython.declare(cython.uchar, CUSTOM)
_MARKED = cython.declare(cython.uchar, MARKED)

_LARGEST = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class _Table:
    """A record and its columns, ready for the loop."""

    held: tuple  # type: ignore[type-arg]
    """What the pointers point into."""
    title: str
    names: list  # type: ignore[type-arg]
    texts: bytes
    """The keys, then the words of each field, one behind the other, in the shortest form."""
    p: cython.p_uchar
    text_begins: cython.p_longlong
    first_words: cython.p_longlong
    """Field i has the words first_words[i] up to first_words[i + 1] of the texts."""
    kinds: cython.p_longlong
    number_columns: cython.p_longlong
    code_columns: cython.p_longlong
    likely_fields: cython.p_longlong
    """The field that came last time behind each field; the first one is that which came first."""
    likely_words: cython.p_longlong
    required: cython.ulonglong
    count: cython.int
    named: cython.bint
    text_keys: cython.bint
    name_nbytes: cython.Py_ssize_t
    numbers: cython.longlong[:, ::1]
    codes: cython.uchar[:, ::1]
    room: cython.Py_ssize_t
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    """The row to be filled: `row`, or the spare one."""

    def __init__(self, columns: Any) -> None:
        record = columns.record
        self.title = record.title
        self.names = record.keys
        self.texts = record.texts
        self.p = self.texts
        self.text_begins = longlongs_of(record.text_begins)
        self.first_words = longlongs_of(record.first_words)
        self.kinds = longlongs_of(record.kinds)
        self.number_columns = longlongs_of(record.number_columns)
        self.code_columns = longlongs_of(record.code_columns)
        self.count = len(record.keys)
        first: cython.int = 1 if record.named else 0
        fields = array("q", [min(first + i, self.count - 1) for i in range(self.count + 1)])
        words = array("q", record.first_words)
        self.likely_fields = longlongs_of(fields)
        self.likely_words = longlongs_of(words)
        self.held = record, fields, words
        self.required = record.required
        self.named = record.named
        self.text_keys = record.text_keys
        self.name_nbytes = record.name_nbytes
        self.numbers = memoryview(columns.numbers)
        self.codes = memoryview(columns.codes)
        self.room = columns.rows
        self.row = 0
        self.at = 0


@cython.final
@cython.cclass
class _Scan:
    """A walk that fills tables."""

    walk: Walk
    parts: _Table
    dims: cython.longlong[::1]
    filled: cython.Py_ssize_t
    """Dims so far; those without room are only counted."""
    key: str
    """The field at hand."""
    joined: bytearray
    text_begin: cython.Py_ssize_t
    text_end: cython.Py_ssize_t
    """The text that was read last: a span of the data, or behind it of `joined`."""

    def __init__(self, walk: Walk, parts: Any, dims: Any) -> None:
        self.walk = walk
        self.parts = parts
        self.dims = memoryview(dims)
        self.filled = 0
        self.key = ""
        self.joined = bytearray()
        self.text_begin = self.text_end = 0


def scan(
    data: bytes, begin: cython.Py_ssize_t, count: cython.Py_ssize_t, columns: Any, parts: Any, dims: Any
) -> tuple[str, int, str, int, int, int, bytes]:
    """Scans `count` records of checked bytes, the first at `begin`.

    `columns` takes the records, `parts` those inside them, `dims` the shapes of all; what
    has no room there is only counted. Returns the fault; where it is, or where the last
    record ends; the field and the record at fault; how many parts and dims there are; and
    the texts that lie in chunks, joined: the columns have them as if they stood behind
    the data.
    """
    walk: Walk = Walk(data, begin, len(data))
    table: _Table = _Table(columns)
    inner: _Table = _Table(parts)
    state: _Scan = _Scan(walk, inner, dims)
    fault: cython.int = _OK if begin >= 0 else _ENDS
    # Invariant: the records before table.row are in the columns, as far as they have room.
    while fault == _OK and table.row < count:
        fault = _scan_record(state, table)
    position = walk.pos if fault == _OK else walk.start
    return FAULTS[fault], position, state.key, table.row, inner.row, state.filled, bytes(state.joined)


@cython.cfunc
def _scan_record(state: _Scan, table: _Table) -> cython.int:
    """One map, behind its name where it has one."""
    walk: Walk = state.walk
    begin: cython.Py_ssize_t = walk.pos
    pairs: cython.Py_ssize_t
    field: cython.int
    last: cython.int = 0  # one more than the field before
    fault: cython.int = _OK
    seen: cython.ulonglong = 0
    table.at = table.row if table.row < table.room else table.room
    table.numbers[0, table.at] = begin
    if table.named:
        seen = 1
        fault = _scan_name(state, table)
    pairs = _open_items(walk, _MAP) if fault == _OK else 0
    if pairs < -1:
        fault = _NOT_MAP
    if fault != _OK:
        return _blame(state, fault, table.title)
    # Invariant: `pairs` are left, or -1 where a break ends them; the fields before are in `seen` and in the row.
    while _has_more(walk, pairs):
        pairs = pairs - 1 if pairs > 0 else pairs
        field = _find_field(state, table, last)
        if field < 0:
            if field == _NO_TEXT and table.text_keys:
                return _blame(state, _NOT_TEXT, "key")
            table.codes[0, table.at] |= _CUSTOM
            fault = walk.skip()
        else:
            table.likely_fields[last] = field
            last = field + 1
            seen |= cython.cast(cython.ulonglong, 1) << field
            fault = _scan_value(state, table, field)
        if fault != _OK:
            return _blame(state, fault, table.names[field] if field >= 0 else "key")
    if table.required & ~seen:
        walk.start = begin
        return _blame(state, _MISSING, _first_missing(table, seen))
    table.row += 1
    return _OK


@cython.cfunc
def _first_missing(table: _Table, seen: cython.ulonglong) -> str:
    field: cython.int = 0
    while not (table.required & ~seen) >> field & 1:
        field += 1
    name: str = table.names[field]
    return name


@cython.cfunc
def _blame(state: _Scan, fault: cython.int, key: str) -> cython.int:
    """Notes the field of a fault, the innermost one."""
    if not state.key:
        state.key = key
    return fault


_NO_FIELD = cython.declare(cython.int, -1)
_NO_TEXT = cython.declare(cython.int, -2)


@cython.cfunc
def _find_field(state: _Scan, table: _Table, last: cython.int) -> cython.int:
    """Reads a key and returns its field, _NO_FIELD for an unknown text, or _NO_TEXT if it is not text."""
    walk: Walk = state.walk
    likely: cython.int = cython.cast(cython.int, table.likely_fields[last])
    i: cython.int
    if _take(walk, table, likely):
        return likely
    if _read_text(state) != _OK:
        walk.skip()
        return _NO_TEXT
    for i in range(1 if table.named else 0, table.count):
        if _equals(state, table, i):
            return i
    return _NO_FIELD


@cython.cfunc
def _scan_name(state: _Scan, table: _Table) -> cython.int:
    """The name in front of a record, the first field. One that is in its table of words is a name."""
    fault: cython.int
    if table.kinds[0] == _WORD_FIELD and _take(state.walk, table, table.likely_words[0]):
        table.codes[table.code_columns[0], table.at] = 1 + cython.cast(
            cython.uchar, table.likely_words[0] - table.first_words[0]
        )
        return _OK
    fault = _scan_value(state, table, 0)
    return _check_name(state, table.name_nbytes) if fault == _OK else fault


@cython.cfunc
def _scan_value(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    """The value of a field, into the row."""
    walk: Walk = state.walk
    kind: cython.longlong = table.kinds[field]
    column: cython.Py_ssize_t = table.number_columns[field]
    fault: cython.int
    if kind == _WORD_FIELD:
        return _scan_word(state, table, field)
    if kind == _UINT_FIELD:
        fault = _read_uint(walk)
        table.numbers[column, table.at] = _bounded(walk.argument)
        return fault
    if kind == _NAME_FIELD:
        fault = _read_text(state)
        table.numbers[column, table.at] = state.text_begin
        table.numbers[column + 1, table.at] = state.text_end
        return fault
    if kind == _SHAPE_FIELD:
        return _scan_shape(state, table, column)
    if kind == _PAIR_FIELD:
        return _scan_pair(walk, table, column)
    if kind == _PARTS_FIELD:
        return _scan_parts(state, table, field)
    if kind >= _SILENT_FIELD:
        return _scan_custom(state, table, field)
    table.numbers[column, table.at] = walk.pos
    if kind == _ATTRIBUTES_FIELD:
        return _scan_attributes(state, table.name_nbytes)
    fault = _read_text(state)
    return _NOT_DIGEST if fault == _OK and kind == _DIGEST_FIELD and not _is_digest(state) else fault


@cython.cfunc
def _scan_word(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    walk: Walk = state.walk
    first: cython.Py_ssize_t = table.first_words[field]
    i: cython.Py_ssize_t = table.likely_words[field]
    column: cython.Py_ssize_t = table.code_columns[field]
    fault: cython.int
    if _take(walk, table, i):
        table.codes[column, table.at] = cython.cast(cython.uchar, i - first + 1)
        return _OK
    fault = _read_text(state)
    if fault != _OK:
        return fault
    table.codes[column, table.at] = _UNKNOWN
    for i in range(first, table.first_words[field + 1]):
        if _equals(state, table, i):
            table.codes[column, table.at] = cython.cast(cython.uchar, i - first + 1)
            table.likely_words[field] = i
            break
    return _OK


@cython.cfunc
def _scan_shape(state: _Scan, table: _Table, column: cython.Py_ssize_t) -> cython.int:
    walk: Walk = state.walk
    left: cython.Py_ssize_t = _open_items(walk, _ARRAY)
    fault: cython.int
    product: cython.ulonglong = 1
    empty: cython.bint = False
    large: cython.bint = False
    if left < -1:
        return _NOT_ARRAY
    # Invariant: `product` is that of the dims before, zeros left out, and below 2**63; or `large` is true.
    while _has_more(walk, left):
        left = left - 1 if left > 0 else left
        fault = _read_uint(walk)
        if fault != _OK:
            return fault
        if walk.argument == 0:
            empty = True
        elif large or walk.argument > _LARGEST // product:
            large = True
        else:
            product *= walk.argument
        if state.filled < state.dims.shape[0]:
            state.dims[state.filled] = _bounded(walk.argument)
        state.filled += 1
    table.numbers[column, table.at] = -1 if large else 0 if empty else cython.cast(cython.longlong, product)
    table.numbers[column + 1, table.at] = state.filled
    return _OK


@cython.cfunc
@cython.exceptval(check=False)
def _scan_pair(walk: Walk, table: _Table, column: cython.Py_ssize_t) -> cython.int:
    left: cython.Py_ssize_t = _open_items(walk, _ARRAY)
    begin: cython.Py_ssize_t = walk.start
    count: cython.Py_ssize_t = 0
    fault: cython.int
    if left < -1:
        return _NOT_ARRAY
    # Invariant: the first two of the `count` numbers before are in the row.
    while _has_more(walk, left):
        left = left - 1 if left > 0 else left
        fault = _read_uint(walk)
        if fault != _OK:
            return fault
        if count < 2:
            table.numbers[column + count, table.at] = _bounded(walk.argument)
        count += 1
    walk.start = begin
    return _OK if count == 2 else _NOT_PAIR


@cython.cfunc
def _scan_parts(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    walk: Walk = state.walk
    left: cython.Py_ssize_t = _open_items(walk, _MAP)
    first: cython.Py_ssize_t = state.parts.row
    fault: cython.int
    if left < -1:
        return _NOT_MAP
    # Invariant: the records from `first` on are parts of this row.
    while _has_more(walk, left):
        left = left - 1 if left > 0 else left
        fault = _scan_record(state, state.parts)
        if fault != _OK:
            return fault
    table.numbers[table.number_columns[field], table.at] = state.parts.row
    if state.parts.row == first:
        walk.start = table.numbers[0, table.at]
        return _MISSING
    return _OK


@cython.cfunc
def _scan_attributes(state: _Scan, name_nbytes: cython.Py_ssize_t) -> cython.int:
    walk: Walk = state.walk
    left: cython.Py_ssize_t = _open_items(walk, _MAP)
    fault: cython.int
    if left < -1:
        return _NOT_MAP
    # Invariant: the walk is before a key, and the pairs before it are checked; `left` pairs follow (-1: until a break).
    while _has_more(walk, left):
        left = left - 1 if left > 0 else left
        fault = _read_text(state)
        if fault == _OK:
            fault = _check_name(state, name_nbytes)
        if fault == _OK:
            fault = walk.skip()
        if fault != _OK:
            return fault
    return _OK


def scan_attributes(data: bytes, begin: cython.Py_ssize_t, name_nbytes: cython.Py_ssize_t) -> tuple[str, int]:
    """Passes over a map of checked bytes whose keys are names: ("", where it ends), or (what is wrong, where)."""
    state: _Scan = _Scan(Walk(data, begin, len(data)), None, array("q"))
    fault: cython.int = _scan_attributes(state, name_nbytes) if begin >= 0 else _ENDS
    return FAULTS[fault], state.walk.pos if fault == _OK else state.walk.start


@cython.cfunc
def _scan_custom(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    walk: Walk = state.walk
    begin: cython.Py_ssize_t = walk.pos
    word: cython.Py_ssize_t = table.first_words[field]
    if table.kinds[field] == _MARK_FIELD:
        table.codes[0, table.at] |= _MARKED
    elif _take(walk, table, word) or (_read_text(state) == _OK and _equals(state, table, word)):
        return _OK
    walk.pos = begin
    table.codes[0, table.at] |= _CUSTOM
    return walk.skip()


@cython.cfunc
@cython.exceptval(check=False)
def _open_items(walk: Walk, major: cython.int) -> cython.Py_ssize_t:
    """How many items or pairs an array or map has, -1 where a break ends them; -2 for another kind."""
    if walk.head() != _OK or walk.major != major:
        return -2
    return -1 if walk.info == _OPEN_ENDED else cython.cast(cython.Py_ssize_t, walk.argument & _LARGEST)


@cython.cfunc
@cython.exceptval(check=False)
def _has_more(walk: Walk, left: cython.Py_ssize_t) -> cython.bint:
    """Whether a container goes on; passes over the break that ends it."""
    if left >= 0 or walk.pos >= walk.end:
        return left > 0
    if walk.at_break():
        walk.pos += 1
        return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _read_uint(walk: Walk) -> cython.int:
    return _NOT_UINT if walk.head() != _OK or walk.major != _UINT else _OK


@cython.cfunc
@cython.exceptval(check=False)
def _bounded(argument: cython.ulonglong) -> cython.longlong:
    return cython.cast(cython.longlong, min(argument, _LARGEST))


@cython.cfunc
def _read_text(state: _Scan) -> cython.int:
    """Text of any form; where its bytes are is in the state."""
    walk: Walk = state.walk
    if walk.head() != _OK or walk.major != _TEXT:
        walk.pos = walk.start
        return _NOT_TEXT
    if walk.info == _OPEN_ENDED:
        return _join_chunks(state)
    state.text_begin = walk.pos
    state.text_end = walk.pos + cython.cast(cython.Py_ssize_t, walk.argument)
    return walk.content()


@cython.cfunc
def _join_chunks(state: _Scan) -> cython.int:
    walk: Walk = state.walk
    begin: cython.Py_ssize_t = walk.start
    first: cython.Py_ssize_t
    state.text_begin = walk.end + len(state.joined)
    # Invariant: the chunks before the position are the end of `joined`.
    while not walk.at_break():
        if walk.head() != _OK:
            return _ENDS
        first = walk.pos
        if walk.content() != _OK:
            return _ENDS
        state.joined += walk.data[first : walk.pos]
    walk.pos += 1
    walk.start = begin
    state.text_end = walk.end + len(state.joined)
    return _OK


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _take(walk: Walk, table: _Table, text: cython.Py_ssize_t) -> cython.bint:
    """Passes over a text of the table, if that is what follows."""
    begin: cython.Py_ssize_t = table.text_begins[text]
    size: cython.Py_ssize_t = table.text_begins[text + 1] - begin
    if walk.end - walk.pos < size or not same(walk.p, walk.pos, table.p, begin, size):
        return False
    walk.start = walk.pos
    walk.pos += size
    return True


@cython.cfunc
def _equals(state: _Scan, table: _Table, text: cython.Py_ssize_t) -> cython.bint:
    """Whether the text that was read last is this one of the table, whatever their heads."""
    begin: cython.Py_ssize_t = table.text_begins[text] + 1
    size: cython.Py_ssize_t = table.text_begins[text + 1] - begin
    if state.text_end - state.text_begin != size:
        return False
    if state.text_begin < state.walk.end:
        return same(state.walk.p, state.text_begin, table.p, begin, size)
    return _last_text(state) == table.texts[begin : begin + size]


@cython.cfunc
def _last_text(state: _Scan) -> bytes:
    """The text that was read last, which was in chunks."""
    end: cython.Py_ssize_t = state.walk.end
    return bytes(state.joined[state.text_begin - end : state.text_end - end])


@cython.cfunc
def _check_name(state: _Scan, most: cython.Py_ssize_t) -> cython.int:
    """The text that was read last has 1 to `most` bytes and no NUL; a bound of 0 allows all."""
    if most == 0:
        return _OK
    if not 0 < state.text_end - state.text_begin <= most:
        return _NOT_NAME
    if state.text_begin < state.walk.end:
        return _NOT_NAME if zero_byte(state.walk.p, state.text_begin, state.text_end) >= 0 else _OK
    return _NOT_NAME if b"\0" in _last_text(state) else _OK


@cython.cfunc
def _is_digest(state: _Scan) -> cython.bint:
    """Whether the text that was read last is an algorithm, a colon and lower-case hex."""
    text: bytes
    if state.text_begin < state.walk.end:
        return _has_digest_form(state.walk.p, state.text_begin, state.text_end)
    text = _last_text(state)
    return _has_digest_form(text, 0, len(text))


@cython.cfunc
@cython.exceptval(check=False)
def _has_digest_form(p: cython.p_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    i: cython.Py_ssize_t
    colon: cython.Py_ssize_t = -1
    # Invariant: before `i` there are only letters and digits, and from the colon on only hex.
    for i in range(begin, end):
        if 48 <= p[i] <= 57 or 97 <= p[i] <= (122 if colon < 0 else 102):
            continue
        if p[i] != 58 or colon >= 0 or i == begin:
            return False
        colon = i
    return 0 <= colon < end - 1
