"""Statistics of many small tensors, computed for rows of one element type and count together.

A `Tally` of its own costs a tensor of a few values a hundred times what the arithmetic
does. Here the values of many are the rows of a matrix, and each step of the `Tally` is one
operation along its rows: the same sums in the same order, so the same results to the last
bit. What would need care (NaN, Inf, negative zeros, integers beyond 2**53, numbers whose
squares overflow) is left to the `Tally`, as are all tensors that are not small and plain.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import distinct
from tensorglot.errors import FormatError
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE, DType
from tensorglot.model.payload import PIECE_NBYTES
from tensorglot.operations._distribution import EXACT, as_float64
from tensorglot.operations._double_double import add, divide, multiply, nearest, root
from tensorglot.operations._moments import DIGITS, PLAIN_EXPONENTS
from tensorglot.operations._small_rows import is_small
from tensorglot.tuples import NamedTuple

__all__ = ["Numbers", "small_stats"]

MOST_COUNT = 1024
"""Values of a tensor up to which this is faster."""
_TOGETHER_COUNT = 1 << 16
"""Values in a matrix: its bins and its copies stay in the processor's cache."""
_NORMAL = 2.0**-800
"""The low parts of larger sums are not subnormal."""

Column: TypeAlias = NDArray[np.float64]


class Numbers(NamedTuple):
    """The statistics of one tensor, whose values are all finite."""

    zeros: int
    min: int | float
    max: int | float
    mean: float
    std: float
    norm: float
    quantiles: list[float]
    histogram: tuple[int, ...]


