"""CRC-32C of many short rows of one buffer, in one call.

A call of the package's function takes longer than the checksum of a few hundred bytes.
Here a row is eight bytes at a time by the processor's own instruction (`crc32c_step`).
All positions are checked before the first byte is read.
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
    """Whether the processor has the instruction, and the kernel is compiled: else the package is faster."""
    return bool(crc32c_has_instruction())


def crc32c_rows(
    data: cython.const[cython.uchar][::1],
    begins: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    out: cython.uint[::1],
) -> bool:
    """The checksum of the bytes from `begins` to `ends` of `data`, for each row; False if one lies outside."""
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
        for row in range(rows):
            target[row] = crc32c_step(source, begins[row], ends[row])
    return True
