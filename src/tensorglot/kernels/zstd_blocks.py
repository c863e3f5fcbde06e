"""Walks the block headers of a zstd frame (RFC 8878, §3.1.1), without decoding anything.

Each block has a three-byte header with its size, so the end of a frame is found by
reading three bytes of every block. The walk goes as far as the given window of bytes
reaches and reports where it needs more.
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

# Results of `walk`.
MORE = 0
LAST = 1
BAD = 2
_MAGIC = cython.declare(cython.longlong, 0xFD2FB528)
_MAX_BLOCK = cython.declare(cython.longlong, 128 << 10)


def walk(window: bytes, at: cython.longlong, position: cython.longlong, max_block: cython.longlong) -> tuple[int, int]:
    """Walks from the block header at `position`; `window` has the bytes from `at` on.

    Returns (MORE, position of the next header, which the window does not contain),
    (LAST, end of the frame's last block), or (BAD, position of an invalid block header).
    """
    data: cython.p_const_uchar = window
    end: cython.longlong = at + len(window)
    header: cython.longlong
    nbytes: cython.longlong
    kind: cython.longlong
    # Invariant: `position` is a block header. It is read only if its three bytes lie in the window. A block has at
    # most max_block bytes, so the position cannot overflow before it leaves the window.
    while position >= at and position + 3 <= end:
        header = little(data, position - at, 3)
        kind = (header >> 1) & 3
        nbytes = header >> 3
        if kind == 3 or nbytes > max_block:
            return BAD, position
        position += 3 + (1 if kind == 1 else nbytes)  # an RLE block stores one byte, whatever its size
        if header & 1:
            return LAST, position
    return MORE, position


def declared(frame: cython.const[cython.uchar][::1], max_window: cython.longlong) -> int:
    """The decoded size that a single, plain frame declares; -1 if the frame is anything else.

    Plain: it declares its size, has no dictionary, no checksum and no reserved bits, needs a
    window of at most `max_window` bytes, and ends exactly where the memory does.
    """
    size: cython.Py_ssize_t = len(frame)
    if size < 6:
        return -1
    data: cython.p_const_uchar = uchars_in(frame)
    flags: cython.int = data[4]
    single: cython.bint = (flags & 0x20) != 0
    at: cython.longlong = 5 if single else 6
    width: cython.int = (1 if single else 0) if flags < 0x40 else 1 << (flags >> 6)
    # §3.1.1.1.1: the low five bits are a checksum, a reserved and an unused bit, and the dictionary's size.
    if (
        cython.cast(cython.longlong, little(data, 0, 4)) != _MAGIC
        or (flags & 0x1F) != 0
        or width == 0
        or at + width > size
    ):
        return -1
    nbytes: cython.longlong = little(data, at, width) + (256 if width == 2 else 0)  # §3.1.1.1.4
    window: cython.longlong = 0
    header: cython.longlong
    kind: cython.longlong
    if not single:  # §3.1.1.1.2: an exponent and an eighth-step mantissa
        window = cython.cast(cython.longlong, 1) << (10 + (data[5] >> 3))
        window += (window >> 3) * (data[5] & 7)
    if not 0 <= nbytes <= 1 << 62 or window > max_window or (single and nbytes > max_window):
        return -1
    at += width
    # Invariant: `at` is a block header. A block that reaches beyond the end fails the next comparison.
    while at + 3 <= size:
        header = little(data, at, 3)
        kind = (header >> 1) & 3
        if kind == 3 or header >> 3 > _MAX_BLOCK:
            return -1
        at += 3 + (1 if kind == 1 else header >> 3)
        if header & 1:
            return int(nbytes) if at == size else -1
    return -1
