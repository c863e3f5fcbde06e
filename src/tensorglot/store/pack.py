"""A pack: an immutable object that holds many blocks, with an index of its own at the end.

    pack   = magic | records | index | footer
    record = the stored form of one chunk, or of many small blocks together
    footer = offset of the index, its size (two uint64), BLAKE3 of the index, magic

A record has an encoding and, if that is a delta, the digest of the block it was made
from. The index is columns: for each block its digest (sorted), its record and its place
in the decoded record; for each record its span, decoded size, encoding, base, and what it
costs to decode: the number of deltas (depth) and the stored bytes of all of them (chain).
It is read by one request if it is small, and by two if not; its digests can be searched before
the other columns are parsed. All numbers are one zstd frame; packs of version 1, which are
read as well, have them as they are, and say where records begin.

A record is trusted for nothing: a block is compared with its digest after decoding.
Knows bytes and digests; knows nothing of what blocks mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorglot.cached import cached_property
from tensorglot.errors import FormatError, TruncatedError
from tensorglot.kernels import planes
from tensorglot.store.backend import Backend, File
from tensorglot.store.encodings import Encoding
from tensorglot.tuples import NamedTuple
from tensorglot.wire import zstd
from tensorglot.wire.cid import CHUNK_NBYTES, DIGEST_NBYTES

__all__ = ["GROUP_NBYTES", "MAX_CHAIN", "MAX_DEPTH", "NO_BASE", "PackIndex", "PackWriter", "Record", "read_index"]

GROUP_NBYTES = CHUNK_NBYTES
"""Small blocks are collected up to this size."""
MAX_DEPTH = 12
"""Deltas that are applied one after the other to decode a block."""
MAX_CHAIN = 2
"""Stored bytes that are read to decode a block, as a multiple of its size."""

_MAGIC = b"tgpack\x002"
_MAGIC_1 = b"tgpack\x001"
_FOOTER = struct.Struct("<QQ32s8s")
_COUNTS = struct.Struct("<III")
_TAIL_NBYTES = 256 << 10
"""Bytes at the end of a pack that are read first: an index that fits needs no second request."""
NO_BASE = 0xFFFFFFFF
_BLOCK_COLUMNS = (("record", "<u4"), ("begin", "<u4"), ("nbytes", "<u4"))
_RECORD_WORDS = (("stored", "<u4"), ("decoded", "<u4"), ("chain", "<u4"), ("base", "<u4"))
_RECORD_COLUMNS = (*_RECORD_WORDS, ("encoding", "u1"), ("depth", "u1"))
_RECORD_COLUMNS_1 = (("offset", "<u8"), *_RECORD_COLUMNS)
_BLOCK_NBYTES = 12
_RECORD_NBYTES = 18
_WORD = 4


class Record(NamedTuple):
    """How a block is stored: one row of the index of a pack."""

    offset: int
    stored: int
    """Bytes in the pack."""
    decoded: int
    encoding: int
    base: bytes | None
    """The digest of the block that a delta was made from."""
    depth: int
    chain: int
    begin: int
    """Offset of the block in the decoded record."""
    nbytes: int
    """Size of the block."""
    digests: memoryview | None = None
    """The digests of the index, if the encoding is NODES."""

    @property
    def grouped(self) -> bool:
        """Whether the record holds more than the block, or is encoded as if it did."""
        return self.nbytes != self.decoded or self.encoding == Encoding.NODES


class _Parsed(NamedTuple):
    """The columns of blocks, the columns of records, and the digests of bases."""

    blocks: dict[str, NDArray[Any]]
    records: dict[str, NDArray[Any]]
    bases: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class PackIndex:
    """A pack's index. Its columns are parsed when they are first used: most lookups need few packs of a store."""

    digests: NDArray[np.uint8]
    """(blocks, 32), sorted."""
    nbytes: int
    """Size of the whole pack."""
    key: str
    _parse: Callable[[], _Parsed]

    @cached_property
    def parsed(self) -> _Parsed:
        """The columns. A FormatError if they are malformed."""
        try:
            return self._parse()
        except FormatError as error:
            error.path = self.key
            raise

    @property
    def blocks(self) -> dict[str, NDArray[Any]]:
        return self.parsed.blocks

    @property
    def records(self) -> dict[str, NDArray[Any]]:
        return self.parsed.records

    @property
    def bases(self) -> NDArray[np.uint8]:
        return self.parsed.bases

    def record(self, block: int) -> Record:
        # `item` makes an int at once: a chain of ten deltas is found in 34 instead of 46 microseconds.
        row, columns = self.blocks["record"].item(block), self.records
        base, nbytes, decoded, encoding = (
            columns["base"].item(row),
            self.blocks["nbytes"].item(block),
            columns["decoded"].item(row),
            columns["encoding"].item(row),
        )
        return Record(
            columns["offset"].item(row),
            columns["stored"].item(row),
            decoded,
            encoding,
            None if base == NO_BASE else self.bases[base].tobytes(),
            columns["depth"].item(row),
            columns["chain"].item(row) if nbytes == decoded else nbytes,  # its share of a group
            self.blocks["begin"].item(block),
            nbytes,
            self.digests.reshape(-1).data if encoding == Encoding.NODES else None,
        )

    def whole_record(self, block: int) -> Record:
        """The record of a block, with the span of all its blocks."""
        record = self.record(block)
        return record._replace(begin=0, nbytes=record.decoded)

    def span(self, block: int) -> tuple[int, int]:
        """Begin and size of a block in its decoded record."""
        return self.blocks["begin"].item(block), self.blocks["nbytes"].item(block)


