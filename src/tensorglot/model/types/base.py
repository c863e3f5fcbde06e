"""The base class of DyND types: canonical text from a template, equality and hash by that text.

A subclass of `Type` is a frozen dataclass. It declares its fields and the template of its
text; a type whose text is more than its fields in a template overrides `pieces`. Knows how
text is assembled and how names are quoted; knows no concrete type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, dataclass_transform

from tensorglot.cached import cached_property
from tensorglot.errors import InputError

__all__ = [
    "SIZE_END",
    "Type",
    "check_names",
    "check_size",
    "check_symbol",
    "has_surrogate",
    "list_items",
    "quote",
    "quote_text",
    "refuse",
    "unquote",
]

SIZE_END = 1 << 63

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SYMBOL = re.compile(r"[A-Z][A-Za-z0-9_]*", re.ASCII)
_ESCAPED = re.compile(r"[^ -&(-\[\]-~]")
"""Characters with an escape: the quote, the backslash, and all but printable ASCII."""
_ESCAPES = {"\\": r"\\", "'": r"\'", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def refuse(message: str, rule: str) -> InputError:
    return InputError(message, rule=f"dynd.type.{rule}")


class Origin(Protocol):
    """What a type was read from, if its fields are made when they are asked for."""

    @property
    def text(self) -> str: ...

    @property
    def symbolic(self) -> bool: ...

    def fields(self) -> dict[str, Any]: ...


@dataclass_transform(frozen_default=True, eq_default=False)
class Type:
    """A DyND type. `str(type)` is canonical: two types are equal if and only if it is the same."""

    origin: ClassVar[Origin | None] = None
    template: ClassVar[str] = ""
    """The canonical text, with the names of fields in braces."""
    _split: ClassVar[list[tuple[str, str | None]]]
    """The literal texts of the template, each with the name of the field that follows it."""
    _inside: ClassVar[list[str]]
    """The fields whose values are types."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False, repr=False)(cls)
        cls._split = [(text, name) for text, name, _, _ in Formatter().parse(cls.template)]
        cls._inside = [name for name, kind in cls.__annotations__.items() if kind == "Type"]

    def pieces(self) -> Iterator[str | Type]:
        """The canonical text in pieces; the types inside are yielded as types, not as text."""
        for text, name in self._split:
            yield text
            if name is not None:
                part = getattr(self, name)
                yield part if isinstance(part, Type) else str(part)

    @property
    def children(self) -> tuple[Type, ...]:
        """The types inside, in the order of the text."""
        return tuple([getattr(self, name) for name in self._inside])

    @classmethod
    def of_origin(cls, origin: Origin) -> Self:
        """A type that was read: its fields are made when the first is asked for."""
        made = cls.__new__(cls)
        vars(made)["origin"] = origin
        return made

    if not TYPE_CHECKING:  # where every field is declared

        def __getattr__(self, name: str) -> Any:
            if self.origin is None or name not in self.__dataclass_fields__:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            for field, value in self.origin.fields().items():
                vars(self).setdefault(field, value)  # another thread may make them, too
            return vars(self)[name]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in vars(type(self))["__dataclass_fields__"]}

    @cached_property
    def _text(self) -> str:
        if self.origin is not None:
            return self.origin.text
        # A stack instead of recursion: a deep type must not reach Python's recursion limit.
        text: list[str] = []
        stack: list[str | Type] = [self]
        while stack:
            piece = stack.pop()
            if isinstance(piece, str):
                text.append(piece)
            else:
                stack.extend(reversed(list(piece.pieces())))
        return "".join(text)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Type({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Type) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)


def quote(name: str) -> str:
    """A field's name in canonical text: bare if it is an identifier, otherwise quoted."""
    return name if _BARE.fullmatch(name) else quote_text(name)


def unquote(name: str) -> str:
    """The inverse of `quote`, for canonical text."""
    return name[1:-1].encode().decode("unicode_escape") if name[:1] == "'" else name


def quote_text(text: str) -> str:
    """Text in single quotes, with escapes for everything but printable ASCII."""
    return f"'{_ESCAPED.sub(_escape, text)}'"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _ESCAPES.get(found[0]) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def list_items(items: Iterable[tuple[str | None, Type]], open: bool) -> Iterator[str | Type]:
    """The items of a tuple, a struct or a function; named items with their names."""
    separator = ""
    for name, element in items:
        yield separator if name is None else f"{separator}{quote(name)}: "
        yield element
        separator = ", "
    if open:
        yield f"{separator}..."


def check_size(size: int) -> None:
    if not 0 <= size < SIZE_END:
        raise refuse(f"size {size} is not between 0 and 2**63 - 1", "size")


def check_symbol(name: str) -> None:
    if not _SYMBOL.fullmatch(name):
        raise refuse(f"type variable {name!r} must start with a capital letter, then letters, digits and _", "symbol")


def check_names(names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise refuse("duplicate field name", "field")
    if has_surrogate("".join(names)):
        raise refuse("a field name has a lone surrogate", "field")


def has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)
