"""Writes GGUF 3, little-endian, with the same bytes as the `gguf` package for the same tensors and metadata.

Tensors stay in their order, and each is padded to the alignment. Plain types and blocks are
written unchanged; names are not mapped to an architecture's. What llama.cpp refuses to read
(five dimensions, names of 64 bytes) is refused here.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tensorglot.containers.gguf.blocks import BLOCKS
from tensorglot.containers.gguf.header import alignment_of
from tensorglot.containers.gguf.tensors import DTYPES, ELEMENTS_END
from tensorglot.containers.gguf.values import encode_pairs, encode_text
from tensorglot.containers.table import Fault, WriteOptions, check_header, unsupported_dtype
from tensorglot.errors import FormatError, InputError, UnsupportedError, escape
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import DType
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk
from tensorglot.model.types.algebra import leading

__all__ = ["find_fault", "keeps", "write"]

NAME_NBYTES = 63
RANK = 4
_TYPES = {name: number for number, name in DTYPES.items()}
_BLOCK_TYPES = {f"gguf.{block.name}": number for number, block in BLOCKS.items()}
_UNKNOWN = re.compile(r"ggml type (\d{1,9})")
"""The reader's name for a type that it does not know."""


def keeps(version: str, unknown: str) -> bool:
    """Whether elements of an unknown type can be written: those read from GGUF, whose type number is in the name."""
    return _UNKNOWN.fullmatch(unknown) is not None


def find_fault(name: str, shape: tuple[int, ...], dtype: DType | None, version: str) -> Fault | None:
    """Why a tensor cannot be written."""
    nbytes = len(name.encode())
    if nbytes > NAME_NBYTES:
        return Fault("name", f"a name of {nbytes} bytes; GGUF allows {NAME_NBYTES}")
    if len(shape) > RANK:
        return Fault("rank", f"{len(shape)} dimensions; GGUF allows {RANK}")
    if math.prod([size or 1 for size in shape]) >= ELEMENTS_END:
        return Fault("shape", f"shape {list(shape)} would have 2**60 elements or more without its zeros")
    return None


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    metadata = index.metadata or {}
    alignment = _alignment(metadata)
    descriptions = []
    offset = 0
    for position in range(len(index.names)):
        descriptions.append(_describe(index, position) + struct.pack("<Q", offset))
        nbytes = _nbytes(index, position)
        offset += nbytes + -nbytes % alignment
    head = b"GGUF" + struct.pack("<IQQ", 3, len(descriptions), len(metadata)) + encode_pairs(metadata)
    header = head + b"".join(descriptions)
    header += bytes(-len(header) % alignment)
    check_header(len(header), "gguf")
    yield header
    for position in range(len(index.names)):
        rows = index.rows(position)
        yield from archive.chunks(np.arange(rows.start, rows.stop))
        yield bytes(-_nbytes(index, position) % alignment)


def _alignment(metadata: Mapping[str, Any]) -> int:
    try:
        return alignment_of(metadata)
    except FormatError as error:
        raise InputError(error.message, rule="gguf.write.alignment") from None


def _nbytes(index: Index, position: int) -> int:
    return sum(int(index.nbytes[row]) for row in index.rows(position))


def _describe(index: Index, position: int) -> bytes:
    """Name, dimensions and type of a tensor, without its offset."""
    name, row = index.names[position], index.rows(position)[0]
    layout = index.layouts.get(position)
    if layout is None:
        shape, number = index.shape(row), _number(index, row)
    else:
        shape, number = leading(layout.type)[0], _block_number(index, position, layout.name)
    fault = find_fault(name, shape, None, "3")
    if fault is not None:
        raise fault.error("gguf", name)
    return encode_text(name) + struct.pack(f"<I{len(shape)}QI", len(shape), *reversed(shape), number)


def _number(index: Index, row: int) -> int:
    dtype = index.dtype(row)
    if dtype is None:
        unknown = _UNKNOWN.fullmatch(index.unknown_dtypes[row])
        if unknown is not None and index.format.startswith("gguf@"):
            return int(unknown[1])
    elif dtype.name in _TYPES:
        return _TYPES[dtype.name]
    raise unsupported_dtype("gguf", index, row)


def _block_number(index: Index, position: int, layout: str) -> int:
    """The type number of blocks, which must be as many as the shape needs."""
    number = _BLOCK_TYPES.get(layout)
    name, shape = index.names[position], leading(index.layouts[position].type)[0]
    if number is None:
        raise UnsupportedError(f"GGUF has no type '{escape(layout)}'", rule="gguf.write.layout", tensor=name)
    block = BLOCKS[number]
    count = int(np.prod(shape, dtype=object))
    if not shape or shape[-1] % block.elements or _nbytes(index, position) != count // block.elements * block.nbytes:
        raise UnsupportedError(
            f"the data is not the {block.name} blocks that the shape needs", rule="gguf.write.blocks", tensor=name
        )
    return number
