"""Listings of an index: an entry for each tensor, and a summary. Reads no values.

Most files have one row for each tensor; then the entries are made from the columns, and
no Tensor is created: fast enough for 100,000 tensors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorglot.containers.table import named
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import Index
from tensorglot.model.payload import CheckedBy
from tensorglot.model.types.algebra import leading
from tensorglot.operations._jsonable import Record
from tensorglot.tuples import NamedTuple

__all__ = ["Entry", "Shard", "Summary", "entries", "summarize"]


class Entry(NamedTuple):
    """One tensor, as a listing shows it."""

    name: str
    dtype: str
    """Type of the elements; the DyND type if the tensor is not dense; the file's name for it if it is unknown."""
    shape: tuple[int, ...]
    nbytes: int
    stored_nbytes: int
    offset: int | None
    encoding: str
    checksum: str | None
    layout: str
    parts: int

    def to_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class Use(Record):
    """Totals of one element type."""

    tensors: int
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Shard(Record):
    """One file of several."""

    file: str
    nbytes: int
    tensors: int


@dataclass(frozen=True, slots=True)
class Summary(Record):
    """A whole file in a few numbers."""

    format: str
    note: str | None
    """Which packages read this version of the format."""
    tensors: int
    elements: int
    nbytes: int
    stored_nbytes: int
    file_nbytes: int | None
    """Size of all shards together."""
    checksums: int
    """Tensors that have one."""
    checked_by: CheckedBy
    """What carries checksums besides tensors: boxes of a distributed checkpoint, or blocks of a store (their CIDs)."""
    dtypes: dict[str, Use]
    """The one with the most bytes first."""
    encodings: dict[str, int]
    layouts: dict[str, int]
    shards: tuple[Shard, ...] = ()
    """The files of an archive of several, in order."""


def entries(archive: Archive, names: Iterable[str] | None = None) -> list[Entry]:
    """An entry for each tensor, or for each of `names`, in the order of the file."""
    index = archive.index
    positions = range(len(index.names)) if names is None else sorted(index.positions[name] for name in names)
    if index.first_rows is None and not index.layouts:
        return _entries_by_column(index, positions)
    return [_entry(archive, position) for position in positions]


def _entries_by_column(index: Index, positions: Iterable[int]) -> list[Entry]:
    names, shapes = index.names, index.shapes
    codes = index.dtypes.tolist()
    nbytes, begins, ends = index.nbytes.tolist(), index.begins.tolist(), index.ends.tolist()
    checksums = index.checksums or [None] * len(codes)
    dtype_names = {row.code: row.name for row in TABLE}
    unknown, codecs = index.unknown_dtypes, index.codecs
    return [
        Entry(
            names[i],
            unknown[i] if i in unknown else dtype_names[codes[i]],
            shapes[i],
            nbytes[i],
            ends[i] - begins[i],
            begins[i],
            codecs[i].name if i in codecs else "raw",
            checksums[i],
            "dense",
            1,
        )
        for i in positions
    ]


def _entry(archive: Archive, position: int) -> Entry:
    tensor = archive.tensor_at(position)
    declared = tensor.declared
    dtype = tensor.parts["data"].dtype_name if declared is None else str(leading(declared)[1])
    return Entry(
        tensor.name,
        dtype,
        tensor.shape,
        tensor.nbytes,
        tensor.stored_nbytes,
        tensor.offset,
        tensor.encoding,
        tensor.checksum,
        tensor.layout,
        len(tensor.parts),
    )


def summarize(archive: Archive) -> Summary:
    """Counts over all tensors."""
    rows = entries(archive)
    spec, version = named(archive.format)
    uses: dict[str, Use] = {}
    for entry in rows:
        before = uses.get(entry.dtype, Use(0, 0, 0))
        elements = math.prod(entry.shape)
        uses[entry.dtype] = Use(before.tensors + 1, before.elements + elements, before.nbytes + entry.nbytes)
    shards = _shards(archive)
    return Summary(
        format=archive.format,
        note=spec.notes.get(version or ""),
        tensors=len(rows),
        elements=sum(use.elements for use in uses.values()),
        nbytes=sum(use.nbytes for use in uses.values()),
        stored_nbytes=sum(entry.stored_nbytes for entry in rows),
        file_nbytes=_file_nbytes(archive, shards),
        checksums=sum(entry.checksum is not None for entry in rows),
        checked_by=_checked_by(archive),
        dtypes=dict(sorted(uses.items(), key=lambda item: -item[1].nbytes)),
        encodings=dict(Counter(entry.encoding for entry in rows).most_common()),
        layouts=dict(Counter(entry.layout for entry in rows).most_common()),
        shards=shards,
    )


def _shards(archive: Archive) -> tuple[Shard, ...]:
    """The files that contain the tensors, if these are not in the archive's own file."""
    index = archive.index
    used = {id(source): source for source in index.sources.values()}
    counts = Counter(id(index.sources[row]) for row in index.row_offsets[:-1].tolist() if row in index.sources)
    named = ((key, source, getattr(source, "path", None)) for key, source in used.items())
    shards = [Shard(Path(path).name, source.size, counts[key]) for key, source, path in named if path is not None]
    for source in used.values():  # a source that combines several files lists them as members
        shards += (Shard(*member) for member in getattr(source, "members", tuple)())
    return tuple(shards)


def _checked_by(archive: Archive) -> CheckedBy:
    sources = {archive.source, *archive.index.sources.values()} if archive.index.names else set()
    kinds: set[CheckedBy] = {getattr(source, "checked_by", "tensor") for source in sources}
    return next((kind for kind in kinds if kind != "tensor"), "tensor")


def _file_nbytes(archive: Archive, shards: Sequence[Shard]) -> int | None:
    if archive.source is None and not shards:
        return None
    return (0 if archive.source is None else archive.source.size) + sum(shard.nbytes for shard in shards)
