"""Scans the JSON header of a safetensors file to columns.

Not a general JSON parser: the grammar is fixed, an object of tensors, each with three
fields in any order, and one optional object of strings. So nesting is bounded and no
recursion is needed. `scan` walks the header once, checks every rule that concerns a single
tensor, and returns columns, or the first fault: a code, the position of the offending
value, and the tensor's row.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import *  # noqa: F403
else:
    from tensorglot.kernels.primitives import (
        invalid_utf8,
        is_ascii,
        longlongs_of,
        same,
        uchars_of,
    )

# Faults. The format's module has the message of each.
OK = 0
HEADER_END = 1
SYNTAX = 2
NUMBER = 3
CONTROL = 4
ESCAPE = 5
SURROGATE = 6
UTF8 = 7
FIELD = 8
FIELD_TWICE = 9
FIELD_MISSING = 10
DTYPE = 11
DIMS = 12
SIZE = 13
METADATA = 14
METADATA_TWICE = 15
KEY_TWICE = 16
PADDING = 17
LIMIT_TENSORS = 18
LIMIT_RANK = 19
LIMIT_NAME = 20

_MAX = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
_ENTRY_NBYTES = 44
"""A lower bound of the bytes of an entry: `"":{"dtype":"","shape":[],"data_offsets":[0,0]}` has 47."""

# The fields of a tensor, as bits.
_DTYPE = cython.declare(cython.int, 1)
_SHAPE = cython.declare(cython.int, 2)
_OFFSETS = cython.declare(cython.int, 4)


@cython.final
@cython.cclass
class Cursor:
    """A position in the header, the last string that was found, and the first fault.

    Invariant: position <= size, and a byte is read only at position < size. After a fault
    nothing is consumed: `peek`, and every method built on it, returns zero. So callers need
    not check after each call.
    """

    header: bytes
    data: cython.p_const_uchar
    size: cython.Py_ssize_t
    position: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    escaped: cython.bint
    fault: cython.int
    fault_position: cython.Py_ssize_t

    def __init__(self, header: bytes) -> None:
        self.header = header
        self.data = uchars_of(header)
        self.size = len(header)
        self.position = self.begin = self.end = 0
        self.escaped = False
        self.fault = self.fault_position = 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def fail(self, fault: cython.int, position: cython.Py_ssize_t) -> cython.int:
        if self.fault == 0:
            self.fault = fault
            self.fault_position = position
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def peek(self) -> cython.int:
        """Skips white space and returns the next byte, which is not consumed; 0 after a fault or at the end."""
        if self.fault == 0 and self.position < self.size and self.data[self.position] > 0x20:
            return self.data[self.position]
        return self.skip_space()

    @cython.cfunc
    @cython.exceptval(check=False)
    def skip_space(self) -> cython.int:
        byte: cython.int
        while self.position < self.size:
            byte = self.data[self.position]
            if byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
                return byte if self.fault == 0 else 0
            self.position += 1
        return self.fail(HEADER_END, self.position)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def take(self, wanted: cython.int) -> cython.int:
        """Consumes the byte `wanted`, which must be next: 1, or 0 and the fault SYNTAX."""
        if self.peek() == wanted:
            self.position += 1
            return 1
        return self.fail(SYNTAX, self.position)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def ends(self, close: cython.int) -> cython.bint:
        """Consumes the closing byte if it is next; returns whether it was."""
        if self.peek() != close:
            return False
        self.position += 1
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def more(self, close: cython.int) -> cython.int:
        """After an item: 1 if a comma follows, which is consumed; 0 at the end of the container or a fault."""
        return 0 if self.ends(close) else self.take(0x2C)

    @cython.cfunc
    @cython.exceptval(check=False)
    def string(self) -> cython.int:
        """Skips a string and sets `begin` and `end` to the span between its quotes, and `escaped`: 1, or 0."""
        self.escaped = False
        if self.take(0x22) == 0:
            return 0
        at: cython.Py_ssize_t = self.position
        byte: cython.int
        self.begin = at
        # Invariant: the bytes from `begin` up to `at` are whole characters and escapes of the string.
        while at < self.size:
            byte = self.data[at]
            if byte == 0x22:
                self.end = at
                self.position = at + 1
                return 1
            if byte < 0x20:
                return self.fail(CONTROL, at)
            if byte == 0x5C:  # whatever follows a backslash does not end the string; `text` checks the escape
                self.escaped = True
                at += 1
            at += 1
        return self.fail(HEADER_END, self.begin)

    @cython.cfunc
    def text(self) -> object:
        """The string that was just found, decoded; empty after a fault."""
        result: Any
        if self.fault == 0 and not self.escaped and invalid_utf8(self.data, self.begin, self.end) >= 0:
            self.fail(UTF8, self.begin)
        if self.fault != 0:
            return ""
        if not self.escaped:
            return self.header[self.begin : self.end].decode("utf-8")
        result = _unescape(self.header[self.begin : self.end])
        if isinstance(result, int):
            self.fail(result, self.begin)
            return ""
        return result

    @cython.cfunc
    @cython.exceptval(check=False)
    def number(self) -> cython.ulonglong:
        """Reads an integer below 2**63 in plain digits: no sign, fraction, exponent or leading zero."""
        first: cython.int = self.peek()
        start: cython.Py_ssize_t = self.position
        value: cython.ulonglong = 0
        digit: cython.int
        if self.fault != 0:
            return 0
        # Invariant: `value` is the number of the digits before the position, and at most _MAX.
        while self.position < self.size:
            digit = self.data[self.position] - 0x30
            if digit < 0 or digit > 9:
                break
            if value > (_MAX - cython.cast(cython.ulonglong, digit)) // 10:
                return self.fail(NUMBER, start)
            value = value * 10 + cython.cast(cython.ulonglong, digit)
            self.position += 1
        if self.position == start or (first == 0x30 and self.position > start + 1):
            return self.fail(NUMBER, start)
        return value


@cython.cfunc
def _unescape(raw: bytes) -> object:
    """The text of a string with escapes, which are rare, or the code of a fault."""
    text: Any
    try:
        text = json.loads(f'"{raw.decode("utf-8")}"')
        text.encode("utf-8")  # raises for half a surrogate pair, which json accepts
    except UnicodeDecodeError:
        return UTF8
    except UnicodeEncodeError:
        return SURROGATE
    except ValueError:
        return ESCAPE
    return text


@cython.final
@cython.cclass
class Columns:
    """The columns that a scan fills, and a pointer to the memory of each.

    A tensor takes at least _ENTRY_NBYTES bytes of the header and a dimension two, so the
    columns have room for everything that the header can contain, and for one incomplete
    entry. A name with escapes is decoded and appended to `behind`, and its span counts as
    if `behind` followed the header.
    """

    codes: Any
    dims: Any
    dim_offsets: Any
    spans: Any
    """Begins and ends of the tensors, begins and ends of their names."""
    code: cython.p_uchar
    dim: cython.p_longlong
    dim_offset: cython.p_longlong
    tensor_begin: cython.p_longlong
    tensor_end: cython.p_longlong
    name_begin: cython.p_longlong
    name_end: cython.p_longlong
    behind: bytearray
    rows: cython.Py_ssize_t
    dtype_at: cython.Py_ssize_t
    dtype_nbytes: cython.Py_ssize_t
    dtype: cython.int

    def __init__(self, nbytes: cython.Py_ssize_t) -> None:
        capacity: cython.Py_ssize_t = nbytes // _ENTRY_NBYTES + 1
        self.codes = np.empty(capacity, np.uint8)
        self.dims = np.empty(nbytes // 2 + 1, np.int64)
        self.dim_offsets = np.zeros(capacity + 1, np.int64)
        self.spans = np.empty((4, capacity), np.int64)
        self.code = uchars_of(self.codes)
        self.dim = longlongs_of(self.dims)
        self.dim_offset = longlongs_of(self.dim_offsets)
        self.tensor_begin, self.tensor_end = longlongs_of(self.spans[0]), longlongs_of(self.spans[1])
        self.name_begin, self.name_end = longlongs_of(self.spans[2]), longlongs_of(self.spans[3])
        self.behind = bytearray()
        self.rows = 0
        self.dtype_at = self.dtype = 0
        self.dtype_nbytes = -1


def scan(
    header: bytes,
    dtypes: dict[bytes, int],
    bits: bytes,
    max_tensors: cython.longlong,
    max_rank: cython.longlong,
    max_name: cython.longlong,
) -> tuple[Any, ...]:
    """Returns (fault, position, row, metadata or None, dtype codes, dims, dim offsets, begins, ends, names).

    `names` is (text, begins, ends): spans of a text that begins with the header. With a fault,
    the columns include the incomplete last row. `bits` has the bits of an element by dtype code.
    """
    cursor: Cursor = Cursor(header)
    columns: Columns = Columns(cursor.size)
    metadata: Any = _scan_entries(cursor, columns, dtypes, uchars_of(bits), max_tensors, max_rank, max_name)
    _scan_padding(cursor)
    rows: cython.Py_ssize_t = columns.rows
    text: bytes = header + bytes(columns.behind) if columns.behind else header
    begins, ends, name_begins, name_ends = columns.spans[:, :rows].copy()
    return (
        cursor.fault, cursor.fault_position, rows - 1, metadata, columns.codes[:rows].copy(),
        columns.dims[: columns.dim_offsets[rows]].copy(), columns.dim_offsets[: rows + 1].copy(), begins, ends,
        (text, name_begins, name_ends),
    )  # fmt: skip


@cython.cfunc
def _scan_entries(
    cursor: Cursor,
    columns: Columns,
    dtypes: Any,
    bits: cython.p_const_uchar,
    max_tensors: cython.longlong,
    max_rank: cython.longlong,
    max_name: cython.longlong,
) -> object:
    """Scans all entries into the columns and returns the metadata, or None."""
    metadata: Any = None
    start: cython.Py_ssize_t
    cursor.take(0x7B)
    if cursor.ends(0x7D):
        return None
    # Invariant: the cursor is before a key, and the rows before columns.rows are stored.
    while cursor.fault == 0:
        cursor.peek()
        start = cursor.position
        cursor.string()
        if cursor.fault == 0 and cursor.end - cursor.begin > max_name:
            cursor.fail(LIMIT_NAME, start)
        if _is_metadata(cursor):
            if metadata is not None:
                cursor.fail(METADATA_TWICE, start)
            cursor.take(0x3A)
            metadata = _scan_metadata(cursor)
        else:
            if columns.rows >= max_tensors:
                cursor.fail(LIMIT_TENSORS, start)
            _keep_name(cursor, columns)
            cursor.take(0x3A)
            if cursor.fault != 0:
                break
            columns.rows += 1
            _scan_tensor(cursor, columns, columns.rows - 1, dtypes, bits, max_rank)
        if cursor.more(0x7D) == 0:
            break
    return metadata


@cython.cfunc
def _keep_name(cursor: Cursor, columns: Columns) -> cython.int:
    """Stores the string that was just found as the name of the next row."""
    row: cython.Py_ssize_t = columns.rows
    if cursor.fault != 0:
        return 0
    if cursor.escaped:
        text: Any = cursor.text()
        columns.name_begin[row] = cursor.size + len(columns.behind)
        columns.behind += text.encode("utf-8")
        columns.name_end[row] = cursor.size + len(columns.behind)
        return 0
    if not is_ascii(cursor.data, cursor.begin, cursor.end):
        cursor.text()  # only to check that it is UTF-8
    columns.name_begin[row] = cursor.begin
    columns.name_end[row] = cursor.end
    return 0


@cython.cfunc
def _is_metadata(cursor: Cursor) -> cython.bint:
    if cursor.escaped:
        return cursor.text() == "__metadata__"
    return cursor.end - cursor.begin == 12 and same(cursor.data, cursor.begin, b"__metadata__", 0, 12)


@cython.cfunc
def _scan_metadata(cursor: Cursor) -> object:
    pairs: dict[Any, Any] = {}
    start: cython.Py_ssize_t
    if cursor.peek() != 0x7B:
        cursor.fail(METADATA, cursor.position)
    cursor.take(0x7B)
    if cursor.ends(0x7D):
        return pairs
    # Invariant: the cursor is before a key, and `pairs` has the pairs before it.
    while cursor.fault == 0:
        cursor.peek()
        start = cursor.position
        cursor.string()
        key: object = cursor.text()
        if key in pairs:
            cursor.fail(KEY_TWICE, start)
        cursor.take(0x3A)
        if cursor.peek() != 0x22:
            cursor.fail(METADATA, cursor.position)
        cursor.string()
        pairs[key] = cursor.text()
        if cursor.more(0x7D) == 0:
            break
    return pairs


@cython.cfunc
def _scan_tensor(
    cursor: Cursor,
    columns: Columns,
    row: cython.Py_ssize_t,
    dtypes: Any,
    bits: cython.p_const_uchar,
    max_rank: cython.longlong,
) -> cython.int:
    """Scans one tensor's entry into a row. After a fault, the row's contents are undefined and not used."""
    seen: cython.int = 0
    field: cython.int
    elements: cython.ulonglong = 0
    opening: cython.Py_ssize_t
    columns.dim_offset[row + 1] = columns.dim_offset[row]
    cursor.take(0x7B)
    opening = cursor.position - 1
    # Invariant: the cursor is before a key; `seen` has the fields before it, whose values are in the columns.
    while cursor.fault == 0:
        field = _scan_field(cursor)
        if field & seen:
            cursor.fail(FIELD_TWICE, cursor.begin - 1)
        seen |= field
        cursor.take(0x3A)
        if field == _DTYPE:
            columns.code[row] = _scan_dtype(cursor, columns, dtypes)
        elif field == _SHAPE:
            elements = _scan_shape(cursor, columns, row, max_rank)
        else:
            _scan_offsets(cursor, columns, row)
        if cursor.more(0x7D) == 0:
            break
    if seen != _DTYPE | _SHAPE | _OFFSETS:
        cursor.fail(FIELD_MISSING, opening)
    if cursor.fault == 0:
        _check_size(cursor, columns, row, elements, bits[columns.code[row]], opening)
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _scan_field(cursor: Cursor) -> cython.int:
    """Reads a key and returns which of the three fields it is, as a bit; 0 after a fault."""
    cursor.string()
    nbytes: cython.Py_ssize_t = cursor.end - cursor.begin
    if cursor.fault != 0:
        return 0
    if nbytes == 5 and same(cursor.data, cursor.begin, b"dtype", 0, 5):
        return _DTYPE
    if nbytes == 5 and same(cursor.data, cursor.begin, b"shape", 0, 5):
        return _SHAPE
    if nbytes == 12 and same(cursor.data, cursor.begin, b"data_offsets", 0, 12):
        return _OFFSETS
    return cursor.fail(FIELD, cursor.begin - 1)


@cython.cfunc
def _scan_dtype(cursor: Cursor, columns: Columns, dtypes: Any) -> cython.int:
    """Reads a dtype and returns its code. It is compared with the previous tensor's first: most are equal."""
    cursor.string()
    nbytes: cython.Py_ssize_t = cursor.end - cursor.begin
    if cursor.fault != 0:
        return 0
    if nbytes != columns.dtype_nbytes or not same(cursor.data, cursor.begin, cursor.data, columns.dtype_at, nbytes):
        code: cython.longlong = dtypes.get(cursor.header[cursor.begin : cursor.end], -1)
        if code < 0:
            return cursor.fail(DTYPE, cursor.begin - 1)
        columns.dtype_at, columns.dtype_nbytes, columns.dtype = cursor.begin, nbytes, code
    return columns.dtype


