"""Arrays of a caller: their element types, shapes and sizes as columns, where they are, and whether one is there twice.

The buffer protocol gives shape, size, address and memory order at once, in a quarter of the
instructions of the attributes `shape` and `flags`. Knows arrays of NumPy, without its C API.
"""

from __future__ import annotations

from collections.abc import Callable
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
        address_of,
        longlongs_at,
        longlongs_of,
        shape_of,
        span_of,
        uchars_of,
        ulonglongs_of,
    )

_SPREAD = cython.declare(cython.ulonglong, 0x9E37_79B9_7F4A_7C15)
"""2**64 divided by the golden ratio: a product with it carries every bit of an address into the highest ones."""
_MASK = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)


def describe(arrays: list, code_of: Callable[[Any], int], most_dims: cython.Py_ssize_t) -> Any:  # type: ignore[type-arg]
    """Columns of arrays: codes, dims, offsets into these, sizes in bytes, and the rows that are not C-contiguous.

    `code_of` gives the code of an element type; -1 if an array with it cannot be described,
    and then there are no columns. If there are more than `most_dims` dims, their number is returned.
    """
    count: cython.Py_ssize_t = len(arrays)
    codes: Any = np.empty(count, np.uint8)
    dims: Any = np.empty(most_dims, np.int64)
    offsets: Any = np.zeros(count + 1, np.int64)
    sizes: Any = np.empty(count, np.int64)
    scattered: list[int] = []
    code_column: cython.p_uchar = uchars_of(codes)
    dim_column: cython.p_longlong = longlongs_of(dims)
    offset_column: cython.p_longlong = longlongs_of(offsets)
    size_column: cython.p_longlong = longlongs_of(sizes)
    row: cython.Py_ssize_t
    rank: cython.Py_ssize_t
    used: cython.Py_ssize_t = 0
    code: cython.int = -1
    last: Any = None
    # Invariant: the columns have the rows before `row`, which have `used` dims; from `most_dims` on none is written.
    for row in range(count):
        array: Any = arrays[row]
        dtype: Any = array.dtype
        if dtype is not last:
            code = code_of(dtype)
            if code < 0:
                return None
            last = dtype
        code_column[row] = code
        rank = shape_of(array, longlongs_at(dim_column, min(used, most_dims)), most_dims - used, size_column, row)
        if rank < 0:
            scattered.append(row)
            size_column[row] = array.nbytes
            rank = 0
            for dim in array.shape:
                if used + rank < most_dims:
                    dim_column[used + rank] = dim
                rank += 1
        used += rank
        offset_column[row + 1] = used
    return used if used > most_dims else (codes, dims[:used], offsets, sizes, scattered)


def spans(buffers: list) -> Any:  # type: ignore[type-arg]
    """The addresses where buffers begin and end, as two columns; None if one is not C-contiguous."""
    count: cython.Py_ssize_t = len(buffers)
    found: Any = np.empty(2 * count, np.int64)
    begins: cython.p_longlong = longlongs_of(found)
    ends: cython.p_longlong = longlongs_at(begins, count)
    row: cython.Py_ssize_t
    for row in range(count):
        if not span_of(buffers[row], begins, ends, row):
            return None
    return found[:count], found[count:]


def has_repeated(objects: list) -> bool:  # type: ignore[type-arg]
    """Whether an object is there twice.

    A hash table with open addressing and linear probing, whose slots have addresses, or 0 if
    they are free. At most half of the slots are taken, so every search meets a free one.
    """
    count: cython.Py_ssize_t = len(objects)
    size: cython.Py_ssize_t = 16
    shift: cython.int = 60
    while size < 2 * count:
        size *= 2
        shift -= 1
    table: Any = np.zeros(size, np.uint64)
    slots: cython.p_ulonglong = ulonglongs_of(table)
    mask: cython.ulonglong = size - 1
    address: cython.ulonglong
    slot: cython.ulonglong
    row: cython.Py_ssize_t
    # Invariant: `slots` has the addresses of the objects before `row`; slot <= mask, so it lies in the table.
    for row in range(count):
        address = address_of(objects[row])
        slot = ((address * _SPREAD) & _MASK) >> shift
        while slots[slot] != 0:
            if slots[slot] == address:
                return True
            slot = (slot + 1) & mask
        slots[slot] = address
    return False
