"""The index of a file, as columns.

A row is a part: one flat block of one element type. A tensor has one row, or several. A
reader fills the columns; checks over all rows (bounds, overlaps, alignment) are vector
operations; a Tensor is made only when it is looked up. Columns that most files do not
need are absent by default.

Each column declares whether it has an entry for each row, for each tensor, or one for the
whole index. `take` and `concat` need to know nothing else, so a new column is added in one
place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from itertools import accumulate, chain, count, pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.cached import cached_property
from tensorglot.errors import escape
from tensorglot.model.dtypes import TABLE, DType
from tensorglot.model.payload import Codec, Payload, Source
from tensorglot.tuples import NamedTuple

if TYPE_CHECKING:
    from tensorglot.model.types.base import Type
    from tensorglot.model.types.rows import Rows

__all__ = [
    "UNKNOWN",
    "AnyLayout",
    "BlockLayout",
    "Index",
    "Layout",
    "Note",
    "Placement",
    "RowLayout",
    "first_overlap",
    "place_rows",
    "shape_columns",
    "take_shapes",
]

ALIGNMENT = 64
"""The offset of a row in memory is congruent to its offset in the file, modulo this."""
UNKNOWN = 255
"""The dtype code of a row whose element type we do not know."""


class Layout(NamedTuple):
    """The layout and type of a tensor of several parts."""

    name: str
    type: Type


class BlockLayout(NamedTuple):
    """The same for a tensor whose type is a block of elements; the type is made when it is asked for."""

    name: str
    dtype: DType | None
    """None if the element type is unknown: the elements of the type are void."""
    shape: tuple[int, ...]

    @property
    def type(self) -> Type:
        from tensorglot.model.types.algebra import Void, block, dense

        return block(Void(), self.shape) if self.dtype is None else dense(self.dtype, self.shape)


class RowLayout(NamedTuple):
    """The same for a tensor whose type is a row of texts."""

    name: str
    rows: Rows
    row: int

    @property
    def type(self) -> Type:
        return self.rows.type(self.row)


AnyLayout: TypeAlias = Layout | BlockLayout | RowLayout


@dataclass(frozen=True, slots=True)
class Note:
    """Something unusual about a file that is valid."""

    rule: str
    message: str


Per: TypeAlias = Literal["row", "tensor", "whole", "structure"]
"""What a column has an entry for. Columns of "structure" (shapes, rows of a tensor) are offsets, which `take` and
`concat` handle by themselves."""


def _per(per: Per, *, fill: Any = None, **options: Any) -> Any:
    """Declares a column. `concat` uses `fill` for the entries of an index in which the column is absent."""
    return field(metadata={"per": per, "fill": fill}, **options)


@dataclass(kw_only=True, eq=False, repr=False)
class Index:
    """The columns: arrays and sequences with all entries, or mappings and sets by position for sparse columns.

    Never modified. It is not `frozen`, because a frozen dataclass sets each of the many fields
    by a call, which would be an eighth of the instructions of opening a small file.
    """

    format: str = _per("whole")
    names: Sequence[str] = _per("tensor")
    dtypes: NDArray[np.uint8] = _per("row")
    """Positions in the table of element types, or UNKNOWN."""
    dims: NDArray[np.int64] = _per("structure")
    dim_offsets: NDArray[np.int64] = _per("structure")
    """Row i has the shape dims[dim_offsets[i]:dim_offsets[i + 1]]."""
    begins: NDArray[np.int64] = _per("row")
    ends: NDArray[np.int64] = _per("row")
    """The span of the stored bytes of each row in the source."""
    metadata: Mapping[str, Any] | None = _per("whole", default=None)

    payloads: Sequence[Payload | NDArray[Any] | None] | None = _per("row", default=None)
    """The payload of each row that is not at a span of the source; an array is C-contiguous and little-endian."""
    first_rows: NDArray[np.int64] | None = _per("structure", default=None)
    """Tensor i has the rows first_rows[i] to first_rows[i + 1]. None: tensor i has row i."""
    part_names: Sequence[str] | None = _per("row", fill="data", default=None)
    layouts: Mapping[int, AnyLayout] = _per("tensor", default_factory=dict)
    """A tensor without an entry is dense."""
    attributes: Mapping[int, Mapping[str, Any]] = _per("tensor", default_factory=dict)
    checksums: Sequence[str | None] | None = _per("row", default=None)
    checksums_decoded: NDArray[np.bool_] | None = _per("row", fill=False, default=None)
    """Whether the checksum covers the decoded bytes; None: each covers the stored ones."""
    codecs: Mapping[int, Codec] = _per("row", default_factory=dict)
    """A row without an entry is raw."""
    decoded_nbytes: Mapping[int, int] = _per("row", default_factory=dict)
    """Sizes of encoded rows after decoding."""
    big_endian: frozenset[int] = _per("row", default=frozenset())
    unknown_dtypes: Mapping[int, str] = _per("row", default_factory=dict)
    """The file's name for an element type that we do not know."""
    sources: Mapping[int, Source] = _per("row", default_factory=dict)
    """Sources of rows that lie in another file than the index."""
    cids: Sequence[bytes | None] | None = _per("tensor", default=None)
    """CIDs of tensors in a store. Equal CIDs are equal tensors; tensors with different CIDs may be equal, too."""
    notes: Sequence[Note] = _per("whole", default=())

    @cached_property
    def positions(self) -> dict[str, int]:
        """Name to position in `names`. Readers have refused duplicates."""
        return dict(zip(self.names, count(), strict=False))

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
        offsets = self.dim_offsets
        return tuple(self.dims[offsets.item(row) : offsets.item(row + 1)].tolist())

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all rows."""
        dims, offsets = self.dims.tolist(), self.dim_offsets.tolist()
        return [tuple(dims[a:b]) for a, b in pairwise(offsets)]

    def dtype(self, row: int) -> DType | None:
        code = self.dtypes.item(row)
        return None if code == UNKNOWN else TABLE[code]

    def dtype_name(self, row: int) -> str:
        """The name of the element type, or the file's name if it is unknown; safe to print."""
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
    def tensor_nbytes(self) -> NDArray[np.int64]:
        """Decoded bytes of each tensor."""
        if self.first_rows is None:
            return self.nbytes
        before = prefix_sums(self.nbytes)
        sizes: NDArray[np.int64] = np.diff(before[self.first_rows])
        return sizes

    def find_shared_rows(self) -> NDArray[np.int64]:
        """Rows with the same span as another row; sources are not compared."""
        if (self.begins[1:] >= self.ends[:-1]).all():
            return np.empty(0, np.int64)  # the common case: rows in order, without overlap
        filled = np.flatnonzero(self.ends > self.begins)
        order = filled[np.lexsort((self.ends[filled], self.begins[filled]))]
        begins, ends = self.begins[order], self.ends[order]
        same = (begins[1:] == begins[:-1]) & (ends[1:] == ends[:-1])
        shared = np.zeros(len(order), np.bool_)
        shared[1:] |= same
        shared[:-1] |= same
        return np.sort(order[shared])

    @property
    def plain(self) -> bool:
        """Whether every tensor is one dense, raw, little-endian row of a known type, at a span of a source."""
        return (
            self.payloads is None
            and self.first_rows is None
            and not (self.layouts or self.codecs or self.big_endian or self.unknown_dtypes)
        )

    def take(self, tensors: NDArray[np.int64]) -> Index:
        """The index of the given tensors, in the given order; `self` if that is all of them in their order."""
        if np.array_equal(tensors, np.arange(len(self.row_offsets) - 1)):
            return self
        rows, first_rows = tensors, None
        if self.first_rows is not None:
            rows, first_rows = take_shapes(np.arange(len(self.dtypes)), self.first_rows, tensors)
        dims, dim_offsets = take_shapes(self.dims, self.dim_offsets, rows)
        chosen = {"row": rows, "tensor": tensors}
        columns = {
            column.name: _take(getattr(self, column.name), chosen[column.metadata["per"]])
            for column in fields(self)
            if column.metadata["per"] in chosen
        }
        return replace(self, **columns, dims=dims, dim_offsets=dim_offsets, first_rows=first_rows)

    def in_source(self, source: Source | None) -> Index:
        """The same index with an entry in `sources` for every row, so that it can be combined with others."""
        if source is None:
            return self
        return replace(self, sources={row: self.sources.get(row, source) for row in range(len(self.dtypes))})

    @staticmethod
    def concat(indexes: Sequence[Index], **whole: Any) -> Index:
        """The tensors of several indexes, in order; `whole` has the columns for the whole: format, metadata, notes."""
        indexes = indexes or [_NO_TENSORS]
        counts = {
            "row": [len(index.dtypes) for index in indexes],
            "tensor": [len(index.names) for index in indexes],
        }
        columns = {
            column.name: _concat([getattr(index, column.name) for index in indexes], counts[per], column)
            for column in fields(Index)
            if (per := column.metadata["per"]) in counts
        }
        several = any(index.first_rows is not None for index in indexes)
        return Index(
            dims=np.concatenate([np.empty(0, np.int64), *(index.dims for index in indexes)]),
            dim_offsets=_concat_offsets([index.dim_offsets for index in indexes]),
            first_rows=_concat_offsets([index.row_offsets for index in indexes]) if several else None,
            **columns,
            **whole,
        )

    def checksum_is_decoded(self, row: int) -> bool:
        """Whether the checksum of a row covers its decoded bytes."""
        return self.checksums_decoded is not None and bool(self.checksums_decoded[row])

    @property
    def row_offsets(self) -> NDArray[np.int64]:
        """`first_rows`, computed if that is None."""
        return np.arange(len(self.dtypes) + 1) if self.first_rows is None else self.first_rows


