"""What a file says it holds, as columns.

A row is a part: one flat block of one element type. A tensor is one row, or the
several that belong to its name. A reader fills the columns; checks over all rows
(bounds, overlaps, alignment) are vector operations; a Tensor is made only when
somebody asks for it. Columns that most files do not need are absent by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import escape
from tensorglot.model.dtypes import TABLE, DType
from tensorglot.model.payload import Codec, Payload, Source
from tensorglot.model.types.algebra import Type

__all__ = [
    "UNKNOWN",
    "Index",
    "Layout",
    "Note",
    "Placement",
    "first_overlap",
    "grouped",
    "permuted",
    "placed",
    "shape_columns",
]

ALIGNMENT = 64
"""Rows keep their residue modulo this, wherever they go."""
UNKNOWN = 255
"""The dtype code of a row whose element type we do not know."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the several parts of a tensor mean together."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Note:
    """What is odd about a file, and not wrong enough to refuse it."""

    rule: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Index:
    """The columns. One entry for each tensor in `names`, one for each row elsewhere."""

    format: str
    names: Sequence[str]
    dtypes: NDArray[np.uint8]
    """Positions in the table of element types, or UNKNOWN."""
    dims: NDArray[np.int64]
    dim_offsets: NDArray[np.int64]
    """Row i has the shape dims[dim_offsets[i]:dim_offsets[i + 1]]."""
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    """Where the stored bytes of each row are in the source."""
    metadata: Mapping[str, Any] | None = None

    payloads: Sequence[Payload | NDArray[Any]] | None = None
    """Where the rows are instead, if not at their spans of the source: rows to be written.
    An array stands for its own memory: it is C-contiguous and little-endian."""
    first_rows: NDArray[np.int64] | None = None
    """Tensor i has the rows first_rows[i] up to first_rows[i + 1]. None: it has row i."""
    part_names: Sequence[str] | None = None
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    """By tensor; a tensor without an entry is dense."""
    attributes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """By tensor."""
    checksums: Sequence[str | None] | None = None
    checksums_decoded: bool = False
    """The checksums cover the decoded bytes, not the stored ones."""
    codecs: Mapping[int, Codec] = field(default_factory=dict)
    """By row; a row without an entry is raw."""
    decoded_nbytes: Mapping[int, int] = field(default_factory=dict)
    """By encoded row."""
    big_endian: frozenset[int] = frozenset()
    unknown_dtypes: Mapping[int, str] = field(default_factory=dict)
    """What the file calls the element type, by row."""
    sources: Mapping[int, Source] = field(default_factory=dict)
    """By row that lies in another file than the index."""
    notes: Sequence[Note] = ()

    @cached_property
    def positions(self) -> dict[str, int]:
        """Name to position in `names`. Readers have refused duplicates."""
        return dict(zip(self.names, range(len(self.names)), strict=True))

    def rows(self, tensor: int) -> range:
        if self.first_rows is None:
            return range(tensor, tensor + 1)
        return range(int(self.first_rows[tensor]), int(self.first_rows[tensor + 1]))

    def name_of(self, row: int) -> str:
        """The name of the tensor that a row belongs to."""
        if self.first_rows is None:
            return self.names[row]
        return self.names[int(np.searchsorted(self.first_rows, row, side="right")) - 1]

    def shape(self, row: int) -> tuple[int, ...]:
        begin, end = self.dim_offsets[row : row + 2].tolist()
        return tuple(self.dims[begin:end].tolist())

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """All shapes at once, for those who need them all."""
        dims, offsets = self.dims.tolist(), self.dim_offsets.tolist()
        return [tuple(dims[a:b]) for a, b in pairwise(offsets)]

    def dtype(self, row: int) -> DType | None:
        code = int(self.dtypes[row])
        return None if code == UNKNOWN else TABLE[code]

    def dtype_name(self, row: int) -> str:
        """What the element type is called, by the file where we do not know it; safe to print."""
        dtype = self.dtype(row)
        return escape(self.unknown_dtypes[row]) if dtype is None else dtype.name

    @cached_property
    def nbytes(self) -> NDArray[np.int64]:
        """Decoded bytes of each row."""
        sizes = self.ends - self.begins
        if self.decoded_nbytes:
            sizes[list(self.decoded_nbytes)] = list(self.decoded_nbytes.values())
        return sizes

    @cached_property
    def shares_spans(self) -> bool:
        """Two rows lie at one span, or at equal ones of two sources."""
        filled = self.ends > self.begins
        order = np.lexsort((self.ends[filled], self.begins[filled]))
        begins, ends = self.begins[filled][order], self.ends[filled][order]
        return bool(((begins[1:] == begins[:-1]) & (ends[1:] == ends[:-1])).any())

    @property
    def plain(self) -> bool:
        """Every tensor is one dense, raw, little-endian row of a known type, at its span of a source."""
        return (
            self.payloads is None
            and self.first_rows is None
            and not (self.layouts or self.codecs or self.big_endian or self.unknown_dtypes)
        )

    @classmethod
    def of_payloads(
        cls,
        names: Sequence[str],
        dtypes: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        payloads: Sequence[Payload | NDArray[Any]],
        **columns: Any,
    ) -> Index:
        """An index of rows that lie in memory or elsewhere, ready to be written."""
        dims, dim_offsets = shape_columns(shapes)
        begins = np.zeros(len(dtypes), np.int64)
        ends = np.array([payload.nbytes for payload in payloads], np.int64)
        return cls(
            format="memory",
            names=names,
            dtypes=np.array(dtypes, np.uint8),
            dims=dims,
            dim_offsets=dim_offsets,
            begins=begins,
            ends=ends,
            payloads=payloads,
            **columns,
        )


