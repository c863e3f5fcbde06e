"""Pieces of one buffer, copied to their places in another.

Knows only bytes and positions, and checks every one of them first.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython


def gather(
    data: cython.const[cython.uchar][::1],
    begins: cython.const[cython.longlong][::1],
    sizes: cython.const[cython.longlong][::1],
    out: cython.uchar[::1],
    offsets: cython.const[cython.longlong][::1],
) -> bool:
    """Copies `sizes` bytes at `begins` of `data` to `offsets` of `out`; False, and nothing, if one lies outside."""
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.longlong
    to: cython.longlong
    nbytes: cython.longlong
    rows: cython.Py_ssize_t = len(begins)
    have: cython.longlong = len(data)
    room: cython.longlong = len(out)
    if len(sizes) != rows or len(offsets) != rows:
        return False
    for row in range(rows):
        nbytes = sizes[row]
        if nbytes < 0 or nbytes > have or nbytes > room:
            return False
        if begins[row] < 0 or begins[row] > have - nbytes or offsets[row] < 0 or offsets[row] > room - nbytes:
            return False
    with cython.nogil:
        for row in range(rows):
            at = begins[row]
            to = offsets[row]
            nbytes = sizes[row]
            if not cython.compiled:
                out[to : to + nbytes] = data[at : at + nbytes]
                continue
            for i in range(nbytes):
                out[to + i] = data[at + i]
    return True
