"""Vectors, ours and those of the MongoDB driver: Vector, BinaryVector, and Binary of subtype 9.

Bits become one bool each, padding left out. A Binary of any other subtype is bytes.
"""

from __future__ import annotations

from typing import Any

from tensorglot.bridges.table import Bridge
from tensorglot.bson.vector import Vector, decode
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type
from tensorglot.wire.bson import VECTOR_SUBTYPE

__all__ = ["BRIDGE"]


def to_tensor(value: Any, type: Type | None) -> Tensor:
    if isinstance(value, bytes):
        if getattr(value, "subtype", None) != VECTOR_SUBTYPE:
            return coerce(bytes(value), type)
        value = decode(value)
    elif not isinstance(value, Vector):
        if not all(hasattr(value, name) for name in ("data", "dtype", "padding")):
            raise InputError(f"{value.__class__.__name__} of the bson package is not a tensor", rule="coerce.value")
        value = Vector(value)
    return coerce(value.bits() if value.dtype == "packed_bit" else value.numpy(), type)


BRIDGE = Bridge(to_tensor)
