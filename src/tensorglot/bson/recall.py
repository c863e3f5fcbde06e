"""`recall`: what quantization costs. The share of the true nearest rows that a search in smaller vectors finds.

Three searches are compared with the exact one in float32: in the int8 codes by the same
metric, as a database does with the vectors that it stores; in the values that the ranges
restore from these codes; and in packed bits by Hamming distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_integer, check_choice
from tensorglot.bson.coerce import coerce_vector
from tensorglot.bson.nearest import Metric, nearest
from tensorglot.bson.quantize import quantize
from tensorglot.errors import InputError
from tensorglot.operations._jsonable import Record

__all__ = ["Recall", "RecallRow", "recall"]

_Metric: TypeAlias = Literal["cosine", "dot", "euclidean"]
_METRICS = ("cosine", "dot", "euclidean")
_SIZES = (1, 10, 100)


@dataclass(frozen=True, slots=True)
class RecallRow(Record):
    """One way to search."""

    name: str
    """`int8`, `int8, dequantized` or `packed_bit`."""
    nbytes: int
    """Size of the searched vectors."""
    recalls: tuple[float, ...]
    """For each k, the mean share of the k nearest rows that are found among k."""


@dataclass(frozen=True, slots=True)
class Recall(Record):
    """Recall at several k, against the exact search in float32."""

    vectors: int
    columns: int
    queries: int
    metric: str
    k: tuple[int, ...]
    nbytes: int
    """Size of the float32 vectors."""
    rows: tuple[RecallRow, ...]


def recall(
    matrix: Any,
    queries: Any = None,
    k: int | Sequence[int] | None = None,
    metric: _Metric = "cosine",
    *,
    sample: int = 1000,
    seed: int = 0,
) -> Recall:
    """Measures recall at k of int8 and packed bits against float32.

    Without `queries`, `sample` rows of the matrix are the queries, and a row is not counted
    as its own neighbour. Queries are quantized with the ranges of the matrix. `k` is 1, 10
    and 100 by default; a k that exceeds the number of rows is left out.
    """
    check_choice(metric, _METRICS, "metric", "recall.metric")
    sample = as_integer(sample, "sample", "recall.sample", 1)
    seed = as_integer(seed, "seed", "recall.seed", 0)
    values = coerce_vector(matrix, "float32", None, 2).data
    own: NDArray[np.int64] | None = None
    if queries is None:
        count = min(sample, len(values))
        own = np.sort(np.random.default_rng(seed).choice(len(values), count, replace=False))
        wanted = values[own]
    else:
        wanted = coerce_vector(queries, "float32", None, 2).data
    others = len(values) - (own is not None)
    if k is None:
        sizes = tuple(size for size in _SIZES if size <= max(1, others))
    else:
        given = k if isinstance(k, (Sequence, np.ndarray)) and not isinstance(k, str) else [k]
        sizes = tuple(as_integer(size, "k", "recall.k", 1) for size in given)
    if not len(wanted):
        raise InputError("recall needs at least one query", rule="recall.queries")
    if not sizes or max(sizes) > others:
        raise InputError(f"k must be from 1 to {others}, the number of rows that a query can find", rule="recall.k")
    small = quantize(values)
    assert small.low is not None and small.high is not None  # noqa: S101, PT018 - int8 has ranges
    small_queries = quantize(wanted, ranges=(small.low, small.high))
    bits, bit_queries = quantize(values, "packed_bit"), quantize(wanted, "packed_bit")
    most = max(sizes)
    truth = _search(values, wanted, most, metric, own)
    searches: list[tuple[str, int, Any, Any, Metric]] = [
        ("int8", small.data.nbytes, small, small_queries, metric),
        ("int8, dequantized", small.data.nbytes, small.dequantize(), wanted, metric),
        ("packed_bit", bits.data.nbytes, bits, bit_queries, "hamming"),
    ]
    rows = []
    for name, nbytes, stored, asked, by in searches:
        found = _search(stored, asked, most, by, own)
        rows.append(RecallRow(name, nbytes, tuple(_share(truth[:, :size], found[:, :size]) for size in sizes)))
    return Recall(len(values), values.shape[1], len(wanted), metric, sizes, values.nbytes, tuple(rows))


def _search(matrix: Any, queries: Any, k: int, metric: Metric, own: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The k nearest rows of each query. `own` has the rows that are the queries, which are left out."""
    if own is None:
        return nearest(matrix, queries, k, metric).indices
    found = nearest(matrix, queries, k + 1, metric).indices
    others = found != own[:, None]
    others[others.all(axis=1), -1] = False  # the query's own row was not found: drop the last, to keep k
    left: NDArray[np.int64] = found[others].reshape(len(found), k)
    return left


def _share(truth: NDArray[np.int64], found: NDArray[np.int64]) -> float:
    hits = sum(len(np.intersect1d(one, other, assume_unique=True)) for one, other in zip(truth, found, strict=True))
    return hits / truth.size
