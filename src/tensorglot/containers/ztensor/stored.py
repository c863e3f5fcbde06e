"""How the bytes of a part are stored: as they are, compressed, or copied from where they were.

Shared by the writers of both versions. Whatever the encoding, the chunks of all parts
come out in order, compression runs ahead on other threads, and no part is ever whole
in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from operator import attrgetter

from tensorglot.containers.ztensor.codecs import Opaque
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.layouts import COO, CSR, check_values
from tensorglot.model.payload import Buffer, Chunk, Encoded, Memory, Span, buffers
from tensorglot.model.tensor import Part, Tensor
from tensorglot.threads import ordered_map
from tensorglot.wire import zstd
from tensorglot.wire.checksums import Hasher

__all__ = ["LEVEL", "Compressed", "Squeeze", "compress", "copied", "decoded", "index_parts", "is_opaque"]

LEVEL = 1
"""Of compression, unless the caller says another. Higher ones gain next to nothing on floats."""


def is_opaque(part: Part) -> bool:
    """Its bytes can only be copied: we cannot decode them."""
    return isinstance(part.payload, Encoded) and isinstance(part.payload.codec, Opaque)


def copied(part: Part) -> Iterator[Chunk]:
    """The bytes of an opaque part, as they are stored where it is."""
    payload = part.payload
    assert isinstance(payload, Encoded)  # noqa: S101
    check = None if payload.check is None or payload.check.decoded else payload.check
    yield from Span(payload.source, payload.begin, payload.end, check).chunks()


def decoded(part: Part) -> Iterator[Chunk]:
    """The little-endian bytes of a part; those of elements that we do not know as they are."""
    return part.swapped_chunks() if part.big_endian and part.dtype is not None else part.payload.chunks()


@dataclass(frozen=True, slots=True)
class Squeeze:
    """A part to be compressed."""

    part: Part
    checksum: bool
    """Each frame has one."""
    hasher: Hasher | None = None
    """Takes the bytes before they are compressed."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """A frame of the part at `position`."""

    position: int
    nbytes: int
    """Before."""
    data: bytes


def compress(jobs: Sequence[Squeeze | None], level: int) -> Iterator[Iterator[Compressed]]:
    """The frames of each part, in order; None stands for a part to leave out. A part without bytes has one frame."""

    def pieces() -> Iterator[tuple[int, Squeeze, Buffer]]:
        for position, job in enumerate(jobs):
            if job is None:
                continue
            if job.part.nbytes == 0:
                yield position, job, b""
            for data in zstd.pieces(buffers(decoded(job.part))):
                if job.hasher is not None:
                    job.hasher.update(memoryview(data))
                yield position, job, data

    def squeeze(batch: list[tuple[int, Squeeze, Buffer]]) -> list[Compressed]:
        return [
            Compressed(position, len(data), zstd.compress(data, level=level, checksum=job.checksum))
            for position, job, data in batch
        ]

    batches = zstd.batches(pieces(), lambda piece: len(piece[2]))
    frames = chain.from_iterable(ordered_map(squeeze, batches, ahead=zstd.ahead(level)))
    return (group for _, group in groupby(frames, key=attrgetter("position")))


_INDICES = {CSR: ("indices", "indptr"), COO: ("coords",)}


def index_parts(tensor: Tensor) -> Tensor:
    """A sparse tensor with the index types that the profiles ask for: uint32 or uint64, one for all."""
    names = _INDICES.get(tensor.layout)
    if names is None:
        return tensor
    kinds = {part.dtype for name in names if (part := tensor.parts[name])}
    if kinds in ({BY_NAME["uint32"]}, {BY_NAME["uint64"]}):
        return tensor
    check_values(tensor)
    arrays = {name: tensor.parts[name].array(tensor.name) for name in names}
    largest = max((int(array.max()) for array in arrays.values() if array.size), default=0)
    dtype = BY_NAME["uint32" if largest < 1 << 32 else "uint64"]
    changed = {name: Part(dtype, array.shape, Memory(array.astype(dtype.numpy))) for name, array in arrays.items()}
    return replace(tensor, parts={**tensor.parts, **changed})