_FEW = 8
"""Blocks, and records, of a small pack."""


def read_index(backend: Backend, key: str) -> PackIndex:
    """Reads and checks the index of a pack."""
    tail, size = backend.read_tail(key, _TAIL_NBYTES)
    if size < len(_MAGIC) + _FOOTER.size:
        raise TruncatedError(f"pack truncated: has {size} bytes", rule="pack.footer", offset=size, path=key)
    offset, nbytes, digest, magic = _FOOTER.unpack(tail[-_FOOTER.size :])
    if magic not in (_MAGIC, _MAGIC_1):
        raise TruncatedError("pack truncated, or not a pack: no footer at its end", rule="pack.footer", path=key)
    if offset < len(_MAGIC) or offset + nbytes + _FOOTER.size != size:
        raise FormatError(
            f"the footer says that the index has {nbytes} bytes at byte {offset}, which do not end at the footer",
            rule="pack.footer",
            offset=offset,
            path=key,
        )
    inside = size - offset <= len(tail)
    data = tail[offset - size : -_FOOTER.size] if inside else backend.read(key, offset, nbytes)
    if blake3(data).digest() != digest:
        raise FormatError("the index does not match its hash", rule="pack.index", offset=offset, path=key)
    try:
        return _index(data, size, offset, key, packed=magic == _MAGIC)
    except FormatError as error:
        error.path = key
        raise


def _index(data: memoryview, size: int, end: int, key: str, *, packed: bool) -> PackIndex:
    """The index that begins at byte `end` of a pack of `size` bytes. `packed` from version 2 on."""
    if len(data) < _COUNTS.size:
        raise FormatError("the index is too short", rule="pack.index", offset=end)
    counts = _COUNTS.unpack_from(data)
    blocks, records, bases = counts
    numbers = _COUNTS.size + (blocks + bases) * DIGEST_NBYTES
    if packed:  # the counts bound what the frame may decode to
        fits = bases <= records <= blocks and numbers <= len(data)
    else:
        numbers += blocks * _BLOCK_NBYTES + records * (8 + _RECORD_NBYTES)
        fits = numbers == len(data)
    if not fits:
        raise FormatError("the index does not have the size that its counts require", rule="pack.index", offset=end)
    parse = partial(_parse if packed else _parse_1, data, counts, end)
    return PackIndex(_Columns(data, _COUNTS.size).digests(blocks), size, key, parse)


