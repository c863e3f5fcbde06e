"""Walks the headers of a zstd frame, without decoding anything.

The blocks of a frame are a chain of three-byte headers, each with the size of its
block, so the end of a frame is found by reading a few bytes out of every block. The
walk goes as far as the bytes at hand reach, and says where it needs more.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import little, uchars_in
else:
    from tensorglot.kernels.primitives import little, uchars_in

MORE = 0
LAST = 1
BAD = 2
_MAGIC = cython.declare(cython.longlong, 0xFD2FB528)
_MAX_BLOCK = cython.declare(cython.longlong, 128 << 10)


def walk(window: bytes, at: cython.longlong, position: cython.longlong, max_block: cython.longlong) -> tuple[int, int]:
    """From the block header at `position`, with the bytes from `at` on in hand.

    (MORE, where the next header is, beyond the window), (LAST, the end of the last
    block), or (BAD, the header of a block that zstd forbids).
    """
    data: cython.p_const_uchar = window
    end: cython.longlong = at + len(window)
    header: cython.longlong
    nbytes: cython.longlong
    kind: cython.longlong
    # A header is read only where its three bytes lie in the window. A block is at most max_block long, so that
    # the position cannot overflow before it leaves the window.
    while position >= at and position + 3 <= end:
        header = little(data, position - at, 3)
        kind = (header >> 1) & 3
        nbytes = header >> 3
        if kind == 3 or nbytes > max_block:
            return BAD, position
        position += 3 + (1 if kind == 1 else nbytes)  # a run is one byte, repeated
        if header & 1:
            return LAST, position
    return MORE, position


def declared(frame: cython.const[cython.uchar][::1], max_window: cython.longlong) -> int:
    """The decoded size that a frame declares; -1 unless that is all there is, and it is as plain as most are.

    It has no dictionary, no checksum and no reserved bits, needs at most `max_window`, and ends where the memory does.
    """
    size: cython.Py_ssize_t = len(frame)
    if size < 6:
        return -1
    data: cython.p_const_uchar = uchars_in(frame)
    flags: cython.int = data[4]
    single: cython.bint = (flags & 0x20) != 0
    at: cython.longlong = 5 if single else 6
    width: cython.int = (1 if single else 0) if flags < 0x40 else 1 << (flags >> 6)
    # The low bits: a checksum, bits that are reserved, a dictionary.
    if little(data, 0, 4) != _MAGIC or (flags & 0x1F) != 0 or width == 0 or at + width > size:
        return -1
    nbytes: cython.ulonglong = little(data, at, width) + (256 if width == 2 else 0)
    window: cython.longlong = 0
    header: cython.longlong
    kind: cython.longlong
    if not single:
        window = cython.cast(cython.longlong, 1) << (10 + (data[5] >> 3))
        window += (window >> 3) * (data[5] & 7)
    if nbytes > 1 << 62 or window > max_window or (single and nbytes > max_window):
        return -1
    at += width
    # Invariant: at <= size. A block that leads beyond the end fails the next comparison.
    while at + 3 <= size:
        header = little(data, at, 3)
        kind = (header >> 1) & 3
        if kind == 3 or header >> 3 > _MAX_BLOCK:
            return -1
        at += 3 + (1 if kind == 1 else header >> 3)
        if header & 1:
            return int(nbytes) if at == size else -1
    return -1
