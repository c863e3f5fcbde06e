"""Scans CBOR (RFC 8949) that `cbor_check` has validated: maps of known fields to columns, described by a table.

Does not recurse over nesting. Bytes that were not validated are safe: every position is
compared with their end, and the result is a fault at worst. The caller knows what the
fields mean.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.cbor_heads import *  # noqa: F403
    from cython.cimports.tensorglot.kernels.primitives import longlongs_of, same, zero_byte
else:
    from tensorglot.kernels.cbor_heads import (
        ARRAY,
        BREAK,
        BYTES,
        ENDS,
        MAP,
        OK,
        OPEN_ENDED,
        SPECIAL,
        TAG,
        TEXT,
        UINT,
        argument_of,
        head_end,
    )
    from tensorglot.kernels.primitives import longlongs_of, same, zero_byte

FAULTS = (
    "", "ends", "reserved", "break", "not uint", "not text", "not array", "not map", "not pair", "name", "digest",
    "missing",
)  # fmt: skip
"""Names of the faults, by code. The C constants below are these codes; `cbor_heads` has the first three."""
cython.declare(
    _STRAY_BREAK=cython.int, _NOT_UINT=cython.int, _NOT_TEXT=cython.int, _NOT_ARRAY=cython.int, _NOT_MAP=cython.int,
    _NOT_PAIR=cython.int, _NOT_NAME=cython.int, _NOT_DIGEST=cython.int, _MISSING=cython.int,
)  # fmt: skip
(
    _STRAY_BREAK, _NOT_UINT, _NOT_TEXT, _NOT_ARRAY, _NOT_MAP, _NOT_PAIR, _NOT_NAME, _NOT_DIGEST, _MISSING,
) = range(3, 12)  # fmt: skip

KINDS = ("name", "uint", "text", "digest", "word", "shape", "pair", "attributes", "parts", "silent", "mark")
"""The kinds of fields: what the value must be, and what the columns get. 0 in a column means absent.

    name         text: two numbers, the begin and end of its bytes
    uint         an unsigned integer: a number, capped at 2**63 - 1
    text         text: the position of the item
    digest       text, an algorithm, a colon and lower-case hex: the position of the item
    word         text: a code, one more than its index in the field's words, or UNKNOWN
    shape        an array of unsigned integers, the dims: two numbers. The first is their product, -1 if
                 the product of the dims that are not zero is 2**63 or more, HUGE if a dim is; the second
                 is the end of the dims in the column of dims
    pair         an array of two unsigned integers: two numbers
    attributes   a map whose keys are names: the position of the item
    parts        a map of names to records of the other table, at least one: their end in that table
    silent       ignored if it is text equal to the field's one word; otherwise sets the flag CUSTOM
    mark         anything: sets the flags CUSTOM and MARKED
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
HUGE = -2
"""The product of a shape with a dim of 2**63 or more."""
UNKNOWN = 255
"""The code of a word that is not among the field's words."""
CUSTOM = 1
"""Flag of a record: it has fields that the table does not know."""
MARKED = 2
"""Flag of a record: it has a field of the kind `mark`."""
_HUGE = cython.declare(cython.longlong, HUGE)
_UNKNOWN = cython.declare(cython.uchar, UNKNOWN)
_CUSTOM = cython.declare(cython.uchar, CUSTOM)
_MARKED = cython.declare(cython.uchar, MARKED)

