"""`tensorglot.values.dataclass` makes what `dataclasses.dataclass` makes of the same class."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tensorglot import values


def declare(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True, slots=True)
    class Point:
        """A point with a label."""

        x: int
        y: int = 2
        label: list[str] = dataclasses.field(default_factory=list, compare=False, repr=False)
        scale: float = dataclasses.field(default=1.0, kw_only=True)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

    return Point


Ours, Theirs = declare(values.dataclass), declare(dataclasses.dataclass)
Point = Ours
Point.__qualname__ = "Point"  # so that pickle finds it

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 3), {"scale": 2.0}),
    ((), {"y": 1, "x": 1, "label": ["a"]}),
    ((), {}),
    ((1, 2, [], 4.0), {}),
    ((1,), {"z": 1}),
    ((-1,), {}),
]


def outcome(make: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    try:
        return dataclasses.asdict(make(*args, **keywords))
    except (TypeError, ValueError) as error:
        return type(error), str(error).rpartition("__init__")[2]


@pytest.mark.parametrize(("args", "keywords"), CALLS)
def test_instances_are_equal_to_those_of_the_standard_library(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    assert outcome(Ours, args, keywords) == outcome(Theirs, args, keywords)


def test_the_signature_is_known_before_the_first_instance() -> None:
    ours, theirs = declare(values.dataclass), declare(dataclasses.dataclass)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__match_args__ == theirs.__match_args__
    assert [field.name for field in dataclasses.fields(ours)] == ["x", "y", "label", "scale"]


def test_factories_make_a_value_for_each_instance() -> None:
    assert Ours(1).label is not Ours(1).label


def test_equality_and_hash_are_of_the_compared_fields() -> None:
    assert Ours(1, label=["a"]) == Ours(1, label=["b"]) != Ours(2)
    assert hash(Ours(1, label=["a"])) == hash(Ours(1))
    assert Ours(1) != Theirs(1)
    assert repr(Ours(1)) == "Point(x=1, y=2, scale=1.0)"


def test_instances_are_frozen_and_have_no_other_attributes() -> None:
    point = Ours(1)
    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=name):
            setattr(point, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="x"):
        del point.x
    assert not hasattr(point, "__dict__")


def test_copies() -> None:
    point = Ours(1, label=["a"], scale=3.0)
    for same in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert dataclasses.asdict(same) == dataclasses.asdict(point)
    assert dataclasses.replace(point, y=9) == Ours(1, 9, scale=3.0)
