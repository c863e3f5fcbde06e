"""Bob Jenkins' hash lookup3 (2006) of bytes, as one number of 32 bits: the checksum of structures of HDF5.

Three words of state take in twelve bytes at a time. The last one to twelve bytes are
padded with zeros, and mixed in another way.
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
    """The hash with the initial value 0."""
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
    if left == 0:
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
