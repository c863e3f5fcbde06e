"""Computes the CRC-32 of a suffix from the CRC-32 of the whole and the prefix, without reading the suffix.

A CRC is a polynomial remainder over GF(2), so crc(a + b) is crc(a), shifted by the length
of b, XOR crc(b). Knows no file.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

__all__ = ["crc32_of_rest"]

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_X8 = 1 << 23
"""The polynomial x^8: multiplying by it shifts by one byte."""


def crc32_of_rest(whole: int, beginning: bytes, nbytes: int) -> int:
    """Returns the CRC-32 of the last `nbytes` of data that begins with `beginning`, given the CRC-32 of all of it."""
    return whole ^ _shift(zlib.crc32(beginning), nbytes)


@lru_cache(1024)
def _shift(crc32: int, nbytes: int) -> int:
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
    """Multiplies two polynomials; the highest coefficients are in the lowest bits."""
    result = 0
    while a:
        if a & _ONE:
            result ^= b
        a = a << 1 & 0xFFFF_FFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return result
