"""A delta in memory: read whole, so that nobody can change it while it is applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3
from xxhash import xxh3_64_intdigest

from tensorglot.containers.delta.index import Body, Change, DeltaIndex, read_index
from tensorglot.errors import InputError, IntegrityError
from tensorglot.io.local import add_path_to_errors
from tensorglot.io.place import Place
from tensorglot.io.source import Readable, source_for
from tensorglot.limits import DEFAULT
from tensorglot.memory import scratch
from tensorglot.store.encodings import IS_DELTA, apply, decode
from tensorglot.wire.cid import CHUNK_NBYTES, CID, RAW, ChunkTree

__all__ = ["DeltaFile", "chunk_count", "in_full", "not_base", "read_delta", "root_digest", "wrong_result"]


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """The index and the bytes of a delta."""

    index: DeltaIndex
    data: memoryview

    def body(self, body: Body) -> memoryview:
        return self.data[body.begin : body.end]

    def check(self) -> None:
        """Compares the checksums of all bodies."""
        for row in self.index.rows:
            if row.bodies and xxh3_64_intdigest(self.data[row.bodies[0].begin : row.bodies[-1].end]) != row.checksum:
                raise IntegrityError(
                    "the delta is damaged: a checksum does not match; nothing was changed",
                    rule="delta.checksum",
                    tensor=self.index.names[row.tensor],
                    offset=row.bodies[0].begin,
                )

    def make(self, body: Body | None, base: memoryview, out: memoryview) -> None:
        """Fills a chunk by its body, or by its base and the change of it."""
        if body is not None and in_full(body):
            decode(body.encoding, self.body(body), out)
            return
        kept = min(len(out), len(base))
        out[:kept] = base[:kept]
        out[kept:] = bytes(len(out) - kept)
        if body is not None:
            apply(body.encoding, self.body(body), out)

    def full_digest(self, body: Body, nbytes: int) -> bytes:
        """The digest of a chunk that is in the delta in full."""
        with scratch() as memory:
            room = memory.room(nbytes, 0)
            decode(body.encoding, self.body(body), room)
            return blake3(room).digest()


def read_delta(source: Readable) -> DeltaFile:
    """Reads and checks a delta."""
    with add_path_to_errors(source.shown if isinstance(source, Place) else None):
        opened = source_for(source)
        file = DeltaFile(read_index(opened, DEFAULT), opened.read(0, opened.size))
        file.check()
        return file


def in_full(body: Body) -> bool:
    """Whether the body has the chunk itself."""
    return body.encoding not in IS_DELTA


def chunk_count(nbytes: int) -> int:
    """Empty data is one empty chunk."""
    return max(1, -(-nbytes // CHUNK_NBYTES))


def root_digest(digests: Sequence[bytes], nbytes: int) -> bytes:
    """The digest of a value, computed from the digests of its chunks."""
    if len(digests) == 1:
        return digests[0]
    tree = ChunkTree(None)
    for position, digest in enumerate(digests):
        tree.add(0, CID(digest, RAW), min(CHUNK_NBYTES, nbytes - position * CHUNK_NBYTES))
    return tree.root().digest


def not_base(name: str, why: str) -> InputError:
    return InputError(
        f"not the tensor that the delta was made from: {why}; nothing was changed", rule="delta.base", tensor=name
    )


def wrong_result(name: str, row: Change) -> IntegrityError:
    return IntegrityError(
        f"the delta does not give the {row.type:.60} that it promises: it is damaged; the tensors are as they were",
        rule="delta.result",
        tensor=name,
    )
