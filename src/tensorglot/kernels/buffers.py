"""The buffer protocol for classes written in Python.

From Python 3.12 on, a class implements it with a method `__buffer__` (PEP 688). Before
that, only a compiled class can: if this module is compiled, subclasses of `Exporter`
have the protocol on every Python. Knows nothing of what is exported.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyObject_GetBuffer

__all__ = ["Exporter"]


@cython.cclass
class Exporter:
    """A base class without state; a subclass implements `_buffer`.

    The release methods do nothing but must exist. Without them `np.frombuffer` keeps a reference to the exporter
    only, not to the buffer, and its elements would lie in freed memory.
    """

    if cython.compiled:

        def __getbuffer__(self, buffer: cython.pointer(Py_buffer), flags: cython.int):  # type: ignore[no-untyped-def]
            # The consumer holds and releases the memoryview's buffer, so this object may be freed before that.
            PyObject_GetBuffer(self._buffer(flags), buffer, flags)

        def __releasebuffer__(self, buffer: cython.pointer(Py_buffer)):  # type: ignore[no-untyped-def]
            pass

    else:
        __slots__ = ()

        def __buffer__(self, flags: int) -> memoryview:
            return self._buffer(flags)

        def __release_buffer__(self, view: memoryview) -> None:
            pass

    def _buffer(self, flags: int) -> memoryview:
        """The memory to export. `flags` are the PyBUF flags of the consumer's request."""
        raise BufferError(f"{type(self).__name__} exports no buffer")
