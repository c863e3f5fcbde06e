"""The type algebra of DyND, as frozen values: what a tensor contains, in any file format.

A type knows its parts and its canonical text, nothing of bytes, values or files. `str(t)`
is the only spelling of a type that is hashed or written, and two types are equal if and
only if it is the same. Types are walked with an explicit stack, so their depth is not
bounded by Python's recursion limit.

Constructors validate: an option of an option, a duplicate field name or an axis list
that is not a permutation is refused here; the parser only adds the position in the text.

Types of fewer than eight bits (`int4`, `float4_e2m1fn`, …) are element types like any
other. They serialize as one byte for each element, the value in the low bits and the
others zero. If they were packed, `N * T` would not be the concatenation of its elements:
the bytes of `2 * 3 * int4` would depend on where a dimension ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Literal, TypeVar

from tensorglot.model.dtypes import BY_NAME, TABLE, DType
from tensorglot.model.types.base import Type, check_names, check_size, check_symbol, list_items, refuse

__all__ = [
    "ANY",
    "Array",
    "Bytes",
    "Char",
    "Complex",
    "Fixed",
    "FixedBytes",
    "FixedString",
    "Function",
    "Map",
    "Merkle",
    "Option",
    "Pointer",
    "Scalar",
    "Storage",
    "String",
    "Struct",
    "Symbol",
    "SymbolicDim",
    "SymbolicSized",
    "Tuple",
    "Type",
    "TypeType",
    "Var",
    "Void",
    "block",
    "dense",
    "dense_parts",
    "fold",
    "leading",
    "symbolic",
    "walk",
]

R = TypeVar("R")

COMPLEX_PARTS = {"float16", "float32", "float64", "float128"}
UNITS = {"utf8": 1, "ascii": 1, "utf16": 2, "utf32": 4}


class Scalar(Type):
    """An element type of the table, except the complex ones."""

    dtype: DType

    def __post_init__(self) -> None:
        if self.dtype.name in _COMPLEX_ROWS:
            raise refuse(f"the type of {self.dtype.name} is complex[{_COMPLEX_ROWS[self.dtype.name]}]", "complex")

    def pieces(self) -> Iterator[str | Type]:
        yield self.dtype.name


class Complex(Type):
    """`complex[T]`: two of T, a DyND float."""

    part: Scalar

    def __post_init__(self) -> None:
        if not isinstance(self.part, Scalar) or self.part.dtype.name not in COMPLEX_PARTS:
            raise refuse(f"complex[{self.part}] needs float16, float32, float64 or float128", "complex")

    def pieces(self) -> Iterator[str | Type]:
        yield f"complex[{self.part}]"


class FixedBytes(Type):
    """`bytes[N]`."""

    size: int
    template = "bytes[{size}]"

    def __post_init__(self) -> None:
        check_size(self.size)


class Bytes(Type):
    """`bytes`, of any length."""

    template = "bytes"


class String(Type):
    """`string`, UTF-8."""

    template = "string"


class FixedString(Type):
    """`fixed_string[N, 'encoding']`: N code units, filled up with NUL."""

    size: int
    encoding: Literal["utf8", "ascii", "utf16", "utf32"] = "utf8"

    def __post_init__(self) -> None:
        check_size(self.size * UNITS.get(self.encoding, 1))
        if self.size == 0:
            raise refuse("a fixed_string cannot have size 0", "fixed_string")
        if self.encoding not in UNITS:
            raise refuse(f"unknown encoding {self.encoding!r} (supported: {', '.join(UNITS)})", "encoding")

    @property
    def nbytes(self) -> int:
        return self.size * UNITS[self.encoding]

    def pieces(self) -> Iterator[str | Type]:
        encoding = "" if self.encoding == "utf8" else f", '{self.encoding}'"
        yield f"fixed_string[{self.size}{encoding}]"


class Char(Type):
    """`char`: one code point."""

    template = "char"


class TypeType(Type):
    """`type`: the value is a type."""

    template = "type"


class Void(Type):
    """`void`: no bytes."""

    template = "void"


class Fixed(Type):
    """`N * T`."""

    size: int
    element: Type

    def __post_init__(self) -> None:
        check_size(self.size)

    def pieces(self) -> Iterator[str | Type]:
        yield f"{self.size} * "
        yield self.element


class Var(Type):
    """`var * T`: a list of any length."""

    element: Type
    template = "var * {element}"


class Tuple(Type):
    """`(T0, T1)`. Open, `(T0, ...)`, it is symbolic."""

    # Defaults that are attributes of the class would hide fields that are yet to be made (`Type.of_origin`).
    elements: tuple[Type, ...] = field(default_factory=tuple)
    open: bool = field(default_factory=bool)

    @property
    def children(self) -> tuple[Type, ...]:
        return self.elements

    def pieces(self) -> Iterator[str | Type]:
        yield "("
        yield from list_items(((None, element) for element in self.elements), self.open)
        yield ")"


class Struct(Type):
    """`{a: T0, b: T1}`. Open, `{a: T0, ...}`, it is symbolic."""

    fields: tuple[tuple[str, Type], ...] = field(default_factory=tuple)
    open: bool = field(default_factory=bool)

    def __post_init__(self) -> None:
        check_names([name for name, _ in self.fields])

    @property
    def children(self) -> tuple[Type, ...]:
        return tuple([element for _, element in self.fields])

    def pieces(self) -> Iterator[str | Type]:
        yield "{"
        yield from list_items(self.fields, self.open)
        yield "}"


class Option(Type):
    """`?T`: T, or missing."""

    element: Type
    template = "?{element}"

    def __post_init__(self) -> None:
        inner = self.element
        while isinstance(inner, Pointer):
            inner = inner.element
        if isinstance(inner, Option):
            raise refuse("an option cannot contain an option", "option")


class Pointer(Type):
    """`pointer[T]`: serialized like T."""

    element: Type
    template = "pointer[{element}]"


class Array(Type):
    """`array[T]`: a concrete type that matches T, and a value of that type."""

    element: Type
    template = "array[{element}]"


class Merkle(Type):
    """`merkle[T]`: the CID of a value of T."""

    element: Type
    template = "merkle[{element}]"


class Map(Type):
    """`map[K, V]`: pairs with unique keys, in the order of the serialized keys."""

    key: Type
    item: Type
    template = "map[{key}, {item}]"


class Storage(Type):
    """`storage[dims * T, axis=[…]]`: leading fixed dims stored in another order; axis[0] varies slowest.

    Trailing axes that stay in place are not listed. `Storage.of` drops them, and returns the
    plain type if no axis is left.
    """

    element: Type
    axis: tuple[int, ...]

    def __post_init__(self) -> None:
        self.check(self.element, self.axis)
        if not self.axis or self.axis[-1] == len(self.axis) - 1:
            raise refuse(f"axis {list(self.axis)} must not end in axes that stay in place", "axis")

    @staticmethod
    def check(element: Type, axis: Sequence[int]) -> None:
        """Refuses an axis list that is not a permutation of leading fixed dims of the element."""
        if sorted(axis) != list(range(len(axis))):
            raise refuse(f"axis {list(axis)} is not a permutation", "axis")
        rank = len(leading(element)[0])
        if len(axis) > rank:
            raise refuse(f"axis {list(axis)} needs {len(axis)} leading fixed dimensions, found {rank}", "axis")

    @staticmethod
    def of(element: Type, axis: tuple[int, ...]) -> Type:
        """The storage type for any permutation, the identity included."""
        Storage.check(element, axis)
        while axis and axis[-1] == len(axis) - 1:
            axis = axis[:-1]
        return Storage(element, axis) if axis else element

    @staticmethod
    def ordered(element: Type, order: str) -> Type:
        """The storage type in which all dims have C or Fortran order. They must be fixed."""
        shape, inner = leading(element)
        beneath = inner
        while isinstance(beneath, Option | Pointer):
            beneath = beneath.element
        if isinstance(beneath, Var | SymbolicDim | Storage) or (beneath is not inner and isinstance(beneath, Fixed)):
            raise refuse(f"order={order!r} needs a type whose dimensions are all fixed", "axis")
        axis = tuple(range(len(shape)))
        return Storage.of(element, axis[::-1] if order == "F" else axis)

    def pieces(self) -> Iterator[str | Type]:
        yield "storage["
        yield self.element
        yield f", axis=[{', '.join(map(str, self.axis))}]]"


class Symbol(Type):
    """`Any`, or a type variable. Symbolic: it has no data."""

    name: str
    template = "{name}"

    def __post_init__(self) -> None:
        check_symbol(self.name)


class SymbolicDim(Type):
    """`N * T` with a variable for the dimension, or `Fixed * T`. With dots, `N... * T` or `... * T`, for any number."""

    name: str
    dots: bool
    element: Type

    def __post_init__(self) -> None:
        if self.name or not self.dots:
            check_symbol(self.name)

    def pieces(self) -> Iterator[str | Type]:
        yield f"{self.name}... * " if self.dots else f"{self.name} * "
        yield self.element


class SymbolicSized(Type):
    """`bytes[N]` or `complex[T]` with a variable or a kind for N or T. Symbolic: it has no data."""

    outer: Literal["bytes", "complex"]
    name: str
    template = "{outer}[{name}]"

    def __post_init__(self) -> None:
        check_symbol(self.name)


class Function(Type):
    """`(T0, name: T1) -> R`."""

    positional: tuple[Type, ...]
    keywords: tuple[tuple[str, Type], ...]
    result: Type
    open: bool = field(default_factory=bool)

    def __post_init__(self) -> None:
        check_names([name for name, _ in self.keywords])

    @property
    def children(self) -> tuple[Type, ...]:
        return (*self.positional, *(element for _, element in self.keywords), self.result)

    def pieces(self) -> Iterator[str | Type]:
        yield "("
        yield from list_items((*((None, element) for element in self.positional), *self.keywords), self.open)
        yield ") -> "
        yield self.result


ANY = Symbol("Any")
_COMPLEX_ROWS = {"complex64": "float32", "complex128": "float64"}
_ELEMENTS: dict[str, Type] = {
    row.name: Complex(Scalar(BY_NAME[_COMPLEX_ROWS[row.name]])) if row.name in _COMPLEX_ROWS else Scalar(row)
    for row in TABLE
}
_SYMBOLIC = (Symbol, SymbolicDim, SymbolicSized, Function)


def walk(type: Type) -> Iterator[Type]:
    """A type and all types inside it, parents first."""
    stack = [type]
    while stack:
        inner = stack.pop()
        yield inner
        stack.extend(reversed(inner.children))


def fold(
    type: Type,
    combine: Callable[[Type, list[R]], R],
    inside: Callable[[Type], tuple[Type, ...]] = attrgetter("children"),
) -> R:
    """Combines a type with the results for the types inside it, from the inside out."""
    results: list[R] = []
    stack: list[tuple[Type, int | None]] = [(type, None)]
    while stack:
        inner, arity = stack.pop()
        if arity is None:
            children = inside(inner)
            stack.append((inner, len(children)))
            stack.extend((child, None) for child in reversed(children))
        else:
            arguments = results[len(results) - arity :]
            del results[len(results) - arity :]
            results.append(combine(inner, arguments))
    return results[0]


def symbolic(type: Type) -> bool:
    """Whether a type has no values. T in `array[T]` and `merkle[T]` may be symbolic: values carry their own type."""
    stack = [type]
    while stack:
        inner = stack.pop()
        if inner.origin is not None:
            if inner.origin.symbolic:
                return True
            continue
        if isinstance(inner, _SYMBOLIC) or (isinstance(inner, Tuple | Struct) and inner.open):
            return True
        if not isinstance(inner, Array | Merkle):
            children = inner.children
            stack.extend(dict(zip(map(id, children), children, strict=True)).values())  # fields may share a type
    return False


def leading(type: Type) -> tuple[tuple[int, ...], Type]:
    """The leading fixed dims, and the type of their elements."""
    shape = []
    while isinstance(type, Fixed):
        shape.append(type.size)
        type = type.element
    return tuple(shape), type


def dense(dtype: DType, shape: tuple[int, ...]) -> Type:
    """The type of a block of elements: `3 * 4 * float32`."""
    return block(_ELEMENTS[dtype.name], shape)


def block(type: Type, shape: tuple[int, ...]) -> Type:
    """The same for elements of any type."""
    for size in reversed(shape):
        type = Fixed(size, type)
    return type


def dense_parts(type: Type) -> tuple[DType, tuple[int, ...]] | None:
    """The inverse of `dense`; None for any other type."""
    shape, element = leading(type)
    if isinstance(element, Scalar):
        return element.dtype, shape
    if isinstance(element, Complex):
        row = next((row for row, part in _COMPLEX_ROWS.items() if part == element.part.dtype.name), None)
        return None if row is None else (BY_NAME[row], shape)
    return None