@cython.cfunc
@cython.exceptval(check=False)
def _scan_shape(
    cursor: Cursor, columns: Columns, row: cython.Py_ssize_t, max_rank: cython.longlong
) -> cython.ulonglong:
    """Scans the dimensions and returns the number of elements.

    The product of the dimensions that are not zero must stay below 2**63, so that no reader
    overflows, in whatever order it multiplies.
    """
    first: cython.longlong = columns.dim_offset[row]
    filled: cython.longlong = first
    product: cython.ulonglong = 1
    empty: cython.bint = False
    dim: cython.ulonglong
    at: cython.Py_ssize_t
    cursor.take(0x5B)
    if cursor.ends(0x5D):
        return 1
    # Invariant: `product` is the product of the dimensions so far that are not zero, and below 2**63.
    while cursor.fault == 0:
        cursor.peek()
        at = cursor.position
        dim = cursor.number()
        if filled - first >= max_rank:
            cursor.fail(LIMIT_RANK, at)
        if dim > 1 and product > _MAX // dim:
            cursor.fail(DIMS, at)
        if cursor.fault != 0:
            break
        if dim == 0:
            empty = True
        else:
            product *= dim
        columns.dim[filled] = dim
        filled += 1
        if cursor.more(0x5D) == 0:
            break
    columns.dim_offset[row + 1] = filled
    return 0 if empty else product