_NO_TENSORS = Index(
    format="",
    names=[],
    dtypes=np.empty(0, np.uint8),
    dims=np.empty(0, np.int64),
    dim_offsets=np.zeros(1, np.int64),
    begins=np.empty(0, np.int64),
    ends=np.empty(0, np.int64),
)


def _take(column: Any, positions: NDArray[np.int64]) -> Any:
    """The entries of a column at the chosen positions, which become 0, 1, 2, …"""
    if column is None or (isinstance(column, (Mapping, frozenset)) and not column):
        return column
    if isinstance(column, np.ndarray):
        return column[positions]
    chosen: list[int] = positions.tolist()
    if isinstance(column, Mapping):
        return {new: column[old] for new, old in enumerate(chosen) if old in column}
    if isinstance(column, frozenset):
        return frozenset(new for new, old in enumerate(chosen) if old in column)
    many = 4 * len(chosen) >= len(column)
    entries = column[:] if many else column  # `Names` decodes all names at once faster than one by one
    return list(map(entries.__getitem__, chosen))


def _concat(columns: list[Any], counts: list[int], declared: Field[Any]) -> Any:
    """Concatenates columns; an absent column has the fill value of its declaration."""
    first = next((column for column in columns if column is not None), None)
    if first is None:
        return None
    if isinstance(first, (Mapping, frozenset)):
        shifts = list(accumulate(counts, initial=0))
        if isinstance(first, frozenset):
            return frozenset(at + shift for column, shift in zip(columns, shifts, strict=False) for at in column)
        return {at + shift: v for column, shift in zip(columns, shifts, strict=False) for at, v in column.items()}
    fill = declared.metadata["fill"]
    whole = [[fill] * count if column is None else column for column, count in zip(columns, counts, strict=True)]
    if isinstance(first, np.ndarray):
        return np.concatenate([np.asarray(column, first.dtype) for column in whole])
    return list(chain.from_iterable(whole))


