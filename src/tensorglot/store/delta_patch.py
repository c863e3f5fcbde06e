"""Applying a delta to a file: the new version, written in any format.

The new version is made value by value, in memory or in an unnamed file beside the target:
each chunk of the base is hashed, copied and changed, and the result is hashed. Both digests
are compared before the target is written. So tensors may be added, removed and resized.
Small tensors are read, made and written in runs (`delta_small.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise, zip_longest
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
from blake3 import blake3

from tensorglot.arguments import check_flags
from tensorglot.containers.delta.index import Base, Body, Change, DeltaIndex
from tensorglot.containers.dynd import index_of
from tensorglot.containers.table import for_target
from tensorglot.errors import LimitError, add_tensor_to_errors
from tensorglot.io.local import BufferSource, FileSource
from tensorglot.io.place import Place
from tensorglot.io.sink import Writable, open_spool, write_at
from tensorglot.io.source import Readable
from tensorglot.io.target import open_target, version_read
from tensorglot.memory import allocate, scratch
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import Source
from tensorglot.model.types.text import text_of
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._options import SaveOptions
from tensorglot.operations._places import locate_each
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations._sidecar import SetAside
from tensorglot.operations.save import prepare
from tensorglot.operations.verify import Report
from tensorglot.store.checkout import PartRow, TensorRows, parse_type, rows_index
from tensorglot.store.delta_file import (
    DeltaFile,
    chunk_count,
    not_base,
    read_delta,
    root_digest,
    wrong_result,
)
from tensorglot.store.delta_small import SmallBases
from tensorglot.store.objects import ArrayNode, PartNode, TensorNode
from tensorglot.store.units import units_of
from tensorglot.threads import batches, ordered_map
from tensorglot.wire.cid import CHUNK_NBYTES, CID

__all__ = ["patch"]

_MEMORY_NBYTES = 64 << 20
"""A larger version is made in a file."""
_TOGETHER_NBYTES = 2 << 20
"""Chunks that one thread takes at a time."""
_TOGETHER_COUNT = 256
_LARGE_NBYTES = 1 << 30
_MOST_PER_STORED = 1024
"""Bytes of a new version for each byte of the delta and of the old version, once they are more than 1 GiB."""


def patch(
    delta: Readable,
    source: TensorsLike,
    target: Writable,
    *,
    format: str | None = None,
    durable: bool = True,
    progress: Progress | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Writes the new version of a delta: what `source` becomes by it. Atomic, and durable when it returns.

    `source` must be what the delta was made from, and may be the target. The format is that
    of the target's suffix or of `format`; a file that is replaced keeps its own. The metadata is
    that of the new version. `storage_options` are for those of the three that are URLs.
    """
    check_flags(durable=durable)
    delta, source, target = locate_each(storage_options, delta, source, target)
    file = read_delta(delta)
    with (
        as_archive(source) as archive,
        start_progress(progress, "applying") as report,
        ExitStack() as on_exit,
    ):
        read = None if archive.source is None else version_read(archive.source, target)
        spec, version = for_target(target, format or (None if read is None else archive.format))
        total = _check_size(file, archive)
        room = _open_room(total, target)
        if not isinstance(room, memoryview):
            on_exit.enter_context(room)
        _make_all(file, archive, room, total, report)
        made = BufferSource(room, share=True) if isinstance(room, memoryview) else FileSource(os.dup(room.fileno()))
        patched = _archive(file.index, on_exit.enter_context(closing(made)))
        settled = prepare(patched, spec, version, SaveOptions())
        chunks = spec.write(patched, settled)
        around = SetAside(target, durable=durable)
        with open_target(target, durable=durable, expect=read, around=around) as out:
            out.write(chunks)
    return Report(f"{spec.name}@{version}", len(patched), int(patched.index.nbytes.sum()))


_Room: TypeAlias = "memoryview | BinaryIO"
"""Where the new version is made."""


def _open_room(nbytes: int, target: Writable) -> _Room:
    if nbytes <= _MEMORY_NBYTES:
        return allocate(nbytes)
    file = open_spool(target) if isinstance(target, Place) and not target.remote else TemporaryFile()  # noqa: SIM115
    file.truncate(nbytes)
    return file


def _write(room: _Room, at: int, data: memoryview) -> None:
    if isinstance(room, memoryview):
        room[at : at + len(data)] = data
    else:
        write_at(room.fileno(), data, at)


