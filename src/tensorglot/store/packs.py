"""All packs of a store, and the blocks that they hold.

A block is decoded from its record: a record in full first, then the deltas on it, in
place. It is compared with its digest at the end, whatever it was made from; if it does not
match, other copies are tried (`salvage.py`). Blocks that are requested together were
mostly written together, and so were their bases: the records of all of them are found
first, and neighbours are read at once.

A pack that is gone was collected or repacked: the packs are listed again, and the block
is looked up once more. The table of all blocks (`lookup.py`) is replaced as a whole when
packs appear or disappear.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from blake3 import blake3

from tensorglot.errors import FormatError, IntegrityError, RemoteError, TensorglotError
from tensorglot.memory import scratch
from tensorglot.store.backend import Backend
from tensorglot.store.chains import Bodies, decode_chain, read_bodies
from tensorglot.store.encodings import apply, decode
from tensorglot.store.lookup import Chains, DigestScan, Stored, Table
from tensorglot.store.marks import Marks, parse_marks
from tensorglot.store.pack import MAX_DEPTH, PackIndex, Record, read_index
from tensorglot.store.salvage import READ_ERRORS, Salvage, pack_key
from tensorglot.threads import Lock, batches, for_each
from tensorglot.wire.cid import CHUNK_NBYTES, CID, RAW

__all__ = ["MissingBlock", "Packs", "Stored", "pack_key"]

CACHE_NBYTES = 32 << 20
"""Decoded groups of small blocks that are kept."""
_INDEXES = 256
"""Indexes of local packs that one thread reads at a time: reading one takes less time than starting a thread's job."""
_SUFFIX = ".pack"
_MOST_SCANS = 64
"""Lookups before the table of all packs is made, which takes as long as some hundred of them."""
_MOST_REFRESHES = 8
"""How often a read begins again, because the pack that has a block was collected or repacked meanwhile."""
_FEW = 16
"""Blocks that are looked up one by one."""

T = TypeVar("T")


