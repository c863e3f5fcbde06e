"""Version 2 (draft 4): reading.

    file   = magic, blobs at multiples of 4096, the manifest among them, footer
    footer = u64 offset, u64 length, u64 XXH3-64 of the manifest, u32 version, u32 reserved, magic

The manifest must be deterministic CBOR. Digests cover the decoded bytes. A file with a
footer and no manifest is a shard of another file, and lists no tensors. Older manifests of
a file that was appended to are ignored (§2.5). A power cut during an append may leave zeros
after the footer: they are ignored, with a note, unless strict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import xxhash

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.ztensor import rules
from tensorglot.containers.ztensor.catalogue import OPAQUE, RAW, ZSTD, Catalogue
from tensorglot.containers.ztensor.codecs import SeekableZstd
from tensorglot.containers.ztensor.constants import (
    ALIGNMENT_2,
    FOOTER_2,
    FOOTER_FORM,
    INDEX_NBYTES,
    LOGICAL_2,
    MAGIC_2,
    OVER,
    SEEKABLE,
    STORAGE_2,
    TORN_NBYTES,
)
from tensorglot.containers.ztensor.lazy import metadata_at
from tensorglot.containers.ztensor.scan import NAME_NBYTES, Field, Record, Scanned, pass_attributes, positions, scan
from tensorglot.containers.ztensor.shards import Shard, ShardSource, check_shard_name, read_shards
from tensorglot.containers.ztensor.strict import check_2
from tensorglot.errors import FormatError, IntegrityError, LimitError, TruncatedError
from tensorglot.kernels import cbor_scan as kernel
from tensorglot.limits import Limits
from tensorglot.model.index import UNKNOWN, Index, Note
from tensorglot.model.layouts import COO, CSR
from tensorglot.model.payload import Source
from tensorglot.wire import cbor

__all__ = ["footer_end", "manifest_bytes", "read"]

RANK = 64
_LOOK_NBYTES = 1 << 20

_OBJECT = Record(  # §3.2
    "object",
    Field("name", "name"),
    Field("parts", "parts", required=True),
    Field("shape", "shape", required=True),
    Field("layout", "word", ("dense",), required=True),
    Field("attributes", "attributes"),
    named=True,
    text_keys=False,
    name_nbytes=NAME_NBYTES,
)
_PART = Record(  # §3.3
    "part",
    Field("name", "word", ("data",)),
    Field("blob", "pair", required=True),
    Field("type", "word", tuple(LOGICAL_2)),
    Field("dtype", "word", tuple(STORAGE_2), required=True),
    Field("shard", "text"),
    Field("digest", "digest"),
    Field("encoding", "word", (SEEKABLE,)),
    Field("decoded_length", "uint", absent=-1),
    named=True,
    text_keys=False,
    name_nbytes=NAME_NBYTES,
)
_DENSE, _DATA = 1, 1
_DTYPES = tuple(STORAGE_2)
_STORAGE, _LOGICAL = np.full((2, 256), UNKNOWN, np.uint8)
_STORAGE[1 : 1 + len(STORAGE_2)] = [dtype.code for dtype in STORAGE_2.values()]
_LOGICAL[1 : 1 + len(LOGICAL_2)] = [dtype.code for dtype, _ in LOGICAL_2.values()]
_STORED_AS = np.zeros(256, np.uint8)
_STORED_AS[1 : 1 + len(LOGICAL_2)] = [1 + _DTYPES.index(storage) for _, storage in LOGICAL_2.values()]
"""The dtype code that a logical type needs."""
_ENCODINGS = np.full(256, OPAQUE, np.uint8)
_ENCODINGS[:2] = RAW, ZSTD


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    end = source.size if options.strict else footer_end(source)
    manifest = manifest_bytes(source, limits, end)
    if manifest is None:
        if options.strict:
            raise FormatError(
                "a data shard has no canonical form: open the root that names it",
                rule="ztensor.strict.shard",
                offset=source.size - FOOTER_2,
            )
        return Index.concat([], format="ztensor@2")
    data, begin = manifest
    cbor.check(data, cbor.with_depth(cbor.DETERMINISTIC, min(32, limits.cbor_depth)), base=begin)
    found, shards, attributes = _root(cbor.Cursor(data, base=begin, rule="ztensor.entry.kind"), limits)
    catalogue = _catalogue(found)
    _find_shards(
        catalogue, found, {name: ShardSource(shard, options.name, options.open_file) for name, shard in shards.items()}
    )
    _check_shapes(catalogue)
    rules.check_limits(catalogue, limits)
    rules.check_sizes(catalogue)
    _check_places(catalogue, end, (begin, begin + len(data)))
    metadata = None if attributes is None else metadata_at(data, attributes)
    index = catalogue.to_index("ztensor@2", SeekableZstd(), metadata, checksums_decoded=True)
    if options.strict:
        check_2(source, index, data, begin)
    if end < source.size:
        message = f"{source.size - end} zeros after the footer were left by a power cut: the next edit removes them"
        index = replace(index, notes=[*index.notes, Note("ztensor.footer.zeros", message)])
    return index


def footer_end(source: Source) -> int:
    """The end of the footer: the end of the file, or the begin of zeros after it, if an append can have left them."""
    end = source.size
    least = max(0, end - TORN_NBYTES)
    if end < FOOTER_2 or source.read_bytes(end - FOOTER_2, FOOTER_2).strip(b"\0"):
        return end
    while end > least:
        begin = max(least, end - _LOOK_NBYTES)
        left = source.read_bytes(begin, end - begin).rstrip(b"\0")
        if left:
            found = begin + len(left)
            whole = found >= FOOTER_2 and source.read_bytes(found - len(MAGIC_2), len(MAGIC_2)) == MAGIC_2
            return found if whole else source.size
        end = begin
    return source.size


def manifest_bytes(source: Source, limits: Limits, end: int | None = None) -> tuple[bytes, int] | None:
    """Reads the manifest and compares its hash; returns also its offset. None for a shard."""
    end = footer_end(source) if end is None else end
    least = len(MAGIC_2) + FOOTER_2
    if end < least:
        raise TruncatedError(f"file truncated: needs {least} bytes, has {end}", rule="ztensor.size", offset=0)
    at = end - FOOTER_2
    offset, length, digest, version, _, magic = FOOTER_FORM.unpack(source.read_bytes(at, FOOTER_2))
    if magic != MAGIC_2:
        raise FormatError(
            "file truncated or damaged: wrong magic number at its end", rule="ztensor.footer.magic", offset=end - 8
        )
    if version != 2:
        message = f"unsupported version {version} in the footer (supported: 2)"
        raise FormatError(message, rule="ztensor.footer.version", offset=at + 24)
    if length == 0:
        if offset or digest:
            raise FormatError(
                "offset or hash of an empty manifest is not zero", rule="ztensor.manifest.bounds", offset=at
            )
        return None
    if length > INDEX_NBYTES:
        message = f"manifest of {length} bytes exceeds the limit of the format ({INDEX_NBYTES})"
        raise LimitError(message, rule="ztensor.manifest.large", offset=at + 8)
    rules.check_index_nbytes(length, at + 8, limits)
    if offset % ALIGNMENT_2 or offset < ALIGNMENT_2:
        raise FormatError(
            f"the manifest must begin at a multiple of {ALIGNMENT_2}", rule="ztensor.blob.alignment", offset=at
        )
    if offset + length > at:
        message = f"file truncated: the manifest needs {offset + length} bytes before the footer, has {at}"
        raise TruncatedError(message, rule="ztensor.manifest.bounds", offset=at)
    data = source.read_bytes(offset, length)
    if xxhash.xxh3_64_intdigest(data) != digest:
        raise IntegrityError("the hash of the manifest does not match", rule="ztensor.manifest.hash", offset=offset)
    return data, offset


def _root(cursor: cbor.Cursor, limits: Limits) -> tuple[Scanned, dict[str, Shard], int | None]:
    """Reads the objects, the shard table, and the position of the attributes of the file (§3.1)."""
    shards: dict[str, Shard] = {}
    objects = attributes = None
    fields = cursor.fields("manifest", others=True)
    for key, cursor.pos in fields.items():
        if key == "objects":
            count = cursor.count(key, cbor.MAP)
            limits.check_tensors(count, rule=rules.COUNT_RULE, offset=cursor.base)
            objects = scan(cursor, count, _OBJECT, _PART)
        elif key == "shards":
            shards = read_shards(cursor)
        elif key == "attributes":
            attributes = pass_attributes(cursor, NAME_NBYTES)
    if objects is None:
        raise FormatError("'objects' is missing", rule="ztensor.entry.missing", offset=cursor.base)
    return objects, shards, attributes


def _catalogue(found: Scanned) -> Catalogue:
    """Translates the objects; checks that dtype and logical type of each part go together (§4)."""
    objects, parts = found.records, found.parts
    storage, logical = parts.codes["dtype"], parts.codes["type"]
    any_logical = bool(np.count_nonzero(logical))
    dtypes = np.where(logical > 0, _LOGICAL[logical], _STORAGE[storage]) if any_logical else _STORAGE[storage]
    encodings = _ENCODINGS[parts.codes["encoding"]]
    begins, sizes = parts.numbers["blob"]
    layouts = found.texts(objects, objects.codes["layout"] != _DENSE, "layout")
    several = bool(layouts) or parts.rows != objects.rows
    catalogue = Catalogue.of(
        found,
        first_rows=np.append(0, objects.numbers["parts"]) if several else None,
        layouts=layouts,
        attributes=positions(objects.numbers["attributes"]),
        dtypes=dtypes,
        begins=begins,
        sizes=sizes,
        encodings=encodings,
        nbytes=parts.numbers["decoded_length"],
        checksums=parts.numbers["digest"],
        parts=found.names(parts, parts.codes["name"] != _DATA),
        unknown_encodings=found.texts(parts, encodings == OPAQUE, "encoding"),
    )
    rules.refuse_row(
        catalogue, storage == kernel.UNKNOWN, "ztensor.entry.dtype", f"unknown dtype (known: {', '.join(_DTYPES)})"
    )
    if any_logical:
        wrong = (logical > 0) & (logical != kernel.UNKNOWN) & (_STORED_AS[logical] != storage)
        if np.count_nonzero(wrong):
            row = int(wrong.argmax())
            name, (_, needed) = list(LOGICAL_2.items())[logical[row] - 1]
            message = f"logical type {name} needs dtype {needed}, found {_DTYPES[storage[row] - 1]}"
            rules.refuse_row(catalogue, wrong, "ztensor.entry.type", message)
    rules.refuse_row(
        catalogue,
        (encodings == RAW) != (catalogue.nbytes < 0),
        "ztensor.entry.decoded",
        "'encoding' and 'decoded_length' must be given together",
    )
    unknown = found.texts(parts, logical == kernel.UNKNOWN, "type") if any_logical else {}
    catalogue.unknown_dtypes |= {row: f"{name}{OVER}{_DTYPES[storage[row] - 1]}" for row, name in unknown.items()}
    rules.check_dense(catalogue)
    if layouts:
        wrong_index = np.zeros(parts.rows, np.bool_)
        for tensor, layout in layouts.items():
            for row in catalogue.rows(tensor) if layout in (CSR, COO) else ():
                if catalogue.parts.get(row) != "values":
                    wrong_index[row] = _DTYPES[storage[row] - 1] not in ("u32", "u64") or logical[row] > 0
        rules.refuse_row(catalogue, wrong_index, "layout.index", "the indices of a sparse tensor must be u32 or u64")
    return catalogue


def _check_shapes(catalogue: Catalogue) -> None:
    """§3.2: at most 64 dimensions, a product below 2**64; dimensions after a zero may be of any size."""
    ranks = catalogue.dim_offsets[1:] - catalogue.dim_offsets[:-1]
    rules.refuse_tensor(catalogue, ranks > RANK, "ztensor.shape.rank", f"more than {RANK} dimensions")
    huge = "dimensions of 2**63 or more are not supported"
    rules.refuse_tensor(catalogue, catalogue.counts == kernel.HUGE, "ztensor.limit.dimension", huge, LimitError)
    for tensor in (catalogue.counts < 0).nonzero()[0].tolist():
        product = 1
        for size in catalogue.shape(tensor):
            product *= size
            if product >= 1 << 64:
                this = np.arange(len(ranks)) == tensor
                message = "the product of the dimensions is 2**64 or more"
                rules.refuse_tensor(catalogue, this, "ztensor.shape.product", message)
        catalogue.counts[tensor] = min(product, rules.SIZE_END - 1)


def _find_shards(catalogue: Catalogue, found: Scanned, sources: Mapping[str, ShardSource]) -> None:
    """Fills in the sources of rows that are in another file (§7)."""
    named = found.parts.numbers["shard"] > 0
    for row, name in found.texts(found.parts, named, "shard").items():
        if name in sources:
            catalogue.sources[row] = sources[name]
            continue
        check_shard_name(name, catalogue.base + int(catalogue.row_places[row]))
        this = np.arange(len(named)) == row
        rules.refuse_row(catalogue, this, "ztensor.shard.unknown", f"shard '{name}' is not in the shard table")


def _check_places(catalogue: Catalogue, size: int, manifest: tuple[int, int]) -> None:
    """§2.4, for the blobs of this file, including the manifest, and for those of each shard."""
    if not catalogue.sources:
        rules.check_places(catalogue, _region(size), others=[manifest])
        return
    elsewhere: dict[Source | None, list[int]] = {None: []}
    for row in range(len(catalogue.dtypes)):
        elsewhere.setdefault(catalogue.sources.get(row), []).append(row)
    for source, rows in elsewhere.items():
        region, others = (_region(size), [manifest]) if source is None else (_region(source.size), [])
        rules.check_places(catalogue, region, np.array(rows, np.int64), others)


def _region(size: int) -> rules.Region:
    return rules.Region(ALIGNMENT_2, ALIGNMENT_2, size - FOOTER_2, size, least=ALIGNMENT_2)
