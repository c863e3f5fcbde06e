"""`NamedTuple` without compiling the annotations of its fields.

`typing.NamedTuple` compiles each annotation that is text, as all are under `from __future__
import annotations`: a tenth of the instructions of importing `load` and `save`. Nothing
here asks for the types of fields while the program runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["NamedTuple"]

if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from collections import namedtuple

    class _Making(type):
        def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
            fields = namespace.pop("__annotations__", {})
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            made = namedtuple(name, fields, defaults=defaults, module=namespace["__module__"])
            for key, value in namespace.items():
                setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_Making, "NamedTuple", (), {})