def _parse(data: memoryview, counts: tuple[int, int, int], end: int) -> _Parsed:
    blocks, records, bases = counts
    numbers = bytearray(blocks * _BLOCK_NBYTES + records * _RECORD_NBYTES)
    split = memoryview(bytearray(len(numbers)))
    frame = data[_COUNTS.size + (blocks + bases) * DIGEST_NBYTES :]
    if numbers:
        try:
            zstd.decode_whole(frame, split)
        except FormatError as error:
            raise FormatError(f"the index is malformed: {error.message}", rule="pack.index", offset=end) from error
    elif frame:
        raise FormatError("the index has more bytes than its counts require", rule="pack.index", offset=end)
    words = len(numbers) - 2 * records
    planes.merge(split[:words], _WORD, memoryview(numbers)[:words])
    numbers[words:] = split[words:]
    columns = _Columns(memoryview(numbers), 0)
    of_block = columns.take_all(_BLOCK_COLUMNS, blocks)
    of_record = columns.take_all(_RECORD_COLUMNS, records)
    ends = np.cumsum(of_record["stored"], dtype=np.uint64) + np.uint64(len(_MAGIC))
    of_record["offset"] = ends - of_record["stored"]
    of_bases = _Columns(data, _COUNTS.size + blocks * DIGEST_NBYTES).digests(bases)
    return _checked(_Parsed(of_block, of_record, of_bases), end)


def _parse_1(data: memoryview, counts: tuple[int, int, int], end: int) -> _Parsed:
    blocks, records, bases = counts
    columns = _Columns(data, _COUNTS.size + blocks * DIGEST_NBYTES)
    of_block = columns.take_all(_BLOCK_COLUMNS, blocks)
    of_record = columns.take_all(_RECORD_COLUMNS_1, records)
    return _checked(_Parsed(of_block, of_record, columns.digests(bases)), end)


class _Columns:
    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at

    def take(self, kind: str, count: int) -> NDArray[Any]:
        column = np.frombuffer(self.data, kind, count, self.at)
        self.at += column.nbytes
        return column

    def take_all(self, columns: Sequence[tuple[str, str]], count: int) -> dict[str, NDArray[Any]]:
        return {name: self.take(kind, count) for name, kind in columns}

    def digests(self, count: int) -> NDArray[np.uint8]:
        return self.take("u1", count * DIGEST_NBYTES).reshape(count, DIGEST_NBYTES)


def _checked(index: _Parsed, end: int) -> _Parsed:
    """Checks everything that later code relies on: spans inside the pack, sizes within limits, bases that exist."""
    of_block, of_record, _ = index
    records = [of_record[name] for name in ("offset", "stored", "decoded", "base", "depth")]
    blocks = [of_block[name] for name in ("record", "begin", "nbytes")]
    count = len(records[0])
    if max(count, len(blocks[0])) <= _FEW:  # numbers by themselves: a store may have thousands of small packs
        for record in zip(*(column.tolist() for column in records), strict=True):
            for what, wrong in _record_faults(end, len(index.bases), *record):
                if wrong:
                    raise FormatError(what, rule="pack.record", offset=record[0])
        decoded = records[2].tolist()
        for row, begin, nbytes in zip(*(column.tolist() for column in blocks), strict=True):
            _require_block(row < count, "names a record that does not exist")
            _require_block(begin + nbytes <= decoded[row], "lies outside its record")
        return index
    for what, wrong in _record_faults(end, len(index.bases), *records):
        if wrong.any():
            raise FormatError(what, rule="pack.record", offset=int(records[0][int(np.argmax(wrong))]))
    rows, begins, sizes = blocks
    _require_block(not (rows >= count).any(), "names a record that does not exist")
    _require_block(not (begins.astype(np.uint64) + sizes > records[2][rows]).any(), "lies outside its record")
    return index


