"""From tensors to blocks: values are serialized, cut into chunks, hashed, encoded and written.

One pipeline for all tensors of a commit: this thread reads them and writes records, in
order; a pool of threads hashes the chunks and encodes those that are new. Memory is a few
chunks for each thread, whatever the size. Many small tensors travel in batches.

A chunk that is new is encoded against the chunk at the same place of the tensor's
predecessor, if that has the same element type and the same dims after the first one. The
chunk is stored in full instead where a chain of deltas would cost too much to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from blake3 import blake3

from tensorglot.dynd.tensors import tensor_pieces
from tensorglot.errors import TensorglotError
from tensorglot.memory import scratch
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE, Part, Tensor
from tensorglot.model.types.algebra import dense_parts
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import parse, text_of
from tensorglot.store.encodings import IS_DELTA, Encoded, encode
from tensorglot.store.manifest import Entry
from tensorglot.store.objects import ArrayNode, PartNode, TensorNode
from tensorglot.store.pack import MAX_CHAIN, MAX_DEPTH
from tensorglot.store.packs import Packs, Stored
from tensorglot.store.session import SMALL_NBYTES, Delta, Session
from tensorglot.threads import ordered_map
from tensorglot.wire.cid import CHUNK_NBYTES, CID, RAW, ChunkTree, Cutter

__all__ = ["Previous", "Value", "ingest", "ingest_value"]

_BATCH_COUNT = 4096
"""Chunks that one thread takes at a time, at most a chunk's bytes in total."""

_TINY_NBYTES = 256
"""Smaller chunks are not stored as deltas: the record of a delta would take as much."""

Previous = Callable[[str, str], "Value | None"]
"""The value of a part of a tensor in the parent commit."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in the store: its type, and the digests of its chunks."""

    type: str
    chunks: Sequence[bytes]


@dataclass(eq=False)
class _Unit:
    """A value to be stored: a dense or nested tensor, or a part of another one."""

    tensor: Tensor
    name: str
    part: str
    previous: Previous | None
    tree: ChunkTree
    nbytes: int = 0

    @cached_property
    def type(self) -> str:
        return text_of(self.tensor.type)

    @cached_property
    def width(self) -> int:
        """Bytes of an element, where there are elements at equal distances."""
        block = dense_parts(self.tensor.type)
        return 1 if block is None else max(1, block[0].bits // 8)

    @cached_property
    def bases(self) -> Sequence[bytes]:
        """The chunks of the predecessor, by position."""
        found = None if self.previous is None else self.previous(self.name, self.part)
        return found.chunks if found is not None and _comparable(found.type, self.tensor.type) else ()

    def chunks(self) -> Iterator[_Chunk]:
        cutter, position = Cutter(), 0
        for piece in tensor_pieces(self.tensor):
            for data in cutter.cut(piece):
                yield _Chunk(self, memoryview(data), position)
                position += 1
        if cutter.held or not position:
            yield _Chunk(self, memoryview(cutter.held), position)


def _comparable(old: str, new: Type) -> bool:
    """Whether the elements of two types are at the same places, but for the length of the first dim."""
    a, b = dense_parts(parse(old)), dense_parts(new)
    return a is not None and b is not None and a[0] is b[0] and a[1][1:] == b[1][1:] and len(a[1]) == len(b[1])


@dataclass(frozen=True, slots=True)
class _Chunk:
    unit: _Unit
    data: memoryview
    position: int


@dataclass(frozen=True, slots=True)
class _Made:
    """A chunk that was hashed, and encoded if it is new."""

    unit: _Unit
    digest: bytes
    data: memoryview
    encoded: Encoded | None = None
    delta: Delta | None = None
    known: bool = False


def ingest(session: Session, archive: Archive, previous: Previous | None, seen: Callable[[int], None]) -> list[Entry]:
    """Stores the tensors of an archive; returns their names and links, sorted."""
    units: list[_Unit] = []

    def chunks() -> Iterator[_Chunk]:
        for position in range(len(archive)):
            for unit in _units(archive.tensor_at(position), previous, session):
                units.append(unit)
                try:
                    yield from unit.chunks()
                except TensorglotError as error:
                    error.tensor = unit.name
                    raise

    def work(batch: list[_Chunk]) -> list[_Made]:
        return _make(batch, session.packs)

    for batch in ordered_map(work, _batches(chunks())):
        for made in batch:
            _write(session, made)
            seen(len(made.data))
    links = iter([_array(session, unit) for unit in units])
    entries = [
        (name, _link(session, archive.tensor_at(position), links)) for position, name in enumerate(archive.index.names)
    ]
    return sorted(entries, key=lambda entry: entry[0].encode())


def ingest_value(session: Session, tensor: Tensor) -> CID:
    """Stores one value that is not sparse or quantized; returns the link of its array node."""
    unit = _Unit(tensor, tensor.name, "data", None, _tree(session))
    for batch in ordered_map(lambda batch: _make(batch, session.packs), _batches(unit.chunks())):
        for made in batch:
            _write(session, made)
    return _array(session, unit)


def _tree(session: Session) -> ChunkTree:
    return ChunkTree(lambda cid, block: session.put(block))


def _units(tensor: Tensor, previous: Previous | None, session: Session) -> Iterator[_Unit]:
    if _whole(tensor):
        yield _Unit(tensor, tensor.name, "data", previous, _tree(session))
        return
    for name, part in tensor.parts.items():
        yield _Unit(Tensor(tensor.name, {"data": _known(part)}), tensor.name, name, previous, _tree(session))


def _whole(tensor: Tensor) -> bool:
    """Whether the value is one array: dense of a known element type, or nested."""
    return tensor.layout == NESTED or (tensor.layout == "dense" and tensor.parts["data"].dtype is not None)


def _known(part: Part) -> Part:
    """The part with its bytes as elements, if its element type is unknown."""
    if part.dtype is not None:
        return part
    return replace(part, dtype=BY_NAME["uint8"], unknown_dtype=None, shape=(part.nbytes,))


def _link(session: Session, tensor: Tensor, arrays: Iterator[CID]) -> CID:
    """The link of a tensor, whose arrays are next."""
    attributes = {key: value for key, value in (tensor.attributes or {}).items() if key != TYPE_ATTRIBUTE}
    if _whole(tensor):
        array = next(arrays)
        if not attributes:
            return array
        parts: tuple[PartNode, ...] = (PartNode("data", array),)
    else:
        parts = tuple(
            PartNode(name, array) if part.dtype is not None else PartNode(name, array, part.unknown_dtype, part.shape)
            for (name, part), array in zip(tensor.parts.items(), islice(arrays, len(tensor.parts)), strict=True)
        )
    try:
        return session.put(TensorNode(tensor.layout, text_of(tensor.type), parts, attributes).encode())
    except TensorglotError as error:
        error.tensor = tensor.name
        raise


def _array(session: Session, unit: _Unit) -> CID:
    return session.put(ArrayNode(unit.type, unit.nbytes, unit.tree.root()).encode())


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
        _Made(chunk.unit, digest, chunk.data, known=True) if known else _encode(chunk, digest, packs)
        for chunk, digest, known in zip(batch, digests, packs.contains(digests), strict=True)
    ]


