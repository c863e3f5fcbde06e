"""NumPy's file of several arrays: a ZIP archive of `.npy` files, stored or deflated.

The name of a tensor is that of its member without the suffix. A member that is no
array is refused, and so is one of pickled objects. Written with no dates, in the
order of names, with the arrays at multiples of 64 bytes, so the same tensors give the
same bytes and can be mapped into memory.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Any, cast

import numpy as np

from tensorglot.containers.table import Container, ReadOptions, WriteOptions
from tensorglot.errors import FormatError, InputError, TensorglotError, TruncatedError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.arranged import add_array
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import Index
from tensorglot.model.payload import PIECE_NBYTES, Buffer, Chunk, Encoded, Source, Span, as_bytes, buffers
from tensorglot.model.rows import Rows
from tensorglot.model.subbyte import widened
from tensorglot.wire import npy, ziparchive
from tensorglot.wire.crc import crc32_of_rest
from tensorglot.wire.inflate import Inflater, deflate

__all__ = ["CONTAINER"]

DTYPES: dict[str, str] = npy.DTYPES
SUFFIX = ".npy"
LEVEL = 6
KEPT_NBYTES = 1 << 16


class Deflated:
    """A codec: the data of an array behind its header, in one deflate stream. Belongs to one member."""

    name = "deflate"

    def __init__(self, header_nbytes: int, nbytes: int) -> None:
        self._header_nbytes = header_nbytes
        self._nbytes = nbytes
        self._lock = threading.Lock()
        self._at: Inflater | None = None

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        begin = self._header_nbytes + offset
        with self._lock:
            inflater, self._at = self._at, None
            if inflater is None or inflater.position > begin:
                inflater = _inflater(payload.source, payload.begin, payload.end, self._nbytes, payload.tensor)
            inflater.skip(begin - inflater.position)
            inflater.read_into(out)
            if inflater.position < self._nbytes:
                self._at = inflater

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        for offset in range(0, payload.nbytes, PIECE_NBYTES):
            yield payload.read(offset, min(PIECE_NBYTES, payload.nbytes - offset))

    def __reduce__(self) -> tuple[Any, ...]:
        return Deflated, (self._header_nbytes, self._nbytes)


def _inflater(source: Source, begin: int, end: int, nbytes: int, tensor: str) -> Inflater:
    return Inflater(lambda at, wanted: source.read(begin + at, wanted), end - begin, nbytes, "npz", tensor)


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits

    def fetch(offset: int, nbytes: int) -> bytes:
        return source.read_bytes(offset, nbytes)

    members = ziparchive.scan(
        fetch, source.size, rule="npz", max_members=limits.tensors_or(), max_directory=limits.header_or()
    )
    window = ziparchive.Window(fetch, source.size)
    rows = Rows(limits, "npz")
    for member in members:
        name = member.name.removesuffix(SUFFIX)
        try:
            if name == member.name:
                raise FormatError("a member that is no array", rule="npz.member")
            _read_member(source, window, member, name, rows, limits.rank)
        except TensorglotError as error:
            error.tensor, error.offset = name, member.begin + (error.offset or 0)
            raise
    index = rows.index("npz@1")
    if options.strict:
        _check_canonical(source, index)
    return index


def _read_member(
    source: Source, window: ziparchive.Window, member: ziparchive.Member, name: str, rows: Rows, max_rank: int
) -> None:
    stored = member.method == ziparchive.STORED
    if stored:
        prefix = window(member.begin, min(npy.PREFIX_NBYTES, member.nbytes))
    else:
        inflater = _inflater(source, member.begin, member.end, member.nbytes, name)
        prefix = _inflated(inflater, min(npy.PREFIX_NBYTES, member.nbytes))
    header_nbytes = npy.header_nbytes(prefix, "npz")
    if header_nbytes > member.nbytes:
        raise TruncatedError(f"a header of {header_nbytes} bytes", rule="npz.header.length")
    if stored:
        raw = window(member.begin, header_nbytes)
    else:
        raw = prefix[:header_nbytes] + _inflated(inflater, max(0, header_nbytes - len(prefix)))
    header = npy.parse(raw, "npz", max_rank=max_rank)
    if header_nbytes + header.nbytes != member.nbytes:
        raise FormatError(
            f"{member.nbytes - header_nbytes} bytes for an array of {header.nbytes}", rule="npz.data.size"
        )
    add_array(
        rows,
        name,
        header.descr if header.dtype is None else BY_NAME[header.dtype],
        header.itemsize,
        header.shape,
        (member.begin + header_nbytes, member.end) if stored else (member.begin, member.end),
        fortran_order=header.fortran_order,
        big_endian=header.big_endian,
        codec=None if stored else Deflated(header_nbytes, member.nbytes),
        checksum=f"crc32:0x{crc32_of_rest(member.crc32, raw, header.nbytes):08X}",
    )


def _inflated(inflater: Inflater, nbytes: int) -> bytes:
    out = bytearray(nbytes)
    inflater.read_into(memoryview(out))
    return bytes(out)


def _check_canonical(source: Source, index: Index) -> None:
    """One byte string for a value: the file is the one that we would write, stored."""
    position = 0
    if index.unknown_dtypes:
        raise FormatError("elements of a type that a writer has not", rule="npz.strict", offset=0)
    for chunk in write(Archive(index, source), WriteOptions("1")):
        if isinstance(chunk, Span) and chunk.source is source and chunk.begin == position:
            position = chunk.end
            continue
        ours = bytes(chunk.read(0, chunk.nbytes) if isinstance(chunk, Span) else as_bytes(chunk))
        if position + len(ours) > source.size or source.read_bytes(position, len(ours)) != ours:
            raise FormatError("not the bytes that a writer makes", rule="npz.strict", offset=position)
        position += len(ours)
    if position != source.size:
        raise FormatError("not the bytes that a writer makes", rule="npz.strict", offset=position)


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    if options.compression.default is None:
        level = None
    else:
        level = LEVEL if options.level is None else options.level
        if not 0 <= level <= 9:
            raise InputError(f"a level of deflate is 0 to 9, not {level}", rule="npz.write.level")
    order = sorted(range(len(index.names)), key=index.names.__getitem__)
    for row in order:
        _check_writable(index, row)
    writer = ziparchive.Writer()
    for row in order:
        dtype = cast("DType", index.dtype(row))
        header = npy.build(dtype.name, index.shape(row))
        name = index.names[row] + SUFFIX
        if level is None:
            yield from _stored(archive, row, name, header, writer)
        else:
            yield from _deflated(archive, row, name, header, writer, level)
    yield writer.finish()


def _check_writable(index: Index, row: int) -> None:
    dtype, name = index.dtype(row), index.names[row]
    if dtype is None or dtype.name not in DTYPES.values():
        raise UnsupportedError(f"NumPy has no {index.dtype_name(row)}", rule="npz.write.dtype", tensor=name)
    if not ziparchive.is_safe(name + SUFFIX) or len(name.encode()) > 60_000:
        raise UnsupportedError("a name that is a path, or too long for ZIP", rule="npz.write.name", tensor=name)


def _data(archive: Archive, row: int) -> Iterator[Chunk]:
    """The bytes of an array as they are stored."""
    index = archive.index
    dtype = cast("DType", index.dtype(row))
    payload = archive.payload(row, index.names[row])
    if dtype.packed:
        return iter(widened(payload, dtype, math.prod(index.shape(row))))
    return archive.chunks(np.array([row])) if row in index.big_endian else payload.chunks()


def _stored(archive: Archive, row: int, name: str, header: bytes, writer: ziparchive.Writer) -> Iterator[Chunk]:
    """The checksum stands before the data, so the data is looked at twice; a little is kept meanwhile."""
    crc32, nbytes = zlib.crc32(header), len(header)
    small = int(archive.index.nbytes[row]) <= KEPT_NBYTES
    kept: list[Chunk] = []
    for buffer in buffers(_data(archive, row)):
        crc32 = zlib.crc32(buffer, crc32)
        nbytes += len(buffer)
        if small:
            kept.append(buffer)
    yield writer.begin(name, ziparchive.STORED, crc32, nbytes, nbytes)
    yield header
    yield from kept if small else _data(archive, row)
    yield writer.end(crc32, nbytes, nbytes)


def _deflated(
    archive: Archive, row: int, name: str, header: bytes, writer: ziparchive.Writer, level: int
) -> Iterator[Chunk]:
    crc32 = nbytes = stored = 0

    def counted() -> Iterator[Buffer]:
        nonlocal crc32, nbytes
        for buffer in chain([header], buffers(_data(archive, row))):
            crc32 = zlib.crc32(buffer, crc32)
            nbytes += len(buffer)
            yield buffer

    yield writer.begin_stream(name, ziparchive.DEFLATED)
    for piece in deflate(counted(), level):
        stored += len(piece)
        yield piece
    yield writer.end(crc32, stored, nbytes)


CONTAINER = Container(DTYPES, read, write)
