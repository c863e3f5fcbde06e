"""Builds the index of a GGUF file: the dtype and span of each tensor.

Tensors are contiguous, each at the next multiple of the alignment. A tensor of unknown
type extends to the next one.
"""

from __future__ import annotations

import math

from tensorglot.containers.canonical import check_padding
from tensorglot.containers.gguf.blocks import BLOCKS
from tensorglot.containers.gguf.header import Description, Header
from tensorglot.errors import FormatError, TruncatedError
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Layout
from tensorglot.model.payload import Source
from tensorglot.model.types.algebra import dense

__all__ = ["DTYPES", "add_tensors"]

DTYPES: dict[int, str] = {
    0: "float32", 1: "float16", 24: "int8", 25: "int16", 26: "int32", 27: "int64", 28: "float64", 30: "bfloat16",
}  # fmt: skip


def add_tensors(builder: IndexBuilder, source: Source, header: Header, *, strict: bool) -> None:
    """Adds a row for each tensor, in the order of the header."""
    ends = _find_ends(header, source.size)
    for description in header.tensors:
        begin = header.data + description.offset
        _add(builder, description, begin, ends[description.name], header)
    if strict:
        spans = sorted((header.data + tensor.offset, ends[tensor.name]) for tensor in header.tensors)
        check_padding(source, [*spans, (source.size, source.size)], "gguf.strict.padding")


def _add(builder: IndexBuilder, tensor: Description, begin: int, end: int, header: Header) -> None:
    block = BLOCKS.get(tensor.type)
    if tensor.type in DTYPES:
        dtype = BY_NAME[DTYPES[tensor.type]]
        row = Row(dtype=dtype, shape=tensor.shape, begin=begin, end=end, big_endian=header.big_endian)
        builder.add(tensor.name, row)
    elif block is None or header.big_endian:
        what = f"ggml type {tensor.type}" if block is None else f"{block.name}, big-endian"
        builder.add(tensor.name, Row(dtype=what, shape=tensor.shape, begin=begin, end=end))
    else:
        row_nbytes = tensor.shape[-1] // block.elements * block.nbytes
        layout = Layout(f"gguf.{block.name}", dense(BY_NAME["float32"], tensor.shape))
        row = Row(dtype=BY_NAME["uint8"], shape=(*tensor.shape[:-1], row_nbytes), begin=begin, end=end)
        builder.add(tensor.name, row, layout=layout)


def _nbytes(tensor: Description) -> int | None:
    """Returns the size that type and shape need; None for an unknown type."""
    if math.prod(size for size in tensor.shape if size) >= 1 << 60:
        raise FormatError(
            "the tensor would have 2**60 elements or more",
            rule="gguf.shape.product",
            offset=tensor.at,
            tensor=tensor.name,
        )
    count = math.prod(tensor.shape)
    if tensor.type in DTYPES:
        return BY_NAME[DTYPES[tensor.type]].nbytes(count)
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


def _find_ends(header: Header, size: int) -> dict[str, int]:
    """Finds where each tensor ends, and checks that they are contiguous and fill the file."""
    sizes = {tensor.name: _nbytes(tensor) for tensor in header.tensors}
    order = sorted(header.tensors, key=lambda tensor: (tensor.offset, sizes[tensor.name] != 0))
    ends: dict[str, int] = {}
    expected = 0
    for i, tensor in enumerate(order):
        if tensor.offset != expected:
            raise FormatError(
                f"tensor offset is {tensor.offset}, expected {expected}: tensors must be contiguous",
                rule="gguf.offset",
                offset=tensor.at,
                tensor=tensor.name,
            )
        nbytes = sizes[tensor.name]
        if nbytes is None:
            following = order[i + 1].offset if i + 1 < len(order) else max(size - header.data, tensor.offset)
            nbytes = following - tensor.offset
        end = header.data + tensor.offset + nbytes
        if end > size and nbytes:
            raise TruncatedError(
                f"file truncated: needs {end} bytes, has {size}",
                rule="gguf.data.end",
                offset=size,
                tensor=tensor.name,
            )
        ends[tensor.name] = end
        expected = -(-(end - header.data) // header.alignment) * header.alignment
    if header.data + expected < size:
        raise FormatError(
            "trailing bytes after the last tensor", rule="gguf.data.trailing", offset=header.data + expected
        )
    return ends
