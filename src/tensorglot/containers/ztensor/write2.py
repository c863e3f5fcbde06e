"""Version 2: writing, in canonical form if possible (§6.3).

Canonical form is raw, with xxh3 digests and names in NFC: blobs at successive multiples
of 65536 in the byte order of object and part names, equal contents once, then the
manifest, then the footer. Such a file is byte for byte that of the package. With
compression, another digest or none, names not in NFC, or opaque parts, blobs are at
multiples of 4096.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import xxhash

from tensorglot.containers.table import Fault, WriteOptions, check_header
from tensorglot.containers.ztensor.constants import ALIGNMENT_2, CANONICAL_ALIGNMENT, FOOTER_FORM, MAGIC_2
from tensorglot.containers.ztensor.hashing import hash_chunk
from tensorglot.containers.ztensor.manifest import PartSpec, TensorSpec, codes_of, encode_manifest
from tensorglot.containers.ztensor.scan import NAME_NBYTES
from tensorglot.containers.ztensor.stored import (
    Blob,
    Frame,
    compress,
    copy_opaque,
    decode,
    index_parts,
    is_opaque,
    prepare,
    write_blobs,
)
from tensorglot.errors import InputError, UnsupportedError
from tensorglot.memory import regroup
from tensorglot.model.archive import Archive
from tensorglot.model.needed_twice import NeededTwice
from tensorglot.model.payload import Chunk, buffers
from tensorglot.model.tensor import Part, Tensor
from tensorglot.threads import batches, ordered_map
from tensorglot.wire import checksums, zstd
from tensorglot.wire.seektable import seek_table

__all__ = ["check_name", "end_file", "find_fault", "footer", "is_canonical_name", "spec_of", "stored_blobs", "write"]

RANK = 64
_NAME_FAULT = Fault("name", f"ztensor@2 supports names of 1 to {NAME_NBYTES} bytes without NUL")


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    tensors = sorted(map(archive.tensor_at, range(len(archive.index.names))), key=lambda tensor: tensor.name.encode())
    specs = [spec_of(index_parts(tensor), options) for tensor in tensors]
    blobs = [part.blob for spec in specs for part in spec.parts]
    metadata = archive.index.metadata
    _check_keys(metadata or {}, None)
    prepare(blobs)
    alignment = CANONICAL_ALIGNMENT if all(map(_is_canonical, specs)) else ALIGNMENT_2
    yield MAGIC_2
    stored = stored_blobs(blobs, options.level)
    end = yield from write_blobs(blobs, stored, len(MAGIC_2), alignment)
    yield bytes(-end % alignment)
    yield from end_file(end + -end % alignment, encode_manifest(specs, metadata))


def end_file(begin: int, manifest: bytes) -> Iterator[Chunk]:
    """The manifest and the footer."""
    check_header(len(manifest), "ztensor")
    yield manifest
    yield footer(begin, manifest)


def footer(offset: int, manifest: bytes) -> bytes:
    return FOOTER_FORM.pack(offset, len(manifest), xxhash.xxh3_64_intdigest(manifest), 2, 0, MAGIC_2)


def _is_canonical(tensor: TensorSpec) -> bool:
    """Whether rules 4 and 5 of §6.3 hold; the others hold for every file that we write."""
    return all(map(is_canonical_name, (tensor.name, *(part.name for part in tensor.parts)))) and all(
        part.encoding is None and part.blob.algorithm == "xxh3" for part in tensor.parts
    )


def is_canonical_name(name: str) -> bool:
    """§6.3, rule 5."""
    return unicodedata.is_normalized("NFC", name)


def spec_of(tensor: Tensor, options: WriteOptions) -> TensorSpec:
    """The manifest entry of a tensor, whose blobs have no offsets yet. Refuses what version 2 cannot represent."""
    fault = find_fault(tensor.name, tensor.shape)
    if fault is not None:
        raise fault.error("ztensor", tensor.name)
    _check_keys(tensor.attributes, tensor.name)
    compressed, checksum = options.compression.of(tensor.name) is not None, options.checksum.of(tensor.name)
    algorithm = None if checksum == "frame" else checksum  # every frame has one
    parts = []
    for name in sorted(tensor.parts, key=str.encode):
        part = tensor.parts[name]
        check_name(name, tensor.name)
        opaque = is_opaque(part)
        blob = Blob(part, compressed and not opaque, algorithm, decoded=True)
        if opaque and part.checksum_decoded:
            blob.checksum = part.checksum
        parts.append(PartSpec(name, *codes_of(part, tensor.name), blob))
    return TensorSpec(tensor.name, tensor.shape, tensor.layout, parts, dict(tensor.attributes) or None)


def find_fault(name: str, shape: tuple[int, ...]) -> Fault | None:
    """Why a tensor cannot be written."""
    if not _is_name(name):
        return _NAME_FAULT
    if len(shape) > RANK or math.prod(shape) >= 1 << 64:
        return Fault("shape", f"ztensor@2 supports {RANK} dimensions and fewer than 2**64 elements")
    return None


def check_name(name: str, tensor: str | None) -> None:
    if not _is_name(name):
        raise UnsupportedError(_NAME_FAULT.message, rule="ztensor.write.name", tensor=tensor)


def _is_name(name: str) -> bool:
    """§3.5."""
    return 0 < len(name.encode()) <= NAME_NBYTES and "\0" not in name


def _check_keys(attributes: Mapping[str, Any], tensor: str | None) -> None:
    for key in attributes:
        if not isinstance(key, str):
            raise InputError("attribute keys must be text", rule="ztensor.write.attribute", tensor=tensor)
        check_name(key, tensor)


def stored_blobs(blobs: Sequence[Blob], level: int | None) -> Iterator[tuple[Blob, Iterable[Chunk]]]:
    """Yields each blob with its chunks as they are to be stored; equal contents once.

    The caller must consume all chunks of a blob before it requests the next blob.
    """
    frames = compress(blobs, level)
    compared = _comparable(blobs)
    digests = _digests_ahead([blob for blob in blobs if id(blob) in compared])
    written: dict[tuple[str, int], Blob] = {}
    for blob in blobs:
        if blob.twin is not None:
            continue
        if is_opaque(blob.part):
            yield blob, copy_opaque(blob.part)
        elif blob.compressed:
            yield blob, _seekable(next(frames))
        elif id(blob) not in compared:
            yield blob, decode(blob.part)
        else:
            blob.hasher, (blob.checksum, data) = None, next(digests)
            twin = written.setdefault((blob.checksum, blob.part.nbytes), blob)
            if twin is not blob and _is_same(blob.part, twin.part):
                blob.twin = twin
                data.close()
            else:
                yield blob, data.again()


def _comparable(blobs: Iterable[Blob]) -> set[int]:
    """Ids of the raw blobs with a digest whose contents may equal another's, because the sizes are equal."""
    raw = [blob for blob in blobs if blob.hasher is not None and not blob.compressed]
    counts = Counter(blob.part.nbytes for blob in raw)
    return {id(blob) for blob in raw if counts[blob.part.nbytes] > 1}


