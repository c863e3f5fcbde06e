"""Names as spans of a header: decoded when somebody asks for them, found without decoding, told apart by hashes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcpy


_SPREAD = cython.declare(cython.ulonglong, 0x9E37_79B9_7F4A_7C15)
"""An odd number that carries every bit of a hash to the highest ones."""
_MASK = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)
_PROBES = cython.declare(cython.int, 64)
"""So many steps in a crowded table mean that somebody has chosen the hashes."""


def decode(header: bytes, begins: Any, ends: Any) -> list[str]:
    """The names at these spans, which a scan has found to be UTF-8."""
    begin_column: cython.const[cython.longlong][::1] = memoryview(begins)
    end_column: cython.const[cython.longlong][::1] = memoryview(ends)
    row: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    names: list[str] = []
    for row in range(len(begin_column)):
        begin = begin_column[row]
        end = end_column[row]
        names.append(header[begin:end].decode("utf-8"))
    return names


def find(header: bytes, begins: Any, ends: Any, name: bytes) -> cython.Py_ssize_t:
    """The first position of a name, or -1."""
    data: cython.const[cython.uchar][::1] = header
    wanted: cython.const[cython.uchar][::1] = name
    begin_column: cython.const[cython.longlong][::1] = memoryview(begins)
    end_column: cython.const[cython.longlong][::1] = memoryview(ends)
    nbytes: cython.Py_ssize_t = len(name)
    row: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for row in range(len(begin_column)):
        begin = begin_column[row]
        if end_column[row] - begin == nbytes:
            i = nbytes
            while i > 0 and data[begin + i - 1] == wanted[i - 1]:
                i -= 1
            if i == 0:
                return row
    return -1


def may_repeat(header: bytes, begins: Any, ends: Any) -> bool:
    """Whether two names have one hash, or hashes are so crowded that only a look at the names can tell."""
    data: cython.p_uchar = header
    begin_column: cython.const[cython.longlong][::1] = memoryview(begins)
    end_column: cython.const[cython.longlong][::1] = memoryview(ends)
    count: cython.Py_ssize_t = len(begin_column)
    values: cython.ulonglong[::1] = np.empty(count, np.uint64).data
    size: cython.Py_ssize_t = 16
    shift: cython.int = 60
    while size < 2 * count:
        size *= 2
        shift -= 1
    slots: cython.int[::1] = np.zeros(size, np.int32).data
    mask: cython.ulonglong = size - 1
    value: cython.ulonglong
    slot: cython.ulonglong
    row: cython.Py_ssize_t
    probes: cython.int
    for row in range(count):
        value = values[row] = _hash(data, begin_column[row], end_column[row])
        slot = ((value * _SPREAD) & _MASK) >> shift
        probes = 0
        while slots[slot] != 0:
            if values[slots[slot] - 1] == value or probes == _PROBES:
                return True
            slot = (slot + 1) & mask
            probes += 1
        slots[slot] = row + 1
    return False


@cython.cfunc
@cython.exceptval(check=False)
@cython.inline
def _hash(data: cython.p_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.ulonglong:
    """Of the length and the words of eight bytes, of which the last may overlap the one before."""
    hash: cython.ulonglong = end - begin
    word: cython.ulonglong = 0
    i: cython.Py_ssize_t = begin
    while i + 8 <= end:
        hash = _mixed(hash, _word(data, i))
        i += 8
    if end - begin >= 8:
        return _mixed(hash, _word(data, end - 8))
    while i < end:
        word = word << 8 | data[i]
        i += 1
    return _mixed(hash, word)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _mixed(hash: cython.ulonglong, word: cython.ulonglong) -> cython.ulonglong:
    hash = ((hash ^ word) * _SPREAD) & _MASK
    return hash ^ (hash >> 32)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word(data: cython.p_uchar, i: cython.Py_ssize_t) -> cython.ulonglong:
    """Eight bytes as a number, in the machine's order."""
    word: cython.ulonglong = 0
    if cython.compiled:
        memcpy(cython.address(word), data + i, 8)
        return word
    return int.from_bytes(data[i : i + 8], sys.byteorder)
