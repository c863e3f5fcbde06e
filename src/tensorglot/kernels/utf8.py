"""Validates UTF-8: no overlong forms, no surrogates, no code points beyond U+10FFFF.

A span that does not lie in the data counts as invalid. Knows only bytes and positions.
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
"""Returned instead of a position or a row if there is no fault."""


def first_invalid(
    data: cython.const[cython.uchar][::1], begin: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Offset of the first invalid UTF-8 sequence from `begin` to `end`, or OK."""
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
    """The first row whose text, data[starts[i]:stops[i]], is not valid UTF-8, or OK. Empty spans are valid."""
    text: cython.p_const_uchar = uchars_in(data)
    nbytes: cython.longlong = len(data)
    row: cython.Py_ssize_t
    # Invariant: the texts of the rows before are valid; a span is compared with the data before it is read.
    for row in range(min(len(starts), len(stops))):
        if starts[row] >= stops[row]:
            continue
        if starts[row] < 0 or stops[row] > nbytes or invalid_utf8(text, starts[row], stops[row]) >= 0:
            return row
    return OK


def first_split(
    data: cython.const[cython.uchar][::1], positions: cython.const[cython.longlong][::1]
) -> cython.Py_ssize_t:
    """The first row whose position is inside a character of valid UTF-8, or OK. Positions outside are ignored."""
    row: cython.Py_ssize_t
    at: cython.longlong
    # In valid UTF-8 exactly the continuation bytes, 10xxxxxx, do not begin a character.
    for row in range(len(positions)):
        at = positions[row]
        if 0 <= at < len(data) and data[at] & 0xC0 == 0x80:
            return row
    return OK
