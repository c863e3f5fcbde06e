"""`nearest`: the rows of a matrix that are nearest to each query. Exact, in blocks, in bounded memory.

A matrix product gives scores of whole blocks. For integers and bits they are exact. For
float32 they are estimates with a known bound on the rounding error: every row that could
be among the nearest by that bound is scored again in float64, one row at a time, so the
result does not depend on blocks, threads or the BLAS library, and equal rows have equal
scores. Equal scores are in the order of rows. A score that is NaN (of a row or query with
NaN, and the cosine of a zero vector) comes last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from tensorglot.arguments import as_integer, check_choice
from tensorglot.bson.coerce import VectorData, coerce_vector
from tensorglot.errors import InputError
from tensorglot.tuples import NamedTuple

__all__ = ["METRICS", "Metric", "Nearest", "nearest"]

Metric: TypeAlias = Literal["cosine", "dot", "euclidean", "hamming"]
METRICS = get_args(Metric)
Scores: TypeAlias = NDArray[np.float64]
"""Larger is nearer; a distance is negated."""

_BLOCK_NBYTES = 32 << 20
"""Size of the scores, and of the rows that are converted or scored again, at a time."""
_QUERIES = 256
"""Queries in a block."""
_EXACT_COLUMNS = 1024
"""Products of int8 over so many columns are exact in float32: 1024 × 128 × 128 = 2^24."""
_SMALL, _LARGE = 1e-15, 1e18
"""Products of vectors with norms between these neither overflow nor underflow in float32."""


class Nearest(NamedTuple):
    """The nearest rows of each query, the nearest first."""

    indices: NDArray[np.int64]
    scores: NDArray[np.float64]
    """Similarities (dot, cosine), larger is nearer; or distances (euclidean, hamming), smaller is nearer."""


def nearest(matrix: Any, queries: Any, k: int = 10, metric: Metric = "cosine") -> Nearest:
    """Finds the `k` rows of a matrix that are nearest to each query, exactly.

    Both are matrices of float32, int8, or packed bits (bools, `PackedBits`, or `Quantized`
    to bits) of the same width; bits need the metric "hamming", which only they have. With
    fewer than `k` rows all are returned. Equal scores are in the order of rows, NaN last.
    """
    check_choice(metric, METRICS, "metric", "nearest.metric")
    k = as_integer(k, "k", "nearest.k", 1)
    rows = coerce_vector(matrix, None, None, 2)
    wanted = coerce_vector(queries, None, None, 2)
    if rows.row != wanted.row:
        raise InputError(f"the queries are {wanted.row}, the rows {rows.row}", rule="nearest.queries")
    if (metric == "hamming") != (rows.dtype == "packed_bit"):
        others = ", ".join(name for name in METRICS if name != "hamming")
        raise InputError(
            f"{rows.dtype} has no metric {metric} (packed_bit: hamming; float32 and int8: {others})",
            rule="nearest.metric",
        )
    count = min(k, len(rows.data))
    scorer = _Floats if rows.dtype == "float32" else _Exact
    found = Nearest(np.empty((len(wanted.data), count), np.int64), np.empty((len(wanted.data), count)))
    for begin in range(0, len(wanted.data), _QUERIES):
        part = slice(begin, begin + _QUERIES)
        best = _search(scorer(rows, wanted.data[part], metric), count)
        found.indices[part], found.scores[part] = best.indices, best.scores
    if metric in ("euclidean", "hamming"):
        np.negative(found.scores, out=found.scores)
    return found


@dataclass(frozen=True, slots=True)
class _Block:
    """Estimated scores of some rows for all queries."""

    first: int
    scores: NDArray[Any]
    """[queries, rows]; NaN for rows that cannot be among the nearest, or are scored singly."""
    margin: NDArray[np.float64]
    """For each query a bound on the error of the estimates; 0 if they are exact."""
    singly: NDArray[np.bool_]
    """[queries, rows], or [1, rows]: pairs that are scored singly in any case."""


class _Scorer(ABC):
    """Scores of rows for a block of queries."""

    def __init__(self, rows: VectorData, queries: NDArray[Any], metric: str) -> None:
        self.rows = rows.data
        self.queries = queries
        self.metric = metric

    def blocks(self) -> Iterator[_Block]:
        nbytes = 8 * max(len(self.queries), self.rows.shape[1], 1)
        step = max(1, _BLOCK_NBYTES // nbytes)
        for first in range(0, len(self.rows), step):
            yield self.block(first, self.rows[first : first + step])

    @abstractmethod
    def block(self, first: int, rows: NDArray[Any]) -> _Block:
        """The estimates of some rows."""

    def score_again(self, estimates: Scores, queries: NDArray[np.int64], rows: NDArray[np.int64]) -> Scores:
        """The exact scores of pairs of a query and a row."""
        return estimates

    def estimate_of(self, scores: Scores) -> Scores:
        """What an estimate of these scores would be without any error."""
        return scores


class _Exact(_Scorer):
    """int8 and packed bits: estimates that are exact."""

    def __init__(self, rows: VectorData, queries: NDArray[Any], metric: str) -> None:
        super().__init__(rows, queries, metric)
        self._scores = _score_bits(queries) if rows.dtype == "packed_bit" else _score_integers(queries, metric)

    def block(self, first: int, rows: NDArray[Any]) -> _Block:
        return _Block(first, self._scores(rows), np.zeros(len(self.queries)), np.zeros((1, len(rows)), np.bool_))


def _score_bits(queries: NDArray[Any]) -> Callable[[NDArray[Any]], Scores]:
    """A function that computes Hamming distances of packed bits, by words of 64 bits."""
    query_words = _words(queries)

    def scores(rows: NDArray[Any]) -> Scores:
        words = _words(rows)
        distances = np.zeros((len(queries), len(rows)), np.int32)
        for i in range(len(words)):  # one word of all rows at a time: long loops over contiguous memory
            for query in range(len(queries)):
                distances[query] += np.bitwise_count(words[i] ^ query_words[i, query])
        return -distances.astype(np.float64)

    return scores


def _words(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """The bits as [words, rows]."""
    padded = np.zeros((len(rows), -(-rows.shape[1] // 8) * 8), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return np.ascontiguousarray(padded.view(np.uint64).T)


def _score_integers(queries: NDArray[Any], metric: str) -> Callable[[NDArray[Any]], Scores]:
    """A function that scores int8: all products and sums are integers, and exact."""
    query_floats, query_squares = queries.astype(np.float32), _square_norms(queries)[:, None]

    def scores(rows: NDArray[Any]) -> Scores:
        floats, squares = rows.astype(np.float32), _square_norms(rows)
        dots = np.zeros((len(queries), len(rows)))
        # Sums of so many products are exact in float32, for which BLAS is fast; parts are added up in float64.
        for begin in range(0, rows.shape[1], _EXACT_COLUMNS):
            part = slice(begin, begin + _EXACT_COLUMNS)
            dots += query_floats[:, part] @ floats[:, part].T
        if metric == "dot":
            return dots
        if metric == "euclidean":
            return -np.sqrt(query_squares + squares - 2 * dots)
        with np.errstate(invalid="ignore"):
            return np.asarray(dots / (np.sqrt(query_squares) * np.sqrt(squares)))

    return scores


def _square_norms(rows: NDArray[Any]) -> Scores:
    squares: Scores = np.square(rows.astype(np.int32)).sum(axis=1, dtype=np.int64).astype(np.float64)
    return squares


class _Floats(_Scorer):
    """float32: estimates by a matrix product, and exact scores in float64 for the rows that come into question.

    The estimate of a euclidean distance is its square.
    """

    def __init__(self, rows: VectorData, queries: NDArray[Any], metric: str) -> None:
        super().__init__(rows, queries, metric)
        self._wide = queries.astype(np.float64)
        self._squares = np.square(self._wide).sum(axis=1)
        # |error| <= n u |x| |q| for a sum of n products in any order, with u = 2^-24; doubled for the norms.
        self._unit = (rows.data.shape[1] + 8) * 2.0**-23

    def block(self, first: int, rows: NDArray[Any]) -> _Block:
        wide = rows.astype(np.float64)
        squares = np.einsum("ij,ij->i", wide, wide)
        norms, own = np.sqrt(squares), np.sqrt(self._squares)
        longest = float(np.max(norms, where=np.isfinite(norms), initial=0.0))
        with np.errstate(all="ignore"):
            narrow = _fits_float32(norms) and _fits_float32(own)
            dots = self.queries @ rows.T if narrow else self._wide @ wide.T
            scores = dots.astype(np.float64)
            margin = self._unit * own * longest
            if self.metric == "euclidean":
                # -|x - q|² = 2 x·q - |x|² - |q|²: a product is enough. It cancels, which the margin allows for.
                scores = 2 * scores - squares - self._squares[:, None]
                margin = 2 * margin + 2.0**-48 * (self._squares + longest**2)
            elif self.metric == "cosine":
                scores /= own[:, None] * norms
                margin = np.full(len(own), self._unit)
        return _Block(first, scores, margin, self._singly(rows, norms, own, scores))

    def _singly(self, rows: NDArray[Any], norms: Scores, own: Scores, scores: Scores) -> NDArray[np.bool_]:
        """Pairs with an infinite number but no NaN; the estimates of all pairs that are not finite become NaN."""
        odd = ~np.isfinite(norms)
        if not odd.any() and np.isfinite(own).all():
            return np.zeros((1, len(rows)), np.bool_)
        scores[:, odd] = np.nan
        scores[~np.isfinite(own)] = np.nan
        infinite = np.isinf(norms) | np.isinf(own)[:, None]
        singly: NDArray[np.bool_] = infinite & ~np.isnan(norms) & ~np.isnan(own)[:, None]
        return singly

    def estimate_of(self, scores: Scores) -> Scores:
        return -np.square(scores) if self.metric == "euclidean" else scores

    def score_again(self, estimates: Scores, queries: NDArray[np.int64], rows: NDArray[np.int64]) -> Scores:
        scores = np.empty(len(rows))
        step = max(1, _BLOCK_NBYTES // (8 * max(1, self.rows.shape[1])))
        for begin in range(0, len(rows), step):
            part = slice(begin, begin + step)
            scores[part] = self._pairs(self._wide[queries[part]], self.rows[rows[part]].astype(np.float64))
        return scores

    def _pairs(self, queries: Scores, rows: Scores) -> Scores:
        with np.errstate(all="ignore"):
            if self.metric == "euclidean":
                return -_norms(rows - queries)
            dots: Scores = (rows * queries).sum(axis=1)
            if self.metric == "dot":
                return dots
            cosines: Scores = dots / (_norms(rows) * _norms(queries))
            return cosines


def _norms(rows: Scores) -> Scores:
    norms: Scores = np.sqrt(np.square(rows).sum(axis=1))
    return norms


def _fits_float32(norms: Scores) -> bool:
    """Whether products of vectors with these norms stay within float32; infinite vectors are scored singly anyway."""
    usual = norms[np.isfinite(norms) & (norms != 0)]
    return not usual.size or bool(usual.min() > _SMALL and usual.max() < _LARGE)


def _search(scorer: _Scorer, count: int) -> Nearest:
    """The `count` best rows of each query."""
    queries = len(scorer.queries)
    best = _Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    worst = np.full(queries, -np.inf)
    """The score that a row must have to be among the best so far."""
    for block in scorer.blocks():
        # A row can be among the best if its estimate, at most `margin` off, reaches the worst of them: either
        # the exact score so far, or the k-th estimate of this block, which may itself be `margin` too high.
        floor = np.maximum(scorer.estimate_of(worst), _kth(block.scores, count) - block.margin) - block.margin
        query, row = np.nonzero((block.scores >= floor[:, None]) | block.singly)
        exact = scorer.score_again(block.scores[query, row], query, row + block.first)
        numbers = ~np.isnan(exact)
        best = best.merge(_Pairs(query[numbers], row[numbers] + block.first, exact[numbers]), count)
        worst = best.kth(queries, count)
    return best.fill(queries, count)


def _kth(scores: NDArray[Any], count: int) -> Scores:
    """The `count`-th largest score of each query; minus infinity if there are fewer."""
    if scores.shape[1] < count:
        return np.full(len(scores), -np.inf)
    known = np.where(np.isnan(scores), -np.inf, scores)
    kth: Scores = np.partition(known, -count, axis=1)[:, -count]
    return kth


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of a query and a row, with their scores, by query and score."""

    query: NDArray[np.int64]
    row: NDArray[np.int64]
    score: Scores

    def merge(self, other: _Pairs, count: int) -> _Pairs:
        """The best pairs of both, at most `count` for each query; equal scores by row."""
        query = np.concatenate([self.query, other.query])
        row = np.concatenate([self.row, other.row])
        score = np.concatenate([self.score, other.score])
        order = np.lexsort((row, -score, query))
        order = order[_ranks(query[order]) < count]
        return _Pairs(query[order], row[order], score[order])

    def kth(self, queries: int, count: int) -> Scores:
        worst = np.full(queries, -np.inf)
        last = _ranks(self.query) == count - 1
        worst[self.query[last]] = self.score[last]
        return worst

    def fill(self, queries: int, count: int) -> Nearest:
        """A row for each query. Where pairs are missing, their scores are NaN: the first rows that are not there."""
        found = Nearest(np.full((queries, count), -1), np.full((queries, count), np.nan))
        ranks = _ranks(self.query)
        found.indices[self.query, ranks] = self.row
        found.scores[self.query, ranks] = self.score
        for query in np.flatnonzero(found.indices[:, -1:].min(axis=1, initial=0) < 0):
            ranked = found.indices[query]
            ranked = ranked[ranked >= 0]
            others = np.setdiff1d(np.arange(2 * count), ranked)  # more than `count`, since fewer are ranked
            found.indices[query, len(ranked) :] = others[: count - len(ranked)]
        return found


def _ranks(query: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of each pair among the pairs of its query; `query` is sorted."""
    return np.arange(len(query)) - np.searchsorted(query, query)
