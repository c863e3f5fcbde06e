"""Byte planes of elements, and of the deltas between two buffers of elements.

Plane i of a buffer has byte i of every element, in order. In the planes of weights the exponents
lie together, and compress well.

Works on bytes only. Every function compares the sizes of its buffers before it touches a byte.
Interpreted, the loops are those of NumPy, since a chunk has up to a million elements.
"""

from __future__ import annotations

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        little,
        put_uint,
        uchars_in,
        uchars_out,
        uint_at,
    )


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
