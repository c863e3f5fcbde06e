"""Values that files hold, as values that JSON has.

NaN and the infinities are text, a complex number is a pair, bytes are text in
hexadecimal, a key that is no text is shown as such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["field_dict", "jsonable"]


def field_dict(value: Any, **changed: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, some of them in another form."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__} | changed


def jsonable(value: Any) -> Any:
    """The same value out of dicts, lists, text, numbers, booleans and None."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, complex):
        return [jsonable(value.real), jsonable(value.imag)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
