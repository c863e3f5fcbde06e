"""Statistics of each tensor, in one pass and bounded memory, accurate for every element type.

Each block of values is converted to float64; its sum and its sum of squared deviations
from the block's mean are computed (twice corrected, pairwise summed). Blocks are merged
by Chan's formula in decimals of 50 digits, which neither overflow nor cancel. Within a
block, values too large or too small to be squared are scaled by a power of two, and
64-bit integers beyond float64's precision are taken relative to the smallest.

Minimum, maximum, mean and standard deviation are those of the finite values, None if
there are none. Complex numbers have no order, hence no minimum. The deviation is that of
the population, NumPy's default.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, UnsupportedError, plural
from tensorglot.limits import Limits
from tensorglot.model.dtypes import DType, dtype_of
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._as_archive import Given, as_archive
from tensorglot.operations._elements import elements
from tensorglot.operations._executor import Reference, batches, refer_to, run_jobs
from tensorglot.operations._jsonable import Record
from tensorglot.operations._patterns import Select, select_names
from tensorglot.operations._progress import Progress, start_progress
from tensorglot.operations.verify import Problem
from tensorglot.threads import Executor

__all__ = ["Stats", "TensorStats", "stats"]

BLOCK_COUNT = 1 << 17
"""Values in a block: 1 MiB of float64 stays in the processor's cache."""
_PLAIN_EXPONENTS = range(-400, 400)
"""Exponents of values whose squares can be summed in float64."""
_EXACT = 1 << 53
_DIGITS = decimal.Context(prec=50)


@dataclass(frozen=True, slots=True)
class TensorStats(Record):
    """Statistics of one part of a tensor; a dense tensor has one part, `data`."""

    name: str
    part: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    zeros: int = 0
    nan: int = 0
    inf: int = 0
    """Infinite values; a complex number that is also NaN counts as NaN."""
    min: int | float | None = None
    max: int | float | None = None
    mean: float | complex | None = None
    std: float | None = None
    unsupported: str | None = None
    """Why there are no numbers: the element type cannot be decoded here."""
    problem: Problem | None = None
    """Why there are no numbers: a checksum mismatch, or invalid values."""


@dataclass(frozen=True, slots=True, repr=False)
class Stats(Record):
    """The result of `stats`: a row for each part of each tensor."""

    format: str
    rows: tuple[TensorStats, ...]

    @property
    def ok(self) -> bool:
        """No tensor has a problem."""
        return all(row.problem is None for row in self.rows)

    def __iter__(self) -> Iterator[TensorStats]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {"format": self.format, "tensors": [row.to_dict() for row in self.rows]}

    def __repr__(self) -> str:
        wrong = [str(row.problem) for row in self.rows if row.problem is not None]
        problems = f", {plural(len(wrong), 'problem')}: {wrong[0]}" if wrong else ""
        return f"Stats({self.format}, {plural(len({row.name for row in self.rows}), 'tensor')}{problems})"


def stats(
    source: Given,
    select: Select | None = None,
    *,
    format: str | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
) -> Stats:
    """Minimum, maximum, mean, deviation, zeros, NaN and Inf of every tensor, or of those selected.

    A problem of a tensor is in its row; the others have their numbers. Tensors are read on
    the executor, if one is given.
    """
    with as_archive(source, format=format, limits=limits) as archive, start_progress(progress, "reading") as report:
        names = select_names(archive.index.names, select)
        if executor is None:
            return Stats(archive.format, tuple(_rows([archive[name] for name in names], report)))
        reference = refer_to(source, archive, format=format, limits=limits)
        sizes = [archive[name].nbytes for name in names]
        rows: list[TensorStats] = []
        parts = list(batches(sizes))
        jobs = [(reference, names[part.start : part.stop]) for part in parts]
        for part, found in zip(parts, run_jobs(executor, _rows_elsewhere, jobs), strict=True):
            rows += found
            if report is not None:
                report(sum(sizes[: part.stop]), sum(sizes))
        return Stats(archive.format, tuple(rows))


def _rows_elsewhere(source: Reference, names: list[str]) -> list[TensorStats]:
    """The job of a worker."""
    archive = source.open()
    try:
        return list(_rows([archive[name] for name in names], None))
    finally:
        source.close(archive)


