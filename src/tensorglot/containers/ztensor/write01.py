"""Version 0.1, the document: writing, byte for byte as the packages 0.1.0 to 0.1.4 write it.

Blobs are in the order of the tensors, each at the next multiple of 64; the index follows
the last one. Metadata, tensors of several parts and dtypes that the document lacks become
ordinary entries with additional fields (see `parts`). Elements of unknown dtypes and
encodings are copied unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import RowsFirst, WriteOptions, check_header
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, MAGIC_01, NAMES_01
from tensorglot.containers.ztensor.entries import KNOWN
from tensorglot.containers.ztensor.hashing import HashingThread, RowHasher
from tensorglot.containers.ztensor.parts import METADATA, rows_read_as_parts
from tensorglot.containers.ztensor.stored import (
    Blob,
    compress,
    copy_opaque,
    decode,
    index_parts,
    is_opaque,
    prepare,
    write_blobs,
)
from tensorglot.errors import InputError, TensorglotError, UnsupportedError, escape
from tensorglot.kernels import encode_headers
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index, shape_columns
from tensorglot.model.needed_twice import read_remote
from tensorglot.model.payload import Chunk, Encoded, Memory
from tensorglot.model.tensor import Part, Tensor
from tensorglot.wire import cbor, checksums
from tensorglot.wire.prefixed import join_texts

__all__ = [
    "FIELD_FORM",
    "encode_index",
    "end_file",
    "entries_of",
    "metadata_entry",
    "place_entries",
    "reserved_fields",
    "rows_first",
    "write",
]

FIELD_FORM = cbor.with_depth(cbor.LENIENT, cbor.LENIENT.depth - 2)
"""A field is in an entry, which is in the index; readers limit the nesting of the index."""
_THEIR_CODE = np.full(256, -1, np.int16)
_THEIR_CODE[[BY_NAME[name].code for name in NAMES_01]] = range(len(NAMES_01))


def _encode_fields(
    encoding: str, endianness: str | None, checksum: str | None = None, custom: Mapping[str, Any] | None = None
) -> bytes:
    """Encodes the pairs of an entry from the key `encoding` on; custom ones are last, sorted by their UTF-8 bytes."""
    pairs: list[tuple[str, str | None]] = [
        ("encoding", encoding),
        ("data_endianness", endianness),
        ("checksum", checksum),
    ]
    known = b"".join(cbor.text(key) + cbor.text(value) for key, value in pairs if value is not None)
    ordered = sorted((custom or {}).items(), key=lambda pair: pair[0].encode())
    return known + b"".join(cbor.text(key) + cbor.encode(value, FIELD_FORM) for key, value in ordered)


_DTYPE_TEXTS = [cbor.text(name) for name in NAMES_01]
_ENDIANNESS = {name: "little" if BY_NAME[name].bits > 8 else None for name in NAMES_01}
_RAW_FIELDS = [_encode_fields("raw", _ENDIANNESS[name]) for name in NAMES_01]
"""The fields of a raw entry without a checksum, by code."""


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    codes = None
    if not options.compression.choices and not options.checksum.exceptions and not archive.find_ties():
        codes = _plain_codes(archive.index)
    return _write(archive, options) if codes is None else _write_plain(archive, codes, options.checksum.default)


def _plain_codes(index: Index) -> NDArray[np.int16] | None:
    """The dtype code of every tensor, if each is one dense, raw part of a type of 0.1, without attributes; or None."""
    codes = _THEIR_CODE[index.dtypes]
    special = index.layouts or index.attributes or index.unknown_dtypes or index.codecs or index.big_endian
    if special or index.first_rows is not None or index.metadata is not None or (codes < 0).any():
        return None
    if index.payloads is not None and Encoded in set(map(type, index.payloads)):  # the encoding may be unknown
        return None
    return codes


def _write_plain(archive: Archive, codes: NDArray[np.int16], algorithm: str | None) -> Iterator[Chunk]:
    """The fast path for raw tensors: all sizes, and so all offsets, are known, and rows are written together."""
    index, sizes = archive.index, archive.index.nbytes
    room = -(-sizes // ALIGNMENT_01) * ALIGNMENT_01
    offsets = ALIGNMENT_01 + np.cumsum(room) - room
    ends_before = np.append(len(MAGIC_01), (offsets + sizes)[:-1])[: len(sizes)]
    padding = [bytes(count) for count in range(ALIGNMENT_01)]
    tails = b""
    yield MAGIC_01
    chunks = archive.chunks(np.arange(len(sizes)), [padding[count] for count in (offsets - ends_before).tolist()])
    if algorithm is None:
        yield from chunks
    else:
        rows = RowHasher(algorithm, offsets, offsets + sizes, len(MAGIC_01))
        nbytes = int(sizes.sum())
        # A thread would keep the bytes of short rows alive; fresh memory for the next ones takes longer than hashing.
        with HashingThread(0 if checksums.is_short(algorithm, len(sizes), nbytes) else nbytes) as thread:
            for chunk in read_remote(chunks):
                thread.update(rows, chunk)
                yield chunk
            thread.finish()
        tails = _checksum_pairs(algorithm, rows.digests(), len(sizes))
    their_codes = codes.astype(np.uint8).tobytes()
    fields = [_RAW_FIELDS[code] for code in codes.tolist()]
    yield from end_file(
        encode_headers.ztensor_01(
            *join_texts(index.names),
            _DTYPE_TEXTS,
            their_codes,
            index.dims,
            index.dim_offsets,
            offsets,
            sizes,
            fields,
            tails,
        )
    )


def _checksum_pairs(algorithm: str, digests: bytes, count: int) -> bytes:
    """Encodes the key `checksum` and its text for each of `count` concatenated digests; only the digits differ."""
    if not count:
        return b""
    nbytes = len(digests) // count
    sample = str(checksums.Checksum(algorithm, digests[:nbytes]))
    before = cbor.text("checksum") + cbor.head(cbor.TEXT, len(sample)) + sample[: -2 * nbytes].encode()
    digits = (digests.hex().upper() if algorithm == "crc32c" else digests.hex()).encode()
    pairs = np.empty((count, len(before) + 2 * nbytes), np.uint8)
    pairs[:, : len(before)] = np.frombuffer(before, np.uint8)
    pairs[:, len(before) :] = np.frombuffer(digits, np.uint8).reshape(count, 2 * nbytes)
    return pairs.tobytes()


def end_file(index: bytes | bytearray) -> Iterator[Chunk]:
    """The index and its size."""
    check_header(len(index), "ztensor")
    yield index
    yield len(index).to_bytes(8, "little")


@dataclass(slots=True)
class Entry:
    """One entry of the index."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blob: Blob
    encoding: str = "raw"
    endianness: str | None = None
    custom: Mapping[str, Any] = field(default_factory=dict)
    is_part: bool = False
    """Whether it is meant to be read as a part of a tensor."""

    @property
    def looks_like_part(self) -> bool:
        """Whether a reader may take it for a part, because of its name and custom fields."""
        return self.name == f"{self.custom.get('part_of')}#{self.custom.get('part')}"