@cython.cfunc
@cython.exceptval(check=False)
def _scan_offsets(cursor: Cursor, columns: Columns, row: cython.Py_ssize_t) -> cython.int:
    cursor.take(0x5B)
    columns.tensor_begin[row] = cursor.number()
    cursor.take(0x2C)
    columns.tensor_end[row] = cursor.number()
    cursor.take(0x5D)
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _check_size(
    cursor: Cursor,
    columns: Columns,
    row: cython.Py_ssize_t,
    elements: cython.ulonglong,
    bits: cython.ulonglong,
    opening: cython.Py_ssize_t,
) -> cython.int:
    """Checks that the offsets span exactly the bytes of dtype and shape, and that these are whole bytes."""
    nbytes: cython.longlong = columns.tensor_end[row] - columns.tensor_begin[row]
    if elements > _MAX // bits:
        return cursor.fail(DIMS, opening)
    elements *= bits
    if nbytes < 0 or elements % 8 != 0 or cython.cast(cython.ulonglong, nbytes) != elements // 8:
        return cursor.fail(SIZE, opening)
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _scan_padding(cursor: Cursor) -> cython.int:
    i: cython.Py_ssize_t
    if cursor.fault == 0:
        for i in range(cursor.position, cursor.size):
            if cursor.data[i] != 0x20:
                return cursor.fail(PADDING, i)
    return 0
