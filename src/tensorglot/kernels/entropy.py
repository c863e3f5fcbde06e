"""The entropy of byte planes, to choose between encodings without trying them."""

from __future__ import annotations

import numpy as np

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import (
        bit_length,
        longlongs_of,
        uchars_in,
    )
else:
    from tensorglot.kernels.primitives import bit_length


def entropy(data: cython.const[cython.uchar][::1], width: cython.Py_ssize_t) -> int:
    """Estimates the entropy of `width` planes, in bits times 256, if each plane has a code of its own for its bytes.

    Logarithms are interpolated linearly between powers of two: each is up to 0.09 bits too low, that of the total and
    those of the counts that are subtracted from it.
    """
    size: cython.longlong = len(data) // width if width > 0 else 0
    if size == 0:
        return 0
    plane: cython.Py_ssize_t
    i: cython.Py_ssize_t
    total: cython.longlong = 0
    counts = np.zeros((width, 256), np.int64)
    if cython.compiled:
        source: cython.p_const_uchar = uchars_in(data)
        table: cython.p_longlong = longlongs_of(counts)
        with cython.nogil:
            for plane in range(width):
                for i in range(plane * size, (plane + 1) * size):
                    table[plane * 256 + source[i]] += 1
            total = width * size * _logarithm(size)
            for i in range(256 * width):
                if table[i] > 0:
                    total -= table[i] * _logarithm(table[i])
        return int(total)
    for plane in range(width):
        counts[plane] = np.bincount(np.frombuffer(data, np.uint8, size, plane * size), minlength=256)
    parts = counts[counts > 0].tolist()
    return int(width * size * _logarithm(size) - sum([count * _logarithm(count) for count in parts]))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _logarithm(number: cython.longlong) -> cython.longlong:
    """The logarithm to base 2 of a positive number below 2^54, times 256."""
    whole: cython.int = bit_length(number) - 1
    return 256 * whole + (number << 8 >> whole) - 256
