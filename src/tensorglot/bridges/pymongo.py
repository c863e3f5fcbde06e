"""BSON vectors: our Vector, and pymongo's BinaryVector and Binary of subtype 9.

Packed bits become one bool each, without the padding. A Binary of any other subtype is bytes.
"""

from __future__ import annotations

from typing import Any

from tensorglot.bridges.table import Bridge
from tensorglot.bson.coerce import is_vector
from tensorglot.bson.vector import Vector, decode
from tensorglot.dynd.coerce.anything import coerce
from tensorglot.errors import InputError
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type

__all__ = ["BRIDGE"]


def to_tensor(value: Any, type: Type | None) -> Tensor:
    if not is_vector(value):
        if isinstance(value, bytes):
            return coerce(bytes(value), type)
        raise InputError(f"{value.__class__.__name__} of the bson package is not a tensor", rule="coerce.value")
    vector = value if isinstance(value, Vector) else decode(value)
    return coerce(vector.bits() if vector.dtype == "packed_bit" else vector.numpy(), type)


BRIDGE = Bridge(to_tensor)
