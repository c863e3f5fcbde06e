"""Making a delta: what turns one set of tensors into another, as a small file, without a store.

Both versions are read chunk by chunk. Threads hash each pair of chunks, and encode the new
one against the old one where they differ; this thread writes bodies in order. Memory is a
few chunks for each thread. Small tensors are compared in runs (`delta_small.py`). The digests
of both values go into the index, so a delta can only be applied to what it was made from,
and gives what it was made for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from typing import Any, TypeAlias, cast

import xxhash
from blake3 import blake3

from tensorglot.arguments import check_flags
from tensorglot.containers.delta.index import MAGIC, Base, Body, Change, DeltaIndex, Special, encode_index
from tensorglot.errors import TensorglotError, UnsupportedError, add_tensor_to_errors, human_nbytes, plural
from tensorglot.io.sink import Writable
from tensorglot.io.target import open_target
from tensorglot.model.archive import Archive
from tensorglot.model.types.text import text_of
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._jsonable import field_dict
from tensorglot.operations._places import locate_each
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations.verify import Report
from tensorglot.store.delta_small import Run, SmallTensors
from tensorglot.store.encoder import Encoded, encode
from tensorglot.store.units import Unit, comparable, element_nbytes, tensor_node, units_of
from tensorglot.threads import batches, ordered_map
from tensorglot.wire.cid import CHUNK_NBYTES, CID, RAW, ChunkTree

__all__ = ["DeltaReport", "delta"]

FORMAT = "delta@1"
_BATCH_COUNT = 4096
"""Chunks that one thread takes at a time, at most a chunk's bytes in total."""
_NO_LINK = CID(bytes(32))


@dataclass(frozen=True, slots=True, repr=False)
class DeltaReport(Report):
    """What a delta holds."""

    changed: int = 0
    """Tensors whose values differ."""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    """Tensors whose type or shape differs."""
    stored_nbytes: int = 0
    """Size of the file."""

    def to_dict(self) -> dict[str, Any]:
        return field_dict(self, "ok", "format", "tensors", "nbytes", *self.__dataclass_fields__.keys() - _UNUSED)

    def __repr__(self) -> str:
        share = f", {self.stored_nbytes / self.nbytes:.2%}" if self.nbytes else ""
        counts = [f"{self.changed:,} of {plural(self.tensors, 'tensor')} changed"]
        counts += [f"{len(getattr(self, what)):,} {what}" for what in ("added", "removed") if getattr(self, what)]
        return f"DeltaReport({', '.join(counts)}, {human_nbytes(self.stored_nbytes)}{share})"


_UNUSED = frozenset(Report.__dataclass_fields__)


