"""Sparse deltas in as few bits as chance allows: gaps in Rice codes, values as low bits with exceptions.

Changes that a step of training makes are independent of each other, so their gaps are
distributed geometrically, for which Rice codes are the best whole numbers of bits; nearly
all values are 1 or -1, one bit each. No table has to be stored, as Huffman's is for each
chunk. In order, each from a byte on, the lowest bit first:

    head        a word: width 4 bits, a 5, b 6, c 5, count 21, exceptions 21
    low bits    of every change: the lowest a bits of its gap, the lowest b bits of its value less one
    high gaps   the rest of every gap in unary: that many zeros, and a one
    exceptions  of values that have more bits: how many values were passed, as a Rice code of c low bits, which come
                last; then the rest, which is not zero, as Elias' gamma: zeros, as many as bits follow the highest

Bytes are of a stranger: each section is compared with its end, and each position with the number of elements, before
anything is changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        add_to,
        bit_length,
        bits_at,
        longlongs_in,
        longlongs_of,
        longlongs_out,
        put_bits,
        put_uint,
        trailing_zeros,
        uchars_in,
        uchars_out,
        uint_at,
    )

HEAD_NBYTES = 8
WIDTHS = (1, 2, 4)
MOST = 1 << 19
"""Elements that a packed delta changes at most."""
CHANGE_NBYTES = 8
"""Room that `patch` needs for each change, a position and a value. Written out in loops, as the head is: a compiler
must see that it is constant."""
SPARE = 8
"""Bytes that are readable behind the last delta: bits are read as words."""
COLUMNS = 3
"""Numbers that describe a delta to `patch`."""
_COLUMNS = cython.declare(cython.int, COLUMNS)
_BLOCK_NBYTES = cython.declare(cython.int, 16 << 10)
_SPARE = cython.declare(cython.int, SPARE)
_MOST = cython.declare(cython.int, MOST)
_MOST_BITS = cython.declare(cython.int, 20)
"""Of a gap that are not in unary."""


def patch(
    data: cython.const[cython.uchar][::1],
    deltas: cython.longlong[::1],
    undo: cython.bint,
    room: cython.uchar[::1],
    out: cython.uchar[::1],
) -> bool:
    """Applies packed deltas to `out`, one after the other; with `undo`, the one that there is backwards.

    `deltas` has COLUMNS numbers of each: where it ends in `data`, SPARE bytes apart, and two that are used up. Each is
    followed by the XOR of the bytes behind the last element. `room` is used up: CHANGE_NBYTES for each change of a
    delta, better of all. False, and nothing if there is one delta, unless all are of elements of one width, lead to
    elements of `out`, and end where they should.
    """
    count: cython.Py_ssize_t = len(deltas) // _COLUMNS
    width: cython.Py_ssize_t = data[0] & 15 if len(data) > 0 else 0
    if count == 0 or len(out) == 0 or width not in (1, 2, 4):
        return False
    elements: cython.longlong = len(out) // width
    rest: cython.longlong = len(out) % width
    i: cython.Py_ssize_t
    at: cython.longlong
    begin: cython.longlong = 0
    # Invariant: every delta lies between the end of the one before it and the spare bytes, and has a head.
    for i in range(count):
        if not 8 + rest <= deltas[i * _COLUMNS] - begin <= len(data) - _SPARE - begin:
            return False
        begin = deltas[i * _COLUMNS]
    begin = 0
    if cython.compiled:
        source: cython.p_const_uchar = uchars_in(data)
        table: cython.p_longlong = longlongs_out(deltas)
        numbers: cython.p_uchar = uchars_out(room if len(room) > 0 else out)
        target: cython.p_uchar = uchars_out(out)
        first: cython.Py_ssize_t = 0
        size: cython.longlong = len(room)
        filled: cython.longlong = 0
        used: cython.longlong = 0
        with cython.nogil:
            # Invariant: the deltas from `first` to i are the changes in the `filled` bytes of the room.
            for i in range(count):
                used = _unpack(
                    source, begin, table + i * _COLUMNS, rest, width, undo, elements, numbers + filled, size - filled
                )
                if used == -2 and filled > 0:
                    _patch_all(table + first * _COLUMNS, i - first, width, numbers, target, elements)
                    first = i
                    filled = 0
                    used = _unpack(source, begin, table + i * _COLUMNS, rest, width, undo, elements, numbers, size)
                if used < 0:
                    break
                filled += used
                begin = table[i * _COLUMNS]
            if used >= 0:
                _patch_all(table + first * _COLUMNS, count - first, width, numbers, target, elements)
                for i in range(count):
                    for at in range(rest):
                        target[elements * width + at] ^= source[table[i * _COLUMNS] - rest + at]
        return bool(used >= 0)
    found = []
    for end in np.frombuffer(deltas, np.int64)[::COLUMNS].tolist():
        changes = _unpack_with_numpy(memoryview(data)[begin : end - rest], width, elements)
        if changes is None or len(changes[0]) * CHANGE_NBYTES > len(room):
            return False
        found.append((*changes, memoryview(data)[end - rest : end]))
        begin = end
    written, behind = np.frombuffer(out, f"<u{width}", elements), np.frombuffer(out, np.uint8)[len(out) - rest :]
    for positions, values, last in found:
        change = (values >> 1) ^ -(values & 1)
        written[positions] += (-change if undo else change).astype(written.dtype)
        behind ^= np.frombuffer(last, np.uint8)
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unpack(
    data: cython.p_const_uchar,
    begin: cython.longlong,
    row: cython.p_longlong,
    rest: cython.longlong,
    width: cython.Py_ssize_t,
    undo: cython.bint,
    elements: cython.longlong,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    """The changes of one delta, each a position and what is added to the element there; their bytes.

    -1 if it is malformed, -2 if there is not the room. The row gets the number of changes, and how many are done.
    """
    end: cython.longlong = row[0] - rest
    head: cython.ulonglong = bits_at(data, 8 * begin)
    low_bits: cython.longlong = head >> 4 & 31
    value_bits: cython.longlong = head >> 9 & 63
    count: cython.longlong = head >> 20 & 0x1FFFFF
    at: cython.longlong
    if (
        cython.cast(cython.Py_ssize_t, head & 15) != width
        or low_bits > _MOST_BITS
        or value_bits > 8 * width
        or head >> 62 != 0
        or count > elements
        or count > _MOST
    ):
        return -1
    if count * 8 > room:
        return -2
    begin += 8
    at = begin + (count * (low_bits + value_bits) + 7) // 8
    if at > end:
        return -1
    row[1] = count
    row[2] = 0
    at = _unpack_changes(data, begin, at, end, count, low_bits, value_bits, undo, elements, out)
    if at < 0 or _unpack_exceptions(data, begin, at, end, count, head, width, undo, out) != end:
        return -1
    return count * 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unpack_changes(
    data: cython.p_const_uchar,
    begin: cython.longlong,
    at: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    low_bits: cython.longlong,
    value_bits: cython.longlong,
    undo: cython.bint,
    elements: cython.longlong,
    out: cython.p_uchar,
) -> cython.longlong:
    """Positions, and values as if there were no exceptions; where the unary ends, or -1.

    The low bits lie before `at`, the unary from there on, before `end`.
    """
    mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << low_bits) - 1
    value_mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << value_bits) - 1
    bits: cython.ulonglong
    both: cython.ulonglong
    low: cython.longlong = 8 * begin
    bit: cython.longlong = 0
    last: cython.longlong = -1
    here: cython.longlong
    position: cython.longlong = -1
    stop: cython.p_uchar = out + count * 8
    if count == 0:
        return at
    # Invariant: out < stop; the ones before `bit` belong to the changes that are written. Positions ascend, so that the
    # last one tells whether all are elements. 20 and 32 low bits, with seven before them, are in a word.
    while at + bit // 8 < end:
        bits = bits_at(data, 8 * at + bit)
        while bits:
            here = bit + trailing_zeros(bits)
            bits &= bits - 1
            both = bits_at(data, low)
            position += 1 + ((here - last - 1) << low_bits | both & mask)
            last = here
            low += low_bits + value_bits
            put_uint(out, 0, position)
            _put_value(out, 0, (both >> low_bits & value_mask) + 1, undo)
            out += 8
            if out == stop:
                at += last // 8 + 1
                return at if at <= end and position < elements else -1
        bit += 64
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_value(out: cython.p_uchar, at: cython.longlong, value: cython.ulonglong, undo: cython.bint) -> cython.void:
    """A zigzag difference as the number that it is, or with `undo` minus that."""
    minus: cython.ulonglong = undo
    value = (value >> 1) ^ (0 - (value & 1))
    put_uint(out, at * 8 + 4, (value ^ (0 - minus)) + minus)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unpack_exceptions(
    data: cython.p_const_uchar,
    lows: cython.longlong,
    at: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    head: cython.ulonglong,
    width: cython.Py_ssize_t,
    undo: cython.bint,
    out: cython.p_uchar,
) -> cython.longlong:
    """Values that are larger; where the section ends, or -1."""
    value_bits: cython.longlong = head >> 9 & 63
    low_bits: cython.longlong = head >> 15 & 31
    left: cython.longlong = head >> 41 & 0x1FFFFF
    bit: cython.longlong = 8 * at
    position: cython.longlong = -1
    zeros: cython.longlong
    value: cython.ulonglong
    gap_bits: cython.longlong = head >> 4 & 31
    mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << value_bits) - 1
    if left > count or low_bits > _MOST_BITS:
        return -1
    # Invariant: bit <= 8 * end, so that a word can be read there; position < count.
    while left > 0:
        zeros = _zeros(data, bit, end)
        bit += zeros + 1 + low_bits
        if zeros < 0 or bit > 8 * end:
            return -1
        position += 1 + (zeros << low_bits)
        position += bits_at(data, bit - low_bits) & ((cython.cast(cython.ulonglong, 1) << low_bits) - 1)
        if position >= count:
            return -1
        zeros = _zeros(data, bit, end)
        bit += 2 * zeros + 1
        if zeros < 0 or value_bits + zeros >= 8 * width or bit > 8 * end:
            return -1
        value = cython.cast(cython.ulonglong, 1) << zeros
        value |= bits_at(data, bit - zeros) & (value - 1)
        value <<= value_bits
        value |= bits_at(data, 8 * lows + position * (gap_bits + value_bits)) >> gap_bits & mask
        _put_value(out, position, value + 1, undo)
        left -= 1
    return (bit + 7) // 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zeros(data: cython.p_const_uchar, bit: cython.longlong, end: cython.longlong) -> cython.longlong:
    """Zeros before the next one from `bit` on; -1 if there is none before the byte `end`."""
    begin: cython.longlong = bit
    bits: cython.ulonglong
    while bit < 8 * end:
        bits = bits_at(data, bit)
        if bits:
            return bit + trailing_zeros(bits) - begin
        bit += 64 - (bit & 7)
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _patch_all(
    table: cython.p_longlong,
    count: cython.Py_ssize_t,
    width: cython.Py_ssize_t,
    numbers: cython.p_const_uchar,
    target: cython.p_uchar,
    elements: cython.longlong,
) -> cython.void:
    """All deltas on one block of `target`, then on the next: a block stays in the cache."""
    limit: cython.longlong = 0
    i: cython.Py_ssize_t
    row: cython.p_longlong
    here: cython.p_const_uchar
    # Invariant: every delta has been applied to the elements below `limit`.
    while limit < elements:
        limit += _BLOCK_NBYTES // width
        here = numbers
        for i in range(count):
            row = table + i * _COLUMNS
            # A compiler that knows the width makes one load, one addition and one store of an element.
            if width == 2:
                row[2] = _patch(here, row[1], row[2], 2, target, limit)
            else:
                row[2] = _patch(here, row[1], row[2], width, target, limit)
            here += row[1] * 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _patch(
    numbers: cython.p_const_uchar,
    count: cython.longlong,
    done: cython.longlong,
    width: cython.Py_ssize_t,
    target: cython.p_uchar,
    limit: cython.longlong,
) -> cython.longlong:
    """The changes of one delta from `done` to the last below `limit`; how many are done then."""
    at: cython.longlong
    # Positions are those that `_unpack` has checked.
    while done < count:
        at = uint_at(numbers, done * 8)
        if at >= limit:
            break
        add_to(target + at * width, uint_at(numbers, done * 8 + 4), width)
        done += 1
    return done


def pack(
    positions: cython.const[cython.longlong][::1],
    values: cython.const[cython.uchar][::1],
    width: cython.Py_ssize_t,
    out: cython.uchar[::1],
) -> int:
    """Packs a delta of elements at ascending positions, of which `values` has the planes; how many bytes that are.

    -1, with `out` undefined, unless it has room for them and SPARE more, `width` is 1, 2 or 4, and no value is zero.
    """
    count: cython.Py_ssize_t = len(positions)
    i: cython.Py_ssize_t
    if width not in (1, 2, 4) or len(values) != count * width or len(out) < 8 or count > _MOST:
        return -1
    if not cython.compiled:
        gaps, numbers = np.diff(positions, prepend=-1) - 1, _merge_with_numpy(values, width) - 1
        if count and (gaps.min() < 0 or gaps.max() >= 1 << 20 or numbers.min() < 0):
            return -1
        return _pack_with_numpy(gaps, numbers, width, out)
    target: cython.p_uchar = uchars_out(out)
    if count == 0:
        for i in range(8):
            target[i] = 0
        target[0] = width
        return 8
    numbers = np.empty(2 * count, np.int64)
    places: cython.p_const_longlong = longlongs_in(positions)
    planes: cython.p_const_uchar = uchars_in(values)
    both: cython.p_longlong = longlongs_of(numbers)
    room: cython.longlong = len(out)
    size: cython.longlong
    with cython.nogil:
        size = _pack(places, planes, both, both + count, count, width, target, room)
    return int(size)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _pack(
    places: cython.p_const_longlong,
    planes: cython.p_const_uchar,
    gaps: cython.p_longlong,
    values: cython.p_longlong,
    count: cython.longlong,
    width: cython.Py_ssize_t,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    i: cython.longlong
    plane: cython.Py_ssize_t
    bits: cython.longlong
    longer: cython.longlong
    extra: cython.longlong
    size: cython.longlong
    best: cython.longlong = -1
    value_bits: cython.longlong = 0
    exceptions: cython.longlong = 0
    lengths = cython.declare(cython.longlong[40])
    for i in range(40):
        lengths[i] = 0
    longer = -1
    for i in range(count):
        gaps[i] = places[i] - longer - 1
        longer = places[i]
        values[i] = -1
        for plane in range(width):
            values[i] += cython.cast(cython.longlong, planes[plane * count + i]) << (8 * plane)
        if values[i] < 0 or gaps[i] < 0 or gaps[i] >= 1 << 20:
            return -1
        lengths[bit_length(values[i])] += 1
    # The fewest bits for the values: of each that is longer there is also the gap, about as long as the entropy says.
    for bits in range(8 * width + 1):
        longer = 0
        extra = 0
        for i in range(bits + 1, 8 * width + 1):
            longer += lengths[i]
            extra += lengths[i] * (2 * (i - bits) - 1)
        extra += longer * (2 + bit_length(count // (longer + 1)))
        if best < 0 or count * bits + extra < best:
            best = count * bits + extra
            value_bits = bits
            exceptions = longer
    low_bits: cython.longlong = _best_bits(gaps, count)
    passed_bits: cython.longlong = max(0, bit_length(11 * count // (16 * exceptions + 1)) - 1)
    size = 8 + (count * (low_bits + value_bits) + 7) // 8 + (_unary(gaps, count, low_bits) + 7) // 8
    best = 0
    longer = -1
    for i in range(count):
        if values[i] >> value_bits:
            best += (i - longer - 1 >> passed_bits) + 1 + passed_bits + 2 * bit_length(values[i] >> value_bits) - 1
            longer = i
    size += (best + 7) // 8
    if size + 8 > room:
        return -1
    for i in range(size):
        out[i] = 0
    # From here on every bit that is set lies below `size`, of which the sections above are the sum.
    _put(out, 0, width | low_bits << 4 | value_bits << 9 | passed_bits << 15 | count << 20, 41)
    _put(out, 41, exceptions, 21)
    # Low bits are gathered in a word, of which `bits` < 8 are not in a whole byte; what is written behind them is zero.
    word: cython.ulonglong = 0
    low: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << low_bits) - 1
    value_low: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << value_bits) - 1
    at: cython.p_uchar = out + 8
    bits = 0
    for i in range(count):
        word |= ((gaps[i] & low) | (values[i] & value_low) << low_bits) << bits
        bits += low_bits + value_bits
        put_bits(at, word)
        at += bits >> 3
        word >>= bits & 56
        bits &= 7
    bits = 8 * (8 + (count * (low_bits + value_bits) + 7) // 8)
    for i in range(count):
        bits = _put(out, bits + (gaps[i] >> low_bits), 1, 1)
    bits = (bits + 7) // 8 * 8
    longer = -1
    for i in range(count):
        if values[i] >> value_bits:
            best = i - longer - 1
            longer = i
            bits = _put(out, bits + (best >> passed_bits), 1, 1)
            bits = _put(out, bits, best & ((1 << passed_bits) - 1), passed_bits)
            best = values[i] >> value_bits
            extra = bit_length(best) - 1
            bits = _put(out, bits + extra, 1, 1)
            bits = _put(out, bits, best & ((cython.cast(cython.longlong, 1) << extra) - 1), extra)
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _best_bits(numbers: cython.p_longlong, count: cython.longlong) -> cython.longlong:
    """The low bits with which Rice codes are shortest, near what the mean suggests."""
    i: cython.longlong
    total: cython.longlong = 0
    for i in range(count):
        total += numbers[i]
    bits: cython.longlong = min(_MOST_BITS, max(0, bit_length(11 * total // (16 * count)) - 1))
    size: cython.longlong = _unary(numbers, count, bits) + count * bits
    other: cython.longlong
    # The size is convex; of equal ones, the fewest bits.
    while bits < _MOST_BITS:
        other = _unary(numbers, count, bits + 1) + count * (bits + 1)
        if other >= size:
            break
        size = other
        bits += 1
    while bits > 0:
        other = _unary(numbers, count, bits - 1) + count * (bits - 1)
        if other > size:
            break
        size = other
        bits -= 1
    return bits


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unary(numbers: cython.p_longlong, count: cython.longlong, bits: cython.longlong) -> cython.longlong:
    """Bits of the numbers in unary, without the low ones."""
    i: cython.longlong
    total: cython.longlong = count
    for i in range(count):
        total += numbers[i] >> bits
    return total


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(out: cython.p_uchar, bit: cython.longlong, value: cython.ulonglong, bits: cython.longlong) -> cython.longlong:
    """Writes the bits of a value where zeros are; where they end."""
    at: cython.longlong = bit >> 3
    value <<= bit & 7
    while value:
        out[at] |= value & 255
        value >>= 8
        at += 1
    return bit + bits


# Interpreted

Numbers = npt.NDArray[Any]


def _merge_with_numpy(planes: bytes, width: int) -> Numbers:
    split = np.frombuffer(planes, np.uint8).reshape(width, -1).astype(np.int64)
    merged: Numbers = (split << (8 * np.arange(width)[:, None])).sum(axis=0)
    return merged


def _unpack_with_numpy(body: memoryview, width: int, elements: int) -> tuple[Numbers, Numbers] | None:
    head = int.from_bytes(body[:8], "little")
    low_bits, value_bits, passed_bits = head >> 4 & 31, head >> 9 & 63, head >> 15 & 31
    count, exceptions = head >> 20 & 0x1FFFFF, head >> 41
    if head & 15 != width or max(low_bits, passed_bits) > _MOST_BITS or value_bits > 8 * width:
        return None
    bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
    at = 8 * HEAD_NBYTES
    each = low_bits + value_bits
    if not exceptions <= count <= min(elements, MOST) or at + count * each > len(bits):
        return None
    both, at = _numbers(bits, at, count, each), _next_byte(at + count * each)
    lows, values = both & (1 << low_bits) - 1, both >> low_bits
    ones = np.flatnonzero(bits[at:])[:count]
    if len(ones) < count:
        return None
    gaps = ((np.diff(ones, prepend=-1) - 1) << low_bits) + lows
    at = _next_byte(at + int(ones[-1]) + 1) if count else at
    if gaps.sum() + count > elements:
        return None
    stream, bit, position = bits[at:].tobytes(), 0, -1
    for _ in range(exceptions):
        one = stream.find(1, bit)
        two = stream.find(1, one + 1 + passed_bits)
        more = two - one - 1 - passed_bits
        if one < 0 or two < 0 or two + 1 + more > len(stream) or value_bits + more >= 8 * width:
            return None
        position += 1 + ((one - bit) << passed_bits) + _number(stream[one + 1 : one + 1 + passed_bits])
        if position >= count:
            return None
        bit = two + 1 + more
        values[position] |= (1 << more | _number(stream[two + 1 : bit])) << value_bits
    if at + _next_byte(bit) != len(bits):
        return None
    return np.cumsum(gaps + 1) - 1, values + 1


def _pack_with_numpy(gaps: Numbers, values: Numbers, width: int, out: memoryview) -> int:
    count = len(gaps)

    def rice(bits: int) -> int:
        return int((gaps >> bits).sum()) + count * (bits + 1)

    lengths = [int((values >> bits > 0).sum()) for bits in range(8 * width + 2)]  # longer than that

    def cost(bits: int) -> int:
        extra = sum((lengths[i - 1] - lengths[i]) * (2 * (i - bits) - 1) for i in range(bits + 1, 8 * width + 1))
        return count * bits + extra + lengths[bits] * (2 + (count // (lengths[bits] + 1)).bit_length())

    low_bits = min(range(_MOST_BITS + 1), key=rice)
    value_bits = min(range(8 * width + 1), key=cost)
    passed_bits = max(0, (11 * count // (16 * lengths[value_bits] + 1)).bit_length() - 1)
    ones = np.zeros(int((gaps >> low_bits).sum()) + count, np.uint8)
    ones[np.cumsum((gaps >> low_bits) + 1) - 1] = 1
    stream, last = bytearray(), -1
    for position in np.flatnonzero(values >> value_bits).tolist():
        passed, rest, last = position - last - 1, int(values[position]) >> value_bits, position
        more = rest.bit_length() - 1
        for zeros, number, each in ((passed >> passed_bits, passed, passed_bits), (more, rest, more)):
            stream += bytes(zeros) + b"\1" + bytes(number >> i & 1 for i in range(each))
    head = width | low_bits << 4 | value_bits << 9 | passed_bits << 15 | count << 20 | lengths[value_bits] << 41
    body = b"".join(
        (
            head.to_bytes(HEAD_NBYTES, "little"),
            _bits_of(gaps & (1 << low_bits) - 1 | (values & (1 << value_bits) - 1) << low_bits, low_bits + value_bits),
            np.packbits(ones, bitorder="little").tobytes(),
            np.packbits(np.frombuffer(stream, np.uint8), bitorder="little").tobytes(),
        )
    )
    if count and len(body) + SPARE > len(out):
        return -1
    np.frombuffer(out, np.uint8)[: len(body)] = np.frombuffer(body, np.uint8)
    return len(body)


def _number(bits: bytes) -> int:
    """A byte for each bit."""
    return sum(bit << i for i, bit in enumerate(bits))


def _numbers(bits: Numbers, at: int, count: int, each: int) -> Numbers:
    """Numbers of `each` bits."""
    numbers: Numbers = (bits[at : at + count * each].reshape(count, each).astype(np.int64) << np.arange(each)).sum(
        axis=1
    )
    return numbers


def _bits_of(numbers: Numbers, each: int) -> bytes:
    """The lowest bits of numbers, one after the other."""
    return np.packbits((numbers[:, None] >> np.arange(each) & 1).astype(np.uint8), bitorder="little").tobytes()


def _next_byte(bit: int) -> int:
    return (bit + 7) // 8 * 8
