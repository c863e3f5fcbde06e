"""Whether bytes are UTF-8: no overlong form, no surrogate, nothing beyond U+10FFFF.

A span that does not lie in the data is invalid. Knows bytes and positions.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import invalid_utf8, uchars_in
    from cython.cimports.tensorglot.kernels.primitives import is_ascii as all_ascii
else:
    from tensorglot.kernels.primitives import invalid_utf8, uchars_in
    from tensorglot.kernels.primitives import is_ascii as all_ascii

OK = -1


def first_invalid(
    data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Offset of the first invalid UTF-8 sequence, or OK."""
    if begin < 0 or end > len(data):
        return max(begin, 0)
    return invalid_utf8(uchars_in(data), begin, end)


def is_ascii(data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether all bytes are below 128."""
    if begin < 0 or end > len(data):
        return False
    return all_ascii(uchars_in(data), begin, end)


def first_invalid_text(
    data: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    stops: cython.const[cython.longlong][::1],
) -> cython.Py_ssize_t:
    """Which of the texts from starts to stops is invalid, or OK."""
    text: cython.p_const_uchar = uchars_in(data)
    nbytes: cython.longlong = len(data)
    row: cython.Py_ssize_t
    for row in range(min(len(starts), len(stops))):
        if starts[row] >= stops[row]:
            continue
        if starts[row] < 0 or stops[row] > nbytes or invalid_utf8(text, starts[row], stops[row]) >= 0:
            return row
    return OK


def first_split(
    data: cython.const[cython.uchar][::1], positions: cython.const[cython.longlong][::1]
) -> cython.Py_ssize_t:
    """Which of the positions is inside a character of valid data, or OK."""
    row: cython.Py_ssize_t
    at: cython.longlong
    for row in range(len(positions)):
        at = positions[row]
        if 0 <= at < len(data) and data[at] & 0xC0 == 0x80:
            return row
    return OK