def _record_faults(
    end: int, bases: int, offset: Any, stored: Any, decoded: Any, base: Any, depth: Any
) -> tuple[tuple[str, Any], ...]:
    """What may be wrong with a record, and whether it is; for numbers, and for columns of them."""
    stop = offset + stored
    return (
        ("a record lies outside the pack", (offset < len(_MAGIC)) | (stop > end) | (stop < offset)),
        ("a record decodes to more than a chunk", decoded > CHUNK_NBYTES),
        ("a record has more bytes than a chunk", stored > CHUNK_NBYTES),
        ("a base is not in the table of bases", (base != NO_BASE) & (base >= bases)),
        ("a chain of deltas is too long", depth > MAX_DEPTH),
        ("a delta needs a base and a depth", (base == NO_BASE) != (depth == 0)),
    )


def _require_block(valid: bool, message: str) -> None:
    if not valid:
        raise FormatError(f"a block {message}", rule="pack.block")


@dataclass(slots=True)
class PackWriter:
    """Appends records to a new pack; `finish` writes the index."""

    file: File
    position: int = 0
    digests: list[bytes] = field(default_factory=list)
    """Of the blocks so far, in the order of their records."""
    _blocks: list[tuple[int, int, int]] = field(default_factory=list)
    _records: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    _bases: dict[bytes, int] = field(default_factory=dict)

    def add(
        self,
        blocks: Sequence[tuple[bytes, int, int]],
        body: Sequence[memoryview | bytes],
        decoded: int,
        encoding: int,
        base: bytes | None = None,
        depth: int = 0,
        chain: int = 0,
    ) -> None:
        """Appends a record with its blocks, given by digest, begin and size. `chain` is that of its base."""
        if not self.position:
            self.position = self.file.write([memoryview(_MAGIC)])
        row, stored = len(self._records), sum(map(len, body))
        known = NO_BASE if base is None else self._bases.setdefault(base, len(self._bases))
        self._records.append((stored, decoded, min(chain + stored, NO_BASE), known, encoding, depth))
        for digest, begin, nbytes in blocks:
            self.digests.append(digest)
            self._blocks.append((row, begin, nbytes))
        self.position = self.file.write([memoryview(part) for part in body])

    def finish(self) -> PackIndex:
        """Writes the index and the footer; returns the index."""
        order = sorted(range(len(self.digests)), key=self.digests.__getitem__)
        data = b"".join(
            [
                _COUNTS.pack(len(order), len(self._records), len(self._bases)),
                *(self.digests[i] for i in order),
                *self._bases,
                _numbers_frame([self._blocks[i] for i in order], self._records),
            ]
        )
        footer = _FOOTER.pack(self.position, len(data), blake3(data).digest(), _MAGIC)
        self.file.write([memoryview(data), memoryview(footer)])
        return _index(memoryview(data), self.position + len(data) + len(footer), self.position, "", packed=True)


def _numbers_frame(blocks: Sequence[tuple[int, ...]], records: Sequence[tuple[int, ...]]) -> bytes:
    """The frame of the index: the planes of the columns of words, then the columns of bytes."""
    of_record = _transposed(records, _RECORD_COLUMNS)
    words = b"".join((_transposed(blocks, _BLOCK_COLUMNS).tobytes(), of_record[: len(_RECORD_WORDS)].tobytes()))
    split = bytearray(len(words))
    planes.split(words, _WORD, split)
    rest = of_record[len(_RECORD_WORDS) :].astype("u1").tobytes()
    return zstd.compress(bytes(split) + rest, level=1, checksum=False) if blocks else b""


def _transposed(rows: Sequence[tuple[int, ...]], columns: Sequence[tuple[str, str]]) -> NDArray[np.uint32]:
    return np.ascontiguousarray(np.array(rows, "<u4").reshape(len(rows), len(columns)).T)
