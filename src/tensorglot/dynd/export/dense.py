"""Sparse and quantized tensors in dense form.

The identity of a tensor is the identity of its value, so a sparse tensor is hashed with its
zeros, and a quantized one dequantized.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import UnsupportedError
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.layouts import COO, CSR, check_values
from tensorglot.model.tensor import Tensor

__all__ = ["densify"]

# A small sparse file may claim a huge shape: the dense form may be 1 GiB, or this many times the stored bytes.
_MOST_NBYTES = 1 << 30
_MOST_PER_STORED = 1024


def densify(tensor: Tensor) -> Tensor:
    """A dense tensor of the same value."""
    array = _scatter(tensor) if tensor.layout in (CSR, COO) else np.asarray(tensor.dequantize())
    return Tensor.of_array(tensor.name, array, dtype_of(array.dtype))


def _scatter(tensor: Tensor) -> NDArray[Any]:
    check_values(tensor)
    values = tensor.parts["values"].array(tensor.name)
    nbytes = math.prod(tensor.shape) * values.itemsize
    if nbytes > max(_MOST_NBYTES, _MOST_PER_STORED * tensor.nbytes):
        raise UnsupportedError(
            f"the dense form would have {nbytes} bytes, almost all of them zero: too many to hash or serialize",
            rule="dynd.sparse",
            tensor=tensor.name,
        )
    out = np.zeros(tensor.shape, values.dtype)
    if tensor.layout == CSR:
        indptr = tensor.parts["indptr"].array(tensor.name).astype(np.int64)
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        out[rows, tensor.parts["indices"].array(tensor.name).astype(np.int64)] = values
    else:
        coords = tensor.parts["coords"].array(tensor.name).astype(np.int64)
        # By flat positions: NumPy takes fewer index arrays than an array may have dimensions.
        steps = [math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape))]
        out.reshape(-1)[np.array(steps, np.int64) @ coords] = values
    return out
