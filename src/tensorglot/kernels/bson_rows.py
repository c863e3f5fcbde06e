"""Copies rows of equal length between a matrix and the vectors of many BSON documents.

Knows only bytes and positions. A position outside the data is reported as a fault,
(code, row), so callers may pass positions from an untrusted file.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.primitives import bytes_of, copy, same, uchars_in, uchars_out
else:
    from tensorglot.kernels.primitives import bytes_of, copy, same, uchars_in, uchars_out

OK = 0
PAST_END = -1
OTHER_SIZE = -2
OTHER_HEAD = -3


def gather(
    data: cython.const[cython.uchar][::1],
    begins: cython.const[cython.longlong][::1],
    nbytes: cython.Py_ssize_t,
    out: cython.uchar[::1],
) -> tuple[Any, ...]:
    """Copies the rows of `nbytes` bytes at `begins` of `data` into `out`, without gaps. Returns (fault, row)."""
    row: cython.Py_ssize_t
    rows: cython.Py_ssize_t = len(begins)
    last: cython.Py_ssize_t = len(data) - nbytes
    wrong: cython.Py_ssize_t = -1
    if nbytes < 0 or len(out) != rows * nbytes:
        return OTHER_SIZE, 0
    source: cython.p_const_uchar = uchars_in(data)
    target: cython.p_uchar = uchars_out(out)
    with cython.nogil:
        # Invariant: the rows before are in `out`; a span is compared with `data` before it is copied.
        for row in range(rows):
            if begins[row] < 0 or begins[row] > last:
                wrong = row
                break
            copy(target, row * nbytes, source, begins[row], nbytes)
    return (OK, rows) if wrong < 0 else (PAST_END, wrong)


def gather_payloads(
    payloads: list[Any], head: cython.const[cython.uchar][::1], nbytes: cython.Py_ssize_t, out: cython.uchar[::1]
) -> tuple[Any, ...]:
    """Copies the `nbytes` bytes after the head of each payload into `out`, without gaps. Returns (fault, row).

    All payloads must begin with the bytes `head`; one that does not is the fault OTHER_HEAD.
    """
    row: cython.Py_ssize_t
    before: cython.Py_ssize_t = len(head)
    wanted: cython.p_const_uchar = uchars_in(head)
    target: cython.p_uchar = uchars_out(out)
    data: cython.const[cython.uchar][::1]
    if nbytes < 0 or len(out) != len(payloads) * nbytes:
        return OTHER_SIZE, 0
    # Invariant: the rows before are in `out`, which has `nbytes` for each payload.
    for row in range(len(payloads)):
        data = payloads[row]
        if len(data) != before + nbytes:
            return OTHER_SIZE, row
        if not same(uchars_in(data), 0, wanted, 0, before):
            return OTHER_HEAD, row
        copy(target, row * nbytes, uchars_in(data), before, nbytes)
    return OK, len(payloads)


def split(
    data: cython.const[cython.uchar][::1], rows: cython.Py_ssize_t, nbytes: cython.Py_ssize_t, head: bytes
) -> list[Any]:
    """A list of `bytes`, head and row, for `rows` rows of `nbytes`; an empty list if `data` is too short."""
    row: cython.Py_ssize_t
    before: cython.Py_ssize_t = len(head)
    payloads: list[Any] = []
    if nbytes < 0 or rows * nbytes > len(data):
        return payloads
    scratch: bytearray = bytearray(head) + bytearray(nbytes)
    source: cython.p_const_uchar = uchars_in(data)
    target: cython.p_uchar = uchars_out(scratch)
    # Invariant: `scratch` has the head, and the row before, which the next one replaces.
    for row in range(rows):
        copy(target, before, source, row * nbytes, nbytes)
        payloads.append(bytes_of(target, 0, before + nbytes))
    return payloads


def blank(nbytes: cython.Py_ssize_t) -> Any:
    """Zeroed memory for `scatter` to fill.

    Compiled, it is a `bytes` that `scatter` writes to before anybody else has seen it, which
    saves a copy. Interpreted code cannot do that, so there it is a `bytearray`.
    """
    return bytes(nbytes) if cython.compiled else bytearray(nbytes)


def scatter(
    target: Any,
    at: cython.Py_ssize_t,
    stride: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    last: cython.Py_ssize_t,
    data: cython.const[cython.uchar][::1],
    nbytes: cython.Py_ssize_t,
) -> Any:
    """Writes rows `first` to `last` of `data`, `nbytes` each, into a `blank`. Returns a fault, or OK.

    `target` has `stride` bytes for each row, and a row's data begins `at` bytes into them. If
    `data` has a single row, that is written to each of them.
    """
    row: cython.Py_ssize_t
    step: cython.Py_ssize_t = 0 if len(data) == nbytes else nbytes
    if nbytes < 0 or at < 0 or stride < at + nbytes or first < 0 or len(target) < stride * last:
        return OTHER_SIZE
    if len(data) < (step * last if step else nbytes):
        return OTHER_SIZE
    source: cython.p_const_uchar = uchars_in(data)
    # Writing to a `bytes` is safe here: `blank` has just made it, and nobody else has a reference yet.
    out: cython.p_uchar = cython.cast(cython.p_uchar, cython.cast(bytes, target)) if cython.compiled else target
    with cython.nogil:
        # Invariant: stride * last <= len(target), so every row lies in the target.
        for row in range(first, last):
            copy(out, row * stride + at, source, row * step, nbytes)
    return OK