class Packs:
    """The packs of a store. Threads may share it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._hidden: frozenset[str] = frozenset()
        self.unreadable: dict[str, TensorglotError] = {}
        """Packs whose index cannot be read; the others can be used."""
        self.marks: Marks = {}
        """Records that are damaged, as a check has found."""
        self._noted: Marks = {}
        self._indexes: dict[str, PackIndex] = {}
        self._digest_scan: DigestScan | None = None
        self._scanned = 0
        self._table: Table | None = None
        self._lock = Lock()
        self._groups: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._group_nbytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Packs, (self.backend,)

    @property
    def indexes(self) -> dict[str, PackIndex]:
        """The index of each pack, by name."""
        self._load()
        return self._indexes

    @property
    def nbytes(self) -> int:
        """The size of all packs."""
        with self._lock:
            if self._digest_scan is None:
                self._refresh()
        return sum(index.nbytes for index in self._indexes.values())

    def without(self, hidden: Collection[str]) -> Packs:
        """The same packs without some of them, which a collector is about to remove. New packs are not among them."""
        if not hidden:
            return self
        others = Packs(self.backend)
        others._hidden = frozenset(hidden)
        others._indexes = {name: index for name, index in self.indexes.items() if name not in hidden}
        others.unreadable = {name: error for name, error in self.unreadable.items() if name not in hidden}
        others.marks, others._noted = self.marks, self._noted
        others._digest_scan = DigestScan.of(others._indexes, others.marks)
        return others

    def note_damage(self, damaged: Marks) -> None:
        """Does not rely on these records, even if they cannot be marked."""
        with self._lock:
            self._noted = damaged
            self._digest_scan = self._table = None

    def refresh(self) -> None:
        """Lists the packs again, and reads the indexes of new ones."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> DigestScan:
        listed = [entry.name for entry in self.backend.list("packs")]
        names = {name.removesuffix(_SUFFIX) for name in listed if name.endswith(_SUFFIX)} - self._hidden
        marks = {**parse_marks(listed), **self._noted}
        # A server that did not answer is asked again.
        damaged = {name for name, error in self.unreadable.items() if not isinstance(error, RemoteError)}
        known = self._indexes.keys() | damaged
        if self._digest_scan is not None and names == known and marks == self.marks:
            return self._digest_scan
        kept = {name: index for name, index in self._indexes.items() if name in names}
        new = sorted(names - kept.keys())
        self.unreadable, self.marks = {}, marks
        read: dict[str, PackIndex | TensorglotError | None] = {}

        def work(batch: list[str]) -> None:
            read.update((name, _index_or_error(self.backend, name)) for name in batch)

        together = _INDEXES if self.backend.concurrency is None else 1
        for_each(work, batches(new, lambda name: 1, together), self.backend.concurrency)
        for name in new:
            found = read[name]
            if isinstance(found, PackIndex):
                kept[name] = found
            elif found is not None:
                self.unreadable[name] = found
        self._indexes, self._table = kept, None
        self._digest_scan, self._scanned = DigestScan.of(kept, marks), 0
        return self._digest_scan

    def add(self, name: str, index: PackIndex) -> None:
        """Adds a pack that this process has written."""
        with self._lock:
            self._indexes = {**self._indexes, name: index}
            self._digest_scan, self._table = DigestScan.of(self._indexes, self.marks), None
            self._scanned = 0

    @property
    def table(self) -> Table:
        """Where each block is."""
        return self._load()

    def _load(self) -> Table:
        if self._table is None:
            with self._lock:
                return self._table or self._make_table()
        return self._table

    def _make_table(self) -> Table:
        if self._digest_scan is None:
            self._refresh()
        sound = {}
        for name, index in self._indexes.items():
            try:
                _ = index.parsed
                sound[name] = index
            except FormatError as error:
                self.unreadable[name] = error
        self._indexes = sound
        self._table = Table.of(sound, self.marks)
        return self._table

    def _chain_by_scan(self, digest: bytes) -> list[Stored] | None:
        """The chain of a block, for the first lookups in new packs; None if the table has to tell."""
        if self._table is not None or self._scanned > _MOST_SCANS:
            return None
        with self._lock:
            self._scanned += 1
            scan = self._digest_scan or self._refresh()
        try:
            return scan.chain(digest)
        except FormatError:
            return None  # a malformed index, which the table leaves out

    def find(self, digest: bytes) -> Stored | None:
        """How a block is stored; None if it is not."""
        chain = self._chain_by_scan(digest)
        if chain is not None:
            return chain[-1]
        table = self.table
        found = table.find(digest)
        return None if found is None else table.stored(found)

    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        """Which blocks there are."""
        found: list[bool] = (self.table.find_many(digests)[0] >= 0).tolist()
        return found

    def cause(self, digest: bytes) -> Stored | bytes:
        """Why a block is not there: the damaged record, or the block that is missing; one from which it is made."""
        for _ in range(MAX_DEPTH + 1):
            stored = next(self._every_copy(digest), None)
            if stored is None:
                break
            base = stored.record.base
            if base is None or self.find(base) is not None:
                return stored
            digest = base
        return digest

    def has_copy(self, digest: bytes) -> bool:
        """Whether a block is in a pack, in any form."""
        return next(self.table.copies(digest), None) is not None

    def _every_copy(self, digest: bytes) -> Iterator[Stored]:
        table = self.table
        for pack, row in table.copies(digest):
            yield Stored(table.names[pack], table.indexes[pack].record(row))

    def copies(self) -> Iterator[tuple[bytes, str, int, int]]:
        """Every copy of every block that can be decoded: digest, pack, row and depth."""
        table = self.table
        lost = set(zip(table.left_out.packs.tolist(), table.left_out.rows.tolist(), strict=True))
        for number, (name, index) in enumerate(zip(table.names, table.indexes, strict=True)):
            depths = index.records["depth"][index.blocks["record"]].tolist()
            for row, (digest, depth) in enumerate(zip(index.digests, depths, strict=True)):
                if (number, row) not in lost:
                    yield digest.tobytes(), name, row, depth

    def sizes(self, digests: Sequence[bytes]) -> tuple[int, int]:
        """The bytes of blocks in total, and their stored bytes: of a group, the share of each."""
        table = self.table
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
        table = self.table
        low = int.from_bytes(prefix[:8].ljust(8, b"\0"), "big")
        high = int.from_bytes(prefix[:8].ljust(8, b"\xff"), "big")
        a, b = table.keys.searchsorted(np.uint64(low)), table.keys.searchsorted(np.uint64(high), "right")
        rows = zip(table.packs[a:b].tolist(), table.rows[a:b].tolist(), strict=True)
        found = {table.indexes[pack].digests[row].tobytes() for pack, row in rows}
        return sorted(digest for digest in found if digest.startswith(prefix))

    def read(self, digest: bytes, codec: int = RAW) -> bytes:
        """A block, compared with its digest. `codec` is for the name of the block in errors."""
        return self._attempt(lambda: self._read(digest), lambda: Salvage(self).read(CID(digest, codec)))

    def read_many(self, digests: Sequence[bytes], codec: int = RAW) -> list[bytes]:
        """Many blocks, each compared with its digest, and read once. Small ones are found and decoded together."""
        each = list(dict.fromkeys(digests))
        found: dict[bytes, bytes] = {}
        groups = [group for group in self.table.by_record(each) if group.first.record.grouped]
        # Groups that are kept come first: the others push them out.
        for group in sorted(groups, key=lambda group: group.first.place not in self._groups):
            with contextlib.suppress(*READ_ERRORS):  # gone or damaged: each is looked up again below
                data = self._group(group.first)
                for at, begin, nbytes in zip(group.positions, group.begins, group.sizes, strict=True):
                    part = data[begin : begin + nbytes]
                    if blake3(part).digest() == each[at]:
                        found[each[at]] = part
        rest = [digest for digest in each if digest not in found]
        with contextlib.suppress(*READ_ERRORS):
            found |= zip(rest, self._read_together(rest), strict=False)
        for digest in each:
            if digest not in found:
                found[digest] = self.read(digest, codec)
        return [found[digest] for digest in digests]

    def _read_together(self, digests: Sequence[bytes]) -> Iterator[bytes]:
        """Blocks in order; none, if one of them is not there."""
        table = self.table
        at = table.positions(digests)
        sizes = table.columns.sizes[table.blocks[at]].tolist() if (at >= 0).all() else []
        for batch in batches(zip(digests, sizes, strict=False), lambda block: block[1], CHUNK_NBYTES):
            outs = [bytearray(size) for _, size in batch]
            self._read_each([(digest, memoryview(out)) for (digest, _), out in zip(batch, outs, strict=True)])
            yield from map(bytes, outs)

    def read_into(self, digest: bytes, out: memoryview) -> None:
        """A block of `len(out)` bytes, compared with its digest."""
        self.read_each([(digest, out)])

    def read_each(self, wanted: Sequence[tuple[bytes, memoryview]]) -> None:
        """Blocks with the memory that each must fill, compared with their digests."""
        self._attempt(lambda: self._read_each(wanted), lambda: self._salvage_each(wanted))

    def _salvage_each(self, wanted: Sequence[tuple[bytes, memoryview]]) -> None:
        for digest, out in wanted:
            block = Salvage(self).read(CID(digest))
            if len(block) != len(out):
                raise FormatError(
                    f"block {CID(digest)} has {len(block)} bytes, expected {len(out)}", rule="store.block.size"
                )
            out[:] = block

    def check(self, digest: bytes) -> None:
        """Decodes a block and compares it with its digest."""
        found = self.find(digest)
        if found is None or found.record.grouped:
            self.read(digest)
        else:
            with scratch() as memory:
                self.read_into(digest, memory.room(found.record.nbytes, 0))

    def _attempt(self, work: Callable[[], T], salvage: Callable[[], T]) -> T:
        """Calls `work`; if a pack or block is gone, again with new packs; else `salvage`, which tries other copies."""
        gone: type[Exception] | tuple[type[Exception], ...] = (FileNotFoundError, MissingBlock)
        for _ in range(_MOST_REFRESHES):
            try:
                return work()
            except RemoteError:
                raise
            except gone:
                self.refresh()
                gone = FileNotFoundError  # the next collector was quicker
            except READ_ERRORS:
                break
        return salvage()

    def _read(self, digest: bytes) -> bytes:
        stored = self.locate(digest)
        if stored.record.grouped:
            block = self._block_of_group(stored)
            _compare(digest, block)
            return block
        out = bytearray(stored.record.nbytes)
        self._read_each([(digest, memoryview(out))])
        return bytes(out)

    def _read_each(self, wanted: Sequence[tuple[bytes, memoryview]]) -> None:
        self._decode_each(wanted, _compare)

    def _decode_each(
        self, wanted: Sequence[tuple[bytes, memoryview]], decoded: Callable[[bytes, memoryview], None]
    ) -> None:
        """Decodes blocks, and calls `decoded` with each while it is in the cache."""
        chains = self._chains([digest for digest, _ in wanted])
        first = 0
        with scratch() as memory:
            bodies = read_bodies(self.backend, chains.packs, chains.offsets, chains.stored, memory)
            for (digest, out), last in zip(wanted, chains.ends, strict=True):
                if chains.sizes[last - 1] != len(out):
                    raise FormatError("a block does not have the size that the index says", rule="store.block.size")
                decode_chain(chains, first, last, bodies, self._block_of_group, out)
                decoded(digest, out)
                first = last

    def faults(self, pack: str, records: Sequence[Sequence[int]]) -> list[FormatError | None]:
        """What is wrong with records of a pack, each given by the rows of its blocks.

        Nothing is, if only the base of a delta is damaged or missing.
        """
        index = self.indexes[pack]
        wholes = [index.whole_record(rows[0]) for rows in records]
        places = [pack] * len(wholes), [whole.offset for whole in wholes], [whole.stored for whole in wholes]
        with scratch() as memory:
            bodies: Bodies | None = None
            with contextlib.suppress(*READ_ERRORS):  # then each is read by itself
                bodies = read_bodies(self.backend, *places, memory)
            found = []
            for at, (whole, rows) in enumerate(zip(wholes, records, strict=True)):
                blocks = [(index.digests[row].tobytes(), *index.span(row)) for row in rows]
                fault = None
                if bodies is None or not self._is_intact(whole, blocks, bodies.body(at)):
                    with contextlib.suppress(FileNotFoundError):  # collected meanwhile
                        fault = Salvage(self).fault(Stored(pack, whole), blocks)
                found.append(fault)
        return found

    def _is_intact(self, whole: Record, blocks: list[tuple[bytes, int, int]], body: memoryview) -> bool:
        """Whether a record has the right blocks, if its base is intact; True also if the pack is gone meanwhile."""
        with scratch() as memory:
            room = memory.room(CHUNK_NBYTES, 0)
            try:
                if whole.base is None:
                    decode(whole.encoding, body, room[: whole.nbytes], whole.digests)
                else:
                    filled = self.locate(whole.base).record.nbytes
                    self._decode_each([(whole.base, room[:filled])], lambda digest, block: None)
                    room[filled : whole.nbytes] = bytes(max(0, whole.nbytes - filled))
                    apply(whole.encoding, body, room[: whole.nbytes])
                for digest, begin, nbytes in blocks:
                    _compare(digest, room[begin : begin + nbytes])
            except FileNotFoundError:
                return True  # collected meanwhile
            except READ_ERRORS:
                return False
        return True

    def locate(self, digest: bytes) -> Stored:
        """How a block is stored, which must be there."""
        found = self.find(digest)
        if found is None:
            raise self.missing(CID(digest))
        return found

    def missing(self, cid: CID) -> MissingBlock:
        """The error for a block that is not there."""
        cause = self.cause(cid.digest)
        what, rule = f"block {cid} is missing from the store", "store.block.missing"
        if isinstance(cause, bytes) and self.has_copy(cid.digest):
            what, rule = f"block {cid} is a delta from block {CID(cause)}, which is missing", "store.chain.base"
        damage = "".join(f"; damaged pack {name}: {error.message}" for name, error in list(self.unreadable.items())[:2])
        return MissingBlock(f"{what}{damage}", rule=rule)

    def _chains(self, digests: Sequence[bytes]) -> Chains:
        """What blocks are decoded from."""
        if len(digests) <= _FEW:
            found = [chain for digest in digests if (chain := self._chain_by_scan(digest)) is not None]
            if len(found) == len(digests):
                return Chains.of(found)
        try:
            return self.table.chains(digests)
        except KeyError as error:
            raise self.missing(CID(error.args[0])) from error

    def chain(self, digest: bytes) -> list[tuple[bytes, Record]]:
        """The block in full that a block begins with, and the deltas on it up to the block itself."""
        chains = self._chains([digest])
        records = [chains.records(at).record for at in range(len(chains.packs))]
        digests = [*(record.base for record in records[1:]), digest]
        return [(one, record) for one, record in zip(digests, records, strict=True) if one is not None]

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
        body = self.backend.read(pack_key(stored.pack), record.offset, record.stored)
        decode(record.encoding, body, memoryview(room), record.digests)
        found = bytes(room)
        with self._lock:
            self._groups[key] = found
            self._group_nbytes += len(found)
            while self._group_nbytes > CACHE_NBYTES and len(self._groups) > 1:
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
    except OSError as error:  # as for one of its records: the other packs can be read
        return IntegrityError(f"cannot be read: {error.strerror}", rule="store.block.read")


def _compare(digest: bytes, block: bytes | memoryview) -> None:
    """Raises IntegrityError unless a block has this digest; the caller then tries other copies (`salvage.py`)."""
    if blake3(block).digest() != digest:
        raise IntegrityError("block does not match its CID", rule="store.block.hash")