@dataclass(eq=False, slots=True)
class _Row:
    """A value while it is made."""

    change: Change
    name: str
    base: Iterable[memoryview]
    """The chunks of the base; none if there is no base."""
    begin: int
    """Where it begins in the new version."""
    bodies: Mapping[int, Body]
    digests: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    """Digests of the chunks of the base and of the result."""

    def check(self) -> None:
        base, change = self.change.base, self.change
        if base is not None and root_digest(self.digests[0], base.nbytes) != base.digest:
            raise not_base(self.name, "its values differ")
        if root_digest(self.digests[1], change.nbytes) != change.digest:
            raise wrong_result(self.name, change)


@dataclass(slots=True)
class _Step:
    """A chunk of the base, and the size of that of the result; None behind the end of either."""

    row: _Row
    position: int
    base: memoryview | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class _Run:
    """Small tensors of one row each, made by one thread: the steps of each would cost ten times what its bytes do."""

    begin: int
    """Where the first begins in the new version."""
    names: list[str]
    changes: list[tuple[Change, tuple[Body, ...]]]
    """Their rows, and the bodies of these or of the rows that they are tied to."""
    bases: list[tuple[str, memoryview] | None]
    """The type and the bytes of each in the old version; None for those that it lacks."""

    @property
    def nbytes(self) -> int:
        return sum(change.nbytes for change, _ in self.changes)

    def make(self, file: DeltaFile) -> memoryview:
        """The bytes of all of them, compared with their digests."""
        made, at = memoryview(bytearray(self.nbytes)), 0
        for name, (change, bodies), base in zip(self.names, self.changes, self.bases, strict=True):
            data = memoryview(b"")
            if change.base is not None:
                kind, data = ("missing", data) if base is None else base
                _check_kind(name, change.base, kind)
                if blake3(data).digest() != change.base.digest:
                    raise not_base(name, "its values differ")
            out = made[at : at + change.nbytes]
            with add_tensor_to_errors(name):
                file.make(bodies[0] if bodies else None, data, out)
            if blake3(out).digest() != change.digest:
                raise wrong_result(name, change)
            at += change.nbytes
        return made


def _check_size(file: DeltaFile, archive: Archive) -> int:
    """The size of the new version, if it is one that the delta and the old version can have."""
    total, held = sum(row.nbytes for row in file.index.rows), int(archive.index.nbytes.sum())
    if total > max(_LARGE_NBYTES, _MOST_PER_STORED * (len(file.data) + held)):
        raise LimitError(
            f"the delta expands {len(file.data) + held} bytes to {total}, more than {_MOST_PER_STORED} times as many",
            rule="delta.expansion",
        )
    return total


def _make_all(file: DeltaFile, archive: Archive, room: _Room, total: int, progress: Progress | None) -> None:
    """Makes the new version. Chunks are made on all processors; a row is checked when its last one is there."""
    index = file.index
    named = {*index.names, *index.removed}
    for name in archive:
        if name not in named:
            raise not_base(name, "the base does not have it")
    for name in index.removed:
        if name not in archive:
            raise not_base(name, "it is missing")

    def make(batch: list[_Step] | _Run) -> list[tuple[_Step, tuple[bytes | None, bytes | None]]] | int:
        if isinstance(batch, _Run):
            _write(room, batch.begin, made := batch.make(file))
            return len(made)
        return [(step, _make(file, step, room)) for step in batch]

    done, row = 0, None
    for batch in ordered_map(make, _batches(_rows(file, archive))):
        if isinstance(batch, int):
            done = _advance(progress, done + batch, total)
            continue
        for step, digests in batch:
            if row is not None and step.row is not row:
                row.check()
            row = step.row
            for known, digest in zip(row.digests, digests, strict=True):
                known += [] if digest is None else [digest]
            done = _advance(progress, done + (step.nbytes or 0), total)
    if row is not None:
        row.check()


def _advance(progress: Progress | None, done: int, total: int) -> int:
    if progress is not None:
        progress(done, total)
    return done


def _batches(rows: Iterable[_Row | _Run]) -> Iterator[list[_Step] | _Run]:
    """What one thread makes at a time."""
    for small, group in groupby(rows, lambda row: isinstance(row, _Run)):
        if small:
            yield from cast("Iterator[_Run]", group)
        else:
            steps = _steps(cast("Iterator[_Row]", group))
            yield from batches(steps, lambda step: step.nbytes or 0, _TOGETHER_NBYTES, _TOGETHER_COUNT)


