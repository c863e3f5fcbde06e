"""Sparse deltas as bits, close to their entropy: Rice codes for gaps, a few low bits for values, and exceptions.

Which elements a training step changes is nearly random, so the gaps between them are distributed
geometrically: Rice codes are the best code with a whole number of bits for such numbers. Nearly
all differences are 1 or -1, which take one bit. No table has to be stored, as Huffman's would be
for each chunk. A delta has four sections; each starts at a byte, and its first bit is the lowest one:

    head        eight bytes: width 4 bits, a 5, b 6, c 5, count 21, exceptions 21
    low bits    for every change: the lowest a bits of its gap, the lowest b bits of its value
    high gaps   for every change: the other bits of its gap, in unary (that many zeros, and a one)
    exceptions  for every value of more than b bits: the number of changes since the last exception, as a Rice code
                (the bits from c on in unary, then the c low bits); then its bits from b on, a number above zero, as
                an Elias gamma code (as many zeros as bits follow the highest bit, a one, and these bits)

A gap is the number of unchanged elements before a change. A value is the zigzag difference minus one, since a
difference of zero is no change.

The bytes may be hostile. `patch` checks each section against its end, and every position against the number of elements
before it changes that element. If a delta turns out malformed, what was added so far is subtracted again.
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
        put_bits,
        put_uint,
        trailing_zeros,
        uchars_in,
        uchars_out,
        uint_at,
        uints_of,
    )

HEAD_NBYTES = 8
WIDTHS = (1, 2, 4)
"""Bytes of an element that a packed delta may have."""
MOST = 1 << 19
"""The most elements that a packed delta changes."""
CHANGE_NBYTES = 4
"""Bytes of working memory that `patch` needs for each change of a delta: its position, for the exceptions.
The loops repeat the number 4, and that of the head: with a literal the compiler generates faster code."""
SPARE = 8
"""Readable bytes that must follow the last delta: bits are loaded eight bytes at a time."""
_SPARE = cython.declare(cython.int, SPARE)
_MOST = cython.declare(cython.int, MOST)
_MOST_BITS = cython.declare(cython.int, 20)
"""The most low bits of a gap, or of the number of changes between exceptions."""
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
    """The number whose bits are given, the lowest first, a byte for each."""
    return sum(bit << i for i, bit in enumerate(bits))


def _numbers(bits: Numbers, at: int, count: int, each: int) -> Numbers:
    """`count` numbers of `each` bits, from the bit `at` on."""
    numbers: Numbers = (bits[at : at + count * each].reshape(count, each).astype(np.int64) << np.arange(each)).sum(
        axis=1
    )
    return numbers


def _bits_of(numbers: Numbers, each: int) -> bytes:
    """The lowest bits of numbers, one after the other."""
    return np.packbits((numbers[:, None] >> np.arange(each) & 1).astype(np.uint8), bitorder="little").tobytes()


def _next_byte(bit: int) -> int:
    return (bit + 7) // 8 * 8
