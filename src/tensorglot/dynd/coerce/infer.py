"""The type of a plain Python value.

Numbers are int64 (wider where they must be), float64 and complex[float64]; a list is
`N * T` where all lists in its place have the same length, else `var * T`; a dict is a
struct, a tuple a tuple. None beside other values makes them options. A whole level of
lists is looked at together, so the work is linear and the depth of a value no depth
of the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from tensorglot.dynd.merkle import Link
from tensorglot.errors import InputError
from tensorglot.model.dtypes import BY_NAME, dtype_of
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.algebra import (
    ANY,
    Array,
    Bytes,
    Complex,
    Fixed,
    Merkle,
    Option,
    Scalar,
    String,
    Struct,
    Tuple,
    TypeType,
    Var,
    Void,
    dense,
)
from tensorglot.model.types.base import Type

__all__ = ["python_type"]

Make: TypeAlias = "Callable[[list[Type]], Type]"
Look: TypeAlias = "tuple[Make, list[list[Any]]]"

_FLOAT = Scalar(BY_NAME["float64"])
_INTEGERS = ("int64", "uint64", "int128", "uint128")


def python_type(value: Any) -> Type:
    """The type that a plain value is serialized as, if nobody names one."""
    places: list[list[Any]] = [[value]]
    makes: list[tuple[Make, range]] = []
    for place in places:
        make, inner = _look(place)
        makes.append((make, range(len(places), len(places) + len(inner))))
        places.extend(inner)
    types: list[Type] = [Void()] * len(places)
    for i in reversed(range(len(places))):
        make, children = makes[i]
        types[i] = make([types[child] for child in children])
    return types[0]


def _look(values: list[Any]) -> Look:
    """How to make the type of the values in one place, and the values in the places inside."""
    present = [value for value in values if value is not None]
    if not present:
        return _always(Void()), []
    make, inner = _look_present(present)
    if len(present) < len(values):
        return lambda types: Option(make(types)), inner
    return make, inner


def _look_present(values: list[Any]) -> Look:
    if all(isinstance(v, Mapping) for v in values):
        return _structs(values)
    if all(isinstance(v, tuple) for v in values):
        return _tuples(values)
    if all(_is_list(v) for v in values):
        sizes = set(map(len, values))
        elements = [list(chain.from_iterable(values))]
        if len(sizes) == 1:
            return lambda types: Fixed(len(values[0]), types[0]), elements
        return lambda types: Var(types[0]), elements
    return _always(_leaf(values)), []


def _always(type: Type) -> Make:
    return lambda _: type


def _is_list(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _structs(values: list[Any]) -> Look:
    names = list(values[0])
    if any(v.keys() != values[0].keys() for v in values) or not all(isinstance(name, str) for name in names):
        raise InputError("dicts in one place have the same keys, and these are texts", rule="dynd.infer")
    return lambda types: Struct(tuple(zip(names, types, strict=True))), [[v[name] for v in values] for name in names]


def _tuples(values: list[Any]) -> Look:
    if len(set(map(len, values))) != 1:
        raise InputError("tuples in one place have the same length; lists need not", rule="dynd.infer")
    return lambda types: Tuple(tuple(types)), [list(column) for column in zip(*values, strict=True)]


def _leaf(values: list[Any]) -> Type:
    kinds = set(map(type, values))
    if all(issubclass(kind, np.generic) for kind in kinds):
        if len({v.dtype for v in values}) == 1:
            return dense(dtype_of(values[0].dtype), ())
    elif kinds == {bool}:
        return Scalar(BY_NAME["bool"])
    elif kinds <= {int}:
        return _integer(min(values), max(values))
    elif kinds <= {int, float}:
        return _FLOAT
    elif kinds <= {int, float, complex}:
        return Complex(_FLOAT)
    if kinds == {Link}:
        types = {v.type for v in values}
        return Merkle(types.pop() if len(types) == 1 else ANY)
    for kind, made in _LEAVES.items():
        if all(isinstance(v, kind) for v in values):
            return made
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InputError(f"no type for {names}; name one", rule="dynd.infer")


_LEAVES: dict[Any, Type] = {
    str: String(),
    (bytes, bytearray, memoryview): Bytes(),
    Type: TypeType(),
    Tensor: Array(ANY),
}


def _integer(low: int, high: int) -> Type:
    for name in _INTEGERS:
        bits = BY_NAME[name].bits
        signed = not name.startswith("u")
        if low >= (-(1 << (bits - 1)) if signed else 0) and high < 1 << (bits - signed):
            return Scalar(BY_NAME[name])
    raise InputError(f"no integer type for {low} to {high}", rule="dynd.range")
