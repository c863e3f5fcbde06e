"""zTensor: every version that exists.

A file says by its magic number which version it is. Reading goes through the same
steps in all of them: the CBOR of the index is checked (`wire.cbor`), scanned to columns
(`scan`), brought into our terms (`catalogue`), and obeys rules (`rules`).

    0.1              the document                       v01, entries, parts; writing: write01
    1.0, 1.1, 1.2    objects with components            v1
    2                a canonical manifest, shards       v2, shards; writing: write2, manifest

    constants        magic numbers, and the names of element types and encodings
    codecs           the encodings, as codecs of the model
    lazy             what stays CBOR until somebody asks for it
    stored, hashing  what both writers share: bytes of parts, compressed, hashed on their way
    strict, edit     one byte string for a value; other metadata in the same file
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tensorglot.containers.table import Container, ReadOptions, WriteOptions
from tensorglot.containers.ztensor import edit, manifest, v01, v1, v2, write01, write2
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
from tensorglot.errors import FormatError, InputError, TruncatedError
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk, Source
from tensorglot.wire import zstd

__all__ = ["CONTAINER"]

DTYPES: dict[str, str] = {
    **{name: name for name in NAMES_01},
    **{code: dtype.name for code, dtype in STORAGE_2.items()},
    **{code: dtype.name for code, (dtype, _) in LOGICAL_2.items()},
}

_READERS = {MAGIC_01: v01.read, MAGIC_1: v1.read, MAGIC_2: v2.read}
_NEWER = re.compile(rb"ZTEN(?!0000)([0-9]{4})|\x89ZT([3-9])\r\n\x1a\n")
"""The magic number of a version that this package does not know."""
_EDITORS = {"ztensor@0.1": edit.edit_01, "ztensor@2": edit.edit_2}
_WRITERS = {"0.1": write01.write, "2": write2.write}


def dtypes_in(version: str) -> Collection[str]:
    """0.1 holds elements that it has no name for, too: as bytes that say what they are."""
    if version == "0.1":
        return BY_NAME
    return [dtype.name for dtype in (*STORAGE_2.values(), *(dtype for dtype, _ in LOGICAL_2.values()))]


def keeps(version: str, unknown: str) -> bool:
    """Whether elements that we do not know can be copied to a version: to 0.1 under any name."""
    return version == "0.1" or manifest.keeps(unknown)


def read(source: Source, options: ReadOptions) -> Index:
    if source.size < 8:
        raise TruncatedError("shorter than a magic number", rule="ztensor.magic", offset=0)
    magic = source.read_bytes(0, 8)
    reader = _READERS.get(magic)
    if reader is None:
        newer = _NEWER.fullmatch(magic)
        if newer is None:
            raise FormatError("no magic number of zTensor", rule="ztensor.magic", offset=0)
        version = (newer[1] or newer[2]).decode()
        raise FormatError(f"zTensor {version} is newer than this package", rule="ztensor.version", offset=0)
    index = reader(source, options)
    if options.version is not None and index.format != f"ztensor@{options.version}":
        raise FormatError(
            f"the file is {index.format}, not ztensor@{options.version}", rule="ztensor.version", offset=0
        )
    return index


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    for name in archive.index.names if "frame" in options.checksum.choices else ():
        if options.checksum.of(name) == "frame" and options.compression.of(name) is None:
            raise InputError("the checksum of a frame goes with compression", rule="save.checksum", tensor=name)
    level = options.level
    if level is not None and (not isinstance(level, int) or not zstd.LEVELS[0] <= level <= zstd.LEVELS[1]):
        raise InputError("a level of zstd is {} to {}, not {!r}".format(*zstd.LEVELS, level), rule="save.level")
    return _WRITERS[options.version](archive, options)


def edit_metadata(archive: Archive, metadata: Mapping[str, Any] | None) -> Iterator[Chunk]:
    """The file of an archive with other metadata, all else as it is."""
    assert archive.source is not None  # noqa: S101
    return _EDITORS[archive.format](archive.source, metadata, archive.limits)


def content_digest(archive: Archive) -> str | None:
    """The identity of the tensors of a version 2 file, from its digests alone (§6.4)."""
    return manifest.content_digest(archive) if archive.format == "ztensor@2" else None


def inspect(archive: Archive) -> Iterator[FormatError]:
    """What only a look at whole files can find: shards whose bytes are not those that the root names."""
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
    inspect=inspect,
    content_digest=content_digest,
    dtypes_in=dtypes_in,
    keeps=keeps,
    header_nbytes_max=INDEX_NBYTES,
)
