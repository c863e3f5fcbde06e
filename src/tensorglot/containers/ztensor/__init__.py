"""zTensor, all versions; the magic number of a file tells which.

All versions are read in the same steps: the CBOR of the index is validated (`wire.cbor`),
scanned to columns (`scan`), translated to our dtypes and layouts (`catalogue`), and checked
against the rules of the version (`rules`). Sections (§) are those of the version's document.

    0.1              the document                       v01, entries, parts; writing: write01
    1.0, 1.1, 1.2    objects with components            v1
    2                a canonical manifest, shards       v2, shards; writing: write2, manifest

    constants        magic numbers, and the names of element types and encodings
    codecs           the encodings, as codecs of the model
    lazy             CBOR that is decoded on demand
    stored, hashing  what both writers share: blobs, compressed and hashed on other threads
    strict           the check of canonical form
    revise           changes an existing file: metadata; tensors dropped, replaced and added
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tensorglot.containers.table import Container, Fault, ReadOptions, Revision, RowsFirst, WriteOptions
from tensorglot.containers.ztensor import manifest, revise, v01, v1, v2, write01, write2
from tensorglot.containers.ztensor.codecs import Opaque
from tensorglot.containers.ztensor.constants import (
    INDEX_NBYTES,
    LOGICAL_2,
    MAGIC_01,
    MAGIC_1,
    MAGIC_2,
    NAMES_01,
    STORAGE_2,
)
from tensorglot.containers.ztensor.shards import ShardSource
from tensorglot.errors import FormatError, Hint, InputError, TensorglotError, TruncatedError
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk, Codec, Source
from tensorglot.model.repeated import check_shared
from tensorglot.wire import cbor, zstd

__all__ = ["CONTAINER"]

DTYPES: dict[str, str] = {
    **{name: name for name in NAMES_01},
    **{code: dtype.name for code, dtype in STORAGE_2.items()},
    **{code: dtype.name for code, (dtype, _) in LOGICAL_2.items()},
}

_READERS = {MAGIC_01: v01.read, MAGIC_1: v1.read, MAGIC_2: v2.read}
_NEWER = re.compile(rb"ZTEN(?!0000)([0-9]{4})|\x89ZT([3-9])\r\n\x1a\n")
"""The magic number of a future version."""
_EDITORS = {"ztensor@0.1": revise.edit_01, "ztensor@2": revise.edit_2}
_REVISERS = {"ztensor@0.1": revise.revise_01, "ztensor@2": revise.revise_2}
_WRITERS = {"0.1": write01.write, "2": write2.write}


def dtypes_in(version: str) -> Collection[str]:
    """Version 0.1 supports all dtypes: those without a name there are stored as bytes with a `logical_type`."""
    if version == "0.1":
        return BY_NAME
    return [dtype.name for dtype in (*STORAGE_2.values(), *(dtype for dtype, _ in LOGICAL_2.values()))]


def keeps(version: str, unknown: str) -> bool:
    """Whether elements of an unknown dtype can be copied to a version; 0.1 allows any name."""
    return version == "0.1" or manifest.keeps(unknown)


def copies(codec: Codec) -> bool:
    return isinstance(codec, Opaque)


def read(source: Source, options: ReadOptions) -> Index:
    if source.size < 8:
        message = f"file truncated: needs 8 bytes, has {source.size}" if source.size else "the file is empty"
        raise TruncatedError(message, rule="ztensor.magic", offset=0)
    magic = options.head[:8] or source.read_bytes(0, 8)
    reader = _READERS.get(magic)
    if reader is None:
        newer = _NEWER.fullmatch(magic)
        if newer is None:
            raise FormatError("not a zTensor file: wrong magic number", rule="ztensor.magic", offset=0)
        version = (newer[1] or newer[2]).decode()
        raise FormatError(f"zTensor {version} is newer than this package", rule="ztensor.version", offset=0)
    index = reader(source, options)
    if options.version is not None and index.format != f"ztensor@{options.version}":
        raise FormatError(
            f"the file is {index.format}, not ztensor@{options.version}", rule="ztensor.version", offset=0
        )
    # In the canonical form of version 2, equal contents share a blob.
    check_shared(index, source.size, options.limits, "ztensor", raw_freely=True)
    return index


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    for name in archive.index.names if "frame" in options.checksum.choices else ():
        if options.checksum.of(name) == "frame" and options.compression.of(name) is None:
            hint = Hint("pass compression='zstd' or another checksum", "pass --compression zstd or another --checksum")
            raise InputError("checksum 'frame' needs compression", rule="save.checksum", tensor=name, hint=hint)
    level = options.level
    if level is not None and (not isinstance(level, int) or not zstd.LEVELS[0] <= level <= zstd.LEVELS[1]):
        raise InputError("zstd level must be {} to {}, not {!r}".format(*zstd.LEVELS, level), rule="save.level")
    return _WRITERS[options.version](archive, options)


def rows_first(archive: Archive, options: WriteOptions) -> RowsFirst | None:
    """Only for version 0.1: in version 2 equal contents are stored once, so offsets depend on values."""
    return write01.rows_first(archive, options) if options.version == "0.1" else None


def edit_metadata(archive: Archive, metadata: Mapping[str, Any]) -> Iterator[Chunk]:
    """The file of an archive with its metadata replaced."""
    return _EDITORS[archive.format](archive, metadata)


def metadata_faults(metadata: Mapping[str, Any], version: str) -> dict[str, str]:
    return _find_faults(metadata, version, write01.FIELD_FORM if version == "0.1" else manifest.ROOT_FORM)


def attribute_faults(attributes: Mapping[str, Any], dtype: str | None, version: str) -> dict[str, str]:
    if version == "2":
        return _find_faults(attributes, version, manifest.OBJECT_FORM)
    if dtype is None or (dtype in BY_NAME and dtype not in NAMES_01):  # stored as parts, with a map of attributes
        return _find_faults(attributes, version, write01.FIELD_FORM)
    one_map_more = cbor.with_depth(write01.FIELD_FORM, write01.FIELD_FORM.depth + 1)
    return {**_find_faults(attributes, version, one_map_more), **write01.reserved_fields(attributes)}


def _find_faults(pairs: Mapping[str, Any], version: str, form: cbor.Profile) -> dict[str, str]:
    """Keys that version 2 does not allow, and values that CBOR cannot represent, e.g. integers of 65 bits."""
    faults = {}
    for key, value in pairs.items():
        try:
            if version == "2":
                write2.check_name(key, None)
            cbor.encode({key: value}, form)
        except TensorglotError as error:
            faults[key] = error.message
    return faults


def tensor_fault(name: str, shape: tuple[int, ...], dtype: DType | None, version: str) -> Fault | None:
    return write2.find_fault(name, shape) if version == "2" else None


def revise_tensors(archive: Archive, revision: Revision) -> Iterator[Chunk]:
    """The file of an archive with tensors dropped, replaced and added."""
    return _REVISERS[archive.format](archive, revision)


def content_digest(archive: Archive) -> str | None:
    """The content digest of a version 2 file, from the digests of its parts (§6.4)."""
    return manifest.content_digest(archive) if archive.format == "ztensor@2" else None


def inspect(archive: Archive) -> Iterator[FormatError]:
    """Yields an error for each shard that does not match its digest in the root."""
    for source in set(archive.index.sources.values()):
        if isinstance(source, ShardSource):
            try:
                source.check_digest()
            except FormatError as error:
                yield error


CONTAINER = Container(
    DTYPES,
    read,
    write,
    edit=edit_metadata,
    revise=revise_tensors,
    append=revise.append_2,
    rows_first=rows_first,
    inspect=inspect,
    content_digest=content_digest,
    dtypes_in=dtypes_in,
    keeps=keeps,
    copies=copies,
    metadata_faults=metadata_faults,
    attribute_faults=attribute_faults,
    tensor_fault=tensor_fault,
    header_nbytes_max=INDEX_NBYTES,
)