def shape_columns(shapes: Sequence[tuple[int, ...]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shapes as a column of dims and a column of offsets into it."""
    offsets = np.zeros(len(shapes) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, shapes), np.int64, len(shapes)), out=offsets[1:])
    return np.fromiter(chain.from_iterable(shapes), np.int64, int(offsets[-1])), offsets


def permuted(
    dims: NDArray[np.int64], dim_offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The columns of the same shapes in another order."""
    ranks = np.diff(dim_offsets)[order]
    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(ranks, out=offsets[1:])
    return dims[np.repeat(dim_offsets[order] - offsets[:-1], ranks) + np.arange(offsets[-1])], offsets


def grouped(begins: NDArray[np.int64], ends: NDArray[np.int64], large: int, slab: int) -> list[int]:
    """Where groups of neighbours start, and the end: small rows go together up to about a slab, large ones alone."""
    count = len(begins)
    if count == 0:
        return [0]
    alone = ends - begins >= large
    slabs = begins // slab
    new = np.ones(count, np.bool_)
    new[1:] = alone[1:] | alone[:-1] | (begins[1:] != ends[:-1]) | (slabs[1:] != slabs[:-1])
    return [*np.flatnonzero(new).tolist(), count]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where rows that lie in a file, in the order of their begins, go in memory."""

    groups: list[int]
    """Where groups start, and the end. A group is one piece of memory."""
    offsets: NDArray[np.int64]
    """Of each row in the memory of its group."""
    runs: list[int]
    """Where runs start, and the end. A run is one read: its rows are as far apart in memory as in the file."""


def placed(begins: NDArray[np.int64], ends: NDArray[np.int64], large: int, slab: int) -> Placement:
    """Small rows go together up to about a slab, large ones alone; what lies between rows is left out.

    Up to 63 bytes between two rows are kept, and of longer holes the residue: so every
    row is aligned as in the file, and the padding of a file does not cut its reads.
    """
    count = len(begins)
    if count == 0:
        return Placement([0], begins, [0])
    sizes, holes = ends - begins, begins[1:] - ends[:-1]
    positions = np.zeros(count, np.int64)
    np.cumsum(sizes[:-1] + holes % ALIGNMENT, out=positions[1:])
    alone, slabs = sizes >= large, positions // slab
    new = np.ones(count, np.bool_)
    new[1:] = alone[1:] | alone[:-1] | (slabs[1:] != slabs[:-1])
    groups = np.flatnonzero(new)
    cut = new.copy()
    cut[1:] |= (holes < 0) | (holes >= ALIGNMENT)
    return Placement(
        [*groups.tolist(), count],
        positions - np.repeat(positions[groups], np.diff(np.append(groups, count))),
        [*np.flatnonzero(cut).tolist(), count],
    )


def first_overlap(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[int, int] | None:
    """Two rows whose bytes overlap without being the same span, or None. Empty rows overlap nothing."""
    if (begins[1:] >= ends[:-1]).all() and (ends >= begins).all():
        return None  # as most files have them: one behind the other
    rows = np.flatnonzero(ends > begins)
    order = rows[np.argsort(begins[rows], kind="stable")]
    b, e = begins[order], ends[order]
    clash = (b[1:] < e[:-1]) & ~((b[1:] == b[:-1]) & (e[1:] == e[:-1]))
    at = np.flatnonzero(clash)
    return (int(order[at[0]]), int(order[at[0] + 1])) if at.size else None
