"""Reading a block of which a copy is damaged: from any copy that decodes to its digest.

This is the slow path of `packs.py`, for what the fast one could not read. Every copy is
tried, those that are marked as damaged last, and every block on the way is compared with
its digest. So the error for a block that nothing can restore names the pack and the link
at which its chain of deltas is broken.
"""

from __future__ import annotations

from typing import Protocol

from blake3 import blake3

from tensorglot.errors import FormatError, IntegrityError, RemoteError
from tensorglot.store.backend import Backend
from tensorglot.store.encodings import IS_DELTA, apply, decode, wrong_base
from tensorglot.store.lookup import Stored, Table
from tensorglot.store.pack import MAX_DEPTH
from tensorglot.wire.cid import CID

__all__ = ["READ_ERRORS", "Salvage", "pack_key"]

READ_ERRORS = (FormatError, OSError)
"""What reading one copy of a block may raise: it does not decode, or the disk cannot read it."""
_MOST_COPIES = 16
"""Copies of a block that are tried."""


def pack_key(name: str) -> str:
    return f"packs/{name}.pack"


class Places(Protocol):
    """Finds the copies of a block."""

    backend: Backend

    @property
    def table(self) -> Table: ...

    def missing(self, cid: CID) -> FormatError:
        """The error for a block of which there is no copy."""
        ...


class Salvage:
    """One search. What was read, and what could not be, is remembered."""

    def __init__(self, places: Places) -> None:
        self._backend, self._table, self._missing = places.backend, places.table, places.missing
        self._blocks: dict[bytes, bytes] = {}
        self._errors: dict[tuple[str, int, int], FormatError] = {}

    def read(self, cid: CID, below: int = MAX_DEPTH + 1) -> bytes:
        """A block, from a copy with fewer than `below` deltas: chains end, whoever wrote them."""
        if cid.digest in self._blocks:
            return self._blocks[cid.digest]
        first: FormatError | None = None
        for number, (pack, row) in enumerate(self._table.copies(cid.digest)):
            stored = Stored(self._table.names[pack], self._table.indexes[pack].record(row))
            if number == _MOST_COPIES:
                break
            if stored.record.depth < below:
                try:
                    block = self._read_copy(cid, stored)
                except FormatError as error:
                    first = first or error
                else:
                    self._blocks[cid.digest] = block
                    return block
        raise first or self._missing(cid)

    def _read_copy(self, cid: CID, stored: Stored) -> bytes:
        record = stored.record
        key = (*stored.place, record.begin)
        if key in self._errors:
            raise self._errors[key]
        base = None if record.base is None else self.read(CID(record.base), record.depth)
        try:
            block = self.decode(stored, base)[record.begin : record.begin + record.nbytes]
            if blake3(block).digest() != cid.digest:
                raise IntegrityError(
                    f"block {cid} does not match its CID", rule="store.block.hash", offset=record.offset
                )
        except FormatError as error:
            error.path = pack_key(stored.pack)
            self._errors[key] = error
            raise
        return block

    def decode(self, stored: Stored, base: bytes | None) -> bytes:
        """The decoded bytes of a record; `base` is the block that a delta was made from."""
        record = stored.record
        try:
            body = self._backend.read(pack_key(stored.pack), record.offset, record.stored)
        except OSError as error:
            if isinstance(error, (FileNotFoundError, RemoteError)):
                raise
            raise IntegrityError(
                f"cannot be read: {error.strerror}", rule="store.block.read", offset=record.offset
            ) from error
        if (record.encoding in IS_DELTA) != (base is not None) or (base is not None and record.grouped):
            raise wrong_base()
        if base is None:
            room = bytearray(record.decoded)
            decode(record.encoding, body, memoryview(room), record.digests)
        else:
            room = bytearray(base[: record.decoded].ljust(record.decoded, b"\0"))
            apply(record.encoding, body, memoryview(room))
        return bytes(room)

    def fault(self, stored: Stored, blocks: list[tuple[bytes, int, int]]) -> FormatError | None:
        """What is wrong with a record of these blocks (digest, begin, size); None if it is only with its base."""
        record = stored.record
        try:
            base = None if record.base is None else self.read(CID(record.base), record.depth)
        except FormatError as error:
            return error if self._has_false_base(stored, blocks[0][0]) else None
        try:
            data = self.decode(stored, base)
        except FormatError as error:
            return error
        for digest, begin, nbytes in blocks:
            if blake3(data[begin : begin + nbytes]).digest() != digest:
                return IntegrityError("does not match its CID", rule="store.block.hash", offset=record.offset)
        return None

    def _has_false_base(self, stored: Stored, digest: bytes) -> bool:
        """Whether the table lists a delta whose base is in no pack, because another block has the key of the base."""
        at, base = self._table.find(digest), stored.record.base or b""
        listed = at is not None and self._table.stored(at).place == stored.place
        return listed and next(self._table.copies(base), None) is None
