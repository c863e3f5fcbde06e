"""The wire format of Protocol Buffers: the fields of a message, and the dense tensors of an ONNX graph as columns.

Both scans stop before a field whose head is not all there and before any that breaks a rule, and
leave that to the caller, who has the messages. So do tensors that have anything unusual.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

_VARINT = cython.declare(cython.int, 0)
_FIXED64 = cython.declare(cython.int, 1)
_BYTES = cython.declare(cython.int, 2)
_FIXED32 = cython.declare(cython.int, 5)
_MASK = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)
_TENSOR = cython.declare(cython.ulonglong, 5)
_SPARSE_TENSOR = cython.declare(cython.ulonglong, 15)
_COUNT_END = cython.declare(cython.ulonglong, 1 << 60)
_TYPES = cython.declare(cython.ulonglong, 256)


def scan_fields(
    data: bytes,
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.Py_ssize_t,
    make: Any,
    found: list[Any],
) -> tuple[int, int]:
    """Scans fields from `at` up to `end`; returns where it stopped, and how many of `left` bytes may still be read.

    `data` are the bytes of the file from `base` on. `make` is called with number, kind, value
    of a varint, begin and end of each field, and the result appended to `found`.
    """
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = at - base
    limit: cython.Py_ssize_t = end - base
    after: cython.Py_ssize_t
    first: cython.Py_ssize_t
    contents_end: cython.Py_ssize_t
    key: cython.ulonglong
    value: cython.ulonglong
    # Invariant: `found` has the fields before `position`; a byte is read only below `size`.
    while position < limit and position < size:
        after = _end(raw, position, limit, size)
        if after < 0:
            break
        key = _value(raw, position, after)
        first = _number_end(raw, key, after, limit, size)
        if first < 0:
            break
        value = _value(raw, after, first)
        contents_end = _contents_end(key, value, first, limit)
        if contents_end < 0 or first - position > left:
            break
        left -= first - position
        if key & 7 == _VARINT:
            found.append(make(key >> 3, key & 7, value, base + after, base + first))
        else:
            found.append(make(key >> 3, key & 7, 0, base + first, base + contents_end))
        position = contents_end
    return base + position, left


def scan_tensors(
    data: bytes,
    base: cython.Py_ssize_t,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
    max_rank: cython.Py_ssize_t,
    columns: Any,
) -> tuple[int, int]:
    """Scans fields from `at` up to `end`; returns where it stopped, and how many of `left` bytes may still be read.

    `data` are the bytes of the file from `base` on. Tensors are added to the columns until
    there are `most`: where the message begins, its name, type, rank and number of elements,
    the field of its values (0 for none), their begin and their end; and to the last column
    all dimensions.
    """
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = at - base
    limit: cython.Py_ssize_t = end - base
    after: cython.Py_ssize_t
    first: cython.Py_ssize_t
    contents_end: cython.Py_ssize_t
    spent: cython.Py_ssize_t
    inside: cython.Py_ssize_t
    key: cython.ulonglong
    value: cython.ulonglong
    # Invariant: fields before `position` are done, and columns have their tensors; a byte is read only below `size`.
    while position < limit and position < size:
        after = _end(raw, position, limit, size)
        if after < 0:
            break
        key = _value(raw, position, after)
        first = _number_end(raw, key, after, limit, size)
        if first < 0:
            break
        value = _value(raw, after, first)
        spent = first - position
        contents_end = _contents_end(key, value, first, limit)
        if contents_end < 0 or spent > left or key >> 3 == _SPARSE_TENSOR:
            break
        if key >> 3 == _TENSOR:
            if key & 7 != _BYTES or len(columns[0]) >= most:
                break
            inside = _add_tensor(data, base, first, contents_end, left - spent, max_rank, columns)
            if inside < 0:
                break
            spent += inside
        left -= spent
        position = contents_end
    return base + position, left


@cython.cfunc
def _add_tensor(
    data: bytes,
    base: cython.Py_ssize_t,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    left: cython.Py_ssize_t,
    max_rank: cython.Py_ssize_t,
    columns: Any,
) -> cython.Py_ssize_t:
    """Adds the tensor of a message to the columns; returns how many of `left` bytes were read.

    -1, and nothing is added, for a message that has anything unusual, or needs more bytes.
    """
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = begin
    after: cython.Py_ssize_t
    first: cython.Py_ssize_t
    spent: cython.Py_ssize_t = 0
    key: cython.ulonglong
    value: cython.ulonglong
    rank: cython.Py_ssize_t = 0
    name: Any = None
    type: cython.ulonglong = 0
    typed: cython.bint = False
    located: cython.bint = False
    empty: cython.bint = False
    whole: cython.ulonglong = 1
    field: cython.ulonglong = 0
    values: cython.Py_ssize_t = -base
    values_end: cython.Py_ssize_t = -base
    sizes: list[Any] = []
    # Invariant: the fields of the message before `position` are in the variables above.
    while position < end:
        after = _end(raw, position, end, size)
        if after < 0:
            return -1
        key = _value(raw, position, after)
        first = _number_end(raw, key, after, end, size)
        if first < 0:
            return -1
        value = _value(raw, after, first)
        spent += first - position
        position = _contents_end(key, value, first, end)
        if position < 0:
            return -1
        if key == 1 << 3:  # dims
            rank += 1
            whole = _product(whole, value)
            if rank > max_rank or whole == 0:
                return -1
            empty = empty or value == 0
            sizes.append(value)
        elif key == 2 << 3:  # data_type
            if typed or value >= _TYPES:
                return -1
            type = value
            typed = True
        elif key == (8 << 3 | _BYTES):  # name
            spent += position - first
            if name is not None or position > size:
                return -1
            try:
                name = data[first:position].decode("utf-8")
            except UnicodeDecodeError:
                return -1
        elif key == 14 << 3:  # data_location
            if located or value != 0:
                return -1
            located = True
        elif _is_data(key):
            if field != 0:
                return -1
            field = key >> 3
            values = first
            values_end = position
        elif key >> 3 <= 14 and key >> 3 != 12:  # a field that tensors have, in another form
            return -1
    if spent > left:
        return -1
    begins, names, types, ranks, counts, fields, firsts, ends, dims = columns
    begins.append(base + begin)
    names.append("" if name is None else name)
    types.append(type)
    ranks.append(rank)
    counts.append(0 if empty else whole)
    fields.append(field)
    firsts.append(base + values)
    ends.append(base + values_end)
    dims.extend(sizes)
    return spent


def text_pair(data: bytes) -> tuple[str, str] | None:
    """The texts of the fields 1 and 2 of a message, "" for one that it lacks; None if it has anything else."""
    raw: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    position: cython.Py_ssize_t = 0
    after: cython.Py_ssize_t
    first: cython.Py_ssize_t
    key: cython.ulonglong
    value: cython.ulonglong
    texts: list[Any] = [None, None]
    # Invariant: the fields before `position` are done; a byte is read only below `size`.
    while position < size:
        after = _end(raw, position, size, size)
        if after < 0:
            return None
        key = _value(raw, position, after)
        first = _end(raw, after, size, size)
        if (key != (1 << 3 | _BYTES) and key != (2 << 3 | _BYTES)) or first < 0:
            return None
        value = _value(raw, after, first)
        position = _contents_end(key, value, first, size)
        if position < 0 or texts[(key >> 3) - 1] is not None:
            return None
        try:
            texts[(key >> 3) - 1] = data[first:position].decode("utf-8")
        except UnicodeDecodeError:
            return None
    return texts[0] or "", texts[1] or ""


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _end(
    raw: cython.p_const_uchar, at: cython.Py_ssize_t, limit: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where a varint ends; -1 if it has more than ten bytes or not all of them are there."""
    after: cython.Py_ssize_t = at
    while after < limit and after < size and after - at < 10:
        if raw[after] < 0x80:
            return after + 1
        after += 1
    return -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _number_end(
    raw: cython.p_const_uchar,
    key: cython.ulonglong,
    at: cython.Py_ssize_t,
    limit: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Where the number after a key ends: a varint, a length, or nothing; -1 as `_end`."""
    if key & 7 == _VARINT or key & 7 == _BYTES:
        return _end(raw, at, limit, size)
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _product(count: cython.ulonglong, value: cython.ulonglong) -> cython.ulonglong:
    """The product of all dimensions but the zeros; 0 where that is 2**60 or more."""
    if value == 0:
        return count
    if value >= _COUNT_END or count >= _COUNT_END // value + (_COUNT_END % value != 0):
        return 0
    return count * value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _value(raw: cython.p_const_uchar, at: cython.Py_ssize_t, after: cython.Py_ssize_t) -> cython.ulonglong:
    """The number of a varint that ends at `after`."""
    value: cython.ulonglong = 0
    while after > at:
        after -= 1
        value = (value << 7 | (raw[after] & 0x7F)) & _MASK
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _contents_end(
    key: cython.ulonglong, value: cython.ulonglong, first: cython.Py_ssize_t, limit: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where a field ends whose contents begin at `first`; -1 if it breaks a rule of the wire format."""
    kind: cython.ulonglong = key & 7
    room: cython.ulonglong = limit - first
    if key >> 3 == 0:
        return -1
    if kind == _VARINT:
        return first
    if kind == _BYTES:
        return first + cython.cast(cython.Py_ssize_t, value) if value <= room else -1
    if kind == _FIXED64:
        return first + 8 if room >= 8 else -1
    return first + 4 if kind == _FIXED32 and room >= 4 else -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_data(key: cython.ulonglong) -> cython.bint:
    """Whether a field has the values of a tensor, packed: float, int32, int64, raw, double, uint64."""
    number: cython.ulonglong = key >> 3
    if key & 7 != _BYTES:
        return False
    return number == 4 or number == 5 or number == 7 or number == 9 or number == 10 or number == 11
