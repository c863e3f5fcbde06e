"""Whether bytes are UTF-8: no overlong form, no surrogate, nothing beyond U+10FFFF.

Runs of ASCII are passed over eight bytes at a time. Knows bytes and positions.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

OK = -1

_HIGH = cython.declare(cython.ulonglong, 0x8080808080808080)


@cython.ccall
@cython.boundscheck(False)
@cython.exceptval(check=False)
def first_invalid(
    data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where the first character that is none begins, or OK."""
    at: cython.Py_ssize_t = begin
    word: cython.ulonglong = 0
    first: cython.int
    second: cython.int
    if begin < 0 or end > data.shape[0]:
        return max(begin, 0)
    if not cython.compiled:
        try:
            bytes(data[begin:end]).decode("utf-8")
        except UnicodeDecodeError as error:
            return begin + error.start
        return OK
    while at < end:
        if end - at >= 8:
            memcpy(cython.address(word), cython.address(data[at]), 8)
            if word & _HIGH == 0:
                at += 8
                continue
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        if first < 0xC2 or first > 0xF4 or end - at < 2:
            return at
        second = data[at + 1]
        if first < 0xE0:
            if second & 0xC0 != 0x80:
                return at
            at += 2
        elif first < 0xF0:
            if end - at < 3 or second & 0xC0 != 0x80 or data[at + 2] & 0xC0 != 0x80:
                return at
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
                return at
            at += 3
        else:
            if end - at < 4 or second & 0xC0 != 0x80 or data[at + 2] & 0xC0 != 0x80 or data[at + 3] & 0xC0 != 0x80:
                return at
            if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
                return at
            at += 4
    return OK


@cython.boundscheck(False)
def is_ascii(data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether all bytes are below 128."""
    i: cython.Py_ssize_t
    some: cython.uchar = 0
    if begin < 0 or end > data.shape[0]:
        return False
    if not cython.compiled:
        return bytes(data[begin:end]).isascii()
    for i in range(begin, end):
        some |= data[i]
    return some < 128


@cython.boundscheck(False)
def first_invalid_text(
    data: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    stops: cython.const[cython.longlong][::1],
) -> cython.Py_ssize_t:
    """Which of the texts from starts to stops is invalid, or OK."""
    i: cython.Py_ssize_t
    for i in range(min(starts.shape[0], stops.shape[0])):
        if starts[i] < stops[i] and first_invalid(data, starts[i], stops[i]) != OK:
            return i
    return OK


@cython.boundscheck(False)
def first_split(
    data: cython.const[cython.uchar][::1], positions: cython.const[cython.longlong][::1]
) -> cython.Py_ssize_t:
    """Which of the positions is inside a character of valid data, or OK."""
    i: cython.Py_ssize_t
    at: cython.longlong
    for i in range(positions.shape[0]):
        at = positions[i]
        if 0 <= at < data.shape[0] and data[at] & 0xC0 == 0x80:
            return i
    return OK
