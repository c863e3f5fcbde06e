"""What several kernels need of bytes and numbers, for kernels that run interpreted.

`primitives.pxd` has the C form of each function, which Cython compiles into every
kernel that names it; this module is the plain Python of the same functions and is
never compiled. A kernel imports from the one or the other:

    if cython.compiled:
        from cython.cimports.tensorglot.kernels.primitives import *
    else:
        from tensorglot.kernels.primitives import word

In C the memory is a pointer, here a memoryview. No function checks a bound: its caller
has compared every position with the memory that it holds.
"""

from __future__ import annotations

import sys
from typing import Any

INVALID, ENDS = -1, -2
"""What `code_point` finds instead of a character: bytes that are not UTF-8, or only the beginning of one."""


def uchars_in(view: Any) -> Any:
    """The memory of a contiguous array of unsigned bytes, to be read.

    It lives as long as the array does, so the kernel must hold on to that. Elements of a
    memoryview are Python's integers, which do not overflow as NumPy's do.
    """
    return memoryview(view)


uchars_out = longlongs_in = longlongs_out = uints_in = uints_out = uchars_in
"""The same for other element types, to be read or written."""
uchars_of = longlongs_of = ulonglongs_of = uchars_in
"""The same for arrays that are Python objects: written to only by the kernel that made them."""


def bytes_of(data: Any, begin: int, end: int) -> bytes:
    """A copy of a span."""
    return bytes(data[begin:end])


def little(data: Any, at: int, nbytes: int) -> int:
    """`nbytes` bytes as an unsigned number, the lowest byte first."""
    return int.from_bytes(data[at : at + nbytes], "little")


def i32(data: Any, at: int) -> int:
    """Four bytes as a signed number, the lowest byte first."""
    return int.from_bytes(data[at : at + 4], "little", signed=True)


def word(data: Any, at: int) -> int:
    """Eight bytes as a number, in the machine's order."""
    return int.from_bytes(data[at : at + 8], sys.byteorder)


def copy(out: Any, to: int, data: Any, at: int, nbytes: int) -> None:
    """`nbytes` bytes from `at` of `data` to `to` of `out`."""
    out[to : to + nbytes] = data[at : at + nbytes]


def copy_run(out: Any, to: int, out_end: int, data: Any, at: int, data_end: int, nbytes: int, stride: int) -> None:
    """As `copy`, quick for short runs: bytes up to the ends, behind the run, may be read and overwritten, too."""
    out[to : to + nbytes] = data[at : at + nbytes]


def same(data: Any, at: int, other: Any, other_at: int, nbytes: int) -> bool:
    """Whether `nbytes` bytes are equal."""
    return bytes(data[at : at + nbytes]) == bytes(other[other_at : other_at + nbytes])


def zero_byte(data: Any, begin: int, end: int) -> int:
    """Where the first zero byte from `begin` on is, or -1."""
    for at in range(begin, end, 64):
        found = bytes(data[at : min(at + 64, end)]).find(0)
        if found >= 0:
            return at + found
    return -1


def is_ascii(data: Any, begin: int, end: int) -> bool:
    """Whether all bytes are below 128."""
    return bytes(data[begin:end]).isascii()


def code_point(data: Any, at: int, end: int) -> int:
    """The UTF-8 character at `at`, which is before `end`; INVALID or ENDS."""
    piece = bytes(data[at : min(at + 4, end)])
    try:
        return ord(piece.decode("utf-8")[0])
    except UnicodeDecodeError as error:
        if error.start > 0:
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
    """Whether count × size > most, without computing a product that C could not hold. None is negative."""
    return size != 0 and count > most // size


def bit_length(value: int) -> int:
    """The bits of a number, without leading zeros."""
    return value.bit_length()


def varint_nbytes(value: int) -> int:
    """The number of bytes of a LEB128 varint."""
    return max(1, (value.bit_length() + 6) // 7)


def run_stride(nbytes: int, count: int) -> int:
    """A multiple of 32 within which most of `count` runs end that have `nbytes` together, for `copy_run`."""
    return 32
