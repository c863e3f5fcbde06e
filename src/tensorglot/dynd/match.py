"""Whether a type is an instance of a symbolic one: what `array[T]` may hold.

A type variable is bound to one type (or size) wherever it occurs. A kind matches any of its
types, each time anew:

    Any       every type                Bool      bool
    Int       int1 … int128             UInt      uint1 … uint128
    Float     float16 … float128, bfloat16 and the floats of 8, 6 and 4 bits
    Complex   complex[T]                String    string, fixed_string[N], char
    Bytes     bytes, bytes[N]           Scalar    types without an outer dimension: no `N *`,
    Fixed     any size, as a dimension            `var *`, storage or map, also inside ? and pointer

`?T` and `pointer[T]` match only Any and Scalar. `...` in a run of dimensions matches the
dimensions that no other item matches.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorglot.errors import InputError
from tensorglot.model.types import algebra as ty
from tensorglot.model.types.base import Type

__all__ = ["check_holds", "holds", "matches"]

_DIMS = (ty.Fixed, ty.Var, ty.SymbolicDim)


def _is_scalar(type: Type) -> bool:
    while isinstance(type, ty.Option | ty.Pointer):
        type = type.element
    return not isinstance(type, ty.Fixed | ty.Var | ty.Storage | ty.Map)


def _is_number(*beginnings: str) -> Callable[[Type], bool]:
    return lambda given: isinstance(given, ty.Scalar) and given.dtype.name.startswith(beginnings)


_KINDS: dict[str, Callable[[Type], bool]] = {
    "Any": lambda _: True,
    "Bool": _is_number("bool"),
    "Int": _is_number("int"),
    "UInt": _is_number("uint"),
    "Float": _is_number("float", "bfloat"),
    "Complex": lambda given: isinstance(given, ty.Complex),
    "String": lambda given: isinstance(given, ty.String | ty.FixedString | ty.Char),
    "Bytes": lambda given: isinstance(given, ty.Bytes | ty.FixedBytes),
    "Scalar": _is_scalar,
}


def holds(holder: Type, type: Type) -> bool:
    """Whether `holder`, an `array[T]` or a symbolic `merkle[T]`, may hold a value of a type."""
    if isinstance(holder, ty.Merkle):
        return isinstance(type, ty.Merkle) and not ty.symbolic(type.element) and matches(holder.element, type.element)
    return isinstance(holder, ty.Array) and matches(holder.element, type)


def check_holds(holder: Type, type: Type) -> None:
    if not holds(holder, type):
        raise InputError(f"{holder} cannot hold a value of type {type}", rule="dynd.array.type")


def matches(pattern: Type, type: Type) -> bool:
    """Whether `type`, which is not symbolic, is an instance of `pattern`."""
    bound: dict[str, object] = {}
    stack = [(pattern, type)]
    while stack:
        wanted, given = stack.pop()
        if isinstance(wanted, ty.Symbol):
            kind = _KINDS.get(wanted.name)
            if not (bound.setdefault(wanted.name, given) == given if kind is None else kind(given)):
                return False
        elif not ty.symbolic(wanted):
            if wanted != given:
                return False
        else:
            inner = _inner(wanted, given, bound)
            if inner is None:
                return False
            stack.extend(inner)
    return True


def _inner(wanted: Type, given: Type, bound: dict[str, object]) -> list[tuple[Type, Type]] | None:
    """The pairs of inner types that must match, or None if the outer types differ."""
    if isinstance(wanted, _DIMS):
        return _dims(wanted, given, bound)
    if isinstance(wanted, ty.SymbolicSized):
        if wanted.outer == "complex":
            return [(ty.Symbol(wanted.name), given.part)] if isinstance(given, ty.Complex) else None
        return [] if isinstance(given, ty.FixedBytes) and _same_size(wanted.name, given.size, bound) else None
    if isinstance(wanted, ty.Tuple) and isinstance(given, ty.Tuple):
        fits = (
            len(given.elements) >= len(wanted.elements) if wanted.open else len(given.elements) == len(wanted.elements)
        )
        return list(zip(wanted.elements, given.elements, strict=False)) if fits else None
    if isinstance(wanted, ty.Struct) and isinstance(given, ty.Struct):
        names = [name for name, _ in given.fields]
        if not wanted.open:
            same = [name for name, _ in wanted.fields] == names
            return list(zip(wanted.children, given.children, strict=True)) if same else None
        fields = dict(given.fields)
        return [(t, fields[name]) for name, t in wanted.fields] if all(n in fields for n, _ in wanted.fields) else None
    if isinstance(wanted, ty.Storage) and isinstance(given, ty.Storage) and wanted.axis != given.axis:
        return None
    if isinstance(wanted, ty.Function) or wanted.__class__ is not given.__class__:
        return None
    return list(zip(wanted.children, given.children, strict=True))


def _run(type: Type) -> tuple[list[Type], Type]:
    """The leading dimensions of a type, and the type without them."""
    dims = []
    while isinstance(type, _DIMS):
        dims.append(type)
        type = type.element
    return list(dims), type


def _dims(wanted: Type, given: Type, bound: dict[str, object]) -> list[tuple[Type, Type]] | None:
    wanted_dims, wanted_rest = _run(wanted)
    given_dims, given_rest = _run(given)
    dots = [i for i, dim in enumerate(wanted_dims) if isinstance(dim, ty.SymbolicDim) and dim.dots]
    spare = len(given_dims) - len(wanted_dims) + len(dots)
    # A symbol at the end matches a type with dimensions: `3 * T` and `3 * 4 * int32` bind T to `4 * int32`.
    if isinstance(wanted_rest, ty.Symbol) and not dots and spare > 0:
        given_rest = given_dims[len(wanted_dims)]
        given_dims, spare = given_dims[: len(wanted_dims)], 0
    if len(dots) > 1 or spare < 0 or (spare and not dots):
        return None
    if dots:
        del given_dims[dots[0] : dots[0] + spare]
        del wanted_dims[dots[0]]
    same = all(_same_dim(w, g, bound) for w, g in zip(wanted_dims, given_dims, strict=True))
    return [(wanted_rest, given_rest)] if same else None


def _same_dim(wanted: Type, given: Type, bound: dict[str, object]) -> bool:
    size: object = given.size if isinstance(given, ty.Fixed) else "var"
    if isinstance(wanted, ty.SymbolicDim):
        return _same_size(wanted.name, size, bound)
    return size == (wanted.size if isinstance(wanted, ty.Fixed) else "var")


def _same_size(name: str, size: object, bound: dict[str, object]) -> bool:
    """Whether a variable, or the kind Fixed, matches a size."""
    return size != "var" if name == "Fixed" else bool(bound.setdefault(name, size) == size)
