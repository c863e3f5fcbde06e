"""Several indexes as one: the columns behind one another, each row with the source that it lies in.

Knows no file and no format. A tensor keeps its rows together, so whatever an index can
say of a tensor is said of it in the joined index, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.index import Index, permuted
from tensorglot.model.payload import Source

__all__ = ["join", "taken"]

T = TypeVar("T")


def taken(index: Index, tensors: NDArray[np.int64]) -> Index:
    """An index of some of the tensors, in the order given."""
    rows, first_rows = tensors, None
    if index.first_rows is not None:
        rows, first_rows = permuted(np.arange(len(index.dtypes)), index.first_rows, tensors)
    new_row = {int(old): new for new, old in enumerate(rows.tolist())}
    new_tensor = {int(old): new for new, old in enumerate(tensors.tolist())}
    names = index.names
    dims, dim_offsets = permuted(index.dims, index.dim_offsets, rows)
    return Index(
        format=index.format,
        names=[names[i] for i in tensors.tolist()],
        dtypes=index.dtypes[rows],
        dims=dims,
        dim_offsets=dim_offsets,
        begins=index.begins[rows],
        ends=index.ends[rows],
        metadata=index.metadata,
        payloads=None if index.payloads is None else [index.payloads[row] for row in rows.tolist()],
        first_rows=first_rows,
        part_names=None if index.part_names is None else [index.part_names[row] for row in rows.tolist()],
        layouts=_kept(index.layouts, new_tensor.get),
        attributes=_kept(index.attributes, new_tensor.get),
        checksums=None if index.checksums is None else [index.checksums[row] for row in rows.tolist()],
        checksums_decoded=index.checksums_decoded,
        codecs=_kept(index.codecs, new_row.get),
        decoded_nbytes=_kept(index.decoded_nbytes, new_row.get),
        big_endian=frozenset(new_row[row] for row in index.big_endian if row in new_row),
        unknown_dtypes=_kept(index.unknown_dtypes, new_row.get),
        sources=_kept(index.sources, new_row.get),
        notes=index.notes,
    )


def join(indexes: Sequence[Index], sources: Sequence[Source | None], **columns: Any) -> Index:
    """One index of all the tensors of several, whose rows lie in `sources` or where they said before.

    `columns` has what belongs to the whole: format, metadata, notes.
    """
    rows = [len(index.dtypes) for index in indexes]
    row_shifts = np.concatenate(([0], np.cumsum(rows)))[:-1].tolist()
    tensor_shifts = np.concatenate(([0], np.cumsum([len(index.names) for index in indexes])))[:-1].tolist()
    dim_shifts = np.concatenate(([0], np.cumsum([len(index.dims) for index in indexes])))[:-1].tolist()
    several = any(index.first_rows is not None for index in indexes)
    checked = any(index.checksums is not None for index in indexes)

    def by_row(column: str) -> dict[int, Any]:
        return {
            row + shift: value
            for index, shift in zip(indexes, row_shifts, strict=True)
            for row, value in getattr(index, column).items()
        }

    def by_tensor(column: str) -> dict[int, Any]:
        return {
            tensor + shift: value
            for index, shift in zip(indexes, tensor_shifts, strict=True)
            for tensor, value in getattr(index, column).items()
        }

    return Index(
        names=[name for index in indexes for name in index.names],
        dtypes=_end_to_end([index.dtypes for index in indexes], np.uint8),
        dims=_end_to_end([index.dims for index in indexes]),
        dim_offsets=_offsets([index.dim_offsets for index in indexes], dim_shifts),
        begins=_end_to_end([index.begins for index in indexes]),
        ends=_end_to_end([index.ends for index in indexes]),
        first_rows=_offsets([_first_rows(index) for index in indexes], row_shifts) if several else None,
        part_names=[n for i in indexes for n in i.part_names or ["data"] * len(i.dtypes)] if several else None,
        layouts=by_tensor("layouts"),
        attributes=by_tensor("attributes"),
        checksums=[c for i in indexes for c in i.checksums or [None] * len(i.dtypes)] if checked else None,
        checksums_decoded=any(index.checksums_decoded for index in indexes if index.checksums is not None),
        codecs=by_row("codecs"),
        decoded_nbytes=by_row("decoded_nbytes"),
        big_endian=frozenset(row + s for index, s in zip(indexes, row_shifts, strict=True) for row in index.big_endian),
        unknown_dtypes=by_row("unknown_dtypes"),
        sources={
            **{
                row: source
                for source, shift, count in zip(sources, row_shifts, rows, strict=True)
                if source is not None
                for row in range(shift, shift + count)
            },
            **by_row("sources"),
        },
        **columns,
    )


def _kept(column: Mapping[int, T], new: Callable[[int], int | None]) -> dict[int, T]:
    """The entries of a column by position whose positions are still there, at their new ones."""
    return {position: value for old, value in column.items() if (position := new(old)) is not None}


def _first_rows(index: Index) -> NDArray[np.int64]:
    return np.arange(len(index.names) + 1) if index.first_rows is None else index.first_rows


def _end_to_end(columns: Sequence[NDArray[Any]], dtype: type = np.int64) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *columns]).astype(dtype, copy=False)


def _offsets(columns: Sequence[NDArray[np.int64]], shifts: Sequence[int]) -> NDArray[np.int64]:
    """Columns of offsets, each of which begins where the one before it ends."""
    moved = [column[1:] + shift for column, shift in zip(columns, shifts, strict=True)]
    return _end_to_end([np.zeros(1, np.int64), *moved])
