"""From tensors to blocks: values are serialized, cut into chunks, hashed, encoded and written.

One pipeline for all tensors of a commit: this thread reads them and writes records, in
order; a pool of threads hashes the chunks and encodes those that are new. Memory is a few
chunks for each thread, whatever the size. Tiny tensors are stored before (`small.py`).

A chunk that is new is encoded against the chunk at the same place of the tensor's
predecessor, if that has the same element type and the same dims after the first one. The
chunk is stored in full instead where a chain of deltas would cost too much to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from blake3 import blake3

from tensorglot.cached import cached_property
from tensorglot.errors import TensorglotError
from tensorglot.memory import scratch
from tensorglot.model.archive import Archive
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import parse, text_of
from tensorglot.store.encoder import Encoded, encode
from tensorglot.store.encodings import IS_DELTA
from tensorglot.store.manifest import Entry
from tensorglot.store.objects import ArrayNode
from tensorglot.store.pack import MAX_CHAIN, MAX_DEPTH
from tensorglot.store.packs import Packs, Stored
from tensorglot.store.session import SMALL_NBYTES, Delta, Session
from tensorglot.store.small import TINY_NBYTES, ingest_small, small_tensors
from tensorglot.store.units import Unit, comparable, element_nbytes, tensor_node, units_of
from tensorglot.threads import ordered_map
from tensorglot.wire.cid import CHUNK_NBYTES, CID, RAW, ChunkTree

__all__ = ["Previous", "Value", "ingest", "ingest_value"]

_BATCH_COUNT = 4096
"""Chunks that one thread takes at a time, at most a chunk's bytes in total."""

Previous = Callable[[str, str], "Value | None"]
"""The value of a part of a tensor in the parent commit."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in the store: its type, and the digests of its chunks."""

    type: str
    chunks: Sequence[bytes]


@dataclass(eq=False)
class _Stored:
    """A unit that is being stored."""

    unit: Unit
    previous: Previous | None
    tree: ChunkTree
    nbytes: int = 0

    @cached_property
    def type(self) -> Type:
        return self.unit.tensor.type

    @cached_property
    def width(self) -> int:
        return element_nbytes(self.type)

    @cached_property
    def bases(self) -> Sequence[bytes]:
        """The chunks of the predecessor, by position."""
        found = None if self.previous is None else self.previous(self.unit.name, self.unit.part)
        return found.chunks if found is not None and comparable(parse(found.type), self.type) else ()

    def chunks(self) -> Iterator[_Chunk]:
        for position, data in enumerate(self.unit.chunks()):
            yield _Chunk(self, data, position)


@dataclass(frozen=True, slots=True)
class _Chunk:
    value: _Stored
    data: memoryview
    position: int


@dataclass(frozen=True, slots=True)
class _Made:
    """A chunk that was hashed, and encoded if it is new."""

    value: _Stored
    digest: bytes
    data: memoryview
    encoded: Encoded | None = None
    delta: Delta | None = None
    known: bool = False


def ingest(session: Session, archive: Archive, previous: Previous | None, seen: Callable[[int], None]) -> list[Entry]:
    """Stores the tensors of an archive; returns their names and links, sorted."""
    links = dict(ingest_small(session, archive, small_tensors(archive), seen))
    stored: dict[int, list[_Stored]] = {}

    def chunks() -> Iterator[_Chunk]:
        for position in range(len(archive)):
            if position in links:
                continue
            tensor = archive.tensor_at(position)
            values = stored[position] = [_Stored(unit, previous, _tree(session)) for unit in units_of(tensor)]
            try:
                for value in values:
                    yield from value.chunks()
            except TensorglotError as error:
                error.tensor = tensor.name
                raise

    for batch in ordered_map(lambda batch: _make(batch, session.packs), _batches(chunks())):
        for made in batch:
            _write(session, made)
            seen(len(made.data))
    for position, values in stored.items():
        links[position] = _link(session, archive.tensor_at(position), list(map(partial(_array, session), values)))
    # Code points are in the order of their UTF-8.
    return sorted((name, links[position]) for position, name in enumerate(archive.index.names))


def ingest_value(session: Session, tensor: Tensor) -> CID:
    """Stores one value that is not sparse or quantized; returns the link of its array node."""
    value = _Stored(Unit(tensor.name, "data", tensor), None, _tree(session))
    for batch in ordered_map(lambda batch: _make(batch, session.packs), _batches(value.chunks())):
        for made in batch:
            _write(session, made)
    return _array(session, value)


def _tree(session: Session) -> ChunkTree:
    return ChunkTree(lambda cid, block: session.put(block))


def _link(session: Session, tensor: Tensor, arrays: Sequence[CID]) -> CID:
    """The link of a tensor."""
    try:
        node = tensor_node(tensor, arrays)
        return arrays[0] if node is None else session.put(node.encode())
    except TensorglotError as error:
        error.tensor = tensor.name
        raise


def _array(session: Session, value: _Stored) -> CID:
    return session.put(ArrayNode(text_of(value.type), value.nbytes, value.tree.root()).encode())


def _batches(chunks: Iterator[_Chunk]) -> Iterator[list[_Chunk]]:
    batch: list[_Chunk] = []
    nbytes = 0
    for chunk in chunks:
        if batch and (nbytes + len(chunk.data) > CHUNK_NBYTES or len(batch) == _BATCH_COUNT):
            yield batch
            batch, nbytes = [], 0
        batch.append(chunk)
        nbytes += len(chunk.data)
    if batch:
        yield batch


def _make(batch: list[_Chunk], packs: Packs) -> list[_Made]:
    digests = [blake3(chunk.data).digest() for chunk in batch]
    return [
        _Made(chunk.value, digest, chunk.data, known=True) if known else _encode(chunk, digest, packs)
        for chunk, digest, known in zip(batch, digests, packs.contains(digests), strict=True)
    ]


def _encode(chunk: _Chunk, digest: bytes, packs: Packs) -> _Made:
    value, data = chunk.value, chunk.data
    if len(data) < TINY_NBYTES:
        return _Made(value, digest, data)
    base = packs.find(value.bases[chunk.position]) if chunk.position < len(value.bases) else None
    if base is not None:
        found = value.bases[chunk.position], base
        if base.record.depth == MAX_DEPTH:
            found = _root(packs, *found)
        with scratch() as memory:
            old = memory.room(found[1].record.nbytes, 0)
            packs.read_into(found[0], old)
            encoded = encode(data, value.width, old)
        record = found[1].record
        if encoded.encoding in IS_DELTA and record.chain + len(encoded.body) <= MAX_CHAIN * len(data):
            return _Made(value, digest, data, encoded, Delta(found[0], record.depth, record.chain))
        if encoded.encoding not in IS_DELTA and len(data) >= SMALL_NBYTES:
            return _Made(value, digest, data, encoded)
    return _Made(value, digest, data, encode(data, value.width) if len(data) >= SMALL_NBYTES else None)


def _root(packs: Packs, digest: bytes, stored: Stored) -> tuple[bytes, Stored]:
    """The block that a chain of deltas begins with."""
    while (base := stored.record.base) is not None:
        found = packs.find(base)
        if found is None or found.record.depth >= stored.record.depth:
            break
        digest, stored = base, found
    return digest, stored


def _write(session: Session, made: _Made) -> None:
    made.value.tree.add(0, CID(made.digest, RAW), len(made.data))
    made.value.nbytes += len(made.data)
    if made.known or session.is_new(made.digest):
        return
    if made.encoded is None:
        session.add(made.digest, made.data)
    else:
        session.add_record(made.digest, len(made.data), made.encoded, made.delta)
