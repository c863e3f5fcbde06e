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
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorglot.store.marks import Span
from tensorglot.store.pack import PackIndex, Record

__all__ = ["Stored", "Table"]


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
    """The blocks of several packs: many lookups are as quick in a thousand packs as in one."""

    starts: NDArray[np.int64]
    """The first block of each pack."""
    digests: NDArray[np.uint8]
    records: NDArray[np.uint32]
    begins: NDArray[np.uint32]
    sizes: NDArray[np.uint32]

    @classmethod
    def of(cls, indexes: Sequence[PackIndex]) -> Columns:
        starts = np.cumsum([0, *(len(index.digests) for index in indexes)])
        words = (
            np.concatenate([np.empty(0, np.uint32), *(index.blocks[name] for index in indexes)])
            for name in ("record", "begin", "nbytes")
        )
        return cls(starts, np.concatenate([np.empty((0, 32), np.uint8), *(i.digests for i in indexes)]), *words)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The blocks of all packs, by key."""

    names: list[str]
    indexes: list[PackIndex]
    keys: NDArray[np.uint64]
    packs: NDArray[np.int32]
    rows: NDArray[np.int32]
    bases: NDArray[np.int32]
    """The position of each block's base in this table; -1 for a block that is stored in full."""
    left_out: LeftOut
    columns: Columns
    """The columns of all packs, concatenated."""

    @classmethod
    def of(cls, indexes: Mapping[str, PackIndex], damaged: Mapping[str, frozenset[Span]]) -> Table:
        found = list(indexes.values())
        keys = np.concatenate([np.empty(0, np.uint64), *(_keys(index.digests) for index in found)])
        packs = np.repeat(np.arange(len(found), dtype=np.int32), [len(index.digests) for index in found])
        rows = np.concatenate([np.empty(0, np.int32), *(np.arange(len(i.digests), dtype=np.int32) for i in found)])
        depths = np.concatenate([np.empty(0, np.uint8), *(i.records["depth"][i.blocks["record"]] for i in found)])
        if not depths.any() and not damaged:
            order, rest = np.argsort(keys, kind="stable"), np.empty(0, np.intp)
            bases = np.full(len(keys), -1, np.int32)
        else:
            order = np.lexsort((depths, keys))
            base_keys = np.concatenate([np.empty(0, np.uint64), *map(_base_keys, found)])
            marked = [_marked(index, damaged.get(name, ())) for name, index in indexes.items()]
            sound = ~np.concatenate([np.empty(0, np.bool_), *marked])
            decodable = _decodable(keys[order], depths[order], base_keys[order], sound[order])
            order, rest = order[decodable], order[~decodable]
            bases = np.where(depths[order], keys[order].searchsorted(base_keys[order]), -1).astype(np.int32)
        left_out = LeftOut(keys[rest], packs[rest], rows[rest])
        columns = Columns.of(found)
        return cls(list(indexes), found, keys[order], packs[order], rows[order], bases, left_out, columns)

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

    def base(self, at: int, digest: bytes) -> int | None:
        """Where the base of a delta is, which has this digest."""
        base = self.bases.item(at)
        return base if self._digest(base) == digest else self.find(digest)  # another block may have the same key

    def _digest(self, at: int) -> bytes:
        digest: bytes = self.indexes[self.packs.item(at)].digests[self.rows.item(at)].tobytes()
        return digest

    def find_many(self, digests: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The pack and row of each block; pack -1 for one that is not there."""
        packs, rows = np.full(len(digests), -1, np.int32), np.zeros(len(digests), np.int32)
        if len(digests) and len(self.keys):
            wanted = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
            at = np.minimum(self.keys.searchsorted(_keys(wanted)), len(self.keys) - 1)
            hit = np.flatnonzero(self.keys[at] == _keys(wanted))
            packs[hit], rows[hit] = self.packs[at[hit]], self.rows[at[hit]]
            there = self.columns.digests[self.columns.starts[packs[hit]] + rows[hit]]
            for position in hit[(there != wanted[hit]).any(axis=1)].tolist():  # another block has the same key
                found = self.find(digests[position])
                packs[position] = -1 if found is None else self.packs[found]
                rows[position] = 0 if found is None else self.rows[found]
        return packs, rows

    def by_record(self, digests: Sequence[bytes]) -> Iterator[Together]:
        """The records that blocks are in, with their blocks; blocks that are not there are left out."""
        packs, rows = self.find_many(digests)
        here = np.flatnonzero(packs >= 0)
        at = self.columns.starts[packs[here]] + rows[here]
        order = np.lexsort((self.columns.records[at], packs[here]))
        here, at = here[order], at[order]
        packs, rows, records = packs[here], rows[here], self.columns.records[at]
        cuts = np.flatnonzero((packs[1:] != packs[:-1]) | (records[1:] != records[:-1])) + 1
        columns = here.tolist(), self.columns.begins[at].tolist(), self.columns.sizes[at].tolist()
        for first, last in pairwise([0, *cuts.tolist(), len(here)]) if len(here) else ():
            pack = packs.item(first)
            stored = Stored(self.names[pack], self.indexes[pack].record(rows.item(first)))
            yield Together(stored, *(column[first:last] for column in columns))


def _keys(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    keys: NDArray[np.uint64] = np.ascontiguousarray(digests[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    return keys


def _base_keys(index: PackIndex) -> NDArray[np.uint64]:
    """The key of the base of each block; 0 for one that has none."""
    bases = np.append(_keys(index.bases), np.uint64(0))
    numbers = index.records["base"][index.blocks["record"]]
    keys: NDArray[np.uint64] = bases[np.minimum(numbers, len(index.bases))]
    return keys


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
