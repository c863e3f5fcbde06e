"""Version 0.1, the document: writing, byte for byte as the packages 0.1.0 to 0.1.4 write it.

Blobs in the order of the tensors, each at the next multiple of 64, then the index
directly behind the last one. What the document has no place for becomes ordinary
entries that say what they are (see `parts`): metadata, tensors of several parts,
elements that 0.1 has no name for. Elements and encodings that we do not know are
copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import WriteOptions, check_header
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, MAGIC_01, NAMES_01
from tensorglot.containers.ztensor.entries import KNOWN
from tensorglot.containers.ztensor.hashing import HashingThread, RowHasher
from tensorglot.containers.ztensor.parts import METADATA, rows_read_as_parts
from tensorglot.containers.ztensor.stored import LEVEL, Squeeze, compress, copied, decoded, index_parts, is_opaque
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.kernels import ztensor_index
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index, shape_columns
from tensorglot.model.payload import Chunk, Encoded, Memory, Span, place
from tensorglot.model.tensor import Part, Tensor
from tensorglot.wire import cbor, checksums
from tensorglot.wire.prefixed import join_texts

__all__ = ["Blob", "blobs_of", "encode_blobs", "end_file", "write"]

_HASHES = ("crc32c", "sha256")
"""Checksums with a place in the index. That of a zstd frame stands in the frame."""
_THEIR_CODE = np.full(256, -1, np.int16)
_THEIR_CODE[[BY_NAME[name].code for name in NAMES_01]] = range(len(NAMES_01))


@dataclass(frozen=True, slots=True)
class _Entries:
    """The columns of the index, but for the places of the blobs and their checksums."""

    names: Sequence[str]
    dtypes: list[bytes]
    """CBOR texts, by code."""
    codes: bytes
    dims: NDArray[np.int64]
    dim_offsets: NDArray[np.int64]
    fields: list[bytes]
    """Encoded pairs from the key `encoding` on."""


def _encode_index(entries: _Entries, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytearray:
    """The index, in the order and form of the packages."""
    return ztensor_index.encode_entries(
        *join_texts(entries.names), entries.dtypes, entries.codes, entries.dims, entries.dim_offsets, offsets, sizes,
        entries.fields,
    )  # fmt: skip


def _fields_of(
    encoding: str, endianness: str | None, checksum: str | None = None, custom: Mapping[str, Any] | None = None
) -> bytes:
    """The pairs of an entry from the key `encoding` on; custom ones stand last, in the order of their bytes."""
    pairs: list[tuple[str, str | None]] = [
        ("encoding", encoding),
        ("data_endianness", endianness),
        ("checksum", checksum),
    ]
    known = b"".join(cbor.text(key) + cbor.text(value) for key, value in pairs if value is not None)
    ordered = sorted((custom or {}).items(), key=lambda pair: pair[0].encode())
    return known + b"".join(cbor.text(key) + cbor.encode(value, cbor.LENIENT) for key, value in ordered)


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    plain = None
    if not options.compression.choices and not options.checksum.exceptions:
        plain = None if archive.find_ties() else _entries_of(archive.index)
    return _write(archive, options) if plain is None else _write_plain(archive, plain, options.checksum.default)


def _entries_of(index: Index) -> _Entries | None:
    """All entries at once, if every tensor is one dense, raw part of a type that 0.1 has, and nothing more."""
    codes = _THEIR_CODE[index.dtypes]
    special = index.layouts or index.attributes or index.unknown_dtypes or index.codecs or index.big_endian
    if special or index.first_rows is not None or index.metadata is not None or (codes < 0).any():
        return None
    by_code = [_fields_of("raw", _endianness(name)) for name in NAMES_01]
    return _Entries(
        index.names,
        [cbor.text(name) for name in NAMES_01],
        codes.astype(np.uint8).tobytes(),
        index.dims,
        index.dim_offsets,
        [by_code[code] for code in codes.tolist()],
    )


def _endianness(dtype: str) -> str | None:
    return "little" if BY_NAME[dtype].bits > 8 else None


def _write_plain(archive: Archive, entries: _Entries, algorithm: str | None) -> Iterator[Chunk]:
    """Every size is known before, and so every place."""
    sizes = archive.index.nbytes
    room = -(-sizes // ALIGNMENT_01) * ALIGNMENT_01
    offsets = ALIGNMENT_01 + np.cumsum(room) - room
    ends_before = np.append(len(MAGIC_01), (offsets + sizes)[:-1])[: len(sizes)]
    padding = [bytes(count) for count in range(ALIGNMENT_01)]
    yield MAGIC_01
    chunks = archive.chunks(np.arange(len(sizes)), [padding[count] for count in (offsets - ends_before).tolist()])
    if algorithm is None:
        yield from chunks
    else:
        rows = RowHasher(algorithm, offsets, offsets + sizes, len(MAGIC_01))
        with HashingThread(int(sizes.sum())) as thread:
            for chunk in chunks:
                thread.update(rows, chunk)
                yield chunk
            thread.finish()
        pairs = _checksum_pairs(algorithm, rows.digests)
        entries.fields[:] = map(add, entries.fields, pairs)
    yield from end_file(_encode_index(entries, offsets, sizes))


def _checksum_pairs(algorithm: str, digests: list[bytes]) -> list[bytes]:
    """The key `checksum` and its text, which but for the digits is always the same."""
    if not digests:
        return []
    sample = str(checksums.Checksum(algorithm, digests[0]))
    before = cbor.text("checksum") + cbor.head(cbor.TEXT, len(sample)) + sample[: -2 * len(digests[0])].encode()
    if algorithm == "crc32c":
        return [before + b"%08X" % int.from_bytes(digest, "big") for digest in digests]
    return [before + digest.hex().encode() for digest in digests]


def end_file(index: bytes | bytearray) -> Iterator[Chunk]:
    """The index and its size."""
    check_header(len(index), "ztensor")
    yield index
    yield len(index).to_bytes(8, "little")


@dataclass(slots=True)
class Blob:
    """One entry of the index, and the part whose bytes it has."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    part: Part
    encoding: str
    endianness: str | None
    custom: Mapping[str, Any] = field(default_factory=dict)
    wanted: str | None = None
    """The checksum to be computed."""
    checksum: str | None = None
    offset: int = 0
    size: int = 0
    shared: int | None = None
    """The position of an entry with the same blob."""
    is_part: bool = False
    """It is meant to be read as a part of a tensor."""

    @property
    def looks_like_part(self) -> bool:
        """Its custom fields say that it is a part, whatever is meant."""
        return self.name == f"{self.custom.get('part_of')}#{self.custom.get('part')}"


