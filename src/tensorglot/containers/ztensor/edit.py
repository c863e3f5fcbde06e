"""Replaces the metadata of a file; everything but the index stays where it is, byte for byte.

The index is last in both versions. Its entries are copied in the form that they have;
only the one with the metadata is written anew. So encodings, checksums and unknown
fields survive, and no tensor moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tensorglot.containers.ztensor import v01, v2, write2
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, ALIGNMENT_2, FOOTER_2
from tensorglot.containers.ztensor.manifest import ROOT_FORM
from tensorglot.containers.ztensor.parts import METADATA
from tensorglot.containers.ztensor.write01 import encode_index, end_file, metadata_entry
from tensorglot.errors import UnsupportedError
from tensorglot.limits import Limits
from tensorglot.model.payload import Chunk, Source, Span
from tensorglot.wire import cbor

__all__ = ["edit_01", "edit_2"]


def edit_01(source: Source, metadata: Mapping[str, Any], limits: Limits) -> Iterator[Chunk]:
    index, begin = v01.index_bytes(source, limits)
    cursor = cbor.Cursor(index, base=begin)
    entries = []
    for _ in range(cursor.count("index")):
        first, end = cursor.skip()
        entry = cbor.Cursor(index, pos=first).value()
        if not (entry["name"] == METADATA and isinstance(entry.get("metadata"), dict)):
            entries.append(index[first:end])
    entries.insert(0, bytes(encode_index([metadata_entry(metadata)])[1:]))  # without the head of the array
    new = cbor.head(cbor.ARRAY, len(entries)) + b"".join(entries)
    yield Span(source, 0, begin)
    yield bytes(max(0, ALIGNMENT_01 - begin))
    yield from end_file(new)


def edit_2(source: Source, metadata: Mapping[str, Any], limits: Limits) -> Iterator[Chunk]:
    found = v2.manifest_bytes(source, limits)
    if found is None:
        raise UnsupportedError("a data shard has no metadata", rule="ztensor.shard.root")
    manifest, begin = found
    at_end = begin + len(manifest) == source.size - FOOTER_2
    cursor = cbor.Cursor(manifest, base=begin)
    pairs: list[tuple[bytes, bytes]] = []
    for _ in cursor.map("manifest"):
        key, value = cursor.skip(), cursor.skip()
        if manifest[slice(*key)] != cbor.text("attributes"):
            pairs.append((manifest[slice(*key)], manifest[slice(*value)]))
    pairs.append((cbor.text("attributes"), cbor.encode(metadata, ROOT_FORM)))
    new = cbor.head(cbor.MAP, len(pairs)) + b"".join(key + value for key, value in sorted(pairs))
    if not at_end:  # the end of a file that was appended to may belong to a tensor
        begin = source.size + -source.size % ALIGNMENT_2
    yield Span(source, 0, min(begin, source.size))
    yield bytes(max(0, begin - source.size))
    yield from write2.end_file(begin, new)
