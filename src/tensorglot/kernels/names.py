"""Names as spans of a header: decoded when somebody asks for them, found without decoding, told apart by hashes."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython


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


def may_repeat(hashes: Any) -> bool:
    """Whether two of these are equal, or so crowded that only a look at the names can tell."""
    values: cython.const[cython.ulonglong][::1] = memoryview(hashes)
    count: cython.Py_ssize_t = len(values)
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
        value = values[row]
        slot = ((value * _SPREAD) & _MASK) >> shift
        probes = 0
        while slots[slot] != 0:
            if values[slots[slot] - 1] == value or probes == _PROBES:
                return True
            slot = (slot + 1) & mask
            probes += 1
        slots[slot] = row + 1
    return False
