"""Finds the elements in which two buffers differ: the first half of a sparse delta, `sparse` says which.

Works on bytes and positions only. Every function compares the sizes of its buffers before it
touches a byte. Interpreted, the loops are those of NumPy, since a chunk has up to a million elements.
"""

from __future__ import annotations

import numpy as np

from tensorglot.kernels.sparse import LONGEST, SPARE

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        little,
        longlongs_in,
        longlongs_out,
        same,
        trailing_zeros,
        uchars_in,
        uchars_out,
        uint_at,
        ushort_at,
        word,
    )

_LONGEST = cython.declare(cython.int, LONGEST)
_SPARE = cython.declare(cython.int, SPARE)


def differences(
    data: cython.const[cython.uchar][::1],
    base: cython.const[cython.uchar][::1],
    width: cython.Py_ssize_t,
    gaps: cython.uchar[::1],
    positions: cython.longlong[::1],
) -> tuple[int, int]:
    """Finds the elements of `data` that differ from those of `base`, and writes their positions and the gaps.

    Returns the number of positions and the number of bytes of `gaps` that were written. (-1, 0) if more elements
    differ than `positions` has room for, without its last SPARE entries, or if a buffer is too short.
    """
    count: cython.Py_ssize_t = 0
    used: cython.Py_ssize_t = 0
    if width < 1 or len(base) < len(data) // width * width:
        return -1, 0
    elements: cython.Py_ssize_t = len(data) // width
    most: cython.Py_ssize_t = len(positions) - _SPARE
    if most < 0 or len(gaps) < most + elements // _LONGEST + 1:
        return -1, 0
    if elements == 0:
        return 0, 0
    if cython.compiled:
        i: cython.Py_ssize_t
        gap: cython.longlong
        following: cython.longlong = 0
        steps: cython.p_uchar = uchars_out(gaps)
        places: cython.p_longlong = longlongs_out(positions)
        new: cython.p_const_uchar = uchars_in(data)
        old: cython.p_const_uchar = uchars_in(base)
        with cython.nogil:
            # A compiler that knows the width makes vector instructions of the comparison.
            if width == 1:
                count = _find_in_blocks(new, old, elements, 1, places, most)
            elif width == 2:
                count = _find_in_blocks(new, old, elements, 2, places, most)
            elif width == 4:
                count = _find_in_blocks(new, old, elements, 4, places, most)
            elif width == 8:
                count = _find_in_blocks(new, old, elements, 8, places, most)
            else:
                count = _find(new, old, 0, elements, width, places, 0, most)
            # Invariant: used <= i + places[i] // _LONGEST, for which `gaps` has room. A count of -1 skips the loop.
            for i in range(count):
                gap = places[i] - following
                following = places[i] + 1
                while gap >= _LONGEST:
                    steps[used] = _LONGEST
                    used += 1
                    gap -= _LONGEST
                steps[used] = gap
                used += 1
    else:
        nbytes = elements * width
        unlike = np.frombuffer(data, np.uint8, nbytes) != np.frombuffer(base, np.uint8, nbytes)
        found = np.flatnonzero(unlike.reshape(elements, width).any(axis=1))
        if len(found) > most:
            return -1, 0
        steps_between = np.diff(found, prepend=-1) - 1
        ends = np.cumsum(steps_between // _LONGEST + 1)
        used = int(ends[-1]) if len(ends) else 0
        written = np.frombuffer(gaps, np.uint8)
        written[:used] = _LONGEST
        written[ends - 1] = steps_between % _LONGEST
        np.frombuffer(positions, np.int64)[: len(found)] = found
        count = len(found)
    return count, used


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _find_in_blocks(
    new: cython.p_const_uchar,
    old: cython.p_const_uchar,
    elements: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    places: cython.p_longlong,
    most: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """`differences` of elements of 1, 2, 4 or 8 bytes; the number of positions found, or -1 for too many.

    64 elements are compared by vector instructions, and the results gathered in one word: its ones are those that
    differ. A branch for each element, or for a few of them, could not be predicted.
    """
    flags = cython.declare(cython.uchar[64])
    unlike: cython.ulonglong
    gather: cython.ulonglong = 0x0102040810204080  # moves the lowest bit of byte i to bit 56 + i
    block: cython.Py_ssize_t
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    a: cython.p_const_uchar = new
    b: cython.p_const_uchar = old
    # Invariant: `places` has the `count` <= most positions below 64 * block that differ, and a block adds at most
    # _SPARE = 64. Both buffers have the 64 elements from `a` and `b` on.
    for block in range(elements // 64):
        for i in range(64):
            if width == 1:
                flags[i] = a[i] != b[i]
            elif width == 2:
                flags[i] = ushort_at(a, 2 * i) != ushort_at(b, 2 * i)
            elif width == 4:
                flags[i] = uint_at(a, 4 * i) != uint_at(b, 4 * i)
            else:
                flags[i] = word(a, 8 * i) != word(b, 8 * i)
        a += 64 * width
        b += 64 * width
        unlike = 0
        for i in range(8):
            unlike |= (little(flags, 8 * i, 8) * gather >> 56) << (8 * i)
        while unlike:
            places[count] = 64 * block + trailing_zeros(unlike)
            unlike &= unlike - 1
            count += 1
        if count > most:
            return -1
    return _find(new, old, elements // 64 * 64, elements, width, places, count, most)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _find(
    new: cython.p_const_uchar,
    old: cython.p_const_uchar,
    begin: cython.Py_ssize_t,
    elements: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    places: cython.p_longlong,
    count: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Appends the positions from `begin` on of elements that differ, of any width, to the `count` that were found.

    Returns the number of all, or -1 if there are more than `most`.
    """
    at: cython.Py_ssize_t
    # Invariant: count <= most, the room of `places`; at < elements, which both buffers have.
    for at in range(begin, elements):
        if not same(new, at * width, old, at * width, width):
            if count == most:
                return -1
            places[count] = at
            count += 1
    return count


def changes(
    data: cython.const[cython.uchar][::1],
    base: cython.const[cython.uchar][::1],
    positions: cython.const[cython.longlong][::1],
    width: cython.Py_ssize_t,
    difference: cython.bint,
    out: cython.uchar[::1],
) -> bool:
    """Writes the planes of the XOR, or of the zigzag difference, of the elements at `positions`.

    False, and nothing is written, unless `width` is 1, 2, 4 or 8, every position is an element of both buffers, and
    the planes have exactly the size of `out`.
    """
    if width not in (1, 2, 4, 8):
        return False
    count: cython.Py_ssize_t = len(positions)
    elements: cython.longlong = min(len(data), len(base)) // width
    i: cython.Py_ssize_t
    if len(out) != count * width:
        return False
    if count == 0:
        return True
    if cython.compiled:
        for i in range(count):
            if not 0 <= positions[i] < elements:
                return False
        places: cython.p_const_longlong = longlongs_in(positions)
        new: cython.p_const_uchar = uchars_in(data)
        old: cython.p_const_uchar = uchars_in(base)
        target: cython.p_uchar = uchars_out(out)
        with cython.nogil:
            # A compiler that knows the width unrolls the loops over the bytes of an element.
            if width == 2:
                _changes(new, old, places, count, 2, difference, target)
            elif width == 4:
                _changes(new, old, places, count, 4, difference, target)
            else:
                _changes(new, old, places, count, width, difference, target)
        return True
    chosen = np.frombuffer(positions, np.int64)
    if chosen.min() < 0 or chosen.max() >= elements:
        return False
    kind = f"<u{width}"
    here, there = np.frombuffer(data, kind, elements)[chosen], np.frombuffer(base, kind, elements)[chosen]
    if difference:
        signed = (here - there).view(f"<i{width}")
        values = ((signed << 1) ^ (signed >> (8 * width - 1))).view(np.uint8)
    else:
        values = (here ^ there).view(np.uint8)
    np.frombuffer(out, np.uint8).reshape(width, count)[:] = values.reshape(count, width).T
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _changes(
    new: cython.p_const_uchar,
    old: cython.p_const_uchar,
    places: cython.p_const_longlong,
    count: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    difference: cython.bint,
    target: cython.p_uchar,
) -> cython.void:
    i: cython.Py_ssize_t
    plane: cython.Py_ssize_t
    a: cython.ulonglong
    b: cython.ulonglong
    top: cython.ulonglong = 64 - 8 * width
    # The caller has found every position to be an element of both buffers, and `target` to have count * width bytes.
    for i in range(count):
        a = little(new, places[i] * width, width)
        b = little(old, places[i] * width, width)
        if difference:
            a = (a - b) << top  # the sign of the difference is the highest bit
            a = ((a >> top) << 1) ^ (0 - (a >> 63))
        else:
            a ^= b
        for plane in range(width):
            target[plane * count + i] = cython.cast(cython.uchar, (a >> (8 * plane)) & 255)
