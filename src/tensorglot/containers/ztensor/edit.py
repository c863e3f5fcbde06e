"""The same file with other metadata: all but the index stays where it is, byte for byte.

The index of both versions stands last. Its entries are copied as they are, in whatever
form they have; only the one with the metadata is made anew. So encodings, checksums
and fields that nobody knows survive, and no tensor moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tensorglot.containers.ztensor import v01, v2, write01, write2
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, FOOTER_2
from tensorglot.containers.ztensor.parts import METADATA
from tensorglot.containers.ztensor.write01 import Blob, encode_blobs
from tensorglot.errors import UnsupportedError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.payload import Chunk, Memory, Source, Span
from tensorglot.model.tensor import Part
from tensorglot.wire import cbor

__all__ = ["edit_01", "edit_2"]

_ROOT_FORM = cbor.with_depth(cbor.DETERMINISTIC, 31)


def edit_01(source: Source, metadata: Mapping[str, Any] | None, limits: Limits) -> Iterator[Chunk]:
    index, begin = v01.index_bytes(source, limits)
    cursor = cbor.Cursor(index, base=begin)
    entries = []
    for _ in range(cursor.count("index")):
        first, end = cursor.skip()
        entry = cbor.Cursor(index, pos=first).value()
        if not (entry["name"] == METADATA and isinstance(entry.get("metadata"), dict)):
            entries.append(index[first:end])
    if metadata is not None:
        entries.insert(0, _metadata_entry(metadata))
    new = cbor.head(cbor.ARRAY, len(entries)) + b"".join(entries)
    yield Span(source, 0, begin)
    if metadata is not None:
        yield bytes(max(0, ALIGNMENT_01 - begin))
    yield from write01.end_file(new)


def _metadata_entry(metadata: Mapping[str, Any]) -> bytes:
    part = Part(BY_NAME["uint8"], (0,), Memory(np.zeros(0, np.uint8)))
    blob = Blob(METADATA, "uint8", (0,), part, "raw", None, custom={"metadata": dict(metadata)}, offset=ALIGNMENT_01)
    return bytes(encode_blobs([blob])[1:])  # without the head of an array of one


def edit_2(source: Source, metadata: Mapping[str, Any] | None, limits: Limits) -> Iterator[Chunk]:
    found = v2.manifest_bytes(source, limits)
    if found is None:
        raise UnsupportedError("a data shard has no metadata", rule="ztensor.shard.root")
    manifest, begin = found
    if begin + len(manifest) != source.size - FOOTER_2:
        raise UnsupportedError("the manifest does not stand last: convert the file", rule="ztensor.edit.manifest")
    cursor = cbor.Cursor(manifest, base=begin)
    pairs: list[tuple[bytes, bytes]] = []
    for _ in cursor.map("manifest"):
        key, value = cursor.skip(), cursor.skip()
        if manifest[slice(*key)] != cbor.text("attributes"):
            pairs.append((manifest[slice(*key)], manifest[slice(*value)]))
    if metadata is not None:
        pairs.append((cbor.text("attributes"), cbor.encode(metadata, _ROOT_FORM)))
    new = cbor.head(cbor.MAP, len(pairs)) + b"".join(key + value for key, value in sorted(pairs))
    yield Span(source, 0, begin)
    yield from write2.end_file(begin, new)
