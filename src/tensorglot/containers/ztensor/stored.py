"""How the bytes of a part are stored: as they are, compressed, or copied from where they were.

Shared by the writers of both versions. Whatever the encoding, the chunks of all parts
come out in order, compression runs ahead on other threads, and no part is ever whole
in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from tensorglot.containers.ztensor.codecs import Opaque
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.layouts import COO, CSR, check_values
from tensorglot.model.payload import Buffer, Chunk, Encoded, Memory, Span, buffers
from tensorglot.model.tensor import Part, Tensor
from tensorglot.threads import ordered_map
from tensorglot.wire import zstd
from tensorglot.wire.checksums import Hasher

__all__ = ["compressed", "copied", "decoded", "index_parts", "is_opaque"]


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
class _Piece:
    """Part of the bytes of the part at `position`, to be one frame."""

    position: int
    data: Buffer


def compressed(
    parts: Sequence[Part | None], level: int, *, checksum: bool, hashers: Sequence[Hasher] | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Position, decoded size and bytes of every frame of the parts, in order; None stands for a part to leave out.

    A part without bytes has one frame without content. The hashers, one for each part,
    take the bytes before they are compressed.
    """

    def pieces() -> Iterator[_Piece]:
        for position, part in enumerate(parts):
            if part is None:
                continue
            if part.nbytes == 0:
                yield _Piece(position, b"")
            for data in zstd.pieces(buffers(decoded(part))):
                if hashers is not None:
                    hashers[position].update(memoryview(data))
                yield _Piece(position, data)

    def compress(batch: list[_Piece]) -> list[tuple[int, int, bytes]]:
        return [
            (piece.position, len(piece.data), zstd.compress(piece.data, level=level, checksum=checksum))
            for piece in batch
        ]

    batches = zstd.batches(pieces(), lambda piece: len(piece.data))
    return chain.from_iterable(ordered_map(compress, batches, ahead=zstd.ahead(level)))


def index_parts(tensor: Tensor) -> Tensor:
    """A sparse tensor with the index types that the profiles ask for: uint32 or uint64, one for all."""
    names = {CSR: ("indices", "indptr"), COO: ("coords",)}.get(tensor.layout, ())
    kinds = {part.dtype for name in names if (part := tensor.parts[name])}
    if not names or kinds in ({BY_NAME["uint32"]}, {BY_NAME["uint64"]}):
        return tensor
    check_values(tensor)
    arrays = {name: tensor.parts[name].array(tensor.name) for name in names}
    largest = max((int(array.max()) for array in arrays.values() if array.size), default=0)
    dtype = BY_NAME["uint32" if largest < 1 << 32 else "uint64"]
    changed = {name: Part(dtype, array.shape, Memory(array.astype(dtype.numpy))) for name, array in arrays.items()}
    return replace(tensor, parts={**tensor.parts, **changed})
