"""`stats` against exact arithmetic, for every element type, and where float64 alone would fail."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorglot as tg
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.payload import Memory
from tensorglot.operations import stats as stats_module
from tensorglot.operations.stats import TensorStats, stats

REAL = [row.name for row in TABLE if row.numpy is not None and not row.name.startswith("complex")]


def of(array: Any) -> TensorStats:
    [row] = stats({"x": array})
    return row


def apart(tensors: dict[str, Any]) -> list[TensorStats]:
    """Of each tensor by itself: one with attributes is not described together with others."""
    attributes = {name: {"unit": "m"} for name in tensors}
    return list(stats(tg.dumps(tensors, format="ztensor@0.1", attributes=attributes)))


def exact(values: list[Any]) -> tuple[float, float]:
    """Mean and deviation by fractions."""
    exactly = [Fraction(value) for value in values]
    mean = sum(exactly, Fraction(0)) / len(exactly)
    variance = sum(((value - mean) ** 2 for value in exactly), Fraction(0)) / len(exactly)
    shift = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
    return float(mean), math.ldexp(math.sqrt(variance / Fraction(4) ** shift), shift)


def check(row: TensorStats, array: np.ndarray[Any, Any]) -> None:
    values = [value for value in array.reshape(-1).tolist() if math.isfinite(value)]
    flat = array.reshape(-1).tolist()
    assert row.count == len(flat)
    assert row.zeros == sum(value == 0 for value in flat)
    assert row.nan == sum(math.isnan(value) for value in flat)
    assert row.inf == sum(math.isinf(value) for value in flat)
    if not values:
        assert (row.min, row.max, row.mean, row.std) == (None, None, None, None)
        return
    assert (row.min, row.max) == (min(values), max(values))
    mean, std = exact(values)
    assert row.mean is not None
    assert row.std is not None
    scale = max(map(abs, values))
    assert abs(row.mean - mean) <= 1e-15 * abs(mean) + 1.2e-16 * scale  # each is rounded to 2^-53 of it
    assert abs(row.std - std) <= 1e-12 * std + 1e-16 * (max(values) / 2 - min(values) / 2)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_every_real_type(name: str, count: int) -> None:
    dtype = next(row.numpy for row in TABLE if row.name == name)
    random = np.random.default_rng(count)
    array = (random.integers(0, 256, (count, dtype.itemsize), np.uint8)).view(dtype).reshape(count)
    if name == "bool":
        array = random.integers(0, 2, count).astype(bool)
    elif next(row for row in TABLE if row.name == name).packed:
        array = random.integers(-2, 3, count).astype(np.float32).astype(dtype)
    row = of(array)
    assert row.dtype == name
    check(row, array)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(np.array([1e308, 1.7e308, -1.7e308, 1.7e308]), id="sums beyond float64"),
        pytest.param(np.array([5e-324, 1e-323, 0.0, 2e-323]), id="squares below float64"),
        pytest.param(np.array([1e-300, 3e-300]), id="small"),
        pytest.param(1e15 + np.arange(1000) / 8, id="a large mean, a small deviation"),
        pytest.param(np.full(100_001, 0.1), id="all alike"),
        pytest.param(np.array([1e16, *[1.0] * 9999]), id="one far away"),
        pytest.param(2**62 + np.arange(1000), id="int64 beyond 2**53"),
        pytest.param(np.array([-(2**63), 2**63 - 1, 0]), id="the whole range of int64"),
        pytest.param(np.array([0, 2**64 - 1, 2**63], np.uint64), id="the whole range of uint64"),
        pytest.param((2**64 - 1 - np.arange(5, dtype=np.uint64)), id="the end of uint64"),
        pytest.param(np.array([np.nan, np.inf, -np.inf, 1.0, -0.0]), id="not all finite"),
        pytest.param(np.array([np.nan, np.inf]), id="none finite"),
        pytest.param(np.zeros((3, 0, 2)), id="empty"),
        pytest.param(np.float32(3.5).reshape(()), id="no dimensions"),
        pytest.param(np.arange(24.0).reshape(2, 3, 4).T[::2, ::-1], id="strided"),
        pytest.param(np.arange(100, dtype=">i8"), id="big-endian"),
    ],
)
def test_hard_values(values: np.ndarray[Any, Any]) -> None:
    check(of(values), values)
    check(*apart({"x": values}), values)


@pytest.mark.parametrize("values", [1e15 + np.arange(999) / 8, 2**62 + np.arange(999), np.arange(-500.0, 499) * 1e300])
def test_blocks_merge_to_the_same(values: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "BLOCK_COUNT", 8)
    check(*apart({"x": values}), values)


@settings(max_examples=200, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float64, np.float32, np.float16, np.int64, np.uint64, np.int8]),
        hnp.array_shapes(max_dims=3, min_side=0, max_side=9),
    ),
    st.sampled_from([8, 16, 80, 1 << 17]),
)
def test_any_array_in_any_blocks(array: np.ndarray[Any, Any], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats_module, "BLOCK_COUNT", block)
        check(*apart({"x": array}), array)
    check(of(array), array)


HARD = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.5, 1e-300, 1e300, 3e-45, 65504.0]


@st.composite
def several(draw: st.DrawFn) -> dict[str, np.ndarray[Any, Any]]:
    """Small tensors of one or two types, with hard values and bits at random."""
    found = {}
    for dtype in draw(st.lists(st.sampled_from([BY_NAME[name] for name in REAL]), min_size=1, max_size=2)):
        for i in range(draw(st.integers(1, 4))):
            count = draw(st.sampled_from([0, 1, 2, 3, 7, 16, 17, 129, 1000, 1025]))
            random = np.random.default_rng(draw(st.integers(0, 1000)))
            kind = draw(st.sampled_from(["bits", "normal", "few", "hard"]))
            if kind == "bits" and dtype.name != "bool" and not dtype.packed:
                array = random.integers(0, 256, (count, dtype.numpy.itemsize), np.uint8).view(dtype.numpy).reshape(-1)
            else:
                values = {
                    "few": random.integers(0, 3, count),
                    "hard": random.choice(HARD, count),
                }.get(kind, random.normal(size=count) * 40)
                with np.errstate(all="ignore"):
                    array = values.astype(dtype.numpy)
            found[f"{dtype.name} {i}"] = array
    return found


@settings(max_examples=120, deadline=None)
@given(several())
def test_tensors_described_together_have_the_numbers_of_each_alone(tensors: dict[str, Any]) -> None:
    together = list(stats(tensors))
    assert [repr(row) for row in together] == [repr(row) for row in apart(tensors)]
    file = tg.dumps(tensors, format="ztensor@0.1")
    assert [repr(row) for row in stats(file)] == [repr(row) for row in together]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda r, n: r.normal(size=n), id="normal"),
        pytest.param(lambda r, n: np.full(n, r.normal()), id="constant"),
        pytest.param(lambda r, n: np.repeat(r.normal(size=n), 2) * np.resize([1, -1], 2 * n), id="sums of zero"),
        pytest.param(lambda r, n: r.integers(-(2**53), 2**53, n).astype(np.float64), id="means between two numbers"),
        pytest.param(lambda r, n: 1 + r.integers(0, 4, n) * 2.0**-52, id="deviations of the last bit"),
        pytest.param(lambda r, n: r.normal(size=n) * 2.0 ** r.integers(-60, 60, n), id="all sizes"),
        pytest.param(lambda r, n: r.normal(size=n) * 2.0 ** r.integers(-399, 399), id="squares of all sizes"),
    ],
)
def test_means_deviations_and_norms_described_together_are_those_of_each_alone(values: Any) -> None:
    random = np.random.default_rng(5)
    tensors = {str(i): values(random, 1 + i % 30) for i in range(300)}
    assert [repr(row) for row in stats(tensors)] == [repr(row) for row in apart(tensors)]


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex(dtype: Any) -> None:
    values = np.array([1 + 2j, -3 + 0.5j, 0, 2], dtype)
    row = of(np.array([*values, np.nan + 1j, complex(1, np.inf), complex(np.nan, np.inf)], dtype))
    assert (row.min, row.max) == (None, None)
    assert row.mean == pytest.approx(complex(values.mean()))
    assert row.std == pytest.approx(float(values.std()))
    assert (row.count, row.zeros, row.nan, row.inf) == (7, 1, 2, 1)
    assert row.to_dict()["mean"] == [row.mean.real, row.mean.imag]  # type: ignore[union-attr]


def test_bfloat16_in_a_file(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=(257, 33)).astype(ml_dtypes.bfloat16)
    tg.save(tmp_path / "a.bt", {"x": array, "y": np.ones(3, np.int16)})
    seen: list[tuple[int, int]] = []
    with tg.open(tmp_path / "a.bt") as archive:
        rows = {row.name: row for row in stats(archive, progress=lambda done, total: seen.append((done, total)))}
        [only] = stats(archive, ["y"])
    check(rows["x"], array)
    assert (only.name, only.mean, only.std) == ("y", 1.0, 0.0)
    assert seen[-1] == (array.nbytes + 6, array.nbytes + 6)
    assert seen == sorted(seen)


def test_unreadable_tensors_are_listed_beside_the_others() -> None:
    builder = IndexBuilder(tg.Limits(), "test")
    builder.add("odd", Row(dtype="float3", shape=(2,), payload=Memory(np.zeros(2, np.uint8))))
    builder.add("plain", Row(dtype=BY_NAME["bool"], shape=(2,), payload=Memory(np.array([True, False]))))
    odd, plain = stats(Archive(builder.index("memory"), None))
    assert (odd.dtype, odd.mean) == ("float3", None)
    assert "float3" in (odd.unsupported or "")
    assert (plain.mean, plain.unsupported) == (0.5, None)


def test_an_error_is_in_the_row_of_its_tensor() -> None:
    data = bytearray(tg.dumps({"a": np.arange(3.0), "flags": np.array([True, False])}, format="bintensors"))
    data[-1] = 7
    with tg.open(bytes(data)) as archive:
        good, bad = stats(archive)
    assert (good.name, good.max, good.problem) == ("a", 2.0, None)
    assert (bad.name, bad.min, bad.count) == ("flags", None, 2)
    assert bad.problem is not None
    assert (bad.problem.rule, bad.problem.tensor) == ("values.bool", "flags")
    assert bad.to_dict()["problem"]["rule"] == "values.bool"
    assert repr(tg.stats(bytes(data))).startswith("Stats(bintensors@0, 2 tensors, 1 problem: a bool byte is neither")


def test_bytes_that_are_not_those_of_the_checksum_have_no_numbers() -> None:
    tensors = {name: np.arange(100.0) for name in ("a", "b", "c")}
    data = bytearray(tg.dumps(tensors, format="ztensor", checksum="crc32c"))
    with tg.open(bytes(data)) as archive:
        data[archive["b"].offset] ^= 1
    with tg.open(bytes(data), verify="auto") as archive:
        rows = {row.name: row for row in stats(archive)}
    assert {name: row.max for name, row in rows.items()} == {"a": 99.0, "b": None, "c": 99.0}
    assert rows["b"].problem is not None
    assert (rows["b"].problem.rule, rows["b"].problem.tensor) == ("checksum.mismatch", "b")


@pytest.mark.parametrize("name", ["float6_e2m3fn", "int4", "uint1"])
def test_packed_types_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "BLOCK_COUNT", 8)
    dtype = next(row.numpy for row in TABLE if row.name == name)
    array = np.random.default_rng(1).integers(0, 2, 101).astype(np.float32).astype(dtype)
    check(of(array), array)


def test_memory_is_bounded(tmp_path: Path) -> None:
    import tracemalloc

    tg.save(tmp_path / "big.bt", {"x": np.ones(8_000_000, np.float32)}, durable=False)
    with tg.open(tmp_path / "big.bt") as archive:
        tracemalloc.start()
        [row] = stats(archive)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (row.mean, row.std) == (1.0, 0.0)
    assert peak < 16 << 20
