"""Writes the headers of BinTensors and safetensors and the index of zTensor 0.1, from columns.

Each function allocates an upper bound, writes the entries one after another and cuts the
rest off. The columns are trusted: they are those of an index. Name i is
text[text_offsets[i]:text_offsets[i + 1]], and tensor i has the dims
dims[dim_offsets[i]:dim_offsets[i + 1]].
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import copy, longlongs_of, uchars_of
else:
    from tensorglot.kernels.primitives import copy, longlongs_of, uchars_of

_UINT = cython.declare(cython.int, 0)
_TEXT = cython.declare(cython.int, 3)
_ARRAY = cython.declare(cython.int, 4)


def bintensors(
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
    """The header, padded with spaces to a multiple of 8. Tensors are contiguous, the first begins at 0.

    `metadata` is None or a list of keys and values in turn, as bytes. `by_name` has the rows in
    the order of the index map of layout 0.
    """
    count: cython.Py_ssize_t = len(codes)
    # A varint takes at most nine bytes. A dimension is one; a tensor has six: name's length, dtype, rank, begin, end
    # and index. The 64 are for three counts, the tag and the padding.
    capacity: cython.Py_ssize_t = 64 + 9 * len(dims) + 54 * count + len(text)
    if metadata is not None:
        capacity += 9 * len(metadata) + sum(map(len, metadata))
    buffer: bytearray = bytearray(capacity)
    out: cython.p_uchar = uchars_of(buffer)
    name: cython.p_const_uchar = uchars_of(text)
    name_offset: cython.p_const_longlong = longlongs_of(text_offsets)
    dim: cython.p_const_longlong = longlongs_of(dims)
    dim_offset: cython.p_const_longlong = longlongs_of(dim_offsets)
    tensor_end: cython.p_const_longlong = longlongs_of(ends)
    map_row: cython.p_const_longlong = longlongs_of(by_name)
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    begin: cython.longlong = 0
    position: cython.Py_ssize_t = 1
    if metadata is not None:
        out[0] = 1
        position = _put_varint(out, position, len(metadata) // 2)
        for item in metadata:
            position = _put_text(out, position, item, 0, len(item))
    position = _put_varint(out, position, count)
    # Invariant: the entries before `row` end at `position`, and `capacity` leaves room for the rest.
    for row in range(count):
        if layout == 1:
            position = _put_text(out, position, name, name_offset[row], name_offset[row + 1])
        position = _put_varint(out, position, codes[row])
        position = _put_varint(out, position, dim_offset[row + 1] - dim_offset[row])
        for i in range(dim_offset[row], dim_offset[row + 1]):
            position = _put_varint(out, position, dim[i])
        position = _put_varint(out, position, begin)
        position = _put_varint(out, position, tensor_end[row])
        begin = tensor_end[row]
    if layout == 0:
        position = _put_varint(out, position, count)
        for i in range(count):
            row = map_row[i]
            position = _put_text(out, position, name, name_offset[row], name_offset[row + 1])
            position = _put_varint(out, position, row)
    _cut(buffer, out, _pad(out, position))
    return buffer


def safetensors(
    metadata: bytes,
    text: bytes,
    text_offsets: Any,
    codes: bytes,
    dtypes: bytes,
    dtype_offsets: Any,
    dims: Any,
    dim_offsets: Any,
    ends: Any,
) -> bytearray:
    """The header in the form of the `safetensors` package, padded with spaces to a multiple of 8.

    Tensors are contiguous, the first begins at 0. `metadata` is the entry of the metadata as
    JSON, or empty. A name includes its quotes. The dtype with the code c is
    dtypes[dtype_offsets[c]:dtype_offsets[c + 1]].
    """
    # A dimension takes at most 19 digits and a comma; an entry without name and dimensions at most 112 bytes,
    # its two offsets and its dtype included.
    buffer: bytearray = bytearray(16 + len(metadata) + len(text) + 112 * len(codes) + 20 * len(dims))
    out: cython.p_uchar = uchars_of(buffer)
    name: cython.p_const_uchar = uchars_of(text)
    name_offset: cython.p_const_longlong = longlongs_of(text_offsets)
    dtype: cython.p_const_uchar = uchars_of(dtypes)
    dtype_offset: cython.p_const_longlong = longlongs_of(dtype_offsets)
    dim: cython.p_const_longlong = longlongs_of(dims)
    dim_offset: cython.p_const_longlong = longlongs_of(dim_offsets)
    tensor_end: cython.p_const_longlong = longlongs_of(ends)
    code: cython.uchar
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    begin: cython.longlong = 0
    out[0] = 0x7B
    position: cython.Py_ssize_t = _put(out, 1, metadata, 0, len(metadata))
    # Invariant: the entries before `row` end at `position`, and the bound above leaves room for the rest.
    for row in range(len(codes)):
        if position > 1:
            out[position] = 0x2C
            position += 1
        code = codes[row]
        position = _put(out, position, name, name_offset[row], name_offset[row + 1])
        position = _put(out, position, b':{"dtype":"', 0, 11)
        position = _put(out, position, dtype, dtype_offset[code], dtype_offset[code + 1])
        position = _put(out, position, b'","shape":[', 0, 11)
        for i in range(dim_offset[row], dim_offset[row + 1]):
            if i > dim_offset[row]:
                out[position] = 0x2C
                position += 1
            position = _put_digits(out, position, dim[i])
        position = _put(out, position, b'],"data_offsets":[', 0, 18)
        position = _put_digits(out, position, begin)
        out[position] = 0x2C
        position = _put_digits(out, position + 1, tensor_end[row])
        position = _put(out, position, b"]}", 0, 2)
        begin = tensor_end[row]
    out[position] = 0x7D
    _cut(buffer, out, _pad(out, position + 1))
    return buffer


def ztensor_01(
    text: bytes,
    text_offsets: Any,
    dtypes: Any,
    codes: bytes,
    dims: Any,
    dim_offsets: Any,
    offsets: Any,
    sizes: Any,
    fields: list[bytes],
    tails: bytes = b"",
) -> bytearray:
    """The index of zTensor 0.1 in the form of the packages ztensor 0.1.0 to 0.1.4.

    That is a map of indefinite length for each tensor, the keys in the package's order, integers
    in their shortest form. `dtypes` has the name of each element type as CBOR text, by code.
    `fields` has, for each entry, the CBOR of its pairs from the key `encoding` on. `tails` has
    further pairs: the same number of bytes for every entry, concatenated.
    """
    types: list[bytes] = [b"\x65dtype" + name + b"\x66layout\x65dense\x65shape" for name in dtypes]
    buffer: bytearray = bytearray(_bound(text, text_offsets, types, dims, offsets, sizes, fields) + len(tails))
    out: cython.p_uchar = uchars_of(buffer)
    name: cython.p_const_uchar = uchars_of(text)
    name_offset: cython.p_const_longlong = longlongs_of(text_offsets)
    dim: cython.p_const_longlong = longlongs_of(dims)
    dim_offset: cython.p_const_longlong = longlongs_of(dim_offsets)
    offset: cython.p_const_longlong = longlongs_of(offsets)
    size: cython.p_const_longlong = longlongs_of(sizes)
    tail: cython.p_const_uchar = uchars_of(tails)
    tail_nbytes: cython.Py_ssize_t = len(tails) // len(codes) if len(codes) else 0
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    position: cython.Py_ssize_t = _put_head(out, 0, _ARRAY, len(codes))
    # Invariant: the entries before `row` end at `position`. Every `_put` has room, because `_bound` counts the longest
    # head of each column for every entry.
    for row in range(len(codes)):
        position = _put(out, position, b"\xbf\x64name", 0, 6)
        position = _put_head(out, position, _TEXT, name_offset[row + 1] - name_offset[row])
        position = _put(out, position, name, name_offset[row], name_offset[row + 1])
        position = _put(out, position, b"\x66offset", 0, 7)
        position = _put_head(out, position, _UINT, offset[row])
        position = _put(out, position, b"\x64size", 0, 5)
        position = _put_head(out, position, _UINT, size[row])
        pairs: bytes = types[codes[row]]
        position = _put(out, position, pairs, 0, len(pairs))
        position = _put_head(out, position, _ARRAY, dim_offset[row + 1] - dim_offset[row])
        for i in range(dim_offset[row], dim_offset[row + 1]):
            position = _put_head(out, position, _UINT, dim[i])
        pairs = fields[row]
        position = _put(out, position, pairs, 0, len(pairs))
        position = _put(out, position, tail, row * tail_nbytes, (row + 1) * tail_nbytes)
        out[position] = 0xFF
        position += 1
    _cut(buffer, out, position)
    return buffer


def _bound(text: bytes, text_offsets: Any, types: Any, dims: Any, offsets: Any, sizes: Any, fields: Any) -> int:
    """An upper bound of the index's size in bytes. A tight one: unused memory still costs page faults."""
    columns = (np.diff(text_offsets), offsets, sizes)
    heads = sum(_head_nbytes(int(column.max(initial=0))) for column in columns) + _head_nbytes(len(dims))
    entry = len(b"\xbf\x64name\x66offset\x64size\xff") + heads + max(map(len, types), default=0)
    dims_nbytes = _head_nbytes(int(dims.max(initial=0))) * len(dims)
    return 9 + entry * len(fields) + dims_nbytes + len(text) + sum(map(len, fields))


