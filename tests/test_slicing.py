"""`tensor[index]` is NumPy's `array[index]`, and reads no more than it must.

Random shapes and basic indices, on every kind of source. A source that records its
reads shows what was read: every read begins and ends with a byte that the selection
needs, no hole inside it is wider than the gap that is cheaper to read over, and no
byte is read twice.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices
from numpy.typing import NDArray

import tensorglot as tg
from tensorglot.model import advanced_indexing, slicing
from tensorglot.model.archive import Archive
from tensorglot.model.payload import Source
from tensorglot.model.tensor import Tensor

DTYPES = [np.dtype(kind) for kind in ("u1", "<i2", "<f4", "<f8", "?", ml_dtypes.bfloat16)]
SHAPES = st.one_of(st.just(()), array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=7))
OPENED: dict[str, Callable[[bytes, Path], Archive]] = {
    "bytes": lambda data, path: tg.open(data),
    "shared bytes": lambda data, path: tg.open(data, backend="mmap"),
    "pread": lambda data, path: tg.open(path, backend="pread"),
    "mmap": lambda data, path: tg.open(path, backend="mmap"),
    "file object": lambda data, path: tg.open(io.BytesIO(data)),
}


def an_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    values = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return (values % 2 if dtype == np.bool_ else values % 251).astype(dtype)


def assert_same(ours: Any, numpys: Any) -> None:
    assert type(ours) is type(numpys)
    assert ours.dtype == numpys.dtype
    assert ours.shape == numpys.shape
    assert ours.tobytes() == numpys.tobytes()


def a_slice() -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-9, 9) | st.sampled_from([-(1 << 70), 1 << 70])
    step = st.none() | st.integers(-4, 4) | st.sampled_from([-(1 << 70), 1 << 70])
    return st.builds(slice, bound, bound, step)


@pytest.mark.parametrize("step", [1 << 62, -(1 << 62), 1 << 70, -(1 << 70)])
def test_a_step_beyond_every_axis_gives_one_element(step: int) -> None:
    array = np.arange(24.0).reshape(4, 6)
    tensor = tg.open(tg.dumps({"w": array}, format="safetensors"))["w"]
    for index in (slice(None, None, step), (..., slice(None, None, step)), (slice(None, None, step), [1, 0])):
        assert_same(tensor[index], array[index])


ITEM = st.one_of(
    st.integers(-8, 8),
    st.integers(-3, 3).map(np.int16),
    a_slice(),
    st.sampled_from([None, Ellipsis, 1.5, "x", slice("a", None), slice(1.0), 1 << 70]),
)
ANY_INDEX = st.one_of(ITEM, st.lists(ITEM, max_size=6).map(tuple))
"""Right ones and wrong ones."""


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), dtype=st.sampled_from(DTYPES), shape=SHAPES)
def test_a_basic_index_gives_what_numpy_gives_on_every_source(
    data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = an_array(dtype, shape)
    index = data.draw(basic_indices(shape, allow_newaxis=True, max_dims=8))
    encoded = tg.dumps({"before": np.zeros(3, np.uint8), "x": array}, format="bintensors@1")
    path = tmp_path / "x.bt"
    path.write_bytes(encoded)
    expected = array[index]
    for opened in OPENED.values():
        with opened(encoded, path) as archive:
            assert_same(archive["x"][index], expected)
    swapped = np.array(array, dtype.newbyteorder(">"), order="F")
    for value in (array, swapped):
        assert_same(tg.dynd.array(value)[index], expected)


@settings(max_examples=800, deadline=None)
@given(index=ANY_INDEX, shape=SHAPES)
def test_an_index_that_numpy_refuses_is_refused(index: Any, shape: tuple[int, ...]) -> None:
    array = an_array(np.dtype("<i2"), shape)
    tensor = tg.open(tg.dumps({"x": array}, format="bintensors"))["x"]
    try:
        expected = array[index]
    except IndexError:
        with pytest.raises(IndexError) as caught:
            tensor[index]
        assert isinstance(caught.value, tg.TensorglotError)
        assert caught.value.tensor == "x"
    except (TypeError, ValueError):
        with pytest.raises(tg.TensorglotError) as refused:
            tensor[index]
        assert (refused.value.rule or "").startswith("index.")
    else:
        assert_same(tensor[index], expected)


@st.composite
def indices_with_an_array(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """A basic index of which one item is a list, an array or a mask; at any place, beside an Ellipsis and new axes."""
    axes = list(range(draw(st.integers(1, len(shape)))))
    place = draw(st.sampled_from(axes))
    items: list[Any] = []
    for axis in axes:
        size = shape[axis]
        if axis == place:
            mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda bits: np.array(bits, np.bool_))
            several = st.lists(st.integers(-size, size - 1), max_size=9) if size else st.just([])
            matrix = several.map(lambda found: np.array(found[: len(found) // 2 * 2], np.int16).reshape(-1, 2))
            items.append(draw(mask | several | several.map(lambda found: np.array(found, np.int64)) | matrix))
        else:
            some = a_slice().filter(lambda found: found.step != 0)
            items.append(draw(st.integers(-size, size - 1) | some if size else some))
    if draw(st.booleans()):
        whole = len(axes) == len(shape)
        items.insert(draw(st.integers(0, len(items))) if whole else len(items), Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(), dtype=st.sampled_from(DTYPES), shape=array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=6)
)
def test_a_list_or_mask_along_one_axis_gives_what_numpy_gives(
    data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = an_array(dtype, shape)
    index = data.draw(indices_with_an_array(shape))
    encoded = tg.dumps({"before": np.zeros(3, np.uint8), "x": array}, format="bintensors@1")
    path = tmp_path / "x.bt"
    path.write_bytes(encoded)
    expected = array[index]
    for opened in OPENED.values():
        with (
            opened(encoded, path) as archive,
            patch.object(advanced_indexing, "GAP_NBYTES", data.draw(st.integers(0, 20))),
        ):
            assert_same(archive["x"][index], expected)
    for value in (array, np.array(array, dtype.newbyteorder(">"), order="F")):
        assert_same(tg.dynd.array(value)[index], expected)
    compressed = tg.dumps({"x": array}, format="ztensor@2", compression="zstd")
    assert_same(tg.open(compressed)["x"][index], expected)


WRONG_ARRAYS: dict[str, tuple[Any, str]] = {
    "a bool": (True, "index.basic"),
    "a bool of NumPy": (np.True_, "index.basic"),
    "two lists": (([0], [1]), "index.arrays"),
    "a mask of two axes": (np.zeros((2, 2), bool), "index.mask"),
    "a mask of another size": ([True], "index.mask"),
    "floats": ([0.0], "index.basic"),
    "no floats, in an array": (np.array([]), "index.basic"),
    "text": (["a"], "index.basic"),
    "a ragged list": ([[0], [0, 1]], "index.basic"),
    "beyond the end": ([0, 2], "index.range"),
    "before the start": ((slice(None), [-3]), "index.range"),
    "more than any integer": ([1 << 70], "index.basic"),
    "more axes than there are": ((0, 0, [0]), "index.rank"),
}


@pytest.mark.parametrize("what", WRONG_ARRAYS)
def test_other_arrays_are_refused_by_rule(what: str) -> None:
    index, rule = WRONG_ARRAYS[what]
    for tensor in (
        tg.open(tg.dumps({"x": np.zeros((2, 2))}, format="bintensors"))["x"],
        tg.dynd.array(np.zeros((2, 2))),
    ):
        with pytest.raises(IndexError) as caught:
            tensor[index]
        assert isinstance(caught.value, tg.InputError)
        assert caught.value.rule == rule


def test_too_many_indices_are_counted() -> None:
    with pytest.raises(IndexError, match=r"too many indices: 2 for 1 dimension \("):
        tg.dynd.array(np.zeros(3))[0, 0]


class Recorded:
    """A source that remembers what was read of it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.size = source.size
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, nbytes: int) -> memoryview:
        self.reads.append((offset, offset + nbytes))
        return self.source.read(offset, nbytes)

    def read_into(self, offset: int, out: memoryview) -> None:
        self.reads.append((offset, offset + len(out)))
        self.source.read_into(offset, out)

    def read_runs(self, begins: list[int], sizes: list[int], offsets: list[int], out: memoryview) -> None:
        for begin, nbytes, offset in zip(begins, sizes, offsets, strict=True):
            self.read_into(begin, out[offset : offset + nbytes])

    def read_bytes(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.read(offset, nbytes))

    def view(self, offset: int, nbytes: int) -> memoryview | None:
        return None


