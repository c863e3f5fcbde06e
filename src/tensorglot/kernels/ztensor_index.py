"""The index of zTensor 0.1, from columns to CBOR: the texts that repeat come encoded, and a loop puts them together.

The form is that of the packages 0.1.0 to 0.1.4: a map of indefinite length for each
tensor, its keys in their order, integers in their shortest form.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

_UINT = cython.declare(cython.int, 0)
_TEXT = cython.declare(cython.int, 3)
_ARRAY = cython.declare(cython.int, 4)


def encode_entries(
    names: Any, dtypes: Any, codes: bytes, dims: Any, dim_offsets: Any, offsets: Any, sizes: Any, fields: Any
) -> bytearray:
    """The index of version 0.1, from CBOR texts and columns.

    `dtypes` has the element types by code, `fields` the pairs from the key `encoding` on
    of each entry.
    """
    texts: list[Any] = [name.encode("utf-8") for name in names]
    buffer: bytearray = bytearray(_bound(texts, dtypes, dims, offsets, sizes, fields))
    out: cython.uchar[::1] = buffer
    dim_column: cython.const[cython.longlong][::1] = memoryview(dims)
    dim_ends: cython.const[cython.longlong][::1] = memoryview(dim_offsets)
    offset_column: cython.const[cython.longlong][::1] = memoryview(offsets)
    size_column: cython.const[cython.longlong][::1] = memoryview(sizes)
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    position: cython.Py_ssize_t = _put_head(out, 0, _ARRAY, len(texts))
    # Invariant: what is put has room, because the bound counts every head as the longest.
    for row in range(len(texts)):
        position = _put(out, position, b"\xbf\x64name")
        position = _put_head(out, position, _TEXT, len(texts[row]))
        position = _put(out, position, texts[row])
        position = _put(out, position, b"\x66offset")
        position = _put_head(out, position, _UINT, offset_column[row])
        position = _put(out, position, b"\x64size")
        position = _put_head(out, position, _UINT, size_column[row])
        position = _put(out, position, b"\x65dtype")
        position = _put(out, position, dtypes[codes[row]])
        position = _put(out, position, b"\x66layout\x65dense\x65shape")
        position = _put_head(out, position, _ARRAY, dim_ends[row + 1] - dim_ends[row])
        for i in range(dim_ends[row], dim_ends[row + 1]):
            position = _put_head(out, position, _UINT, dim_column[i])
        position = _put(out, position, fields[row])
        position = _put(out, position, b"\xff")
    del out
    del buffer[position:]
    return buffer


def _bound(texts: Any, dtypes: Any, dims: Any, offsets: Any, sizes: Any, fields: Any) -> int:
    """Bytes that an index has at most; memory that nobody fills still costs its pages."""
    largest = [max(map(len, texts), default=0), int(offsets.max(initial=0)), int(sizes.max(initial=0)), len(dims)]
    keys = len(b"\xbf\x64name\x66offset\x64size\x65dtype\x66layout\x65dense\x65shape\xff")
    entry = keys + sum(map(_head_nbytes, largest)) + max(map(len, dtypes), default=0)
    dims_nbytes = _head_nbytes(int(dims.max(initial=0))) * len(dims)
    return 9 + entry * len(texts) + dims_nbytes + sum(map(len, texts)) + sum(map(len, fields))


@cython.cfunc
def _put(out: cython.uchar[::1], position: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    p: cython.p_const_uchar = data
    size: cython.Py_ssize_t = len(data)
    i: cython.Py_ssize_t
    for i in range(size):
        out[position + i] = p[i]
    return position + size


def _head_nbytes(number: int) -> int:
    """How many bytes a head takes."""
    for most, nbytes in ((23, 1), (0xFF, 2), (0xFFFF, 3), (0xFFFF_FFFF, 5)):
        if number <= most:
            return nbytes
    return 9


@cython.cfunc
@cython.exceptval(check=False)
def _put_head(
    out: cython.uchar[::1], position: cython.Py_ssize_t, major: cython.int, value: cython.longlong
) -> cython.Py_ssize_t:
    """The shortest head."""
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
