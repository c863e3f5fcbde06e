"""Whether two values of metadata or attributes are the same: by type and value, not by Python's `==`.

For Python True equals 1, 1 equals 1.0, 0.0 equals -0.0, and NaN differs from itself; files
keep all of these apart. Lists and tuples are alike, because files have only one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["same_value"]


def same_value(one: Any, two: Any, *, exact: bool = False) -> bool:
    """Whether two values are the same. `exact`: also their Python types, which can say how numbers are stored."""
    if one is two:
        return True
    if exact and type(one) is not type(two):
        return False
    one, two = _plain(one), _plain(two)
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(same_value(one[key], two[key], exact=exact) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(same_value(x, y, exact=exact) for x, y in zip(one, two, strict=True))
    if any(isinstance(one, kind) != isinstance(two, kind) for kind in (bool, float, complex)):
        return False
    if isinstance(one, (float, complex)):
        return complex.__repr__(complex(one)) == complex.__repr__(complex(two))
    return bool(one == two)


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
