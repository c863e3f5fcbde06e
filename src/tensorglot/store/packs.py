"""All packs of a store as one table from digests to records, and the blocks that they hold.

The indexes of all packs are joined into one sorted column of keys, the first eight bytes
of each digest: a lookup is a binary search, and many lookups are one vector operation.
The table is replaced as a whole when packs appear or disappear, so readers need no lock.

A block may be in several packs, here in full and there as a delta. The table has the
copies that can be decoded, the one with the fewest deltas first: a copy of depth n needs
a copy of its base of a smaller depth. So chains of deltas end, whoever wrote them, and a
delta whose base was removed is not in the store: who needs the block writes it again.

A block is decoded from its record: a record in full first, then the deltas on it, in
place. It is compared with its digest at the end, whatever it was made from. A pack that
is gone was collected or repacked: the packs are listed again, and the block is looked up
once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorglot.errors import FormatError, IntegrityError, TensorglotError
from tensorglot.memory import scratch
from tensorglot.store.backend import Backend
from tensorglot.store.encodings import IS_DELTA, apply_chain, decode
from tensorglot.store.pack import MAX_DEPTH, PackIndex, Record, read_index
from tensorglot.threads import Lock, for_each
from tensorglot.wire.cid import CID, RAW

__all__ = ["MissingBlock", "Packs", "Stored", "pack_key"]

_CACHE_NBYTES = 32 << 20
"""Decoded groups of small blocks that are kept."""
_SUFFIX = ".pack"

T = TypeVar("T")


def pack_key(name: str) -> str:
    return f"packs/{name}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a block is."""

    pack: str
    record: Record

    @property
    def order(self) -> tuple[int, str, int]:
        """For copying: bases come before their deltas, neighbours together."""
        return self.record.depth, self.pack, self.record.offset


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The blocks of all packs, by key."""

    names: list[str]
    indexes: list[PackIndex]
    keys: NDArray[np.uint64]
    packs: NDArray[np.int32]
    rows: NDArray[np.int32]
    orphans: list[tuple[int, int]]
    """Pack and row of the copies that are left out: deltas whose base is not there."""

    @classmethod
    def of(cls, indexes: dict[str, PackIndex]) -> _Table:
        found = list(indexes.values())
        keys = np.concatenate([np.empty(0, np.uint64), *(_keys(index.digests) for index in found)])
        packs = np.repeat(np.arange(len(found), dtype=np.int32), [len(index.digests) for index in found])
        rows = np.concatenate([np.empty(0, np.int32), *(np.arange(len(i.digests), dtype=np.int32) for i in found)])
        depths = np.concatenate([np.empty(0, np.uint8), *(i.records["depth"][i.blocks["record"]] for i in found)])
        if not depths.any():
            order, orphans = np.argsort(keys, kind="stable"), np.empty(0, np.intp)
        else:
            order = np.lexsort((depths, keys))
            bases = np.concatenate([np.empty(0, np.uint64), *map(_base_keys, found)])
            decodable = _decodable(keys[order], depths[order], bases[order])
            order, orphans = order[decodable], order[~decodable]
        lost = list(zip(packs[orphans].tolist(), rows[orphans].tolist(), strict=True))
        return cls(list(indexes), found, keys[order], packs[order], rows[order], lost)

    def find(self, digest: bytes) -> tuple[int, int] | None:
        """The pack and row of a block."""
        key = np.uint64(int.from_bytes(digest[:8], "big"))
        at = int(self.keys.searchsorted(key))
        while at < len(self.keys) and self.keys[at] == key:
            pack, row = int(self.packs[at]), int(self.rows[at])
            if self.indexes[pack].digests[row].tobytes() == digest:
                return pack, row
            at += 1
        return None

    def find_many(self, digests: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The pack and row of each block; pack -1 for one that is not there."""
        packs, rows = np.full(len(digests), -1, np.int32), np.zeros(len(digests), np.int32)
        if len(digests) and len(self.keys):
            wanted = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
            at = np.minimum(self.keys.searchsorted(_keys(wanted)), len(self.keys) - 1)
            hit = np.flatnonzero(self.keys[at] == _keys(wanted))
            packs[hit], rows[hit] = self.packs[at[hit]], self.rows[at[hit]]
            for pack in np.unique(packs[hit]).tolist():
                here = np.flatnonzero(packs == pack)
                same = (self.indexes[pack].digests[rows[here]] == wanted[here]).all(axis=1)
                for position in here[~same].tolist():  # another block has the same key
                    found = self.find(digests[position])
                    packs[position], rows[position] = found or (-1, 0)
        return packs, rows

    def places(self, digests: Sequence[bytes]) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Pack and record to the positions and rows of the blocks in it; blocks that are not there are left out."""
        packs, rows = self.find_many(digests)
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for pack in np.unique(packs[packs >= 0]).tolist():
            here = np.flatnonzero(packs == pack)
            records = self.indexes[pack].blocks["record"][rows[here]].tolist()
            for record, position, row in zip(records, here.tolist(), rows[here].tolist(), strict=True):
                found.setdefault((pack, record), []).append((position, row))
        return found


def _keys(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = np.ascontiguousarray(digests[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    return keys


def _base_keys(index: PackIndex) -> NDArray[np.uint64]:
    """The key of the base of each block; 0 for one that has none."""
    bases = np.append(_keys(index.bases), np.uint64(0))
    numbers = index.records["base"][index.blocks["record"]]
    keys: NDArray[np.uint64] = bases[np.minimum(numbers, len(index.bases))]
    return keys


def _decodable(keys: NDArray[np.uint64], depths: NDArray[np.uint8], bases: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which copies have a base that can be decoded and is less deep. `keys` are sorted."""
    found: NDArray[np.bool_] = depths == 0
    for depth in np.unique(depths[~found]).tolist():
        known, here = keys[found], np.flatnonzero(depths == depth)
        at = known.searchsorted(bases[here])
        there = at < len(known)
        there[there] = known[at[there]] == bases[here][there]
        found[here] = there
    return found


