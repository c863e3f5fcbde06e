"""Version 2: writing, in canonical form wherever that is possible (§6.3).

Canonical is what is raw, has xxh3 digests and names in NFC: blobs at successive
multiples of 65536 in the plain order of object and part names, equal contents once,
then the manifest, then the footer. Such a file is byte for byte that of the package.
With compression, another digest, names that are not in NFC, or parts that can only be
copied, blobs are packed at multiples of 4096.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import xxhash

from tensorglot.containers.table import WriteOptions, check_header
from tensorglot.containers.ztensor.constants import ALIGNMENT_2, CANONICAL_ALIGNMENT, FOOTER_FORM, MAGIC_2, SEEKABLE
from tensorglot.containers.ztensor.manifest import PartSpec, TensorSpec, encode_manifest, words_of
from tensorglot.containers.ztensor.stored import compressed, copied, decoded, index_parts, is_opaque
from tensorglot.containers.ztensor.write01 import LEVEL
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Chunk, Encoded, Span, as_bytes, buffers, place
from tensorglot.model.tensor import Part, Tensor
from tensorglot.wire import checksums, zstd
from tensorglot.wire.seektable import seek_table

__all__ = ["ended", "footer", "is_canonical_name", "write"]

NAME_NBYTES = 1024
RANK = 64


@dataclass(frozen=True, slots=True)
class _Item:
    """A part to be written, and what the manifest will say of it."""

    part: Part
    spec: PartSpec


@dataclass(slots=True)
class _Placed:
    """Blobs that are written: where content of a digest and size is, and whose it was."""

    sizes: set[int] = field(default_factory=set)
    by_content: dict[tuple[str, int], _Item] = field(default_factory=dict)


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    algorithm = "sha256" if options.checksum.default == "sha256" else "xxh3"
    tensors = [index_parts(archive.tensor_at(i)) for i in range(len(archive.index.names))]
    specs = [_spec(tensor) for tensor in sorted(tensors, key=lambda tensor: tensor.name.encode())]
    items = [item for _, items in specs for item in items]
    metadata = archive.index.metadata
    _check_keys(metadata or {}, None)
    alignment = ALIGNMENT_2
    if options.compression.default is None and algorithm == "xxh3" and _canonical(specs):
        alignment = CANONICAL_ALIGNMENT
    yield MAGIC_2
    position = len(MAGIC_2)
    if options.compression.default is None:
        blobs = _raw(items, algorithm)
    else:
        blobs = _squeezed(items, algorithm, LEVEL if options.level is None else options.level)
    for item, chunks in blobs:
        begin = -(-max(position, alignment) // alignment) * alignment
        item.spec.offset = begin
        for chunk in chunks:
            if position < begin:
                yield bytes(begin - position)
                position = begin
            nbytes = chunk.nbytes if isinstance(chunk, Span) else len(chunk)
            item.spec.length += nbytes
            position += nbytes
            yield chunk
    begin = -(-max(position, alignment) // alignment) * alignment
    yield bytes(begin - position)
    manifest = encode_manifest([tensor for tensor, _ in specs], metadata)
    yield from ended(begin, manifest)


def ended(begin: int, manifest: bytes) -> Iterator[Chunk]:
    """The manifest and the footer, which end a file."""
    check_header(len(manifest), "ztensor")
    yield manifest
    yield footer(begin, manifest)


def footer(offset: int, manifest: bytes) -> bytes:
    return FOOTER_FORM.pack(offset, len(manifest), xxhash.xxh3_64_intdigest(manifest), 2, 0, MAGIC_2)


def _canonical(specs: Iterable[tuple[TensorSpec, list[_Item]]]) -> bool:
    for tensor, items in specs:
        if any(is_opaque(item.part) for item in items):
            return False
        if not all(map(is_canonical_name, (tensor.name, *(item.spec.name for item in items)))):
            return False
    return True


def is_canonical_name(name: str) -> bool:
    """§6.3, rule 5."""
    return unicodedata.is_normalized("NFC", name)


def _spec(tensor: Tensor) -> tuple[TensorSpec, list[_Item]]:
    _check_name(tensor.name, tensor.name)
    _check_keys(tensor.attributes, tensor.name)
    if len(tensor.shape) > RANK or math.prod(tensor.shape) >= 1 << 64:
        raise UnsupportedError(
            "ztensor@2 takes 64 dimensions and 2**64 elements", rule="ztensor.write.shape", tensor=tensor.name
        )
    items = []
    for name, part in sorted(tensor.parts.items(), key=lambda pair: pair[0].encode()):
        _check_name(name, tensor.name)
        dtype, logical = words_of(part, tensor.name)
        items.append(_Item(part, PartSpec(name, dtype, logical)))
    attributes = dict(tensor.attributes) if tensor.attributes else None
    return TensorSpec(tensor.name, tensor.shape, tensor.layout, [item.spec for item in items], attributes), items


def _check_name(name: str, tensor: str | None) -> None:
    """§3.5."""
    if not 0 < len(name.encode()) <= NAME_NBYTES or "\0" in name:
        raise UnsupportedError(
            f"ztensor@2 takes names of 1 to {NAME_NBYTES} bytes without NUL", rule="ztensor.write.name", tensor=tensor
        )


def _check_keys(attributes: Mapping[str, Any], tensor: str | None) -> None:
    for key in attributes:
        if not isinstance(key, str):
            raise InputError("the key of an attribute is text", rule="ztensor.write.attribute", tensor=tensor)
        _check_name(key, tensor)


def _raw(items: Iterable[_Item], algorithm: str) -> Iterator[tuple[_Item, Iterable[Chunk]]]:
    """Parts with their chunks; a part whose bytes are written already has none, and is told where they are.

    The caller places a part before it takes its chunks, and has taken them all before
    it asks for the next part.
    """
    placed = _Placed()
    for item in items:
        if is_opaque(item.part):
            yield item, _copied(item)
            continue
        nbytes = item.part.nbytes
        if nbytes in placed.sizes:
            item.spec.digest = _digest(item.part, algorithm)
            twin = placed.by_content.get((item.spec.digest, nbytes))
            if twin is not None and _same(item.part, twin.part):
                item.spec.offset, item.spec.length = twin.spec.offset, twin.spec.length
                continue
            yield item, decoded(item.part)
        else:
            yield item, _hashed(item, algorithm)
        placed.sizes.add(nbytes)
        placed.by_content[(str(item.spec.digest), nbytes)] = item


def _copied(item: _Item) -> Iterator[Chunk]:
    assert isinstance(item.part.payload, Encoded)  # noqa: S101
    item.spec.encoding, item.spec.decoded = item.part.payload.codec.name, item.part.nbytes
    item.spec.digest = item.part.checksum if item.part.checksum_decoded else None
    return copied(item.part)


def _hashed(item: _Item, algorithm: str) -> Iterator[Chunk]:
    hasher = checksums.hasher(algorithm)
    for chunk in buffers(decoded(item.part)):
        hasher.update(as_bytes(chunk))
        yield chunk
    item.spec.digest = str(checksums.Checksum(algorithm, hasher.digest()))


def _digest(part: Part, algorithm: str) -> str:
    hasher = checksums.hasher(algorithm)
    for chunk in buffers(decoded(part)):
        hasher.update(as_bytes(chunk))
    return str(checksums.Checksum(algorithm, hasher.digest()))


def _same(one: Part, other: Part) -> bool:
    """Equal hashes alone prove nothing (§6.3)."""
    pieces = zip(zstd.pieces(buffers(decoded(one))), zstd.pieces(buffers(decoded(other))), strict=False)
    return all(a == b for a, b in pieces)


def _squeezed(items: list[_Item], algorithm: str, level: int) -> Iterator[tuple[_Item, Iterable[Chunk]]]:
    """Parts as seekable zstd, their digests over the bytes before; tied ones once."""
    twins = _twins(items)
    parts = [None if i in twins or is_opaque(item.part) else item.part for i, item in enumerate(items)]
    hashers = [checksums.hasher(algorithm) for _ in items]
    frames = groupby(compressed(parts, level, checksum=True, hashers=hashers), key=lambda frame: frame[0])
    for i, (item, part, hasher) in enumerate(zip(items, parts, hashers, strict=True)):
        if i in twins:
            twin = items[twins[i]].spec
            item.spec.offset, item.spec.length, item.spec.digest = twin.offset, twin.length, twin.digest
            item.spec.encoding, item.spec.decoded = twin.encoding, twin.decoded
            continue
        if part is None:
            yield item, _copied(item)
            continue
        item.spec.encoding, item.spec.decoded = SEEKABLE, part.nbytes
        yield item, _seekable(next(frames)[1])
        item.spec.digest = str(checksums.Checksum(algorithm, hasher.digest()))


def _twins(items: list[_Item]) -> dict[int, int]:
    """Positions of parts whose bytes are those of an earlier one, and the position of that one."""
    first: dict[tuple[object, ...], int] = {}
    twins = {}
    for i, item in enumerate(items):
        if item.part.nbytes and not is_opaque(item.part):
            key = (*place(item.part.payload), item.part.big_endian)
            if first.setdefault(key, i) != i:
                twins[i] = first[key]
    return twins


def _seekable(frames: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
    sizes = []
    for _, nbytes, frame in frames:
        if nbytes:
            sizes.append((len(frame), nbytes))
            yield frame
    yield seek_table(sizes)