def recorded(array: NDArray[Any]) -> tuple[Tensor, Recorded]:
    archive = tg.open(tg.dumps({"x": array}, format="bintensors"))
    assert archive.source is not None
    source = Recorded(archive.source)
    archive.source = source
    return archive["x"], source


def needed_bytes(array: NDArray[Any], index: Any) -> NDArray[np.bool_]:
    """Which bytes of the C-ordered array the selection is made of."""
    elements = np.arange(array.size).reshape(array.shape)[index]
    needed = np.zeros((array.size, array.itemsize), np.bool_)
    needed[np.asarray(elements).reshape(-1)] = True
    return needed.reshape(-1)


def check_reads(reads: list[tuple[int, int]], needed: NDArray[np.bool_], gap: int) -> None:
    """Reads are relative to the tensor."""
    times = np.zeros(needed.size + 1, np.int64)
    for begin, end in reads:
        assert 0 <= begin < end <= needed.size
        assert needed[begin]
        assert needed[end - 1]
        holes = np.diff(np.flatnonzero(needed[begin:end])) - 1
        assert holes.max(initial=0) <= gap
        times[begin] += 1
        times[end] -= 1
    times = np.cumsum(times)[:-1]
    assert times.max(initial=0) <= 1, "a byte was read twice"
    assert (times[needed] == 1).all(), "a byte that is needed was not read"


