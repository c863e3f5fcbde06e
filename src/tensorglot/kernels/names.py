"""Names as spans of a header: decoded on demand, looked up without decoding, checked for duplicates by hash.

The spans come from a header's scan, which guarantees that they lie in the header and are
valid UTF-8. No function here checks that again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import longlongs_of, same, ulonglongs_of, word
else:
    from tensorglot.kernels.primitives import longlongs_of, same, ulonglongs_of, word

_SPREAD = cython.declare(cython.ulonglong, 0x9E37_79B9_7F4A_7C15)
"""2**64 divided by the golden ratio: a product with it carries every bit of a hash into the highest ones."""
_MASK = cython.declare(cython.ulonglong, 0xFFFF_FFFF_FFFF_FFFF)
_PROBES = cython.declare(cython.int, 64)
"""After this many probes for one name, assume adversarial collisions. Bounds the cost at 64 probes a name."""


def decode(header: bytes, begins: Any, ends: Any) -> list[str]:
    """The names at header[begins[i]:ends[i]], as text."""
    begin_column: cython.p_const_longlong = longlongs_of(begins)
    end_column: cython.p_const_longlong = longlongs_of(ends)
    row: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    names: list[str] = []
    # Invariant: `names` has the names of the rows before.
    for row in range(len(begins)):
        begin = begin_column[row]
        end = end_column[row]
        names.append(header[begin:end].decode("utf-8"))
    return names


def find(header: bytes, begins: Any, ends: Any, name: bytes) -> cython.Py_ssize_t:
    """The first row with this name, in UTF-8, or -1."""
    data: cython.p_const_uchar = header
    wanted: cython.p_const_uchar = name
    begin_column: cython.p_const_longlong = longlongs_of(begins)
    end_column: cython.p_const_longlong = longlongs_of(ends)
    nbytes: cython.Py_ssize_t = len(name)
    row: cython.Py_ssize_t
    # Invariant: no row before has the name. Lengths are compared first: they differ for most rows.
    for row in range(len(begins)):
        if end_column[row] - begin_column[row] == nbytes and same(data, begin_column[row], wanted, 0, nbytes):
            return row
    return -1


def may_repeat(header: bytes, begins: Any, ends: Any) -> bool:
    """Whether two names may be equal. False is certain; True means that the caller must compare the names.

    True if two names have the same hash, or if a search takes more than _PROBES steps. A
    hash table with open addressing and linear probing: a slot has a row's number plus one,
    or 0 if it is free. At most half of the slots are taken, so every search meets a free one.
    """
    data: cython.p_const_uchar = header
    begin_column: cython.p_const_longlong = longlongs_of(begins)
    end_column: cython.p_const_longlong = longlongs_of(ends)
    count: cython.Py_ssize_t = len(begins)
    size: cython.Py_ssize_t = 16
    shift: cython.int = 60
    while size < 2 * count:
        size *= 2
        shift -= 1
    hashes: Any = np.empty(count, np.uint64)
    table: Any = np.zeros(size, np.uint64)
    values: cython.p_ulonglong = ulonglongs_of(hashes)
    slots: cython.p_ulonglong = ulonglongs_of(table)
    mask: cython.ulonglong = size - 1
    value: cython.ulonglong
    slot: cython.ulonglong
    row: cython.Py_ssize_t
    probes: cython.int
    # Invariant: `slots` has the rows before `row`, each with another hash; slot <= mask, so it lies in the table.
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
@cython.inline
@cython.exceptval(check=False)
def _hash(data: cython.p_const_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.ulonglong:
    """A hash of the length and of each word of eight bytes; the last word may overlap the one before it."""
    hash: cython.ulonglong = end - begin
    rest: cython.ulonglong = 0
    i: cython.Py_ssize_t = begin
    # Invariant: the words before `i` are in the hash. A word is read only if all eight bytes lie before `end`.
    while i + 8 <= end:
        hash = _mix(hash, word(data, i))
        i += 8
    if end - begin >= 8:
        return _mix(hash, word(data, end - 8))
    while i < end:
        rest = rest << 8 | data[i]
        i += 1
    return _mix(hash, rest)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _mix(hash: cython.ulonglong, word: cython.ulonglong) -> cython.ulonglong:
    hash = ((hash ^ word) * _SPREAD) & _MASK
    return hash ^ (hash >> 32)
