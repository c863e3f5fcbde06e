"""The tensors of a pickle as columns: strided views of storages.

A view that is not inside its storage, or too large for the numbers here, gets no row: the caller finds out why.
"""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython

_MOST = cython.declare(cython.longlong, 1 << 56)
"""Sizes and offsets from here on are left: the sums and products of smaller ones do not overflow."""


def view_rows(
    tensors: list[Any],
    view_type: Any,
    spans: dict[str, Any],
    known: dict[str, tuple[int, int]],
    max_rank: cython.Py_ssize_t,
    columns: tuple[list[Any], ...],
    strided: list[int],
) -> None:
    """Appends a row for each view among tensors to the columns: its position, code and bytes of an element, number of
    elements, begin, end, and the CRC of its storage if the view is all of that, else None.

    A view is (storage, element type, offset, shape, strides), a storage (key, element type or
    None for bytes, …, first element); `spans` has (begin, end, CRC) of each key, and `known`
    (code, bytes) of the names of element types. Rows whose elements are not in C order are
    added to `strided`.
    """
    positions, codes, widths, counts, begins, ends, checksums = columns
    at: cython.Py_ssize_t = -1
    rows: cython.Py_ssize_t = len(positions)
    width: cython.longlong
    begin: cython.longlong
    end: cython.longlong
    whole: cython.longlong
    extent: cython.longlong
    count: cython.longlong
    for view in tensors:
        at += 1
        if type(view) is not view_type:
            continue
        storage, kind, offset, shape, strides = view
        code, width = known[kind.name]
        span: Any = spans[storage[0]]
        begin = span[0]
        end = span[1]
        whole = _product(shape, max_rank)
        extent = -1
        if 0 <= whole < _MOST // width and offset < _MOST and storage[3] < _MOST:
            before: Any = offset * width + storage[3] * (1 if storage[1] is None else known[storage[1].name][1])
            begin += cython.cast(cython.longlong, before)
            count = 0 if 0 in shape else whole
            extent = _extent(shape, strides, width, count)
            if extent > 0 and extent > end - begin:
                extent = -1
        if extent >= 0:
            if count > 0 and not _in_order(shape, strides):
                strided.append(rows)
            begin = min(begin, end)
            positions.append(at)
            codes.append(code)
            widths.append(width)
            counts.append(count)
            begins.append(begin)
            ends.append(begin + extent)
            checksums.append(span[2] if begin == span[0] and begin + extent == end else None)
            rows += 1


@cython.cfunc
def _product(shape: tuple[Any, ...], max_rank: cython.Py_ssize_t) -> cython.longlong:
    """The product of all sizes but the zeros; -1 if it is 2**56 or more, or there are too many."""
    whole: cython.longlong = 1
    size: cython.longlong
    if len(shape) > max_rank:
        return -1
    for item in shape:
        if item >= _MOST:
            return -1
        size = item
        if size > 0:
            if size > _MOST // whole:
                return -1
            whole *= size
    return whole


@cython.cfunc
def _extent(
    shape: tuple[Any, ...], strides: tuple[Any, ...], width: cython.longlong, count: cython.longlong
) -> cython.longlong:
    """Bytes from the begin of the first element to the end of the last; -1 if they are 2**56 or more."""
    last: cython.longlong = 0
    steps: cython.longlong
    axis: cython.Py_ssize_t = 0
    if count == 0:
        return 0
    for axis in range(len(shape)):
        steps = shape[axis] - 1
        if steps > 0:
            if strides[axis] > (_MOST // width - last) // steps:
                return -1
            last += steps * cython.cast(cython.longlong, strides[axis])
    return (last + 1) * width


@cython.cfunc
def _in_order(shape: tuple[Any, ...], strides: tuple[Any, ...]) -> cython.bint:
    """Whether elements, of which there is one or more, are in C order."""
    expected: cython.longlong = 1
    size: cython.longlong
    axis: cython.Py_ssize_t = len(shape)
    while axis > 0:
        axis -= 1
        size = shape[axis]
        if size > 1 and strides[axis] != expected:
            return False
        expected *= size
    return True
