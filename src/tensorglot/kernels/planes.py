"""Byte planes of elements, and deltas between two buffers of elements.

Plane i of a buffer has byte i of every element, in order. In the planes of weights the exponents
lie together, and compress well. A sparse delta lists the elements that differ by gaps, a byte
each: the number of equal elements before the next one that differs. The byte 255 skips 255 equal
elements and names no element; the gap continues in the next byte.

Works on bytes and positions only. Every function compares the sizes of its buffers before it
touches a byte. Gaps may come from a hostile file: `expand` and `patch` check every position that
they result in. Interpreted, the loops are those of NumPy, since a chunk has up to a million elements.
"""

from __future__ import annotations

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        bit_length,
        little,
        longlongs_in,
        longlongs_of,
        longlongs_out,
        put_uint,
        same,
        trailing_zeros,
        uchars_in,
        uchars_out,
        uint_at,
        ushort_at,
        word,
    )
else:
    from tensorglot.kernels.primitives import bit_length

LONGEST = 255
"""The byte of `gaps` that skips this many elements, and names none."""
SPARE = 64
"""Entries of `positions` behind the last one that `differences` may overwrite: it compares 64 elements at once."""
COLUMNS = 6
"""Numbers that describe one delta in the table that `patch` is given."""
_LONGEST = cython.declare(cython.int, LONGEST)
_COLUMNS = cython.declare(cython.int, COLUMNS)
_BLOCK_NBYTES = cython.declare(cython.int, 16 << 10)
_SPARE = cython.declare(cython.int, SPARE)


def split(data: cython.const[cython.uchar][::1], width: cython.Py_ssize_t, out: cython.uchar[::1]) -> bool:
    """Writes the planes of all whole elements, one after the other.

    False, and nothing is written, unless the planes have exactly the size of `out`.
    """
    plane: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if width < 1 or len(out) != len(data) // width * width:
        return False
    count: cython.Py_ssize_t = len(data) // width
    if count == 0:
        return True
    if cython.compiled:
        source: cython.p_const_uchar = uchars_in(data)
        target: cython.p_uchar = uchars_out(out)
        # Both buffers have at least count * width bytes. Widths that are written out are vectorized by the compiler.
        with cython.nogil:
            if width == 2:
                for i in range(count):
                    target[i] = source[2 * i]
                    target[count + i] = source[2 * i + 1]
            elif width == 4:
                for i in range(count):
                    target[i] = source[4 * i]
                    target[count + i] = source[4 * i + 1]
                    target[2 * count + i] = source[4 * i + 2]
                    target[3 * count + i] = source[4 * i + 3]
            elif width == 8:
                for i in range(count):
                    target[i] = source[8 * i]
                    target[count + i] = source[8 * i + 1]
                    target[2 * count + i] = source[8 * i + 2]
                    target[3 * count + i] = source[8 * i + 3]
                    target[4 * count + i] = source[8 * i + 4]
                    target[5 * count + i] = source[8 * i + 5]
                    target[6 * count + i] = source[8 * i + 6]
                    target[7 * count + i] = source[8 * i + 7]
            else:
                for plane in range(width):
                    for i in range(count):
                        target[plane * count + i] = source[i * width + plane]
    else:
        elements = np.frombuffer(data, np.uint8, count * width).reshape(count, width)
        np.frombuffer(out, np.uint8).reshape(width, count)[:] = elements.T
    return True


