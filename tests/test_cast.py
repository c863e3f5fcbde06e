"""Casting: every pair of element types against a count that is made one element at a time."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from arrays import random_array
from tensorglot.model.dtypes import BY_NAME, TABLE, DType, dtype_of


def kind_of(row: DType) -> str:
    if row.name == "bool" or row.name.startswith("complex"):
        return row.name.rstrip("0123456789")
    return "integer" if row.name.startswith(("int", "uint")) else "real"


def cast(values: Any, new: DType) -> tuple[Any, int, int]:
    """The values as `convert` casts them, how many it says were rounded, and how many overflowed."""
    target = io.BytesIO()
    report = tg.convert({"x": values}, target, format="npz", dtype={"x": new.name}, on_loss="drop")
    (account,) = report.casts
    assert (account.tensor, account.new, account.count) == ("x", new.name, len(values))
    return tg.loads(target.getvalue())["x"], account.rounded, account.overflowed


ROWS = [row for row in TABLE if row.numpy is not None]
REAL = [row for row in ROWS if kind_of(row) != "complex"]
LARGEST = {"float4_e2m1fn": 6.0, "float6_e2m3fn": 7.5, "float6_e3m2fn": 28.0}


def numbers(row: DType) -> Any:
    """Any bits, and the numbers at which something ends."""
    noise = random_array(random.Random(row.name), row.name, (200,))
    edges = [
        0,
        1,
        -1,
        0.5,
        1.5,
        2.5,
        127,
        128,
        255,
        256,
        65504,
        65520,
        448,
        464,
        465,
        2**31,
        2.0**53 + 2,
        2.0**63,
        1e30,
    ]
    edges += [-v for v in edges] + [math.inf, -math.inf, math.nan]
    with np.errstate(all="ignore"):
        if kind_of(row) == "integer":
            signed = row.name.startswith("int")
            low = -(1 << row.bits - 1) if signed else 0
            ends = [low, low + 1, low + (1 << row.bits) - 1, low + (1 << row.bits) - 2]
            edge = np.array(ends, np.int64 if signed else np.uint64).astype(row.numpy)
        else:
            edge = np.array(edges).astype(row.numpy)
    return np.concatenate([noise, edge])


def python(values: Any, row: DType) -> list[Any]:
    if kind_of(row) == "bool":
        return [bool(v) for v in values]
    if kind_of(row) == "integer":
        return [int(v) for v in values.astype(np.int64 if row.name.startswith("int") else np.uint64)]
    return wide(values).tolist()


def wide(values: Any) -> Any:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return values.astype(np.float64)


def verdicts(old: list[Any], new: list[Any], row: DType) -> Iterator[str]:
    for before, after in zip(old, new, strict=True):
        if isinstance(before, float) and math.isnan(before):
            kept = isinstance(after, float) and math.isnan(after)
            yield "kept" if kept else "rounded" if row.name == "bool" else "overflowed"
        elif before == after:
            yield "kept"
        elif row.name == "bool":
            yield "rounded"
        elif math.isinf(before) or not math.isfinite(after):
            yield "overflowed"
        elif kind_of(row) == "integer":
            low = -(1 << row.bits - 1) if row.name.startswith("int") else 0
            yield "rounded" if low <= math.trunc(before) < low + (1 << row.bits) else "overflowed"
        else:
            yield "overflowed" if abs(before) > LARGEST.get(row.name, math.inf) else "rounded"


@pytest.mark.parametrize("old", REAL, ids=lambda row: row.name)
def test_every_pair(old: DType) -> None:
    values = numbers(old)
    for new in REAL:
        if new is old:
            continue
        result, rounded, overflowed = cast(values, new)
        assert result.dtype == new.numpy, new.name
        found = list(verdicts(python(values, old), python(result, new), new))
        assert (rounded, overflowed) == (found.count("rounded"), found.count("overflowed")), new.name


@pytest.mark.parametrize("new", [row for row in REAL if kind_of(row) == "integer"], ids=lambda row: row.name)
def test_what_an_integer_cannot_hold_becomes_its_end_or_zero(new: DType) -> None:
    low = -(1 << new.bits - 1) if new.name.startswith("int") else 0
    values = np.array([math.inf, -math.inf, math.nan, 1e300, -1e300, 0.9])
    result, rounded, overflowed = cast(values, new)
    high = low + (1 << new.bits) - 1
    assert python(result, new) == [high, low, 0, high, low, 0]
    assert (rounded, overflowed) == (1, 5)


def test_complex() -> None:
    values = np.array([1 + 2j, 1e300, 0.1j, complex(math.nan, 1)])
    result, rounded, overflowed = cast(values, BY_NAME["complex64"])
    assert result.dtype == np.complex64
    assert (rounded, overflowed) == (1, 1)
    result, rounded, overflowed = cast(np.float64([0.5, 0.1]), BY_NAME["complex64"])
    assert result.tolist() == [0.5, complex(np.float32(0.1))]
    assert (rounded, overflowed) == (1, 0)


@pytest.mark.parametrize("new", REAL, ids=lambda row: row.name)
def test_a_round_trip_that_lost_nothing_gives_the_values_back(new: DType) -> None:
    for old in REAL:
        if old is new:
            continue
        values = numbers(old)
        result, rounded, overflowed = cast(values, new)
        if not rounded and not overflowed:
            back, *_ = cast(result, old)
            assert np.array_equal(wide(back), wide(values), equal_nan=True), old.name


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_type_is_known_by_its_name_and_as_itself(row: DType) -> None:
    assert dtype_of(row) is dtype_of(row.name) is row
