"""`dataclass` without the time that the standard library's takes, for the classes that `load` and `save` import.

In Python 3.11 the decorator compiles six methods of a frozen class one by one, 4.0 million
instructions for a class of five fields: 37 % of what `load` and `save` took to import,
beyond NumPy. Here it takes 0.5 million: `__init__` is compiled when the first instance is
made, and the methods that are not called in loops are closures. The result is a dataclass
to everybody else: `fields` and `replace` take it.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True, **options: Any):
        """Like `dataclasses.dataclass`. Only classes with slots can be frozen; others compare by identity."""

        def decorate(cls: type) -> type:
            cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, **options)(cls)
            fields = dataclasses.fields(cls)
            cls.__init__ = _Initializer(cls, fields, frozen)
            if repr:
                cls.__repr__ = _shower(tuple(field.name for field in fields if field.repr))
            if frozen and eq:
                cls.__eq__, cls.__hash__ = _comparer(attrgetter(*(field.name for field in fields if field.compare)))
            if frozen:
                cls.__setattr__, cls.__delattr__ = _refuse_assignment, _refuse_deletion
                cls.__getstate__, cls.__setstate__ = _state, _set_state
            return cls

        return decorate


class _Factory:
    """The default of a parameter whose value a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Initializer:
    """Replaces itself by the compiled `__init__` of a class when that is first used or looked at."""

    def __init__(self, cls: Any, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> None:
        self._cls = cls
        self._fields = fields
        self._frozen = frozen

    def __get__(self, instance: object, owner: type) -> Any:
        made = self._cls.__init__ = _compile(self._cls, self._fields, self._frozen)
        return made.__get__(instance, owner)


def _compile(cls: Any, fields: tuple[dataclasses.Field[Any], ...], frozen: bool) -> Any:
    """A frozen class stores by the descriptors of its slots, which is twice as fast as by `object.__setattr__`."""
    known: dict[str, Any] = {"_FACTORY": _FACTORY}
    positional, keywords, body = ["self"], ["*"], []
    for field in fields:
        name = value = parameter = field.name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_FACTORY"
            value = f"_make_{name}() if {name} is _FACTORY else {name}"
        (keywords if field.kw_only else positional).append(parameter)
        if frozen:
            known[f"_set_{name}"] = cls.__dict__[name].__set__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join(positional + keywords[keywords == ["*"] :])
    exec(f"def __init__({parameters}):\n " + "\n ".join(body), known)  # noqa: S102 - of names of fields only
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return made


def _shower(names: tuple[str, ...]) -> Any:
    def __repr__(self: Any) -> str:  # noqa: N807
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({shown})"

    return __repr__


def _comparer(compared: attrgetter[Any]) -> tuple[Any, Any]:
    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        return compared(self) == compared(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(compared(self))

    return __eq__, __hash__


def _refuse_assignment(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
