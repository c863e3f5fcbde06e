"""Applying a delta to a file: the new version, written in any format.

The new version is made in memory, value by value: each chunk of the base is hashed, copied
to its place and changed there, and the result is hashed. Both digests are compared before
anything is written. So tensors may be added, removed and resized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from blake3 import blake3

from tensorglot.arguments import check_flags
from tensorglot.containers.delta.index import Body, Change, DeltaIndex
from tensorglot.containers.table import for_target
from tensorglot.errors import LimitError, TensorglotError
from tensorglot.io.local import BufferSource
from tensorglot.io.sink import Writable
from tensorglot.io.source import Readable
from tensorglot.io.target import open_target, version_read
from tensorglot.memory import allocate
from tensorglot.model.archive import Archive
from tensorglot.model.types.text import text_of
from tensorglot.operations._as_archive import Given, as_archive
from tensorglot.operations._options import SaveOptions
from tensorglot.operations._places import locate_each
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations._sidecar import SetAside
from tensorglot.operations.save import prepare
from tensorglot.operations.verify import Report
from tensorglot.store import encodings
from tensorglot.store.checkout import PartRow, TensorRows, parse_type, rows_index
from tensorglot.store.delta_file import (
    DeltaFile,
    chunk_count,
    in_full,
    not_base,
    read_delta,
    root_digest,
    wrong_result,
)
from tensorglot.store.objects import ArrayNode, PartNode, TensorNode
from tensorglot.store.units import Unit, units_of
from tensorglot.threads import ordered_map
from tensorglot.wire.cid import CHUNK_NBYTES, CID

__all__ = ["patch"]

_LARGE_NBYTES = 1 << 30
_MOST_PER_STORED = 1024
"""Bytes of a new version for each byte of the delta and of the old version, once they are more than 1 GiB."""


def patch(
    delta: Readable,
    source: Given,
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
    ):
        read = None if archive.source is None else version_read(archive.source, target)
        spec, version = for_target(target, format or (None if read is None else archive.format))
        patched = _patched(file, archive, report)
        settled = prepare(patched, spec, version, SaveOptions())
        chunks = spec.write(patched, settled)
        around = SetAside(target, durable=durable)
        with open_target(target, durable=durable, expect=read, around=around) as out:
            out.write(chunks)
    return Report(f"{spec.name}@{version}", len(patched), int(patched.index.nbytes.sum()))


@dataclass(eq=False)
class _Row:
    """A value while it is made."""

    change: Change
    name: str
    base: Unit | None
    out: memoryview
    bodies: Mapping[int, Body]
    digests: tuple[list[bytes], list[bytes]] = field(default_factory=lambda: ([], []))
    """Digests of the chunks of the base and of the result."""

    def check(self) -> None:
        base, change = self.change.base, self.change
        if base is not None and root_digest(self.digests[0], base.nbytes) != base.digest:
            raise not_base(self.name, "its values differ")
        if root_digest(self.digests[1], change.nbytes) != change.digest:
            raise wrong_result(self.name, change)


@dataclass(frozen=True, slots=True)
class _Step:
    """A chunk of the base, and its place in the result; None behind the end of either."""

    row: _Row
    position: int
    base: memoryview | None
    out: memoryview | None


def _patched(file: DeltaFile, archive: Archive, progress: Progress | None) -> Archive:
    """The new version, in memory."""
    index = file.index
    total, held = sum(row.nbytes for row in index.rows), int(archive.index.nbytes.sum())
    if total > max(_LARGE_NBYTES, _MOST_PER_STORED * (len(file.data) + held)):
        raise LimitError(
            f"the delta expands {len(file.data) + held} bytes to {total}; at most {_MOST_PER_STORED} times as many "
            "are made",
            rule="delta.expansion",
        )
    named = {*index.names, *index.removed}
    for name in archive:
        if name not in named:
            raise not_base(name, "the base does not have it")
    for name in index.removed:
        if name not in archive:
            raise not_base(name, "it is not there")
    try:
        data = allocate(total)
    except (MemoryError, OSError, OverflowError) as error:
        raise LimitError(f"the new version of {total} bytes does not fit in memory", rule="delta.expansion") from error
    rows = list(_rows(file, archive, data))
    done = 0
    for step, digests in ordered_map(lambda step: (step, _make(file, step)), _steps(rows)):
        for known, digest in zip(step.row.digests, digests, strict=True):
            known += [] if digest is None else [digest]
        done += len(step.out or b"")
        if progress is not None:
            progress(done, total)
    for row in rows:
        row.check()
    return _archive(index, data)


def _rows(file: DeltaFile, archive: Archive, data: memoryview) -> Iterator[_Row]:
    at = 0
    for position, (name, changes) in enumerate(zip(file.index.names, file.index.rows_of(), strict=True)):
        special = file.index.special.get(position)
        parts = ["data"] if special is None else [part[0] for part in special.parts]
        units = {unit.part: unit for unit in units_of(archive[name])} if name in archive else {}
        for part, change in zip(parts, changes, strict=True):
            held = change if change.tied is None else file.index.rows[change.tied]
            unit = None
            if change.base is not None:
                unit = units.get(part)
                kind = "not there" if unit is None else text_of(unit.tensor.type)
                if kind != change.base.type:
                    raise not_base(name, f"it is {kind:.80}, the base is {change.base.type:.80}")
            bodies = {body.position: body for body in held.bodies}
            yield _Row(change, name, unit, data[at : at + change.nbytes], bodies)
            at += change.nbytes


def _steps(rows: list[_Row]) -> Iterator[_Step]:
    for row in rows:
        outs = (row.out[at * CHUNK_NBYTES : (at + 1) * CHUNK_NBYTES] for at in range(chunk_count(len(row.out))))
        bases = iter(()) if row.base is None else row.base.chunks()
        try:
            for position, (base, out) in enumerate(zip_longest(bases, outs)):
                yield _Step(row, position, base, out)
        except TensorglotError as error:
            error.tensor = error.tensor or row.name
            raise


def _make(file: DeltaFile, step: _Step) -> tuple[bytes | None, bytes | None]:
    """Makes one chunk; the digests of its base and of itself."""
    base, out = step.base, step.out
    before = None if base is None else blake3(base).digest()
    if out is None:
        return before, None
    body = step.row.bodies.get(step.position)
    try:
        if body is not None and in_full(body):
            encodings.decode(body.encoding, file.body(body), out)
        else:
            kept = min(len(out), len(base or b""))
            out[:kept] = (base or memoryview(b""))[:kept]
            out[kept:] = bytes(len(out) - kept)
            if body is not None:
                encodings.apply(body.encoding, file.body(body), out)
    except TensorglotError as error:
        error.tensor = error.tensor or step.row.name
        raise
    return before, blake3(out).digest()


def _archive(index: DeltaIndex, data: memoryview) -> Archive:
    tensors, spans, at = [], [], 0
    for position, (name, changes) in enumerate(zip(index.names, index.rows_of(), strict=True)):
        special = index.special.get(position)
        arrays = [ArrayNode(row.type, row.nbytes, CID(row.digest)) for row in changes]
        if special is None:
            tensors.append(TensorRows(name, [PartRow("data", arrays[0], parse_type(arrays[0].type))]))
        else:
            parts = [
                PartRow(part, array, parse_type(array.type), dtype, shape)
                for (part, dtype, shape), array in zip(special.parts, arrays, strict=True)
            ]
            nodes = tuple(PartNode(part.name, part.array.data, part.dtype, part.shape) for part in parts)
            tensors.append(TensorRows(name, parts, TensorNode(special.layout, special.type, nodes, special.attributes)))
        for array in arrays:
            spans.append((at, at + array.nbytes))
            at += array.nbytes
    found = replace(rows_index(tensors, spans), format="delta@1", metadata=index.metadata)
    return Archive(found, BufferSource(data, share=True))
