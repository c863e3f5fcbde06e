"""Applies packed deltas, whose bits `packed_deltas` describes, to a buffer of elements.

The bytes may be hostile. `patch` checks each section against its end, and every position against the number of elements
before it changes that element. If a delta turns out malformed, what was added so far is subtracted again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tensorglot.kernels.packed_deltas import CHANGE_NBYTES, HEAD_NBYTES, MOST, MOST_BITS, SPARE, WIDTHS

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        add_to,
        bits_at,
        longlongs_in,
        put_uint,
        trailing_zeros,
        uchars_in,
        uchars_out,
        uint_at,
    )

_SPARE = cython.declare(cython.int, SPARE)
_MOST = cython.declare(cython.int, MOST)
_MOST_BITS = cython.declare(cython.int, MOST_BITS)
_LOADED_BITS = cython.declare(cython.int, 57)
"""Bits that `bits_at` returns at least: up to seven of the 64 that it loads lie before the position."""
_ENOUGH_BITS = cython.declare(cython.int, 40)
"""Nearly every exception has fewer bits. If fewer are left of a load, the next one is loaded."""


def patch(
    data: cython.const[cython.uchar][::1],
    spans: cython.const[cython.longlong][::1],
    undo: cython.bint,
    room: cython.uchar[::1],
    out: cython.uchar[::1],
) -> bool:
    """Applies packed deltas to `out`, one after the other; with `undo`, subtracts the differences instead.

    `spans` has the begin and end of each delta in `data`, which has SPARE more bytes behind each end. The last bytes of
    a delta are the XOR of the bytes of `out` behind its last whole element. `room` is working memory: CHANGE_NBYTES for
    each change of the delta that has most.

    Returns False for a delta that is malformed, changes an element that `out` does not have, or does not fit into
    `room`. That delta then has changed nothing; those before it are applied.
    """
    count: cython.Py_ssize_t = len(spans) // 2
    nbytes: cython.longlong = len(out)
    if nbytes == 0:
        return False
    i: cython.Py_ssize_t
    for i in range(count):
        if not (8 <= spans[2 * i + 1] <= len(data) - _SPARE and 0 <= spans[2 * i] <= spans[2 * i + 1] - 8):
            return False
    if cython.compiled:
        if count == 0:
            return True
        source: cython.p_const_uchar = uchars_in(data)
        edges: cython.p_const_longlong = longlongs_in(spans)
        places: cython.p_uchar = uchars_out(room if len(room) > 0 else out)  # without room none is written
        target: cython.p_uchar = uchars_out(out)
        size: cython.longlong = len(room)
        fits: cython.bint = True
        with cython.nogil:
            for i in range(count):
                fits = _apply_one(source, edges[2 * i], edges[2 * i + 1], undo, places, size, target, nbytes)
                if not fits:
                    break
        return bool(fits)
    for begin, end in np.frombuffer(spans, np.int64)[: 2 * count].reshape(count, 2).tolist():
        width = data[begin] & 15
        rest = nbytes % width if width in WIDTHS else 0
        unpacked = _unpack_with_numpy(memoryview(data)[begin : end - rest], width, nbytes // width if width else 0)
        if unpacked is None or len(unpacked[0]) * CHANGE_NBYTES > len(room):
            return False
        positions, values = unpacked
        change = (values >> 1) ^ -(values & 1)
        written = np.frombuffer(out, f"<u{width}", nbytes // width)
        written[positions] += (-change if undo else change).astype(written.dtype)
        np.frombuffer(out, np.uint8)[nbytes - rest :] ^= np.frombuffer(data, np.uint8)[end - rest : end]
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _apply_one(
    data: cython.p_const_uchar,
    begin: cython.longlong,
    end: cython.longlong,
    undo: cython.bint,
    places: cython.p_uchar,
    room: cython.longlong,
    target: cython.p_uchar,
    nbytes: cython.longlong,
) -> cython.bint:
    """Applies the delta in the bytes `begin` to `end`, with the bytes behind the last whole element."""
    width: cython.Py_ssize_t = data[begin] & 15
    if width != 1 and width != 2 and width != 4:
        return False
    at: cython.longlong
    rest: cython.longlong = nbytes % width
    elements: cython.longlong = nbytes // width
    if end - begin < 8 + rest or not _apply(data, begin, end - rest, width, undo, elements, places, room, target):
        return False
    for at in range(rest):
        target[nbytes - rest + at] ^= data[end - rest + at]
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _apply(
    data: cython.p_const_uchar,
    begin: cython.longlong,
    end: cython.longlong,
    width: cython.Py_ssize_t,
    undo: cython.bint,
    elements: cython.longlong,
    places: cython.p_uchar,
    room: cython.longlong,
    target: cython.p_uchar,
) -> cython.bint:
    """Applies the delta in the bytes `begin` to `end`; False, and nothing is changed, if it is malformed.

    `places` has `room` bytes, for the positions of the changes.
    """
    head: cython.ulonglong = bits_at(data, 8 * begin)
    low_bits: cython.longlong = head >> 4 & 31
    value_bits: cython.longlong = head >> 9 & 63
    count: cython.longlong = head >> 20 & 0x1FFFFF
    exceptions: cython.longlong = head >> 41 & 0x1FFFFF
    highs: cython.longlong
    at: cython.longlong
    if (
        low_bits > _MOST_BITS
        or value_bits > 8 * width
        or cython.cast(cython.longlong, head >> 15 & 31) > _MOST_BITS
        or exceptions > count
        or head >> 62 != 0
        or count > elements
        or count > _MOST
        or count * 4 > room
    ):
        return False
    begin += 8
    highs = begin + (count * (low_bits + value_bits) + 7) // 8
    if highs > end:
        return False
    # Arguments that are literals shorten the loop. Training changes most elements by 1 or -1, one bit each.
    if width == 2 and value_bits == 1 and not undo:
        at = _add_changes(data, begin, highs, end, count, low_bits, 1, False, elements, places, 2, target)
    elif width == 2:
        at = _add_changes(data, begin, highs, end, count, low_bits, value_bits, undo, elements, places, 2, target)
    else:
        at = _add_changes(data, begin, highs, end, count, low_bits, value_bits, undo, elements, places, width, target)
    if at < 0:
        count = -1 - at
        exceptions = 0
    else:
        at = _add_exceptions(data, begin, at, end, count, head, exceptions, undo, places, width, target)
        if at == end:
            return True
        if at < 0:
            exceptions = -1 - at
    # Undo what was added before the fault.
    at = _add_changes(data, begin, highs, end, count, low_bits, value_bits, not undo, elements, places, width, target)
    _add_exceptions(data, begin, at, end, count, head, exceptions, not undo, places, width, target)
    return False


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _add_changes(
    data: cython.p_const_uchar,
    begin: cython.longlong,
    at: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    low_bits: cython.longlong,
    value_bits: cython.longlong,
    undo: cython.bint,
    elements: cython.longlong,
    places: cython.p_uchar,
    width: cython.Py_ssize_t,
    target: cython.p_uchar,
) -> cython.longlong:
    """Adds `count` changes as if there were no exceptions, and writes their positions; returns where the high gaps end.

    The low bits are in the bytes `begin` to `at`, the high gaps begin at `at` and end before `end`. After a fault,
    returns -1 minus the number of changes that were added.
    """
    mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << low_bits) - 1
    value_mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << value_bits) - 1
    each: cython.longlong = low_bits + value_bits
    together: cython.longlong = _LOADED_BITS // max(1, each)
    bits: cython.ulonglong
    fields: cython.ulonglong = 0
    left: cython.longlong = 0
    low: cython.longlong = 8 * begin
    bit: cython.longlong = 0
    here: cython.longlong
    step: cython.longlong = 1 - (cython.cast(cython.longlong, 1) << low_bits)
    sum: cython.longlong = -step
    position: cython.longlong
    first: cython.p_uchar = places
    last: cython.p_uchar = places + 4 * count
    if count == 0:
        return at
    # Invariant: `places` has the positions of the changes before, one for each one before `bit`. `fields` has the low
    # bits of the next `left` changes, at most 20 and 32 each. Of n changes, the high gaps are the n zeros less than
    # `here` before the one at `here`, so the position is (here - n << low_bits) + n + the sum of the low bits.
    while at + bit // 8 < end:
        bits = bits_at(data, 8 * at + bit)
        while bits:
            if left == 0:
                fields = bits_at(data, low)
                low += together * each
                left = together
            left -= 1
            here = bit + trailing_zeros(bits)
            bits &= bits - 1
            sum += cython.cast(cython.longlong, fields & mask) + step
            position = (here << low_bits) + sum
            if position >= elements:
                return -1 - (places - first) // 4
            put_uint(places, 0, position)
            add_to(target + position * width, _change(fields >> low_bits & value_mask, undo), width)
            fields >>= each
            places += 4
            if places == last:
                at += here // 8 + 1
                return at if at <= end else -1 - count
        bit += 64
    return -1 - (places - first) // 4


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _change(value: cython.ulonglong, undo: cython.bint) -> cython.uint:
    """What is added to an element: the difference that `value` stands for, or minus that."""
    minus: cython.ulonglong = undo
    value += 1
    value = (value >> 1) ^ (0 - (value & 1))
    return cython.cast(cython.uint, (value ^ (0 - minus)) + minus)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _add_exceptions(
    data: cython.p_const_uchar,
    lows: cython.longlong,
    at: cython.longlong,
    end: cython.longlong,
    count: cython.longlong,
    head: cython.ulonglong,
    exceptions: cython.longlong,
    undo: cython.bint,
    places: cython.p_const_uchar,
    width: cython.Py_ssize_t,
    target: cython.p_uchar,
) -> cython.longlong:
    """Adds the bits from `value_bits` on of the first `exceptions` values that have more; returns where they end.

    The section begins at byte `at`, the low bits of all changes at byte `lows`. After a fault, returns -1 minus the
    number of exceptions that were added.
    """
    value_bits: cython.longlong = head >> 9 & 63
    low_bits: cython.longlong = head >> 15 & 31
    gap_bits: cython.longlong = head >> 4 & 31
    done: cython.longlong
    bit: cython.longlong = 8 * at
    stop: cython.longlong = 8 * end
    position: cython.longlong = -1
    passed: cython.longlong
    zeros: cython.longlong
    used: cython.longlong
    bits: cython.ulonglong
    low: cython.ulonglong
    value: cython.ulonglong
    held: cython.ulonglong = 0
    have: cython.longlong = 0
    top: cython.ulonglong = cython.cast(cython.ulonglong, 1) << 63
    mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << value_bits) - 1
    low_mask: cython.ulonglong = (cython.cast(cython.ulonglong, 1) << low_bits) - 1
    # Invariant: bit <= stop, so that eight bytes can be loaded there; `held` has `have` bits from there on, and above
    # them anything; position < count.
    for done in range(exceptions):
        # Nearly always both codes of an exception are among the bits of one load. The highest bit, which is never
        # part of them then, gives `trailing_zeros` something to find.
        if have < _ENOUGH_BITS:
            held = bits_at(data, bit)
            have = _LOADED_BITS
        bits = held | top
        passed = trailing_zeros(bits)
        bits = bits >> passed >> 1
        value = bits & low_mask
        bits = bits >> low_bits | top
        zeros = trailing_zeros(bits)
        used = passed + 1 + low_bits + 2 * zeros + 1
        if used <= have:
            position += 1 + (passed << low_bits) + cython.cast(cython.longlong, value)
            bits = bits >> zeros >> 1
            value = cython.cast(cython.ulonglong, 1) << zeros
            value |= bits & (value - 1)
            held = bits >> zeros
            have -= used
            bit += used
        else:
            have = 0
            passed = _zeros(data, bit, end)
            bit += passed + 1 + low_bits
            if passed < 0 or bit > stop:
                return -1 - done
            position += 1 + (passed << low_bits)
            position += cython.cast(cython.longlong, bits_at(data, bit - low_bits) & low_mask)
            zeros = _zeros(data, bit, end)
            bit += 2 * zeros + 1
            if zeros < 0 or zeros > 31:
                return -1 - done
            value = cython.cast(cython.ulonglong, 1) << zeros
            if bit <= stop:
                value |= bits_at(data, bit - zeros) & (value - 1)
        if bit > stop or position >= count or value_bits + zeros >= 8 * width:
            return -1 - done
        low = bits_at(data, 8 * lows + position * (gap_bits + value_bits)) >> gap_bits & mask
        value = value << value_bits | low
        add_to(target + uint_at(places, position * 4) * width, _change(value, undo) - _change(low, undo), width)
    return (bit + 7) // 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zeros(data: cython.p_const_uchar, bit: cython.longlong, end: cython.longlong) -> cython.longlong:
    """The number of zeros before the next one, from `bit` on; -1 if there is no one before the byte `end`."""
    begin: cython.longlong = bit
    bits: cython.ulonglong
    while bit < 8 * end:
        bits = bits_at(data, bit)
        if bits:
            return bit + trailing_zeros(bits) - begin
        bit += 64 - (bit & 7)
    return -1


# Interpreted

Numbers = npt.NDArray[Any]


def _unpack_with_numpy(body: memoryview, width: int, elements: int) -> tuple[Numbers, Numbers] | None:
    head = int.from_bytes(body[:8], "little")
    low_bits, value_bits, passed_bits = head >> 4 & 31, head >> 9 & 63, head >> 15 & 31
    count, exceptions = head >> 20 & 0x1FFFFF, head >> 41
    if width not in WIDTHS or len(body) < 8 or max(low_bits, passed_bits) > _MOST_BITS or value_bits > 8 * width:
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
    at = _next_byte(at + int(ones[count - 1]) + 1) if count else at
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


def _number(bits: bytes) -> int:
    """The number whose bits are given, the lowest first, a byte for each."""
    return sum(bit << i for i, bit in enumerate(bits))


def _numbers(bits: Numbers, at: int, count: int, each: int) -> Numbers:
    """`count` numbers of `each` bits, from the bit `at` on."""
    numbers: Numbers = (bits[at : at + count * each].reshape(count, each).astype(np.int64) << np.arange(each)).sum(
        axis=1
    )
    return numbers


def _next_byte(bit: int) -> int:
    return (bit + 7) // 8 * 8
