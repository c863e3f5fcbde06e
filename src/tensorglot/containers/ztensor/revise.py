"""Changes the metadata or the tensors of a file: everything that stays is copied as it is stored.

If only metadata changes, everything before the index is one span, and no tensor moves.
Tensors are dropped, replaced and added. Entries of the index are copied in their encoded
form, with new offsets spliced in. So encodings, checksums and unknown fields survive, and
nothing is decoded, compressed or hashed again. Dropped blobs leave no hole: those that stay
move together. If nothing is dropped, everything before the index is one span.

Version 2 can also be appended to (§2.5): its footer has the offset of the manifest, so new
blobs and a new manifest after the old end become visible only when a footer refers to them.
Blobs that were dropped or replaced then stay in the file, unused, until it is copied.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tensorglot.containers.table import Revision, check_header
from tensorglot.containers.ztensor import v01, v2, write01, write2
from tensorglot.containers.ztensor.constants import (
    ALIGNMENT_01,
    ALIGNMENT_2,
    CANONICAL_ALIGNMENT,
    FOOTER_2,
    MAGIC_01,
    MAGIC_2,
)
from tensorglot.containers.ztensor.manifest import ROOT_FORM, encode_manifest
from tensorglot.containers.ztensor.parts import METADATA, part_rows
from tensorglot.containers.ztensor.scan import Field, Record, scan
from tensorglot.containers.ztensor.stored import index_parts, prepare, write_blobs
from tensorglot.errors import UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.names import Names
from tensorglot.model.payload import Chunk, Source, Span
from tensorglot.wire import cbor

__all__ = ["append_2", "edit_01", "edit_2", "revise_01", "revise_2"]

_NAMED = Record("entry", Field("name", "name", required=True), named=False, text_keys=True)
"""An entry of version 0.1, of which only the name is needed."""
_OBJECTS, _ATTRIBUTES = cbor.text("objects"), cbor.text("attributes")

_FOOTER_ALIGNMENT = 64
"""A footer of 40 bytes at a multiple of this lies within one sector of a disk, and within one page of memory."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An entry of the index, and the places in it where the offsets of its blobs are encoded."""

    tensor: str
    data: bytes
    blobs: tuple[tuple[int, int, int, int], ...]
    """Offset and size of a blob; begin and end of the encoded offset in `data`."""

    def moved(self, places: Mapping[tuple[int, int], int]) -> bytes:
        """The entry with the new offsets of its blobs."""
        data = self.data
        for offset, size, begin, end in sorted(self.blobs, key=lambda blob: -blob[2]):
            data = data[:begin] + cbor.head(cbor.UINT, places[offset, size]) + data[end:]
        return data


class _Layout:
    """Copies the blobs of entries that stay: `chunks` are the new file so far, `places` the new offset of each blob."""

    def __init__(self, source: Source, kept: list[_Item], every: list[_Item], magic: bytes, alignment: int) -> None:
        self.position = len(magic)
        self.places: dict[tuple[int, int], int] = {}
        blobs = sorted({blob[:2] for item in kept for blob in item.blobs})
        dropped = {blob[:2] for item in every for blob in item.blobs}.difference(blobs)
        self.chunks: list[Chunk] = []
        end = max([self.position, *(offset + size for offset, size in blobs)])
        if not dropped and _unused(kept, end, alignment) <= 0:
            self.position = end
            self.places = {blob: blob[0] for blob in blobs}
            self.chunks = [Span(source, 0, self.position)]
            return
        self.chunks.append(magic)
        for offset, size in blobs:
            pad = -self.position % alignment
            self.places[offset, size] = self.position + pad
            self.position += pad + size
            self.chunks += [bytes(pad), Span(source, offset, offset + size)]


def edit_01(archive: Archive, metadata: Mapping[str, Any]) -> Iterator[Chunk]:
    source = _source(archive)
    data, begin = v01.index_bytes(source, archive.limits)
    yield Span(source, 0, begin)
    yield bytes(max(0, ALIGNMENT_01 - begin))
    yield from write01.end_file(_with_metadata(data, metadata, is_tensor=METADATA in archive))


def _with_metadata(index: bytes, metadata: Mapping[str, Any], *, is_tensor: bool) -> bytes:
    """An index with other metadata: the entries before and after the old metadata are copied as two spans."""
    cursor = cbor.Cursor(index)
    count = cursor.count("index")
    first = begin = end = cursor.pos
    found = scan(cursor, count, _NAMED)
    row = Names(found.data, *found.records.numbers["name"]).find(METADATA)
    if row is not None:
        old = cbor.Cursor(index, pos=int(found.records.places[row]))
        start = old.pos
        if is_tensor or not isinstance(old.value().get("metadata"), dict):
            raise _name_error(METADATA)
        begin, end, count = start, old.pos, count - 1
    entry = _encode_entry(write01.metadata_entry(metadata))
    return cbor.head(cbor.ARRAY, count + 1) + entry + index[first:begin] + index[end : cursor.pos]


