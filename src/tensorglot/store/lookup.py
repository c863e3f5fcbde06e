"""All packs of a store as one table from digests to records.

The indexes of all packs are joined into one sorted column of keys, the first eight bytes
of each digest: a lookup is a binary search, many lookups are one vector operation, and
the base of a delta is looked up once, when the table is made. The table never changes, so
readers need no lock.

A block may be in several packs, here in full and there as a delta. The table has the
copies that can be decoded, the one with the fewest deltas first: a copy of depth n needs
a copy of its base of a smaller depth. So chains of deltas end, whoever wrote them, and a
delta whose base was removed is not in the store: who needs the block writes it again. The
same holds for a copy that is marked as damaged (`marks.py`).

Making the table takes longer than a few lookups. So the first ones scan the digests
of all packs, unsorted, and parse the indexes only of the packs that have the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError
from tensorglot.store.encodings import Encoding
from tensorglot.store.marks import Span
from tensorglot.store.pack import MAX_DEPTH, PackIndex, Record
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import DIGEST_NBYTES

__all__ = ["Chains", "DigestScan", "Stored", "Table"]

_NONE, _SOUGHT = -1, -2


class Stored(NamedTuple):
    """Where a block is."""

    pack: str
    record: Record

    @property
    def place(self) -> tuple[str, int]:
        return self.pack, self.record.offset

    @property
    def span(self) -> Span:
        """Begin and end of its bytes, as a mark names them: a record without bytes counts as one byte."""
        return self.record.offset, self.record.offset + max(1, self.record.stored)

    @property
    def order(self) -> tuple[int, str, int]:
        """The order in which blocks are copied: bases before their deltas, and by their place in a pack."""
        return self.record.depth, self.pack, self.record.offset


@dataclass(frozen=True, slots=True, eq=False)
class DigestScan:
    """Lookups of single blocks, as the table would find them. It is not worth making for a few of them."""

    names: list[str]
    indexes: list[PackIndex]
    keys: NDArray[np.uint64]
    """The first eight bytes of the digests of each pack, in the order of the bytes in memory."""
    starts: NDArray[np.int64]
    """The first block of each pack."""
    damaged: Mapping[str, frozenset[Span]]

    @classmethod
    def of(cls, indexes: Mapping[str, PackIndex], damaged: Mapping[str, frozenset[Span]]) -> DigestScan:
        heads = [index.digests[:, :8] for index in indexes.values()]
        keys = np.concatenate([np.empty((0, 8), np.uint8), *heads]).view(np.uint64).reshape(-1)
        return cls(list(indexes), list(indexes.values()), keys, _starts(list(map(len, heads))), damaged)

    def chain(self, digest: bytes) -> list[Stored] | None:
        """The record in full that a block begins with, and the deltas on it; None if only the table can tell."""
        links: list[Stored] = []
        below = MAX_DEPTH + 1
        while True:
            found = self._find(digest)
            if found is None or found.record.depth >= below:
                return None
            links.append(found)
            if found.record.base is None:
                return links[::-1]
            digest, below = found.record.base, found.record.depth

    def _find(self, digest: bytes) -> Stored | None:
        """The copy with the fewest deltas; None if there is none, or one in a pack that has damage."""
        best: Stored | None = None
        for at in np.flatnonzero(self.keys == np.frombuffer(digest, np.uint64, 1)).tolist():
            number = int(self.starts.searchsorted(at, "right")) - 1
            name, index, row = self.names[number], self.indexes[number], at - self.starts.item(number)
            if index.digests[row].tobytes() == digest:
                if name in self.damaged:
                    return None
                record = index.record(row)
                if best is None or record.depth < best.record.depth:
                    best = Stored(name, record)
        return best


class Together(NamedTuple):
    """Blocks of one record."""

    first: Stored
    positions: list[int]
    """Their positions among the blocks that were looked up."""
    begins: list[int]
    sizes: list[int]


class LeftOut(NamedTuple):
    """Copies that are marked as damaged, or are deltas from what is not there: sorted keys, packs and rows."""

    keys: NDArray[np.uint64]
    packs: NDArray[np.int32]
    rows: NDArray[np.int32]


class Columns(NamedTuple):
    """The blocks and records of several packs: many lookups are as quick in a thousand packs as in one."""

    starts: NDArray[np.int64]
    """The first block of each pack."""
    digests: NDArray[np.uint8]
    records: NDArray[np.int64]
    """The record of each block, among the records of all packs."""
    begins: NDArray[np.uint32]
    sizes: NDArray[np.uint32]
    offsets: NDArray[np.uint64]
    """Of each record, as the following columns."""
    stored: NDArray[np.uint32]
    decoded: NDArray[np.uint32]
    encodings: NDArray[np.uint8]

    @classmethod
    def of(cls, indexes: Sequence[PackIndex]) -> Columns:
        starts = _starts([len(index.digests) for index in indexes])
        records = _concatenate([index.blocks["record"] for index in indexes], "i8")
        firsts = _starts([len(index.records["stored"]) for index in indexes])
        records += np.repeat(firsts[:-1], np.diff(starts))
        begins, sizes = (_concatenate([i.blocks[name] for i in indexes], "u4") for name in ("begin", "nbytes"))
        kinds = {"offset": "u8", "stored": "u4", "decoded": "u4", "encoding": "u1"}
        of_record = (_concatenate([i.records[name] for i in indexes], kind) for name, kind in kinds.items())
        digests = np.concatenate([np.empty((0, DIGEST_NBYTES), np.uint8), *(index.digests for index in indexes)])
        return cls(starts, digests, records, begins, sizes, *of_record)


class Chains(NamedTuple):
    """What blocks are decoded from: for each block the record in full, then the deltas on it. Columns of records:
    a tuple for each record would make the garbage collector run."""

    ends: list[int]
    """Where the records of each block end."""
    packs: list[str]
    offsets: list[int]
    stored: list[int]
    """0 for a record that has more than the block: such groups are kept decoded."""
    encodings: list[int]
    sizes: list[int]
    """Of the blocks."""
    grouped: list[bool]
    records: Callable[[int], Stored]
    """One of the records."""

    @classmethod
    def of(cls, chains: Sequence[Sequence[Stored]]) -> Chains:
        """The chains of few blocks."""
        links = [link for chain in chains for link in chain]
        records = [link.record for link in links]
        return cls(
            list(accumulate(map(len, chains))),
            [link.pack for link in links],
            [record.offset for record in records],
            [0 if record.grouped else record.stored for record in records],
            [record.encoding for record in records],
            [record.nbytes for record in records],
            [record.grouped for record in records],
            links.__getitem__,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The blocks of all packs, by key."""

    names: list[str]
    indexes: list[PackIndex]
    keys: NDArray[np.uint64]
    packs: NDArray[np.int32]
    rows: NDArray[np.int32]
    blocks: NDArray[np.int64]
    """The row of each block in `columns`."""
    bases: NDArray[np.int32]
    """The position of each block's base in this table; _NONE for a block that is stored in full, _SOUGHT for a base
    that is looked up when it is needed, because another block has the same key."""
    left_out: LeftOut
    columns: Columns
    """The columns of all packs, concatenated."""

    @classmethod
    def of(cls, indexes: Mapping[str, PackIndex], damaged: Mapping[str, frozenset[Span]]) -> Table:
        found = list(indexes.values())
        columns = Columns.of(found)
        keys = np.concatenate([np.empty(0, np.uint64), *(_keys(index.digests) for index in found)])
        packs = np.repeat(np.arange(len(found), dtype=np.int32), [len(index.digests) for index in found])
        rows = np.concatenate([np.empty(0, np.int32), *(np.arange(len(i.digests), dtype=np.int32) for i in found)])
        depths = np.concatenate([np.empty(0, np.uint8), *(i.records["depth"][i.blocks["record"]] for i in found)])
        if not depths.any() and not damaged:
            order, rest = np.argsort(keys, kind="stable"), np.empty(0, np.intp)
            bases = np.full(len(keys), _NONE, np.int32)
        else:
            order = np.lexsort((depths, keys))
            wanted = np.concatenate([np.empty((0, DIGEST_NBYTES), np.uint8), *map(_base_digests, found)])
            base_keys = _keys(wanted)
            marked = [_marked(index, damaged.get(name, ())) for name, index in indexes.items()]
            sound = ~np.concatenate([np.empty(0, np.bool_), *marked])
            decodable = _decodable(keys[order], depths[order], base_keys[order], sound[order])
            order, rest = order[decodable], order[~decodable]
            bases = np.where(depths[order], keys[order].searchsorted(base_keys[order]), _NONE).astype(np.int32)
            deltas = np.flatnonzero(bases >= 0)
            there = columns.digests[order[bases[deltas]]]
            bases[deltas[(there != wanted[order[deltas]]).any(axis=1)]] = _SOUGHT
        left_out = LeftOut(keys[rest], packs[rest], rows[rest])
        return cls(list(indexes), found, keys[order], packs[order], rows[order], order, bases, left_out, columns)

    def find(self, digest: bytes) -> int | None:
        """Where a block is in this table; of several copies, the one with the fewest deltas."""
        key = np.uint64(int.from_bytes(digest[:8], "big"))
        at = int(self.keys.searchsorted(key))
        while at < len(self.keys) and self.keys[at] == key:
            if self._digest(at) == digest:
                return at
            at += 1
        return None

    def copies(self, digest: bytes) -> Iterator[tuple[int, int]]:
        """Pack and row of every copy of a block; those that are left out come last."""
        key = np.uint64(int.from_bytes(digest[:8], "big"))
        for columns in (self, self.left_out):
            first, last = columns.keys.searchsorted(key), columns.keys.searchsorted(key, "right")
            for pack, row in zip(columns.packs[first:last].tolist(), columns.rows[first:last].tolist(), strict=True):
                if self.indexes[pack].digests[row].tobytes() == digest:
                    yield pack, row

    def stored(self, at: int) -> Stored:
        pack = self.packs.item(at)
        return Stored(self.names[pack], self.indexes[pack].record(self.rows.item(at)))

    def _digest(self, at: int) -> bytes:
        digest: bytes = self.columns.digests[self.blocks.item(at)].tobytes()
        return digest

    def positions(self, digests: Sequence[bytes]) -> NDArray[np.int64]:
        """Where blocks are in this table; -1 for one that is not there."""
        if not len(digests) or not len(self.keys):
            return np.full(len(digests), -1)
        wanted = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGEST_NBYTES)
        keys = _keys(wanted)
        at = np.minimum(self.keys.searchsorted(keys), len(self.keys) - 1)
        at[self.keys[at] != keys] = -1
        unlike = (at >= 0) & (self.columns.digests[self.blocks[at]] != wanted).any(axis=1)
        for position in np.flatnonzero(unlike).tolist():  # another block has the same key
            found = self.find(digests[position])
            at[position] = -1 if found is None else found
        return at

    def find_many(self, digests: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The pack and row of each block; pack -1 for one that is not there."""
        at = self.positions(digests)
        if not len(self.keys):
            return at.astype(np.int32), at.astype(np.int32)
        return np.where(at < 0, np.int32(-1), self.packs[at]), self.rows[at]

    def chains(self, digests: Sequence[bytes]) -> Chains:
        """What blocks are decoded from. KeyError(digest) for a block that is not there."""
        links: list[int] = []
        ends = []
        for digest, at in zip(digests, self.positions(digests).tolist(), strict=True):
            if at < 0:
                raise KeyError(digest)
            chain = [at]
            while (at := self.bases.item(at)) != _NONE:
                if len(chain) > MAX_DEPTH:
                    raise FormatError(f"a chain of more than {MAX_DEPTH} deltas", rule="store.chain")
                chain.append(self._find_base(chain[-1]) if at == _SOUGHT else at)
                at = chain[-1]
            links += chain[::-1]
            ends.append(len(links))
        blocks = self.blocks[links]
        records, sizes = self.columns.records[blocks], self.columns.sizes[blocks]
        encodings = self.columns.encodings[records]
        grouped = (sizes != self.columns.decoded[records]) | (encodings == Encoding.NODES)
        names = self.names
        return Chains(
            ends,
            [names[pack] for pack in self.packs[links].tolist()],
            self.columns.offsets[records].tolist(),
            np.where(grouped, 0, self.columns.stored[records]).tolist(),
            encodings.tolist(),
            sizes.tolist(),
            grouped.tolist(),
            lambda at: self.stored(links[at]),
        )

    def _find_base(self, at: int) -> int:
        base = self.stored(at).record.base or b""
        found = self.find(base)
        if found is None:
            raise KeyError(base)
        return found

    def by_record(self, digests: Sequence[bytes]) -> Iterator[Together]:
        """The records that blocks are in, with their blocks; blocks that are not there are left out."""
        at = self.positions(digests)
        here = np.flatnonzero(at >= 0)
        if not len(here):
            return
        blocks = self.blocks[at[here]]
        order = np.argsort(self.columns.records[blocks], kind="stable")
        here, blocks = here[order], blocks[order]
        cuts = np.flatnonzero(np.diff(self.columns.records[blocks])) + 1
        columns = here.tolist(), self.columns.begins[blocks].tolist(), self.columns.sizes[blocks].tolist()
        for first, last in pairwise([0, *cuts.tolist(), len(here)]):
            yield Together(self.stored(int(at[here[first]])), *(column[first:last] for column in columns))


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    """Where each of several columns begins, if they are concatenated; and where the last one ends."""
    return np.cumsum([0, *counts])


def _concatenate(columns: Sequence[NDArray[Any]], kind: str) -> NDArray[Any]:
    return np.concatenate([np.empty(0, kind), *columns])


def _keys(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = np.ascontiguousarray(digests[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    return keys


def _base_digests(index: PackIndex) -> NDArray[np.uint8]:
    """The digest of the base of each block; zeros for one that has none."""
    bases = np.concatenate([index.bases, np.zeros((1, DIGEST_NBYTES), np.uint8)])
    numbers = index.records["base"][index.blocks["record"]]
    digests: NDArray[np.uint8] = bases[np.minimum(numbers, len(index.bases))]
    return digests


def _marked(index: PackIndex, spans: Collection[Span]) -> NDArray[np.bool_]:
    """Which blocks of a pack are in records that overlap one of the spans."""
    begins = index.records["offset"]
    ends = begins + np.maximum(index.records["stored"], 1)  # an empty record has a place, too
    marked = np.zeros(len(begins), np.bool_)
    for begin, end in spans:
        marked |= (begins < end) & (ends > begin)
    blocks: NDArray[np.bool_] = marked[index.blocks["record"]]
    return blocks


def _decodable(
    keys: NDArray[np.uint64], depths: NDArray[np.uint8], bases: NDArray[np.uint64], sound: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which copies are sound and have a base that can be decoded and is less deep. `keys` are sorted."""
    found: NDArray[np.bool_] = (depths == 0) & sound
    for depth in np.unique(depths[depths > 0]).tolist():
        known, here = keys[found], np.flatnonzero((depths == depth) & sound)
        at = known.searchsorted(bases[here])
        there = at < len(known)
        there[there] = known[at[there]] == bases[here][there]
        found[here] = there
    return found
