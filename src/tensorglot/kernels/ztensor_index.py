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
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import copy, uchars_in, uchars_out
else:
    from tensorglot.kernels.primitives import copy, uchars_in, uchars_out

_UINT = cython.declare(cython.int, 0)
_TEXT = cython.declare(cython.int, 3)
_ARRAY = cython.declare(cython.int, 4)


def encode_entries(
    names: Any,
    dtypes: Any,
    codes: bytes,
    dims: Any,
    dim_offsets: Any,
    offsets: Any,
    sizes: Any,
    fields: Any,
) -> bytearray:
    """The index of version 0.1, from CBOR texts and columns.

    `dtypes` has the element types by code, `fields` the pairs from the key `encoding` on
    of each entry.
    """
    texts: list[Any] = [name.encode("utf-8") for name in names]
    strings: cython.Py_ssize_t = sum(map(len, texts)) + sum(map(len, fields))
    keys: cython.Py_ssize_t = len(b"\xbf\x64name\x66offset\x64size\x65dtype\x66layout\x65dense\x65shape\xff")
    largest = [max(map(len, texts), default=0), int(offsets.max(initial=0)), int(sizes.max(initial=0)), len(dims)]
    entry: cython.Py_ssize_t = keys + sum(map(_head_nbytes, largest)) + max(map(len, dtypes), default=0)
    dims_nbytes: cython.Py_ssize_t = _head_nbytes(int(dims.max(initial=0))) * len(dims)
    capacity: cython.Py_ssize_t = 9 + entry * len(texts) + dims_nbytes + strings
    buffer: bytearray = bytearray(capacity)
    position: cython.Py_ssize_t = _fill_entries(
        buffer,
        texts,
        dtypes,
        codes,
        memoryview(dims),
        memoryview(dim_offsets),
        memoryview(offsets),
        memoryview(sizes),
        fields,
    )
    del buffer[position:]
    return buffer


@cython.cfunc
def _fill_entries(
    buffer: bytearray,
    texts: list,  # type: ignore[type-arg]
    dtypes: list,  # type: ignore[type-arg]
    codes: cython.const[cython.uchar][::1],
    dims: cython.const[cython.longlong][::1],
    dim_offsets: cython.const[cython.longlong][::1],
    offsets: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    fields: list,  # type: ignore[type-arg]
) -> cython.Py_ssize_t:
    out: cython.uchar[::1] = buffer
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    position: cython.Py_ssize_t = _put_head(out, 0, _ARRAY, len(texts))
    for row in range(len(texts)):
        position = _put(out, position, b"\xbf\x64name")
        position = _put_head(out, position, _TEXT, len(texts[row]))
        position = _put(out, position, texts[row])
        position = _put(out, position, b"\x66offset")
        position = _put_head(out, position, _UINT, offsets[row])
        position = _put(out, position, b"\x64size")
        position = _put_head(out, position, _UINT, sizes[row])
        position = _put(out, position, b"\x65dtype")
        position = _put(out, position, dtypes[codes[row]])
        position = _put(out, position, b"\x66layout\x65dense\x65shape")
        position = _put_head(out, position, _ARRAY, dim_offsets[row + 1] - dim_offsets[row])
        for i in range(dim_offsets[row], dim_offsets[row + 1]):
            position = _put_head(out, position, _UINT, dims[i])
        position = _put(out, position, fields[row])
        out[position] = 0xFF
        position += 1
    return position


@cython.cfunc
def _put(out: cython.uchar[::1], position: cython.Py_ssize_t, data: bytes) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = len(data)
    copy(uchars_out(out), position, uchars_in(data), 0, size)
    return position + size


def _head_nbytes(number: int) -> int:
    """How many bytes a head takes: memory that nobody fills still costs its pages."""
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
