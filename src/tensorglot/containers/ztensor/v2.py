"""Version 2 (draft 4): reading.

    file   = magic, blobs at multiples of 4096, the manifest among them, footer
    footer = u64 offset, u64 length, u64 XXH3-64 of the manifest, u32 version, u32 reserved, magic

The manifest is deterministic CBOR, and a file in any other form is refused. Digests
cover the decoded bytes. A footer without a manifest is a shard of another file, and
holds no tensors of its own. What stood in the file before something was appended is
not referred to, and so not seen (§2.5).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import xxhash
from numpy.typing import NDArray

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.ztensor.blobs import Region, check_blobs, refuse_first
from tensorglot.containers.ztensor.codecs import EXPANSION, TOO_SMALL, Opaque, SeekableZstd
from tensorglot.containers.ztensor.constants import (
    ALIGNMENT_2,
    FOOTER_2,
    FOOTER_FORM,
    LOGICAL_2,
    MAGIC_2,
    OVER,
    SEEKABLE,
    STORAGE_2,
)
from tensorglot.containers.ztensor.entries import SIZE_END
from tensorglot.containers.ztensor.lazy import metadata_at
from tensorglot.containers.ztensor.objects import Part, Spec, check_attributes, known_keys, read_object
from tensorglot.containers.ztensor.parts import layout_attributes
from tensorglot.containers.ztensor.shards import Shard, ShardSource, check_shard_name, read_shards
from tensorglot.containers.ztensor.splice import Object, Row, Scanned, splice, structural
from tensorglot.containers.ztensor.strict import check_2
from tensorglot.errors import FormatError, IntegrityError, LimitError, TruncatedError
from tensorglot.kernels import cbor_check, ztensor_index
from tensorglot.limits import Limits
from tensorglot.model.dtypes import DType
from tensorglot.model.index import Index, Layout
from tensorglot.model.layouts import COO, CSR, LAYOUTS, Piece, arrange
from tensorglot.model.names import Names
from tensorglot.model.payload import Source
from tensorglot.wire import cbor

__all__ = ["MANIFEST_NBYTES", "manifest_bytes", "read"]

MANIFEST_NBYTES = 1 << 30

_WRONG_SIZE = "the part has not the size that shape and type ask for"
_STORAGE = [name.encode() for name in STORAGE_2]
_LOGICAL = [name.encode() for name in LOGICAL_2]
_STORAGE_ROWS = list(STORAGE_2.values())
_LOGICAL_ROWS = [dtype for dtype, _ in LOGICAL_2.values()]
_OUR_CODE = np.array([row.code for row in (*_STORAGE_ROWS, *_LOGICAL_ROWS)], np.uint8)
_BITS = np.array([row.bits for row in (*_STORAGE_ROWS, *_LOGICAL_ROWS)], np.int64)
_STORED_AS = np.array([list(STORAGE_2).index(storage) for _, storage in LOGICAL_2.values()], np.uint8)


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The bytes of the manifest, where they stand, and what its root says."""

    data: bytes
    begin: int
    objects: ztensor_index.Columns
    shards: Mapping[str, Shard]
    attributes_begin: int | None


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    found = manifest_bytes(source, limits)
    if found is None:
        if options.strict:
            raise FormatError("a shard of another file", rule="ztensor.strict.shard", offset=source.size - FOOTER_2)
        return splice(Scanned.nothing(0), {}, SeekableZstd(), format="ztensor@2", data=b"", metadata=None)
    manifest = _root(*found, limits)
    sources = {name: ShardSource(shard, options.path, options.open_file) for name, shard in manifest.shards.items()}
    columns = manifest.objects
    names = Names(manifest.data, columns.name_begins, columns.name_ends)
    scanned = _scanned(columns, names, manifest.begin)
    specs = {
        position: _spec(manifest, int(columns.entries[position]), limits)
        for position in np.flatnonzero(columns.flags == ztensor_index.SLOW_PATH).tolist()
    }
    _check_places(scanned, columns, specs, manifest, source.size)
    index = splice(
        scanned,
        {position: _placed(spec, manifest, sources) for position, spec in specs.items()},
        SeekableZstd(),
        format="ztensor@2",
        data=manifest.data,
        metadata=metadata_at(manifest.data, manifest.attributes_begin),
        checksums_decoded=True,
    )
    if options.strict:
        check_2(source, index, manifest.data, manifest.begin)
    return index