def _rows(tensors: Sequence[Tensor], progress: Progress | None) -> Iterator[TensorStats]:
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    for tensor in tensors:
        for part_name, part in tensor.parts.items():
            tally = _Tally()
            try:
                for block in elements(part, tensor.name, BLOCK_COUNT):
                    tally.add(block)
                    if progress is not None:
                        progress(done + tally.done * part.nbytes // math.prod(part.shape), total)
                yield tally.stats(tensor, part_name, part)
            except UnsupportedError as error:
                yield _describe(tensor, part_name, part, unsupported=error.message)
            except FormatError as error:
                error.tensor = tensor.name
                yield _describe(tensor, part_name, part, problem=Problem.of(error))
            done += part.nbytes


def _describe(tensor: Tensor, part_name: str, part: Part, **numbers: Any) -> TensorStats:
    dtype = part.dtype.name if part.dtype is not None else str(part.unknown_dtype)
    return TensorStats(tensor.name, part_name, dtype, part.shape, math.prod(part.shape), **numbers)


@dataclass(slots=True)
class _Moments:
    """Count, sum, and sum of squared deviations from the mean."""

    count: int = 0
    total: Decimal = Decimal(0)
    deviations: Decimal = Decimal(0)

    def add(self, values: NDArray[np.float64], origin: int = 0) -> None:
        """Adds `values + origin`; all finite, at least one."""
        count = len(values)
        exponent = math.frexp(max(-float(values.min()), float(values.max())))[1]
        if exponent in _PLAIN_EXPONENTS:
            scale = Decimal(1)
        else:
            values, scale = np.ldexp(values, -exponent), _DIGITS.power(2, exponent)
        center = float(values.mean())
        apart = values - center
        rest = float(apart.sum())
        np.square(apart, out=apart)
        deviations = max(0.0, float(apart.sum()) - rest * rest / count)
        with decimal.localcontext(_DIGITS):
            total = (Decimal(center) * count + Decimal(rest)) * scale + origin * count
            self._merge(count, total, Decimal(deviations) * scale * scale)

    def _merge(self, count: int, total: Decimal, deviations: Decimal) -> None:
        if self.count:
            apart = total / count - self.total / self.count
            deviations += apart * apart * self.count * count / (self.count + count)
        self.count += count
        self.total += total
        self.deviations += deviations

    @property
    def mean(self) -> float:
        return float(_DIGITS.divide(self.total, self.count))

    @property
    def variance(self) -> Decimal:
        return _DIGITS.divide(self.deviations, self.count)


@dataclass(slots=True)
class _Tally:
    """Running statistics of one part."""

    done: int = 0
    zeros: int = 0
    nan: int = 0
    inf: int = 0
    min: int | float | None = None
    max: int | float | None = None
    real: _Moments = field(default_factory=_Moments)
    imaginary: _Moments = field(default_factory=_Moments)

    def add(self, block: NDArray[Any]) -> None:
        dtype = dtype_of(block.dtype)
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            if dtype.name.startswith("complex"):
                self._add_complex(block)
            else:
                self._add_real(block, dtype)
        self.done += len(block)

    def _add_real(self, block: NDArray[Any], dtype: DType) -> None:
        if dtype.name in ("int64", "uint64"):
            low, high = int(block.min()), int(block.max())
            if max(-low, high) > _EXACT:
                self.zeros += len(block) - int(np.count_nonzero(block))
                self._widen(low, high)
                distances = block.view(np.uint64) - np.uint64(low % (1 << 64))
                self.real.add(distances.astype(np.float64), low)
                return
        values = self._finite(_as_float64(block, dtype))
        if len(values):
            whole = int if dtype.name.startswith(("int", "uint", "bool")) else float
            self._widen(whole(values.min()), whole(values.max()))
            self.real.add(values)

    def _add_complex(self, block: NDArray[Any]) -> None:
        values = self._finite(block.astype(np.complex128))
        if len(values):
            self.real.add(values.real)
            self.imaginary.add(values.imag)

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

    def stats(self, tensor: Tensor, part_name: str, part: Part) -> TensorStats:
        mean: float | complex | None = None
        std: float | None = None
        if self.imaginary.count:
            mean = complex(self.real.mean, self.imaginary.mean)
            std = float((self.real.variance + self.imaginary.variance).sqrt(_DIGITS))
        elif self.real.count:
            mean = self.real.mean
            std = float(self.real.variance.sqrt(_DIGITS)) if self.min != self.max else 0.0
        return _describe(
            tensor,
            part_name,
            part,
            zeros=self.zeros,
            nan=self.nan,
            inf=self.inf,
            min=self.min,
            max=self.max,
            mean=mean,
            std=std,
        )


def _as_float64(block: NDArray[Any], dtype: DType) -> NDArray[np.float64]:
    """Exact, except for 64-bit integers beyond 2**53."""
    if dtype.bits <= 8 and block.dtype.itemsize == 1:
        return _byte_values(dtype)[block.view(np.uint8)]
    return block.astype(np.float64)


@cache
def _byte_values(dtype: DType) -> NDArray[np.float64]:
    """The value of every byte: a lookup is several times faster than a conversion."""
    return np.arange(256).astype(np.uint8).view(dtype.require_numpy()).astype(np.float64)