def revise_01(archive: Archive, revision: Revision) -> Iterator[Chunk]:
    source = _source(archive)
    data, _ = v01.index_bytes(source, archive.limits)
    every = list(_entries_01(data, set(archive.index.names)))
    kept = _stay(every, revision)
    layout = _Layout(source, kept, every, MAGIC_01, ALIGNMENT_01)
    yield from layout.chunks
    entries = list(write01.entries_of(revision.added, revision.options))
    yield from write01.place_entries(entries, layout.position, revision.options.level)
    by_tensor: dict[str, list[bytes]] = {}
    for item in kept:
        by_tensor.setdefault(item.tensor, []).append(item.moved(layout.places))
    for entry in entries:
        tensor = str(entry.custom["part_of"]) if entry.is_part else entry.name
        by_tensor.setdefault(tensor, []).append(_encode_entry(entry))
    listed = [by_tensor[name] for name in revision.names]
    if revision.metadata is not None:
        listed.insert(0, [_encode_entry(write01.metadata_entry(revision.metadata))])
    added = [METADATA] if revision.metadata is not None else []
    _check_entry_names([*added, *(entry.name for entry in entries)], kept)
    encoded = list(chain.from_iterable(listed))
    index = cbor.head(cbor.ARRAY, len(encoded)) + b"".join(encoded)
    if revision.metadata is not None and layout.position < ALIGNMENT_01 and not entries:
        yield bytes(ALIGNMENT_01 - layout.position)
    yield from write01.end_file(index)


def _encode_entry(entry: write01.Entry) -> bytes:
    return bytes(write01.encode_index([entry])[1:])  # without the head of the array


def _stay(every: list[_Item], revision: Revision) -> list[_Item]:
    names = set(revision.names)
    return [item for item in every if item.tensor in names and item.tensor not in revision.added]


def _check_entry_names(added: list[str], kept: list[_Item]) -> None:
    """A part of a new tensor, or the metadata, must not have the name of another entry."""
    taken = {cbor.Cursor(item.data).value()["name"] for item in kept}
    for name in added:
        if name in taken:
            raise _name_error(name)
        taken.add(name)


def _name_error(name: str) -> UnsupportedError:
    return UnsupportedError(
        "two entries of the file would have this name; rename the tensor", rule="ztensor.write.name", tensor=name
    )


def _entries_01(data: bytes, tensors: set[str]) -> Iterator[_Item]:
    """All entries of an index except the metadata entry, each with the tensor that it belongs to.

    An entry of the metadata's name that the reader has found to be a tensor is one.
    """
    whole_of = part_rows(data)
    cursor = cbor.Cursor(data)
    for row in range(cursor.count("index")):
        raw = data[slice(*cursor.skip())]
        entry = cbor.Cursor(raw).value()
        if entry["name"] == METADATA and METADATA not in tensors and isinstance(entry.get("metadata"), dict):
            continue
        at = cbor.Cursor(raw).fields("entry", others=True)["offset"]
        behind = cbor.Cursor(raw, pos=at).skip()[1]
        yield _Item(whole_of.get(row, entry["name"]), raw, ((entry["offset"], entry["size"], at, behind),))


def edit_2(archive: Archive, metadata: Mapping[str, Any]) -> Iterator[Chunk]:
    source = _source(archive)
    manifest, begin = _manifest_2(archive)
    pairs = [pair for pair in _pairs(manifest, "manifest") if pair[0] != _ATTRIBUTES]
    pairs.append((_ATTRIBUTES, cbor.encode(metadata, ROOT_FORM)))
    if begin + len(manifest) != source.size - FOOTER_2:  # appended to: the bytes at the end may belong to a tensor
        begin = source.size + -source.size % ALIGNMENT_2
    yield Span(source, 0, min(begin, source.size))
    yield bytes(max(0, begin - source.size))
    yield from write2.end_file(begin, cbor.head(cbor.MAP, len(pairs)) + _join(pairs))


def revise_2(archive: Archive, revision: Revision) -> Iterator[Chunk]:
    source = _source(archive)
    every, others = _objects_2(_manifest_2(archive)[0])
    kept = _stay(every, revision)
    layout = _Layout(source, kept, every, MAGIC_2, ALIGNMENT_2)
    yield from layout.chunks
    objects = [(cbor.text(item.tensor), item.moved(layout.places)) for item in kept]
    begin, manifest = yield from _end_2(layout.position, objects, others, revision)
    yield from write2.end_file(begin, manifest)