def _head_nbytes(number: int) -> int:
    """The size of the shortest CBOR head with this argument."""
    for most, nbytes in ((23, 1), (0xFF, 2), (0xFFFF, 3), (0xFFFF_FFFF, 5)):
        if number <= most:
            return nbytes
    return 9


# The functions `_put…` write at a position and return the one after it. The caller has room.


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    data: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    copy(out, position, data, begin, end - begin)
    return position + end - begin


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(out: cython.p_uchar, position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    """Bincode's varint: one byte below 251, or the tag 251, 252 or 253 and a u16, u32 or u64."""
    if value < 251:
        out[position] = value
        return position + 1
    return _put_long_varint(out, position, value)


@cython.cfunc
@cython.exceptval(check=False)
def _put_long_varint(out: cython.p_uchar, position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    width: cython.int
    i: cython.int
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
@cython.inline
@cython.exceptval(check=False)
def _put_text(
    out: cython.p_uchar,
    position: cython.Py_ssize_t,
    text: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """A text of bincode: its length as a varint, and its bytes."""
    return _put(out, _put_varint(out, position, end - begin), text, begin, end)


@cython.cfunc
@cython.exceptval(check=False)
def _put_head(
    out: cython.p_uchar, position: cython.Py_ssize_t, major: cython.int, value: cython.longlong
) -> cython.Py_ssize_t:
    """The shortest CBOR head."""
    width: cython.int
    i: cython.int
    if value < 24:
        out[position] = major << 5 | value
        return position + 1
    if value <= 0xFF:
        out[position], width = major << 5 | 24, 1
    elif value <= 0xFFFF:
        out[position], width = major << 5 | 25, 2
    elif value <= 0xFFFF_FFFF:
        out[position], width = major << 5 | 26, 4
    else:
        out[position], width = major << 5 | 27, 8
    for i in range(width):
        out[position + 1 + i] = (value >> (8 * (width - 1 - i))) & 0xFF
    return position + 1 + width


@cython.cfunc
@cython.exceptval(check=False)
def _put_digits(out: cython.p_uchar, position: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
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


@cython.cfunc
@cython.exceptval(check=False)
def _pad(out: cython.p_uchar, position: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Writes spaces up to a multiple of 8."""
    while position % 8 != 0:
        out[position] = 0x20
        position += 1
    return position


@cython.cfunc
def _cut(buffer: bytearray, out: cython.p_uchar, position: cython.Py_ssize_t) -> cython.void:
    """Cuts off the rest of the buffer, to whose memory `out` points."""
    if not cython.compiled:
        out.release()  # the size of a bytearray cannot change while it is lent
    del buffer[position:]
