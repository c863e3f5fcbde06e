"""Runs of bytes of a file: many by one system call, each straight to its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from tensorglot.io.local import FileSource
from tensorglot.model import slicing
from tensorglot.model.tensor import Part

DATA = np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8).tobytes()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "data"
    path.write_bytes(DATA)
    return path


class Calls:
    """Stands for `os.preadv`: counts the calls, and gives at most `most` bytes."""

    def __init__(self, most: int | None = None) -> None:
        self.count = 0
        self._most = most
        self._preadv = os.preadv

    def __call__(self, fd: int, buffers: Any, offset: int) -> int:
        self.count += 1
        if self._most is None:
            return self._preadv(fd, buffers, offset)
        return self._preadv(fd, [memoryview(buffers[0])[: self._most]], offset)


def read(path: Path, runs: list[tuple[int, int]]) -> bytes:
    out = bytearray(sum(nbytes for _, nbytes in runs))
    offsets = np.cumsum([0, *(nbytes for _, nbytes in runs)]).tolist()[:-1]
    FileSource(path).read_runs([begin for begin, _ in runs], [nbytes for _, nbytes in runs], offsets, memoryview(out))
    return bytes(out)


def bytes_of(runs: list[tuple[int, int]]) -> bytes:
    return b"".join(DATA[begin : begin + nbytes] for begin, nbytes in runs)


RUNS: dict[str, tuple[list[tuple[int, int]], int]] = {
    "none": ([], 0),
    "one": ([(5, 70)], 1),
    "near": ([(i * 100, 60) for i in range(500)], 1),
    "more than one call takes": ([(i * 100, 60) for i in range(2000)], 4),
    "far": ([(i << 17, 60) for i in range(20)], 20),
    "some of each": ([(0, 10), (10, 10), (24_000, 5), (90_000, 1), (90_001, 0), (90_007, 3)], 2),
    "backwards": ([(500, 10), (100, 10), (90, 30)], 3),
    "again": ([(100, 10), (100, 10)], 2),
}


@pytest.mark.parametrize("case", RUNS)
def test_near_runs_are_one_call(case: str, path: Path) -> None:
    runs, calls = RUNS[case]
    with patch.object(os, "preadv", Calls()) as counted:
        assert read(path, runs) == bytes_of(runs)
    assert counted.count == calls


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 40_000)), max_size=40))
def test_any_runs(path: Path, steps: list[tuple[int, int]]) -> None:
    runs, at = [], 0
    for gap, nbytes in steps:
        runs.append((at + gap, nbytes))
        at = (at + gap + nbytes) % (len(DATA) - 100_000)
    assert read(path, runs) == bytes_of(runs)


def test_a_call_that_reads_less(path: Path) -> None:
    runs, _ = RUNS["near"]
    with patch.object(os, "preadv", Calls(most=7)):
        assert read(path, runs) == bytes_of(runs)


def test_a_file_that_ends_within_a_run(tmp_path: Path) -> None:
    """Or before it: the error is at the run that is not there."""
    (tmp_path / "data").write_bytes(DATA[:1000])
    for runs, offset in (([(0, 10), (500, 10), (990, 20)], 1000), ([(0, 10), (1200, 10)], 1200)):
        with pytest.raises(tg.TruncatedError) as caught:
            read(tmp_path / "data", runs)
        assert (caught.value.rule, caught.value.offset) == ("source.size", offset)


def places(shape: tuple[int, ...], kind: str) -> Any:
    """Arrays of zeros of a shape whose elements lie differently."""
    if kind == "as they are":
        return np.zeros(shape, np.float32)
    if kind == "with gaps":
        return np.zeros([size + 3 for size in shape], np.float32)[tuple(slice(2, 2 + size) for size in shape)]
    if kind == "transposed":
        return np.zeros(shape[::-1], np.float32).T
    return np.zeros(shape, np.float32)[::-1]


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    kind=st.sampled_from(["as they are", "with gaps", "transposed", "reversed"]),
    least=st.sampled_from([1, 12, 100, 1 << 40]),
    at_once=st.sampled_from([1, 200, 1 << 24]),
)
def test_a_selection_into_any_array(
    data: st.DataObject, kind: str, least: int, at_once: int, tmp_path_factory: Any
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    index = [
        slice(start, data.draw(st.integers(start + 1, size)), data.draw(st.integers(1, 3)))
        for start, size in zip(starts, shape, strict=True)
    ]
    path = tmp_path_factory.mktemp("selection") / "x.safetensors"
    tg.save(path, {"x": array}, durable=False)
    expected = array[tuple(index)]
    out = places(expected.shape, kind)
    with (
        tg.open(path) as archive,
        patch.object(slicing, "IN_PLACE_NBYTES", least),
        patch.object(slicing, "AT_ONCE_NBYTES", at_once),
    ):
        archive["x"].parts["data"].select_into(index, out, "x")
    assert (out == expected).all()
    base = out if out.base is None else out.base
    assert np.count_nonzero(base) == np.count_nonzero(expected), "nothing else is written"


@pytest.mark.parametrize("kind", ["as they are", "with gaps"])
def test_columns_pass_through_no_other_memory(kind: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((300, 2000), np.float32)
    tg.save(tmp_path / "x.safetensors", {"x": array})
    out = places((300, 1000), kind)
    with tg.open(tmp_path / "x.safetensors") as archive, patch.object(Part, "select", side_effect=AssertionError):
        archive["x"].parts["data"].select_into([slice(0, 300), slice(700, 1700)], out, "x")
    assert (out == array[:, 700:1700]).all()


def test_a_bool_of_a_run_is_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tg.save(path, {"x": np.zeros((10, 4000), np.bool_)})
    data = bytearray(path.read_bytes())
    data[-4000 * 3 + 2500] = 2
    path.write_bytes(data)
    with tg.open(path) as archive:
        part = archive["x"].parts["data"]
        part.select_into([slice(0, 10), slice(0, 2000)], np.zeros((10, 2000), np.bool_), "x")
        with pytest.raises(tg.FormatError) as caught:
            part.select_into([slice(0, 10), slice(2000, 4000)], np.zeros((10, 2000), np.bool_), "x")
    assert caught.value.rule == "values.bool"
