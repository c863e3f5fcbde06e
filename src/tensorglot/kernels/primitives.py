"""Functions on bytes and numbers that several kernels share: the form for interpreted kernels.

`primitives.pxd` has the C form of each function, which Cython compiles into every
kernel that imports it; this module has the same functions in plain Python and is never
compiled. A kernel imports from one of the two:

    if cython.compiled:
        from cython.cimports.tensorglot.kernels.primitives import *
    else:
        from tensorglot.kernels.primitives import word

Memory is a pointer in C and a memoryview here. No function checks a bound: the caller
has compared every position with the size of its memory.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tensorglot.kernels import varints

INVALID, ENDS = -1, -2
"""Results of `code_point` that are not a character: invalid UTF-8, or a valid beginning cut off by `end`."""


def uchars_in(view: Any) -> Any:
    """The memory of a contiguous array of unsigned bytes, to be read.

    The memory lives as long as the array, so the kernel must keep a reference to the array.
    A memoryview rather than the array itself: its elements are Python integers, which do
    not overflow as NumPy's do.
    """
    return memoryview(view)


uchars_out = longlongs_in = longlongs_out = uints_out = uchars_in
"""The same for other element types, to be read or written."""
uchars_of = uints_of = longlongs_of = ulonglongs_of = uchars_in
"""The same for arrays that are passed as Python objects; a kernel writes only to those it has made itself."""


def shape_of(array: Any, dims: Any, room: int, sizes: Any, row: int) -> int:
    """Puts the shape of a C-contiguous array at `dims`, if there is room, and its size in bytes into `sizes`.

    Returns the number of dims; -1, and does nothing, if the array is not C-contiguous.
    """
    if not array.flags.c_contiguous:
        return -1
    sizes[row] = array.nbytes
    if array.ndim <= room:
        for i, dim in enumerate(array.shape):
            dims[i] = dim
    return int(array.ndim)


def span_of(buffer: Any, begins: Any, ends: Any, row: int) -> bool:
    """Puts the addresses of the first byte of a buffer and of the one behind its last into two columns.

    Returns False, and does nothing, if the buffer is not C-contiguous.
    """
    array = np.asarray(buffer)
    if not array.flags.c_contiguous:
        return False
    begins[row] = array.__array_interface__["data"][0]
    ends[row] = begins[row] + array.nbytes
    return True


def address_of(value: object) -> int:
    """What is different for different objects that exist at the same time."""
    return id(value)


def longlongs_at(data: Any, at: int) -> Any:
    """The memory from element `at` on: one of several columns in one array."""
    return data[at:]


def bytes_of(data: Any, begin: int, end: int) -> bytes:
    """A copy of the bytes from `begin` to `end`."""
    return bytes(data[begin:end])


def little(data: Any, at: int, nbytes: int) -> int:
    """`nbytes` bytes, at most 8, as an unsigned little-endian integer."""
    return int.from_bytes(data[at : at + nbytes], "little")


def i32(data: Any, at: int) -> int:
    """Four bytes as a signed little-endian integer."""
    return int.from_bytes(data[at : at + 4], "little", signed=True)


def word(data: Any, at: int) -> int:
    """Eight bytes as an unsigned integer in the machine's byte order."""
    return int.from_bytes(data[at : at + 8], sys.byteorder)


def copy(out: Any, to: int, data: Any, at: int, nbytes: int) -> None:
    """Copies data[at : at + nbytes] to out[to : to + nbytes]."""
    out[to : to + nbytes] = data[at : at + nbytes]


def copy_run(out: Any, to: int, out_end: int, data: Any, at: int, data_end: int, nbytes: int, stride: int) -> None:
    """Like `copy`, but fast for short runs: the C form may copy up to `stride` bytes instead of `nbytes`.

    It stays before `data_end` and `out_end`. So runs must be copied in ascending order of `to`.
    """
    out[to : to + nbytes] = data[at : at + nbytes]


def same(data: Any, at: int, other: Any, other_at: int, nbytes: int) -> bool:
    """Whether `nbytes` bytes are equal."""
    return bytes(data[at : at + nbytes]) == bytes(other[other_at : other_at + nbytes])


def zero_byte(data: Any, begin: int, end: int) -> int:
    """The position of the first zero byte from `begin` on, or -1."""
    for at in range(begin, end, 64):
        found = bytes(data[at : min(at + 64, end)]).find(0)
        if found >= 0:
            return at + found
    return -1


def is_ascii(data: Any, begin: int, end: int) -> bool:
    """Whether all bytes are below 128."""
    return bytes(data[begin:end]).isascii()


def code_point(data: Any, at: int, end: int) -> int:
    """The code point of the UTF-8 character at `at` < `end`, or INVALID or ENDS."""
    piece = bytes(data[at : min(at + 4, end)])  # no character is longer
    try:
        return ord(piece.decode("utf-8")[0])
    except UnicodeDecodeError as error:
        if error.start > 0:  # the first character is valid; the error is in the bytes after it
            return ord(piece[: error.start].decode("utf-8")[0])
        return ENDS if error.reason == "unexpected end of data" else INVALID


def code_point_nbytes(code: int) -> int:
    """The number of bytes that a character takes in UTF-8."""
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


def invalid_utf8(data: Any, begin: int, end: int) -> int:
    """Offset of the first invalid UTF-8 sequence, or -1."""
    try:
        bytes(data[begin:end]).decode("utf-8")
    except UnicodeDecodeError as error:
        return begin + error.start
    return -1


def exceeds(count: int, size: int, most: int) -> bool:
    """Whether count × size > most, without overflow in C. No argument is negative."""
    return size != 0 and count > most // size


def bit_length(value: int) -> int:
    """The number of bits of `value` without leading zeros; 0 for 0."""
    return value.bit_length()


def varint(data: Any, at: int, end: int) -> int:
    """The varint (LEB128) at `at`, below 2**63, or one of the faults LONG, PADDED and TRUNCATED of `varints`.

    Only the shortest form is accepted, so that equal values have equal bytes.
    """
    value = shift = 0
    # Invariant: `value` has the `shift` bits of the bytes before `at`. Nine bytes hold 63 bits.
    while at < end:
        byte = data[at]
        if byte < 128:
            return varints.PADDED if byte == 0 and shift > 0 else value | byte << shift
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift == 63:
            return varints.LONG
    return varints.TRUNCATED


def varint_nbytes(value: int) -> int:
    """The number of bytes of a LEB128 varint."""
    return max(1, (value.bit_length() + 6) // 7)


def run_stride(nbytes: int, count: int) -> int:
    """The `stride` for `copy_run`: a multiple of 32 that is at least the length of most of `count` runs.

    `nbytes` is the total of their lengths. The value affects only the speed.
    """
    return 32
