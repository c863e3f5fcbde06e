"""Applies sparse deltas, as `sparse` describes them, to a buffer of elements.

Works on bytes and positions only. Every function compares the sizes of its buffers before it
touches a byte. Gaps may come from a hostile file: `expand` and `patch` check every position that they result in.
Interpreted, the loops are those of NumPy, since a chunk has up to a million elements.
"""

from __future__ import annotations

import numpy as np

from tensorglot.kernels.sparse import COLUMNS, LONGEST

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        little,
        longlongs_out,
        uchars_in,
        uchars_out,
    )

_LONGEST = cython.declare(cython.int, LONGEST)
_COLUMNS = cython.declare(cython.int, COLUMNS)
_BLOCK_NBYTES = cython.declare(cython.int, 16 << 10)


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
