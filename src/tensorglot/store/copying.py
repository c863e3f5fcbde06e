"""Copying blocks from one place to another as they are stored: for repacking, push, pull and bundles.

A block is decoded and compared with its digest before it is added: a block that is
damaged where it comes from never gets into a pack, and is taken from another copy. A delta
stays a delta if its base is there and the chain does not become too long; if it would, the
block is stored in full. So bases are copied before their deltas.
"""

from __future__ import annotations

from collections.abc import Callable

from blake3 import blake3

from tensorglot.errors import FormatError, IntegrityError
from tensorglot.memory import scratch
from tensorglot.store.encoder import Encoded, encode
from tensorglot.store.encodings import IS_DELTA, Encoding, apply, decode
from tensorglot.store.lineage import Origin
from tensorglot.store.pack import MAX_CHAIN, MAX_DEPTH
from tensorglot.store.packs import Packs, Stored, pack_key
from tensorglot.store.session import SMALL_NBYTES, Delta, Session
from tensorglot.store.small import TINY_NBYTES
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import CID

__all__ = ["Copy", "add_chunk", "add_copy", "read_copy", "restore"]

_LONG_CHAIN = 1.6
"""Stored bytes of a chain, as a multiple of the chunk, after which a delta begins at its root."""


class Copy(NamedTuple):
    """A block on its way, compared with its digest."""

    digest: bytes
    codec: int
    data: bytes
    encoded: Encoded | None = None
    """How it is stored, if it is a record of its own."""
    base: bytes | None = None
    """The digest of the base, if the encoding is a delta."""


def read_copy(packs: Packs, stored: Stored, digest: bytes, codec: int) -> Copy:
    """Reads a block and the form in which it is stored."""
    record = stored.record
    if record.grouped:
        return Copy(digest, codec, packs.read(digest, codec))
    try:
        body = bytes(packs.backend.read(pack_key(stored.pack), record.offset, record.stored))
        encoding = Encoding(record.encoding)
        data = restore(packs, digest, encoding, body, record.base, record.nbytes)
    except (FormatError, ValueError):
        return Copy(digest, codec, packs.read(digest, codec))
    return Copy(digest, codec, data, Encoded(encoding, body), record.base)


def restore(packs: Packs, digest: bytes, encoding: Encoding, body: bytes, base: bytes | None, nbytes: int) -> bytes:
    """Decodes a body, with the base that a delta needs, and compares the result with its digest."""
    with scratch() as memory:
        if base is None:
            room = memory.room(nbytes, 0)
            decode(encoding, memoryview(body), room)
        else:
            size = packs.locate(base).record.nbytes
            room = memory.room(max(nbytes, size), 0)
            packs.read_into(base, room[:size])
            room[size:nbytes] = bytes(max(0, nbytes - size))
            room = room[:nbytes]
            apply(encoding, memoryview(body), room)
        if blake3(room).digest() != digest:
            raise IntegrityError(f"block does not match its CID {CID(digest)}", rule="store.block.hash")
        return bytes(room)


def add_chunk(
    session: Session, digest: bytes, data: bytes, origin: Origin, read: Callable[[bytes], bytes] | None
) -> None:
    """Adds a chunk, as a delta from the chunk that it replaced if that is smaller; `read` reads the replaced one."""
    if read is not None and origin.base is not None and len(data) >= TINY_NBYTES:
        base = origin.base
        depth, chain = session.cost(base)
        if depth == MAX_DEPTH or chain > _LONG_CHAIN * len(data):
            base = session.root(base)
            depth, chain = session.cost(base)
        encoded = encode(memoryview(data), origin.width, memoryview(read(base)))
        if encoded.encoding in IS_DELTA and chain + len(encoded.body) <= MAX_CHAIN * len(data):
            session.add_record(digest, len(data), encoded, Delta(base, depth, chain))
            return
    if len(data) < SMALL_NBYTES:
        session.add(digest, data)
    else:
        session.add_record(digest, len(data), encode(memoryview(data), origin.width))


def add_copy(session: Session, copy: Copy) -> None:
    """Adds a block to a session. The base of a delta must be there or have been added before."""
    if copy.encoded is None:
        session.add(copy.digest, copy.data, copy.codec)
    elif copy.base is None:
        session.add_record(copy.digest, len(copy.data), copy.encoded)
    else:
        depth, chain = session.cost(copy.base)
        body = copy.encoded.body
        if depth < MAX_DEPTH and chain + len(body) <= MAX_CHAIN * len(copy.data):
            session.add_record(copy.digest, len(copy.data), copy.encoded, Delta(copy.base, depth, chain))
        elif len(copy.data) < SMALL_NBYTES:
            session.add(copy.digest, copy.data, copy.codec)
        else:  # the body of a delta begins with the width of its elements
            session.add_record(copy.digest, len(copy.data), encode(memoryview(copy.data), body[0]))
