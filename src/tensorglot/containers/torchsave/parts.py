"""Sparse and quantized tensors, as tensors of the parts that zTensor's layouts have.

COO and CSR keep their values and indices, and quantized tensors of 8 bits their codes, scales
and zero points, where they are in the file. A scale for the whole tensor is in the pickle: it
becomes one for each position of the first axis. Other forms are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tensorglot.containers.torchsave.files import Saved
from tensorglot.containers.torchsave.names import ElementType, QuantizedView, SparseViews, View
from tensorglot.containers.torchsave.tensors import row_of
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.limits import Limits
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.layouts import COO, CSR, QUANT_GROUP, Piece, arrange, describe_codes
from tensorglot.model.payload import Chunk, Encoded, read_pieces
from tensorglot.model.strided import Strided
from tensorglot.tuples import NamedTuple

__all__ = ["add_tensor"]

_CODES = {"torch.qint8": "torch.int8", "torch.quint8": "torch.uint8"}
_INTEGERS = ("torch.int32", "torch.int64")
_CHUNK_NBYTES = 1 << 20


class _Form(NamedTuple):
    """A tensor of several parts, each a view of the file or one repeated number."""

    layout: str
    shape: tuple[int, ...]
    parts: Mapping[str, View | _Repeated]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A codec for one number, repeated; it is in the pickle, so the span in the file is empty."""

    number: bytes
    count: int
    name: ClassVar[str] = "repeated"

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        width = len(self.number)
        shift = offset % width
        out[:] = (self.number * (len(out) // width + 2))[shift : shift + len(out)]

    def chunks(self, payload: Encoded) -> Iterator[Chunk]:
        return read_pieces(payload, _CHUNK_NBYTES)

    def row(self, part: str) -> Row:
        dtype = BY_NAME[f"float{8 * len(self.number)}"]
        return Row(part=part, dtype=dtype, shape=(self.count,), codec=self, nbytes=self.count * len(self.number))


def add_tensor(
    builder: IndexBuilder, name: str, tensor: View | SparseViews | QuantizedView, saved: Saved, limits: Limits
) -> int:
    """Adds a tensor to the index. Returns by how many bytes it exceeds its bytes in the file."""
    if isinstance(tensor, View):
        row, repeated = row_of(name, tensor, saved, limits)
        builder.add(name, row)
        return repeated
    form = _sparse(tensor, name) if isinstance(tensor, SparseViews) else _quantized(tensor, name)
    limits.check_rank(len(form.shape), rule="pt.limit.rank", tensor=name)
    if math.prod(size for size in form.shape if size) >= 1 << 59:  # elements have up to 16 bytes
        raise FormatError("the tensor would have 2**63 bytes or more", rule="pt.shape.product", tensor=name)
    rows: list[Row] = []
    repeated = 0
    for part, held in form.parts.items():
        if isinstance(held, _Repeated):
            row = held.row(part)
            more = row.nbytes
        else:
            row, more = row_of(name, held, saved, limits, part)
        rows.append(row)
        repeated += more
    pieces = {row.part: Piece(_known(row, name), row.nbytes) for row in rows}
    arranged = arrange(form.layout, form.shape, pieces, form.attributes, name)
    for row in rows:
        if isinstance(row.codec, Strided) and row.shape != arranged.shapes[row.part]:
            raise UnsupportedError(
                "a quantized tensor that is not contiguous is not supported; save tensor.contiguous()",
                rule="pt.quantized",
                tensor=name,
            )
    rows = [replace(row, shape=arranged.shapes[row.part]) for row in rows]
    builder.add(name, *rows, layout=arranged.layout, attributes=form.attributes)
    return repeated


def _known(row: Row, name: str) -> DType:
    if isinstance(row.dtype, str):
        raise UnsupportedError(f"a sparse tensor of {row.dtype} is not supported", rule="pt.sparse", tensor=name)
    return row.dtype


def _sparse(tensor: SparseViews, name: str) -> _Form:
    values, shape = tensor.values, tensor.shape
    hybrid = not shape or len(values.shape) != 1 or (tensor.layout == "sparse_csr" and len(shape) != 2)
    if tensor.layout not in ("sparse_coo", "sparse_csr") or hybrid:
        raise UnsupportedError(
            f"this tensor of layout {tensor.layout} is not supported (supported: COO, and CSR of two dimensions, "
            "without dense dimensions); save tensor.to_dense()",
            rule="pt.sparse",
            tensor=name,
        )
    if any(view.dtype.name not in _INTEGERS for view in tensor.indices):
        raise FormatError("indices of a sparse tensor must be int32 or int64", rule="pt.sparse.indices", tensor=name)
    if tensor.layout == "sparse_csr":
        expected = [(shape[0] + 1,), values.shape]
        parts = dict(zip(("indptr", "indices"), tensor.indices, strict=True))
    else:
        expected = [(len(shape), *values.shape)]
        parts = {"coords": tensor.indices[0]}
    if [view.shape for view in tensor.indices] != expected:
        raise FormatError("indices of a sparse tensor have another shape", rule="pt.sparse.indices", tensor=name)
    return _Form(COO if tensor.layout == "sparse_coo" else CSR, shape, {"values": values, **parts}, {})


def _quantized(tensor: QuantizedView, name: str) -> _Form:
    codes = tensor.codes
    floating = isinstance(tensor.zeros, View) and tensor.zeros.dtype.name not in _INTEGERS
    if codes.dtype.name not in _CODES or floating or not math.prod(codes.shape) or not codes.shape:
        raise UnsupportedError(
            f"a quantized tensor of {codes.dtype.name} and shape {list(codes.shape)} is not supported; save "
            "tensor.dequantize()",
            rule="pt.quantized",
            tensor=name,
        )
    data = codes._replace(dtype=ElementType(_CODES[codes.dtype.name]))
    if isinstance(tensor.scales, View) and isinstance(tensor.zeros, View):
        parts: dict[str, View | _Repeated] = {"data": data, "scales": tensor.scales, "zeros": tensor.zeros}
        attributes = describe_codes(8, tensor.axis, {"form": "tensor", "packing": "plain"})
        return _Form(QUANT_GROUP, codes.shape, parts, attributes)
    scale = float(tensor.scales)  # type: ignore[arg-type]
    with np.errstate(over="ignore"):  # a scale beyond float32 becomes infinite, which differs from it
        width = "<f4" if float(np.float32(scale)) == scale else "<f8"
    repeated = _Repeated(np.array(scale, width).tobytes(), codes.shape[0])
    attributes = describe_codes(8, 0, {"form": "implied", "value": tensor.zeros})
    return _Form(QUANT_GROUP, codes.shape, {"data": data, "scales": repeated}, attributes)