def _concat_offsets(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Concatenates columns of offsets, each shifted by the end of the one before it."""
    ends = accumulate((int(column[-1]) for column in columns), initial=0)
    return np.concatenate([np.zeros(1, np.int64), *(c[1:] + end for c, end in zip(columns, ends, strict=False))])


def shape_columns(shapes: Sequence[tuple[int, ...]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shapes as a column of dims and a column of offsets into it."""
    offsets = prefix_sums(np.fromiter(map(len, shapes), np.int64, len(shapes)))
    return np.fromiter(chain.from_iterable(shapes), np.int64, int(offsets[-1])), offsets


def take_shapes(
    dims: NDArray[np.int64], dim_offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Both columns for the shapes of the rows in `order`."""
    if len(order) == 1:  # as below, in a quarter of the instructions
        begin, end = dim_offsets[order.item() :][:2].tolist()
        return dims[begin:end].copy(), np.array((0, end - begin), np.int64)
    starts = dim_offsets[order]
    ranks = dim_offsets[order + 1] - starts
    offsets = prefix_sums(ranks)
    # Each dim's position in `dims`: its position in the result, shifted by how far its shape moves.
    return dims[np.repeat(starts - offsets[:-1], ranks) + np.arange(offsets[-1])], offsets


class Placement(NamedTuple):
    """Where rows of a file, sorted by begin, go in memory."""

    groups: list[int]
    """The first row of each group, then the number of rows. A group is one allocation."""
    offsets: NDArray[np.int64]
    """Offset of each row in the memory of its group."""
    runs: NDArray[np.int64]
    """The first row of each run, then the number of rows. A run is one read: its rows are as far apart in memory as
    in the file."""


def place_rows(begins: NDArray[np.int64], ends: NDArray[np.int64], large: int, slab: int) -> Placement:
    """Groups small rows up to about `slab` bytes; rows from `large` bytes on are alone. Drops holes between rows.

    Of the bytes between two rows, their number modulo ALIGNMENT is kept. So every row is
    aligned as in the file, and the usual padding of a file, below ALIGNMENT, does not split reads.
    """
    count = len(begins)
    if count < 2:  # as below, which takes 170,000 instructions for one row, a seventh of saving it
        bounds = [*range(count + 1)]
        return Placement(bounds, np.zeros(count, np.int64), np.arange(count + 1))
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
        np.append(np.flatnonzero(cut), count),
    )


def first_overlap(begins: NDArray[np.int64], ends: NDArray[np.int64], *, same: bool = True) -> tuple[int, int] | None:
    """Two rows whose bytes overlap, or None. Empty rows overlap nothing; with `same`, equal spans are accepted."""
    if not np.count_nonzero(begins[1:] < ends[:-1]) and not np.count_nonzero(ends < begins):
        return None  # the common case: rows in order, without overlap
    rows = np.flatnonzero(ends > begins)
    order = rows[np.argsort(begins[rows], kind="stable")]
    b, e = begins[order], ends[order]
    clash = b[1:] < e[:-1]
    if same:
        clash &= (b[1:] != b[:-1]) | (e[1:] != e[:-1])
    at = np.flatnonzero(clash)
    return (int(order[at[0]]), int(order[at[0] + 1])) if at.size else None
