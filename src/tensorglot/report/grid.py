"""A tensor as a matrix with a bounded number of cells, each with mean, minimum and maximum of a block of elements.

Every element counts: a single outlier or NaN shows in its cell. The axes are split into
two groups, rows and columns, so that the matrix is as close to a square as possible.
Elements arrive in C order, in pieces of any length.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Grid", "GridShape", "encode_plane"]

Plane = NDArray[np.float64]

_VECTOR_CELLS = 256
"""Cells of a tensor of one dimension, which is drawn as a strip."""
_LEVELS = 65534
"""Levels of an encoded plane; 0 means that there is no value."""


@dataclass(frozen=True, slots=True)
class GridShape:
    """A tensor of `rows × columns` elements in `cell_rows × cell_columns` cells."""

    rows: int
    columns: int
    cell_rows: int
    cell_columns: int
    split: int
    """Axes before this one are rows, the others columns."""

    @classmethod
    def of(cls, shape: Sequence[int], cells: int) -> GridShape:
        """The grid of a tensor that is not empty, with at most `cells` cells."""
        split = (
            min(range(len(shape) + 1), key=lambda k: abs(_log(shape[:k]) - _log(shape[k:]))) if len(shape) > 1 else 0
        )
        rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
        cell_columns = min(columns, _VECTOR_CELLS if rows == 1 else max(1, cells // min(rows, math.isqrt(cells))))
        return cls(rows, columns, min(rows, max(1, cells // cell_columns)), cell_columns, split)

    def to_dict(self) -> dict[str, int]:
        """The shape as the page reads it."""
        return {
            "rows": self.rows,
            "columns": self.columns,
            "cellRows": self.cell_rows,
            "cellColumns": self.cell_columns,
            "split": self.split,
        }


def _log(sizes: Sequence[int]) -> float:
    return sum(map(math.log, sizes))


def _edges(count: int, cells: int) -> NDArray[np.int64]:
    """Where each cell begins: their sizes differ by one at most."""
    return np.array([i * count // cells for i in range(cells)], np.int64)


@dataclass(slots=True)
class Grid:
    """Cells that are being filled. Values that are not finite are counted, and are in none of the planes."""

    shape: GridShape
    low: Plane = field(init=False)
    high: Plane = field(init=False)
    finite: NDArray[np.int64] = field(init=False)
    """Finite elements of each cell."""
    other: NDArray[np.int64] = field(init=False)
    _total: Plane = field(init=False)
    _rows: NDArray[np.int64] = field(init=False)
    _columns: NDArray[np.int64] = field(init=False)
    _done: int = 0

    def __post_init__(self) -> None:
        size = (self.shape.cell_rows, self.shape.cell_columns)
        self.low, self.high, self._total = np.full(size, np.inf), np.full(size, -np.inf), np.zeros(size)
        self.finite, self.other = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._rows = _edges(self.shape.rows, self.shape.cell_rows)
        self._columns = _edges(self.shape.columns, self.shape.cell_columns)

    def add(self, values: Plane) -> None:
        """The next elements."""
        columns = self.shape.columns
        while len(values):
            # At the start of a row all whole rows at once, else the rest of the row.
            row, column = divmod(self._done, columns)
            whole = len(values) // columns if column == 0 else 0
            count = whole * columns or min(len(values), columns - column)
            self._add_block(values[:count].reshape(whole or 1, -1), row, column)
            self._done += count
            values = values[count:]

    def _add_block(self, block: Plane, row: int, column: int) -> None:
        """Adds a block of elements that begins at `row` and `column`.

        Rows are reduced first: that is fast, and leaves few values for the columns.
        """
        rows, row_starts = _segments(self._rows, row, block.shape[0])
        columns, column_starts = _segments(self._columns, column, block.shape[1])

        def reduce(how: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
            if len(row_starts) < values.shape[0]:
                values = how.reduceat(values, row_starts, axis=0)
            if len(column_starts) < values.shape[1]:
                values = how.reduceat(values, column_starts, axis=1)
            return values

        known = np.isfinite(block)
        heights = np.diff(row_starts, append=block.shape[0])
        widths = np.diff(column_starts, append=block.shape[1])
        count = np.outer(heights, widths)
        cells = (rows, columns)
        low = high = total = block
        if not known.all():
            finite = reduce(np.add, known.astype(np.int64))
            self.other[cells] += count - finite
            count = finite
            low, high, total = (np.where(known, block, fill) for fill in (np.inf, -np.inf, 0.0))
        self.finite[cells] += count
        self.low[cells] = np.minimum(self.low[cells], reduce(np.minimum, low))
        self.high[cells] = np.maximum(self.high[cells], reduce(np.maximum, high))
        with np.errstate(over="ignore", invalid="ignore"):
            self._total[cells] += reduce(np.add, total)

    @property
    def mean(self) -> Plane:
        """Mean of the finite values of each cell, NaN without any. If a sum overflows, the mean is the extreme."""
        with np.errstate(invalid="ignore"):
            means = self._total / np.where(self.finite, self.finite, np.nan)
        return np.where(self.finite > 0, np.clip(means, self.low, self.high), np.nan)


def _segments(edges: NDArray[np.int64], start: int, count: int) -> tuple[slice, NDArray[np.int64]]:
    """The cells that `count` elements from `start` on fall in, and where each of them begins among these elements."""
    first = int(np.searchsorted(edges, start, side="right")) - 1
    end = int(np.searchsorted(edges, start + count, side="left"))
    return slice(first, end), np.maximum(edges[first:end] - start, 0)


def encode_plane(plane: Plane) -> dict[str, Any]:
    """A plane as 16-bit levels between its least and its greatest value; 0 for a cell without a value."""
    known = np.isfinite(plane)
    if not known.any():
        return {"low": 0.0, "high": 0.0, "levels": _base64(np.zeros(plane.size, "<u2"))}
    low, high = float(plane[known].min()), float(plane[known].max())
    scale = 1.0 if math.isfinite(high - low) else 0.5  # the range may exceed float64
    share = np.zeros(plane.shape) if low == high else (plane * scale - low * scale) / (high * scale - low * scale)
    levels = np.where(known, 1 + np.rint(np.where(known, share, 0.0) * _LEVELS), 0).astype("<u2")
    return {"low": low, "high": high, "levels": _base64(levels)}


def _base64(levels: NDArray[Any]) -> str:
    return base64.b64encode(levels.tobytes()).decode()
