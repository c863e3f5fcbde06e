"""CRC-32C of many short rows of one buffer, in one call.

For rows of a few hundred bytes, a call to the crc32c package takes longer than the
checksum itself. This kernel loops over the rows in C, eight bytes at a time with the
processor's instruction (`crc32c_step`). All positions are checked before the first byte
is read.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.crc32c_step import crc32c_has_instruction, crc32c_step
    from cython.cimports.tensorglot.kernels.primitives import uchars_in, uints_out
else:
    from tensorglot.kernels.crc32c_step import crc32c_has_instruction, crc32c_step
    from tensorglot.kernels.primitives import uchars_in, uints_out


def is_fast() -> bool:
    """Whether the kernel is compiled and the processor has the instruction; otherwise the package is faster."""
    return bool(crc32c_has_instruction())


def crc32c_rows(
    data: cython.const[cython.uchar][::1],
    begins: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    out: cython.uint[::1],
) -> bool:
    """Writes the checksum of data[begins[i]:ends[i]] to out[i] for every row.

    Returns False, and writes nothing, if the columns differ in length or a span lies outside `data`.
    """
    row: cython.Py_ssize_t
    rows: cython.Py_ssize_t = len(begins)
    have: cython.longlong = len(data)
    if len(ends) != rows or len(out) != rows:
        return False
    for row in range(rows):
        if begins[row] < 0 or begins[row] > ends[row] or ends[row] > have:
            return False
    if rows == 0:
        return True
    source: cython.p_const_uchar = uchars_in(data)
    target: cython.p_uint = uints_out(out)
    with cython.nogil:
        # Invariant: every span was found to lie in `data` above, and `out` has one element for each.
        for row in range(rows):
            target[row] = crc32c_step(source, begins[row], ends[row])
    return True
