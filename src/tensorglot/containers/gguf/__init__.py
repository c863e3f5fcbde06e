"""GGUF: a header of typed metadata and tensor descriptions, then the tensors, each at a multiple of the alignment.

    file   = "GGUF" version u32 | tensors u64 | pairs u64 | pairs | descriptions | padding | data
    pair   = key, kind u32, value          description = name, rank u32, sizes u64 (fastest first), type u32, offset u64

Plain element types are dense tensors. Quantized types store fixed-size blocks of elements:
a tensor of layout `gguf.Q4_K` has them as bytes, row by row, which any container with
layouts can carry. Read: versions 2 and 3, of either byte order. Written: version 3.

    header, tensors   reading: the header, and where each tensor is
    values            the types of metadata
    write             writing
    blocks, encode    the block types: decoding the common ones, rounding to the simple ones
"""

from __future__ import annotations

from tensorglot.containers.canonical import check_canonical
from tensorglot.containers.gguf.header import read_header
from tensorglot.containers.gguf.tensors import DTYPES, add_tensors
from tensorglot.containers.gguf.values import find_faults
from tensorglot.containers.gguf.write import find_fault, keeps, write
from tensorglot.containers.table import Container, ReadOptions, WriteOptions
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.index import Index
from tensorglot.model.payload import Source

__all__ = ["CONTAINER"]


def read(source: Source, options: ReadOptions) -> Index:
    header = read_header(source, options.limits)
    builder = IndexBuilder(options.limits, "gguf")
    add_tensors(builder, source, header, strict=options.strict)
    index = builder.index(f"gguf@{header.version}", header.metadata)
    if options.strict:
        check_canonical(source, write(Archive(index, source), WriteOptions("3")), "gguf.strict")
    return index


CONTAINER = Container(DTYPES, read, write, keeps=keeps, metadata_faults=find_faults, tensor_fault=find_fault)
