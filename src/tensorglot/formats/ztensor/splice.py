"""From the columns of a scan, and the objects that were read one by one, to an index.

Most objects of a file are rows of the scan, and stay columns. An odd object has been
read on its own; it has rows of its own, none where it turned out to be no tensor. The
two are put together here, in the order of the file, with vector operations over the
rows of the scan and a loop over the odd ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.formats.ztensor.lazy import Attributes, Texts
from tensorglot.model.dtypes import DType
from tensorglot.model.index import UNKNOWN, Index, Layout
from tensorglot.model.payload import Codec, Source

__all__ = ["Object", "Row", "Scanned", "splice"]


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


@dataclass(frozen=True, slots=True)
class Object:
    """An odd object, or what an object of the scan has beside its row."""

    name: str
    rows: tuple[Row, ...]
    layout: Layout | None = None
    attributes_begin: int | None = None


@dataclass(frozen=True, slots=True)
class Scanned:
    """The columns of a scan, in our terms; of odd objects they hold nothing."""

    names: list[str]
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
    def nothing(cls, names: list[str]) -> Scanned:
        """A scan of which every object was odd."""
        count = len(names)
        zeros = np.zeros(count, np.int64)
        no = np.zeros(count, np.bool_)
        return cls(
            names, np.zeros(count, np.uint8), zeros[:0], np.zeros(count + 1, np.int64), zeros, zeros, no, zeros, no,
            zeros, zeros, {},
        )  # fmt: skip


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
    """The index. `odd` has the odd objects by position, None for what is no tensor."""
    given: dict[int, str] = {}
    columns: dict[str, Any] = {
        "names": scanned.names,
        "dtypes": scanned.dtypes,
        "dims": scanned.dims,
        "dim_offsets": scanned.dim_offsets,
        "begins": scanned.begins,
        "ends": scanned.ends,
        "codecs": dict.fromkeys(np.flatnonzero(scanned.encoded).tolist(), codec),
        "big_endian": frozenset(np.flatnonzero(scanned.big_endian).tolist()),
    }
    nbytes, begins, sizes = scanned.nbytes, scanned.checksum_begins, scanned.checksum_sizes
    attributes = scanned.attributes
    if odd:
        columns, nbytes, begins, sizes, attributes = _with_odd(scanned, odd, codec, given)
    return Index(
        format=format,
        metadata=metadata,
        checksums=Texts(data, begins, sizes, given) if given or (sizes >= 0).any() else None,
        checksums_decoded=checksums_decoded,
        attributes=Attributes(data, attributes, hidden or {}),
        decoded_nbytes={row: int(nbytes[row]) for row in columns["codecs"]},
        **columns,
    )


def _with_odd(
    scanned: Scanned, odd: Mapping[int, Object | None], codec: Codec, given: dict[int, str]
) -> tuple[dict[str, Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], dict[int, int]]:
    count = len(scanned.names)
    counts = np.ones(count, np.int64)
    for position, thing in odd.items():
        counts[position] = 0 if thing is None else len(thing.rows)
    first_rows = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=first_rows[1:])
    plain = np.ones(count, np.bool_)
    plain[list(odd)] = False
    rows = first_rows[:-1][plain]
    total = int(first_rows[-1])

    def spread(column: NDArray[Any], fill: int) -> NDArray[Any]:
        out = np.full(total, fill, column.dtype)
        out[rows] = column[plain]
        return out

    ranks = spread(np.diff(scanned.dim_offsets), 0)
    dtypes, begins, ends = spread(scanned.dtypes, UNKNOWN), spread(scanned.begins, 0), spread(scanned.ends, 0)
    nbytes, encoded = spread(scanned.nbytes, 0), spread(scanned.encoded, False)
    big_endian = spread(scanned.big_endian, False)
    checksum_begins, checksum_sizes = spread(scanned.checksum_begins, 0), spread(scanned.checksum_sizes, -1)
    part_names = ["data"] * total
    codecs: dict[int, Codec] = dict.fromkeys(np.flatnonzero(encoded).tolist(), codec)
    unknown_dtypes: dict[int, str] = {}
    sources: dict[int, Source] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for position, thing in odd.items():
        for at, row in enumerate(() if thing is None else thing.rows, int(first_rows[position])):
            dtypes[at] = UNKNOWN if row.dtype is None else row.dtype.code
            begins[at], ends[at], part_names[at] = row.begin, row.end, row.part
            big_endian[at] = row.big_endian
            ranks[at] = len(row.shape)
            shapes[at] = row.shape
            if row.codec is not None:
                codecs[at] = row.codec
                nbytes[at] = row.nbytes
            if row.checksum is not None:
                given[at] = row.checksum
            if row.unknown_dtype is not None:
                unknown_dtypes[at] = row.unknown_dtype
            if row.source is not None:
                sources[at] = row.source

    dim_offsets = np.zeros(total + 1, np.int64)
    np.cumsum(ranks, out=dim_offsets[1:])
    dims = np.zeros(int(dim_offsets[-1]), np.int64)
    from_scan = np.ones(len(dims), np.bool_)
    for at, shape in shapes.items():
        dims[dim_offsets[at] : dim_offsets[at + 1]] = shape
        from_scan[dim_offsets[at] : dim_offsets[at + 1]] = False
    dims[from_scan] = scanned.dims

    kept = [i for i in range(count) if i not in odd or odd[i] is not None]
    objects = {new: odd[old] for new, old in enumerate(kept) if old in odd}
    moved = dict(zip(kept, range(len(kept)), strict=True))
    attributes = {moved[old]: begin for old, begin in scanned.attributes.items() if old in moved}
    names = [scanned.names[i] for i in kept]
    layouts: dict[int, Layout] = {}
    for position, thing in objects.items():
        if thing is not None:
            names[position] = thing.name
            if thing.layout is not None:
                layouts[position] = thing.layout
            if thing.attributes_begin is not None:
                attributes[position] = thing.attributes_begin
    several = bool(layouts) or total != len(kept)
    columns: dict[str, Any] = {
        "names": names,
        "dtypes": dtypes,
        "dims": dims,
        "dim_offsets": dim_offsets,
        "begins": begins,
        "ends": ends,
        "codecs": codecs,
        "big_endian": frozenset(np.flatnonzero(big_endian).tolist()),
        "first_rows": np.append(first_rows[:-1][kept], total) if several else None,
        "part_names": part_names if several else None,
        "layouts": layouts,
        "unknown_dtypes": unknown_dtypes,
        "sources": sources,
    }
    return columns, nbytes, checksum_begins, checksum_sizes, attributes
