"""Everything that one pass over the values of a part can tell, in bounded memory.

`Tally` counts and sums: zeros, NaN, Inf, minimum, maximum, moments, norms. With a
`Distribution` it also finds quantiles and a histogram:

- Up to 16,384 values are kept, and the results are exact.
- Elements of at most 16 bits have at most 65,536 values: each is counted, and the
  results are exact.
- More and wider ones are counted twice: by sign, exponent and the first 7 bits of the mantissa,
  in which a value is known to 1 part in 128 however far apart the values are; and by
  equal steps, at most 4096 between minimum and maximum, which resolve values that lie
  close together. A step is a power of two and doubles when the range grows, so that
  counts merge exactly. A quantile is found in both, and the narrower answer is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.dtypes import DType, dtype_of
from tensorglot.operations._moments import DIGITS, Moments, sum_magnitudes

__all__ = ["EXACT", "Distribution", "Tally", "as_float64"]

EXACT = 1 << 53
"""Integers up to this are float64 exactly."""
_KEPT_COUNT = 1 << 14
_STEPS = 4096
_SHIFT = 45
"""Bits of a float64 below sign, exponent and 7 bits of the mantissa."""
_POWERS = range(-1022, 1024)
"""Exponents of two that float64 has with all bits."""
_MAGNITUDE = np.uint64((1 << 63) - 1)


Buckets: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]
"""Lower ends, upper ends and counts, in order."""


class _ValueCounts:
    """How often each value of an element type of at most 16 bits occurs."""

    def __init__(self, dtype: DType) -> None:
        self._values = _all_values(dtype)
        self._counts = np.zeros(len(self._values), np.int64)
        self._codes = np.uint8 if len(self._values) == 256 else np.uint16

    def add(self, block: NDArray[Any]) -> None:
        self._counts += np.bincount(block.view(self._codes), minlength=len(self._counts))

    def buckets(self) -> Buckets:
        """A bucket for each value that occurs: both of its ends are that value."""
        used = np.flatnonzero((self._counts > 0) & np.isfinite(self._values))
        used = used[np.argsort(self._values[used], kind="stable")]
        return self._values[used], self._values[used], self._counts[used]


class _Prefixes:
    """Counts by sign, exponent and the first bits of the mantissa of a float64."""

    def __init__(self) -> None:
        self._zeros = 0
        self._counts = np.zeros(1 << (65 - _SHIFT), np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        zeros = len(values) - int(np.count_nonzero(values))
        if zeros:
            self._zeros += zeros
            values = values[values != 0]
            if not len(values):
                return
        bits = values.view(np.uint64)
        keys = ((bits & _MAGNITUDE) >> np.uint64(_SHIFT)).view(np.int64) << 1  # the sign last: values lie together
        keys |= (bits >> np.uint64(63)).view(np.int64)
        # Counted from the smallest key on: a bincount over all 2^20 keys would cost more than the block.
        first = int(keys.min())
        found = np.bincount(keys - first)
        self._counts[first : first + len(found)] += found

    def buckets(self) -> Buckets:
        used = np.flatnonzero(self._counts)
        magnitudes = (used >> 1).astype(np.uint64)
        signs = np.where(used & 1, -1.0, 1.0)
        near = (magnitudes << np.uint64(_SHIFT)).view(np.float64)
        far = (((magnitudes + np.uint64(1)) << np.uint64(_SHIFT)) - np.uint64(1)).view(np.float64)
        lower, upper = np.minimum(signs * near, signs * far), np.maximum(signs * near, signs * far)
        counts = self._counts[used]
        if self._zeros:
            lower, upper, counts = np.append(lower, 0.0), np.append(upper, 0.0), np.append(counts, self._zeros)
        order = np.argsort(lower, kind="stable")
        return lower[order], upper[order], counts[order]


class _Steps:
    """Counts in equal steps of 2**exponent; each step begins at a multiple of its size."""

    def __init__(self) -> None:
        self._exponent: int | None = None
        self._first = 0
        self._counts = np.zeros(0, np.int64)

    def add(self, values: NDArray[np.float64], low: float, high: float) -> None:
        """`low` and `high` are the extremes of these values."""
        exponent = max(math.frexp(max(-low, high))[1], -1021) - 53  # a value takes at most 53 bits in such steps
        if self._exponent is not None:
            exponent = max(exponent, self._exponent)
        while True:
            first, last = _floor(low, exponent), _floor(high, exponent)
            if self._exponent is not None:
                first = min(first, self._first >> (exponent - self._exponent))
                last = max(last, (self._first + len(self._counts) - 1) >> (exponent - self._exponent))
            if last - first < _STEPS:
                break
            # As many doublings as the range has more bits than _STEPS; one, if it has as many and is still too wide.
            exponent += (last - first).bit_length() - (_STEPS - 1).bit_length() or 1
        self._widen(exponent, first, last)
        # Exact in float64: the numbers have at most 53 bits. A product is several times faster than ldexp.
        keys = values * 2.0**-exponent if -exponent in _POWERS else np.ldexp(values, -exponent)
        np.floor(keys, out=keys)
        keys -= first
        self._counts += np.bincount(keys.astype(np.int64), minlength=len(self._counts))

    def _widen(self, exponent: int, first: int, last: int) -> None:
        """The same counts in larger steps, in a wider range."""
        counts = np.zeros(last - first + 1, np.int64)
        if self._exponent is not None:
            places = (
                (self._first + np.arange(len(self._counts), dtype=np.int64)) >> (exponent - self._exponent)
            ) - first
            np.add.at(counts, places, self._counts)
        self._exponent, self._first, self._counts = exponent, first, counts

    def buckets(self) -> Buckets:
        used = np.flatnonzero(self._counts)
        starts = (self._first + used).astype(np.float64)
        exponent = self._exponent or 0
        with np.errstate(over="ignore"):
            return np.ldexp(starts, exponent), np.ldexp(starts + 1, exponent), self._counts[used]


def _floor(value: float, exponent: int) -> int:
    return math.floor(math.ldexp(value, -exponent))


@dataclass(slots=True)
class Distribution:
    """Quantiles and a histogram of the finite values; integers beyond 2**53 are rounded to float64."""

    count: int = 0
    low: float = math.inf
    high: float = -math.inf
    whole: bool = False
    """The values are integers."""
    _kept: list[tuple[NDArray[Any], NDArray[np.float64]]] | None = field(default_factory=list)
    """The first blocks, as they are stored and as float64; None from where there are too many."""
    _values: _ValueCounts | None = None
    _sketches: tuple[_Prefixes, _Steps] | None = None

    def add(self, block: NDArray[Any], dtype: DType, values: NDArray[np.float64]) -> None:
        """`block` as it is stored, and its finite values as float64; at least one."""
        low, high = float(values.min()), float(values.max())
        self.count += len(values)
        self.low, self.high = min(low, self.low), max(high, self.high)
        self.whole = dtype.kind in ("integer", "bool")
        # Up to _KEPT_COUNT values are kept; when one more arrives, the kept ones are counted after all.
        if self._kept is not None and self.count <= _KEPT_COUNT:
            self._kept.append((block.copy(), values.copy()))
            return
        kept, self._kept = self._kept or [], None
        for before, finite in (*kept, (block, values)):
            self._count(before, dtype, finite)

    def _count(self, block: NDArray[Any], dtype: DType, values: NDArray[np.float64]) -> None:
        if block.dtype.itemsize <= 2:
            self._values = self._values or _ValueCounts(dtype)
            self._values.add(block)
        else:
            self._sketches = self._sketches or (_Prefixes(), _Steps())
            self._sketches[0].add(values)
            self._sketches[1].add(values, float(values.min()), float(values.max()))

    @property
    def exact(self) -> bool:
        return self._sketches is None

    def _finders(self) -> list[_Finder]:
        """One for each way in which the values were counted."""
        if self._sketches is not None:
            buckets = [sketch.buckets() for sketch in self._sketches]
        elif self._values is not None:
            buckets = [self._values.buckets()]
        else:
            values, counts = np.unique(np.concatenate([values for _, values in self._kept or ()]), return_counts=True)
            buckets = [(values, values, counts)]
        return [_Finder(*each, self.low, self.high) for each in buckets]

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """By linear interpolation between the two nearest elements, as NumPy does by default.

        Where they are not exact, an element is known to 1 part in 128 or to 1/2048 of the range, whichever is less.
        """
        if not self.count:
            return []
        finders = self._finders()

        def element(rank: int) -> float:
            if rank in (0, self.count - 1):
                return self.high if rank else self.low
            value = min(finder.find(rank) for finder in finders)[1]  # of the narrowest bucket
            return round(value) if self.whole else value

        results = []
        for share in shares:
            rank = share * (self.count - 1)
            below, above = element(math.floor(rank)), element(math.ceil(rank))
            part = rank - math.floor(rank)
            results.append(below * (1 - part) + above * part if below != above else float(below))
        return results

    def histogram(self, bins: int) -> tuple[list[float], list[int]]:
        """The edges and counts of at most `bins` equal bins from minimum to maximum.

        Where they are not exact, a bucket that an edge cuts is shared out in proportion, of the two ways of counting
        in the one that has fewer elements there. Integers of a smaller range have a bin each, of which they are the
        centre.
        """
        if not self.count:
            return [], []
        low, high = self.low, self.high
        if self.whole and high - low < bins:
            bins, low, high = int(high - low) + 1, low - 0.5, high + 0.5
        elif low == high:
            return [low, high], [self.count]
        scale = 1.0 if math.isfinite(high - low) else 0.5  # the range may exceed float64
        edges = np.linspace(low * scale, high * scale, bins + 1) / scale
        found = [finder.count_below(edges[1:-1]) for finder in self._finders()]
        unsure, below = (np.array(column) for column in zip(*found, strict=True))
        # For each edge the way of counting that cuts the smaller bucket; then made monotonic, since ways alternate.
        below = np.take_along_axis(below, unsure.argmin(axis=0)[None], axis=0)[0]
        cumulative = np.rint(np.maximum.accumulate(below)).astype(np.int64)
        return edges.tolist(), np.diff(cumulative, prepend=0, append=self.count).tolist()


class _Finder:
    """Finds the element of a rank, and the number of elements below a value, among ordered buckets."""

    def __init__(
        self,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        counts: NDArray[np.int64],
        low: float,
        high: float,
    ) -> None:
        self._lower, self._upper = np.clip(lower, low, high), np.clip(upper, low, high)
        self._ends = np.cumsum(counts)
        self._counts = counts

    def find(self, rank: int) -> tuple[float, float]:
        """The width of the element's bucket, and its value if the elements of the bucket are spread evenly."""
        i = int(np.searchsorted(self._ends, rank, side="right"))
        count = int(self._counts[i])
        lower, upper = float(self._lower[i]), float(self._upper[i])
        part = (rank - (int(self._ends[i]) - count) + 0.5) / count
        return upper - lower, lower if lower == upper else lower * (1 - part) + upper * part

    def count_below(self, edges: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """For each edge, the elements of the bucket that it cuts, and those below it if they are spread evenly."""
        i = np.minimum(np.searchsorted(self._upper, edges, side="left"), len(self._upper) - 1)
        lower, upper, count = self._lower[i], self._upper[i], self._counts[i]
        width = upper / 2 - lower / 2  # halves: it may exceed float64
        part = np.divide(edges / 2 - lower / 2, width, out=np.zeros(len(edges)), where=width > 0)
        cut = (lower < edges) & (edges < upper)
        return np.where(cut, count, 0), self._ends[i] - count + count * np.clip(part, 0, 1)


@dataclass(slots=True)
class Tally:
    """Running statistics of one part."""

    distribution: Distribution | None = None
    """Distribution of real numbers; complex ones have no order."""
    done: int = 0
    zeros: int = 0
    nan: int = 0
    inf: int = 0
    """Infinite values; a complex number that is also NaN counts as NaN."""
    min: int | float | None = None
    max: int | float | None = None
    _real: Moments = field(default_factory=Moments)
    _imaginary: Moments = field(default_factory=Moments)
    _magnitudes: Decimal = Decimal(0)

    def add(self, block: NDArray[Any]) -> None:
        dtype = dtype_of(block.dtype)
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            if dtype.kind == "complex":
                self._add_complex(block)
            else:
                self._add_real(block, dtype)
        self.done += len(block)

    def _add_real(self, block: NDArray[Any], dtype: DType) -> None:
        if dtype.name in ("int64", "uint64"):
            low, high = int(block.min()), int(block.max())
            if max(-low, high) > EXACT:
                self.zeros += len(block) - int(np.count_nonzero(block))
                self._widen(low, high)
                # Beyond 2^53 the values themselves would be rounded: their distances from the minimum are summed.
                distances = block.view(np.uint64) - np.uint64(low % (1 << 64))
                self._real.add(distances.astype(np.float64), low)
                self._add_magnitudes(block, dtype, block.astype(np.float64))
                return
        values = self._finite(as_float64(block, dtype))
        if len(values):
            whole = int if dtype.kind in ("integer", "bool") else float
            self._widen(whole(values.min()), whole(values.max()))
            self._real.add(values)
            self._add_magnitudes(block, dtype, values)

    def _add_magnitudes(self, block: NDArray[Any], dtype: DType, values: NDArray[np.float64]) -> None:
        self._magnitudes += sum_magnitudes(values)
        if self.distribution is not None:
            self.distribution.add(block, dtype, values)

    def _add_complex(self, block: NDArray[Any]) -> None:
        values = self._finite(block.astype(np.complex128))
        if len(values):
            self._real.add(values.real)
            self._imaginary.add(values.imag)
            self._magnitudes += sum_magnitudes(values)

    def _finite(self, values: NDArray[Any]) -> NDArray[Any]:
        """Counts zeros, NaN and Inf, and returns the finite values."""
        self.zeros += len(values) - int(np.count_nonzero(values))
        finite = np.isfinite(values)
        apart = len(values) - int(np.count_nonzero(finite))
        if not apart:
            return values
        nan = int(np.count_nonzero(np.isnan(values)))
        self.nan += nan
        self.inf += apart - nan
        kept: NDArray[Any] = values[finite]
        return kept

    def _widen(self, low: int | float, high: int | float) -> None:
        self.min = low if self.min is None or low < self.min else self.min
        self.max = high if self.max is None or high > self.max else self.max

    @property
    def mean(self) -> float | complex | None:
        if self._imaginary.count:
            return complex(self._real.mean, self._imaginary.mean)
        return self._real.mean if self._real.count else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the population, NumPy's default."""
        if self._imaginary.count:
            return float(DIGITS.add(self._real.variance, self._imaginary.variance).sqrt(DIGITS))
        if not self._real.count:
            return None
        return float(self._real.variance.sqrt(DIGITS)) if self.min != self.max else 0.0

    @property
    def norm(self) -> float | None:
        """The square root of the sum of the squared magnitudes of the finite values; inf beyond float64."""
        if not self._real.count:
            return None
        return float(DIGITS.add(self._real.squares, self._imaginary.squares).sqrt(DIGITS))

    @property
    def norm1(self) -> float | None:
        """The sum of the magnitudes of the finite values."""
        return float(self._magnitudes) if self._real.count else None


def as_float64(block: NDArray[Any], dtype: DType) -> NDArray[np.float64]:
    """Exact, except for 64-bit integers beyond 2**53."""
    if dtype.bits <= 8 and block.dtype.itemsize == 1:
        return _all_values(dtype)[block.view(np.uint8)]
    return block.astype(np.float64)


@cache
def _all_values(dtype: DType) -> NDArray[np.float64]:
    """The value of every code of at most 16 bits: for bytes, a lookup is several times faster than a conversion."""
    numpy = dtype.require_numpy()
    codes = np.arange(1 << (8 * numpy.itemsize)).astype(f"u{numpy.itemsize}")
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        return codes.view(numpy).astype(np.float64)
