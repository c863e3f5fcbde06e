"""A view of a storage as a row of the index: a span if it is in C order, else strided."""

from __future__ import annotations

import math

from tensorglot.containers.torchsave.files import Saved
from tensorglot.containers.torchsave.names import DTYPES, View
from tensorglot.errors import FormatError
from tensorglot.limits import Limits
from tensorglot.model.builder import Row
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.strided import Strided

__all__ = ["row_of"]


def row_of(name: str, view: View, saved: Saved, limits: Limits, part: str = "data") -> tuple[Row, int]:
    """The row, and by how many bytes it exceeds its bytes in the file: elements of stride 0 are repeated."""
    storage = saved.storages[view.storage.key]
    width = view.dtype.itemsize
    limits.check_rank(len(view.shape), rule="pt.limit.rank", tensor=name)
    if math.prod(size for size in view.shape if size) * width >= 1 << 63:
        raise FormatError("the tensor would have 2**63 bytes or more", rule="pt.shape.product", tensor=name)
    strides = tuple(stride * width for stride in view.strides)
    begin = storage.begin + view.storage.first * view.storage.itemsize + view.offset * width
    codec = Strided(view.shape, strides, width)
    extent = codec.extent(view.shape, strides, width)
    if extent and begin + extent > storage.end:
        raise FormatError(
            "tensor extends past the end of its storage", rule="pt.tensor.span", offset=storage.begin, tensor=name
        )
    begin = min(begin, storage.end)
    dtype, shape = _element(view, in_order=codec.in_order)
    whole = (begin, begin + extent) == (storage.begin, storage.end) and storage.crc32 is not None
    row = Row(
        part=part,
        dtype=dtype,
        shape=shape,
        begin=begin,
        end=begin + extent,
        codec=None if codec.in_order or isinstance(dtype, str) else codec,
        nbytes=math.prod(view.shape) * width,
        big_endian=saved.big_endian and width > 1,
        checksum=f"crc32:0x{storage.crc32:08X}" if whole else None,
    )
    return row, max(0, row.nbytes - extent)


def _element(view: View, *, in_order: bool) -> tuple[DType | str, tuple[int, ...]]:
    """The element type, or its name in torch if we have none, and the shape in such elements."""
    name = view.dtype.name
    if name == "torch.float4_e2m1fn_x2" and in_order and view.shape:
        return BY_NAME["float4_e2m1fn"], (*view.shape[:-1], 2 * view.shape[-1])
    if name in DTYPES and not BY_NAME[DTYPES[name]].packed:
        return BY_NAME[DTYPES[name]], view.shape
    return name, view.shape
