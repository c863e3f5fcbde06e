"""NumPy's .npy: one array without a name, which is read as the tensor `data`.

`wire.npy` has the header and the documented form of types that NumPy does not know.
Written in C order and little-endian, with the bytes that NumPy writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tensorglot.containers.table import UNNAMED, Container, ReadOptions, WriteOptions, unsupported_dtype
from tensorglot.errors import FormatError, TruncatedError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk, Source
from tensorglot.model.subbyte import unpack_pieces
from tensorglot.wire import npy

__all__ = ["CONTAINER"]

DTYPES: dict[str, str] = npy.DTYPES


def read(source: Source, options: ReadOptions) -> Index:
    prefix = source.read_bytes(0, min(npy.PREFIX_NBYTES, source.size))
    begin = npy.header_nbytes(prefix, "npy")
    if begin > source.size:
        raise TruncatedError(
            f"file truncated: the header needs {begin} bytes, has {source.size}", rule="npy.header.length", offset=8
        )
    raw = source.read_bytes(0, begin)
    header = npy.parse(raw, "npy", max_rank=options.limits.rank)
    if header.objects:
        raise UnsupportedError(
            npy.PICKLED,
            rule="npy.objects",
            offset=0,
        )
    if begin + header.nbytes > source.size:
        raise TruncatedError(
            f"file truncated: needs {begin + header.nbytes} bytes, has {source.size}",
            rule="npy.data.end",
            offset=source.size,
        )
    if begin + header.nbytes < source.size:
        raise FormatError(
            f"{source.size - begin - header.nbytes} trailing bytes after the array",
            rule="npy.data.trailing",
            offset=begin + header.nbytes,
        )
    if options.strict and (header.dtype is None or raw != npy.build(header.dtype, header.shape)):
        raise FormatError("the header is not canonical", rule="npy.strict.header", offset=0)
    builder = IndexBuilder(options.limits, "npy")
    builder.add_array(
        UNNAMED,
        header.descr if header.dtype is None else BY_NAME[header.dtype],
        header.itemsize,
        header.shape,
        (begin, source.size),
        fortran_order=header.fortran_order,
        big_endian=header.big_endian,
    )
    return builder.index("npy@1")


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    dtype, shape = index.dtype(0), index.shape(0)
    if dtype is None or dtype.name not in DTYPES.values():
        raise unsupported_dtype("npy", index, 0)
    yield npy.build(dtype.name, shape)
    if dtype.packed:
        yield from unpack_pieces(archive.payload(0, index.names[0]), dtype, math.prod(shape))
    else:
        yield from archive.chunks(np.zeros(1, np.int64))


CONTAINER = Container(DTYPES, read, write)