_LARGEST = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class Walk:
    """A position in validated bytes, and the last head that was read."""

    data: bytes
    p: cython.p_uchar
    end: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    start: cython.Py_ssize_t
    """Where the current item begins: the position that a fault reports."""
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
        """Reads the head at the position and moves past it: OK, or a fault."""
        begin: cython.Py_ssize_t = self.pos
        end: cython.Py_ssize_t = head_end(self.p, begin, self.end)
        self.start = begin
        if end < 0:
            return cython.cast(cython.int, -end)
        self.major = self.p[begin] >> 5
        self.info = self.p[begin] & 31
        self.argument = argument_of(self.p, begin, end)
        self.pos = end
        return OK

    @cython.cfunc
    @cython.exceptval(check=False)
    def content(self) -> cython.int:
        """Skips the bytes of a string of definite length whose head was just read: OK, or a fault."""
        if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
            return ENDS
        self.pos += cython.cast(cython.Py_ssize_t, self.argument)
        return OK

    @cython.cfunc
    @cython.exceptval(check=False)
    def at_break(self) -> cython.bint:
        """Whether a break is next."""
        return self.pos < self.end and self.p[self.pos] == BREAK

    @cython.cfunc
    def skip(self) -> cython.int:
        """Skips one item of any form: OK, or a fault (only in bytes that were not validated)."""
        fault: cython.int
        begin: cython.Py_ssize_t = self.pos
        left: cython.ulonglong = 1  # items to skip; inside an indefinite length 0, until its break
        outer: Any = None  # a stack: the value of `left` outside each open container of indefinite length
        # Invariant: the item ends after `left` more items and then, for each entry of `outer`, a break and that many.
        while left > 0 or outer:
            fault = self.head()
            if fault != OK:
                return fault
            if self.info == OPEN_ENDED and self.major != SPECIAL:
                outer = [] if outer is None else outer
                outer.append(left)
                left = 0
                continue
            if self.info == OPEN_ENDED:
                if not outer:
                    return _STRAY_BREAK
                left = outer.pop()  # the container that ends here is one of these items
            if left > 0:
                left -= 1
            if self.major == BYTES or self.major == TEXT:
                fault = self.content()
                if fault != OK:
                    return fault
            elif self.major == ARRAY or self.major == MAP:
                if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
                    return ENDS
                left += self.argument * (2 if self.major == MAP else 1)
            elif self.major == TAG:
                left += 1
        self.start = begin
        return OK


