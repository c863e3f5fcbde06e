"""Copies spans of one buffer to given offsets of another.

Knows only bytes and positions. All spans are checked before the first byte is copied,
so the copying loop needs no check and no GIL.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import copy, uchars_in, uchars_out
else:
    from tensorglot.kernels.primitives import copy, uchars_in, uchars_out


def gather(
    data: cython.const[cython.uchar][::1],
    begins: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    out: cython.uchar[::1],
    offsets: cython.const[cython.longlong][::1],
) -> bool:
    """Copies sizes[i] bytes from data[begins[i]:] to out[offsets[i]:], for every row i.

    Returns False, and copies nothing, if the columns differ in length or a span lies
    outside `data` or `out`.
    """
    row: cython.Py_ssize_t
    nbytes: cython.longlong
    rows: cython.Py_ssize_t = len(begins)
    have: cython.longlong = len(data)
    room: cython.longlong = len(out)
    if len(sizes) != rows or len(offsets) != rows:
        return False
    for row in range(rows):
        nbytes = sizes[row]
        if nbytes < 0 or nbytes > have or nbytes > room:  # so that the differences below are not negative
            return False
        if begins[row] < 0 or begins[row] > have - nbytes or offsets[row] < 0 or offsets[row] > room - nbytes:
            return False
    source: cython.p_const_uchar = uchars_in(data)
    target: cython.p_uchar = uchars_out(out)
    with cython.nogil:
        # Invariant: every span was found to lie in both buffers above.
        for row in range(rows):
            copy(target, offsets[row], source, begins[row], sizes[row])
    return True
