"""NumPy's .npz: a ZIP archive of `.npy` files, stored or deflated.

Metadata is one JSON object in the comment of the archive, which NumPy ignores. The name
of a tensor is that of its member without the suffix. A member that is not an
array is refused. An array of pickled objects is listed with a note and verified by its
checksum, but never read. Written deterministically: no dates, sorted by name, arrays at
multiples of 64 bytes, so that they can be memory-mapped.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from json import dumps
from typing import Any, cast

import numpy as np

from tensorglot.cached import cached_property
from tensorglot.containers.canonical import check_canonical
from tensorglot.containers.table import Container, Fault, ReadOptions, WriteOptions, unsupported_dtype
from tensorglot.errors import FormatError, LimitError, TensorglotError, TruncatedError, UnsupportedError, escape
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.deferred import Outline
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import Index, Note
from tensorglot.model.needed_twice import NeededTwice
from tensorglot.model.payload import (
    Buffer,
    Chunk,
    Encoded,
    Source,
    Span,
    Undecodable,
    buffers,
    inner_payload,
    read_ahead,
    read_many_of,
    read_pieces,
)
from tensorglot.model.subbyte import unpack_pieces
from tensorglot.threads import Lock
from tensorglot.wire import json, npy, ziparchive
from tensorglot.wire.crc import crc32_of_rest
from tensorglot.wire.inflate import Inflater, deflate

__all__ = ["CONTAINER"]

DTYPES: dict[str, str] = npy.DTYPES
SUFFIX = ".npy"
LEVEL = 6
DEPTH = 32
"""Most levels of JSON in metadata."""
KEPT_NBYTES = 1 << 16
_HEADERS_NBYTES = 1 << 16
"""What compressed headers may have in any file."""
OBJECTS = "object (pickled)"
"""dtype of arrays that are listed but never read."""


class Deflated:
    """The codec of one member: a header and an array, in one deflate stream.

    A stream has no random access. The inflater of the last read is kept, so that reads in
    order do not decode from the beginning again.
    """

    name = "deflate"

    def __init__(self, header_nbytes: int, nbytes: int) -> None:
        self._header_nbytes = header_nbytes
        self._nbytes = nbytes
        self._lock = Lock()
        self._at: Inflater | None = None

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        begin = self._header_nbytes + offset
        with self._lock:
            inflater, self._at = self._at, None
            if inflater is None or inflater.position > begin:
                inflater = _inflater(payload, self._nbytes)
            inflater.skip(begin - inflater.position)
            inflater.read_into(out)
            if inflater.position < self._nbytes:
                self._at = inflater

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        return read_pieces(payload)

    def __reduce__(self) -> tuple[Any, ...]:
        return Deflated, (self._header_nbytes, self._nbytes)


@dataclass(frozen=True, slots=True)
class Pickled(Undecodable):
    """The codec of an array of Python objects: only its checksum is ever read."""

    inner: Deflated | None
    nbytes: int

    name = "pickle"

    def below(self, payload: Encoded) -> Span | Encoded:
        return inner_payload(payload, self.inner, self.nbytes)

    def refuse(self, payload: Encoded) -> UnsupportedError:
        return UnsupportedError(npy.PICKLED, rule="npz.objects", offset=payload.begin, tensor=payload.tensor)


def _inflater(payload: Encoded, nbytes: int) -> Inflater:
    """An inflater for a whole stream."""

    def read(at: int, wanted: int) -> memoryview:
        return payload.source.read(payload.begin + at, wanted)

    stored = payload.end - payload.begin
    many = payload.source.concurrency is not None
    return Inflater(read_ahead(read, stored) if many else read, stored, nbytes, "npz", payload.tensor)


def _header_inflater(source: Source, window: ziparchive.Window, member: ziparchive.Member, tensor: str) -> Inflater:
    """An inflater for the beginning of a stream, which the window may already have."""

    def read(at: int, wanted: int) -> bytes | memoryview:
        return window.up_to(member.begin + at, wanted) or source.read(member.begin + at, wanted)

    return Inflater(read, member.end - member.begin, member.nbytes, "npz", tensor)


def read(source: Source, options: ReadOptions) -> Index:
    index = _Outline(source, options).index()
    if options.strict:
        check_canonical(source, write(Archive(index, source), WriteOptions("1")), "npz.strict")
    return index


def outline(source: Source, options: ReadOptions) -> Outline | None:
    found = _Outline(source, options)
    return found if found.can_wait else None


class _Outline:
    """The directory of the archive. The type and shape of an array are in its own header."""

    format = "npz@1"

    def __init__(self, source: Source, options: ReadOptions) -> None:
        limits = options.limits
        self._source = source
        self._limits = limits
        self._end = ziparchive.find_comment(source.read_bytes, source.size)
        self._directory = ziparchive.read_directory(
            source.read_bytes,
            self._end,
            rule="npz",
            max_members=limits.tensors_or(),
            max_directory=limits.header_or(),
            comment_nbytes=source.size - self._end,
        )
        self._notes: list[Note] = []
        self.metadata = _read_metadata(source, self._end, self._notes)
        self._window = ziparchive.Window(source.read_bytes, self._end, read_many_of(source))

    @property
    def can_wait(self) -> bool:
        """Whether the headers may be read later: they are far apart, and all members are arrays by their names."""
        return self._directory.is_sparse() and all(name.endswith(SUFFIX) for name in self._directory.names)

    @cached_property
    def names(self) -> list[str]:
        return [name.removesuffix(SUFFIX) for name in self._directory.names]

    def index(self, chosen: Sequence[int] | None = None) -> Index:
        positions = range(len(self._directory.names)) if chosen is None else chosen
        builder = IndexBuilder(self._limits, "npz")
        notes = list(self._notes)
        allowance = _Allowance(max(_HEADERS_NBYTES, self._limits.header_ratio * self._source.size))
        for member in self._directory.locate(self._window, positions):
            name = member.name.removesuffix(SUFFIX)
            try:
                if _read_member(self._source, self._window, member, name, builder, self._limits.rank, allowance):
                    notes.append(Note("npz.objects", f"'{escape(name)}': {npy.PICKLED}"))
            except TensorglotError as error:
                error.tensor, error.offset = name, member.begin + (error.offset or 0)
                raise
        return builder.index(self.format, self.metadata, notes=notes)


class _Allowance:
    """The bytes that compressed headers may have together."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def take(self, nbytes: int) -> None:
        self._left -= nbytes
        if self._left < 0:
            raise LimitError(
                "the compressed headers have far more bytes than the file; pass a larger Limits.header_ratio",
                rule="npz.limit.header",
            )


