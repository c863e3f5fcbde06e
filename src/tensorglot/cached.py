"""`cached_property` without a lock.

In Python 3.11, `functools.cached_property` takes a lock. A process that is forked while
another thread holds it waits forever, because that thread does not exist in the child.
Here two threads may both compute the value, and the first one stored is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801
        """Like `functools.cached_property` from Python 3.12 on."""

        def __init__(self, function: Any) -> None:
            self._function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._function(instance))
