"""Small tensors of a delta, compared in runs: making a Tensor for each would cost a hundred times what its bytes do.

A run is a sequence of plain small tensors of the new version, each of which the old version
has as a plain small tensor or not at all. Both are read by few reads; then the bytes decide.
The rows of the index are those that comparing one by one would give.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorglot.arrays import complement
from tensorglot.containers.delta.index import Base, Body, Change, DeltaIndex
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE
from tensorglot.model.payload import SMALL_NBYTES
from tensorglot.model.types.algebra import dense
from tensorglot.model.types.base import Type
from tensorglot.model.types.text import text_of
from tensorglot.operations._small_rows import is_small
from tensorglot.store.encoder import Encoded, encode
from tensorglot.store.encodings import Encoding
from tensorglot.store.units import comparable, element_nbytes

__all__ = ["Run", "SmallBases", "SmallTensors"]

_FEW, _MANY = 16, 4096
"""Fewer tensors are not worth a run; more are several runs."""
_RAW_NBYTES = 16
"""So few bytes are stored as they are: trying every encoding takes 50 µs, and the row in the index has 72 bytes."""
_RUN_NBYTES = 1 << 20
"""The bytes of both versions in a run: at most these, and those of one tensor more."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tensors of one element type and shape have in common."""

    type: Type
    text: str
    width: int


@lru_cache(maxsize=1 << 14)
def _kind(code: int, shape: tuple[int, ...]) -> _Kind:
    type = dense(TABLE[code], shape)
    return _Kind(type, text_of(type), element_nbytes(type))


@dataclass(slots=True)
class Run:
    """Tensors of the new version, at `begin` and behind it, and what was found."""

    begin: int
    news: list[memoryview]
    olds: list[memoryview | None]
    kinds: list[tuple[_Kind, _Kind | None]]
    digests: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    encoded: list[Encoded | None] = field(default_factory=list)
    """None where nothing has changed."""
    changes: list[Change] = field(default_factory=list)
    nbytes: int = 0

    def compare(self) -> Run:
        """Hashes and encodes. A thread may do it."""
        alike: dict[tuple[int, int], bool] = {}
        for new, old, (kind, old_kind) in zip(self.news, self.olds, self.kinds, strict=True):
            digest = blake3(new).digest()
            if old is None or old_kind is None:
                self.digests.append((digest, None))
                self.encoded.append(_encode(new, kind.width, None))
                continue
            old_digest = digest if old == new else blake3(old).digest()
            self.digests.append((digest, old_digest))
            if old_digest == digest:
                self.encoded.append(None)
                continue
            pair = id(kind), id(old_kind)
            if pair not in alike:
                alike[pair] = comparable(old_kind.type, kind.type)
            self.encoded.append(_encode(new, kind.width, old if alike[pair] else None))
        return self

    def place(self, at: int) -> bytes:
        """Makes the rows of the index, with bodies from `at` on in the file; returns these bodies."""
        bodies = bytearray()
        rows = zip(self.news, self.olds, self.kinds, self.digests, self.encoded, strict=True)
        for position, (new, old, (kind, old_kind), (digest, old_digest), encoded) in enumerate(rows, self.begin):
            base = None
            if old is not None and old_kind is not None and old_digest is not None:
                base = Base(old_kind.text, len(old), old_digest)
            body: tuple[Body, ...] = ()
            if encoded is not None:
                begin = at + len(bodies)
                bodies += encoded.body
                body = (Body(0, int(encoded.encoding), begin, at + len(bodies)),)
            checksum = xxh3_64_intdigest(b"" if encoded is None else encoded.body)
            self.changes.append(Change(position, kind.text, len(new), digest, base, body, checksum=checksum))
        self.nbytes = sum(map(len, self.news))
        self.news, self.olds, self.digests, self.encoded = [], [], [], []
        return bytes(bodies)


def _encode(data: memoryview, width: int, base: memoryview | None) -> Encoded:
    return encode(data, width, base) if len(data) > _RAW_NBYTES else Encoded(Encoding.RAW, data)


