"""Bob Jenkins' hash lookup3 (2006), 32 bits: the checksum of HDF5's metadata structures.

The state is three 32-bit words, into which twelve bytes at a time are mixed. The last one
to twelve bytes are padded with zeros and go through a different final mix. The rotations
are those of `mix` and `final` in Jenkins' lookup3.c.
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

_MASK = cython.declare(cython.ulonglong, 0xFFFF_FFFF)
_START = cython.declare(cython.ulonglong, 0xDEAD_BEEF)


def lookup3(data: bytes) -> cython.ulonglong:
    """The hash of `data`, with the initial value 0."""
    memory: cython.p_const_uchar = data
    at: cython.Py_ssize_t = 0
    left: cython.Py_ssize_t = len(data)
    a: cython.ulonglong = (_START + left) & _MASK
    b: cython.ulonglong = a
    c: cython.ulonglong = a
    # Invariant: the 12-byte blocks before `at` are mixed into a, b and c, each below 2**32; `left` bytes follow.
    while left > 12:
        a = (a + little(memory, at, 4)) & _MASK
        b = (b + little(memory, at + 4, 4)) & _MASK
        c = (c + little(memory, at + 8, 4)) & _MASK
        a = ((a - c) & _MASK) ^ _rotate(c, 4)
        c = (c + b) & _MASK
        b = ((b - a) & _MASK) ^ _rotate(a, 6)
        a = (a + c) & _MASK
        c = ((c - b) & _MASK) ^ _rotate(b, 8)
        b = (b + a) & _MASK
        a = ((a - c) & _MASK) ^ _rotate(c, 16)
        c = (c + b) & _MASK
        b = ((b - a) & _MASK) ^ _rotate(a, 19)
        a = (a + c) & _MASK
        c = ((c - b) & _MASK) ^ _rotate(b, 4)
        b = (b + a) & _MASK
        at += 12
        left -= 12
    if left == 0:  # only for empty data: the loop leaves 1 to 12 bytes
        return c
    a = (a + little(memory, at, min(left, 4))) & _MASK
    b = (b + little(memory, at + 4, min(max(left - 4, 0), 4))) & _MASK
    c = (c + little(memory, at + 8, max(left - 8, 0))) & _MASK
    c = ((c ^ b) - _rotate(b, 14)) & _MASK
    a = ((a ^ c) - _rotate(c, 11)) & _MASK
    b = ((b ^ a) - _rotate(a, 25)) & _MASK
    c = ((c ^ b) - _rotate(b, 16)) & _MASK
    a = ((a ^ c) - _rotate(c, 4)) & _MASK
    b = ((b ^ a) - _rotate(a, 14)) & _MASK
    return ((c ^ b) - _rotate(b, 24)) & _MASK


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _rotate(value: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    """A number of 32 bits, rotated to the left."""
    return (value << bits | value >> (32 - bits)) & _MASK
