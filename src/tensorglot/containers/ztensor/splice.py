"""From the columns of a scan, and the objects that were read one by one, to an index.

Most objects of a file are rows of the scan, and stay columns. An odd object has been
read on its own; it has rows of its own, none where it turned out to be no tensor. The
two are put together here, in the order of the file, with vector operations over the
rows of the scan and a loop over the odd ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.ztensor.constants import IN_PART
from tensorglot.containers.ztensor.lazy import Attributes, Texts
from tensorglot.model.dtypes import DType
from tensorglot.model.index import UNKNOWN, Index, Layout, permuted
from tensorglot.model.names import Names
from tensorglot.model.payload import Codec, Source

__all__ = ["Object", "Row", "Scanned", "splice", "structural"]

A = TypeVar("A", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Row:
    """One part of an odd object."""

    part: str
    dtype: DType | None
    shape: tuple[int, ...]
    begin: int
    end: int
    codec: Codec | None = None
    nbytes: int = 0
    """Decoded, where there is a codec."""
    checksum: str | None = None
    big_endian: bool = False
    unknown_dtype: str | None = None
    source: Source | None = None


def structural(row: Row) -> Row:
    """A part of a layout that we do not know: elements if it is a whole number of them, else bytes."""
    if row.dtype is None or row.nbytes * 8 % row.dtype.bits == 0:
        return row
    return replace(row, dtype=None, unknown_dtype=f"{row.dtype.name}{IN_PART}")


@dataclass(frozen=True, slots=True)
class Object:
    """An odd object."""

    name: str
    rows: tuple[Row, ...]
    layout: Layout | None = None
    attributes_begin: int | None = None


@dataclass(slots=True)
class Scanned:
    """The columns of a scan, in our terms, one row for each object. Of odd objects they hold nothing."""

    names: Sequence[str]
    dtypes: NDArray[np.uint8]
    dims: NDArray[np.int64]
    dim_offsets: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    encoded: NDArray[np.bool_]
    nbytes: NDArray[np.int64]
    """Decoded."""
    big_endian: NDArray[np.bool_]
    checksum_begins: NDArray[np.int64]
    checksum_sizes: NDArray[np.int64]
    attributes: dict[int, int]
    """Where the attributes of an object begin."""

    @classmethod
    def nothing(cls, count: int) -> Scanned:
        """A scan that found every object odd."""
        zeros, no = np.zeros(count, np.int64), np.zeros(count, np.bool_)
        return cls(
            names=Names(b"", zeros, zeros),
            dtypes=np.zeros(count, np.uint8),
            dims=zeros[:0],
            dim_offsets=np.zeros(count + 1, np.int64),
            begins=zeros,
            ends=zeros,
            encoded=no,
            nbytes=zeros,
            big_endian=no,
            checksum_begins=zeros,
            checksum_sizes=zeros - 1,
            attributes={},
        )


_in_order = attrgetter(*(column.name for column in fields(Scanned)))


@dataclass(slots=True)
class _Columns(Scanned):
    """All rows and tensors, on their way into an index."""

    first_rows: NDArray[np.int64] | None = None
    part_names: list[str] | None = None
    layouts: dict[int, Layout] = field(default_factory=dict)
    codecs: dict[int, Codec] = field(default_factory=dict)
    checksums: dict[int, str] = field(default_factory=dict)
    unknown_dtypes: dict[int, str] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)


def splice(
    scanned: Scanned,
    odd: Mapping[int, Object | None],
    codec: Codec,
    *,
    format: str,
    data: bytes,
    metadata: Mapping[str, Any] | None,
    checksums_decoded: bool = False,
    hidden: Mapping[str, str | None] | None = None,
) -> Index:
    """The index. `odd` has the odd objects by position, None for what is no tensor; `codec` decodes encoded rows."""
    columns = _merged(scanned, odd) if odd else _Columns(*_in_order(scanned))
    codecs = dict.fromkeys(np.flatnonzero(columns.encoded).tolist(), codec) | columns.codecs
    checksums = None
    if columns.checksums or (columns.checksum_sizes >= 0).any():
        checksums = Texts(data, columns.checksum_begins, columns.checksum_sizes, columns.checksums)
    return Index(
        format=format,
        names=columns.names,
        dtypes=columns.dtypes,
        dims=columns.dims,
        dim_offsets=columns.dim_offsets,
        begins=columns.begins,
        ends=columns.ends,
        metadata=metadata,
        first_rows=columns.first_rows,
        part_names=columns.part_names,
        layouts=columns.layouts,
        attributes=Attributes(data, columns.attributes, hidden or {}),
        checksums=checksums,
        checksums_decoded=np.ones(len(columns.dtypes), np.bool_) if checksums_decoded else None,
        codecs=codecs,
        decoded_nbytes={row: int(columns.nbytes[row]) for row in codecs},
        big_endian=frozenset(np.flatnonzero(columns.big_endian).tolist()),
        unknown_dtypes=columns.unknown_dtypes,
        sources=columns.sources,
    )


def _merged(scanned: Scanned, odd: Mapping[int, Object | None]) -> _Columns:
    count = len(scanned.names)
    counts = np.ones(count, np.int64)
    for position, thing in odd.items():
        counts[position] = 0 if thing is None else len(thing.rows)
    first_rows = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=first_rows[1:])
    from_scan = np.ones(count, np.bool_)
    from_scan[list(odd)] = False
    rows, total = first_rows[:-1][from_scan], int(first_rows[-1])

    def spread(column: NDArray[A], fill: int) -> NDArray[A]:
        out = np.full(total, fill, column.dtype)
        out[rows] = column[from_scan]
        return out

    columns = _Columns(
        names=[],
        dtypes=spread(scanned.dtypes, UNKNOWN),
        dims=scanned.dims,
        dim_offsets=scanned.dim_offsets,
        begins=spread(scanned.begins, 0),
        ends=spread(scanned.ends, 0),
        encoded=spread(scanned.encoded, False),
        nbytes=spread(scanned.nbytes, 0),
        big_endian=spread(scanned.big_endian, False),
        checksum_begins=spread(scanned.checksum_begins, 0),
        checksum_sizes=spread(scanned.checksum_sizes, -1),
        attributes={},
    )
    part_names = ["data"] * total
    shapes: dict[int, tuple[int, ...]] = {}
    for position, thing in odd.items():
        for at, row in enumerate(() if thing is None else thing.rows, int(first_rows[position])):
            part_names[at] = row.part
            shapes[at] = row.shape
            _fill(columns, at, row)
    dims, _ = permuted(scanned.dims, scanned.dim_offsets, np.flatnonzero(from_scan))
    columns.dims, columns.dim_offsets = _dims(dims, spread(np.diff(scanned.dim_offsets), 0), shapes)
    kept = _name_tensors(columns, scanned, odd)
    if columns.layouts or total != len(kept):
        columns.first_rows = np.append(first_rows[:-1][kept], total)
        columns.part_names = part_names
    return columns


def _fill(columns: _Columns, at: int, row: Row) -> None:
    columns.dtypes[at] = UNKNOWN if row.dtype is None else row.dtype.code
    columns.begins[at], columns.ends[at] = row.begin, row.end
    columns.big_endian[at] = row.big_endian
    if row.codec is not None:
        columns.codecs[at] = row.codec
        columns.nbytes[at] = row.nbytes
    if row.checksum is not None:
        columns.checksums[at] = row.checksum
    if row.unknown_dtype is not None:
        columns.unknown_dtypes[at] = row.unknown_dtype
    if row.source is not None:
        columns.sources[at] = row.source


def _dims(
    dims: NDArray[np.int64], ranks: NDArray[np.int64], shapes: Mapping[int, tuple[int, ...]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The dims of the scan, with those of the odd rows between them."""
    for at, shape in shapes.items():
        ranks[at] = len(shape)
    offsets = np.zeros(len(ranks) + 1, np.int64)
    np.cumsum(ranks, out=offsets[1:])
    out = np.zeros(int(offsets[-1]), np.int64)
    from_scan = np.ones(len(out), np.bool_)
    for at, shape in shapes.items():
        out[offsets[at] : offsets[at + 1]] = shape
        from_scan[offsets[at] : offsets[at + 1]] = False
    out[from_scan] = dims
    return out, offsets


def _name_tensors(columns: _Columns, scanned: Scanned, odd: Mapping[int, Object | None]) -> list[int]:
    """Names, layouts and attributes, by tensor; returns the positions of the objects that are tensors."""
    kept = [position for position in range(len(scanned.names)) if odd.get(position, scanned) is not None]
    names = list(scanned.names)
    for tensor, position in enumerate(kept):
        thing = odd.get(position)
        begin = scanned.attributes.get(position) if thing is None else thing.attributes_begin
        if begin is not None:
            columns.attributes[tensor] = begin
        if thing is not None:
            names[position] = thing.name
            if thing.layout is not None:
                columns.layouts[tensor] = thing.layout
    columns.names = [names[position] for position in kept]
    return kept