@settings(max_examples=600, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
    shape=array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9),
    gap=st.sampled_from([0, 1, 3, 16, 60, 4096]),
    scratch=st.sampled_from([0, 64, 1 << 20]),
)
def test_only_needed_bytes_are_read(
    data: st.DataObject, dtype: np.dtype[Any], shape: tuple[int, ...], gap: int, scratch: int
) -> None:
    array = an_array(dtype, shape)
    index = data.draw(basic_indices(shape, allow_newaxis=True))
    tensor, source = recorded(array)
    with patch.object(slicing, "GAP_NBYTES", gap), patch.object(slicing, "SCRATCH_NBYTES", scratch):
        assert_same(tensor[index], array[index])
    assert tensor.offset is not None
    reads = [(begin - tensor.offset, end - tensor.offset) for begin, end in source.reads]
    check_reads(reads, needed_bytes(array, index), gap)


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(10, 20), (10, 20)),
        (slice(-3, None), (97, 100)),
        (slice(19, 9, -1), (10, 20)),
        (7, (7, 8)),
        (-1, (99, 100)),
        (..., (0, 100)),
        ((slice(4, 6), ...), (4, 6)),
        ((None, slice(50, 51)), (50, 51)),
        (slice(20, 10), None),
    ],
    ids=repr,
)
def test_rows_are_one_read_of_exactly_their_bytes(index: Any, rows: tuple[int, int] | None) -> None:
    array = an_array(np.dtype("<f4"), (100, 3000))
    tensor, source = recorded(array)
    with patch.object(slicing, "SCRATCH_NBYTES", 0):  # no bound on what has no gaps
        assert_same(tensor[index], array[index])
    assert tensor.offset is not None
    expected = [] if rows is None else [(tensor.offset + rows[0] * 12000, tensor.offset + rows[1] * 12000)]
    assert source.reads == expected


@pytest.mark.parametrize(
    ("index", "count", "nbytes"),
    [
        ((slice(None), slice(0, 10)), 100, 100 * 40),  # columns: a read for each row
        ((slice(None), 5), 100, 100 * 4),
        ((slice(None, None, 50), slice(0, 3000)), 2, 2 * 12000),
        ((5, slice(None, None, 2)), 1, 12000 - 4),  # every second element: one read over small gaps
        ((slice(0, 2), slice(0, 2000)), 1, 12000 + 8000),  # a gap of 4000 bytes is read over
        ((slice(0, 2), slice(0, 1900)), 2, 2 * 7600),  # one of 4400 is not
        ((slice(0, 2), slice(10, 10)), 0, 0),
        ((3, 4), 1, 4),
        ([0, 99], 2, 2 * 12000),
        ([5, 3, 3, 4], 1, 3 * 12000),  # neighbours in one read, a repeated one once
        ((slice(0, 2), [0, 2999]), 4, 4 * 4),
        ((7, [10, 11, 500]), 1, 491 * 4),
        ([], 0, 0),
    ],
    ids=repr,
)
def test_how_much_is_read(index: Any, count: int, nbytes: int) -> None:
    array = an_array(np.dtype("<f4"), (100, 3000))
    tensor, source = recorded(array)
    assert_same(tensor[index], array[index])
    assert len(source.reads) == count
    assert sum(end - begin for begin, end in source.reads) == nbytes


@pytest.mark.parametrize("index", [slice(1, 3), (slice(None), slice(None, None, -2)), ..., (0, slice(0, 0))], ids=repr)
def test_a_slice_is_writable_and_owns_its_memory(index: Any) -> None:
    array = an_array(np.dtype("<f4"), (4, 6))
    with tg.open(tg.dumps({"x": array}, format="bintensors")) as archive:
        archive["x"][index][...] = 99
        assert_same(archive["x"].numpy(), array)


def test_as_many_dimensions_as_numpy_has() -> None:
    shape = (1,) * 62 + (4, 3)
    array = an_array(np.dtype("<i2"), shape)
    tensor, _ = recorded(array)
    for index in (..., 0, (..., slice(None, None, 2)), (..., slice(None, None, -2), 1), (0,) * 62):
        assert_same(tensor[index], array[index])
    with pytest.raises(IndexError):
        tensor[None]


def test_len_and_iteration_are_those_of_the_first_axis() -> None:
    array = an_array(np.dtype("<i2"), (3, 4))
    tensor, source = recorded(array)
    assert len(tensor) == 3
    for ours, numpys in zip(tensor, array, strict=True):
        assert_same(ours, numpys)
    assert len(source.reads) == 3
    with pytest.raises(TypeError, match="without dimensions"):
        len(tg.open(tg.dumps({"x": np.float32(1)}, format="bintensors"))["x"])