def merge(planes: cython.const[cython.uchar][::1], width: cython.Py_ssize_t, out: cython.uchar[::1]) -> bool:
    """Writes the elements whose planes are given; the bytes of `out` behind the last whole element stay.

    False, and nothing is written, unless there are planes for exactly the whole elements of `out`.
    """
    plane: cython.Py_ssize_t
    i: cython.Py_ssize_t
    if width < 1 or len(planes) != len(out) // width * width:
        return False
    count: cython.Py_ssize_t = len(out) // width
    if count == 0:
        return True
    if cython.compiled:
        source: cython.p_const_uchar = uchars_in(planes)
        target: cython.p_uchar = uchars_out(out)
        # Both buffers have at least count * width bytes, as in `split`.
        with cython.nogil:
            if width == 2:
                for i in range(count):
                    target[2 * i] = source[i]
                    target[2 * i + 1] = source[count + i]
            elif width == 4:
                for i in range(count):
                    target[4 * i] = source[i]
                    target[4 * i + 1] = source[count + i]
                    target[4 * i + 2] = source[2 * count + i]
                    target[4 * i + 3] = source[3 * count + i]
            elif width == 8:
                for i in range(count):
                    target[8 * i] = source[i]
                    target[8 * i + 1] = source[count + i]
                    target[8 * i + 2] = source[2 * count + i]
                    target[8 * i + 3] = source[3 * count + i]
                    target[8 * i + 4] = source[4 * count + i]
                    target[8 * i + 5] = source[5 * count + i]
                    target[8 * i + 6] = source[6 * count + i]
                    target[8 * i + 7] = source[7 * count + i]
            else:
                for plane in range(width):
                    for i in range(count):
                        target[i * width + plane] = source[plane * count + i]
    else:
        elements = np.frombuffer(out, np.uint8, count * width).reshape(count, width)
        elements[:] = np.frombuffer(planes, np.uint8).reshape(width, count).T
    return True


def split_delta(
    data: cython.const[cython.uchar][::1],
    base: cython.const[cython.uchar][::1],
    width: cython.Py_ssize_t,
    difference: cython.bint,
    out: cython.uchar[::1],
) -> bool:
    """Writes the planes of the XOR of all whole elements with those of `base`, or of their zigzag differences.

    False, and nothing is written, unless the planes fill `out`, `base` has as many elements, and `width` is 1, 2, 4 or
    8 if there are differences.
    """
    i: cython.Py_ssize_t
    plane: cython.Py_ssize_t
    if width < 1 or len(out) != len(data) // width * width or len(base) < len(out):
        return False
    if difference and width not in (1, 2, 4, 8):
        return False
    count: cython.Py_ssize_t = len(data) // width
    if count == 0:
        return True
    if cython.compiled:
        new: cython.p_const_uchar = uchars_in(data)
        old: cython.p_const_uchar = uchars_in(base)
        target: cython.p_uchar = uchars_out(out)
        # All three buffers have at least count * width bytes.
        with cython.nogil:
            if width == 2:
                _split_delta_2(new, old, count, difference, target)
            elif width == 4:
                _split_delta_4(new, old, count, difference, target)
            elif difference:
                _split_differences(new, old, count, width, target)
            else:
                for plane in range(width):
                    for i in range(count):
                        target[plane * count + i] = new[i * width + plane] ^ old[i * width + plane]
        return True
    if difference:
        here, there = np.frombuffer(data, f"<u{width}", count), np.frombuffer(base, f"<u{width}", count)
        signed = (here - there).view(f"<i{width}")
        values = ((signed << 1) ^ (signed >> (8 * width - 1))).view(np.uint8)
    else:
        values = np.frombuffer(data, np.uint8, count * width) ^ np.frombuffer(base, np.uint8, count * width)
    np.frombuffer(out, np.uint8).reshape(width, count)[:] = values.reshape(count, width).T
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _split_delta_2(
    new: cython.p_const_uchar,
    old: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    difference: cython.bint,
    target: cython.p_uchar,
) -> cython.void:
    """`split_delta` of elements of two bytes. Arithmetic of 16 bits, without a branch, becomes vector instructions."""
    i: cython.Py_ssize_t
    value: cython.ushort
    other: cython.ushort
    if difference:
        for i in range(count):
            value = new[2 * i] | new[2 * i + 1] << 8
            other = old[2 * i] | old[2 * i + 1] << 8
            value -= other
            value = (value << 1) ^ (0 - (value >> 15))
            target[i] = value & 255
            target[count + i] = value >> 8
    else:
        for i in range(count):
            target[i] = new[2 * i] ^ old[2 * i]
            target[count + i] = new[2 * i + 1] ^ old[2 * i + 1]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _split_delta_4(
    new: cython.p_const_uchar,
    old: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    difference: cython.bint,
    target: cython.p_uchar,
) -> cython.void:
    """`split_delta` of elements of four bytes."""
    i: cython.Py_ssize_t
    value: cython.uint
    for i in range(count):
        if difference:
            value = uint_at(new, 4 * i) - uint_at(old, 4 * i)
            value = (value << 1) ^ (0 - (value >> 31))
        else:
            value = uint_at(new, 4 * i) ^ uint_at(old, 4 * i)
        target[i] = value & 255
        target[count + i] = value >> 8 & 255
        target[2 * count + i] = value >> 16 & 255
        target[3 * count + i] = value >> 24


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _split_differences(
    new: cython.p_const_uchar,
    old: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    target: cython.p_uchar,
) -> cython.void:
    """The planes of the zigzag differences of elements of up to eight bytes."""
    i: cython.Py_ssize_t
    plane: cython.Py_ssize_t
    value: cython.ulonglong
    top: cython.ulonglong = 64 - 8 * width
    for i in range(count):
        value = (little(new, i * width, width) - little(old, i * width, width)) << top  # the highest bit is the sign
        value = ((value >> top) << 1) ^ (0 - (value >> 63))
        for plane in range(width):
            target[plane * count + i] = cython.cast(cython.uchar, (value >> (8 * plane)) & 255)


