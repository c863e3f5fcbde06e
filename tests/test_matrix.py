"""Every format that can be written × every element type × every other format.

The value and its identity are the same after the trip, or the loss is named and
refused. New rows of the table of formats join by themselves. The tensor is called
`data`, because a .npy file has no name for it.
"""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from arrays import ORDERS, random_array, raw
from tensorglot.containers.table import named
from tensorglot.model.dtypes import TABLE, DType

WRITABLE = [f"{row.name}@{version}" for row in tg.formats() for version in row.writes]
DTYPES = [row for row in TABLE if row.numpy is not None]
SHAPES: list[tuple[int, ...]] = [(), (0,), (8,), (3, 8), (3, 0, 2), (2, 4, 5)]


def written(tensors: dict[str, Any], format: str) -> bytes | None:
    """None where the format has no place for the type, and says so."""
    try:
        return tg.dumps(tensors, format=format)
    except tg.UnsupportedError as error:
        refusal = error
    assert refusal.tensor in tensors
    return None


def converted(data: bytes, source: str, target: str) -> bytes | None:
    stream = io.BytesIO()
    try:
        tg.convert(data, stream, source_format=source, format=target)
    except tg.UnsupportedError as error:
        refusal = error
    else:
        return stream.getvalue()
    assert (refusal.rule, refusal.tensor) == ("convert.dtype", "data")
    assert not stream.getvalue()
    return None


def only(data: bytes, format: str) -> tg.Tensor:
    (tensor,) = tg.open(data, format=format).values()
    return tensor


@pytest.mark.parametrize("target", WRITABLE)
@pytest.mark.parametrize("source", WRITABLE)
def test_every_type_from_every_format_to_every_other(source: str, target: str) -> None:
    for dtype in DTYPES:
        array = random_array(random.Random(dtype.name), dtype.name, (4, 16))
        data = written({"data": array}, source)
        assert (data is not None) == holds(source, dtype), dtype
        if data is None:
            continue
        there = converted(data, source, target)
        assert (there is not None) == holds(target, dtype), dtype
        if there is None:
            continue
        before, after = only(data, source), only(there, target)
        assert (after.name, after.dtype, after.shape) == (before.name, array.dtype, array.shape)
        assert raw(after.numpy()) == raw(array), dtype
        assert after.cid() == before.cid()
        assert tg.diff({"data": before}, {"data": after}).same


def holds(format: str, dtype: DType) -> bool:
    row, version = named(format)
    assert version is not None
    return dtype.name in row.dtypes_in(version)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("format", WRITABLE)
def test_arrays_of_every_order_come_back_equal(format: str, order: str) -> None:
    held = set()
    for dtype in DTYPES:
        for shape in SHAPES:
            array = random_array(random.Random(1), dtype.name, shape, order)
            data = written({"data": array}, format)
            if data is None:
                continue
            held.add(dtype.name)
            back = only(data, format).numpy()
            assert (back.shape, raw(back)) == (array.shape, raw(array)), (dtype, shape)
            assert raw(only(data, format)[...]) == raw(array)
    assert held == {dtype.name for dtype in DTYPES if holds(format, dtype)}


@pytest.mark.parametrize("format", WRITABLE)
def test_the_same_tensors_in_two_formats_are_the_same(format: str) -> None:
    tensors = {"data": np.arange(12, dtype=np.float32).reshape(3, 4)}
    one = written(tensors, format)
    assert one is not None
    for other in WRITABLE:
        two = written(tensors, other)
        assert two is not None
        with tg.open(one, format=format) as a, tg.open(two, format=other) as b:
            assert tg.diff(a, b).same, other


@pytest.mark.parametrize("format", WRITABLE)
def test_metadata_is_carried_or_named_as_lost(format: str) -> None:
    row, _ = named(format)
    source = tg.dumps({"data": np.zeros((2, 3), np.float32)}, format="bintensors", metadata={"k": "v"})
    stream = io.BytesIO()
    report = tg.convert(source, stream, format=format, on_loss="drop")
    with tg.open(stream.getvalue(), format=format) as archive:
        if row.metadata == "none":
            assert [loss.kind for loss in report.losses] == ["metadata"]
        else:
            assert archive.metadata == {"k": "v"}