def _write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    blobs = list(blobs_of(archive, options))
    _share(blobs)
    hashers = {
        i: checksums.hasher(blob.wanted)
        for i, blob in enumerate(blobs)
        if blob.wanted in _HASHES and blob.shared is None
    }
    yield MAGIC_01
    position = len(MAGIC_01)
    with HashingThread(sum(blobs[i].part.nbytes for i in hashers)) as thread:
        for i, chunks in enumerate(_stored(blobs, LEVEL if options.level is None else options.level)):
            blob = blobs[i]
            if blob.shared is not None:
                continue
            yield bytes(-position % ALIGNMENT_01)
            blob.offset = position = position + -position % ALIGNMENT_01
            for chunk in chunks:
                if i in hashers:
                    thread.update(hashers[i], chunk)
                position += chunk.nbytes if isinstance(chunk, Span) else len(chunk)
                yield chunk
            blob.size = position - blob.offset
        thread.finish()
    for i, hasher in hashers.items():
        blobs[i].checksum = str(checksums.Checksum(str(blobs[i].wanted), hasher.digest()))
    for blob in blobs:
        if blob.shared is not None:
            first = blobs[blob.shared]
            blob.offset, blob.size, blob.checksum = first.offset, first.size, first.checksum
    yield from end_file(encode_blobs(blobs))


def _stored(blobs: Sequence[Blob], level: int) -> Iterator[Iterable[Chunk]]:
    """The chunks of each blob, in order, as they are to be stored."""
    jobs = [
        Squeeze(blob.part, checksum=blob.wanted == "frame")
        if blob.encoding == "zstd" and blob.shared is None and not is_opaque(blob.part)
        else None
        for blob in blobs
    ]
    frames = compress(jobs, level)
    for blob, job in zip(blobs, jobs, strict=True):
        if job is not None:
            yield (frame.data for frame in next(frames))
        elif blob.shared is not None:
            yield ()
        else:
            yield copied(blob.part) if is_opaque(blob.part) else decoded(blob.part)


def _share(blobs: Sequence[Blob]) -> None:
    """Tensors that were one blob where they come from are one again, if they are to be stored alike."""
    first: dict[tuple[object, ...], int] = {}
    for position, blob in enumerate(blobs):
        if not blob.part.nbytes:
            continue
        key = (*place(blob.part.payload), blob.part.big_endian, blob.dtype, blob.encoding, blob.wanted)
        if first.setdefault(key, position) != position:
            blob.shared = first[key]


def blobs_of(archive: Archive, options: WriteOptions) -> Iterator[Blob]:
    """The entries that an archive becomes."""
    index = archive.index
    if index.metadata is not None:
        part = Part(BY_NAME["uint8"], (0,), Memory(np.zeros(0, np.uint8)))
        yield Blob(METADATA, "uint8", (0,), part, "raw", None, custom={"metadata": dict(index.metadata)})
    for position in range(len(index.names)):
        tensor = index_parts(archive.tensor_at(position))
        for blob in _blobs_of_tensor(tensor, options.compression.of(tensor.name)):
            blob.wanted = options.checksum.of(tensor.name)
            yield blob


