"""`nearest` against brute force in NumPy: every metric and dtype, ties, NaN, infinities, sizes around the blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorglot as tg
from command_line import run
from tensorglot.bson import nearest

RNG = np.random.default_rng(2)


def brute_force(matrix: Any, queries: Any, k: int, metric: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All scores in float64, and a stable sort with NaN last."""
    rows, wanted = (np.asarray(values).astype(np.float64) for values in (matrix, queries))
    with np.errstate(all="ignore"):
        if metric in ("euclidean", "hamming"):
            squares = np.square(rows[None] - wanted[:, None]).sum(axis=2)
            scores = squares if metric == "hamming" else np.sqrt(squares)
        else:
            scores = (rows[None] * wanted[:, None]).sum(axis=2)
            if metric == "cosine":
                norms = [np.sqrt(np.square(values).sum(axis=1)) for values in (rows, wanted)]
                scores = scores / (norms[0] * norms[1][:, None])
        order = np.argsort(scores if metric in ("euclidean", "hamming") else -scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


def check(matrix: Any, queries: Any, k: int, metric: Any) -> None:
    found = nearest(matrix, queries, k, metric)
    indices, scores = brute_force(matrix, queries, k, metric)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_array_equal(found.scores, scores)


FLOATS = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-40, np.inf, -np.inf, np.nan]),
    st.integers(-2, 2).map(float),
)
ELEMENTS: dict[str, Any] = {
    "float32": FLOATS,
    "few values": st.sampled_from([0.0, 1.0, -1.0]),
    "int8": st.integers(-128, 127),
    "few integers": st.integers(-1, 1),
    "bool": st.booleans(),
}


@st.composite
def problems(draw: Any) -> tuple[Any, Any, int, str]:
    kind = draw(st.sampled_from(sorted(ELEMENTS)))
    width = draw(st.integers(1, 20))
    dtype = {"float32": "f4", "few values": "f4", "bool": "?"}.get(kind, "i1")
    matrix, queries = (
        draw(hnp.arrays(dtype, (count, width), elements=ELEMENTS[kind]))
        for count in (draw(st.integers(0, 30)), draw(st.integers(0, 4)))
    )
    metric = "hamming" if kind == "bool" else draw(st.sampled_from(["dot", "cosine", "euclidean"]))
    return matrix, queries, draw(st.integers(1, 35)), metric


@given(problems())
def test_any_values(problem: Any) -> None:
    check(*problem)


@pytest.mark.parametrize("metric", ["dot", "cosine", "euclidean"])
@pytest.mark.parametrize("dtype", ["f4", "i1"])
def test_several_blocks_of_queries(dtype: str, metric: str) -> None:
    rows, queries = (RNG.integers(-128, 128, (count, 70)).astype(dtype) for count in (3000, 300))
    if dtype == "f4":
        rows, queries = rows / np.float32(7), queries / np.float32(3)
    rows[::3] = rows[0]
    rows[2000:] = rows[:1000]
    whole = nearest(rows, queries, 20, metric)  # type: ignore[arg-type]
    for part in (slice(0, 3), slice(254, 259), slice(299, 300)):
        check(rows, queries[part], 20, metric)
        found = nearest(rows, queries[part], 20, metric)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.indices, whole.indices[part])
        np.testing.assert_array_equal(found.scores, whole.scores[part])


@pytest.mark.parametrize("width", [1, 7, 8, 64, 65, 1536])
def test_bits(width: int) -> None:
    rows, queries = (RNG.random((count, width)) < 0.5 for count in (700, 5))
    check(rows, queries, 50, "hamming")
    packed = tg.bson.decode_matrix(tg.bson.encode_matrix(rows), packed=True)
    found = nearest(packed, queries, 50, "hamming")
    np.testing.assert_array_equal(found.indices, nearest(rows, queries, 50, "hamming").indices)


def test_wide_integers_stay_exact() -> None:
    rows = np.full((4, 5000), -128, np.int8)
    rows[2, 0] = -127
    found = nearest(rows, rows[:1], 4, "dot")
    assert found.indices.tolist() == [[0, 1, 3, 2]]
    assert found.scores[0, 0] == 5000 * 128 * 128


def test_many_rows_that_differ_by_less_than_the_rounding_of_float32() -> None:
    base = RNG.standard_normal(400).astype(np.float32)
    rows = np.tile(base, (2000, 1))
    rows[:, 0] = np.nextafter(rows[:, 0], np.float32(9) * RNG.choice([-1, 1], 2000).astype(np.float32))
    for metric in ("dot", "cosine", "euclidean"):
        check(rows, base[None], 40, metric)


def test_blocks_do_not_matter() -> None:
    rows = RNG.standard_normal((40_000, 130)).astype(np.float32)
    rows[::7] = rows[1]
    rows[100::501] = np.nan
    whole = nearest(rows, rows[:3], 9000, "cosine")
    order, scores = brute_force(rows, rows[:3], 9000, "cosine")
    np.testing.assert_array_equal(whole.indices, order)
    np.testing.assert_array_equal(whole.scores, scores)


