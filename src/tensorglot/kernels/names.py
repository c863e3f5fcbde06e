"""Names as spans of a header, decoded when somebody asks for them."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython


def decode(header: bytes, begins: Any, ends: Any) -> list[str]:
    """The names at these spans, which a scan has found to be UTF-8."""
    begin_column: cython.const[cython.longlong][::1] = memoryview(begins)
    end_column: cython.const[cython.longlong][::1] = memoryview(ends)
    row: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    names: list[str] = []
    for row in range(len(begin_column)):
        begin = begin_column[row]
        end = end_column[row]
        names.append(header[begin:end].decode("utf-8"))
    return names