def append_2(archive: Archive, revision: Revision) -> Iterator[Chunk] | None:
    source = _source(archive)
    every, others = _objects_2(_manifest_2(archive)[0])
    kept = _stay(every, revision)
    if v2.footer_end(source) < source.size or 2 * _unused(kept, source.size, ALIGNMENT_2) > source.size:
        return None
    return _tail_2(source.size, kept, others, revision)


def _tail_2(position: int, kept: list[_Item], others: list[tuple[bytes, bytes]], revision: Revision) -> Iterator[Chunk]:
    objects = [(cbor.text(item.tensor), item.data) for item in kept]
    begin, manifest = yield from _end_2(position, objects, others, revision)
    check_header(len(manifest), "ztensor")
    yield manifest
    yield bytes(-(begin + len(manifest)) % _FOOTER_ALIGNMENT)
    yield write2.footer(begin, manifest)


def _unused(kept: list[_Item], end: int, alignment: int) -> int:
    """Bytes up to `end` that are in no blob, less the most that padding can take; negative if there are none."""
    blobs = {blob[:2] for item in kept for blob in item.blobs}
    canonical = alignment == ALIGNMENT_2 and not any(offset % CANONICAL_ALIGNMENT for offset, _ in blobs)
    spacing = CANONICAL_ALIGNMENT if canonical else alignment
    return end - sum(size for _, size in blobs) - (len(blobs) + 1) * spacing


def _manifest_2(archive: Archive) -> tuple[bytes, int]:
    """The manifest and its offset."""
    found = v2.manifest_bytes(_source(archive), archive.limits)
    if found is None:
        raise UnsupportedError(
            "the file is a data shard without a manifest: edit the root that names it", rule="ztensor.shard.root"
        )
    return found


def _end_2(
    position: int, objects: list[tuple[bytes, bytes]], others: list[tuple[bytes, bytes]], revision: Revision
) -> Generator[Chunk, None, tuple[int, bytes]]:
    """Yields the new blobs; returns the offset of the manifest, and the manifest."""
    specs = [write2.spec_of(index_parts(tensor), revision.options) for tensor in revision.added.values()]
    blobs = [part.blob for spec in specs for part in spec.parts]
    prepare(blobs)
    stored = write2.stored_blobs(blobs, revision.options.level)
    end = yield from write_blobs(blobs, stored, position, ALIGNMENT_2)
    yield bytes(-end % ALIGNMENT_2)
    added = encode_manifest(specs, None)
    objects = [*objects, *_pairs(added, "objects", cbor.Cursor(added).fields("manifest")["objects"])]
    pairs = [(_OBJECTS, cbor.head(cbor.MAP, len(objects)) + _join(objects)), *others]
    if revision.metadata is not None:
        pairs.append((_ATTRIBUTES, cbor.encode(revision.metadata, ROOT_FORM)))
    return end + -end % ALIGNMENT_2, cbor.head(cbor.MAP, len(pairs)) + _join(pairs)


def _join(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(key + value for key, value in sorted(pairs))


def _pairs(data: bytes, what: str, begin: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of the map at a position, still encoded."""
    cursor = cbor.Cursor(data, pos=begin)
    for _ in cursor.map(what):
        key, value = cursor.skip(), cursor.skip()
        yield data[slice(*key)], data[slice(*value)]


def _objects_2(manifest: bytes) -> tuple[list[_Item], list[tuple[bytes, bytes]]]:
    """The objects, and the other pairs of the root except for the metadata."""
    others: list[tuple[bytes, bytes]] = []
    items: list[_Item] = []
    for key, value in _pairs(manifest, "manifest"):
        if key == _OBJECTS:
            items = [_object(cbor.Cursor(name).text("name"), data) for name, data in _pairs(value, "objects")]
        elif key != _ATTRIBUTES:
            others.append((key, value))
    return items, others


def _object(tensor: str, data: bytes) -> _Item:
    blobs = []
    parts = cbor.Cursor(data, pos=cbor.Cursor(data).fields("object")["parts"])
    for _ in parts.map("parts"):
        parts.skip()
        fields = cbor.Cursor(data, pos=parts.skip()[0]).fields("part")
        if "shard" in fields:
            continue  # in another file, which stays as it is
        blob = cbor.Cursor(data, pos=fields["blob"])
        next(blob.array("blob"))
        begin = blob.pos
        offset = blob.uint("offset")
        behind = blob.pos
        blobs.append((offset, blob.uint("length"), begin, behind))
    return _Item(tensor, data, tuple(blobs))


def _source(archive: Archive) -> Source:
    assert archive.source is not None  # noqa: S101
    return archive.source