def _blobs_of_tensor(tensor: Tensor, compression: str | None) -> Iterator[Blob]:
    part = next(iter(tensor.parts.values()))
    if tensor.layout != "dense" or (part.dtype is not None and part.dtype.name not in NAMES_01):
        yield from _part_blobs(tensor, compression)
        return
    custom = dict(tensor.attributes)
    _check_custom(custom, tensor.name)
    empty = part.shape == (0,) and part.dtype is BY_NAME["uint8"]
    if tensor.name == METADATA and empty and isinstance(custom.get("metadata"), Mapping):
        raise UnsupportedError(
            "it would be read as the metadata of the file", rule="ztensor.write.name", tensor=tensor.name
        )
    yield _blob(tensor.name, part, compression, custom)


def _check_custom(custom: Mapping[str, Any], tensor: str) -> None:
    """Attributes are fields of the entry, beside those that the document has, and one that the packages have."""
    for key in custom:
        if not isinstance(key, str):
            raise InputError("the key of an attribute is text", rule="ztensor.write.attribute", tensor=tensor)
        if key in KNOWN:
            raise InputError(
                f"'{key}' is a field of zTensor, not an attribute", rule="ztensor.write.attribute", tensor=tensor
            )
        if key == "layout":
            raise UnsupportedError(
                "an attribute cannot be called 'layout': to ztensor 0.1.0 to 0.1.4 that is a field of the format; "
                "give it another name, or write ztensor@2",
                rule="ztensor.write.layout",
                tensor=tensor,
            )


def _blob(name: str, part: Part, compression: str | None, custom: Mapping[str, Any]) -> Blob:
    if part.dtype is None or is_opaque(part):
        return _copied_blob(name, part, custom)
    endianness = _endianness(part.dtype.name) if compression is None else None
    return Blob(name, part.dtype.name, part.shape, part, compression or "raw", endianness, custom)


def _copied_blob(name: str, part: Part, custom: Mapping[str, Any]) -> Blob:
    """Elements or an encoding that we do not know, in the words that they came with."""
    dtype = (part.unknown_dtype or "") if part.dtype is None else part.dtype.name
    blob = Blob(name, dtype, part.shape, part, "raw", "big" if part.big_endian else None, custom)
    payload = part.payload
    if not isinstance(payload, Encoded) or is_opaque(part) != part.checksum_decoded:
        blob.checksum = part.checksum  # it is of the bytes that are written
    if isinstance(payload, Encoded) and is_opaque(part):
        blob.encoding = payload.codec.name
        if part.dtype is None and payload.nbytes != payload.end - payload.begin:
            raise UnsupportedError(
                f"ztensor@0.1 has no place for the decoded size of '{escape(dtype)}' in '{escape(blob.encoding)}'",
                rule="ztensor.write.encoding",
                tensor=name,
            )
    return blob


def _part_blobs(tensor: Tensor, compression: str | None) -> Iterator[Blob]:
    """Entries for the parts of a tensor; elements without a name in 0.1 are stored as bytes."""
    for i, (name, part) in enumerate(tensor.parts.items()):
        custom: dict[str, Any] = {"part_of": tensor.name, "part": name}
        if i == 0:
            custom |= {"logical_layout": tensor.layout, "logical_shape": list(tensor.shape)}
            if tensor.attributes:
                custom["attributes"] = dict(tensor.attributes)
        blob = _blob(f"{tensor.name}#{name}", part, compression, custom)
        blob.is_part = True
        if part.dtype is not None and part.dtype.name not in NAMES_01:
            custom["logical_type"] = part.dtype.name
            blob.dtype, blob.shape, blob.endianness = "uint8", (part.nbytes,), None
        yield blob


def encode_blobs(blobs: Sequence[Blob]) -> bytearray:
    """The index of blobs that have their places."""
    names = [blob.name for blob in blobs]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UnsupportedError("two entries of one name", rule="ztensor.write.name", tensor=twice)
    dtypes = list(dict.fromkeys(blob.dtype for blob in blobs))
    if len(dtypes) > 256:
        raise UnsupportedError("more than 256 element types", rule="ztensor.write.dtype")
    dims, dim_offsets = shape_columns([blob.shape for blob in blobs])
    entries = _Entries(
        names,
        [cbor.text(dtype) for dtype in dtypes],
        bytes(dtypes.index(blob.dtype) for blob in blobs),
        dims,
        dim_offsets,
        [_fields_of(blob.encoding, blob.endianness, blob.checksum, blob.custom) for blob in blobs],
    )
    offsets = np.array([blob.offset for blob in blobs], np.int64)
    index = _encode_index(entries, offsets, np.array([blob.size for blob in blobs], np.int64))
    if any(blob.looks_like_part and not blob.is_part for blob in blobs):
        for i in sorted(rows_read_as_parts(bytes(index))):
            if blobs[i].looks_like_part and not blobs[i].is_part:
                raise UnsupportedError(
                    "it would be read as a part of another tensor", rule="ztensor.write.part", tensor=blobs[i].name
                )
    return index
