"""The type algebra of DyND, as frozen values: what a tensor's contents are, whatever file they lie in.

A type knows its parts and its canonical text, nothing of bytes, values or files.
`str(t)` is the one spelling of a type that is ever hashed or written; two types are
equal exactly when it is the same. Everything that walks a type walks it with a stack
of its own, so that depth is never a question of Python's recursion limit.

A type is made valid or not at all: what the grammar forbids (an option of an option,
a field named twice, an axis list that is no permutation) is refused here, and the
parser only adds where in the text it stood.

Types of fewer than eight bits (`int4`, `float4_e2m1fn`, …) are element types like any
other and serialize as one byte an element, the value in the low bits and the others
zero. Packing them would make the bytes of `2 * 3 * int4` depend on where a dimension
ends, and the law is that `N * T` is the concatenation of its elements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from tensorglot.errors import InputError
from tensorglot.model.dtypes import BY_NAME, DType

__all__ = [
    "ANY",
    "Array",
    "Bytes",
    "Char",
    "Complex",
    "Dims",
    "Fixed",
    "FixedBytes",
    "FixedString",
    "Function",
    "Merkle",
    "Option",
    "Pointer",
    "Scalar",
    "Storage",
    "String",
    "Struct",
    "Symbol",
    "SymbolicDim",
    "Tuple",
    "Type",
    "TypeType",
    "Var",
    "Void",
    "dense",
    "dense_parts",
    "leading",
    "quote",
    "symbolic",
    "walk",
]

SIZE_END = 1 << 63
COMPLEX_PARTS = {"float16", "float32", "float64", "float128"}
UNITS = {"utf8": 1, "ascii": 1, "utf16": 2, "utf32": 4}

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SYMBOL = re.compile(r"[A-Z][A-Za-z0-9_]*", re.ASCII)
_ESCAPES = {"\\": r"\\", "'": r"\'", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _refuse(message: str, rule: str) -> InputError:
    return InputError(message, rule=f"dynd.type.{rule}")


@dataclass(frozen=True, eq=False, repr=False)
class Type:
    """A DyND type. `str` is canonical."""

    def pieces(self) -> Iterator[str | Type]:
        """The canonical text, with the types inside left as they are."""
        raise NotImplementedError

    @property
    def children(self) -> tuple[Type, ...]:
        return ()

    @cached_property
    def _text(self) -> str:
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


@dataclass(frozen=True, eq=False, repr=False)
class Scalar(Type):
    """A row of the table of element types, the complex ones excepted."""

    dtype: DType

    def __post_init__(self) -> None:
        if self.dtype.name in _COMPLEX_ROWS:
            raise _refuse(f"{self.dtype.name} is complex[T]", "complex")

    def pieces(self) -> Iterator[str | Type]:
        yield self.dtype.name


@dataclass(frozen=True, eq=False, repr=False)
class Complex(Type):
    """`complex[T]`: two of T, a DyND float."""

    part: Scalar

    def __post_init__(self) -> None:
        if not isinstance(self.part, Scalar) or self.part.dtype.name not in COMPLEX_PARTS:
            raise _refuse(f"complex[{self.part}] has parts that are no float16, 32, 64 or 128", "complex")

    def pieces(self) -> Iterator[str | Type]:
        yield f"complex[{self.part.dtype.name}]"


@dataclass(frozen=True, eq=False, repr=False)
class FixedBytes(Type):
    """`bytes[N]`."""

    size: int

    def __post_init__(self) -> None:
        _check_size(self.size)

    def pieces(self) -> Iterator[str | Type]:
        yield f"bytes[{self.size}]"


@dataclass(frozen=True, eq=False, repr=False)
class Bytes(Type):
    """`bytes`, of any length."""

    def pieces(self) -> Iterator[str | Type]:
        yield "bytes"


@dataclass(frozen=True, eq=False, repr=False)
class String(Type):
    """`string`, UTF-8."""

    def pieces(self) -> Iterator[str | Type]:
        yield "string"


@dataclass(frozen=True, eq=False, repr=False)
class FixedString(Type):
    """`fixed_string[N, 'encoding']`: N code units, filled up with NUL."""

    size: int
    encoding: Literal["utf8", "ascii", "utf16", "utf32"] = "utf8"

    def __post_init__(self) -> None:
        _check_size(self.size * UNITS.get(self.encoding, 1))
        if self.size == 0:
            raise _refuse("fixed_string of size 0", "fixed_string")
        if self.encoding not in UNITS:
            raise _refuse(f"no encoding {self.encoding!r}; there are {', '.join(UNITS)}", "encoding")

    @property
    def nbytes(self) -> int:
        return self.size * UNITS[self.encoding]

    def pieces(self) -> Iterator[str | Type]:
        yield (
            f"fixed_string[{self.size}]" if self.encoding == "utf8" else f"fixed_string[{self.size}, '{self.encoding}']"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Char(Type):
    """`char`: one code point."""

    def pieces(self) -> Iterator[str | Type]:
        yield "char"


@dataclass(frozen=True, eq=False, repr=False)
class TypeType(Type):
    """`type`: the value is a type."""

    def pieces(self) -> Iterator[str | Type]:
        yield "type"


@dataclass(frozen=True, eq=False, repr=False)
class Void(Type):
    """`void`: no bytes."""

    def pieces(self) -> Iterator[str | Type]:
        yield "void"


@dataclass(frozen=True, eq=False, repr=False)
class _Around(Type):
    """One type inside another."""

    element: Type

    @property
    def children(self) -> tuple[Type, ...]:
        return (self.element,)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Fixed(_Around):
    """`N * T`."""

    size: int

    def __init__(self, size: int, element: Type) -> None:
        _check_size(size)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "element", element)

    def pieces(self) -> Iterator[str | Type]:
        yield f"{self.size} * "
        yield self.element


@dataclass(frozen=True, eq=False, repr=False)
class Var(_Around):
    """`var * T`: as many as there are."""

    def pieces(self) -> Iterator[str | Type]:
        yield "var * "
        yield self.element


@dataclass(frozen=True, eq=False, repr=False)
class Tuple(Type):
    """`(T0, T1)`. Open, `(T0, ...)`, it is symbolic."""

    elements: tuple[Type, ...] = ()
    open: bool = False

    @property
    def children(self) -> tuple[Type, ...]:
        return self.elements

    def pieces(self) -> Iterator[str | Type]:
        yield "("
        yield from _listed(list(self.elements), (), self.open)
        yield ")"


@dataclass(frozen=True, eq=False, repr=False)
class Struct(Type):
    """`{a: T0, b: T1}`. Open, `{a: T0, ...}`, it is symbolic."""

    fields: tuple[tuple[str, Type], ...] = ()
    open: bool = False

    def __post_init__(self) -> None:
        _check_names(self.fields)

    @property
    def children(self) -> tuple[Type, ...]:
        return tuple(element for _, element in self.fields)

    def pieces(self) -> Iterator[str | Type]:
        yield "{"
        yield from _listed([], self.fields, self.open)
        yield "}"


@dataclass(frozen=True, eq=False, repr=False)
class Option(_Around):
    """`?T`: T, or missing."""

    def __post_init__(self) -> None:
        inner = self.element
        while isinstance(inner, Pointer):
            inner = inner.element
        if isinstance(inner, Option):
            raise _refuse("an option of an option", "option")

    def pieces(self) -> Iterator[str | Type]:
        yield "?"
        yield self.element


@dataclass(frozen=True, eq=False, repr=False)
class Pointer(_Around):
    """`pointer[T]`: T itself, when serialized."""

    def pieces(self) -> Iterator[str | Type]:
        yield "pointer["
        yield self.element
        yield "]"


@dataclass(frozen=True, eq=False, repr=False)
class Array(_Around):
    """`array[T]`: a type that T describes, and a value of it."""

    def pieces(self) -> Iterator[str | Type]:
        yield "array["
        yield self.element
        yield "]"


@dataclass(frozen=True, eq=False, repr=False)
class Merkle(_Around):
    """`merkle[T]`: the CID of a value of T."""

    def pieces(self) -> Iterator[str | Type]:
        yield "merkle["
        yield self.element
        yield "]"


@dataclass(frozen=True, eq=False, repr=False)
class Storage(_Around):
    """`storage[dims * T, axis=[…]]`: the leading fixed dims, stored in another order; axis[0] varies slowest.

    Trailing axes that stay where they are are dropped. Where all do, the plain type says the
    same, and `Storage.of` gives it.
    """

    axis: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.axis) != list(range(len(self.axis))):
            raise _refuse(f"axis {list(self.axis)} is not a permutation", "axis")
        if len(self.axis) > len(leading(self.element)[0]):
            raise _refuse(f"axis {list(self.axis)} is longer than the leading fixed dims of {self.element}", "axis")
        if not self.axis or self.axis[-1] == len(self.axis) - 1:
            raise _refuse(f"axis {list(self.axis)} ends in axes that stay where they are", "axis")

    @staticmethod
    def of(element: Type, axis: tuple[int, ...]) -> Type:
        """The storage type for any permutation, the identity included."""
        while axis and axis[-1] == len(axis) - 1:
            axis = axis[:-1]
        return Storage(element, axis) if axis else element

    def pieces(self) -> Iterator[str | Type]:
        yield "storage["
        yield self.element
        yield f", axis=[{', '.join(map(str, self.axis))}]]"


@dataclass(frozen=True, eq=False, repr=False)
class Symbol(Type):
    """`Any`, or a type variable. Symbolic: it has no data."""

    name: str

    def __post_init__(self) -> None:
        _check_symbol(self.name)

    def pieces(self) -> Iterator[str | Type]:
        yield self.name


@dataclass(frozen=True, eq=False, repr=False, init=False)
class SymbolicDim(_Around):
    """`N * T` with a variable for the dimension, or `Fixed * T`."""

    name: str

    def __init__(self, name: str, element: Type) -> None:
        _check_symbol(name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "element", element)

    def pieces(self) -> Iterator[str | Type]:
        yield f"{self.name} * "
        yield self.element


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Dims(_Around):
    """`... * T` or `Name... * T`: any number of dimensions."""

    name: str

    def __init__(self, name: str, element: Type) -> None:
        if name:
            _check_symbol(name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "element", element)

    def pieces(self) -> Iterator[str | Type]:
        yield f"{self.name}... * "
        yield self.element


@dataclass(frozen=True, eq=False, repr=False)
class Function(Type):
    """`(T0, name: T1) -> R`."""

    positional: tuple[Type, ...]
    keywords: tuple[tuple[str, Type], ...]
    result: Type
    open: bool = False

    def __post_init__(self) -> None:
        _check_names(self.keywords)

    @property
    def children(self) -> tuple[Type, ...]:
        return (*self.positional, *(element for _, element in self.keywords), self.result)

    def pieces(self) -> Iterator[str | Type]:
        yield "("
        yield from _listed(list(self.positional), self.keywords, self.open)
        yield ") -> "
        yield self.result


def quote(name: str) -> str:
    """A field's name as the canonical text has it: bare where that is possible, else quoted and pure ASCII."""
    if _BARE.fullmatch(name):
        return name
    return f"'{''.join(_quoted(c) for c in name)}'"