def _write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    entries = list(entries_of(archive, options))
    yield MAGIC_01
    yield from place_entries(entries, len(MAGIC_01), options.level)
    yield from end_file(encode_index(entries))


def rows_first(archive: Archive, options: WriteOptions) -> RowsFirst | None:
    """The same file in two steps, if each tensor is one part that is neither compressed nor shared."""
    index = archive.index
    special = index.layouts or index.first_rows is not None or index.unknown_dtypes or index.codecs
    if special or options.compression.choices or archive.find_ties():
        return None
    entries = list(entries_of(archive, options))
    rows = entries[len(entries) - len(index.names) :]

    def chunks() -> Iterator[Chunk]:
        yield MAGIC_01
        position = len(MAGIC_01)
        for row, entry in enumerate(entries, len(rows) - len(entries)):
            yield bytes(-position % ALIGNMENT_01)
            entry.blob.offset = position = position + -position % ALIGNMENT_01
            entry.blob.size = entry.blob.part.nbytes
            position += entry.blob.size
            if row >= 0:  # the entry of the metadata comes first, and has no bytes
                yield from archive.chunks(np.array([row]))

    def end(digests: Sequence[bytes]) -> Iterator[Chunk]:
        for entry, digest in zip(rows, digests, strict=True):
            if entry.blob.algorithm is not None:
                entry.blob.checksum = str(checksums.Checksum(entry.blob.algorithm, digest))
        yield from end_file(encode_index(entries))

    return RowsFirst(chunks(), [entry.blob.algorithm for entry in rows], end)


