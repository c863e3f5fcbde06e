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
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import WriteOptions, check_header
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, MAGIC_01, NAMES_01
from tensorglot.containers.ztensor.entries import KNOWN
from tensorglot.containers.ztensor.parts import METADATA, rows_read_as_parts
from tensorglot.containers.ztensor.stored import compressed, copied, decoded, index_parts, is_opaque
from tensorglot.errors import InputError, UnsupportedError, escape
from tensorglot.kernels import ztensor_index
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index, shape_columns
from tensorglot.model.payload import Chunk, Encoded, Memory, Span, as_bytes, buffers, place
from tensorglot.model.tensor import Part, Tensor
from tensorglot.wire import cbor, checksums

__all__ = ["Blob", "blobs_of", "encode_blobs", "ended", "write"]

LEVEL = 1
"""Of compression, unless the caller says another. Higher ones gain next to nothing on floats."""

_DENSE = cbor.text("dense")
_THEIR_CODE = np.full(256, -1, np.int16)
_THEIR_CODE[[BY_NAME[name].code for name in NAMES_01]] = range(len(NAMES_01))


@dataclass(frozen=True, slots=True)
class _Entries:
    """The columns of the index, but for the places of the blobs."""

    names: Sequence[str]
    dtypes: list[bytes]
    """CBOR texts, by code."""
    codes: bytes
    dims: NDArray[np.int64]
    dim_offsets: NDArray[np.int64]
    layouts: list[bytes]
    fields: list[bytes]
    """Encoded pairs from the key `encoding` on."""