def small_stats(
    archive: Archive, positions: Sequence[int], shares: Sequence[float], bins: int, seen: Callable[[int], None]
) -> Iterator[tuple[int, Numbers]]:
    """The tensors that are small and need no care, and their statistics. `seen` is called with bytes read."""
    index = archive.index
    rows = np.array(positions, np.int64)
    rows = rows[is_small(index, rows)]
    counts = np.zeros(len(index.dtypes), np.int64)
    widths = np.array([1 if dtype.numpy is None else dtype.numpy.itemsize for dtype in TABLE], np.int64)
    counts[rows] = index.nbytes[rows] // widths[index.dtypes[rows]]
    complex_codes = [dtype.code for dtype in TABLE if dtype.kind == "complex"]
    rows = rows[(counts[rows] > 0) & (counts[rows] <= MOST_COUNT) & ~np.isin(index.dtypes[rows], complex_codes)]
    for some in _batches(rows, index.nbytes[rows]):
        try:
            pieces = archive.read_rows(some)
        except FormatError:  # a checksum mismatch: reading the tensors one by one finds which
            continue
        if pieces is None:
            continue
        keys = index.dtypes[some].astype(np.int64) << 32 | counts[some]
        order = np.argsort(keys, kind="stable")
        for a, b in pairwise([0, *(np.flatnonzero(np.diff(keys[order])) + 1).tolist(), len(order)]):
            dtype, count = TABLE[int(index.dtypes[some[order[a]]])], int(counts[some[order[a]]])
            step = max(1, _TOGETHER_COUNT // count)
            for first in range(a, b, step):
                chosen = order[first : min(first + step, b)].tolist()
                together = b"".join([pieces[i] for i in chosen])
                block = np.frombuffer(together, dtype.require_numpy()).reshape(len(chosen), count)
                for at, numbers in _describe(block, dtype, shares, bins):
                    yield int(some[chosen[at]]), numbers
        seen(int(index.nbytes[some].sum()))


def _batches(rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Rows that are read together."""
    groups = np.cumsum(sizes) // PIECE_NBYTES
    for a, b in pairwise([0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(rows)]):
        if b > a:
            yield rows[a:b]


def _describe(block: NDArray[Any], dtype: DType, shares: Sequence[float], bins: int) -> Iterator[tuple[int, Numbers]]:
    """The rows of a matrix that need no care, and the numbers of each."""
    whole = dtype.kind == "integer"
    with np.errstate(all="ignore"):  # of rows that are left out
        values = as_float64(block, dtype)
        largest = np.abs(values).max(axis=1)
        exponents = np.frexp(largest)[1]
        plain = np.isfinite(largest) & (exponents >= PLAIN_EXPONENTS.start) & (exponents < PLAIN_EXPONENTS.stop)
        plain &= ~(np.signbit(values) & (values == 0)).any(axis=1)
        if whole:
            plain &= largest <= EXACT
    kept = np.flatnonzero(plain)
    values = values[kept]
    if not len(kept):
        return
    in_order = np.sort(values, axis=1)
    moments = _moments(values)
    zeros = (values == 0).sum(axis=1).tolist()
    low, high = in_order[:, 0], in_order[:, -1]
    lows, highs = (low.astype(np.int64), high.astype(np.int64)) if whole else (low, high)
    quantiles = np.stack([_quantile(in_order, share) for share in shares], axis=1).tolist()
    histograms = _histograms(in_order, bins, whole)
    ends = zip(lows.tolist(), highs.tolist(), strict=True)
    rows = zip(kept.tolist(), zeros, ends, moments, quantiles, histograms, strict=True)
    for row, zero, (least, most), (mean, std, norm), some, histogram in rows:
        yield row, Numbers(zero, least, most, mean, std if least != most else 0.0, norm, some, histogram)


def _moments(values: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """Mean, deviation and norm of each row, as `Moments` computes them of one block.

    Those of decimals of 50 digits are nearest numbers; double-double arithmetic finds the same in a twentieth of the
    time, and which of them are not certain.
    """
    count = values.shape[1]
    centers = values.mean(axis=1)
    apart = values - centers[:, None]
    rests = apart.sum(axis=1)
    np.square(apart, out=apart)
    deviations = np.maximum(0.0, apart.sum(axis=1) - rests * rests / count)
    with np.errstate(all="ignore"):  # of rows that are not certain
        found, certain = _nearest_moments(centers, rests, deviations, count)
    numbers: list[tuple[float, float, float]] = list(zip(*(column.tolist() for column in found), strict=True))
    with decimal.localcontext(DIGITS):
        for row in np.flatnonzero(~certain).tolist():
            total, deviation = (
                Decimal(centers.item(row)) * count + Decimal(rests.item(row)),
                Decimal(deviations.item(row)),
            )
            squares = deviation + total * total / count
            numbers[row] = float(total / count), float((deviation / count).sqrt()), float(squares.sqrt())
    return numbers


def _nearest_moments(
    centers: Column, rests: Column, deviations: Column, count: int
) -> tuple[list[Column], NDArray[np.bool_]]:
    """Mean, deviation and norm, and whether all three are certain."""
    none = np.zeros_like(centers)
    quotient, low = divide((rests, none), count)
    high, rest = add(centers, quotient)
    mean = nearest((high, rest + low), np.abs(centers) + np.abs(quotient))
    variance = divide((deviations, none), count)
    std = nearest(spread := root(variance), spread[0])
    product, product_low = multiply(centers, np.full_like(centers, count))
    total, total_low = add(product, rests)
    square, square_low = multiply(total, total)
    part, part_low = divide((square, square_low + 2 * total * (total_low + product_low)), count)
    squares, squares_low = add(deviations, part)
    length = root((squares, squares_low + part_low))
    given = deviations + (np.abs(product) + np.abs(rests)) ** 2 / count
    norm = nearest(length, length[0] + given / np.maximum(length[0], _NORMAL))
    normal = ((deviations == 0) | (deviations > _NORMAL)) & ((total == 0) | (part > _NORMAL))
    return [mean[0], std[0], norm[0]], mean[1] & std[1] & norm[1] & normal


def _quantile(in_order: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """By linear interpolation between the two nearest elements, as `Distribution.quantiles` has it."""
    rank = share * (in_order.shape[1] - 1)
    below, above = in_order[:, math.floor(rank)], in_order[:, math.ceil(rank)]
    part = rank - math.floor(rank)
    return np.where(below != above, below * (1 - part) + above * part, below)


def _histograms(in_order: NDArray[np.float64], bins: int, whole: bool) -> list[tuple[int, ...]]:
    """The counts of the bins of each row, as `Distribution.histogram` has them."""
    low, high = in_order[:, 0], in_order[:, -1]
    narrow = whole & (high - low < bins)
    wanted = np.where(narrow, high - low + 1, np.where(low == high, 0, bins)).astype(np.int64)
    found: list[tuple[int, ...]] = [(in_order.shape[1],)] * len(in_order)
    for count in distinct(wanted[wanted > 0]).tolist():
        rows = np.flatnonzero(wanted == count)
        margin = 0.5 * narrow[rows]
        edges = np.linspace((low[rows] - margin) / 2, (high[rows] + margin) / 2, count + 1, axis=1) * 2
        centres = np.clip(in_order[rows] / 2 + in_order[rows] / 2, low[rows, None], high[rows, None])
        # The bin of a value has as many edges at or below it, less one: few edges, so that all are compared.
        below = (centres[:, :, None] >= edges[:, None, 1:count]).sum(axis=1)
        reached = np.concatenate([np.full((len(rows), 1), in_order.shape[1]), below, np.zeros((len(rows), 1))], axis=1)
        for row, numbers in zip(rows.tolist(), (-np.diff(reached, axis=1)).astype(np.int64).tolist(), strict=True):
            found[row] = tuple(numbers)
    return found