class Packs:
    """The packs of a store. Threads may share it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._hidden: frozenset[str] = frozenset()
        self.damaged: dict[str, TensorglotError] = {}
        """Packs whose index cannot be read; the others can be used."""
        self._indexes: dict[str, PackIndex] = {}
        self._table: _Table | None = None
        self._lock = Lock()
        self._groups: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._group_nbytes = 0

    @property
    def indexes(self) -> dict[str, PackIndex]:
        """The index of each pack, by name."""
        self._loaded()
        return self._indexes

    def without(self, hidden: Collection[str]) -> Packs:
        """The same packs without some of them, which a collector is about to remove."""
        if not hidden:
            return self
        others = Packs(self.backend)
        others._hidden = frozenset(hidden)
        others._indexes = {name: index for name, index in self.indexes.items() if name not in hidden}
        return others

    def refresh(self) -> None:
        """Lists the packs again, and reads the indexes of new ones."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> _Table:
        entries = self.backend.list("packs")
        names = {entry.name.removesuffix(_SUFFIX) for entry in entries if entry.name.endswith(_SUFFIX)} - self._hidden
        if self._table is not None and names == self._indexes.keys() | self.damaged.keys():
            return self._table
        kept = {name: index for name, index in self._indexes.items() if name in names}
        new = sorted(names - kept.keys())
        self.damaged = {}
        read: dict[str, PackIndex | TensorglotError | None] = {}

        def work(name: str) -> None:
            read[name] = _index_or_error(self.backend, name)

        for_each(work, new, self.backend.concurrency)
        for name in new:
            found = read[name]
            if isinstance(found, PackIndex):
                kept[name] = found
            elif found is not None:
                self.damaged[name] = found
        self._indexes = kept
        self._table = _Table.of(kept)
        return self._table

    def add(self, name: str, index: PackIndex) -> None:
        """A pack that was written here."""
        with self._lock:
            self._indexes = {**self._indexes, name: index}
            if self._table is not None:
                self._table = _Table.of(self._indexes)

    def _loaded(self) -> _Table:
        if self._table is None:
            with self._lock:
                return self._table or self._refresh()
        return self._table

    def find(self, digest: bytes) -> Stored | None:
        """How a block is stored; None if it is not."""
        table = self._loaded()
        found = table.find(digest)
        return None if found is None else Stored(table.names[found[0]], table.indexes[found[0]].record(found[1]))

    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        """Which blocks there are."""
        found: list[bool] = (self._loaded().find_many(digests)[0] >= 0).tolist()
        return found

    def orphans(self) -> dict[bytes, tuple[str, bytes]]:
        """Blocks of which there are only deltas whose base is not there: the pack and the base."""
        table = self._loaded()
        found = {}
        for pack, row in table.orphans:
            index = table.indexes[pack]
            digest, base = index.digests[row].tobytes(), index.record(row).base
            if base is not None and table.find(digest) is None:
                found[digest] = table.names[pack], base
        return found

    def copies(self) -> Iterator[tuple[bytes, str, int, int]]:
        """Every copy of every block that can be decoded: digest, pack, row and depth."""
        table = self._loaded()
        lost = set(table.orphans)
        for number, (name, index) in enumerate(zip(table.names, table.indexes, strict=True)):
            depths = index.records["depth"][index.blocks["record"]].tolist()
            for row, (digest, depth) in enumerate(zip(index.digests, depths, strict=True)):
                if (number, row) not in lost:
                    yield digest.tobytes(), name, row, depth

    def sizes(self, digests: Sequence[bytes]) -> tuple[int, int]:
        """The bytes of blocks in total, and their stored bytes: of a group, the share of each."""
        table = self._loaded()
        packs, rows = table.find_many(digests)
        nbytes = stored = 0
        for pack in np.unique(packs[packs >= 0]).tolist():
            index, here = table.indexes[pack], rows[packs == pack]
            records, sizes = index.blocks["record"][here], index.blocks["nbytes"][here].astype(np.int64)
            decoded = np.maximum(1, index.records["decoded"][records].astype(np.int64))
            nbytes += int(sizes.sum())
            # An empty block that is a record of its own has a body, too.
            whole = sizes == index.records["decoded"][records]
            shares = np.where(whole, 1, sizes / decoded)
            stored += int((index.records["stored"][records] * shares).sum())
        return nbytes, stored

    def digests_with(self, prefix: bytes) -> list[bytes]:
        """The digests that begin with these bytes; at most eight of them decide."""
        table = self._loaded()
        low = int.from_bytes(prefix[:8].ljust(8, b"\0"), "big")
        high = int.from_bytes(prefix[:8].ljust(8, b"\xff"), "big")
        a, b = table.keys.searchsorted(np.uint64(low)), table.keys.searchsorted(np.uint64(high), "right")
        rows = zip(table.packs[a:b].tolist(), table.rows[a:b].tolist(), strict=True)
        found = {table.indexes[pack].digests[row].tobytes() for pack, row in rows}
        return sorted(digest for digest in found if digest.startswith(prefix))

    def read(self, digest: bytes) -> bytes:
        """A block, compared with its digest."""
        return self._again(lambda: self._read(digest))

    def read_many(self, digests: Sequence[bytes]) -> list[bytes]:
        """Many blocks, each compared with its digest. Small ones are found and decoded together."""
        table = self._loaded()
        found: dict[int, bytes] = {}
        for (pack, _), places in table.places(digests).items():
            index = table.indexes[pack]
            first = index.record(places[0][1])
            if first.grouped:
                stored = Stored(table.names[pack], first)
                try:
                    data = self._group(stored)
                except FileNotFoundError:
                    continue  # collected or repacked: each is looked up again below
                for at, block in places:
                    begin = int(index.blocks["begin"][block])
                    found[at] = data[begin : begin + int(index.blocks["nbytes"][block])]
                    _compare(digests[at], found[at], stored)
        return [found[at] if at in found else self.read(digest) for at, digest in enumerate(digests)]

    def read_into(self, digest: bytes, out: memoryview) -> None:
        """A block of `len(out)` bytes, compared with its digest."""
        self._again(lambda: self._read_into(digest, out))

    def check(self, digest: bytes) -> None:
        """Decodes a block and compares it with its digest."""
        found = self.find(digest)
        if found is None or found.record.grouped:
            self.read(digest)
        else:
            with scratch() as memory:
                self.read_into(digest, memory.room(found.record.nbytes, 0))

    def _again(self, work: Callable[[], T]) -> T:
        """Once more, with the packs of now, if a pack is gone or a block was not there."""
        try:
            return work()
        except (FileNotFoundError, MissingBlock):
            self.refresh()
            return work()

    def _read(self, digest: bytes) -> bytes:
        stored = self.locate(digest)
        if stored.record.grouped:
            block = self._block_of_group(stored)
            _compare(digest, block, stored)
            return block
        out = bytearray(stored.record.nbytes)
        self._read_into(digest, memoryview(out))
        return bytes(out)

    def _read_into(self, digest: bytes, out: memoryview) -> None:
        stored = self.locate(digest)
        if stored.record.nbytes != len(out):
            raise FormatError(
                f"block {_name(digest)} has {stored.record.nbytes} bytes, expected {len(out)}",
                rule="store.block.size",
                path=pack_key(stored.pack),
            )
        try:
            self._decode(stored, out)
        except FormatError as error:
            error.path = error.path or pack_key(stored.pack)
            raise
        _compare(digest, out, stored)

    def locate(self, digest: bytes) -> Stored:
        """How a block is stored, which must be there."""
        found = self.find(digest)
        if found is None:
            damage = "".join(f"; damaged pack {name}: {error.message}" for name, error in self.damaged.items())
            orphan = self.orphans().get(digest)
            if orphan is not None:
                raise MissingBlock(
                    f"block {_name(digest)} is a delta from block {_name(orphan[1])}, which is missing{damage}",
                    rule="store.chain.base",
                    path=pack_key(orphan[0]),
                )
            raise MissingBlock(f"block {_name(digest)} is missing from the store{damage}", rule="store.block.missing")
        return found

    def _decode(self, stored: Stored, out: memoryview) -> None:
        """A record in full, and the deltas on it, in place. A base of another size is cut, or followed by zeros."""
        chain = [stored]
        while chain[-1].record.base is not None:
            if len(chain) > MAX_DEPTH:
                raise FormatError(f"more than {MAX_DEPTH} deltas on each other", rule="store.chain")
            chain.append(self.locate(chain[-1].record.base))
        chain.reverse()
        most = max(link.record.nbytes for link in chain)
        with scratch() as memory:
            room = out if most == len(out) else memory.room(most, 0)
            filled = chain[0].record.nbytes
            self._decode_full(chain[0], room[:filled])
            for nbytes, links in groupby(chain[1:], lambda link: link.record.nbytes):
                if nbytes > filled:
                    room[filled:nbytes] = bytes(nbytes - filled)
                apply_chain(map(self._delta, links), room[:nbytes])
                filled = nbytes
            if room is not out:
                out[:] = room[: len(out)]

    def _decode_full(self, stored: Stored, out: memoryview) -> None:
        record = stored.record
        if record.grouped:
            out[:] = self._block_of_group(stored)
            return
        if record.encoding in IS_DELTA:
            raise FormatError("a delta needs a base, and only a delta has one", rule="store.chain")
        decode(record.encoding, self.backend.read(pack_key(stored.pack), record.offset, record.stored), out)

    def _delta(self, stored: Stored) -> tuple[int, memoryview]:
        """The encoding and the body of a record that has a base."""
        record = stored.record
        if record.encoding not in IS_DELTA or record.grouped:
            raise FormatError("a delta needs a base, and only a delta has one", rule="store.chain")
        return record.encoding, self.backend.read(pack_key(stored.pack), record.offset, record.stored)

    def _block_of_group(self, stored: Stored) -> bytes:
        record = stored.record
        data = self._group(stored)
        return data[record.begin : record.begin + record.nbytes]

    def _group(self, stored: Stored) -> bytes:
        """The decoded blocks of a group, kept for the next one."""
        key = stored.pack, stored.record.offset
        with self._lock:
            found = self._groups.get(key)
            if found is not None:
                self._groups.move_to_end(key)
                return found
        record = stored.record
        room = bytearray(record.decoded)
        decode(
            record.encoding, self.backend.read(pack_key(stored.pack), record.offset, record.stored), memoryview(room)
        )
        found = bytes(room)
        with self._lock:
            self._groups[key] = found
            self._group_nbytes += len(found)
            while self._group_nbytes > _CACHE_NBYTES and len(self._groups) > 1:
                self._group_nbytes -= len(self._groups.popitem(last=False)[1])
        return found


class MissingBlock(IntegrityError):
    """A block that something refers to is not in the store."""


def _index_or_error(backend: Backend, name: str) -> PackIndex | TensorglotError | None:
    """None for a pack that was removed after it was listed."""
    try:
        return read_index(backend, pack_key(name))
    except FileNotFoundError:
        return None
    except TensorglotError as error:
        return error


def _compare(digest: bytes, block: bytes | memoryview, stored: Stored) -> None:
    if blake3(block).digest() != digest:
        raise IntegrityError(
            f"block does not match its CID {_name(digest)}",
            rule="store.block.hash",
            offset=stored.record.offset,
            path=pack_key(stored.pack),
        )


def _name(digest: bytes) -> str:
    return str(CID(digest, RAW))
