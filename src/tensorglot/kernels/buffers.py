"""The buffer protocol for classes written in Python.

From Python 3.12 on a class has it by a method `__buffer__` (PEP 688). Before, only a
compiled class can: where this module is compiled, subclasses of `Exporter` have it on
every Python. Knows nothing of what is exported.
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
    """A base class without state.

    Releasing needs no work, but `np.frombuffer` holds on to the memory only where a class can be told of it: without
    these methods it keeps the exporter alone, and its elements are in memory that has been freed.
    """

    if cython.compiled:

        def __getbuffer__(self, buffer: cython.pointer(Py_buffer), flags: cython.int):  # type: ignore[no-untyped-def]
            # What the consumer keeps, and releases, is the memoryview: this object is not needed any more.
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
        """What is exported, for the PyBUF flags of a consumer."""
        raise BufferError(f"{type(self).__name__} exports no buffer")
