"""Sparse and quantized tensors of PyTorch, as tensors of several parts.

COO stays COO, with duplicates summed; CSR stays CSR, and the other compressed forms become
CSR. The codes of a quantized tensor are kept, with its scales and zero points. A single
scale is repeated for each position of the first axis, since the layout has groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, InputError, UnsupportedError
from tensorglot.extras import torch
from tensorglot.model.layouts import COO, CSR, QUANT_GROUP, check_values, describe_codes
from tensorglot.model.tensor import Tensor

__all__ = ["from_sparse", "of_quantized", "of_sparse", "plain_sparse"]

_BITS = {"quint8": 8, "qint8": 8, "quint4x2": 4, "quint2x4": 2}
"""Bits of a code, by PyTorch's name of the type."""


def of_sparse(tensor: torch.Tensor, values: NDArray[Any]) -> Tensor:
    """A tensor of a sparse tensor in the form that `plain_sparse` returns; `values` has its values as an array."""
    shape = tuple(tensor.shape)
    kind = np.uint32 if max(*shape, values.size, 1) < 1 << 32 else np.uint64
    if tensor.layout is torch.sparse_coo:
        coords = tensor.indices().cpu().numpy().astype(kind)
        return Tensor.of_parts("", COO, shape, {"values": values, "coords": coords})
    indices, indptr = (part.cpu().numpy().astype(kind) for part in (tensor.col_indices(), tensor.crow_indices()))
    made = Tensor.of_parts("", CSR, shape, {"values": values, "indices": indices, "indptr": indptr})
    try:
        check_values(made)
    except FormatError as error:
        raise InputError(error.message, rule="torch.sparse") from None
    return made


def plain_sparse(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as COO without duplicates, or as CSR."""
    coo = tensor.layout is torch.sparse_coo
    if tensor.is_meta:
        raise InputError("a tensor on the meta device has no values", rule="torch.meta")
    if tensor.dense_dim() or not (coo or tensor.ndim == 2):
        raise InputError(
            "batches and hybrids of sparse tensors are not supported: pass tensor.to_dense()", rule="torch.layout"
        )
    if coo:
        return tensor.detach().coalesce()
    try:
        return tensor.detach() if tensor.layout is torch.sparse_csr else tensor.detach().to_sparse_csr()
    except RuntimeError as error:
        raise InputError(
            f"PyTorch cannot convert this {tensor.layout} tensor to CSR: {error}; pass tensor.to_dense()",
            rule="torch.layout",
        ) from error


def from_sparse(tensor: Tensor, values: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of PyTorch; indices are checked before PyTorch sees them."""
    check_values(tensor)

    def indices(part: str) -> Any:
        return torch.from_numpy(tensor.parts[part].array(tensor.name).astype(np.int64))

    if tensor.layout == COO:
        made = torch.sparse_coo_tensor(indices("coords"), values, tensor.shape, check_invariants=False)
        return made.coalesce()
    return torch.sparse_csr_tensor(indices("indptr"), indices("indices"), values, tensor.shape, check_invariants=False)


def of_quantized(tensor: torch.Tensor) -> Tensor:
    """The codes with their scales and zero points."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _BITS or not tensor.numel() or not tensor.ndim or tensor.numel() % (8 // _BITS[kind]):
        raise UnsupportedError(f"a quantized tensor of {kind} and this shape is not supported", rule="torch.quantized")
    bits, shape = _BITS[kind], tuple(tensor.shape)
    plain = tensor.detach().cpu().contiguous()
    axis, arrays = 0, {"data": plain.int_repr().numpy().reshape(-1)}
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scales = np.full(shape[0], plain.q_scale())
        zero: dict[str, Any] = {"form": "implied", "value": int(plain.q_zero_point())}
    else:
        axis = plain.q_per_channel_axis()
        scales, zeros = (part.numpy() for part in (plain.q_per_channel_scales(), plain.q_per_channel_zero_points()))
        zero = {"form": "tensor", "packing": "plain"}
        arrays["zeros"] = zeros.astype(np.int32) if zeros.dtype == np.int64 else zeros
    single = scales.astype(np.float32)
    arrays["scales"] = single if (single == scales).all() else scales.astype(np.float64)
    ordered: dict[str, NDArray[Any]] = {name: arrays[name] for name in ("data", "scales", "zeros") if name in arrays}
    return Tensor.of_parts("", QUANT_GROUP, shape, ordered, describe_codes(bits, axis, zero))
