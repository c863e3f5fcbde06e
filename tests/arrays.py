"""Arrays for tests: every element type, every memory order, every unusual shape."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.kernels import buffers
from tensorglot.model.dtypes import BY_NAME

__all__ = ["HAVE_BUFFERS", "ORDERS", "random_array", "random_name", "random_tensors", "raw"]

HAVE_BUFFERS = sys.version_info >= (3, 12) or not buffers.__file__.endswith(".py")
"""Whether a Tensor has the buffer protocol: Python 3.11 needs compiled kernels for it."""
ORDERS = ("C", "F", "strided", "reversed", "big-endian", "transposed")
_SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (3, 0, 2), (2, 3), (4, 5, 6), (1, 1, 8, 1))
_LETTERS = 'abcxyz.:/_-0129 éß漢😀"\\\n\t\x7f\u2028'


def random_array(rng: random.Random, dtype: str, shape: Sequence[int], order: str = "C") -> NDArray[Any]:
    """Any bits that are a value of the type, in memory of a given order."""
    row = BY_NAME[dtype]
    kind = row.require_numpy()
    count = int(np.prod(shape, dtype=np.int64))
    noise = np.frombuffer(rng.randbytes(count * kind.itemsize), np.uint8)
    if dtype == "bool":
        noise = noise & 1
    elif row.packed:
        noise = noise & ((1 << row.bits) - 1)
    array = noise.view(kind).reshape(shape)
    if order == "F":
        return np.asfortranarray(array)
    if order == "strided":
        wide = np.zeros((*array.shape, 3), kind)
        wide[..., 1] = array
        return wide[..., 1]
    if order == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if order == "big-endian" and kind.itemsize > 1 and kind.kind != "V":
        return array.astype(kind.newbyteorder(">"))
    if order == "transposed" and array.ndim > 1:
        return np.ascontiguousarray(np.moveaxis(array, 0, -1)).transpose(array.ndim - 1, *range(array.ndim - 1))
    return array


def random_name(rng: random.Random) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randrange(12)))


def random_tensors(rng: random.Random, dtypes: Sequence[str], most: int = 8) -> dict[str, NDArray[Any]]:
    return {
        random_name(rng): random_array(rng, rng.choice(dtypes), rng.choice(_SHAPES), rng.choice(ORDERS))
        for _ in range(rng.randrange(most))
    }


def raw(array: NDArray[Any]) -> bytes:
    """The little-endian bytes of the C order."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
