"""The JSON header of a safetensors file, from bytes to columns.

The grammar is fixed, so nothing is nested deeper than it allows and no recursion is
needed: an object of tensors, each with three fields in any order, and one optional
object of strings. `scan` walks it once and returns columns or a fault: a code, the
byte where the offending value begins, and the tensor's position.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

# Faults. The format's module has the words for each.
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
PADDING = 16
LIMIT_TENSORS = 17
LIMIT_RANK = 18
LIMIT_NAME = 19

_MAX = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
_ENTRY_NBYTES = 44
"""No tensor takes fewer bytes of the header."""

_NOT_ASCII = cython.declare(cython.ulonglong, 0x8080_8080_8080_8080)
_WORD_METADA = cython.declare(cython.ulonglong, 0x61646174656D5F5F)
_WORD_TA = cython.declare(cython.ulonglong, 0x5F5F6174)

_DTYPE = cython.declare(cython.int, 1)
_SHAPE = cython.declare(cython.int, 2)
_OFFSETS = cython.declare(cython.int, 4)
_WORD_DTYPE = cython.declare(cython.ulonglong, 0x6570797464)
_WORD_SHAPE = cython.declare(cython.ulonglong, 0x6570616873)
_WORD_DATA_OFF = cython.declare(cython.ulonglong, 0x66666F5F61746164)
_WORD_SETS = cython.declare(cython.ulonglong, 0x73746573)
_ESCAPES = {
    ord('"'): '"', ord("\\"): "\\", ord("/"): "/", ord("b"): "\b", ord("f"): "\f", ord("n"): "\n", ord("r"): "\r",
    ord("t"): "\t",
}  # fmt: skip


@cython.final
@cython.cclass
class Cursor:
    """A position in the header. The first fault stays; every read after it yields zero."""

    data: cython.const[cython.uchar][::1]
    header: bytes
    size: cython.Py_ssize_t
    position: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    escaped: cython.bint
    dtype_low: cython.ulonglong
    dtype_high: cython.ulonglong
    dtype: cython.int
    count: cython.Py_ssize_t
    behind: bytearray
    begin_column: cython.longlong[::1]
    end_column: cython.longlong[::1]
    fault: cython.int
    fault_position: cython.Py_ssize_t

    def __init__(self, header: bytes, name_begins: Any, name_ends: Any) -> None:
        self.data = header
        self.header = header
        self.size = len(header)
        self.position = 0
        self.begin = self.end = 0
        self.escaped = False
        self.dtype_low = self.dtype_high = 0
        self.dtype = 0
        self.count = 0
        self.behind = bytearray()
        self.begin_column = memoryview(name_begins)
        self.end_column = memoryview(name_ends)
        self.fault = 0
        self.fault_position = 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def fail(self, fault: cython.int, position: cython.Py_ssize_t) -> cython.int:
        if self.fault == 0:
            self.fault = fault
            self.fault_position = position
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.boundscheck(False)
    @cython.initializedcheck(False)
    def peek(self) -> cython.int:
        """The next byte that is not white space; it is not consumed."""
        while self.position < self.size:
            byte: cython.int = self.data[self.position]
            if byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
                return byte
            self.position += 1
        return self.fail(HEADER_END, self.position)

    @cython.cfunc
    @cython.exceptval(check=False)
    def take(self, wanted: cython.int) -> cython.int:
        if self.peek() == wanted and self.fault == 0:
            self.position += 1
            return 1
        return self.fail(SYNTAX, self.position)

    @cython.cfunc
    @cython.exceptval(check=False)
    def more(self, close: cython.int) -> cython.int:
        """After an item: a comma (1), or the end (0)."""
        byte: cython.int = self.peek()
        if self.fault != 0:
            return 0
        if byte == close:
            self.position += 1
            return 0
        return self.take(0x2C)

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.boundscheck(False)
    @cython.initializedcheck(False)
    def string(self) -> cython.int:
        """Finds a string: the span between its quotes, and whether it has escapes."""
        self.escaped = False
        if self.take(0x22) == 0:
            return 0
        at: cython.Py_ssize_t = self.position
        byte: cython.int
        self.begin = at
        while at < self.size:
            byte = self.data[at]
            if byte == 0x22:
                self.end = at
                self.position = at + 1
                return 1
            if byte < 0x20:
                return self.fail(CONTROL, at)
            if byte == 0x5C:
                self.escaped = True
                at += 1
            at += 1
        return self.fail(HEADER_END, self.begin)

    @cython.cfunc
    def text(self) -> object:
        """The string just found, decoded."""
        result: Any
        if self.fault != 0:
            return ""
        if self.escaped:
            result = _unescape(self.header[self.begin : self.end])
            if isinstance(result, int):
                self.fail(result, self.begin)
                return ""
            return result
        try:
            return self.header[self.begin : self.end].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(UTF8, self.begin)
            return ""

    @cython.cfunc
    def name(self, row: cython.Py_ssize_t) -> cython.int:
        """Keeps the string just found as a name: its span.

        A name with escapes is decoded and put behind the header, and its span is there.
        """
        seen: cython.ulonglong = 0
        skip: cython.Py_ssize_t = 0
        if self.escaped:
            text: Any = self.text()
            if self.fault != 0:
                return 0
            decoded: bytes = text.encode("utf-8")
            self.begin_column[row] = self.size + len(self.behind)
            self.behind += decoded
            self.end_column[row] = self.size + len(self.behind)
        else:
            while skip < self.end - self.begin:
                seen |= self.word(skip)
                skip += 8
            if seen & _NOT_ASCII != 0:
                self.text()
            self.begin_column[row] = self.begin
            self.end_column[row] = self.end
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.boundscheck(False)
    @cython.initializedcheck(False)
    def word(self, skip: cython.Py_ssize_t) -> cython.ulonglong:
        """Up to eight bytes of the string just found, as one number."""
        value: cython.ulonglong = 0
        i: cython.Py_ssize_t
        for i in range(min(8, self.end - self.begin - skip)):
            value |= cython.cast(cython.ulonglong, self.data[self.begin + skip + i]) << (8 * i)
        return value

    @cython.cfunc
    @cython.exceptval(check=False)
    @cython.boundscheck(False)
    @cython.initializedcheck(False)
    def number(self) -> cython.ulonglong:
        """A whole number below 2**63, in its only form."""
        first: cython.int = self.peek()
        start: cython.Py_ssize_t = self.position
        value: cython.ulonglong = 0
        digit: cython.int
        if self.fault != 0:
            return 0
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
    """The text of a string with escapes, or the code of a fault."""
    pieces: list[Any] = []
    position: cython.Py_ssize_t = 0
    try:
        while True:
            escape: cython.Py_ssize_t = raw.find(b"\\", position)
            if escape < 0:
                pieces.append(raw[position:].decode("utf-8"))
                return "".join(pieces)
            pieces.append(raw[position:escape].decode("utf-8"))
            kind: Any = raw[escape + 1]
            position = escape + 2
            if kind != 0x75:
                if kind not in _ESCAPES:
                    return ESCAPE
                pieces.append(_ESCAPES[kind])
                continue
            unit: cython.longlong = _hex4(raw, position)
            position += 4
            if unit < 0:
                return ESCAPE
            if 0xD800 <= unit < 0xE000:
                low: cython.longlong = _hex4(raw, position + 2) if raw[position : position + 2] == b"\\u" else -1
                if unit >= 0xDC00 or low < 0xDC00 or low >= 0xE000:
                    return SURROGATE
                position += 6
                unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
            pieces.append(chr(unit))
    except UnicodeDecodeError:
        return UTF8


@cython.cfunc
def _hex4(raw: bytes, position: cython.Py_ssize_t) -> cython.longlong:
    digits: bytes = raw[position : position + 4]
    value: cython.longlong = 0
    if len(digits) < 4:
        return -1
    for digit in digits:
        if 0x30 <= digit <= 0x39:
            value = value * 16 + digit - 0x30
        elif 0x41 <= digit <= 0x46 or 0x61 <= digit <= 0x66:
            value = value * 16 + (digit & 0x0F) + 9
        else:
            return -1
    return value


def scan(
    header: bytes,
    dtypes: dict[bytes, int],
    bits: bytes,
    max_tensors: cython.longlong,
    max_rank: cython.longlong,
    max_name: cython.longlong,
) -> tuple[Any, ...]:
    """Fault, byte, tensor; metadata or None; dtype codes, dims, dim offsets, begins, ends; the names.

    The names are a text, which is the header or begins with it, and their begins and ends in it.
    """
    room: cython.Py_ssize_t = len(header) // _ENTRY_NBYTES + 1
    name_columns: Any = (np.empty(room, np.int64), np.empty(room, np.int64))
    cursor: Cursor = Cursor(header, *name_columns)
    codes: Any = np.empty(room, np.uint8)
    dims: Any = np.empty(cursor.size // 2 + 1, np.int64)
    dim_offsets: Any = np.zeros(room + 1, np.int64)
    begins: Any = np.empty(room, np.int64)
    ends: Any = np.empty(room, np.int64)
    pairs: Any = _tensors(
        cursor, dtypes, bits, max_tensors, max_rank, max_name,
        memoryview(codes), memoryview(dims), memoryview(dim_offsets), memoryview(begins), memoryview(ends),
    )  # fmt: skip
    _padding(cursor)
    count: cython.Py_ssize_t = cursor.count
    text: bytes = header + bytes(cursor.behind) if cursor.behind else header
    return (
        cursor.fault,
        cursor.fault_position,
        count - 1,
        pairs,
        codes[:count].copy(),
        dims[: dim_offsets[count]].copy(),
        dim_offsets[: count + 1].copy(),
        begins[:count].copy(),
        ends[:count].copy(),
        (text, *(column[:count].copy() for column in name_columns)),
    )


@cython.cfunc
def _tensors(
    cursor: Cursor,
    dtypes: Any,
    bits: cython.const[cython.uchar][::1],
    max_tensors: cython.longlong,
    max_rank: cython.longlong,
    max_name: cython.longlong,
    codes: cython.uchar[::1],
    dims: cython.longlong[::1],
    dim_offsets: cython.longlong[::1],
    begins: cython.longlong[::1],
    ends: cython.longlong[::1],
) -> object:
    """Fills the columns and returns the metadata."""
    pairs: Any = None
    cursor.take(0x7B)
    if cursor.peek() == 0x7D:
        cursor.position += 1
        return None
    going: cython.int = 1
    while going and cursor.fault == 0:
        cursor.peek()
        start: cython.Py_ssize_t = cursor.position
        cursor.string()
        if cursor.end - cursor.begin > max_name and cursor.fault == 0:
            cursor.fail(LIMIT_NAME, start)
        if cursor.fault != 0:
            return pairs
        if _is_metadata(cursor):
            cursor.take(0x3A)
            if pairs is not None:
                cursor.fail(METADATA_TWICE, start)
            pairs = _metadata(cursor)
        else:
            if cursor.count >= max_tensors:
                cursor.fail(LIMIT_TENSORS, start)
                return pairs
            cursor.name(cursor.count)
            cursor.take(0x3A)
            if cursor.fault != 0:
                return pairs
            cursor.count += 1
            _tensor(cursor, dtypes, bits, max_rank, cursor.count - 1, codes, dims, dim_offsets, begins, ends)
        going = cursor.more(0x7D)
    return pairs


@cython.cfunc
def _is_metadata(cursor: Cursor) -> cython.bint:
    if cursor.escaped:
        return cursor.text() == "__metadata__"
    return cursor.end - cursor.begin == 12 and cursor.word(0) == _WORD_METADA and cursor.word(8) == _WORD_TA


@cython.cfunc
def _metadata(cursor: Cursor) -> object:
    pairs: list[Any] = []
    if cursor.peek() != 0x7B:
        cursor.fail(METADATA, cursor.position)
        return pairs
    cursor.position += 1
    if cursor.peek() == 0x7D:
        cursor.position += 1
        return pairs
    going: cython.int = 1
    while going and cursor.fault == 0:
        cursor.string()
        key: object = cursor.text()
        cursor.take(0x3A)
        if cursor.peek() != 0x22:
            cursor.fail(METADATA, cursor.position)
        cursor.string()
        pairs.append((key, cursor.text()))
        going = cursor.more(0x7D)
    return pairs


@cython.cfunc
def _tensor(
    cursor: Cursor,
    dtypes: Any,
    bits: cython.const[cython.uchar][::1],
    max_rank: cython.longlong,
    row: cython.Py_ssize_t,
    codes: cython.uchar[::1],
    dims: cython.longlong[::1],
    dim_offsets: cython.longlong[::1],
    begins: cython.longlong[::1],
    ends: cython.longlong[::1],
) -> cython.int:
    """One entry. With a fault, the columns of its row are not used."""
    seen: cython.int = 0
    going: cython.int = 1
    field: cython.int
    filled: cython.Py_ssize_t = dim_offsets[row]
    product: cython.ulonglong = 1
    empty: cython.bint = False
    begin: cython.ulonglong = 0
    end: cython.ulonglong = 0
    size: cython.ulonglong
    dim: cython.ulonglong
    at: cython.Py_ssize_t
    dim_offsets[row + 1] = filled
    cursor.take(0x7B)
    opening: cython.Py_ssize_t = cursor.position - 1
    while going and cursor.fault == 0:
        field = _field(cursor)
        if field & seen:
            cursor.fail(FIELD_TWICE, cursor.begin - 1)
        seen |= field
        cursor.take(0x3A)
        if cursor.fault != 0:
            return 0
        if field == _DTYPE:
            codes[row] = _dtype(cursor, dtypes)
        elif field == _SHAPE:
            cursor.take(0x5B)
            if cursor.peek() == 0x5D:
                cursor.position += 1
            else:
                while True:
                    cursor.peek()
                    at = cursor.position
                    dim = cursor.number()
                    if filled - dim_offsets[row] >= max_rank:
                        cursor.fail(LIMIT_RANK, at)
                    if dim > 1 and product > _MAX // dim:
                        cursor.fail(DIMS, at)
                    if cursor.fault != 0:
                        return 0
                    if dim == 0:
                        empty = True
                    else:
                        product *= dim
                    dims[filled] = dim
                    filled += 1
                    if cursor.more(0x5D) == 0:
                        break
        else:
            cursor.take(0x5B)
            begin = cursor.number()
            cursor.take(0x2C)
            end = cursor.number()
            cursor.take(0x5D)
        going = cursor.more(0x7D)
    if cursor.fault == 0 and seen != _DTYPE | _SHAPE | _OFFSETS:
        cursor.fail(FIELD_MISSING, opening)
    if cursor.fault != 0:
        return 0
    size = bits[codes[row]]
    if product > _MAX // size:
        return cursor.fail(DIMS, opening)
    size = 0 if empty else size * product
    if end < begin or size % 8 != 0 or end - begin != size // 8:
        return cursor.fail(SIZE, opening)
    begins[row] = begin
    ends[row] = end
    dim_offsets[row + 1] = filled
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _field(cursor: Cursor) -> cython.int:
    """Which of the three fields comes next."""
    cursor.string()
    nbytes: cython.Py_ssize_t = cursor.end - cursor.begin
    if cursor.fault != 0:
        return 0
    if nbytes == 5 and cursor.word(0) == _WORD_DTYPE:
        return _DTYPE
    if nbytes == 5 and cursor.word(0) == _WORD_SHAPE:
        return _SHAPE
    if nbytes == 12 and cursor.word(0) == _WORD_DATA_OFF and cursor.word(8) == _WORD_SETS:
        return _OFFSETS
    return cursor.fail(FIELD, cursor.begin - 1)


@cython.cfunc
def _dtype(cursor: Cursor, dtypes: Any) -> cython.int:
    """The code of the dtype that comes next. Most tensors have that of the one before them."""
    cursor.string()
    nbytes: cython.Py_ssize_t = cursor.end - cursor.begin
    if cursor.fault != 0:
        return 0
    if nbytes == 0 or nbytes > 16:
        return cursor.fail(DTYPE, cursor.begin - 1)
    low: cython.ulonglong = cursor.word(0)
    high: cython.ulonglong = cursor.word(8)
    if low != cursor.dtype_low or high != cursor.dtype_high:
        code: cython.longlong = dtypes.get(cursor.header[cursor.begin : cursor.end], -1)
        if code < 0:
            return cursor.fail(DTYPE, cursor.begin - 1)
        cursor.dtype_low, cursor.dtype_high, cursor.dtype = low, high, code
    return cursor.dtype


@cython.cfunc
def _padding(cursor: Cursor) -> cython.int:
    i: cython.Py_ssize_t
    if cursor.fault == 0:
        for i in range(cursor.position, cursor.size):
            if cursor.data[i] != 0x20:
                return cursor.fail(PADDING, i)
    return 0


def encode(
    metadata: bytes,
    text: bytes,
    text_offsets: Any,
    ranks: bytes,
    dtypes: bytes,
    dtype_offsets: Any,
    dims: Any,
    dim_offsets: Any,
    ends: Any,
) -> bytearray:
    """The header, padded. Tensors are contiguous: each begins where the one before it ends.

    `metadata` is the entry of the metadata, or empty. Name i is text[text_offsets[i]:text_offsets[i + 1]], with its
    quotes; the dtype of rank r is dtypes[dtype_offsets[r]:dtype_offsets[r + 1]].
    """
    capacity: cython.Py_ssize_t = 16 + len(metadata) + len(text) + 112 * len(ranks) + 20 * len(dims)
    buffer: bytearray = bytearray(capacity)
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = _put(out, 0, b"{")
    position = _put(out, position, metadata)
    position = _put_tensors(
        out, position, len(metadata) > 0, text, memoryview(text_offsets), ranks, dtypes, memoryview(dtype_offsets),
        memoryview(dims), memoryview(dim_offsets), memoryview(ends),
    )  # fmt: skip
    position = _put(out, position, b"}")
    while position % 8 != 0:
        out[position] = 0x20
        position += 1
    del out
    del buffer[position:]
    return buffer


@cython.cfunc
def _put_tensors(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    comma: cython.bint,
    text: cython.const[cython.uchar][::1],
    text_offsets: cython.const[cython.longlong][::1],
    ranks: cython.const[cython.uchar][::1],
    dtypes: cython.const[cython.uchar][::1],
    dtype_offsets: cython.const[cython.longlong][::1],
    dims: cython.const[cython.longlong][::1],
    dim_offsets: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
) -> cython.Py_ssize_t:
    open_dtype: cython.const[cython.uchar][::1] = b':{"dtype":"'
    open_shape: cython.const[cython.uchar][::1] = b'","shape":['
    open_offsets: cython.const[cython.uchar][::1] = b'],"data_offsets":['
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    begin: cython.longlong = 0
    for row in range(len(ranks)):
        if comma:
            out[position] = 0x2C
            position += 1
        comma = True
        position = _put_slice(out, position, text, text_offsets[row], text_offsets[row + 1])
        position = _put_slice(out, position, open_dtype, 0, len(open_dtype))
        position = _put_slice(out, position, dtypes, dtype_offsets[ranks[row]], dtype_offsets[ranks[row] + 1])
        position = _put_slice(out, position, open_shape, 0, len(open_shape))
        for i in range(dim_offsets[row], dim_offsets[row + 1]):
            if i > dim_offsets[row]:
                out[position] = 0x2C
                position += 1
            position = _put_number(out, position, dims[i])
        position = _put_slice(out, position, open_offsets, 0, len(open_offsets))
        position = _put_number(out, position, begin)
        out[position] = 0x2C
        position = _put_number(out, position + 1, ends[row])
        out[position] = 0x5D
        out[position + 1] = 0x7D
        position += 2
        begin = ends[row]
    return position


@cython.cfunc
def _put(
    out: cython.uchar[::1], position: cython.Py_ssize_t, data: cython.const[cython.uchar][::1]
) -> cython.Py_ssize_t:
    return _put_slice(out, position, data, 0, len(data))


@cython.cfunc
@cython.exceptval(check=False)
def _put_slice(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    data: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    for i in range(begin, end):
        out[position + i - begin] = data[i]
    return position + end - begin


@cython.cfunc
@cython.exceptval(check=False)
def _put_number(out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    width: cython.Py_ssize_t = 1
    i: cython.Py_ssize_t
    rest: cython.ulonglong = value // 10
    while rest != 0:
        width += 1
        rest //= 10
    for i in range(width):
        out[position + width - 1 - i] = 0x30 + value % 10
        value //= 10
    return position + width
