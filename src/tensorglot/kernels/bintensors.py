"""The header of a BinTensors file, from bytes to columns and back.

`scan` walks the header once, checks every rule that can be checked in passing, and
returns columns or a fault: a code, the byte where the offending field begins, and
the tensor's position. `encode` writes what `scan` accepts, and nothing else.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcpy

# Faults. The format's module has the words for each.
OK = 0
HEADER_END = 1
VARINT_TAG = 2
VARINT_LONG = 3
OPTION_TAG = 4
UTF8 = 5
DTYPE = 6
COUNT = 7
LIMIT_TENSORS = 8
LIMIT_RANK = 9
LIMIT_NAME = 10
DIMS = 11
SIZE = 12
OFFSETS = 13
PADDING_BYTE = 14
PADDING_LENGTH = 15
MAP_COUNT = 16
MAP_RANGE = 17
MAP_ALIAS = 18
METADATA_DUPLICATE = 19

_ROOM = cython.declare(cython.int, -1)  # more dimensions than there was room for: not a fault, try again

_MAX = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)
_NOT_ASCII = cython.declare(cython.ulonglong, 0x8080_8080_8080_8080)


@cython.final
@cython.cclass
class Cursor:
    """A position in the header. The first fault stays, and every read after it is at the end and yields zero."""

    data: cython.const[cython.uchar][::1]
    size: cython.Py_ssize_t
    position: cython.Py_ssize_t
    fault: cython.int
    fault_position: cython.Py_ssize_t

    def __init__(self, data: Any) -> None:
        self.data = data
        self.size = len(data)
        self.position = 0
        self.fault = 0
        self.fault_position = 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def fail(self, fault: cython.int, position: cython.Py_ssize_t) -> cython.int:
        if self.fault == 0:
            self.fault = fault
            self.fault_position = position
            self.position = self.size
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def byte(self) -> cython.int:
        if self.position >= self.size:
            return self.fail(HEADER_END, self.position)
        self.position += 1
        return self.data[self.position - 1]

    @cython.cfunc
    @cython.exceptval(check=False)
    def varint(self) -> cython.ulonglong:
        start: cython.Py_ssize_t = self.position
        tag: cython.int = self.byte()
        width: cython.int
        value: cython.ulonglong = 0
        least: cython.ulonglong
        i: cython.int
        if tag < 251:
            return tag
        if tag == 251:
            width, least = 2, 251
        elif tag == 252:
            width, least = 4, 0x1_0000
        elif tag == 253:
            width, least = 8, 0x1_0000_0000
        else:
            return self.fail(VARINT_TAG, start)
        if self.size - self.position < width:
            return self.fail(HEADER_END, start)
        value = self.data[self.position] | cython.cast(cython.ulonglong, self.data[self.position + 1]) << 8
        for i in range(2, width):
            value |= cython.cast(cython.ulonglong, self.data[self.position + i]) << (8 * i)
        self.position += width
        if value < least:
            return self.fail(VARINT_LONG, start)
        return value


def scan(
    header: bytes,
    layout: cython.int,
    itemsizes: bytes,
    max_tensors: cython.longlong,
    max_rank: cython.longlong,
    max_name: cython.longlong,
) -> tuple[Any, ...]:
    """Fault, byte, tensor; metadata or None; dtype codes, dims, dim offsets, ends; begins and ends of names."""
    cursor: Cursor = Cursor(header)
    tensor: cython.longlong = -1
    metadata: Any = _metadata(cursor, header)
    count: cython.Py_ssize_t = _count(cursor, 5 if layout == 1 else 4)
    if count > max_tensors:
        cursor.fail(LIMIT_TENSORS, cursor.position)
    if cursor.fault != 0:
        count = 0
    codes: Any = np.empty(count, np.uint8)
    first: cython.Py_ssize_t = cursor.position
    room: cython.Py_ssize_t = cursor.size - first
    dims: Any = np.empty(min(room, 4 * count + 64), np.int64)
    dim_offsets: Any = np.zeros(count + 1, np.int64)
    ends: Any = np.empty(count, np.int64)
    names: Names = Names(header, count, max_name)
    if cursor.fault == 0:
        tensor = _tensors(
            cursor, layout, itemsizes, max_rank, names, codes.data, dims.data, dim_offsets.data, ends.data
        )
    if cursor.fault == _ROOM:
        cursor.position, cursor.fault = first, 0
        dims = np.empty(room, np.int64)
        tensor = _tensors(
            cursor, layout, itemsizes, max_rank, names, codes.data, dims.data, dim_offsets.data, ends.data
        )
    if layout == 0 and cursor.fault == 0:
        tensor = _index_map(cursor, names)
    _padding(cursor)
    return (
        cursor.fault, cursor.fault_position, tensor, metadata,
        codes, dims[: dim_offsets[count]].copy(), dim_offsets, ends,
        (names.begins, names.ends),
    )  # fmt: skip


@cython.final
@cython.cclass
class Names:
    """Where each name is. Names are checked here and decoded when somebody asks."""

    header: bytes
    longest: cython.longlong
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    begins: Any
    ends: Any
    begin_column: cython.longlong[::1]
    end_column: cython.longlong[::1]

    def __init__(self, header: bytes, count: cython.Py_ssize_t, longest: cython.longlong) -> None:
        self.header = header
        self.longest = longest
        self.begins = np.empty(count, np.int64)
        self.begins.fill(-1)
        self.ends = np.empty(count, np.int64)
        self.begin_column = self.begins.data
        self.end_column = self.ends.data

    @cython.cfunc
    @cython.exceptval(check=False)
    def read(self, cursor: Cursor) -> cython.int:
        """Passes over a name, and remembers its span."""
        start: cython.Py_ssize_t = cursor.position
        nbytes: cython.ulonglong = cursor.varint()
        i: cython.Py_ssize_t
        seen: cython.ulonglong = 0
        if cursor.fault != 0:
            return 0
        if nbytes > cython.cast(cython.ulonglong, cursor.size - cursor.position):
            return cursor.fail(HEADER_END, start)
        if nbytes > cython.cast(cython.ulonglong, self.longest):
            return cursor.fail(LIMIT_NAME, start)
        self.begin = cursor.position
        self.end = self.begin + cython.cast(cython.Py_ssize_t, nbytes)
        i = self.begin
        while i + 8 <= self.end:
            seen |= _word(cursor.data, i)
            i += 8
        while i < self.end:
            seen |= cursor.data[i]
            i += 1
        if seen & _NOT_ASCII != 0 and not _is_utf8(self.header, self.begin, self.end):
            return cursor.fail(UTF8, self.begin)
        cursor.position = self.end
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def keep(self, row: cython.Py_ssize_t) -> cython.int:
        """The name that was read is that of `row`."""
        self.begin_column[row] = self.begin
        self.end_column[row] = self.end
        return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word(data: cython.const[cython.uchar][::1], i: cython.Py_ssize_t) -> cython.ulonglong:
    """Eight bytes as a number, in the machine's order."""
    word: cython.ulonglong = 0
    if cython.compiled:
        memcpy(cython.address(word), cython.address(data[i]), 8)
        return word
    return int.from_bytes(data[i : i + 8], sys.byteorder)


