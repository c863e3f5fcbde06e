"""Sparse tensors to and from scipy.sparse.

Indices are checked before scipy sees them: scipy trusts its index arrays, and an index
out of bounds would be an invalid memory access. Only index arrays of a type that scipy
does not support are copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.bridges.table import Bridge
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.extras import sparse
from tensorglot.model.layouts import COO, CSR, check_values
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type

__all__ = ["BRIDGE", "from_tensor"]


def from_tensor(tensor: Tensor) -> Any:
    """A csr_array or coo_array."""
    if tensor.layout not in (CSR, COO):
        raise UnsupportedError(
            f"a tensor of layout {escape(tensor.layout)} is not sparse", rule="bridge.layout", tensor=tensor.name
        )
    tensor.verify()
    check_values(tensor)
    values = tensor.parts["values"].array(tensor.name)
    try:
        if tensor.layout == COO:
            coords = tuple(map(_signed, tensor.parts["coords"].array(tensor.name)))
            return sparse.coo_array((values, coords), shape=tensor.shape)
        indices, indptr = (_signed(tensor.parts[part].array(tensor.name)) for part in ("indices", "indptr"))
        return sparse.csr_array((values, indices, indptr), shape=tensor.shape)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"scipy does not support this tensor: {escape(str(error))}", rule="bridge.scipy", tensor=tensor.name
        ) from error


def _signed(indices: NDArray[Any]) -> NDArray[Any]:
    """scipy's index types are int32 and int64; indices that are within a shape fit."""
    fits = indices.size == 0 or int(indices.max()) < 1 << 31
    return indices.astype(np.int32 if fits else np.int64, copy=False)


def to_tensor(value: Any, type: Type | None) -> Tensor:
    """A tensor of a scipy.sparse matrix or array: COO stays COO, other formats become CSR. Duplicates are summed."""
    if not sparse.issparse(value):
        raise InputError(f"scipy's {value.__class__.__name__} is not a sparse array", rule="coerce.value")
    whole = value if value.format == "coo" else value.tocsr()
    if not whole.has_canonical_format:
        whole = whole.copy()
        whole.sum_duplicates()
    kind = np.uint32 if max(*value.shape, whole.nnz, 1) < 1 << 32 else np.uint64
    if value.format == "coo":
        coords = np.array(whole.coords if hasattr(whole, "coords") else (whole.row, whole.col), kind)
        return Tensor.of_parts("", COO, value.shape, {"values": whole.data, "coords": coords})
    parts = {"values": whole.data, "indices": whole.indices.astype(kind), "indptr": whole.indptr.astype(kind)}
    return Tensor.of_parts("", CSR, whole.shape, parts)


BRIDGE = Bridge(to_tensor)