def manifest_bytes(source: Source, limits: Limits) -> tuple[bytes, int] | None:
    """The bytes of the manifest, which match their hash, and where they stand; None in a data shard."""
    if source.size < len(MAGIC_2) + FOOTER_2:
        raise TruncatedError("too short for a magic number and a footer", rule="ztensor.size", offset=0)
    at = source.size - FOOTER_2
    offset, length, digest, version, _, magic = FOOTER_FORM.unpack(source.read_bytes(at, FOOTER_2))
    if magic != MAGIC_2:
        raise FormatError("no magic number at the end", rule="ztensor.footer.magic", offset=source.size - 8)
    if version != 2:
        raise FormatError(f"version {version}, not 2", rule="ztensor.footer.version", offset=at + 24)
    if length == 0:
        if offset or digest:
            raise FormatError("a footer of no manifest", rule="ztensor.manifest.bounds", offset=at)
        return None
    if length > MANIFEST_NBYTES:
        raise LimitError(f"a manifest of {length} bytes", rule="ztensor.manifest.large", offset=at + 8)
    if length > limits.header_nbytes:
        raise LimitError(
            f"a manifest of {length} bytes is beyond Limits.header_nbytes", rule="ztensor.limit.index", offset=at + 8
        )
    if offset % ALIGNMENT_2 or offset < ALIGNMENT_2:
        raise FormatError("a manifest that is not aligned", rule="ztensor.blob.alignment", offset=at)
    if offset + length > at:
        raise TruncatedError("a manifest beyond its file", rule="ztensor.manifest.bounds", offset=at)
    data = source.read_bytes(offset, length)
    if xxhash.xxh3_64_intdigest(data) != digest:
        raise IntegrityError("the manifest has another hash", rule="ztensor.manifest.hash", offset=offset)
    return data, offset


def _root(data: bytes, begin: int, limits: Limits) -> _Manifest:
    cbor.check(data, cbor.with_depth(cbor.DETERMINISTIC, min(32, limits.cbor_depth)), base=begin)
    cursor = cbor.Cursor(data, base=begin, rule="ztensor.entry.kind")
    shards: Mapping[str, Shard] = {}
    objects = attributes = None
    for key in known_keys(cursor, "manifest"):
        if key == "objects":
            objects = _objects(cursor, limits)
        elif key == "shards":
            shards = read_shards(cursor)
        elif key == "attributes":
            attributes = check_attributes(cursor)
        else:
            cursor.skip()
    if objects is None:
        raise FormatError("a manifest without 'objects'", rule="ztensor.entry.missing", offset=begin)
    return _Manifest(data, begin, objects, shards, attributes)


def _objects(cursor: cbor.Cursor, limits: Limits) -> ztensor_index.Columns:
    count = cursor.count("objects", cbor.MAP)
    if count > limits.tensors_or():
        raise LimitError(
            f"{count} tensors, more than Limits.tensors allows", rule="ztensor.limit.tensors", offset=cursor.base
        )
    columns = ztensor_index.Columns(count, len(cursor.data))
    ztensor_index.scan_objects(
        cursor.data, cursor.pos, count, cbor_check.skip, limits.rank, 1024, _STORAGE, _LOGICAL,
        [SEEKABLE.encode()], columns,
    )  # fmt: skip
    cursor.pos = int(columns.entries[count])
    return columns