def _read_metadata(source: Source, begin: int, notes: list[Note]) -> dict[str, Any] | None:
    """The JSON object in the comment, which begins at `begin`. A comment that does not begin with `{` is not ours."""
    comment = source.read_bytes(begin, source.size - begin)
    if not comment:
        return None
    if not comment.lstrip(b" \t\r\n").startswith(b"{"):
        notes.append(Note("npz.comment", "the ZIP comment is not a JSON object: it is not read as metadata"))
        return None
    try:
        return cast("dict[str, Any]", json.parse(comment, depth=DEPTH, rule="npz.metadata"))
    except FormatError as error:
        error.offset = begin + (error.offset or 0)
        raise


def find_faults(metadata: Mapping[str, Any], version: str) -> dict[str, str]:
    """Values that JSON cannot represent; all of them if together they exceed a comment."""
    faults = {}
    for key, value in metadata.items():
        try:
            _encode({key: value})
        except (TypeError, ValueError, RecursionError) as error:
            faults[key] = str(error)
    kept = {key: value for key, value in metadata.items() if key not in faults}
    nbytes = len(_encode(kept))
    if nbytes > ziparchive.COMMENT_NBYTES:
        fault = f"as JSON the metadata has {nbytes} bytes, a ZIP comment holds {ziparchive.COMMENT_NBYTES}"
        faults |= dict.fromkeys(kept, fault)
    return faults


