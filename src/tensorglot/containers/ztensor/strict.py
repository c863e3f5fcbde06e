"""`strict=True`: checks that the file is byte for byte what our writer would produce, without reading the tensors.

The index is encoded again from what was read, and compared. That fixes the offsets of the
blobs, and the bytes between them must be zero. In version 2 this is canonical form (§6.3);
in 0.1 it is the form of the packages: raw, without shared blobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from tensorglot.containers.canonical import check_padding, first_difference
from tensorglot.containers.table import WriteOptions
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, CANONICAL_ALIGNMENT, FOOTER_2, MAGIC_01, MAGIC_2
from tensorglot.containers.ztensor.manifest import TensorSpec, encode_manifest
from tensorglot.containers.ztensor.stored import Blob
from tensorglot.containers.ztensor.write01 import encode_index, entries_of
from tensorglot.containers.ztensor.write2 import footer, is_canonical_name, spec_of
from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import Encoded, Source
from tensorglot.model.tensor import Part, Tensor
from tensorglot.wire import checksums

__all__ = ["check_01", "check_2"]


_check_padding = partial(check_padding, rule="ztensor.strict.padding")


def _refuse(rule: str, message: str, offset: int | None = None, tensor: str | None = None) -> FormatError:
    return FormatError(message, rule=f"ztensor.strict.{rule}", offset=offset, tensor=tensor)


def check_01(source: Source, index: Index, data: bytes, begin: int) -> None:
    """`data` is the index, `begin` its offset."""
    try:
        entries = list(entries_of(Archive(index, source), WriteOptions("0.1")))
        for entry in entries:
            _check_raw(entry.blob.part, entry.name)
        position = _place([entry.blob for entry in entries], len(MAGIC_01), ALIGNMENT_01, shared=False)
        ours = encode_index(entries)
    except UnsupportedError as error:
        raise _refuse("index", error.message, begin, error.tensor) from error
    if begin != position:
        raise _refuse("place", f"the index must follow the last blob, at byte {position}", begin)
    if ours != data or begin + len(ours) + 8 != source.size:
        raise _refuse("index", "the index is not in the writer's form", begin + first_difference(ours, data))
    _check_padding(source, [(0, len(MAGIC_01)), *(_span(entry.blob) for entry in entries), (begin, begin)])


def _check_raw(part: Part, name: str) -> None:
    if isinstance(part.payload, Encoded) or part.dtype is None or part.big_endian:
        raise _refuse("encoding", "the tensor is not raw, little-endian and of a known type", part.offset, name)
    if part.checksum is not None and str(checksums.parse(part.checksum, name)) != part.checksum:
        raise _refuse("checksum", "the checksum is not in the writer's form", part.offset, name)


def _place(blobs: Iterable[Blob], position: int, alignment: int, *, shared: bool) -> int:
    """Sets the offsets of blobs as the writer would, equal contents once if `shared`; returns the end of the last."""
    offsets: dict[tuple[str | None, int], int] = {}
    for blob in blobs:
        blob.checksum, blob.size = blob.part.checksum, blob.part.nbytes
        begin = position + -position % alignment
        blob.offset = offsets.setdefault((blob.checksum, blob.size), begin) if shared else begin
        if blob.offset == begin:
            position = begin + blob.size
    return position


def check_2(source: Source, index: Index, data: bytes, begin: int) -> None:
    """`data` is the manifest, `begin` its offset: §6.3, rule by rule."""
    tensors = sorted(Archive(index, source).values(), key=lambda tensor: tensor.name.encode())
    specs = [_spec(tensor, index) for tensor in tensors]
    blobs = [part.blob for spec in specs for part in spec.parts]
    position = _place(blobs, len(MAGIC_2), CANONICAL_ALIGNMENT, shared=True)
    if index.sources:
        raise _refuse("shards", "canonical form is one file (rule 6)")
    ours = encode_manifest(specs, index.metadata)
    if ours != data:
        raise _refuse("manifest", "the manifest is not canonical (rules 1 to 3)", begin + first_difference(ours, data))
    expected = position + -position % CANONICAL_ALIGNMENT
    if begin != expected or begin + len(data) + FOOTER_2 != source.size:
        raise _refuse("place", f"the manifest must follow the blobs, at byte {expected} (rule 3)", begin)
    if source.read_bytes(source.size - FOOTER_2, FOOTER_2) != footer(begin, data):
        raise _refuse("footer", "the footer is not canonical", source.size - FOOTER_2)
    _check_padding(source, [(0, len(MAGIC_2)), *sorted(set(map(_span, blobs))), (begin, begin)])


def _spec(tensor: Tensor, index: Index) -> TensorSpec:
    for name, part in tensor.parts.items():
        if isinstance(part.payload, Encoded):
            raise _refuse("encoding", "a part is not raw (rule 4)", part.offset, tensor.name)
        if part.checksum is None or not part.checksum.startswith("xxh3:"):
            raise _refuse("digest", "a part has no xxh3 digest (rule 4)", part.offset, tensor.name)
        if not is_canonical_name(tensor.name) or not is_canonical_name(name):
            raise _refuse("name", "a name is not in NFC (rule 5)", part.offset, tensor.name)
    attributes = dict(tensor.attributes) if index.positions[tensor.name] in index.attributes else None
    return replace(spec_of(tensor, WriteOptions("2")), attributes=attributes)


def _span(blob: Blob) -> tuple[int, int]:
    return blob.offset, blob.offset + blob.size