class SmallTensors:
    """The tensors of two archives that can be compared in runs."""

    def __init__(self, old: Archive, new: Archive, without: Container[int]) -> None:
        self._old, self._new = old, new
        names, count = new.index.names, len(new)
        before = np.array([old.index.positions.get(name, -1) for name in names], np.int64)
        there = np.flatnonzero(before >= 0)
        small = is_small(new.index, np.arange(count))
        small[there] &= is_small(old.index, before[there])
        small &= np.array([position not in without for position in range(count)], np.bool_)
        self._before = before
        nbytes = new.index.nbytes.astype(np.int64)
        nbytes[there] += old.index.nbytes[before[there]].astype(np.int64)
        self._ends = dict(_runs(small, nbytes))
        self._shapes = new.index.shapes if self._ends else []
        self._old_shapes = old.index.shapes if self._ends else []

    def read(self, begin: int) -> Run | None:
        """The run that begins at a tensor; None if there is none, or if its tensors have to be read one by one."""
        end = self._ends.get(begin)
        if end is None:
            return None
        before = self._before[begin:end]
        there = np.flatnonzero(before >= 0)
        news, found = self._new.read_rows(np.arange(begin, end)), self._old.read_rows(before[there])
        if news is None or found is None:
            return None
        olds: list[memoryview | None] = [None] * len(news)
        kinds: list[tuple[_Kind, _Kind | None]] = [
            (_kind(code, shape), None)
            for code, shape in zip(self._new.index.dtypes[begin:end].tolist(), self._shapes[begin:end], strict=True)
        ]
        codes = self._old.index.dtypes[before[there]].tolist()
        for at, row, code, data in zip(there.tolist(), before[there].tolist(), codes, found, strict=True):
            olds[at] = data
            kinds[at] = kinds[at][0], _kind(code, self._old_shapes[row])
        return Run(begin, news, olds, kinds)


class SmallBases:
    """The tensors of a delta's old version that can be read in runs: small ones that become small ones."""

    def __init__(self, archive: Archive, index: DeltaIndex) -> None:
        self._archive = archive
        count, positions = len(index.names), archive.index.positions
        self._rows = np.array([positions.get(name, -1) for name in index.names], np.int64)
        there = np.flatnonzero(self._rows >= 0)
        firsts = [row for row in index.rows if row.tensor not in index.special]
        plain = complement(list(index.special), count)
        small, nbytes = np.zeros(count, np.bool_), np.zeros(count, np.int64)
        nbytes[plain] = [row.nbytes for row in firsts]
        small[plain] = [row.nbytes < SMALL_NBYTES for row in firsts]
        nbytes[there] += archive.index.nbytes[self._rows[there]].astype(np.int64)
        small[there] &= is_small(archive.index, self._rows[there])
        self._ends = dict(_runs(small, nbytes))
        self._shapes = archive.index.shapes if self._ends else []

    def read(self, begin: int) -> list[tuple[str, memoryview] | None] | None:
        """The types and bytes of the run that begins at a tensor, None for those that the old version lacks.

        None if there is no run, or if its tensors have to be read one by one.
        """
        end = self._ends.get(begin)
        if end is None:
            return None
        rows = self._rows[begin:end]
        there = np.flatnonzero(rows >= 0)
        found = self._archive.read_rows(rows[there])
        if found is None:
            return None
        bases: list[tuple[str, memoryview] | None] = [None] * len(rows)
        codes = self._archive.index.dtypes[rows[there]].tolist()
        for at, row, code, data in zip(there.tolist(), rows[there].tolist(), codes, found, strict=True):
            bases[at] = _kind(code, self._shapes[row]).text, data
        return bases


def _runs(small: NDArray[np.bool_], nbytes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The first tensor of each run, and the first behind it."""
    edges = np.flatnonzero(np.diff(small, prepend=False, append=False)).tolist()
    before = np.concatenate([[0], np.cumsum(nbytes)])
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        begin = first
        while last - begin >= _FEW:
            full = int(np.searchsorted(before, before[begin] + _RUN_NBYTES))
            end = min(last, begin + _MANY, max(full, begin + 1))
            yield begin, end
            begin = end