def _quoted(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    if " " <= c <= "~":
        return c
    return f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"


def _listed(positional: list[Type], keywords: tuple[tuple[str, Type], ...], open: bool) -> Iterator[str | Type]:
    entries: list[tuple[str, Type | None]] = [("", element) for element in positional]
    entries += [(f"{quote(name)}: ", element) for name, element in keywords]
    if open:
        entries.append(("...", None))
    for i, (before, element) in enumerate(entries):
        yield f", {before}" if i else before
        if element is not None:
            yield element


def _check_size(size: int) -> None:
    if not 0 <= size < SIZE_END:
        raise _refuse(f"size {size} is not within 0 and 2**63 - 1", "size")


def _check_symbol(name: str) -> None:
    if not _SYMBOL.fullmatch(name):
        raise _refuse(f"a type variable starts with a capital letter, {name!r} does not", "symbol")


def _check_names(fields: tuple[tuple[str, Type], ...]) -> None:
    names = {name for name, _ in fields}
    if len(names) != len(fields):
        raise _refuse("a field's name stands twice", "field")
    if any("\ud800" <= c <= "\udfff" for name in names for c in name):
        raise _refuse("a field's name has a surrogate", "field")


ANY = Symbol("Any")
_COMPLEX_ROWS = {"complex64": "float32", "complex128": "float64"}
_SYMBOLIC = (Symbol, SymbolicDim, Dims, Function)


def walk(type: Type) -> Iterator[Type]:
    """A type and all inside it, parents first."""
    stack = [type]
    while stack:
        inner = stack.pop()
        yield inner
        stack.extend(reversed(inner.children))


def symbolic(type: Type) -> bool:
    """Whether values of the type have no data. What `array[T]` holds brings its own type."""
    stack = [type]
    while stack:
        inner = stack.pop()
        if isinstance(inner, _SYMBOLIC) or (isinstance(inner, Tuple | Struct) and inner.open):
            return True
        if not isinstance(inner, Array):
            stack.extend(inner.children)
    return False


def leading(type: Type) -> tuple[tuple[int, ...], Type]:
    """The leading fixed dims, and what they are dims of."""
    shape = []
    while isinstance(type, Fixed):
        shape.append(type.size)
        type = type.element
    return tuple(shape), type


def dense(dtype: DType, shape: tuple[int, ...]) -> Type:
    """The type of a block of elements: `3 * 4 * float32`."""
    part = _COMPLEX_ROWS.get(dtype.name)
    type: Type = Scalar(dtype) if part is None else Complex(Scalar(BY_NAME[part]))
    for size in reversed(shape):
        type = Fixed(size, type)
    return type


def dense_parts(type: Type) -> tuple[DType, tuple[int, ...]] | None:
    """The inverse of `dense`, None for what is not a block of elements of the table."""
    shape, element = leading(type)
    if isinstance(element, Scalar):
        return element.dtype, shape
    if isinstance(element, Complex):
        row = next((row for row, part in _COMPLEX_ROWS.items() if part == element.part.dtype.name), None)
        return None if row is None else (BY_NAME[row], shape)
    return None
