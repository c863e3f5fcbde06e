"""A stand-in for the `cython` module where Cython is not installed: types and decorators that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

compiled = False


class _Type:
    """Any C type: `uchar`, `uchar[::1]`, `const[uchar]`."""

    def __getitem__(self, _: object) -> _Type:
        return self


int = uchar = uint = longlong = ulonglong = Py_ssize_t = bint = const = _Type()
p_uchar = p_const_uchar = p_longlong = p_const_longlong = p_ulonglong = p_uint = p_const_uint = void = _Type()


def _same(function: F) -> F:
    return function


def _option(*_: object, **__: object) -> Callable[[F], F]:
    return _same


class _NoGil:
    """`@cython.nogil` as a decorator and `with cython.nogil` as a context."""

    def __call__(self, function: F) -> F:
        return function

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


final = cclass = cfunc = inline = _same
nogil = _NoGil()
exceptval = _option


def cast(_: object, value: Any) -> Any:
    return value


def declare(_: object = None, value: Any = None, **__: object) -> Any:
    return value