def _rows(file: DeltaFile, archive: Archive) -> Iterator[_Row | _Run]:
    begin = behind = 0
    index = file.index
    small, rows = SmallBases(archive, index), index.rows_of()

    def bodies_of(change: Change) -> tuple[Body, ...]:
        return (change if change.tied is None else index.rows[change.tied]).bodies

    for position, (name, changes) in enumerate(zip(index.names, rows, strict=True)):
        if position < behind:
            continue
        run = small.read(position)
        if run is not None:
            behind = position + len(run)
            here = [(change, bodies_of(change)) for (change,) in rows[position:behind]]
            yield _Run(begin, index.names[position:behind], here, run)
            begin += sum(change.nbytes for change, _ in here)
            continue
        special = index.special.get(position)
        parts = ["data"] if special is None else [part[0] for part in special.parts]
        bases = _bases(archive, name)
        for part, change in zip(parts, changes, strict=True):
            chunks: Iterable[memoryview] = ()
            if change.base is not None:
                kind, chunks = bases.get(part, ("missing", ()))
                _check_kind(name, change.base, kind)
            yield _Row(change, name, chunks, begin, {body.position: body for body in bodies_of(change)})
            begin += change.nbytes


def _check_kind(name: str, base: Base, kind: str) -> None:
    if kind != base.type:
        raise not_base(name, f"it is {kind:.80}, the base is {base.type:.80}")


def _bases(archive: Archive, name: str) -> dict[str, tuple[str, Iterable[memoryview]]]:
    """The type and the chunks of each part of a tensor of the old version, which may not have it."""
    if name not in archive:
        return {}
    return {unit.part: (text_of(unit.tensor.type), unit.chunks()) for unit in units_of(archive[name])}


def _steps(rows: Iterable[_Row]) -> Iterator[_Step]:
    for row in rows:
        nbytes = row.change.nbytes
        sizes = [min(CHUNK_NBYTES, nbytes - at * CHUNK_NBYTES) for at in range(chunk_count(nbytes))]
        with add_tensor_to_errors(row.name):
            for position, (base, size) in enumerate(zip_longest(row.base, sizes)):
                yield _Step(row, position, base, size)


def _make(file: DeltaFile, step: _Step, room: _Room) -> tuple[bytes | None, bytes | None]:
    """Makes one chunk; the digests of its base and of itself."""
    base, row = step.base or memoryview(b""), step.row
    before = None if step.base is None else blake3(base).digest()
    if step.nbytes is None:
        return before, None
    body = row.bodies.get(step.position)
    at = row.begin + step.position * CHUNK_NBYTES
    if body is None and len(base) == step.nbytes:
        _write(room, at, base)
        return before, before
    with scratch() as memory:
        out = memory.room(step.nbytes, 0)
        with add_tensor_to_errors(row.name):
            file.make(body, base, out)
        _write(room, at, out)
        return before, blake3(out).digest()


def _archive(index: DeltaIndex, source: Source) -> Archive:
    ends = np.cumsum([row.nbytes for row in index.rows], dtype=np.int64).tolist()
    spans = list(pairwise([0, *ends]))
    return Archive(replace(_index(index, spans), format="delta@1", metadata=index.metadata), source)


def _index(index: DeltaIndex, spans: list[tuple[int, int]]) -> Index:
    types = {text: parse_type(text) for text in {row.type for row in index.rows}}
    if not index.special:
        return index_of([(name, types[row.type]) for name, row in zip(index.names, index.rows, strict=True)], spans)
    tensors = []
    for position, (name, changes) in enumerate(zip(index.names, index.rows_of(), strict=True)):
        special = index.special.get(position)
        arrays = [ArrayNode(row.type, row.nbytes, CID(row.digest)) for row in changes]
        if special is None:
            tensors.append(TensorRows(name, [PartRow("data", arrays[0], types[arrays[0].type])]))
        else:
            parts = [
                PartRow(part, array, types[array.type], dtype, shape)
                for (part, dtype, shape), array in zip(special.parts, arrays, strict=True)
            ]
            nodes = tuple(PartNode(part.name, part.array.data, part.dtype, part.shape) for part in parts)
            tensors.append(TensorRows(name, parts, TensorNode(special.layout, special.type, nodes, special.attributes)))
    return rows_index(tensors, spans)
