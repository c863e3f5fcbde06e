"""Scans the header of a BinTensors file to columns.

`scan` walks the header once, checks every rule that concerns one value, and returns
columns or the first fault. A header does not say which of two layouts it has (layout 1
stores the name with each tensor, layout 0 in an index map at the end), so both are tried,
and a walk normally stops at the first fault. If no layout fits, a `thorough` walk
continues past values that break a rule, as long as it is clear where the next value
begins: the layout whose fields end exactly at the end of the header is most likely the
file's, and its fault is the one to report.
"""

from __future__ import annotations

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
        little,
        longlongs_at,
        longlongs_of,
        uchars_of,
    )

# Faults. The format's module has the message of each.
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

_MAX = cython.declare(cython.ulonglong, 0x7FFF_FFFF_FFFF_FFFF)


@cython.final
@cython.cclass
class Cursor:
    """A position in the header, and the first fault.

    Invariant: position <= size, and every read compares what it needs with size - position
    first. A walk that ends early sets position to size, so that every later read yields zero
    and callers need not check after each one.
    """

    header: bytes
    data: cython.p_const_uchar
    size: cython.Py_ssize_t
    position: cython.Py_ssize_t
    thorough: cython.bint
    ended: cython.bint
    broken: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    row: cython.Py_ssize_t
    named: cython.bint
    fault: cython.int
    fault_position: cython.Py_ssize_t
    fault_row: cython.Py_ssize_t
    fault_name: object

    def __init__(self, header: bytes, thorough: cython.bint) -> None:
        self.header = header
        self.data = header
        self.size = len(header)
        self.position = 0
        self.thorough = thorough
        self.ended = False
        self.broken = 0
        self.begin = self.end = 0
        self.row = -1
        self.named = False
        self.fault = self.fault_position = 0
        self.fault_row = -1
        self.fault_name = None

    @cython.cfunc
    @cython.exceptval(check=False)
    def note(self, fault: cython.int, position: cython.Py_ssize_t) -> cython.int:
        """Records a value that breaks a rule, where the begin of the next value is still clear."""
        self.broken += 1
        if self.fault == 0:
            self.fault = fault
            self.fault_position = position
            self.fault_row = self.row
            if self.named:
                self.fault_name = self.string()
        if not self.thorough:
            self.stop()
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def fail(self, fault: cython.int, position: cython.Py_ssize_t) -> cython.int:
        """Records a fault after which the rest of the header cannot be read."""
        self.note(fault, position)
        self.stop()
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def stop(self) -> cython.int:
        self.ended = True
        self.position = self.size
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def byte(self) -> cython.int:
        if self.position >= self.size:
            return self.fail(HEADER_END, self.position)
        self.position += 1
        return self.data[self.position - 1]

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def varint(self) -> cython.ulonglong:
        """Reads bincode's varint: one byte below 251, or the tag 251, 252 or 253 and a u16, u32 or u64."""
        start: cython.Py_ssize_t = self.position
        value: cython.ulonglong
        # Valid ones below 2**32 are read here: a call for each would be a quarter of the instructions of a scan.
        if self.size - start > 4:
            value = self.data[start]
            if value < 251:
                self.position = start + 1
                return value
            if value == 251:
                value = little(self.data, start + 1, 2)
                if value >= 251:
                    self.position = start + 3
                    return value
            elif value == 252:
                value = little(self.data, start + 1, 4)
                if value >= 0x1_0000:
                    self.position = start + 5
                    return value
        return self.long_varint()

    @cython.cfunc
    @cython.exceptval(check=False)
    def long_varint(self) -> cython.ulonglong:
        start: cython.Py_ssize_t = self.position
        tag: cython.int = self.byte()
        width: cython.Py_ssize_t
        value: cython.ulonglong
        least: cython.ulonglong
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
        value = little(self.data, self.position, width)
        self.position += width
        if value < least:
            self.note(VARINT_LONG, start)
        return value

    @cython.cfunc
    @cython.exceptval(check=False)
    def count(self, least: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Reads the number of items that follow, each of at least `least` bytes; more than fit is a fault."""
        start: cython.Py_ssize_t = self.position
        count: cython.ulonglong = self.varint()
        if count > cython.cast(cython.ulonglong, (self.size - self.position) // least):
            return self.fail(COUNT, start)
        return count

    @cython.cfunc
    @cython.exceptval(check=False)
    def text(self, longest: cython.longlong) -> cython.bint:
        """Skips a text and sets `begin` and `end` to its bytes; returns whether it is valid."""
        start: cython.Py_ssize_t = self.position
        nbytes: cython.ulonglong = self.varint()
        if nbytes > cython.cast(cython.ulonglong, self.size - self.position):
            self.fail(HEADER_END, start)
        if self.ended:
            return False
        self.begin = self.position
        self.end = self.begin + cython.cast(cython.Py_ssize_t, nbytes)
        self.position = self.end
        if nbytes > cython.cast(cython.ulonglong, longest):
            self.note(LIMIT_NAME, start)
            return False
        if not is_ascii(self.data, self.begin, self.end) and invalid_utf8(self.data, self.begin, self.end) >= 0:
            self.note(UTF8, self.begin)
            return False
        return True

    @cython.cfunc
    def string(self) -> object:
        """The text that was skipped last, which was valid."""
        return self.header[self.begin : self.end].decode("utf-8")


@cython.final
@cython.cclass
class Columns:
    """The columns that a scan fills, and a pointer to the memory of each.

    They are allocated for the first tensor that is stored: of the two layouts that are tried, the wrong one most
    often ends before it, and allocating them would be three quarters of its instructions. A name that is not known
    yet begins at 0, where no name can be.
    """

    codes: Any
    dims: Any
    numbers: Any
    """Begins and ends of the tensors in the file, of their names in the header; offsets of shapes in `dims`."""
    code: cython.p_uchar
    dim: cython.p_longlong
    dim_offset: cython.p_longlong
    tensor_begin: cython.p_longlong
    tensor_end: cython.p_longlong
    name_begin: cython.p_longlong
    name_end: cython.p_longlong
    rows: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    filled: cython.Py_ssize_t
    allocated: cython.bint

    def __init__(self, rows: cython.Py_ssize_t, capacity: cython.Py_ssize_t) -> None:
        self.rows = rows
        self.capacity = capacity
        self.filled = 0
        self.allocated = False

    @cython.cfunc
    def allocate(self) -> cython.int:
        rows: cython.Py_ssize_t = self.rows
        self.allocated = True
        self.codes = np.empty(rows, np.uint8)
        self.dims = np.empty(self.capacity, np.int64)
        self.numbers = np.empty(5 * rows + 1, np.int64)  # one allocation is faster than one for each column
        self.code = uchars_of(self.codes)
        self.dim = longlongs_of(self.dims)
        self.tensor_begin = longlongs_of(self.numbers)
        self.tensor_end = longlongs_at(self.tensor_begin, rows)
        self.name_begin = longlongs_at(self.tensor_begin, 2 * rows)
        self.name_end = longlongs_at(self.tensor_begin, 3 * rows)
        self.dim_offset = longlongs_at(self.tensor_begin, 4 * rows)
        row: cython.Py_ssize_t
        for row in range(rows):  # every other number is stored before it is used
            self.name_begin[row] = 0
        self.dim_offset[0] = 0
        return 0

    @cython.cfunc
    def reserve(self, count: cython.Py_ssize_t) -> cython.int:
        """Makes room for `count` more dimensions."""
        self.capacity = max(2 * self.capacity, self.filled + count)
        dims: Any = np.empty(self.capacity, np.int64)
        dims[: self.filled] = self.dims[: self.filled]
        self.dims = dims
        self.dim = longlongs_of(dims)
        return 0


def scan(
    header: bytes,
    layout: cython.int,
    itemsizes: bytes,
    kept_codes: bytes,
    max_tensors: cython.longlong,
    max_rank: cython.longlong,
    max_name: cython.longlong,
    thorough: cython.bint = False,
) -> tuple[Any, ...]:
    """Returns (fault, position, name of the tensor at fault or None, broken, contents).

    `broken` is the number of values that break a rule, or -1 if the walk ended before the end
    of the header. `contents` is None if there is a fault; otherwise metadata, dtype codes
    (translated by `kept_codes`), dims, dim offsets, begins and ends of the tensors in the
    file, and begins and ends of their names in the header. `itemsizes` has the size of an
    element for each dtype code.
    """
    cursor: Cursor = Cursor(header, thorough)
    metadata: Any = _scan_metadata(cursor)
    count: cython.Py_ssize_t = cursor.count(5 if layout == 1 else 4)
    if count > max_tensors:
        cursor.fail(LIMIT_TENSORS, cursor.position)
    if cursor.ended:
        count = 0
    columns: Columns = Columns(count, min(cursor.size, 4 * count + 64))
    if thorough:  # the name of the tensor at fault is wanted, even of the first
        columns.allocate()
    _scan_tensors(cursor, layout, itemsizes, kept_codes, max_rank, max_name, columns)
    if layout == 0:
        _scan_index_map(cursor, max_name, columns)
    _scan_padding(cursor)
    tensor: Any = cursor.fault_name
    known: cython.bint = columns.allocated and 0 <= cursor.fault_row < count
    if tensor is None and known and columns.name_begin[cursor.fault_row] > 0:
        cursor.begin = columns.name_begin[cursor.fault_row]
        cursor.end = columns.name_end[cursor.fault_row]
        tensor = cursor.string()
    broken: cython.Py_ssize_t = -1 if cursor.ended else cursor.broken
    if cursor.fault != 0:
        return cursor.fault, cursor.fault_position, tensor, broken, None
    if not columns.allocated:  # no tensors
        columns.allocate()
    numbers: Any = columns.numbers
    dims: Any = columns.dims[: columns.filled].copy()
    found: tuple[Any, ...] = (
        metadata, columns.codes, dims, numbers[4 * count :], numbers[:count], numbers[count : 2 * count],
        numbers[2 * count : 3 * count], numbers[3 * count : 4 * count],
    )  # fmt: skip
    return OK, 0, None, broken, found


@cython.cfunc
def _scan_metadata(cursor: Cursor) -> object:
    tag: cython.int = cursor.byte()
    if tag > 1:
        cursor.fail(OPTION_TAG, cursor.position - 1)
    if tag != 1 or cursor.ended:
        return None
    pairs: dict[Any, Any] = {}
    start: cython.Py_ssize_t
    # Invariant: `pairs` has the pairs before the cursor. `count` bounds their number by half the bytes that are left.
    for _ in range(cursor.count(2)):
        start = cursor.position
        key: object = cursor.string() if cursor.text(cursor.size) else None
        if key in pairs:
            cursor.note(METADATA_DUPLICATE, start)
        if cursor.text(cursor.size):
            pairs[key] = cursor.string()
        if cursor.ended:
            break
    return pairs


@cython.cfunc
def _scan_tensors(
    cursor: Cursor,
    layout: cython.int,
    itemsizes: bytes,
    kept_codes: bytes,
    max_rank: cython.longlong,
    max_name: cython.longlong,
    columns: Columns,
) -> cython.void:
    """Scans each tensor's name (in layout 1), dtype, shape, begin and end into the columns.

    After a fault, a thorough walk continues, but the columns are not used.
    """
    itemsize: cython.p_const_uchar = itemsizes
    kept_code: cython.p_const_uchar = kept_codes
    kinds: cython.ulonglong = min(len(itemsizes), len(kept_codes))
    data: cython.ulonglong = 8 + cursor.size
    last: cython.ulonglong = _MAX - data
    named: cython.bint
    row: cython.Py_ssize_t
    start: cython.Py_ssize_t
    code: cython.ulonglong
    rank: cython.ulonglong
    nbytes: cython.ulonglong
    begin: cython.ulonglong
    end: cython.ulonglong
    expected: cython.ulonglong = 0
    # Invariant: the tensors before `row` are stored, or one of them is at fault; the last one ends at `expected`.
    for row in range(columns.rows):
        cursor.row = -1
        named = layout == 1 and cursor.text(max_name)
        if named and columns.allocated:
            columns.name_begin[row] = cursor.begin
            columns.name_end[row] = cursor.end
        cursor.row = row
        start = cursor.position
        code = cursor.varint()
        if code >= kinds:
            cursor.note(DTYPE, start)
            code = 0
        start = cursor.position
        rank = cursor.varint()
        if rank > cython.cast(cython.ulonglong, cursor.size - cursor.position):
            cursor.fail(COUNT, start)
        if rank > cython.cast(cython.ulonglong, max_rank):
            cursor.note(LIMIT_RANK, start)
        if cursor.ended:
            return
        if not columns.allocated:  # the first tensor
            columns.allocate()
            if named:
                columns.name_begin[row] = cursor.begin
                columns.name_end[row] = cursor.end
        nbytes = _scan_dims(cursor, cython.cast(cython.Py_ssize_t, rank), itemsize[code], columns)
        start = cursor.position
        begin = cursor.varint()
        end = cursor.varint()
        if begin != expected or end < begin or end > _MAX:
            cursor.note(OFFSETS, start)
        elif end - begin != nbytes:
            cursor.note(SIZE, start)
        if cursor.ended:
            return
        expected = end
        columns.code[row] = kept_code[code]
        columns.tensor_begin[row] = data + min(begin, last)
        columns.tensor_end[row] = data + min(end, last)
        columns.dim_offset[row + 1] = columns.filled
    cursor.row = -1


@cython.cfunc
@cython.inline
def _scan_dims(
    cursor: Cursor, rank: cython.Py_ssize_t, itemsize: cython.ulonglong, columns: Columns
) -> cython.ulonglong:
    """Scans the dimensions of one tensor and returns its size in bytes.

    The product of the dimensions that are not zero must also stay below 2**63, so that no
    reader overflows, in whatever order it multiplies.
    """
    product: cython.ulonglong = itemsize
    nbytes: cython.ulonglong = itemsize
    dim: cython.ulonglong
    start: cython.Py_ssize_t
    if rank > columns.capacity - columns.filled and cursor.fault == 0:
        columns.reserve(rank)
    dims: cython.p_longlong = columns.dim
    filled: cython.Py_ssize_t = columns.filled
    # Invariant: dims[columns.filled:filled] are the tensor's dims so far, and there is room for all `rank` of them.
    # After a fault nothing more is stored. Two factors below 2**31 need no division to be compared with 2**63.
    for _ in range(rank):
        start = cursor.position
        dim = cursor.varint()
        if (dim | product) >> 31 != 0 and (dim > _MAX or (dim > 1 and product > _MAX // dim)):
            cursor.note(DIMS, start)
        if cursor.fault != 0:
            continue
        if dim != 0:
            product *= dim
            nbytes *= dim
        else:
            nbytes = 0
        dims[filled] = dim
        filled += 1
    columns.filled = filled
    return nbytes


@cython.cfunc
def _scan_index_map(cursor: Cursor, max_name: cython.longlong, columns: Columns) -> cython.void:
    """Layout 0: the map of names to the positions of their tensors; each position must occur exactly once."""
    start: cython.Py_ssize_t = cursor.position
    count: cython.ulonglong = cursor.varint()
    rows: cython.ulonglong = columns.rows
    target: cython.ulonglong
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    if count != rows:
        cursor.note(MAP_COUNT, start)
    if count > cython.cast(cython.ulonglong, (cursor.size - cursor.position) // 2):
        cursor.fail(COUNT, start)
    if cursor.ended:
        return
    # Invariant: a row has a name if and only if an earlier pair has its number. A second pair is MAP_ALIAS; so if the
    # count is right and no pair is at fault, every row has exactly one name.
    for _ in range(cython.cast(cython.Py_ssize_t, count)):
        cursor.named = False
        cursor.named = cursor.text(max_name)
        begin, end = cursor.begin, cursor.end
        start = cursor.position
        target = cursor.varint()
        if target >= rows:
            cursor.note(MAP_RANGE, start)
        elif columns.name_begin[target] > 0:
            cursor.note(MAP_ALIAS, start)
        elif cursor.named:
            columns.name_begin[target] = begin
            columns.name_end[target] = end
        if cursor.ended:
            return
    cursor.named = False


@cython.cfunc
@cython.exceptval(check=False)
def _scan_padding(cursor: Cursor) -> cython.int:
    i: cython.Py_ssize_t
    if cursor.size - cursor.position > 7:
        return cursor.fail(PADDING_LENGTH, cursor.position)
    for i in range(cursor.position, cursor.size):
        if cursor.data[i] != 0x20:
            return cursor.note(PADDING_BYTE, i)
    return 0
