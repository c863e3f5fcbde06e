"""Walks the block headers of a zstd frame, without decoding anything.

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
    from cython.cimports.tensorglot.kernels.primitives import little
else:
    from tensorglot.kernels.primitives import little

MORE = 0
LAST = 1
BAD = 2


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
