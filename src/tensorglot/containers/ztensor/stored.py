"""The blobs of a file: the bytes of parts, raw, compressed or copied, each at the next multiple of an alignment.

Shared by the writers of both versions. The chunks of all blobs are yielded in order,
compression and hashing run on other threads, and no part is held in memory as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby

from tensorglot.containers.ztensor.codecs import Opaque
from tensorglot.containers.ztensor.hashing import HashingThread
from tensorglot.errors import InputError
from tensorglot.memory import regroup
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.layouts import COO, CSR, check_values
from tensorglot.model.needed_twice import read_remote
from tensorglot.model.payload import Buffer, Chunk, Encoded, Memory, Span, buffers, location
from tensorglot.model.repeated import NAMES, share_too_much
from tensorglot.model.tensor import Part, Tensor
from tensorglot.threads import batches, ordered_map
from tensorglot.tuples import NamedTuple
from tensorglot.wire import checksums, zstd

__all__ = ["Blob", "Frame", "compress", "copy_opaque", "decode", "index_parts", "is_opaque", "prepare", "write_blobs"]

LEVEL = 1
"""Default compression level. Higher levels gain next to nothing on floats."""


@dataclass(slots=True)
class Blob:
    """The bytes of a part: how to store them, and where they were stored."""

    part: Part
    compressed: bool = False
    algorithm: str | None = None
    """The checksum to compute; "frame" is one inside each zstd frame."""
    decoded: bool = False
    """Whether the checksum covers the decoded bytes, as in version 2. Then an opaque part gets none, and every zstd
    frame has its own."""
    checksum: str | None = None
    offset: int = 0
    size: int = 0
    """Stored bytes."""
    hasher: checksums.Hasher | None = None
    twin: Blob | None = None
    """An earlier blob with the same bytes, which are stored once."""


class Frame(NamedTuple):
    """A compressed piece of a part."""

    nbytes: int
    """Before compression."""
    data: bytes


def is_opaque(part: Part) -> bool:
    """Whether a part's encoding is unknown, so that its bytes can only be copied."""
    return isinstance(part.payload, Encoded) and isinstance(part.payload.codec, Opaque)


def copy_opaque(part: Part) -> Iterator[Chunk]:
    """The stored bytes of an opaque part."""
    payload = part.payload
    assert isinstance(payload, Encoded)  # noqa: S101
    check = None if payload.check is None or payload.check.decoded else payload.check
    return Span(payload.source, payload.begin, payload.end, check).chunks()


def decode(part: Part) -> Iterator[Chunk]:
    """The little-endian bytes of a part; elements of an unknown type stay in their byte order."""
    return part.swapped_chunks() if part.big_endian and part.dtype is not None else part.payload.chunks()


def prepare(blobs: Iterable[Blob]) -> None:
    """Sets `twin` of blobs whose bytes an earlier blob already stores, and `hasher` of all others with a checksum."""
    first: dict[tuple[object, ...], Blob] = {}
    twins: Counter[int] = Counter()
    for blob in blobs:
        part, opaque = blob.part, is_opaque(blob.part)
        if part.nbytes and not opaque:
            # Big-endian bytes are swapped by the width of the element, but not if its type is unknown. So blobs at the
            # same location are stored alike only if that agrees, too.
            order = (part.dtype is None, part.dtype if part.big_endian else None)
            key = (*location(part.payload), order, blob.compressed, blob.algorithm)
            twin = first.get(key)
            if twin is None or (blob.compressed and twins[id(twin)] == NAMES):  # a reader may refuse more names
                first[key] = blob
            else:
                blob.twin = twin
                twins[id(twin)] += 1
        if blob.twin is None and blob.algorithm in checksums.ALGORITHMS and not (opaque and blob.decoded):
            blob.hasher = checksums.hasher(blob.algorithm)


def write_blobs(
    blobs: Sequence[Blob], stored: Iterable[tuple[Blob, Iterable[Chunk]]], position: int, alignment: int
) -> Generator[Chunk, None, int]:
    """Yields the chunks of `stored`, sets offset, size and checksum of each blob, and returns the end of the last."""
    with HashingThread(sum(blob.part.nbytes for blob in blobs if blob.hasher is not None)) as thread:
        for blob, chunks in stored:
            yield bytes(-position % alignment)
            blob.offset = position = position + -position % alignment
            for chunk in chunks if blob.hasher is None else read_remote(chunks):
                if blob.hasher is not None and not (blob.compressed and blob.decoded):
                    thread.update(blob.hasher, chunk)
                position += chunk.nbytes if isinstance(chunk, Span) else len(chunk)
                yield chunk
            blob.size = position - blob.offset
        thread.finish()
    for blob in blobs:
        if blob.hasher is not None:
            blob.checksum = str(checksums.Checksum(str(blob.algorithm), blob.hasher.digest()))
        elif blob.twin is not None:
            blob.offset, blob.size, blob.checksum = blob.twin.offset, blob.twin.size, blob.twin.checksum
    shared = sum(blob.part.nbytes for blob in blobs if blob.twin is not None)
    if shared and share_too_much(shared, sum(blob.part.nbytes for blob in blobs) - shared):
        message = f"tensors that share bytes would add {shared} to those of the file: save some to another file"
        raise InputError(message, rule="ztensor.write.repeated")
    return position


def compress(blobs: Sequence[Blob], level: int | None) -> Iterator[Iterator[Frame]]:
    """The frames of each blob that is to be compressed, in order. A part without bytes has one frame."""
    level = LEVEL if level is None else level

    def pieces() -> Iterator[tuple[Blob, Buffer]]:
        for blob in blobs:
            if not blob.compressed or blob.twin is not None:
                continue
            if blob.part.nbytes == 0:
                yield blob, b""
            for data in regroup(buffers(decode(blob.part)), zstd.FRAME_NBYTES):
                if blob.decoded and blob.hasher is not None:
                    blob.hasher.update(memoryview(data))
                yield blob, data

    def compress_batch(batch: list[tuple[Blob, Buffer]]) -> list[tuple[Blob, Frame]]:
        return [
            (
                blob,
                Frame(len(data), zstd.compress(data, level=level, checksum=blob.decoded or blob.algorithm == "frame")),
            )
            for blob, data in batch
        ]

    groups = batches(pieces(), lambda piece: len(piece[1]), zstd.FRAME_NBYTES)
    frames = chain.from_iterable(ordered_map(compress_batch, groups, ahead=zstd.frames_ahead(level)))
    return ((frame for _, frame in group) for _, group in groupby(frames, key=lambda pair: id(pair[0])))


_INDICES = {CSR: ("indices", "indptr"), COO: ("coords",)}


def index_parts(tensor: Tensor) -> Tensor:
    """Converts the indices of a sparse tensor to one of the types that zTensor allows: uint32 or uint64."""
    names = _INDICES.get(tensor.layout)
    if names is None:
        return tensor
    kinds = {tensor.parts[name].dtype for name in names}
    if kinds in ({BY_NAME["uint32"]}, {BY_NAME["uint64"]}):
        return tensor
    check_values(tensor)
    arrays = {name: tensor.parts[name].array(tensor.name) for name in names}
    largest = max((int(array.max()) for array in arrays.values() if array.size), default=0)
    dtype = BY_NAME["uint32" if largest < 1 << 32 else "uint64"]
    changed = {name: Part(dtype, array.shape, Memory(array.astype(dtype.numpy))) for name, array in arrays.items()}
    return replace(tensor, parts={**tensor.parts, **changed})