def skip(data: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The end of the item at `begin`, or -1 if the bytes are not valid CBOR."""
    walk: Walk = Walk(data, begin, end)
    if not 0 <= begin <= end <= len(data) or walk.skip() != OK:
        return -1
    return walk.pos


def count_items(data: bytes, begin: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The number of items from `begin` to the break that follows them; -1 if the bytes are not valid CBOR."""
    walk: Walk = Walk(data, begin, len(data))
    count: cython.Py_ssize_t = 0
    if not 0 <= begin <= len(data):
        return -1
    while not walk.at_break():
        if walk.skip() != OK:
            return -1
        count += 1
    return count


def fields(data: bytes, begin: cython.Py_ssize_t) -> tuple[dict[str, int], int, int]:
    """The keys of the map at `begin` that are text, each with the position of its value.

    Also the position of the first other key, or -1; and the end of the map, or -1 if an item is not valid CBOR.
    """
    walk: Walk = Walk(data, begin, len(data))
    found: dict[str, int] = {}
    other: cython.Py_ssize_t = -1
    key: cython.Py_ssize_t
    pairs: cython.Py_ssize_t = _open_items(walk, MAP) if 0 <= begin <= len(data) else -2
    if pairs < -1:
        return found, other, -1
    # Invariant: the pairs before the position are in `found`, or their keys are not text.
    while _has_more(walk, pairs):
        pairs -= 1
        key = walk.pos
        if walk.head() != OK:
            return found, other, -1
        if walk.major == TEXT:
            text = _text(walk)
            if text is None:
                return found, other, -1
            found[text.decode("utf-8")] = walk.pos
        else:
            other = key if other < 0 else other
            walk.pos = key
            if walk.skip() != OK:
                return found, other, -1
        if walk.skip() != OK:
            return found, other, -1
    return found, other, walk.pos


@cython.cfunc
def _text(walk: Walk) -> bytes | None:
    """The contents of the text whose head was read, in one piece or in chunks; None if it does not end."""
    begin: cython.Py_ssize_t = walk.pos
    joined: bytearray
    if walk.info != OPEN_ENDED:
        return walk.data[begin : walk.pos] if walk.content() == OK else None
    joined = bytearray()
    return bytes(joined) if _add_chunks(walk, joined) == OK else None


@cython.final
@cython.cclass
class _Table:
    """The description of a kind of record, and the columns that records of this kind fill."""

    held: tuple  # type: ignore[type-arg]
    """Keeps the memory of the pointers alive."""
    title: str
    names: list  # type: ignore[type-arg]
    texts: bytes
    """The encoded keys, then the encoded words of each field, concatenated; heads of one byte."""
    p: cython.p_uchar
    text_begins: cython.p_longlong
    first_words: cython.p_longlong
    """The words of field i are the texts first_words[i] to first_words[i + 1]."""
    kinds: cython.p_longlong
    number_columns: cython.p_longlong
    code_columns: cython.p_longlong
    likely_fields: cython.p_longlong
    """A guess: entry i + 1 is the field that followed field i in the last record, entry 0 the first field."""
    likely_words: cython.p_longlong
    """A guess: the word that each field had last."""
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
    """The row to fill: `row`, or the spare row after the columns if there is no room."""

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
    """The state of one scan: a walk, and the tables that it fills."""

    walk: Walk
    parts: _Table
    dims: cython.longlong[::1]
    filled: cython.Py_ssize_t
    """Number of dims so far, including those that `dims` has no room for."""
    key: str
    """The innermost field at fault; empty until there is one."""
    joined: bytearray
    """The texts of indefinite length, their chunks joined."""
    text_begin: cython.Py_ssize_t
    text_end: cython.Py_ssize_t
    """The text that was read last: a span of the data, with `joined` appended to it."""

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
    """Scans `count` records of validated bytes, the first at `begin`.

    `columns` receives the records, `parts` the records nested in them, `dims` all shapes.
    Entries beyond their capacity are counted but not stored, so a caller can scan again with
    larger columns. Returns: the name of the fault, or ""; its position, or the end of the last
    record; the field at fault; the number of records before it; the number of parts; the
    number of dims; and the joined texts of indefinite length, whose spans in the columns
    count as if these bytes followed the data.
    """
    walk: Walk = Walk(data, begin, len(data))
    table: _Table = _Table(columns)
    inner: _Table = _Table(parts)
    state: _Scan = _Scan(walk, inner, dims)
    fault: cython.int = OK if begin >= 0 else ENDS
    # Invariant: the records before table.row are stored, as far as the columns have room.
    while fault == OK and table.row < count:
        fault = _scan_record(state, table)
    position = walk.pos if fault == OK else walk.start
    return FAULTS[fault], position, state.key, table.row, inner.row, state.filled, bytes(state.joined)


@cython.cfunc
def _scan_record(state: _Scan, table: _Table) -> cython.int:
    """One record: a map, preceded by its name if the table says so. OK, or a fault."""
    walk: Walk = state.walk
    begin: cython.Py_ssize_t = walk.pos
    pairs: cython.Py_ssize_t
    field: cython.int
    last: cython.int = 0  # the number of the previous field plus one; 0 before the first
    fault: cython.int = OK
    seen: cython.ulonglong = 0
    table.at = table.row if table.row < table.room else table.room
    table.numbers[0, table.at] = begin
    if table.named:
        seen = 1
        fault = _scan_name(state, table)
    pairs = _open_items(walk, MAP) if fault == OK else 0
    if pairs < -1:
        fault = _NOT_MAP
    if fault != OK:
        return _blame(state, fault, table.title)
    # Invariant: `pairs` pairs are left (below 0: until a break); the fields before are bits of `seen`, their values in
    # the row. A repeated key cannot occur: `cbor_check` refuses it.
    while _has_more(walk, pairs):
        pairs -= 1
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
        if fault != OK:
            return _blame(state, fault, table.names[field] if field >= 0 else "key")
    if table.required & ~seen:
        walk.start = begin
        return _blame(state, _MISSING, _first_missing(table, seen))
    table.row += 1
    return OK


@cython.cfunc
def _first_missing(table: _Table, seen: cython.ulonglong) -> str:
    """The name of the first required field that is not in `seen`; there is one."""
    field: cython.int = 0
    while not (table.required & ~seen) >> field & 1:
        field += 1
    name: str = table.names[field]
    return name


@cython.cfunc
def _blame(state: _Scan, fault: cython.int, key: str) -> cython.int:
    """Keeps `key` as the field at fault, unless a nested record already has: the innermost one counts."""
    if not state.key:
        state.key = key
    return fault


_NO_FIELD = cython.declare(cython.int, -1)
_NO_TEXT = cython.declare(cython.int, -2)


@cython.cfunc
def _find_field(state: _Scan, table: _Table, last: cython.int) -> cython.int:
    """Reads a key and returns its field, _NO_FIELD if the text is unknown, or _NO_TEXT if it is not text.

    Files list fields in the same order again and again, so the one that followed `last` in the
    previous record is compared first: one comparison for most keys.
    """
    walk: Walk = state.walk
    likely: cython.int = cython.cast(cython.int, table.likely_fields[last])
    i: cython.int
    if _take(walk, table, likely):
        return likely
    if _read_text(state) != OK:
        walk.skip()
        return _NO_TEXT
    for i in range(1 if table.named else 0, table.count):
        if _equals(state, table, i):
            return i
    return _NO_FIELD


@cython.cfunc
def _scan_name(state: _Scan, table: _Table) -> cython.int:
    """The name in front of a record, which is its field 0. The words of that field need no check: they are names."""
    fault: cython.int
    if table.kinds[0] == _WORD_FIELD and _take(state.walk, table, table.likely_words[0]):
        table.codes[table.code_columns[0], table.at] = 1 + cython.cast(
            cython.uchar, table.likely_words[0] - table.first_words[0]
        )
        return OK
    fault = _scan_value(state, table, 0)
    return _check_name(state, table.name_nbytes) if fault == OK else fault


@cython.cfunc
def _scan_value(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    """Stores the value of a field in the row, as its kind says: OK, or a fault."""
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
    return _NOT_DIGEST if fault == OK and kind == _DIGEST_FIELD and not _is_digest(state) else fault


@cython.cfunc
def _scan_word(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    walk: Walk = state.walk
    first: cython.Py_ssize_t = table.first_words[field]
    i: cython.Py_ssize_t = table.likely_words[field]
    column: cython.Py_ssize_t = table.code_columns[field]
    fault: cython.int
    if _take(walk, table, i):
        table.codes[column, table.at] = cython.cast(cython.uchar, i - first + 1)
        return OK
    fault = _read_text(state)
    if fault != OK:
        return fault
    table.codes[column, table.at] = _UNKNOWN
    # Invariant: no word of the field before `i` is the text.
    for i in range(first, table.first_words[field + 1]):
        if _equals(state, table, i):
            table.codes[column, table.at] = cython.cast(cython.uchar, i - first + 1)
            table.likely_words[field] = i
            break
    return OK


@cython.cfunc
def _scan_shape(state: _Scan, table: _Table, column: cython.Py_ssize_t) -> cython.int:
    walk: Walk = state.walk
    left: cython.Py_ssize_t = _open_items(walk, ARRAY)
    fault: cython.int
    product: cython.ulonglong = 1
    empty: cython.bint = False
    large: cython.longlong = 0
    if left < -1:
        return _NOT_ARRAY
    # Invariant: `product` is the product of the dims before that are not zero, and below 2**63 if `large` is 0.
    while _has_more(walk, left):
        left -= 1
        fault = _read_uint(walk)
        if fault != OK:
            return fault
        if walk.argument == 0:
            empty = True
        elif walk.argument > _LARGEST:
            large = _HUGE
        elif large or walk.argument > _LARGEST // product:
            large = min(large, -1)
        else:
            product *= walk.argument
        if state.filled < state.dims.shape[0]:
            state.dims[state.filled] = _bounded(walk.argument)
        state.filled += 1
    table.numbers[column, table.at] = large if large else 0 if empty else cython.cast(cython.longlong, product)
    table.numbers[column + 1, table.at] = state.filled
    return OK


@cython.cfunc
@cython.exceptval(check=False)
def _scan_pair(walk: Walk, table: _Table, column: cython.Py_ssize_t) -> cython.int:
    left: cython.Py_ssize_t = _open_items(walk, ARRAY)
    begin: cython.Py_ssize_t = walk.start
    count: cython.Py_ssize_t = 0
    fault: cython.int
    if left < -1:
        return _NOT_ARRAY
    # Invariant: `count` numbers were read, and the first two of them are in the row.
    while _has_more(walk, left):
        left -= 1
        fault = _read_uint(walk)
        if fault != OK:
            return fault
        if count < 2:
            table.numbers[column + count, table.at] = _bounded(walk.argument)
        count += 1
    walk.start = begin
    return OK if count == 2 else _NOT_PAIR


@cython.cfunc
def _scan_parts(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    walk: Walk = state.walk
    left: cython.Py_ssize_t = _open_items(walk, MAP)
    first: cython.Py_ssize_t = state.parts.row
    fault: cython.int
    if left < -1:
        return _NOT_MAP
    # Invariant: the records from `first` on are the parts of this row.
    while _has_more(walk, left):
        left -= 1
        fault = _scan_record(state, state.parts)
        if fault != OK:
            return fault
    table.numbers[table.number_columns[field], table.at] = state.parts.row
    if state.parts.row == first:
        walk.start = table.numbers[0, table.at]
        return _MISSING
    return OK


@cython.cfunc
def _scan_attributes(state: _Scan, name_nbytes: cython.Py_ssize_t) -> cython.int:
    walk: Walk = state.walk
    left: cython.Py_ssize_t = _open_items(walk, MAP)
    fault: cython.int
    if left < -1:
        return _NOT_MAP
    # Invariant: the walk is before a key; the keys before it are names; `left` pairs follow (below 0: until a break).
    while _has_more(walk, left):
        left -= 1
        fault = _read_text(state)
        if fault == OK:
            fault = _check_name(state, name_nbytes)
        if fault == OK:
            fault = walk.skip()
        if fault != OK:
            return fault
    return OK


def scan_attributes(data: bytes, begin: cython.Py_ssize_t, name_nbytes: cython.Py_ssize_t) -> tuple[str, int]:
    """Checks that a map of validated bytes has names as keys: ("", its end), or (name of the fault, its position)."""
    state: _Scan = _Scan(Walk(data, begin, len(data)), None, array("q"))
    fault: cython.int = _scan_attributes(state, name_nbytes) if begin >= 0 else ENDS
    return FAULTS[fault], state.walk.pos if fault == OK else state.walk.start


@cython.cfunc
def _scan_custom(state: _Scan, table: _Table, field: cython.int) -> cython.int:
    """A field of the kind `silent` or `mark`: sets flags, and skips the value."""
    walk: Walk = state.walk
    begin: cython.Py_ssize_t = walk.pos
    word: cython.Py_ssize_t = table.first_words[field]
    if table.kinds[field] == _MARK_FIELD:
        table.codes[0, table.at] |= _MARKED
    elif _take(walk, table, word) or (_read_text(state) == OK and _equals(state, table, word)):
        return OK
    walk.pos = begin
    table.codes[0, table.at] |= _CUSTOM
    return walk.skip()


@cython.cfunc
@cython.exceptval(check=False)
def _open_items(walk: Walk, major: cython.int) -> cython.Py_ssize_t:
    """Reads the head of an array or map: its number of items or pairs, -1 if indefinite, -2 if it is another item."""
    if walk.head() != OK or walk.major != major:
        return -2
    return -1 if walk.info == OPEN_ENDED else cython.cast(cython.Py_ssize_t, walk.argument & _LARGEST)


@cython.cfunc
@cython.exceptval(check=False)
def _has_more(walk: Walk, left: cython.Py_ssize_t) -> cython.bint:
    """Whether a container has another item; skips the break that ends it.

    `left` is from `_open_items`, less the items before: it stays negative if the length is indefinite.
    """
    if left >= 0 or walk.pos >= walk.end:
        return left > 0
    if walk.at_break():
        walk.pos += 1
        return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _read_uint(walk: Walk) -> cython.int:
    return _NOT_UINT if walk.head() != OK or walk.major != UINT else OK


@cython.cfunc
@cython.exceptval(check=False)
def _bounded(argument: cython.ulonglong) -> cython.longlong:
    return cython.cast(cython.longlong, min(argument, _LARGEST))


@cython.cfunc
def _read_text(state: _Scan) -> cython.int:
    """Reads text of any form and sets text_begin and text_end: OK, or a fault."""
    walk: Walk = state.walk
    if walk.head() != OK or walk.major != TEXT:
        walk.pos = walk.start
        return _NOT_TEXT
    if walk.info == OPEN_ENDED:
        return _join_chunks(state)
    state.text_begin = walk.pos
    state.text_end = walk.pos + cython.cast(cython.Py_ssize_t, walk.argument)
    return walk.content()


@cython.cfunc
def _join_chunks(state: _Scan) -> cython.int:
    """Appends the chunks of a text of indefinite length, whose head was read, to the `joined` ones."""
    walk: Walk = state.walk
    begin: cython.Py_ssize_t = walk.start
    fault: cython.int
    state.text_begin = walk.end + len(state.joined)
    fault = _add_chunks(walk, state.joined)
    if fault == OK:
        walk.start = begin
    state.text_end = walk.end + len(state.joined)
    return fault


@cython.cfunc
def _add_chunks(walk: Walk, joined: bytearray) -> cython.int:
    """Appends the chunks at the position, and moves past the break that ends them: OK, or ENDS."""
    first: cython.Py_ssize_t
    # Invariant: `joined` ends with the chunks before the position.
    while not walk.at_break():
        if walk.head() != OK:
            return ENDS
        first = walk.pos
        if walk.content() != OK:
            return ENDS
        joined += walk.data[first : walk.pos]
    walk.pos += 1
    return OK


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _take(walk: Walk, table: _Table, text: cython.Py_ssize_t) -> cython.bint:
    """Skips the given text of the table if exactly its encoding is next; returns whether it is."""
    begin: cython.Py_ssize_t = table.text_begins[text]
    size: cython.Py_ssize_t = table.text_begins[text + 1] - begin
    if walk.end - walk.pos < size or not same(walk.p, walk.pos, table.p, begin, size):
        return False
    walk.start = walk.pos
    walk.pos += size
    return True


@cython.cfunc
def _equals(state: _Scan, table: _Table, text: cython.Py_ssize_t) -> cython.bint:
    """Whether the text that was read last equals the given text of the table, however it was encoded."""
    begin: cython.Py_ssize_t = table.text_begins[text] + 1  # without its head, which is one byte
    size: cython.Py_ssize_t = table.text_begins[text + 1] - begin
    if state.text_end - state.text_begin != size:
        return False
    if state.text_begin < state.walk.end:
        return same(state.walk.p, state.text_begin, table.p, begin, size)
    return _last_text(state) == table.texts[begin : begin + size]


@cython.cfunc
def _last_text(state: _Scan) -> bytes:
    """The text that was read last, if that had chunks and so is in `joined`."""
    end: cython.Py_ssize_t = state.walk.end
    return bytes(state.joined[state.text_begin - end : state.text_end - end])


@cython.cfunc
def _check_name(state: _Scan, most: cython.Py_ssize_t) -> cython.int:
    """Checks that the text that was read last has 1 to `most` bytes and no NUL; `most` = 0 allows every text."""
    if most == 0:
        return OK
    if not 0 < state.text_end - state.text_begin <= most:
        return _NOT_NAME
    if state.text_begin < state.walk.end:
        return _NOT_NAME if zero_byte(state.walk.p, state.text_begin, state.text_end) >= 0 else OK
    return _NOT_NAME if b"\0" in _last_text(state) else OK


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
    # Invariant: before `i` there are lower-case letters and digits and at most one colon, with only hex after it.
    for i in range(begin, end):
        if 48 <= p[i] <= 57 or 97 <= p[i] <= (122 if colon < 0 else 102):  # 0-9, a-z or a-f
            continue
        if p[i] != 58 or colon >= 0 or i == begin:  # a colon, the first one, with letters before it
            return False
        colon = i
    return 0 <= colon < end - 1
