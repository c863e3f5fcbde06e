"""Version 2: writing, in canonical form wherever that is possible (§6.3).

Canonical is what is raw, has xxh3 digests and names in NFC: blobs at successive
multiples of 65536 in the plain order of object and part names, equal contents once,
then the manifest, then the footer. Such a file is byte for byte that of the package.
With compression, another digest or none, names that are not in NFC, or parts that can
only be copied, blobs are packed at multiples of 4096.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import xxhash

from tensorglot.containers.table import WriteOptions, check_header
from tensorglot.containers.ztensor.constants import ALIGNMENT_2, CANONICAL_ALIGNMENT, FOOTER_FORM, MAGIC_2, SEEKABLE
from tensorglot.containers.ztensor.hashing import HashingThread, hash_chunk
from tensorglot.containers.ztensor.manifest import PartSpec, TensorSpec, codes_of, encode_manifest
from tensorglot.containers.ztensor.scan import NAME_NBYTES
from tensorglot.containers.ztensor.stored import (
    LEVEL,
    Compressed,
    Squeeze,
    compress,
    copied,
    decoded,
    index_parts,
    is_opaque,
)
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Chunk, Encoded, Span, buffers, location
from tensorglot.model.tensor import Part, Tensor
from tensorglot.threads import ordered_map
from tensorglot.wire import checksums, zstd
from tensorglot.wire.seektable import seek_table

__all__ = ["end_file", "footer", "is_canonical_name", "write"]

RANK = 64


@dataclass(slots=True)
class _Item:
    """A part to be written, how, and what the manifest will say of it."""

    part: Part
    spec: PartSpec
    compressed: bool
    algorithm: str | None
    """Of the digest."""
    twin: _Item | None = None
    """Another part with the same bytes, which are written once."""
    hasher: checksums.Hasher | None = None


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    tensors = [index_parts(archive.tensor_at(i)) for i in range(len(archive.index.names))]
    specs = [_spec(tensor, options) for tensor in sorted(tensors, key=_name_bytes)]
    items = [item for _, items in specs for item in items]
    metadata = archive.index.metadata
    _check_keys(metadata or {}, None)
    alignment = CANONICAL_ALIGNMENT if _is_canonical(specs) else ALIGNMENT_2
    yield MAGIC_2
    position = len(MAGIC_2)
    with HashingThread(sum(item.part.nbytes for item in items if item.algorithm)) as thread:
        for item, chunks in _blobs(items, LEVEL if options.level is None else options.level):
            begin = -(-max(position, alignment) // alignment) * alignment
            item.spec.offset = begin
            for chunk in chunks:
                if position < begin:
                    yield bytes(begin - position)
                    position = begin
                if item.hasher is not None and not item.compressed:
                    thread.update(item.hasher, chunk)
                nbytes = chunk.nbytes if isinstance(chunk, Span) else len(chunk)
                item.spec.length += nbytes
                position += nbytes
                yield chunk
        thread.finish()
    _finish_specs(items)
    begin = -(-max(position, alignment) // alignment) * alignment
    yield bytes(begin - position)
    yield from end_file(begin, encode_manifest([tensor for tensor, _ in specs], metadata))


def end_file(begin: int, manifest: bytes) -> Iterator[Chunk]:
    """The manifest and the footer."""
    check_header(len(manifest), "ztensor")
    yield manifest
    yield footer(begin, manifest)


def footer(offset: int, manifest: bytes) -> bytes:
    return FOOTER_FORM.pack(offset, len(manifest), xxhash.xxh3_64_intdigest(manifest), 2, 0, MAGIC_2)


def _name_bytes(tensor: Tensor) -> bytes:
    return tensor.name.encode()


def _is_canonical(specs: Iterable[tuple[TensorSpec, list[_Item]]]) -> bool:
    """Rules 4 and 5 of §6.3; the others are how we write everything."""
    for tensor, items in specs:
        if any(item.compressed or item.algorithm != "xxh3" or is_opaque(item.part) for item in items):
            return False
        if not all(map(is_canonical_name, (tensor.name, *(item.spec.name for item in items)))):
            return False
    return True


def is_canonical_name(name: str) -> bool:
    """§6.3, rule 5."""
    return unicodedata.is_normalized("NFC", name)


def _spec(tensor: Tensor, options: WriteOptions) -> tuple[TensorSpec, list[_Item]]:
    _check_name(tensor.name, tensor.name)
    _check_keys(tensor.attributes, tensor.name)
    if len(tensor.shape) > RANK or math.prod(tensor.shape) >= 1 << 64:
        raise UnsupportedError(
            "ztensor@2 takes 64 dimensions and 2**64 elements", rule="ztensor.write.shape", tensor=tensor.name
        )
    compressed, checksum = options.compression.of(tensor.name) is not None, options.checksum.of(tensor.name)
    algorithm = None if checksum == "frame" else checksum  # every frame has one
    items = []
    for name in sorted(tensor.parts, key=str.encode):
        part = tensor.parts[name]
        _check_name(name, tensor.name)
        dtype, logical = codes_of(part, tensor.name)
        items.append(_Item(part, PartSpec(name, dtype, logical), compressed and not is_opaque(part), algorithm))
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


def _blobs(items: Sequence[_Item], level: int) -> Iterator[tuple[_Item, Iterable[Chunk]]]:
    """Parts with their chunks; a part whose bytes are written already has none, and knows its twin.

    The caller places a part before it takes its chunks, and has taken them all before it
    asks for the next part.
    """
    _find_tied(items)
    jobs: list[Squeeze | None] = []
    for item in items:
        if item.algorithm is not None and item.twin is None and not is_opaque(item.part):
            item.hasher = checksums.hasher(item.algorithm)
        squeezed = item.compressed and item.twin is None
        jobs.append(Squeeze(item.part, checksum=True, hasher=item.hasher) if squeezed else None)
    frames = compress(jobs, level)
    compared = _comparable(items)
    digests = _digests_ahead([item for item in items if id(item) in compared])
    written: dict[tuple[str, int], _Item] = {}
    for item in items:
        if item.twin is not None:
            continue
        if is_opaque(item.part):
            yield item, _copy(item)
        elif item.compressed:
            item.spec.encoding, item.spec.decoded = SEEKABLE, item.part.nbytes
            yield item, _seekable(next(frames))
        elif id(item) in compared:
            item.hasher, item.spec.digest = None, next(digests)
            twin = written.setdefault((item.spec.digest, item.part.nbytes), item)
            if twin is not item and _is_same(item.part, twin.part):
                item.twin = twin
            else:
                yield item, decoded(item.part)
        else:
            yield item, decoded(item.part)


def _comparable(items: Iterable[_Item]) -> set[int]:
    """Raw parts with a digest that may have the same content as another one: they have the same size."""
    raw = [item for item in items if item.hasher is not None and not item.compressed]
    counts = Counter(item.part.nbytes for item in raw)
    return {id(item) for item in raw if counts[item.part.nbytes] > 1}


def _digests_ahead(items: Sequence[_Item]) -> Iterator[str]:
    """Their digests, computed by other threads while what is before them is written."""

    def digests(batch: list[_Item]) -> list[str]:
        return [_digest(item) for item in batch]

    return chain.from_iterable(ordered_map(digests, zstd.batches(items, lambda item: item.part.nbytes)))


def _digest(item: _Item) -> str:
    assert item.algorithm is not None  # noqa: S101
    hasher = checksums.hasher(item.algorithm)
    for chunk in decoded(item.part):
        hash_chunk(hasher, chunk)
    return str(checksums.Checksum(item.algorithm, hasher.digest()))


def _is_same(one: Part, other: Part) -> bool:
    """Equal hashes alone prove nothing (§6.3)."""
    held = one.payload.view(), other.payload.view()
    if held[0] is not None and held[1] is not None and not (one.big_endian or other.big_endian):
        return held[0] == held[1]
    pieces = zip(zstd.pieces(buffers(decoded(one))), zstd.pieces(buffers(decoded(other))), strict=False)
    return all(a == b for a, b in pieces)


def _find_tied(items: Iterable[_Item]) -> None:
    """Parts that lie at one location, to be stored alike, are stored once."""
    first: dict[tuple[object, ...], _Item] = {}
    for item in items:
        if item.part.nbytes and not is_opaque(item.part):
            key = (*location(item.part.payload), item.part.big_endian, item.compressed, item.algorithm)
            tied = first.setdefault(key, item)
            item.twin = None if tied is item else tied


def _copy(item: _Item) -> Iterator[Chunk]:
    assert isinstance(item.part.payload, Encoded)  # noqa: S101
    item.spec.encoding, item.spec.decoded = item.part.payload.codec.name, item.part.nbytes
    item.spec.digest = item.part.checksum if item.part.checksum_decoded else None
    return copied(item.part)


def _seekable(frames: Iterable[Compressed]) -> Iterator[bytes]:
    sizes = []
    for frame in frames:
        if frame.nbytes:
            sizes.append((len(frame.data), frame.nbytes))
            yield frame.data
    yield seek_table(sizes)


def _finish_specs(items: Iterable[_Item]) -> None:
    """Digests, now that all is hashed, and the blobs of twins."""
    for item in items:
        if item.hasher is not None:
            item.spec.digest = str(checksums.Checksum(str(item.algorithm), item.hasher.digest()))
    for item in items:
        if item.twin is not None:
            twin = item.twin.spec
            item.spec.offset, item.spec.length, item.spec.digest = twin.offset, twin.length, twin.digest
            item.spec.encoding, item.spec.decoded = twin.encoding, twin.decoded