def delta(
    old: TensorsLike,
    new: TensorsLike,
    target: Writable,
    *,
    durable: bool = True,
    progress: Progress | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DeltaReport:
    """Writes what turns `old` into `new`: atomic, and durable when it returns.

    Both are what `save` takes, or sources: a path, an archive, `store://run#main`. `apply`
    changes tensors in memory by it, `patch` writes the new version of a file.
    `storage_options` are for those of the three that are URLs.
    """
    check_flags(durable=durable)
    old, new, target = locate_each(storage_options, old, new, target)
    with (
        as_archive(old) as a,
        as_archive(new) as b,
        start_progress(progress, "comparing") as report,
        open_target(target, durable=durable) as file,
    ):
        work = _Delta(a, b, report)
        file.write(work.pieces())
        return work.report()


@dataclass(eq=False)
class _Row:
    """A value of the new version while it is compared."""

    tensor: int
    new: Unit
    old: Unit | None
    tied: int | None
    width: int = 1
    alike: bool = False
    """Whether the elements of both values are at the same offsets, so that one can be a delta from the other."""
    trees: tuple[ChunkTree, ChunkTree] = field(default_factory=lambda: (ChunkTree(None), ChunkTree(None)))
    nbytes: list[int] = field(default_factory=lambda: [0, 0])
    """Sizes of the new value and of the old one."""
    bodies: list[Body] = field(default_factory=list)
    checksum: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)

    def add(self, which: int, digest: bytes, nbytes: int) -> None:
        self.trees[which].add(0, CID(digest, RAW), nbytes)
        self.nbytes[which] += nbytes

    def finish(self, done: Sequence[Change]) -> Change:
        """The row of the index; `done` are the rows before it."""
        checksum = self.checksum.intdigest()
        if self.tied is not None:
            return done[self.tied]._replace(tensor=self.tensor, bodies=(), tied=self.tied, checksum=checksum)
        base = None
        if self.old is not None:
            base = Base(text_of(self.old.tensor.type), self.nbytes[1], self.trees[1].root().digest)
        type, digest = text_of(self.new.tensor.type), self.trees[0].root().digest
        return Change(self.tensor, type, self.nbytes[0], digest, base, tuple(self.bodies), checksum=checksum)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two chunks at the same place; None behind the end of a value."""

    row: _Row
    position: int
    new: memoryview | None
    old: memoryview | None

    @property
    def nbytes(self) -> int:
        return len(self.new or b"") + len(self.old or b"")


_Compared: TypeAlias = tuple[_Pair, tuple[bytes | None, bytes | None], Encoded | None]
"""A pair, the digests of both chunks, and the new one encoded if it differs."""


class _Delta:
    """The comparison of two archives."""

    def __init__(self, old: Archive, new: Archive, progress: Progress | None) -> None:
        self._old, self._new, self._progress = old, new, progress
        self._rows: list[_Row | Run] = []
        self._special: dict[int, Special] = {}
        self._index = DeltaIndex([], [])
        self._stored = 0

    def pieces(self) -> Iterator[memoryview]:
        """The bytes of the file."""
        total, done = int(self._new.index.nbytes.sum()), 0
        at = len(MAGIC)
        yield memoryview(MAGIC)
        for batch in ordered_map(_compare_batch, _batches(self._pairs())):
            if isinstance(batch, Run):
                bodies = batch.place(at)
                at += len(bodies)
                yield memoryview(bodies)
                done = self._advance(done + batch.nbytes, total)
                continue
            for pair, digests, encoded in batch:
                row = pair.row
                for which, (digest, data) in enumerate(zip(digests, (pair.new, pair.old), strict=True)):
                    if digest is not None and data is not None:
                        row.add(which, digest, len(data))
                if encoded is not None:
                    nbytes = len(encoded.body)
                    row.bodies.append(Body(pair.position, int(encoded.encoding), at, at + nbytes))
                    row.checksum.update(encoded.body)
                    at += nbytes
                    yield memoryview(encoded.body)
                done = self._advance(done + len(pair.new or b""), total)
        rows: list[Change] = []
        for each in self._rows:
            rows += each.changes if isinstance(each, Run) else [each.finish(rows)]
        self._index = DeltaIndex(
            list(self._new.index.names),
            rows,
            [name for name in self._old.index.names if name not in self._new],
            self._special,
            self._new.metadata,
        )
        try:
            tail = encode_index(self._index, at)
        except TensorglotError as error:
            raise UnsupportedError(
                f"metadata or attributes cannot be stored as DAG-CBOR: {error.message}", rule="delta.metadata"
            ) from error
        self._stored = at + len(tail)
        yield memoryview(tail)

    def _advance(self, done: int, total: int) -> int:
        if self._progress is not None:
            self._progress(min(done, total), total)
        return done

    def _pairs(self) -> Iterator[_Pair | Run]:
        ties = self._ties()
        small = SmallTensors(self._old, self._new, ties)
        behind = 0
        for position in range(len(self._new)):
            if position < behind:
                continue
            run = small.read(position)
            if run is not None:
                self._rows.append(run)
                behind = position + len(run.news)
                yield run
                continue
            tensor = self._new.tensor_at(position)
            before = self._old.get(tensor.name)
            olds = {} if before is None else {unit.part: unit for unit in units_of(before)}
            node = tensor_node(tensor, [_NO_LINK] * len(tensor.parts))
            if node is not None:
                parts = tuple((part.name, part.dtype, part.shape) for part in node.parts)
                self._special[position] = Special(node.layout, node.type, parts, node.attributes)
            for unit in units_of(tensor):
                row = _Row(position, unit, olds.get(unit.part), ties.get(position), element_nbytes(unit.tensor.type))
                row.alike = row.old is not None and comparable(row.old.tensor.type, unit.tensor.type)
                self._rows.append(row)
                if row.tied is None:
                    yield from self._chunks(row)

    def _chunks(self, row: _Row) -> Iterator[_Pair]:
        with add_tensor_to_errors(row.new.name):
            olds = iter(()) if row.old is None else row.old.chunks()
            for position, (new, old) in enumerate(zip_longest(row.new.chunks(), olds)):
                yield _Pair(row, position, new, old)

    def _ties(self) -> Mapping[int, int]:
        """Tensors that share their memory with an earlier one in both versions, and the row of that one."""
        if self._new.index.first_rows is not None or self._old.index.first_rows is not None:
            return {}
        new, old = self._new.find_ties(), self._old.find_ties()
        names, others = self._new.index.names, self._old.index
        return {
            position: first
            for position, first in new.items()
            if names[position] in others.positions
            and others.names[old.get(others.positions[names[position]], -1)] == names[first]
            and others.positions[names[position]] in old
        }

    def report(self) -> DeltaReport:
        names, rows = self._index.names, self._index.rows_of()
        return DeltaReport(
            FORMAT,
            tensors=len(names),
            nbytes=sum(row.nbytes for row in self._index.rows),
            changed=sum(any(row.state == "changed" for row in group) for group in rows),
            added=tuple(
                name for name, group in zip(names, rows, strict=True) if any(row.base is None for row in group)
            ),
            removed=tuple(self._index.removed),
            resized=tuple(name for name, group in zip(names, rows, strict=True) if any(map(_resized, group))),
            stored_nbytes=self._stored,
        )


def _resized(row: Change) -> bool:
    return row.base is not None and row.base.type != row.type


def _batches(pairs: Iterable[_Pair | Run]) -> Iterator[list[_Pair] | Run]:
    """What one thread compares at a time."""
    for run, group in groupby(pairs, lambda pair: isinstance(pair, Run)):
        if run:
            yield from cast("Iterator[Run]", group)
        else:
            each = cast("Iterator[_Pair]", group)
            yield from batches(each, lambda pair: pair.nbytes, 2 * CHUNK_NBYTES, _BATCH_COUNT)


def _compare_batch(batch: list[_Pair] | Run) -> list[_Compared] | Run:
    return batch.compare() if isinstance(batch, Run) else list(map(_compare, batch))


def _compare(pair: _Pair) -> _Compared:
    new, old = pair.new, pair.old
    digests = None if new is None else blake3(new).digest(), None if old is None else blake3(old).digest()
    if new is None or digests[0] == digests[1]:
        return pair, digests, None
    return pair, digests, encode(new, pair.row.width, old if pair.row.alike else None)
