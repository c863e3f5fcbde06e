"""`strict=True`: the file is the one that our writer makes of what it holds, byte for byte but for the tensors.

The index is written again from what was read and compared; the places of the blobs
follow from it, and the bytes between them must be zero. In version 2 that is
canonical form (§6.3); in 0.1 it is the form of the packages, raw, without shared
blobs. The data itself is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from tensorglot.containers.table import WriteOptions
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, CANONICAL_ALIGNMENT, FOOTER_2, MAGIC_01, MAGIC_2
from tensorglot.containers.ztensor.manifest import PartSpec, TensorSpec, codes_of, encode_manifest
from tensorglot.containers.ztensor.write01 import Blob, blobs_of, encode_blobs
from tensorglot.containers.ztensor.write2 import footer, is_canonical_name
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import Encoded, Source
from tensorglot.model.tensor import Tensor
from tensorglot.wire import checksums

__all__ = ["check_01", "check_2"]


def _refuse(rule: str, message: str, offset: int | None = None, tensor: str | None = None) -> FormatError:
    return FormatError(message, rule=f"ztensor.strict.{rule}", offset=offset, tensor=tensor)


def check_01(source: Source, index: Index, data: bytes, begin: int) -> None:
    """`data` is the index, which stands at `begin`."""
    try:
        blobs = list(_place_blobs(Archive(index, source)))
        ours = encode_blobs(blobs)
    except UnsupportedError as error:
        raise _refuse("index", error.message, begin, error.tensor) from error
    if begin != max((blob.offset + blob.size for blob in blobs), default=len(MAGIC_01)):
        raise _refuse("place", "the index is not directly behind the last blob", begin)
    if ours != data or begin + len(ours) + 8 != source.size:
        raise _refuse("index", "the index is not in the writer's form", begin + _first_difference(ours, data))
    spans = [(blob.offset, blob.offset + blob.size) for blob in blobs]
    _check_zero(source, [(0, len(MAGIC_01)), *spans, (begin, begin)])


def _place_blobs(archive: Archive) -> Iterator[Blob]:
    """The blobs that the writer would make of an archive, where it would put them."""
    position = len(MAGIC_01)
    for blob in blobs_of(archive, WriteOptions("0.1")):
        part, name = blob.part, blob.name
        if isinstance(part.payload, Encoded) or part.dtype is None or part.big_endian:
            raise _refuse("encoding", "a tensor that is not raw, little-endian and of a known type", part.offset, name)
        if part.checksum is not None and str(checksums.parse(part.checksum, name)) != part.checksum:
            raise _refuse("checksum", "a checksum in another form than the writer's", part.offset, name)
        blob.offset = position + -position % ALIGNMENT_01
        blob.size, blob.checksum = part.nbytes, part.checksum
        position = blob.offset + blob.size
        yield blob


def check_2(source: Source, index: Index, data: bytes, begin: int) -> None:
    """`data` is the manifest, which stands at `begin`: §6.3, rule by rule."""
    archive = Archive(index, source)
    tensors = sorted(archive.values(), key=lambda tensor: tensor.name.encode())
    specs = []
    places: dict[tuple[str, int], int] = {}
    position = len(MAGIC_2)
    for tensor in tensors:
        spec = _spec(tensor, index)
        for part in sorted(spec.parts, key=lambda part: part.name.encode()):
            begins_at = -(-max(position, CANONICAL_ALIGNMENT) // CANONICAL_ALIGNMENT) * CANONICAL_ALIGNMENT
            part.offset = places.setdefault((str(part.digest), part.length), begins_at)
            if part.offset == begins_at and part.length:
                position = begins_at + part.length
        specs.append(spec)
    if index.sources:
        raise _refuse("shards", "canonical form is one file (rule 6)")
    ours = encode_manifest(specs, index.metadata)
    if ours != data:
        raise _refuse("manifest", "the manifest is not canonical (rules 1 to 3)", begin + _first_difference(ours, data))
    expected = -(-max(position, CANONICAL_ALIGNMENT) // CANONICAL_ALIGNMENT) * CANONICAL_ALIGNMENT
    if begin != expected or begin + len(data) + FOOTER_2 != source.size:
        raise _refuse("place", "the manifest is not directly behind the blobs (rule 3)", begin)
    if source.read_bytes(source.size - FOOTER_2, FOOTER_2) != footer(begin, data):
        raise _refuse("footer", "the footer is not canonical", source.size - FOOTER_2)
    spans = {(part.offset, part.offset + part.length) for spec in specs for part in spec.parts}
    _check_zero(source, [(0, len(MAGIC_2)), *sorted(spans), (begin, begin)])


def _spec(tensor: Tensor, index: Index) -> TensorSpec:
    parts = []
    for name, part in tensor.parts.items():
        if isinstance(part.payload, Encoded):
            raise _refuse("encoding", "a part that is not raw (rule 4)", part.offset, tensor.name)
        if part.checksum is None or not part.checksum.startswith("xxh3:"):
            raise _refuse("digest", "a part without an xxh3 digest (rule 4)", part.offset, tensor.name)
        if not is_canonical_name(tensor.name) or not is_canonical_name(name):
            raise _refuse("name", "a name that is not in NFC (rule 5)", part.offset, tensor.name)
        dtype, logical = codes_of(part, tensor.name)
        parts.append(PartSpec(name, dtype, logical, part.checksum, length=part.nbytes))
    with_attributes = index.positions[tensor.name] in index.attributes
    return TensorSpec(
        tensor.name, tensor.shape, tensor.layout, parts, dict(tensor.attributes) if with_attributes else None
    )


def _check_zero(source: Source, spans: Iterable[tuple[int, int]]) -> None:
    for (_, end), (begin, _) in pairwise(spans):
        if begin > end and any(source.read(end, begin - end)):
            raise _refuse("padding", "padding that is not zero", end)


def _first_difference(one: bytes | bytearray, other: bytes) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
