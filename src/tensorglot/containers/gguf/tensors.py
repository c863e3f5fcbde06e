"""Builds the index of a GGUF file: the dtype and span of each tensor.

Tensors are contiguous, each at the next multiple of the alignment. A tensor of unknown
type extends to the next one.
"""

from __future__ import annotations

import math
from itertools import zip_longest

from tensorglot.containers.canonical import check_padding
from tensorglot.containers.gguf.blocks import BLOCKS
from tensorglot.containers.gguf.header import Description, Header
from tensorglot.errors import FormatError, TruncatedError
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import BlockLayout
from tensorglot.model.payload import Source

__all__ = ["DTYPES", "ELEMENTS_END", "add_tensors"]

DTYPES: dict[int, str] = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16",
}  # fmt: skip
ELEMENTS_END = 1 << 60
"""A tensor has fewer elements, also without the dimensions that are zero."""
_ELEMENTS = {code: BY_NAME[name] for code, name in DTYPES.items()}


def add_tensors(builder: IndexBuilder, source: Source, header: Header, *, strict: bool) -> None:
    """Adds a row for each tensor, in the order of the header."""
    ends = _find_ends(header, source.size)
    for tensor, end in zip(header.tensors, ends, strict=True):
        _add(builder, tensor, header.data + tensor.offset, end, header)
    if strict:
        spans = sorted((header.data + tensor.offset, end) for tensor, end in zip(header.tensors, ends, strict=True))
        check_padding(source, [*spans, (source.size, source.size)], "gguf.strict.padding")


def _add(builder: IndexBuilder, tensor: Description, begin: int, end: int, header: Header) -> None:
    dtype, block = _ELEMENTS.get(tensor.type), BLOCKS.get(tensor.type)
    if dtype is not None:
        row = Row(dtype=dtype, shape=tensor.shape, begin=begin, end=end, big_endian=header.big_endian)
        builder.add(tensor.name, row)
    elif block is None or header.big_endian:
        what = f"ggml type {tensor.type}" if block is None else f"{block.name}, big-endian"
        builder.add(tensor.name, Row(dtype=what, shape=tensor.shape, begin=begin, end=end))
    else:
        row_nbytes = tensor.shape[-1] // block.elements * block.nbytes
        layout = BlockLayout(f"gguf.{block.name}", BY_NAME["float32"], tensor.shape)
        row = Row(dtype=BY_NAME["uint8"], shape=(*tensor.shape[:-1], row_nbytes), begin=begin, end=end)
        builder.add(tensor.name, row, layout=layout)


def _nbytes(tensor: Description) -> int | None:
    """Returns the size that type and shape need; None for an unknown type."""
    if math.prod([size or 1 for size in tensor.shape]) >= ELEMENTS_END:
        raise FormatError(
            "the tensor would have 2**60 elements or more",
            rule="gguf.shape.product",
            offset=tensor.at,
            tensor=tensor.name,
        )
    count = math.prod(tensor.shape)
    dtype = _ELEMENTS.get(tensor.type)
    if dtype is not None:
        return dtype.nbytes(count)
    block = BLOCKS.get(tensor.type)
    if block is None:
        return None
    if not tensor.shape or tensor.shape[-1] % block.elements:
        raise FormatError(
            f"row length is not a multiple of the {block.name} block size ({block.elements})",
            rule="gguf.shape.blocks",
            offset=tensor.at,
            tensor=tensor.name,
        )
    return count // block.elements * block.nbytes


def _find_ends(header: Header, size: int) -> list[int]:
    """Finds where each tensor ends, and checks that they are contiguous and fill the file."""
    tensors, data, alignment = header.tensors, header.data, header.alignment
    sizes = [_nbytes(tensor) for tensor in tensors]
    order = sorted(
        range(len(tensors)),
        key=[(tensor.offset, size != 0) for tensor, size in zip(tensors, sizes, strict=True)].__getitem__,
    )
    ends = [0] * len(tensors)
    expected = 0
    for position, following in zip_longest(order, order[1:]):
        tensor, nbytes = tensors[position], sizes[position]
        if tensor.offset != expected:
            raise FormatError(
                f"tensor offset is {tensor.offset}, expected {expected}: tensors must be contiguous",
                rule="gguf.offset",
                offset=tensor.at,
                tensor=tensor.name,
            )
        if nbytes is None:
            until = max(size - data, expected) if following is None else tensors[following].offset
            nbytes = until - expected
        end = ends[position] = data + expected + nbytes
        if end > size and nbytes:
            raise TruncatedError(
                f"file truncated: needs {end} bytes, has {size}",
                rule="gguf.data.end",
                offset=size,
                tensor=tensor.name,
            )
        expected = -(-(end - data) // alignment) * alignment
    if data + expected < size:
        raise FormatError("trailing bytes after the last tensor", rule="gguf.data.trailing", offset=data + expected)
    return ends
