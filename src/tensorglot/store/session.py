"""Writing blocks to a store: what is new goes into a pack.

Large chunks are records of their own. Small blocks are collected into groups, nodes apart
from data: reading the names of a commit reads no values. A pack is complete, visible and
durable at the end of the session, or when it has 1 GiB; then another is begun. Blocks
without a reference to them are harmless, so a session that fails leaves at most that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from blake3 import blake3

from tensorglot.errors import UnsupportedError
from tensorglot.store.backend import Backend, Writer
from tensorglot.store.condemned import condemned
from tensorglot.store.encoder import Encoded, encode, encode_nodes
from tensorglot.store.pack import GROUP_NBYTES, PackWriter
from tensorglot.store.packs import Packs, pack_key
from tensorglot.wire.cid import CHUNK_NBYTES, CID, DAG_CBOR, RAW

__all__ = ["SMALL_NBYTES", "Delta", "Session", "start_session"]

SMALL_NBYTES = 16 << 10
"""Smaller blocks are stored in groups."""
PACK_NBYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Delta:
    """What a record was made from."""

    base: bytes
    """Digest of a block."""
    depth: int
    chain: int
    """Chain of the base: see `Record`."""


class Session:
    """Writes blocks that are not in the store. Used by one thread."""

    def __init__(self, backend: Backend, packs: Packs, writer: Writer, stack: ExitStack) -> None:
        self.packs = packs
        self._backend = backend
        self._writer = writer
        self._stack = stack
        self._new: dict[bytes, tuple[int, int]] = {}
        self._bases: dict[bytes, bytes] = {}
        self._groups: dict[int, list[tuple[bytes, bytes]]] = {RAW: [], DAG_CBOR: []}
        self._group_nbytes = {RAW: 0, DAG_CBOR: 0}
        self._pack: PackWriter | None = None
        self._count = 0

    def put(self, block: bytes, codec: int = DAG_CBOR) -> CID:
        """Stores a block of any kind, unless it is there."""
        if len(block) > CHUNK_NBYTES:
            raise UnsupportedError(
                f"metadata, attributes, messages and types must fit into a block of {CHUNK_NBYTES} bytes, "
                f"not {len(block)}",
                rule="store.block.size",
            )
        digest = blake3(block).digest()
        if not self.known(digest):
            self.add(digest, block, codec)
        return CID(digest, codec)

    def known(self, digest: bytes) -> bool:
        return digest in self._new or self.packs.find(digest) is not None

    def is_new(self, digest: bytes) -> bool:
        """Whether the block was added here."""
        return digest in self._new

    def cost(self, digest: bytes) -> tuple[int, int]:
        """What it costs to decode a block that is there or was added: depth and chain, as in `Record`."""
        if digest in self._new:
            return self._new[digest]
        record = self.packs.locate(digest).record
        return record.depth, record.chain

    def root(self, digest: bytes) -> bytes:
        """The block in full that a block begins with, which is there or was added."""
        while digest in self._bases:
            digest = self._bases[digest]
        return digest if digest in self._new else self.packs.chain(digest)[0][0]

    def add(self, digest: bytes, block: bytes | memoryview, codec: int = RAW) -> None:
        """Adds a block that is not in the store."""
        if len(block) >= SMALL_NBYTES:
            self.add_record(digest, len(block), encode(memoryview(block), 1))
            return
        if self._group_nbytes[codec] + len(block) > GROUP_NBYTES:
            self._end_group(codec)
        self._new[digest] = 0, len(block)
        self._groups[codec].append((digest, bytes(block)))
        self._group_nbytes[codec] += len(block)

    def add_record(self, digest: bytes, nbytes: int, encoded: Encoded, delta: Delta | None = None) -> None:
        """Adds a chunk that was encoded."""
        if delta is None:
            self._new[digest] = 0, len(encoded.body)
            self._write([(digest, 0, nbytes)], nbytes, encoded)
        else:
            self._bases[digest] = delta.base
            self._new[digest] = delta.depth + 1, delta.chain + len(encoded.body)
            self._write([(digest, 0, nbytes)], nbytes, encoded, delta.base, delta.depth + 1, delta.chain)

    def _write(
        self,
        blocks: list[tuple[bytes, int, int]],
        decoded: int,
        encoded: Encoded,
        base: bytes | None = None,
        depth: int = 0,
        chain: int = 0,
    ) -> None:
        if self._pack is None:
            self._pack = PackWriter(self._stack.enter_context(self._backend.create(pack_key(self._name))))
        self._pack.add(blocks, [encoded.body], decoded, int(encoded.encoding), base, depth, chain)
        if self._pack.position >= PACK_NBYTES:
            self._end_pack()

    @property
    def _name(self) -> str:
        return f"{self._writer.id}-{self._count}"

    def _end_group(self, codec: int, *, last: bool = False) -> None:
        """Writes a group. With `last` it ends the pack, so that all digests of its index are known."""
        group = self._groups[codec]
        if group:
            self._groups[codec], self._group_nbytes[codec] = [], 0
            blocks, at = [], 0
            for digest, block in group:
                blocks.append((digest, at, len(block)))
                at += len(block)
            data = memoryview(b"".join(block for _, block in group))
            self._write(blocks, at, encode_nodes(data, self._digests(blocks)) if last else encode(data, 1))

    def _digests(self, blocks: list[tuple[bytes, int, int]]) -> bytes:
        """The digests in the index of a pack that ends with these blocks."""
        before = () if self._pack is None else self._pack.digests
        return b"".join(sorted([*before, *(digest for digest, _, _ in blocks)]))

    def flush(self) -> None:
        """Makes everything so far visible and durable."""
        self._end_group(RAW)
        self._end_group(DAG_CBOR, last=True)
        self._end_pack()

    def _end_pack(self) -> None:
        if self._pack is not None:
            index = self._pack.finish()
            self._stack.pop_all().close()
            self.packs.add(self._name, index)
            self._pack = None
            self._count += 1


@contextmanager
def start_session(backend: Backend, packs: Packs) -> Iterator[Session]:
    """A session, announced to collectors. Without an error it is flushed at the end."""
    with backend.announce() as writer, ExitStack() as stack:
        # Announced first: either a collector sees this writer, or this writer sees what the collector condemned.
        hidden = condemned(backend)
        writer.note(" ".join(sorted(hidden)))
        packs.refresh()
        session = Session(backend, packs.without(hidden), writer, stack)
        yield session
        session.flush()
