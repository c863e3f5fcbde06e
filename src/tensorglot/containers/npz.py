"""NumPy's file of several arrays: a ZIP archive of `.npy` files, stored or deflated.

The name of a tensor is that of its member without the suffix. A member that is no
array is refused. One of pickled objects is listed and noted, its checksum compared like
any other, and never read. Written with no dates, in the
order of names, with the arrays at multiples of 64 bytes, so the same tensors give the
same bytes and can be mapped into memory.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import numpy as np

from tensorglot.containers.table import Container, ReadOptions, WriteOptions
from tensorglot.errors import FormatError, InputError, TensorglotError, TruncatedError, UnsupportedError, escape
from tensorglot.memory import cut
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import Index, Note
from tensorglot.model.payload import (
    PIECE_NBYTES,
    Buffer,
    Chunk,
    Encoded,
    Source,
    Span,
    as_bytes,
    buffers,
    inner_payload,
)
from tensorglot.model.subbyte import widened
from tensorglot.wire import npy, ziparchive
from tensorglot.wire.crc import crc32_of_rest
from tensorglot.wire.inflate import Inflater, deflate

__all__ = ["CONTAINER"]

DTYPES: dict[str, str] = npy.DTYPES
SUFFIX = ".npy"
LEVEL = 6
KEPT_NBYTES = 1 << 16
OBJECTS = "object (pickled)"
"""The element type of what is listed and never read."""


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
        for offset, nbytes in cut(payload.nbytes, PIECE_NBYTES):
            yield payload.read(offset, nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Deflated, (self._header_nbytes, self._nbytes)


@dataclass(frozen=True, slots=True)
class Pickled:
    """A codec: an array of Python objects. Only its checksum is ever looked at."""

    inner: Deflated | None
    nbytes: int

    name = "pickle"

    def below(self, payload: Encoded) -> Span | Encoded:
        return inner_payload(payload, self.inner, self.nbytes)

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        raise UnsupportedError(_PICKLE, rule="npz.objects", offset=payload.begin, tensor=payload.tensor)

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        self.decode_into(payload, 0, memoryview(b""))
        yield b""


_PICKLE = "an array of Python objects is a pickle, which is never loaded"


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
    builder = IndexBuilder(limits, "npz")
    notes: list[Note] = []
    for member in members:
        name = member.name.removesuffix(SUFFIX)
        try:
            if name == member.name:
                raise FormatError("a member that is no array", rule="npz.member")
            if _read_member(source, window, member, name, builder, limits.rank):
                notes.append(Note("npz.objects", f"'{escape(name)}': {_PICKLE}"))
        except TensorglotError as error:
            error.tensor, error.offset = name, member.begin + (error.offset or 0)
            raise
    index = builder.index("npz@1", notes=notes)
    if options.strict:
        _check_canonical(source, index)
    return index


def _read_member(
    source: Source,
    window: ziparchive.Window,
    member: ziparchive.Member,
    name: str,
    builder: IndexBuilder,
    max_rank: int,
) -> bool:
    """Adds a member to the index. True for one of pickled objects."""
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
    span = (member.begin + header_nbytes, member.end) if stored else (member.begin, member.end)
    codec = None if stored else Deflated(header_nbytes, member.nbytes)
    nbytes = member.nbytes - header_nbytes
    checksum = f"crc32:0x{crc32_of_rest(member.crc32, raw, nbytes):08X}"
    if header.objects:
        pickled = Pickled(codec, nbytes)
        builder.add(
            name,
            Row(
                dtype=OBJECTS,
                shape=header.shape,
                begin=span[0],
                end=span[1],
                codec=pickled,
                nbytes=nbytes,
                checksum=checksum,
            ),
        )
        return True
    if header.nbytes != nbytes:
        raise FormatError(f"{nbytes} bytes for an array of {header.nbytes}", rule="npz.data.size")
    builder.add_array(
        name,
        header.descr if header.dtype is None else BY_NAME[header.dtype],
        header.itemsize,
        header.shape,
        span,
        fortran_order=header.fortran_order,
        big_endian=header.big_endian,
        codec=codec,
        checksum=checksum,
    )
    return False


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
