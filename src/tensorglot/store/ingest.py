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
from itertools import accumulate

from blake3 import blake3

from tensorglot.cached import cached_property
from tensorglot.containers.dynd import check_writable
from tensorglot.errors import add_tensor_to_errors
from tensorglot.memory import Scratch, scratch
from tensorglot.model.archive import Archive
from tensorglot.model.tensor import Tensor
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import text_of
from tensorglot.store.checkout import parse_type
from tensorglot.store.chunks import Chunks
from tensorglot.store.encoder import Encoded, encode
from tensorglot.store.encodings import IS_DELTA
from tensorglot.store.manifest import Entry
from tensorglot.store.objects import ArrayNode
from tensorglot.store.pack import MAX_CHAIN, MAX_DEPTH, Record
from tensorglot.store.packs import Packs
from tensorglot.store.session import SMALL_NBYTES, Delta, Session
from tensorglot.store.small import TINY_NBYTES, ingest_small, small_tensors
from tensorglot.store.units import Unit, comparable, element_nbytes, tensor_node, units_of
from tensorglot.threads import batches, ordered_map
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import CHUNK_NBYTES, CID, RAW, ChunkTree

__all__ = ["Previous", "Value", "ingest", "ingest_value"]

_BATCH_COUNT, _BATCH_NBYTES = 4096, 4 * CHUNK_NBYTES
"""Chunks that one thread takes at a time: their bases lie together, and are read at once."""
_SPREAD_COST, _SPREAD_SIZE, _SPREAD_DEPTH = 0.1, 0.25, 2
"""Shortening a chain costs a larger delta. If all chains reached the bounds in the same version, that version would
be large. So the bounds differ from chunk to chunk: the cost and the size by up to these shares, the depth by up to
this number."""

Previous = Callable[[str, str], "Value | None"]
"""The value of a part of a tensor in the parent commit."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in the store: its type, and the digests of its chunks."""

    type: str
    chunks: Chunks


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
    def bases(self) -> Chunks | None:
        """The chunks of the predecessor, by position."""
        found = None if self.previous is None else self.previous(self.unit.name, self.unit.part)
        return found.chunks if found is not None and comparable(parse_type(found.type), self.type) else None

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
    check_writable(layout.type for layout in archive.index.layouts.values())
    links = dict(ingest_small(session, archive, small_tensors(archive), seen))
    stored: dict[int, list[_Stored]] = {}

    def chunks() -> Iterator[_Chunk]:
        for position in range(len(archive)):
            if position in links:
                continue
            tensor = archive.tensor_at(position)
            values = stored[position] = [_Stored(unit, previous, _tree(session)) for unit in units_of(tensor)]
            with add_tensor_to_errors(tensor.name):
                for value in values:
                    yield from value.chunks()

    for made in _make_all(chunks(), session.packs):
        _write(session, made)
        seen(len(made.data))
    for position, values in stored.items():
        links[position] = _link(session, archive.tensor_at(position), list(map(partial(_array, session), values)))
    # Code points are in the order of their UTF-8.
    return sorted((name, links[position]) for position, name in enumerate(archive.index.names))


def ingest_value(session: Session, tensor: Tensor) -> CID:
    """Stores one value that is not sparse or quantized; returns the link of its array node."""
    value = _Stored(Unit(tensor.name, "data", tensor), None, _tree(session))
    for made in _make_all(value.chunks(), session.packs):
        _write(session, made)
    return _array(session, value)


def _tree(session: Session) -> ChunkTree:
    return ChunkTree(lambda cid, block: session.put(block))


def _link(session: Session, tensor: Tensor, arrays: Sequence[CID]) -> CID:
    """The link of a tensor."""
    with add_tensor_to_errors(tensor.name):
        node = tensor_node(tensor, arrays)
        return arrays[0] if node is None else session.put(node.encode())


def _array(session: Session, value: _Stored) -> CID:
    return session.put(ArrayNode(text_of(value.type), value.nbytes, value.tree.root()).encode())


def _make_all(chunks: Iterator[_Chunk], packs: Packs) -> Iterator[_Made]:
    """Hashes and encodes chunks on all threads."""
    jobs = batches(chunks, lambda chunk: len(chunk.data), _BATCH_NBYTES, _BATCH_COUNT)
    for batch in ordered_map(lambda batch: _make(batch, packs), jobs):
        yield from batch


