"""Statistics of each tensor, in one pass and bounded memory, accurate for every element type.

Blocks of values are added to a `Tally`, which neither overflows nor cancels. Small tensors
are described many at a time, with the same results (`_small_stats`).

Minimum, maximum, mean and standard deviation are those of the finite values, None if
there are none. Complex numbers have no order, hence no minimum. The deviation is that of
the population, NumPy's default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorglot.errors import FormatError, UnsupportedError, plural
from tensorglot.limits import Limits
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE, DType
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._as_archive import TensorsLike, as_archive
from tensorglot.operations._dequantize import values_by_part
from tensorglot.operations._distribution import Distribution, Tally
from tensorglot.operations._executor import name_batches, refer_to, run_jobs
from tensorglot.operations._jsonable import Record
from tensorglot.operations._patterns import Select, select_names
from tensorglot.operations._places import locate
from tensorglot.operations._progress import Progress, ProgressCounter, count_off, start_progress
from tensorglot.operations._small_stats import Numbers, small_stats
from tensorglot.operations.open import OpenOptions
from tensorglot.operations.verify import Problem
from tensorglot.threads import Executor

__all__ = ["Stats", "TensorStats", "stats"]

BLOCK_COUNT = 1 << 17
"""Values in a block: 1 MiB of float64 stays in the processor's cache."""
PERCENTAGES = (1, 5, 25, 50, 75, 95, 99)
_PERCENTAGES = tuple(map(str, PERCENTAGES))
BINS = 16
"""Bins of the histogram."""


# Never modified. Not frozen: setting each field by a call would be a third of the instructions for a small tensor.
@dataclass(slots=True, unsafe_hash=True)
class TensorStats(Record):
    """Statistics of one part of a tensor; a dense tensor has one, `data`, and so have GGML's blocks: real values."""

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
    norm: float | None = None
    """The square root of the sum of the squares."""
    percentiles: dict[str, float] | None = None
    """By percentage: "1", "5", "25", "50", "75", "95", "99"; None for complex numbers, which have no order."""
    histogram: tuple[int, ...] = ()
    """Counts in equal bins from minimum to maximum, at most 16."""
    exact: bool = True
    """Percentiles and histogram are exact; else each value is known to 1 part in 128, or 1/2048 of the range."""
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
        """Whether no tensor has a problem."""
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
    source: TensorsLike,
    select: Select | None = None,
    *,
    format: str | None = None,
    executor: Executor | None = None,
    progress: Progress | bool | None = None,
    limits: Limits | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Stats:
    """Statistics of every tensor, or of those that `select` matches, in one pass and bounded memory.

    Minimum, maximum, mean, deviation, norm, percentiles and a histogram of the finite values;
    the numbers of zeros, NaN and Inf. Percentiles are exact for element types of at most 16
    bits and for small tensors; `exact` of a row says so. A tensor that cannot be read has a
    row with its `problem`. With an `executor` (anything with `submit`), workers read the
    tensors.
    """
    source, options = locate(source, storage_options), OpenOptions.of(format, limits=limits)
    with (
        as_archive(source, options) as archive,
        start_progress(progress, "reading") as report,
    ):
        names = select_names(archive.index.names, select)
        if executor is None:
            return Stats(archive.format, tuple(_rows(archive, names, report)))
        reference = refer_to(source, archive, options)
        sizes = archive.index.tensor_nbytes[[archive.index.positions[name] for name in names]].tolist()
        parts, sizes = name_batches(names, sizes)
        found = run_jobs(executor, _list_rows, [(reference, part) for part in parts])
        return Stats(archive.format, tuple(row for rows in count_off(found, sizes, report) for row in rows))


def _list_rows(archive: Archive, names: Sequence[str]) -> list[TensorStats]:
    """The job of a worker."""
    return list(_rows(archive, names, None))


def _rows(archive: Archive, names: Sequence[str], progress: Progress | None) -> Iterator[TensorStats]:
    index = archive.index
    positions = [index.positions[name] for name in names]
    count = ProgressCounter(progress, int(index.tensor_nbytes[positions].sum()))
    small = {
        position: _describe_small(index.names[position], TABLE[index.dtypes[position]], index.shapes[position], numbers)
        for position, numbers in small_stats(archive, positions, [each / 100 for each in PERCENTAGES], BINS, count)
    }
    for position in positions:
        if position in small:
            yield small.pop(position)
            continue
        tensor = archive.tensor_at(position)
        for part_name, part, values in values_by_part(tensor, BLOCK_COUNT):
            tally = Tally(Distribution())
            try:
                for block in values:
                    tally.add(block)
                    count(0, begun=tally.done * part.nbytes // math.prod(part.shape))
                yield _describe(tensor, part_name, part, **_numbers(tally))
            except UnsupportedError as error:
                yield _describe(tensor, part_name, part, unsupported=error.message)
            except FormatError as error:
                error.tensor = tensor.name
                yield _describe(tensor, part_name, part, problem=Problem.of(error))
            count(part.nbytes)


def _describe_small(name: str, dtype: DType, shape: tuple[int, ...], numbers: Numbers) -> TensorStats:
    zeros, low, high, mean, std, norm, quantiles, histogram = numbers
    percentiles = dict(zip(_PERCENTAGES, quantiles, strict=True))
    count = math.prod(shape)
    return TensorStats(
        name, "data", dtype.name, shape, count, zeros, 0, 0, low, high, mean, std, norm, percentiles, histogram
    )


def _describe(tensor: Tensor, part_name: str, part: Part, **numbers: Any) -> TensorStats:
    return TensorStats(tensor.name, part_name, part.dtype_name, part.shape, math.prod(part.shape), **numbers)


def _numbers(tally: Tally) -> dict[str, Any]:
    found = {name: getattr(tally, name) for name in ("zeros", "nan", "inf", "min", "max", "mean", "std", "norm")}
    distribution = tally.distribution
    if distribution is not None and distribution.count:
        quantiles = distribution.quantiles([percentage / 100 for percentage in PERCENTAGES])
        found["percentiles"] = dict(zip(_PERCENTAGES, quantiles, strict=True))
        found["histogram"] = tuple(distribution.histogram(BINS)[1])
        found["exact"] = distribution.exact
    return found