@cython.cfunc
@cython.exceptval(check=False)
def _is_utf8(header: bytes, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    try:
        header[begin:end].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _count(cursor: Cursor, least: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """A number of items that take at least `least` bytes each: more than could follow is a fault."""
    start: cython.Py_ssize_t = cursor.position
    count: cython.ulonglong = cursor.varint()
    if count > cython.cast(cython.ulonglong, (cursor.size - cursor.position) // least):
        return cursor.fail(COUNT, start)
    return count


@cython.cfunc
def _text(cursor: Cursor, header: bytes) -> object:
    start: cython.Py_ssize_t = cursor.position
    nbytes: cython.ulonglong = cursor.varint()
    if nbytes > cython.cast(cython.ulonglong, cursor.size - cursor.position):
        cursor.fail(HEADER_END, start)
    if cursor.fault != 0:
        return ""
    start = cursor.position
    cursor.position += cython.cast(cython.Py_ssize_t, nbytes)
    if not _is_utf8(header, start, cursor.position):
        cursor.fail(UTF8, start)
        return ""
    return header[start : cursor.position].decode("utf-8")


@cython.cfunc
def _metadata(cursor: Cursor, header: bytes) -> object:
    tag: cython.int = cursor.byte()
    if tag > 1:
        cursor.fail(OPTION_TAG, cursor.position - 1)
    if tag != 1 or cursor.fault != 0:
        return None
    pairs: dict[Any, Any] = {}
    count: cython.Py_ssize_t = _count(cursor, 2)
    start: cython.Py_ssize_t
    for _ in range(count):
        start = cursor.position
        key: object = _text(cursor, header)
        if cursor.fault == 0 and key in pairs:
            cursor.fail(METADATA_DUPLICATE, start)
        value: object = _text(cursor, header)
        if cursor.fault != 0:
            break
        pairs[key] = value
    return pairs


@cython.cfunc
def _tensors(
    cursor: Cursor,
    layout: cython.int,
    itemsizes: bytes,
    max_rank: cython.longlong,
    names: Names,
    codes: cython.uchar[::1],
    dims: cython.longlong[::1],
    dim_offsets: cython.longlong[::1],
    ends: cython.longlong[::1],
) -> cython.longlong:
    """Fills the columns; returns the position of the tensor at which it stopped, or -1."""
    count: cython.Py_ssize_t = len(codes)
    kinds: cython.const[cython.uchar][::1] = itemsizes
    row: cython.Py_ssize_t
    filled: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    code: cython.ulonglong
    rank: cython.ulonglong
    dim: cython.ulonglong
    begin: cython.ulonglong
    end: cython.ulonglong
    product: cython.ulonglong
    nbytes: cython.ulonglong
    expected: cython.ulonglong = 0
    for row in range(count):
        if layout == 1:
            names.read(cursor)
            if cursor.fault != 0:
                return row
            names.keep(row)
        start = cursor.position
        code = cursor.varint()
        if code >= cython.cast(cython.ulonglong, len(kinds)):
            cursor.fail(DTYPE, start)
        start = cursor.position
        rank = cursor.varint()
        if rank > cython.cast(cython.ulonglong, cursor.size - cursor.position):
            cursor.fail(COUNT, start)
        if rank > cython.cast(cython.ulonglong, max_rank):
            cursor.fail(LIMIT_RANK, start)
        if cursor.fault != 0:
            return row
        if filled + cython.cast(cython.Py_ssize_t, rank) > len(dims):
            cursor.fail(_ROOM, start)
            return row
        product = kinds[code]
        nbytes = product
        for _ in range(cython.cast(cython.Py_ssize_t, rank)):
            start = cursor.position
            dim = cursor.varint()
            if (dim | product) >> 31 != 0 and (dim > _MAX or (dim > 1 and product > _MAX // dim)):
                cursor.fail(DIMS, start)
            if cursor.fault != 0:
                return row
            if dim != 0:
                product *= dim
                nbytes *= dim
            else:
                nbytes = 0
            dims[filled] = dim
            filled += 1
        start = cursor.position
        begin = cursor.varint()
        end = cursor.varint()
        if begin != expected or end < begin or end > _MAX:
            cursor.fail(OFFSETS, start)
        elif end - begin != nbytes:
            cursor.fail(SIZE, start)
        if cursor.fault != 0:
            return row
        expected = end
        codes[row] = code
        ends[row] = end
        dim_offsets[row + 1] = filled
    return -1


@cython.cfunc
def _index_map(cursor: Cursor, names: Names) -> cython.longlong:
    """Layout 0: names and the positions that they belong to, each position exactly once.

    At a fault the name of the entry stands where the returned position says.
    """
    start: cython.Py_ssize_t = cursor.position
    count: cython.Py_ssize_t = len(names.begin_column)
    row: cython.Py_ssize_t
    target: cython.ulonglong
    if cursor.varint() != cython.cast(cython.ulonglong, count):
        cursor.fail(MAP_COUNT, start)
    if cursor.fault != 0:
        return -1
    for row in range(count):
        names.read(cursor)
        if cursor.fault != 0:
            return -1
        start = cursor.position
        target = cursor.varint()
        if target >= cython.cast(cython.ulonglong, count):
            cursor.fail(MAP_RANGE, start)
        elif names.begin_column[target] >= 0:
            cursor.fail(MAP_ALIAS, start)
        if cursor.fault != 0:
            names.keep(row)
            return row
        names.keep(target)
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def _padding(cursor: Cursor) -> cython.int:
    i: cython.Py_ssize_t
    if cursor.fault != 0:
        return 0
    if cursor.size - cursor.position > 7:
        return cursor.fail(PADDING_LENGTH, cursor.position)
    for i in range(cursor.position, cursor.size):
        if cursor.data[i] != 0x20:
            return cursor.fail(PADDING_BYTE, i)
    return 0


def encode(
    layout: cython.int,
    metadata: Any,
    text: bytes,
    text_offsets: Any,
    codes: bytes,
    dims: Any,
    dim_offsets: Any,
    ends: Any,
    by_name: Any,
) -> bytearray:
    """The header, padded. Tensors are contiguous: each begins where the one before it ends.

    `metadata` is None or a list of keys and values in turn, as bytes; name i is
    text[text_offsets[i]:text_offsets[i + 1]]; `by_name` orders the index map of layout 0.
    """
    count: cython.Py_ssize_t = len(codes)
    capacity: cython.Py_ssize_t = 64 + 9 * len(dims) + 48 * count + len(text)
    if metadata is not None:
        capacity += 9 * len(metadata) + sum(map(len, metadata))
    buffer: bytearray = bytearray(capacity)
    out: cython.uchar[::1] = memoryview(buffer)
    position: cython.Py_ssize_t = 1
    if metadata is not None:
        out[0] = 1
        position = _put(out, position, len(metadata) // 2)
        for item in metadata:
            position = _put(out, position, len(item))
            buffer[position : position + len(item)] = item
            position += len(item)
    position = _put_tensors(
        out, position, layout, text, memoryview(text_offsets), codes,
        memoryview(dims), memoryview(dim_offsets), memoryview(ends), memoryview(by_name),
    )  # fmt: skip
    while position % 8 != 0:
        out[position] = 0x20
        position += 1
    del out
    del buffer[position:]
    return buffer


@cython.cfunc
@cython.exceptval(check=False)
def _put(out: cython.uchar[::1], position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    width: cython.int
    i: cython.int
    if value < 251:
        out[position] = value
        return position + 1
    if value <= 0xFFFF:
        out[position], width = 251, 2
    elif value <= 0xFFFF_FFFF:
        out[position], width = 252, 4
    else:
        out[position], width = 253, 8
    for i in range(width):
        out[position + 1 + i] = (value >> (8 * i)) & 0xFF
    return position + 1 + width


@cython.cfunc
def _put_tensors(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    layout: cython.int,
    text: cython.const[cython.uchar][::1],
    text_offsets: cython.const[cython.longlong][::1],
    codes: cython.const[cython.uchar][::1],
    dims: cython.const[cython.longlong][::1],
    dim_offsets: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    by_name: cython.const[cython.longlong][::1],
) -> cython.Py_ssize_t:
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    begin: cython.longlong = 0
    count: cython.Py_ssize_t = len(codes)
    position = _put(out, position, count)
    for row in range(count):
        if layout == 1:
            position = _put_name(out, position, text, text_offsets[row], text_offsets[row + 1])
        position = _put(out, position, codes[row])
        position = _put(out, position, dim_offsets[row + 1] - dim_offsets[row])
        for i in range(dim_offsets[row], dim_offsets[row + 1]):
            position = _put(out, position, dims[i])
        position = _put(out, position, begin)
        position = _put(out, position, ends[row])
        begin = ends[row]
    if layout == 0:
        position = _put(out, position, count)
        for i in range(count):
            row = by_name[i]
            position = _put_name(out, position, text, text_offsets[row], text_offsets[row + 1])
            position = _put(out, position, row)
    return position


@cython.cfunc
def _put_name(
    out: cython.uchar[::1],
    position: cython.Py_ssize_t,
    text: cython.const[cython.uchar][::1],
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    position = _put(out, position, end - begin)
    if cython.compiled:  # a slice of a memoryview costs more than a name is long
        for i in range(end - begin):
            out[position + i] = text[begin + i]
    else:
        out[position : position + end - begin] = text[begin:end]
    return position + end - begin
