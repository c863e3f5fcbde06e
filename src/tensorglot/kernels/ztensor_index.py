"""Writes the index of zTensor 0.1, from columns to CBOR.

The caller passes recurring texts already encoded; a loop concatenates them. The form is
that of the packages ztensor 0.1.0 to 0.1.4: a map of indefinite length for each tensor,
the keys in the package's order, integers in their shortest form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import copy, longlongs_in, uchars_in, uchars_out
else:
    from tensorglot.kernels.primitives import copy, longlongs_in, uchars_in, uchars_out

_UINT = cython.declare(cython.int, 0)
_TEXT = cython.declare(cython.int, 3)
_ARRAY = cython.declare(cython.int, 4)


def encode_entries(
    names: bytes,
    name_offsets: Any,
    dtypes: Any,
    codes: bytes,
    dims: Any,
    dim_offsets: Any,
    offsets: Any,
    sizes: Any,
    fields: list[bytes],
    tails: bytes = b"",
) -> bytearray:
    """The index of version 0.1, from CBOR texts and columns.

    Name i is names[name_offsets[i]:name_offsets[i + 1]]. `dtypes` has the name of each element
    type as CBOR text, by code. `fields` has, for each entry, the CBOR of its pairs from the key
    `encoding` on. `tails` has further pairs: the same number of bytes for every entry, concatenated.
    """
    types: list[bytes] = [b"\x65dtype" + text + b"\x66layout\x65dense\x65shape" for text in dtypes]
    buffer: bytearray = bytearray(_bound(names, name_offsets, types, dims, offsets, sizes, fields) + len(tails))
    out: cython.p_uchar = uchars_out(buffer)
    name: cython.p_const_uchar = uchars_in(names)
    name_offset: cython.p_const_longlong = longlongs_in(name_offsets)
    dim: cython.p_const_longlong = longlongs_in(dims)
    dim_offset: cython.p_const_longlong = longlongs_in(dim_offsets)
    offset: cython.p_const_longlong = longlongs_in(offsets)
    size: cython.p_const_longlong = longlongs_in(sizes)
    name_key: cython.p_const_uchar = b"\xbf\x64name"
    offset_key: cython.p_const_uchar = b"\x66offset"
    size_key: cython.p_const_uchar = b"\x64size"
    tail: cython.p_const_uchar = tails
    tail_nbytes: cython.Py_ssize_t = len(tails) // len(codes) if len(codes) else 0
    nbytes: cython.Py_ssize_t
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    position: cython.Py_ssize_t = _put_head(out, 0, _ARRAY, len(codes))
    # Invariant: the entries before `row` end at `position`. Every `copy` has room, because `_bound` counts the longest
    # head of each column for every entry.
    for row in range(len(codes)):
        copy(out, position, name_key, 0, 6)
        nbytes = name_offset[row + 1] - name_offset[row]
        position = _put_head(out, position + 6, _TEXT, nbytes)
        copy(out, position, name, name_offset[row], nbytes)
        position += nbytes
        copy(out, position, offset_key, 0, 7)
        position = _put_head(out, position + 7, _UINT, offset[row])
        copy(out, position, size_key, 0, 5)
        position = _put_head(out, position + 5, _UINT, size[row])
        position = _put(out, position, types[codes[row]])
        position = _put_head(out, position, _ARRAY, dim_offset[row + 1] - dim_offset[row])
        for i in range(dim_offset[row], dim_offset[row + 1]):
            position = _put_head(out, position, _UINT, dim[i])
        position = _put(out, position, fields[row])
        copy(out, position, tail, row * tail_nbytes, tail_nbytes)
        position += tail_nbytes
        out[position] = 0xFF
        position += 1
    if not cython.compiled:
        out.release()
    del buffer[position:]
    return buffer


def _bound(names: bytes, name_offsets: Any, types: Any, dims: Any, offsets: Any, sizes: Any, fields: Any) -> int:
    """An upper bound of the index's size in bytes. A tight one: unused memory still costs page faults."""
    columns = (np.diff(name_offsets), offsets, sizes)
    heads = sum(_head_nbytes(int(column.max(initial=0))) for column in columns) + _head_nbytes(len(dims))
    entry = len(b"\xbf\x64name\x66offset\x64size\xff") + heads + max(map(len, types), default=0)
    dims_nbytes = _head_nbytes(int(dims.max(initial=0))) * len(dims)
    return 9 + entry * len(fields) + dims_nbytes + len(names) + sum(map(len, fields))


def _head_nbytes(number: int) -> int:
    """The size of the shortest CBOR head with this argument."""
    for most, nbytes in ((23, 1), (0xFF, 2), (0xFFFF, 3), (0xFFFF_FFFF, 5)):
        if number <= most:
            return nbytes
    return 9


@cython.cfunc
def _put(out: cython.p_uchar, position: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    p: cython.p_const_uchar = data
    copy(out, position, p, 0, len(data))
    return position + len(data)


@cython.cfunc
@cython.exceptval(check=False)
def _put_head(
    out: cython.p_uchar, position: cython.Py_ssize_t, major: cython.int, value: cython.longlong
) -> cython.Py_ssize_t:
    """Writes the shortest CBOR head and returns the position after it."""
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