def _encode(chunk: _Chunk, digest: bytes, packs: Packs) -> _Made:
    unit, data = chunk.unit, chunk.data
    if len(data) < _TINY_NBYTES:
        return _Made(unit, digest, data)
    base = packs.find(unit.bases[chunk.position]) if chunk.position < len(unit.bases) else None
    if base is not None:
        found = unit.bases[chunk.position], base
        if base.record.depth == MAX_DEPTH:
            found = _root(packs, *found)
        with scratch() as memory:
            old = memory.room(found[1].record.nbytes, 0)
            packs.read_into(found[0], old)
            encoded = encode(data, unit.width, old)
        record = found[1].record
        if encoded.encoding in IS_DELTA and record.chain + len(encoded.body) <= MAX_CHAIN * len(data):
            return _Made(unit, digest, data, encoded, Delta(found[0], record.depth, record.chain))
        if encoded.encoding not in IS_DELTA and len(data) >= SMALL_NBYTES:
            return _Made(unit, digest, data, encoded)
    return _Made(unit, digest, data, encode(data, unit.width) if len(data) >= SMALL_NBYTES else None)


def _root(packs: Packs, digest: bytes, stored: Stored) -> tuple[bytes, Stored]:
    """The block that a chain of deltas begins with."""
    while (base := stored.record.base) is not None:
        found = packs.find(base)
        if found is None or found.record.depth >= stored.record.depth:
            break
        digest, stored = base, found
    return digest, stored


def _write(session: Session, made: _Made) -> None:
    made.unit.tree.add(0, CID(made.digest, RAW), len(made.data))
    made.unit.nbytes += len(made.data)
    if made.known or session.is_new(made.digest):
        return
    if made.encoded is None:
        session.add(made.digest, made.data)
    else:
        session.add_record(made.digest, len(made.data), made.encoded, made.delta)