def _digests_ahead(blobs: Sequence[Blob]) -> Iterator[tuple[str, NeededTwice]]:
    """The digest and chunks of each blob, computed by other threads while earlier blobs are written."""

    def digest(blob: Blob) -> tuple[str, NeededTwice]:
        assert blob.algorithm is not None  # noqa: S101
        hasher, data = checksums.hasher(blob.algorithm), NeededTwice(blob.part.payload, partial(decode, blob.part))
        for chunk in data.once():
            hash_chunk(hasher, chunk)
        return str(checksums.Checksum(blob.algorithm, hasher.digest())), data

    groups = batches(blobs, lambda blob: blob.part.nbytes, zstd.FRAME_NBYTES)
    return chain.from_iterable(ordered_map(lambda batch: list(map(digest, batch)), groups))


def _is_same(one: Part, other: Part) -> bool:
    """Compares the bytes, because equal hashes do not prove equal contents (§6.3)."""
    held = one.payload.view(), other.payload.view()
    if held[0] is not None and held[1] is not None and not (one.big_endian or other.big_endian):
        return held[0] == held[1]
    pieces = zip(*(regroup(buffers(decode(part)), zstd.FRAME_NBYTES) for part in (one, other)), strict=False)
    return all(a == b for a, b in pieces)


def _seekable(frames: Iterable[Frame]) -> Iterator[bytes]:
    sizes = []
    for frame in frames:
        if frame.nbytes:
            sizes.append((len(frame.data), frame.nbytes))
            yield frame.data
    yield seek_table(sizes)
