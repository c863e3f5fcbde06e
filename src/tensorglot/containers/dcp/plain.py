"""Plain Python values in JSON, both ways: what a training loop keeps beside its tensors.

JSON's own values are written as they are, a dict with str keys as an object. All others are
an object with the key `!`: `{"!": "tuple", "of": [1, 2]}`. Callers pass in the types of
their framework.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from tensorglot.errors import FormatError, UnsupportedError, escape

__all__ = ["decode", "encode"]

TAG = "!"
DEPTH = 64

Encoder = Callable[[Any], "tuple[str, Any] | None"]
"""The tag and the JSON form of a value of a framework; None for a value that it does not know."""


def encode(value: Any, encoder: Encoder = lambda value: None, depth: int = DEPTH) -> Any:
    """The value as JSON."""
    if depth == 0:
        raise UnsupportedError(f"nested deeper than {DEPTH} levels", rule="dcp.value.depth")
    kind = type(value)
    if value is None or kind in (bool, str, int) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [encode(item, encoder, depth - 1) for item in value]
    if kind is dict and all(type(key) is str and key != TAG for key in value):
        return {key: encode(item, encoder, depth - 1) for key, item in value.items()}
    tag, of = _tagged(value, encoder, depth)
    return {TAG: tag, "of": of}


def _tagged(value: Any, encoder: Encoder, depth: int) -> tuple[str, Any]:
    kind = type(value)
    if kind is float:
        return "float", repr(value)
    if kind is complex:
        return "complex", [encode(value.real), encode(value.imag)]
    if kind is bytes:
        return "bytes", value.hex()
    if kind in (tuple, set):
        return kind.__name__, [encode(item, encoder, depth - 1) for item in value]
    if kind in (dict, OrderedDict):
        return kind.__name__, [[encode(item, encoder, depth - 1) for item in pair] for pair in value.items()]
    known = encoder(value)
    if known is None:
        raise UnsupportedError(
            f"a value of type {kind.__module__}.{kind.__qualname__} cannot be stored without pickle: "
            "keep numbers, text, bytes, lists, tuples, sets and dicts of them",
            rule="dcp.value.type",
        )
    return known


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "complex": lambda of: complex(*of),
    "bytes": bytes.fromhex,
    "tuple": tuple,
    "set": set,
    "dict": dict,
    "OrderedDict": OrderedDict,
}
PLAIN: dict[str, Callable[[Any], Any]] = {**_MAKERS, "tuple": list, "set": list, "OrderedDict": dict}
"""The constructors for metadata, which has only lists and dicts."""


def decode(value: Any, makers: Mapping[str, Callable[[Any], Any]] | None = None) -> Any:
    """Decodes a value. `makers` has a framework's types; without it, only lists and dicts are made."""
    if isinstance(value, list):
        return [decode(item, makers) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item, makers) for key, item in value.items()}
    of = decode(value.get("of"), makers)
    tag = str(value[TAG])
    make = PLAIN.get(tag, lambda of: of) if makers is None else {**_MAKERS, **makers}.get(tag)
    if make is None:
        raise FormatError(
            f"a plain value in the index has the unknown type '{escape(tag, longest=60)}'", rule="dcp.value"
        )
    try:
        return make(of)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError("invalid plain value in the index", rule="dcp.value") from error