def merge_delta(
    planes: cython.const[cython.uchar][::1],
    width: cython.Py_ssize_t,
    difference: cython.bint,
    undo: cython.bint,
    out: cython.uchar[::1],
) -> bool:
    """Applies what `split_delta` has written to `out`, which has the elements of the base.

    With `undo`, turns the elements of the data back into those of the base. The bytes of `out` behind the last whole
    element stay. False, and nothing is changed, unless there is a value for each element of `out`, and `width` is 1, 2,
    4 or 8 if they are differences.
    """
    i: cython.Py_ssize_t
    plane: cython.Py_ssize_t
    if width < 1 or len(planes) != len(out) // width * width:
        return False
    if difference and width not in (1, 2, 4, 8):
        return False
    count: cython.Py_ssize_t = len(out) // width
    if count == 0:
        return True
    if cython.compiled:
        source: cython.p_const_uchar = uchars_in(planes)
        target: cython.p_uchar = uchars_out(out)
        # Both buffers have at least count * width bytes.
        with cython.nogil:
            if width == 2:
                _merge_delta_2(source, count, difference, undo, target)
            elif width == 4:
                _merge_delta_4(source, count, difference, undo, target)
            elif difference:
                _merge_differences(source, count, width, undo, target)
            else:
                for plane in range(width):
                    for i in range(count):
                        target[i * width + plane] ^= source[plane * count + i]
        return True
    values = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(width, count).T).reshape(-1)
    if difference:
        change, written = values.view(f"<u{width}"), np.frombuffer(out, f"<u{width}", count)
        change = (change >> 1) ^ (~(change & 1) + 1)
        written += ~change + 1 if undo else change
    else:
        np.frombuffer(out, np.uint8, count * width)[:] ^= values
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merge_delta_2(
    planes: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    difference: cython.bint,
    undo: cython.bint,
    target: cython.p_uchar,
) -> cython.void:
    """`merge_delta` of elements of two bytes, in arithmetic of 16 bits."""
    i: cython.Py_ssize_t
    value: cython.ushort
    element: cython.ushort
    minus: cython.ushort = undo
    if difference:
        for i in range(count):
            value = planes[i] | planes[count + i] << 8
            value = (value >> 1) ^ (0 - (value & 1))
            value = (value ^ (0 - minus)) + minus
            element = target[2 * i] | target[2 * i + 1] << 8
            element += value
            target[2 * i] = element & 255
            target[2 * i + 1] = element >> 8
    else:
        for i in range(count):
            target[2 * i] ^= planes[i]
            target[2 * i + 1] ^= planes[count + i]


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merge_delta_4(
    planes: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    difference: cython.bint,
    undo: cython.bint,
    target: cython.p_uchar,
) -> cython.void:
    """`merge_delta` of elements of four bytes, in arithmetic of 32 bits."""
    i: cython.Py_ssize_t
    value: cython.uint
    minus: cython.uint = undo
    for i in range(count):
        value = planes[i] | planes[count + i] << 8 | planes[2 * count + i] << 16
        value |= cython.cast(cython.uint, planes[3 * count + i]) << 24
        if difference:
            value = (value >> 1) ^ (0 - (value & 1))
            value = (value ^ (0 - minus)) + minus
            put_uint(target, 4 * i, uint_at(target, 4 * i) + value)
        else:
            put_uint(target, 4 * i, uint_at(target, 4 * i) ^ value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merge_differences(
    planes: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    undo: cython.bint,
    target: cython.p_uchar,
) -> cython.void:
    """Adds zigzag differences to elements of up to eight bytes: modulo 2^64, so also modulo 2^(8 * width)."""
    i: cython.Py_ssize_t
    plane: cython.Py_ssize_t
    value: cython.ulonglong
    minus: cython.ulonglong = undo
    for i in range(count):
        value = 0
        for plane in range(width):
            value |= cython.cast(cython.ulonglong, planes[plane * count + i]) << (8 * plane)
        value = (value >> 1) ^ (0 - (value & 1))
        value = (value ^ (0 - minus)) + minus
        value += little(target, i * width, width)
        for plane in range(width):
            target[i * width + plane] = cython.cast(cython.uchar, (value >> (8 * plane)) & 255)


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


def entropy(data: cython.const[cython.uchar][::1], width: cython.Py_ssize_t) -> int:
    """Estimates the entropy of `width` planes, in bits times 256, if each plane has a code of its own for its bytes.

    Logarithms are interpolated linearly between powers of two: each is up to 0.09 bits too low, that of the total and
    those of the counts that are subtracted from it.
    """
    size: cython.longlong = len(data) // width if width > 0 else 0
    if size == 0:
        return 0
    plane: cython.Py_ssize_t
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    counts = np.zeros((width, 256), np.int64)
    if cython.compiled:
        source: cython.p_const_uchar = uchars_in(data)
        table: cython.p_longlong = longlongs_of(counts)
        with cython.nogil:
            for plane in range(width):
                for i in range(plane * size, (plane + 1) * size):
                    table[plane * 256 + source[i]] += 1
            total = width * size * _logarithm(size)
            for i in range(256 * width):
                if table[i] > 0:
                    total -= table[i] * _logarithm(table[i])
        return int(total)
    for plane in range(width):
        counts[plane] = np.bincount(np.frombuffer(data, np.uint8, size, plane * size), minlength=256)
    parts = counts[counts > 0].tolist()
    return int(width * size * _logarithm(size) - sum([count * _logarithm(count) for count in parts]))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _logarithm(number: cython.longlong) -> cython.longlong:
    """The logarithm to base 2 of a positive number below 2^54, times 256."""
    whole: cython.int = bit_length(number) - 1
    return 256 * whole + (number << 8 >> whole) - 256


def expand(gaps: cython.const[cython.uchar][::1], elements: cython.longlong, positions: cython.longlong[::1]) -> bool:
    """Writes the positions that `gaps` stand for.

    False unless there are exactly as many as `positions` has entries, all below `elements`; what was written is
    undefined then.
    """
    count: cython.Py_ssize_t = 0
    most: cython.Py_ssize_t = len(positions)
    if cython.compiled:
        i: cython.Py_ssize_t
        size: cython.Py_ssize_t = len(gaps)
        at: cython.longlong = 0
        if size == 0:
            return bool(most == 0)
        if most == 0:
            return False
        steps: cython.p_const_uchar = uchars_in(gaps)
        places: cython.p_longlong = longlongs_out(positions)
        with cython.nogil:
            # Invariant: count <= most; `at` grows by at most 256 in each turn, so it cannot overflow.
            for i in range(size):
                at += steps[i]
                if steps[i] != _LONGEST:
                    if count == most or at >= elements:
                        count = -1
                        break
                    places[count] = at
                    count += 1
                    at += 1
        filled = bool(count == most and steps[size - 1] != _LONGEST)
    else:
        steps_between = np.frombuffer(gaps, np.uint8).astype(np.int64)
        last = steps_between != _LONGEST
        found = np.cumsum(steps_between + last)[last] - 1
        ends = len(found) == most and (not len(last) or last[-1])
        filled = bool(ends and (not most or found[-1] < elements))
        if filled:
            np.frombuffer(positions, np.int64)[:] = found
    return filled


def patch(
    data: cython.const[cython.uchar][::1],
    deltas: cython.longlong[::1],
    width: cython.Py_ssize_t,
    undo: cython.bint,
    room: cython.uchar[::1],
    out: cython.uchar[::1],
) -> bool:
    """Applies sparse deltas to `out`, one after the other.

    `data` has the gaps and then the planes of the values of each delta. `deltas` has a row of COLUMNS numbers for each:
    the number of bytes of its gaps, the number of its values, 1 if the values are zigzag differences or 0 if they are
    XOR, and three more that this function overwrites. `room` is working memory of as many bytes as `data`. With
    `undo`, differences are subtracted.

    False, and nothing in `out` is changed, unless `width` is 1, 2, 4 or 8, every delta has exactly one value for each
    element that its gaps name, all of these are elements of `out`, and the deltas together are all of `data`.
    """
    if width not in (1, 2, 4, 8) or len(room) < len(data):
        return False
    count: cython.Py_ssize_t = len(deltas) // _COLUMNS
    elements: cython.longlong = len(out) // width
    i: cython.Py_ssize_t
    size: cython.longlong
    most: cython.longlong
    begin: cython.longlong = 0
    # Invariant: 0 <= begin <= len(data). Each number is compared with what is left before it is added.
    for i in range(count):
        size = deltas[i * _COLUMNS]
        most = deltas[i * _COLUMNS + 1]
        if not (0 <= size <= len(data) - begin and 0 <= most <= (len(data) - begin - size) // width):
            return False
        begin += size + most * width
    if begin != len(data):
        return False
    if cython.compiled:
        if begin == 0:
            return True
        if elements == 0:
            return False
        source: cython.p_const_uchar = uchars_in(data)
        values: cython.p_uchar = uchars_out(room)
        target: cython.p_uchar = uchars_out(out)
        table: cython.p_longlong = longlongs_out(deltas)
        fits: cython.bint
        with cython.nogil:
            fits = _check_deltas(source, table, count, width, elements)
            if fits:
                _merge_all(source, table, count, width, undo, values)
                _patch_all(source, table, count, width, values, target, elements)
        return bool(fits)
    found = []
    begin = 0
    for size, most, difference in np.frombuffer(deltas, np.int64).reshape(count, _COLUMNS)[:, :3].tolist():
        positions = np.empty(most, np.int64)
        if not expand(data[begin : begin + size], elements, positions):
            return False
        begin += size
        found.append((positions, data[begin : begin + most * width], difference))
        begin += most * width
    written = np.frombuffer(out, f"<u{width}", elements)
    for positions, planes, difference in found:
        change = np.frombuffer(planes, np.uint8).reshape(width, len(positions)).T.reshape(-1).view(written.dtype)
        if difference:
            change = (change >> 1) ^ (~(change & 1) + 1)
            written[positions] += ~change + 1 if undo else change
        else:
            written[positions] ^= change
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _check_deltas(
    steps: cython.p_const_uchar,
    table: cython.p_longlong,
    count: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    elements: cython.longlong,
) -> cython.bint:
    """Whether each delta names as many elements as it has values, all below `elements`.

    Sets the three cursors of each delta to its beginning: bytes of gaps, values, and position.
    """
    _i: cython.Py_ssize_t
    at: cython.longlong
    begin: cython.longlong
    size: cython.longlong
    found: cython.longlong
    reach: cython.longlong
    some: cython.uint
    far: cython.uint
    # `steps` is where the delta's gaps begin: the caller has found the sizes of all deltas to add up to `data`.
    for _i in range(count):
        size = table[0]
        found = 0
        reach = 0
        # In sums of 32 bits: a vector register holds twice as many of them as of 64 bits.
        for begin in range(0, size, 4096):
            some = 0
            far = 0
            for at in range(begin, min(size, begin + 4096)):
                far += steps[at]
                some += steps[at] != _LONGEST
            found += some
            reach += far
        # The last position is below `reach` + `found`, and positions ascend.
        if found != table[1] or reach + found > elements or (size > 0 and steps[size - 1] == _LONGEST):
            return False
        table[3] = 0
        table[4] = 0
        table[5] = 0
        steps += size + found * width
        table += _COLUMNS
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merge_all(
    source: cython.p_const_uchar,
    table: cython.p_longlong,
    count: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    undo: cython.bint,
    values: cython.p_uchar,
) -> cython.void:
    """Writes the values of all deltas to `values`, at the offsets that their planes have in `source`.

    A zigzag difference becomes the number that is added to the element.
    """
    _i: cython.Py_ssize_t
    for _i in range(count):
        source += table[0]
        values += table[0]
        if width == 2:
            _merge_2(source, table[1], table[2] != 0, undo, values)
        elif width == 4:
            _merge_4(source, table[1], table[2] != 0, undo, values)
        else:
            _merge_any(source, table[1], width, table[2] != 0, undo, values)
        source += table[1] * width
        values += table[1] * width
        table += _COLUMNS


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merge_2(
    planes: cython.p_const_uchar,
    count: cython.longlong,
    difference: cython.bint,
    undo: cython.bint,
    values: cython.p_uchar,
) -> cython.void:
    """Merges two planes of `count` bytes; a zigzag difference becomes its number, or with `undo` minus its number.

    Arithmetic of 16 bits, without a branch, becomes vector instructions.
    """
    i: cython.longlong
    value: cython.ushort
    zigzag: cython.ushort = difference
    minus: cython.ushort = difference and undo
    for i in range(count):
        value = planes[i] | planes[count + i] << 8
        value = (value >> zigzag) ^ (0 - (value & zigzag))
        value = (value ^ (0 - minus)) + minus
        values[2 * i] = value & 255
        values[2 * i + 1] = value >> 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merge_4(
    planes: cython.p_const_uchar,
    count: cython.longlong,
    difference: cython.bint,
    undo: cython.bint,
    values: cython.p_uchar,
) -> cython.void:
    """`_merge_2` for four planes, in arithmetic of 32 bits."""
    i: cython.longlong
    value: cython.uint
    zigzag: cython.uint = difference
    minus: cython.uint = difference and undo
    for i in range(count):
        value = planes[i] | planes[count + i] << 8 | planes[2 * count + i] << 16
        value |= cython.cast(cython.uint, planes[3 * count + i]) << 24
        value = (value >> zigzag) ^ (0 - (value & zigzag))
        value = (value ^ (0 - minus)) + minus
        values[4 * i] = value & 255
        values[4 * i + 1] = value >> 8 & 255
        values[4 * i + 2] = value >> 16 & 255
        values[4 * i + 3] = value >> 24


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _merge_any(
    planes: cython.p_const_uchar,
    count: cython.longlong,
    width: cython.Py_ssize_t,
    difference: cython.bint,
    undo: cython.bint,
    values: cython.p_uchar,
) -> cython.void:
    """`_merge_2` for up to eight planes: modulo 2^64, so also modulo 2^(8 * width)."""
    i: cython.longlong
    plane: cython.Py_ssize_t
    value: cython.ulonglong
    zigzag: cython.ulonglong = difference
    minus: cython.ulonglong = difference and undo
    for i in range(count):
        value = 0
        for plane in range(width):
            value |= cython.cast(cython.ulonglong, planes[plane * count + i]) << (8 * plane)
        value = (value >> zigzag) ^ (0 - (value & zigzag))
        value = (value ^ (0 - minus)) + minus
        for plane in range(width):
            values[width * i + plane] = cython.cast(cython.uchar, (value >> (8 * plane)) & 255)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _patch_all(
    source: cython.p_const_uchar,
    table: cython.p_longlong,
    count: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    values: cython.p_const_uchar,
    target: cython.p_uchar,
    elements: cython.longlong,
) -> cython.void:
    """Applies all deltas to one block of `target`, then to the next, so that a block stays in the cache."""
    limit: cython.longlong = 0
    at: cython.longlong
    i: cython.Py_ssize_t
    one: cython.p_longlong
    # Invariant: every delta has been applied to the elements below `limit`, and its cursors say where it goes on.
    while limit < elements:
        limit += _BLOCK_NBYTES // width
        at = 0
        for i in range(count):
            one = table + i * _COLUMNS
            # A compiler that knows width and operation makes one load, one operation and one store of an element.
            if width == 2 and one[2]:
                _patch(source + at, one, 2, True, values + at + one[0], target, limit)
            elif width == 2:
                _patch(source + at, one, 2, False, values + at + one[0], target, limit)
            elif width == 4 and one[2]:
                _patch(source + at, one, 4, True, values + at + one[0], target, limit)
            elif width == 4:
                _patch(source + at, one, 4, False, values + at + one[0], target, limit)
            elif width == 8:
                _patch(source + at, one, 8, one[2] != 0, values + at + one[0], target, limit)
            else:
                _patch(source + at, one, 1, one[2] != 0, values + at + one[0], target, limit)
            at += one[0] + one[1] * width


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _patch(
    steps: cython.p_const_uchar,
    delta: cython.p_longlong,
    width: cython.Py_ssize_t,
    difference: cython.bint,
    values: cython.p_const_uchar,
    target: cython.p_uchar,
    limit: cython.longlong,
) -> cython.void:
    """Applies one delta from its cursors on, to elements below `limit`. `_check_deltas` has checked all positions.

    Loads and stores are written byte by byte, and joined by the compiler.
    """
    size: cython.longlong = delta[0]
    i: cython.longlong = delta[3]
    done: cython.longlong = delta[4]
    position: cython.longlong = delta[5]
    longest: cython.longlong = _LONGEST
    plane: cython.Py_ssize_t
    step: cython.longlong
    value: cython.ulonglong
    at: cython.p_uchar
    # Invariant: the first i bytes of gaps name `done` elements; position + step < limit when an element is changed.
    while i < size:
        step = steps[i]
        if step == longest:
            position += step
        elif position + step >= limit:
            break
        else:
            position += step
            at = target + position * width
            value = little(values, done * width, width)
            if difference:
                value += little(at, 0, width)
            else:
                value ^= little(at, 0, width)
            for plane in range(width):
                at[plane] = cython.cast(cython.uchar, (value >> (8 * plane)) & 255)
            done += 1
            position += 1
        i += 1
    delta[3] = i
    delta[4] = done
    delta[5] = position