def _encode_index(entries: _Entries, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytearray:
    """The index, in the order and form of the packages."""
    return ztensor_index.encode_entries(
        entries.names, entries.dtypes, entries.codes, entries.dims, entries.dim_offsets, offsets, sizes,
        entries.layouts, entries.fields,
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
    if options.compression.default is None and options.checksum.default is None:
        plain = None if archive.find_ties() else _entries_of(archive.index)
    return _write(archive, options) if plain is None else _write_plain(archive, plain)


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
        [_DENSE] * len(codes),
        [by_code[code] for code in codes.tolist()],
    )


def _endianness(dtype: str) -> str | None:
    return "little" if BY_NAME[dtype].bits > 8 else None


def _write_plain(archive: Archive, entries: _Entries) -> Iterator[Chunk]:
    """Every size is known before, and so every place."""
    sizes = archive.index.nbytes
    room = -(-sizes // ALIGNMENT_01) * ALIGNMENT_01
    offsets = ALIGNMENT_01 + np.cumsum(room) - room
    ends_before = np.append(len(MAGIC_01), (offsets + sizes)[:-1])[: len(sizes)]
    padding = [bytes(count) for count in range(ALIGNMENT_01)]
    yield MAGIC_01
    yield from archive.chunks(np.arange(len(sizes)), [padding[count] for count in (offsets - ends_before).tolist()])
    index = _encode_index(entries, offsets, sizes)
    yield from ended(index)


def ended(index: bytes | bytearray) -> Iterator[Chunk]:
    """The index and its size, which end a file."""
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
    layout: bytes = _DENSE
    custom: Mapping[str, Any] = field(default_factory=dict)
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
    algorithm = options.checksum.default if options.checksum.default in ("crc32c", "sha256") else None
    yield MAGIC_01
    position = len(MAGIC_01)
    for blob, chunks in zip(blobs, _stored(blobs, options), strict=True):
        if blob.shared is not None:
            first = blobs[blob.shared]
            blob.offset, blob.size, blob.checksum = first.offset, first.size, first.checksum
            continue
        yield bytes(-position % ALIGNMENT_01)
        blob.offset = position = position + -position % ALIGNMENT_01
        hasher = None if algorithm is None or blob.name == METADATA else checksums.hasher(algorithm)
        for chunk in chunks if hasher is None else buffers(chunks):
            if hasher is not None:
                hasher.update(as_bytes(chunk))
            position += chunk.nbytes if isinstance(chunk, Span) else len(chunk)
            yield chunk
        blob.size = position - blob.offset
        if algorithm is not None and hasher is not None:
            blob.checksum = str(checksums.Checksum(algorithm, hasher.digest()))
    index = encode_blobs(blobs)
    yield from ended(index)


def _stored(blobs: Sequence[Blob], options: WriteOptions) -> Iterator[Iterable[Chunk]]:
    """The chunks of each blob, in order, as they are to be stored."""
    squeezed = [
        blob.part if blob.encoding == "zstd" and blob.shared is None and not is_opaque(blob.part) else None
        for blob in blobs
    ]
    level = LEVEL if options.level is None else options.level
    frames = groupby(
        compressed(squeezed, level, checksum=options.checksum.default == "frame"), key=lambda frame: frame[0]
    )
    for blob, part in zip(blobs, squeezed, strict=True):
        if part is not None:
            yield (frame for _, _, frame in next(frames)[1])
        elif blob.shared is not None:
            yield ()
        else:
            yield copied(blob.part) if is_opaque(blob.part) else decoded(blob.part)


def _share(blobs: Sequence[Blob]) -> None:
    """Tensors that were one blob where they come from are one again."""
    first: dict[tuple[object, ...], int] = {}
    for position, blob in enumerate(blobs):
        if not blob.part.nbytes:
            continue
        key = (*place(blob.part.payload), blob.part.big_endian, blob.dtype)
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
        part = next(iter(tensor.parts.values()))
        if tensor.layout == "dense" and (part.dtype is None or part.dtype.name in NAMES_01):
            layout, custom = _custom(tensor)
            empty = part.shape == (0,) and part.dtype is BY_NAME["uint8"]
            if tensor.name == METADATA and empty and isinstance(custom.get("metadata"), Mapping):
                raise UnsupportedError(
                    "it would be read as the metadata of the file", rule="ztensor.write.name", tensor=tensor.name
                )
            yield _blob(tensor.name, part, options, layout, custom)
        else:
            yield from _part_blobs(tensor, options)


def _custom(tensor: Tensor) -> tuple[bytes, dict[str, Any]]:
    """The layout and the custom fields of an entry, from the attributes of its tensor."""
    custom = dict(tensor.attributes)
    layout = custom.pop("layout", "dense")
    for key in custom:
        if not isinstance(key, str):
            raise InputError("the key of an attribute is text", rule="ztensor.write.attribute", tensor=tensor.name)
        if key in KNOWN:
            raise InputError(
                f"'{key}' is a field of zTensor, not an attribute", rule="ztensor.write.attribute", tensor=tensor.name
            )
    return cbor.encode(layout, cbor.LENIENT), custom


def _blob(name: str, part: Part, options: WriteOptions, layout: bytes, custom: Mapping[str, Any]) -> Blob:
    if part.dtype is None or is_opaque(part):
        return _copied_blob(name, part, layout, custom)
    encoding = options.compression.default or "raw"
    endianness = _endianness(part.dtype.name) if encoding == "raw" else None
    return Blob(name, part.dtype.name, part.shape, part, encoding, endianness, layout, custom)


def _copied_blob(name: str, part: Part, layout: bytes, custom: Mapping[str, Any]) -> Blob:
    """Elements or an encoding that we do not know, in the words that they came with."""
    dtype = (part.unknown_dtype or "") if part.dtype is None else part.dtype.name
    blob = Blob(name, dtype, part.shape, part, "raw", "big" if part.big_endian else None, layout, custom)
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


def _part_blobs(tensor: Tensor, options: WriteOptions) -> Iterator[Blob]:
    """Entries for the parts of a tensor; elements without a name in 0.1 are stored as bytes."""
    for i, (name, part) in enumerate(tensor.parts.items()):
        custom: dict[str, Any] = {"part_of": tensor.name, "part": name}
        if i == 0:
            custom |= {"logical_layout": tensor.layout, "logical_shape": list(tensor.shape)}
            if tensor.attributes:
                custom["attributes"] = dict(tensor.attributes)
        blob = _blob(f"{tensor.name}#{name}", part, options, _DENSE, custom)
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
        [blob.layout for blob in blobs],
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