def place_entries(entries: Sequence[Entry], position: int, level: int | None) -> Iterator[Chunk]:
    """Yields the blobs of entries, from a position of the file on, and sets the offset of each."""
    blobs = [entry.blob for entry in entries]
    prepare(blobs)
    yield from write_blobs(blobs, _stored(blobs, level), position, ALIGNMENT_01)


def _stored(blobs: Sequence[Blob], level: int | None) -> Iterator[tuple[Blob, Iterable[Chunk]]]:
    """The chunks of each blob, in order, as they are to be stored."""
    frames = compress(blobs, level)
    for blob in blobs:
        if blob.twin is not None:
            continue
        if blob.compressed:
            yield blob, (frame.data for frame in next(frames))
        else:
            yield blob, copy_opaque(blob.part) if is_opaque(blob.part) else decode(blob.part)


def metadata_entry(metadata: Mapping[str, Any]) -> Entry:
    """The entry of an empty tensor that has the metadata of the file."""
    part = Part(BY_NAME["uint8"], (0,), Memory(np.zeros(0, np.uint8)))
    return Entry(METADATA, "uint8", (0,), Blob(part, offset=ALIGNMENT_01), custom={"metadata": dict(metadata)})


def entries_of(archive: Archive, options: WriteOptions) -> Iterator[Entry]:
    """The entries for an archive, whose blobs have no place yet."""
    index = archive.index
    if index.metadata is not None:
        yield metadata_entry(index.metadata)
    for position in range(len(index.names)):
        tensor = index_parts(archive.tensor_at(position))
        for entry in _entries_of_tensor(tensor, options.compression.of(tensor.name)):
            entry.blob.algorithm = options.checksum.of(tensor.name)
            yield entry


def _entries_of_tensor(tensor: Tensor, compression: str | None) -> Iterator[Entry]:
    part = next(iter(tensor.parts.values()))
    if tensor.layout != "dense" or (part.dtype is not None and part.dtype.name not in NAMES_01):
        yield from _part_entries(tensor, compression)
        return
    custom = dict(tensor.attributes)
    _check_custom(custom, tensor.name)
    empty = part.shape == (0,) and part.dtype is BY_NAME["uint8"]
    if tensor.name == METADATA and empty and isinstance(custom.get("metadata"), Mapping):
        raise UnsupportedError(
            "the tensor would be read as the metadata of the file; rename it",
            rule="ztensor.write.name",
            tensor=tensor.name,
        )
    yield _entry(tensor.name, part, compression, custom)


def _check_custom(custom: Mapping[str, Any], tensor: str) -> None:
    """Attributes become fields of the entry, so they must not have the name of a field of the document or packages."""
    if not all(isinstance(key, str) for key in custom):
        raise InputError("attribute keys must be text", rule="ztensor.write.attribute", tensor=tensor)
    for key, message in reserved_fields(custom).items():
        if key == "layout":
            raise UnsupportedError(message, rule="ztensor.write.layout", tensor=tensor)
        raise InputError(message, rule="ztensor.write.attribute", tensor=tensor)


def reserved_fields(attributes: Iterable[str]) -> dict[str, str]:
    """The attributes with the name of a field, and why they cannot be written."""
    reserved = dict.fromkeys(KNOWN, "a field of zTensor has this name; rename the attribute")
    reserved["layout"] = (
        "the attribute 'layout' is a field of the format to ztensor 0.1.0 to 0.1.4; rename it, or write ztensor@2"
    )
    return {key: reserved[key] for key in attributes if key in reserved}


