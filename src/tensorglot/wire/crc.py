"""CRC-32 as arithmetic: the checksum of a rest, from those of the whole and of its beginning.

A CRC is a remainder of polynomials over two elements, so the checksum of `a` followed
by `b` is that of `a`, moved on by the length of `b`, plus that of `b`. Nothing but the
beginning is read. Knows no file.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

__all__ = ["crc32_of_rest"]

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_X8 = 1 << 23
"""x to the eighth: one byte further."""


def crc32_of_rest(whole: int, beginning: bytes, nbytes: int) -> int:
    """The CRC-32 of the last `nbytes` of something that begins with `beginning`, given that of all of it."""
    return whole ^ _moved(zlib.crc32(beginning), nbytes)


@lru_cache(1024)
def _moved(crc32: int, nbytes: int) -> int:
    return _product(crc32, _power(nbytes))


def _power(nbytes: int) -> int:
    """x to the power of 8 × nbytes, modulo the polynomial."""
    result, square = _ONE, _X8
    while nbytes:
        if nbytes & 1:
            result = _product(result, square)
        square = _product(square, square)
        nbytes >>= 1
    return result


def _product(a: int, b: int) -> int:
    """Of two polynomials, whose highest coefficients are in the lowest bits."""
    result = 0
    while a:
        if a & _ONE:
            result ^= b
        a = a << 1 & 0xFFFF_FFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return result