def test_quantized_values_are_what_they_are() -> None:
    rows = RNG.standard_normal((50, 9)).astype(np.float32)
    small = tg.bson.quantize(rows)
    check(small.data, small.data[:2], 5, "euclidean")
    bits = tg.bson.quantize(rows, to="packed_bit")
    assert nearest(bits, tg.bson.quantize(rows[:2], to="packed_bit"), 1, "hamming").indices.tolist() == [[0], [1]]
    assert nearest([[1.0, 2.0]], [[1.0, 2.0]], 3).scores.tolist() == [[pytest.approx(1.0)]]


@pytest.mark.parametrize(
    ("matrix", "queries", "k", "metric", "rule"),
    [
        ([[1.0]], [[1.0]], 0, "dot", "nearest.k"),
        ([[1.0]], [[1.0]], True, "dot", "nearest.k"),
        ([[1.0]], [[1.0]], 1, "manhattan", "nearest.metric"),
        ([[1.0]], [[1.0]], 1, "hamming", "nearest.metric"),
        ([[True]], [[True]], 1, "dot", "nearest.metric"),
        ([[1.0]], [[1.0, 2.0]], 1, "dot", "nearest.queries"),
        ([[1.0]], np.ones((1, 1), np.int8), 1, "dot", "nearest.queries"),
        (np.array([[True]]), np.array([[True, False]]), 1, "hamming", "nearest.queries"),
        ([1.0], [[1.0]], 1, "dot", "bson.vector.rank"),
    ],
)
def test_refusals(matrix: Any, queries: Any, k: Any, metric: Any, rule: str) -> None:
    with pytest.raises(tg.InputError) as caught:
        nearest(matrix, queries, k, metric)
    assert caught.value.rule == rule


class TestRecall:
    MATRIX = RNG.standard_normal((400, 24)).astype(np.float32)

    def expected(self, stored: Any, asked: Any, own: Any, k: int, metrics: tuple[str, str]) -> float:
        """By brute force, a query at a time."""
        hits = 0
        for query, row in enumerate(own):
            truth = [i for i in brute_force(self.MATRIX, self.MATRIX[[row]], 400, metrics[0])[0][0] if i != row][:k]
            found = [i for i in brute_force(stored, asked[[query]], 400, metrics[1])[0][0] if i != row][:k]
            hits += len(set(truth) & set(found))
        return hits / (k * len(own))

    @pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
    def test_it_is_that_of_brute_force(self, metric: Any) -> None:
        found = tg.bson.recall(self.MATRIX, k=(1, 10), metric=metric, sample=400)
        assert (found.vectors, found.columns, found.queries, found.k) == (400, 24, 400, (1, 10))
        small = tg.bson.quantize(self.MATRIX)
        bits, own = self.MATRIX > 0, range(400)
        by_name = {row.name: row for row in found.rows}
        for i, k in enumerate(found.k):
            for name, stored, asked, by in (
                ("int8", small.data, small.data, metric),
                ("int8, dequantized", small.dequantize(), self.MATRIX, metric),
                ("packed_bit", bits, bits, "hamming"),
            ):
                assert by_name[name].recalls[i] == self.expected(stored, asked, own, k, (metric, by))
        assert by_name["int8, dequantized"].recalls[1] > by_name["packed_bit"].recalls[1]
        assert by_name["packed_bit"].nbytes * 32 == found.nbytes

    def test_queries_of_their_own(self) -> None:
        queries = RNG.standard_normal((7, 24)).astype(np.float32)
        found = tg.bson.recall(self.MATRIX, queries, 400)
        assert found.queries == 7
        assert [row.recalls for row in found.rows] == [(1.0,)] * 3

    @pytest.mark.parametrize(
        ("options", "rule"),
        [
            ({"k": 400}, "recall.k"),
            ({"k": 0}, "recall.k"),
            ({"k": ()}, "recall.k"),
            ({"metric": "hamming"}, "recall.metric"),
            ({"queries": np.ones((1, 3))}, "quantize.ranges"),
        ],
    )
    def test_refusals(self, options: Any, rule: str) -> None:
        with pytest.raises(tg.InputError, match=f"rule {rule}"):
            tg.bson.recall(self.MATRIX, **options)

    @pytest.mark.parametrize(("rows", "expected"), [(2, (1,)), (11, (1, 10)), (101, (1, 10, 100)), (100, (1, 10))])
    def test_by_default_k_is_what_the_rows_allow(self, tmp_path: Path, rows: int, expected: tuple[int, ...]) -> None:
        assert tg.bson.recall(self.MATRIX[:rows]).k == expected
        np.save(tmp_path / "a.npy", self.MATRIX[:rows])
        assert json.loads(run("vectors", "recall", tmp_path / "a.npy", "--json").stdout)["k"] == list(expected)

    def test_on_the_command_line(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", self.MATRIX)
        np.save(tmp_path / "q.npy", self.MATRIX[:5])
        lines = run("vectors", "recall", tmp_path / "a.npy", "-k", "1", "-k", "5", "--sample", "50").stdout.splitlines()
        assert lines[0].split() == ["search", "size", "recall@1", "recall@5"]
        assert [line.split("  ")[0] for line in lines[1:]] == ["float32", "int8", "int8, dequantized", "packed_bit"]
        told = json.loads(
            run("vectors", "recall", tmp_path / "a.npy", "--queries", tmp_path / "q.npy", "-k", "1", "--json").stdout
        )
        assert (told["queries"], told["rows"][1]["recalls"]) == (5, [1.0])
