"""The type of a plain Python value.

Numbers are int64 (wider where they must be), float64 and complex[float64]; a list is
`N * T` where all lists in its place have the same length, else `var * T`; a dict is a
struct, a tuple a tuple; Python's dates, times and decimals are `date`, `time['us']` and so
on, a decimal with as many digits as needed. None beside other values makes them options.
All lists of one level are examined together, so the time is linear and deep values need no
recursion.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal as PythonDecimal
from typing import Any, TypeAlias

import numpy as np

from tensorglot.arrays import elements
from tensorglot.dynd.atoms import integers
from tensorglot.dynd.coerce.numpy import element_type
from tensorglot.dynd.merkle import Link
from tensorglot.dynd.temporal import zone_name
from tensorglot.errors import Hint, InputError
from tensorglot.limits import DEFAULT
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.tensor import Tensor
from tensorglot.model.types import algebra as ty
from tensorglot.model.types.base import Type
from tensorglot.model.types.temporal import DIGITS_MAX, Date, DateTime, Decimal, Time, TimeDelta

__all__ = ["python_type"]

Make: TypeAlias = "Callable[[list[Type]], Type]"
"""Makes a type of the types inside it."""
Classified: TypeAlias = "tuple[Make, list[list[Any]]]"
"""The function that makes the type of a place, and the values of each place inside it."""

_TYPE = Hint("pass type= to tg.dynd.array", "pass --type TYPE")
_FLOAT = ty.Scalar(BY_NAME["float64"])
_INTEGERS = ("int64", "uint64", "int128", "uint128")
_DEPTH_MAX = DEFAULT.type_depth * (DEFAULT.rank + 1)
"""A type nests no deeper: `type_depth` brackets with `rank` dimensions in each."""


def python_type(value: Any) -> Type:
    """The type of a plain value where the caller gives none."""
    # Breadth first: a place is all values at one position of the type, such as the elements of all
    # lists of one level. `makes` holds how each type is made of the types of the places inside it.
    _check_finite(value)
    places: list[list[Any]] = [[value]]
    makes: list[tuple[Make, range]] = []
    for place in places:
        make, inner = _classify(place)
        makes.append((make, range(len(places), len(places) + len(inner))))
        places.extend(inner)
    types: list[Type] = [ty.Void()] * len(places)
    for i in reversed(range(len(places))):
        make, children = makes[i]
        types[i] = make([types[child] for child in children])
    return types[0]


def _check_finite(value: Any) -> None:
    """Refuses containers that contain themselves, or nest deeper than any type. Each is visited once."""
    # Depth first without recursion: `around` has the containers that are open, `done` those that are finished.
    around: set[int] = set()
    done: set[int] = set()
    stack = [(value, False)]
    while stack:
        item, finished = stack.pop()
        if finished:
            around.remove(id(item))
            done.add(id(item))
        elif id(item) in around:
            raise InputError(f"a {type(item).__name__} that contains itself has no type", rule="dynd.infer")
        elif id(item) not in done:
            if len(around) > _DEPTH_MAX:
                raise InputError(f"values nested more than {_DEPTH_MAX} deep have no type", rule="dynd.depth")
            around.add(id(item))
            stack.append((item, True))
            stack.extend((inner, False) for inner in _containers(item))


def _containers(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        inner: Any = value.values()
    elif isinstance(value, np.ndarray):
        inner = value.reshape(-1).tolist() if value.dtype.hasobject else ()
    else:
        inner = value if _is_list(value) else ()
    # By class, not by element: the set of classes shows that a list of a million numbers contains no containers.
    kinds = {kind for kind in set(map(type, inner)) if issubclass(kind, Mapping | Sequence | np.ndarray)}
    kinds -= {str, bytes, bytearray, memoryview}
    return [item for item in inner if type(item) in kinds] if kinds else []


def _classify(values: list[Any]) -> Classified:
    """The function that makes the type of the values in one place, and the values in each place inside it."""
    present = [value for value in values if value is not None]
    if not present:
        return _always(ty.Void()), []
    make, inner = _classify_present(present)
    if len(present) < len(values):
        return lambda types: ty.Option(make(types)), inner
    return make, inner


def _classify_present(values: list[Any]) -> Classified:
    if all(isinstance(v, Mapping) for v in values):
        return _structs(values)
    if all(isinstance(v, tuple) for v in values):
        return _tuples(values)
    if all(_is_list(v) for v in values):
        sizes = set(map(len, values))
        inner = [elements(values)]
        if len(sizes) == 1:
            return lambda types: ty.Fixed(len(values[0]), types[0]), inner
        return lambda types: ty.Var(types[0]), inner
    return _always(_leaf(values)), []


def _always(type: Type) -> Make:
    return lambda _: type


def _is_list(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _structs(values: list[Any]) -> Classified:
    names = list(values[0])
    if any(v.keys() != values[0].keys() for v in values) or not all(isinstance(name, str) for name in names):
        raise InputError(
            "dicts in one list must have the same keys, all of them str",
            rule="dynd.infer",
            hint=Hint("for a map pass type= to tg.dynd.array", "for a map pass --type TYPE"),
        )
    return lambda types: ty.Struct(tuple(zip(names, types, strict=True))), [[v[name] for v in values] for name in names]


def _tuples(values: list[Any]) -> Classified:
    if len(set(map(len, values))) != 1:
        raise InputError("tuples in one list must have the same length; lists may differ", rule="dynd.infer")
    return lambda types: ty.Tuple(tuple(types)), [list(column) for column in zip(*values, strict=True)]


def _leaf(values: list[Any]) -> Type:
    kinds = set(map(type, values))
    if all(issubclass(kind, np.generic) for kind in kinds):
        if len({v.dtype for v in values}) == 1:
            return element_type(values[0].dtype)
    elif kinds == {bool}:
        return ty.Scalar(BY_NAME["bool"])
    elif kinds <= {int}:
        return _integer(min(values), max(values))
    elif kinds <= {int, float}:
        return _FLOAT
    elif kinds <= {int, float, complex}:
        return ty.Complex(_FLOAT)
    elif all(issubclass(kind, dt.datetime) for kind in kinds):
        return DateTime("us", _zone({v.tzinfo for v in values}))
    elif all(issubclass(kind, PythonDecimal) for kind in kinds):
        return _decimal(values)
    elif kinds == {Link}:
        types = {v.type for v in values}
        return ty.Merkle(types.pop() if len(types) == 1 else ty.ANY)
    # datetime is a subclass of date: datetimes mixed with other values must not be taken for dates.
    leaves = {} if any(issubclass(kind, dt.datetime) for kind in kinds) else _LEAVES
    for kind, made in leaves.items():
        if all(isinstance(v, kind) for v in values):
            return made
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise InputError(f"cannot infer one type from {names}", rule="dynd.infer", hint=_TYPE)


def _zone(zones: set[dt.tzinfo | None]) -> str | None:
    names = {None if zone is None else zone_name(zone) for zone in zones}
    if len(names) > 1:
        raise InputError("cannot infer one type from datetimes of several time zones", rule="dynd.infer", hint=_TYPE)
    return names.pop()


def _decimal(values: list[PythonDecimal]) -> Type:
    """The decimal with enough digits before and after the point for all values."""
    before = behind = 0
    for value in values:
        _, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise InputError(f"{value} is not a valid decimal", rule="dynd.value")
        before, behind = max(before, len(digits) + exponent), max(behind, -exponent)
    if before + behind > DIGITS_MAX:
        raise InputError(f"decimals need {before + behind} digits; {DIGITS_MAX} are supported", rule="dynd.range")
    return Decimal(max(1, before + behind), behind)


_LEAVES: dict[Any, Type] = {
    dt.date: Date(),
    dt.time: Time("us"),
    dt.timedelta: TimeDelta("us"),
    str: ty.String(),
    (bytes, bytearray, memoryview): ty.Bytes(),
    Type: ty.TypeType(),
    Tensor: ty.Array(ty.ANY),
}


def _integer(low: int, high: int) -> Type:
    for name in _INTEGERS:
        if low in integers(BY_NAME[name]) and high in integers(BY_NAME[name]):
            return ty.Scalar(BY_NAME[name])
    raise InputError(f"no integer type holds both {low} and {high}", rule="dynd.range")