def _entry(name: str, part: Part, compression: str | None, custom: Mapping[str, Any]) -> Entry:
    if part.dtype is None or is_opaque(part):
        return _copied_entry(name, part, custom)
    dtype = part.dtype.name
    if compression is not None:
        return Entry(name, dtype, part.shape, Blob(part, compressed=True), compression, None, custom)
    return Entry(name, dtype, part.shape, Blob(part), "raw", _ENDIANNESS.get(dtype), custom)


def _copied_entry(name: str, part: Part, custom: Mapping[str, Any]) -> Entry:
    """A part of an unknown element type or encoding, under the names that it came with."""
    dtype, payload = (part.unknown_dtype or "") if part.dtype is None else part.dtype.name, part.payload
    entry = Entry(name, dtype, part.shape, Blob(part), "raw", "big" if part.big_endian else None, custom)
    if not isinstance(payload, Encoded) or is_opaque(part) != part.checksum_decoded:
        entry.blob.checksum = part.checksum  # it covers the bytes that are written
    if isinstance(payload, Encoded) and is_opaque(part):
        entry.encoding = payload.codec.name
        if part.dtype is None and payload.nbytes != payload.end - payload.begin:
            raise UnsupportedError(
                f"ztensor@0.1 cannot record the decoded size of '{escape(dtype)}' in '{escape(entry.encoding)}'",
                rule="ztensor.write.encoding",
                tensor=name,
            )
    return entry


def _part_entries(tensor: Tensor, compression: str | None) -> Iterator[Entry]:
    """Entries for the parts of a tensor; elements without a name in 0.1 are stored as bytes."""
    for i, (name, part) in enumerate(tensor.parts.items()):
        custom: dict[str, Any] = {"part_of": tensor.name, "part": name}
        if i == 0:
            custom |= {"logical_layout": tensor.layout, "logical_shape": list(tensor.shape)}
            if tensor.attributes:
                custom["attributes"] = dict(tensor.attributes)
        entry = _entry(f"{tensor.name}#{name}", part, compression, custom)
        entry.is_part = True
        if part.dtype is not None and part.dtype.name not in NAMES_01:
            custom["logical_type"] = part.dtype.name
            entry.dtype, entry.shape, entry.endianness = "uint8", (part.nbytes,), None
        yield entry


def _encode_fields_of(entry: Entry) -> bytes:
    try:
        return _encode_fields(entry.encoding, entry.endianness, entry.blob.checksum, entry.custom)
    except TensorglotError as error:
        error.tensor = entry.custom.get("part_of", entry.name)
        raise


def encode_index(entries: Sequence[Entry]) -> bytearray:
    """Encodes the index of entries whose blobs are placed."""
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UnsupportedError(
            "two entries of the index would have this name, one of them a part of another tensor; rename one",
            rule="ztensor.write.name",
            tensor=twice,
        )
    dtypes = list(dict.fromkeys(entry.dtype for entry in entries))
    if len(dtypes) > 256:
        raise UnsupportedError(f"{len(dtypes)} element types exceed 256", rule="ztensor.write.dtype")
    dims, dim_offsets = shape_columns([entry.shape for entry in entries])
    index = encode_headers.ztensor_01(
        *join_texts(names),
        [cbor.text(dtype) for dtype in dtypes],
        bytes(dtypes.index(entry.dtype) for entry in entries),
        dims,
        dim_offsets,
        np.array([entry.blob.offset for entry in entries], np.int64),
        np.array([entry.blob.size for entry in entries], np.int64),
        [_encode_fields_of(entry) for entry in entries],
    )
    suspects = {i for i, entry in enumerate(entries) if entry.looks_like_part and not entry.is_part}
    for i in sorted(suspects & rows_read_as_parts(bytes(index)) if suspects else ()):
        raise UnsupportedError(
            "the attributes part_of and part would make it a part of another tensor; rename one of them",
            rule="ztensor.write.part",
            tensor=names[i],
        )
    return index
