"""Values as JSON: `jsonable` for what files hold, `Record.to_dict` for what verbs return.

NaN and the infinities are text, a complex number is a pair, bytes are hexadecimal text,
and a key that is not a str is its repr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tensorglot.providers import provided

__all__ = ["Record", "field_dict", "jsonable"]


class Record:
    """A dataclass with `to_dict`: its fields by name, as JSON; and with a table in notebooks."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The value as `json.dumps` takes it."""
        return field_dict(self)

    def _repr_html_(self) -> str:
        """The value in a notebook."""
        return provided("report.html")(self)  # type: ignore[no-any-return]


def field_dict(value: Any, *names: str) -> dict[str, Any]:
    """The attributes `names` as JSON; without names, all fields of a dataclass."""
    return {name: jsonable(getattr(value, name)) for name in names or value.__dataclass_fields__}


def jsonable(value: Any) -> Any:
    """The same value made of dicts, lists, text, numbers, booleans and None."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if value != value else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, complex):
        return [jsonable(value.real), jsonable(value.imag)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Record):
        return value.to_dict()
    return field_dict(value) if hasattr(value, "__dataclass_fields__") else str(value)
