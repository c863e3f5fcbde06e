"""Packs a sparse delta into bits, which `packed_deltas` describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tensorglot.kernels.packed_deltas import HEAD_NBYTES, MOST, MOST_BITS, SPARE

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        bit_length,
        longlongs_in,
        put_bits,
        uchars_in,
        uchars_out,
        uints_of,
    )

_MOST = cython.declare(cython.int, MOST)
_MOST_BITS = cython.declare(cython.int, MOST_BITS)


def pack(
    positions: cython.const[cython.longlong][::1],
    values: cython.const[cython.uchar][::1],
    width: cython.Py_ssize_t,
    out: cython.uchar[::1],
) -> int:
    """Packs a delta into `out`; returns its number of bytes.

    `positions` are those of the elements that change, ascending; `values` has the planes of their zigzag differences.
    -1, and the contents of `out` are undefined, unless `out` has room for the delta and SPARE more bytes, `width` is 1,
    2 or 4, no gap has more than 20 bits, and no difference is zero.
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
    numbers = np.empty(3 * count, np.uint32)
    places: cython.p_const_longlong = longlongs_in(positions)
    planes: cython.p_const_uchar = uchars_in(values)
    words: cython.p_uint = uints_of(numbers)
    room: cython.longlong = len(out)
    size: cython.longlong
    with cython.nogil:
        size = -1
        if _numbers_of(places, planes, count, width, words, words + count):
            size = _pack(words, words + count, words + 2 * count, count, width, target, room)
    return int(size)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _numbers_of(
    places: cython.p_const_longlong,
    planes: cython.p_const_uchar,
    count: cython.longlong,
    width: cython.Py_ssize_t,
    gaps: cython.p_uint,
    values: cython.p_uint,
) -> cython.bint:
    """Writes gaps, and differences minus one; False if a gap is negative or too large, or a difference is zero."""
    i: cython.longlong
    plane: cython.Py_ssize_t
    gap: cython.ulonglong
    value: cython.ulonglong
    wrong: cython.ulonglong = 0
    before: cython.longlong = -1
    for i in range(count):
        gap = places[i] - before - 1
        before = places[i]
        gaps[i] = cython.cast(cython.uint, gap)
        wrong |= gap >> 20
    for i in range(count):
        value = planes[i]
        for plane in range(1, width):
            value |= cython.cast(cython.ulonglong, planes[plane * count + i]) << (8 * plane)
        value -= 1
        values[i] = cython.cast(cython.uint, value)
        wrong |= value >> 63
    return wrong == 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _pack(
    gaps: cython.p_uint,
    values: cython.p_uint,
    chosen: cython.p_uint,
    count: cython.longlong,
    width: cython.Py_ssize_t,
    out: cython.p_uchar,
    room: cython.longlong,
) -> cython.longlong:
    """Packs changes; returns the number of bytes, or -1 if there is no room. `chosen` is room for `count` numbers."""
    i: cython.longlong
    last: cython.longlong = -1
    exceptions: cython.longlong = 0
    value_bits: cython.longlong = _best_value_bits(values, count, width)
    for i in range(count):
        chosen[exceptions] = i
        exceptions += cython.cast(cython.ulonglong, values[i]) >> value_bits != 0
    low_bits: cython.longlong = _best_bits(gaps, count)
    passed_bits: cython.longlong = max(0, bit_length(11 * count // (16 * exceptions + 1)) - 1)
    lows: cython.longlong = (count * (low_bits + value_bits) + 7) // 8
    highs: cython.longlong = (_unary(gaps, count, low_bits) + 7) // 8
    bits: cython.longlong = 0
    for i in range(exceptions):
        bits += (chosen[i] - last - 1 >> passed_bits) + passed_bits
        bits += 2 * bit_length(cython.cast(cython.ulonglong, values[chosen[i]]) >> value_bits)
        last = chosen[i]
    size: cython.longlong = 8 + lows + highs + (bits + 7) // 8
    # Every store writes eight bytes. Those behind the end of a section are zeros, and belong to the next section,
    # which is written later, or are among the last eight of the room.
    if size + 8 > room:
        return -1
    head: cython.ulonglong = width | low_bits << 4 | value_bits << 9 | passed_bits << 15 | count << 20
    put_bits(out, head | cython.cast(cython.ulonglong, exceptions) << 41)
    _pack_lows(gaps, values, count, low_bits, value_bits, out + 8)
    _pack_highs(gaps, count, low_bits, out + 8 + lows)
    for i in range(8 + lows + highs, size):
        out[i] = 0
    _pack_exceptions(chosen, values, exceptions, value_bits, passed_bits, out + 8 + lows + highs)
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _best_value_bits(values: cython.p_uint, count: cython.longlong, width: cython.Py_ssize_t) -> cython.longlong:
    """The number of low bits of a value with which the delta is smallest.

    An exception costs its gamma code, and the number of changes since the last one, which is estimated from the mean.
    """
    i: cython.longlong
    bits: cython.longlong
    longer: cython.longlong
    extra: cython.longlong
    chosen: cython.longlong = 0
    best: cython.longlong = -1
    # Four tables: an increment of a number waits for the one before, if that was of the same number.
    lengths = cython.declare(cython.longlong[160])
    for i in range(160):
        lengths[i] = 0
    for i in range(count):
        lengths[4 * (bit_length(2 * cython.cast(cython.ulonglong, values[i]) + 1) - 1) + (i & 3)] += 1
    for i in range(40):
        lengths[i] = lengths[4 * i] + lengths[4 * i + 1] + lengths[4 * i + 2] + lengths[4 * i + 3]
    for bits in range(8 * width + 1):
        longer = 0
        extra = 0
        for i in range(bits + 1, 8 * width + 1):
            longer += lengths[i]
            extra += lengths[i] * (2 * (i - bits) - 1)
        extra += longer * (2 + bit_length(count // (longer + 1)))
        if best < 0 or count * bits + extra < best:
            best = count * bits + extra
            chosen = bits
    return chosen


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _pack_lows(
    gaps: cython.p_uint,
    values: cython.p_uint,
    count: cython.longlong,
    low_bits: cython.longlong,
    value_bits: cython.longlong,
    out: cython.p_uchar,
) -> cython.void:
    i: cython.longlong = 0
    end: cython.longlong
    used: cython.longlong
    each: cython.longlong = low_bits + value_bits
    together: cython.longlong = 56 // max(1, each)
    low: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << low_bits) - 1
    value_low: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << value_bits) - 1
    word: cython.ulonglong
    pending: cython.ulonglong = 0
    bits: cython.longlong = 0
    # Invariant: `pending` has the last `bits` < 8 bits, which do not fill a byte; at most 56 are added at once.
    while i < count:
        word = 0
        used = 0
        end = min(count, i + together)
        while i < end:
            word |= ((gaps[i] & low) | (values[i] & value_low) << low_bits) << used
            used += each
            i += 1
        pending |= word << bits
        bits += used
        put_bits(out, pending)
        out += bits >> 3
        pending >>= bits & 56
        bits &= 7


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _pack_highs(
    gaps: cython.p_uint, count: cython.longlong, low_bits: cython.longlong, out: cython.p_uchar
) -> cython.void:
    i: cython.longlong
    bit: cython.longlong = 0
    word: cython.ulonglong = 0
    # Invariant: `word` has the ones among the last `bit` <= 64 bits.
    for i in range(count):
        bit += gaps[i] >> low_bits
        while bit >= 64:
            put_bits(out, word)
            out += 8
            word = 0
            bit -= 64
        word |= cython.cast(cython.ulonglong, 1) << bit
        bit += 1
    put_bits(out, word)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _pack_exceptions(
    chosen: cython.p_uint,
    values: cython.p_uint,
    count: cython.longlong,
    value_bits: cython.longlong,
    passed_bits: cython.longlong,
    out: cython.p_uchar,
) -> cython.void:
    """Writes the exceptions where there are zeros."""
    i: cython.longlong
    passed: cython.longlong
    extra: cython.longlong
    last: cython.longlong = -1
    mask: cython.longlong = (cython.cast(cython.longlong, 1) << passed_bits) - 1
    value: cython.ulonglong
    pending: cython.ulonglong = 0
    bits: cython.longlong = 0
    # Invariant: the ones of `pending` are among the last `bits` bits, which end with any number of zeros. After a
    # store fewer than 8 are left: then a code of up to 21 bits and 31 zeros, or one of up to 32 bits, is added.
    for i in range(count):
        passed = chosen[i] - last - 1
        last = chosen[i]
        value = cython.cast(cython.ulonglong, values[last]) >> value_bits
        extra = bit_length(value) - 1
        bits += passed >> passed_bits
        put_bits(out, pending)
        out += bits >> 3
        pending = pending >> (bits & 56) if bits < 64 else 0
        bits &= 7
        pending |= cython.cast(cython.ulonglong, (passed & mask) << 1 | 1) << bits
        bits += 1 + passed_bits + extra
        put_bits(out, pending)
        out += bits >> 3
        pending >>= bits & 56
        bits &= 7
        value ^= cython.cast(cython.ulonglong, 1) << extra
        pending |= (value << 1 | 1) << bits
        bits += 1 + extra
    if count > 0:
        put_bits(out, pending)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _best_bits(numbers: cython.p_uint, count: cython.longlong) -> cython.longlong:
    """The number of low bits with which the Rice codes of these numbers are shortest, searched from the mean on."""
    total: cython.longlong = _unary(numbers, count, 0) - count
    bits: cython.longlong = min(_MOST_BITS, max(0, bit_length(11 * total // (16 * count)) - 1))
    size: cython.longlong = _unary(numbers, count, bits) + count * bits
    other: cython.longlong
    # The size is a convex function of the bits, so the search ends at the first that is not smaller. Of equal sizes,
    # the fewest bits are taken, as the interpreted form does.
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
def _unary(numbers: cython.p_uint, count: cython.longlong, bits: cython.longlong) -> cython.longlong:
    """The number of bits that the numbers take in unary, without their low bits."""
    i: cython.longlong
    total: cython.longlong = count
    for i in range(count):
        total += numbers[i] >> bits
    return total


# Interpreted

Numbers = npt.NDArray[Any]


def _merge_with_numpy(planes: bytes, width: int) -> Numbers:
    split = np.frombuffer(planes, np.uint8).reshape(width, -1).astype(np.int64)
    merged: Numbers = (split << (8 * np.arange(width)[:, None])).sum(axis=0)
    return merged


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


def _bits_of(numbers: Numbers, each: int) -> bytes:
    """The lowest bits of numbers, one after the other."""
    return np.packbits((numbers[:, None] >> np.arange(each) & 1).astype(np.uint8), bitorder="little").tobytes()