def _make(batch: list[_Chunk], packs: Packs) -> list[_Made]:
    digests = [blake3(chunk.data).digest() for chunk in batch]
    made = [_Made(chunk.value, digest, chunk.data, known=True) for chunk, digest in zip(batch, digests, strict=True)]
    known = packs.contains(digests)
    new = [(at, _base(batch[at], packs)) for at in range(len(batch)) if not known[at]]
    for group in batches(new, lambda item: 0 if item[1] is None else item[1].nbytes, _BATCH_NBYTES):
        with scratch() as memory:
            olds = _read_bases([base for _, base in group], packs, memory)
            for (at, base), old in zip(group, olds, strict=True):
                made[at] = _encode(batch[at], digests[at], base, old)
    return made


def _read_bases(bases: Sequence[_Base | None], packs: Packs, memory: Scratch) -> list[memoryview | None]:
    room = memory.room(_BATCH_NBYTES, 0)
    ends = list(accumulate(0 if base is None else base.nbytes for base in bases))
    olds = [None if base is None else room[end - base.nbytes : end] for base, end in zip(bases, ends, strict=True)]
    packs.read_each(
        [(base.delta.base, old) for base, old in zip(bases, olds, strict=True) if base is not None and old is not None]
    )
    return olds


class _Base(NamedTuple):
    """The block that a chunk is encoded against."""

    delta: Delta
    nbytes: int


def _base(chunk: _Chunk, packs: Packs) -> _Base | None:
    """The chunk at the same place of the predecessor, or an earlier one of its chain if the chain is too long."""
    bases = chunk.value.bases
    if len(chunk.data) < TINY_NBYTES or bases is None or chunk.position >= len(bases):
        return None
    digest = bases[chunk.position]
    found = packs.find(digest)
    if found is None:
        return None
    record = found.record
    # Expects the new delta to be about as large as the last one.
    if record.depth >= MAX_DEPTH - _SPREAD_DEPTH or (
        record.depth and record.chain + record.stored > MAX_CHAIN * (1 - _SPREAD_COST) * len(chunk.data)
    ):
        digest, record = _shorten(packs.chain(digest), len(chunk.data))
    return _Base(Delta(digest, record.depth, record.chain), record.nbytes)


def _shorten(chain: list[tuple[bytes, Record]], nbytes: int) -> tuple[bytes, Record]:
    """The last block of a chain from which one more delta is not too much.

    A delta grows with the number of versions that it spans. So one that has become as large as the one below it
    spans as many, and is replaced together with that.
    """
    share = chain[0][0][0] / 255
    most = MAX_CHAIN * (1 - _SPREAD_COST * share) * nbytes
    digest, record = chain.pop()
    if record.depth < MAX_DEPTH - round(_SPREAD_DEPTH * share) and record.chain + record.stored <= most:
        return digest, record
    below, size = chain[-1], record.stored
    while below[1].depth and (below[1].chain + size > most or size >= below[1].stored * (1 - _SPREAD_SIZE * share)):
        size = chain.pop()[1].stored
        below = chain[-1]
    return below


def _encode(chunk: _Chunk, digest: bytes, base: _Base | None, old: memoryview | None) -> _Made:
    value, data = chunk.value, chunk.data
    if len(data) < TINY_NBYTES:
        return _Made(value, digest, data)
    if base is not None:
        encoded = encode(data, value.width, old)
        if encoded.encoding in IS_DELTA and base.delta.chain + len(encoded.body) <= MAX_CHAIN * len(data):
            return _Made(value, digest, data, encoded, base.delta)
        if encoded.encoding not in IS_DELTA and len(data) >= SMALL_NBYTES:
            return _Made(value, digest, data, encoded)
    return _Made(value, digest, data, encode(data, value.width) if len(data) >= SMALL_NBYTES else None)


def _write(session: Session, made: _Made) -> None:
    made.value.tree.add(0, CID(made.digest, RAW), len(made.data))
    made.value.nbytes += len(made.data)
    if made.known or session.is_new(made.digest):
        return
    if made.encoded is None:
        session.add(made.digest, made.data)
    else:
        session.add_record(made.digest, len(made.data), made.encoded, made.delta)
