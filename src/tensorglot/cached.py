"""A property that is computed once, without a lock.

That of Python 3.11 takes a lock of the whole class, which a forked process inherits as it
was: held by a thread that the process does not have. Here two threads may compute the
same value, and one of them is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801
        """Like that of functools, from Python 3.12 on."""

        def __init__(self, function: Any) -> None:
            self._function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._function(instance))