def _scanned(columns: ztensor_index.Columns, names: Names, base: int) -> Scanned:
    """The columns of the kernel in our terms, the size of every part checked (§5.1)."""
    plain = columns.flags != ztensor_index.SLOW_PATH
    kinds = columns.dtypes

    def label(row: int) -> tuple[str, int]:
        return names[row], base + int(columns.entries[row])

    if columns.types.any():
        logical = columns.types > 0
        wrong = logical & (_STORED_AS[np.maximum(columns.types, 1) - 1] != columns.dtypes)
        refuse_first(plain & wrong, label, "ztensor.entry.type", "a type over another dtype")
        kinds = np.where(logical, columns.types - 1 + len(_STORAGE_ROWS), columns.dtypes)
    bits = _BITS[kinds]
    too_many = plain & (columns.counts > (SIZE_END - 8) // bits)
    refuse_first(too_many, label, "ztensor.blob.size", "more bytes than 2**63")
    expected = (np.where(too_many, 0, columns.counts) * bits + 7) // 8
    encoded = columns.encodings > 0
    nbytes = np.where(encoded, columns.decoded, columns.sizes)
    refuse_first(plain & (expected != nbytes), label, "ztensor.blob.size", _WRONG_SIZE)
    if encoded.any():
        small = plain & encoded & (nbytes // EXPANSION > columns.sizes)
        refuse_first(small, label, "ztensor.blob.expansion", TOO_SMALL)
    return Scanned(
        names=names,
        dtypes=_OUR_CODE[kinds],
        dims=columns.dims[: columns.dim_offsets[-1]].copy(),
        dim_offsets=columns.dim_offsets,
        begins=columns.offsets,
        ends=columns.offsets + np.minimum(columns.sizes, SIZE_END - 1 - columns.offsets),
        encoded=encoded,
        nbytes=nbytes,
        big_endian=np.zeros(len(names), np.bool_),
        checksum_begins=columns.checksum_begins,
        checksum_sizes=columns.checksum_sizes,
        attributes={},
    )


def _spec(manifest: _Manifest, begin: int, limits: Limits) -> Spec:
    cursor = cbor.Cursor(manifest.data, base=manifest.begin, pos=begin, rule="ztensor.entry.kind")
    spec = read_object(cursor, limits)
    for part in spec.parts:
        if part.encoding == SEEKABLE and part.nbytes // EXPANSION > part.length:
            raise FormatError(TOO_SMALL, rule="ztensor.blob.expansion", offset=part.position, tensor=spec.name)
        if part.dtype not in STORAGE_2:
            raise FormatError("no such dtype", rule="ztensor.entry.dtype", offset=part.position, tensor=spec.name)
        if part.type in LOGICAL_2 and LOGICAL_2[part.type][1] != part.dtype:
            raise FormatError(
                "a type over another dtype", rule="ztensor.entry.type", offset=part.position, tensor=spec.name
            )
        if part.shard is not None:
            check_shard_name(part.shard, part.position)
            if part.shard not in manifest.shards:
                raise FormatError(
                    "a shard that is not in the table",
                    rule="ztensor.shard.unknown",
                    offset=part.position,
                    tensor=spec.name,
                )
    return spec


def _check_places(
    scanned: Scanned, columns: ztensor_index.Columns, specs: Mapping[int, Spec], manifest: _Manifest, size: int
) -> None:
    """§2.4, for the blobs of this file, the manifest among them, and those of each shard."""
    plain = np.flatnonzero(columns.flags != ztensor_index.SLOW_PATH)
    elsewhere: dict[str | None, list[tuple[Part, str]]] = {None: []}
    for spec in specs.values():
        for part in spec.parts:
            elsewhere.setdefault(part.shard, []).append((part, spec.name))

    for shard, parts in elsewhere.items():
        own = plain if shard is None else plain[:0]
        file_size = size if shard is None else manifest.shards[shard].size
        spans = [(part.offset, part.offset + part.length) for part, _ in parts]
        if shard is None:
            spans.append((manifest.begin, manifest.begin + len(manifest.data)))
        extra: NDArray[np.int64] = np.array(spans, np.int64).reshape(-1, 2)

        def label(
            i: int, own: NDArray[np.int64] = own, parts: list[tuple[Part, str]] = parts
        ) -> tuple[str | None, int]:
            if i < len(own):
                return scanned.names[int(own[i])], manifest.begin + int(columns.entries[own[i]])
            if i - len(own) < len(parts):
                part, name = parts[i - len(own)]
                return name, part.position
            return None, manifest.begin

        begins = np.append(scanned.begins[own], extra[:, 0])
        ends = np.append(scanned.ends[own], extra[:, 1])
        refuse_first(begins < ALIGNMENT_2, label, "ztensor.blob.alignment", "a blob before the first 4096 bytes")
        check_blobs(begins, ends, Region(ALIGNMENT_2, ALIGNMENT_2, file_size - FOOTER_2, file_size), label)


def _placed(spec: Spec, manifest: _Manifest, sources: Mapping[str, ShardSource]) -> Object:
    """An object as rows, its layout checked as far as we know it (§5)."""
    rows = {part.name: _row(part, sources) for part in spec.parts}
    if spec.layout == "dense":
        return Object(spec.name, (_dense(spec, rows),), None, spec.attributes_begin)
    attributes = layout_attributes(manifest.data, spec.attributes_begin, spec.layout, spec.name, manifest.begin)
    for part in spec.parts if spec.layout in (CSR, COO) else ():
        if part.name != "values" and (part.dtype not in ("u32", "u64") or part.type is not None):
            raise FormatError(f"{part.name} is u32 or u64", rule="layout.index", offset=part.position, tensor=spec.name)
    if spec.layout not in LAYOUTS:
        rows = {name: structural(row) for name, row in rows.items()}
    pieces = {name: Piece(row.dtype, row.nbytes) for name, row in rows.items()}
    arranged = arrange(spec.layout, spec.shape, pieces, attributes, spec.name, spec.position)
    shaped = tuple(replace(row, shape=arranged.shapes[name]) for name, row in rows.items())
    return Object(spec.name, shaped, Layout(spec.layout, arranged.type), spec.attributes_begin)


def _row(part: Part, sources: Mapping[str, ShardSource]) -> Row:
    dtype: DType | None = STORAGE_2[part.dtype] if part.type is None else LOGICAL_2.get(part.type, (None, ""))[0]
    codec = None
    if part.encoding is not None:
        codec = SeekableZstd() if part.encoding == SEEKABLE else Opaque(part.encoding)
    return Row(
        part.name,
        dtype,
        (),
        part.offset,
        part.offset + part.length,
        codec,
        part.nbytes,
        part.digest,
        unknown_dtype=None if dtype is not None else f"{part.type}{OVER}{part.dtype}",
        source=None if part.shard is None else sources[part.shard],
    )


def _dense(spec: Spec, rows: Mapping[str, Row]) -> Row:
    """§5.1."""
    if list(rows) != ["data"]:
        raise FormatError(
            "a dense object has one part, data", rule="layout.parts", offset=spec.position, tensor=spec.name
        )
    row = rows["data"]
    if row.dtype is not None and row.dtype.nbytes(math.prod(spec.shape)) != row.nbytes:
        raise FormatError(
            _WRONG_SIZE,
            rule="ztensor.blob.size",
            offset=spec.position,
            tensor=spec.name,
        )
    return replace(row, shape=spec.shape)