def _encode(metadata: Mapping[str, Any]) -> bytes:
    _check_json(metadata, DEPTH)
    # `dumps` knows no other mapping than a dict.
    return dumps(dict(metadata), ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def _check_json(value: Any, depth: int) -> None:
    """Raises for values that `dumps` would change silently, or `parse` would refuse."""
    if depth < 0:
        raise ValueError(f"nested deeper than {DEPTH} levels")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a JSON key is text, not {type(key).__name__}")
            _check_json(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_json(item, depth - 1)


def edit(archive: Archive, metadata: Mapping[str, Any]) -> Iterator[Chunk]:
    """The archive with its comment replaced: nothing before the end record changes."""
    source = cast("Source", archive.source)
    end = ziparchive.find_comment(source.read_bytes, source.size) - ziparchive.END_NBYTES
    yield Span(source, 0, end)
    record = source.read_bytes(end, ziparchive.END_NBYTES)
    yield ziparchive.with_comment(record, _encode(metadata))


def _read_member(
    source: Source,
    window: ziparchive.Window,
    member: ziparchive.Member,
    name: str,
    builder: IndexBuilder,
    max_rank: int,
    allowance: _Allowance,
) -> bool:
    """Adds a member to the index; returns whether it has pickled objects."""
    if name == member.name:
        raise FormatError(f"ZIP member is not an array: its name does not end in {SUFFIX}", rule="npz.member")
    stored = member.method == ziparchive.STORED
    if stored:
        prefix = window(member.begin, min(npy.PREFIX_NBYTES, member.nbytes))
    else:
        inflater = _header_inflater(source, window, member, name)
        prefix = _read(inflater, min(npy.PREFIX_NBYTES, member.nbytes))
    header_nbytes = npy.header_nbytes(prefix, "npz")
    if header_nbytes > member.nbytes:
        raise TruncatedError(
            f"member truncated: the header needs {header_nbytes} bytes, has {member.nbytes}", rule="npz.header.length"
        )
    if stored:
        raw = window(member.begin, header_nbytes)
    else:
        allowance.take(header_nbytes)
        raw = prefix[:header_nbytes] + _read(inflater, max(0, header_nbytes - len(prefix)))
    header = npy.parse(raw, "npz", max_rank=max_rank)
    span = (member.begin + header_nbytes, member.end) if stored else (member.begin, member.end)
    codec = None if stored else Deflated(header_nbytes, member.nbytes)
    nbytes = member.nbytes - header_nbytes
    # The CRC-32 of ZIP covers header and array; that of the array alone follows from it, without reading the array.
    checksum = f"crc32:0x{crc32_of_rest(member.crc32, raw, nbytes):08X}"
    if header.objects:
        row = Row(dtype=OBJECTS, shape=header.shape, begin=span[0], end=span[1], codec=Pickled(codec, nbytes))
        builder.add(name, replace(row, nbytes=nbytes, checksum=checksum))
        return True
    if header.nbytes != nbytes:
        raise FormatError(f"dtype and shape need {header.nbytes} bytes, the member has {nbytes}", rule="npz.data.size")
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


def _read(inflater: Inflater, nbytes: int) -> bytes:
    out = bytearray(nbytes)
    inflater.read_into(memoryview(out))
    return bytes(out)


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    level = LEVEL if options.level is None else options.level
    order = sorted(range(len(index.names)), key=index.names.__getitem__)
    for row in order:
        _check_writable(index, row)
    writer = ziparchive.Writer()
    for row in order:
        header = npy.build(index.dtype_name(row), index.shape(row))
        name = index.names[row] + SUFFIX
        if options.compression.of(index.names[row]) is None:
            yield from _store(archive, row, name, header, writer)
        else:
            yield from _deflate(archive, row, name, header, writer, level)
    metadata = index.metadata
    yield writer.finish(b"" if metadata is None else _encode(metadata))


def _check_writable(index: Index, row: int) -> None:
    dtype, name = index.dtype(row), index.names[row]
    if dtype is None or dtype.name not in DTYPES.values():
        raise unsupported_dtype("npz", index, row)
    fault = find_fault(name, (), None, "1")
    if fault is not None:
        raise fault.error("npz", name)


def find_fault(name: str, shape: tuple[int, ...], dtype: DType | None, version: str) -> Fault | None:
    """Why a tensor cannot be written."""
    if not ziparchive.is_safe(name + SUFFIX) or len(name.encode()) > 60_000:
        return Fault("name", "unsafe path, or name too long for ZIP")
    return None


def _data(archive: Archive, row: int) -> Iterator[Chunk]:
    """Yields the stored bytes of an array."""
    index = archive.index
    dtype = cast("DType", index.dtype(row))
    payload = archive.payload(row, index.names[row])
    if dtype.packed:
        return iter(unpack_pieces(payload, dtype, math.prod(index.shape(row))))
    return archive.chunks(np.array([row])) if row in index.big_endian else payload.chunks()


def _store(archive: Archive, row: int, name: str, header: bytes, writer: ziparchive.Writer) -> Iterator[Chunk]:
    """Writes a stored member. Its checksum precedes the data, so the data is read twice unless it is small."""
    crc32, nbytes = zlib.crc32(header), len(header)
    small = int(archive.index.nbytes[row]) <= KEPT_NBYTES
    kept: list[Chunk] = []
    data = NeededTwice(archive.payload(row, archive.index.names[row]), partial(_data, archive, row))
    for buffer in buffers(data.once()):
        crc32 = zlib.crc32(buffer, crc32)
        nbytes += len(buffer)
        if small:
            kept.append(buffer)
    yield writer.begin(name, ziparchive.STORED, crc32, nbytes, nbytes)
    yield header
    yield from kept if small else data.again()
    yield writer.end(crc32, nbytes, nbytes)


def _deflate(
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


CONTAINER = Container(
    DTYPES, read, write, outline=outline, edit=edit, metadata_faults=find_faults, tensor_fault=find_fault
)
