"""The buffer protocol of Tensor: `memoryview(t)`, `np.frombuffer(t)`, `file.write(t)`; NumPy still sees the same."""

from __future__ import annotations

import gc
import io
import os
import random
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import tensorglot as tg
from arrays import HAVE_BUFFERS, ORDERS, random_array, raw
from tensorglot.kernels.buffers import Exporter
from tensorglot.model.dtypes import TABLE

pytestmark = pytest.mark.skipif(not HAVE_BUFFERS, reason="Python 3.11 needs compiled kernels for the buffer protocol")
NAMES = [row.name for row in TABLE if row.numpy is not None]
MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tg.save(tmp_path / "m.zt", {"w": MATRIX, "h": MATRIX.astype(ml_dtypes.bfloat16)})
    return tmp_path / "m.zt"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", [order for order in ORDERS if order != "big-endian"])
def test_it_is_the_buffer_of_the_array(name: str, order: str) -> None:
    array = random_array(random.Random(3), name, (3, 4), order)
    tensor = tg.dynd.array(array)
    assert raw(np.asarray(tensor)) == raw(array)
    assert np.asarray(tensor).dtype == array.dtype
    try:
        expected = memoryview(array)
    except ValueError:
        for consumer in (memoryview, np.frombuffer):
            with pytest.raises(BufferError, match=f"{name} has no buffer format: use numpy"):
                consumer(tensor)
        if array.flags.c_contiguous:
            file = io.BytesIO()
            file.write(tensor)
            assert file.getvalue() == raw(array)
        return
    found = memoryview(tensor)
    assert (found.format, found.shape, found.strides) == (expected.format, expected.shape, expected.strides)
    assert found.tobytes() == expected.tobytes()
    if not array.flags.c_contiguous:
        with pytest.raises((BufferError, ValueError)):
            np.frombuffer(tensor, array.dtype)


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_a_buffer_outlives_the_archive(path: Path, backend: Any) -> None:
    with tg.open(path, backend=backend) as archive:
        view = memoryview(archive["w"])
        flat = np.frombuffer(archive["w"], np.float32)
        assert view.readonly == (backend == "mmap")
        if backend == "mmap":
            assert np.shares_memory(np.asarray(view), archive["w"].numpy())
    del archive
    gc.collect()
    assert view.tolist() == MATRIX.tolist()
    assert flat.tolist() == MATRIX.reshape(-1).tolist()


@pytest.mark.parametrize("consumer", [memoryview, np.asarray, np.frombuffer, partial(np.frombuffer, dtype="u1")])
def test_consumers_hold_on_to_the_memory(consumer: Callable[[object], Any]) -> None:
    """Also those that keep the exporter, and not what it exported."""
    made: list[weakref.ref[NDArray[Any]]] = []

    class Fresh(Exporter):
        def _buffer(self, flags: int) -> memoryview:
            array = np.arange(6.0)
            made.append(weakref.ref(array))
            return array.data

    consumed = consumer(Fresh())
    gc.collect()
    assert made[-1]() is not None
    del consumed
    gc.collect()
    assert all(memory() is None for memory in made)


def test_consumers_of_bytes(path: Path) -> None:
    with tg.open(path) as archive:
        for name in ("w", "h"):
            file = io.BytesIO()
            file.write(archive[name])
            assert file.getvalue() == archive[name].numpy().tobytes()
        assert bytes(archive["w"]) == MATRIX.tobytes()


def test_memory_is_shared_both_ways() -> None:
    array = MATRIX.copy()
    memoryview(tg.dynd.array(array))[0, 0] = 7
    assert array[0, 0] == 7
    array.flags.writeable = False
    assert memoryview(tg.dynd.array(array)).readonly


def test_numpy_reads_a_tensor_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def preadv(fd: int, buffers: Any, offset: int, real: Any = os.preadv) -> int:
        read.append(sum(map(len, buffers)))
        return int(real(fd, buffers, offset))

    with tg.open(path) as archive:
        monkeypatch.setattr(os, "preadv", preadv)
        for use in (np.asarray, np.array, memoryview):
            read.clear()
            assert use(archive["w"]).tolist() == MATRIX.tolist()
            assert read == [MATRIX.nbytes]


@pytest.mark.parametrize("value", [[[1, 2], [3]], ["a", "b"]], ids=str)
def test_what_is_no_array_exports_none(value: Any) -> None:
    with pytest.raises(BufferError, match="NumPy has no type"):
        memoryview(tg.dynd.array(value))
    with pytest.raises(BufferError, match="exports no buffer"):
        memoryview(Exporter())


def test_errors_of_the_file_pass_through(path: Path) -> None:
    data = bytearray(path.read_bytes())
    with tg.open(path) as archive:
        offset = archive["w"].offset
    assert offset is not None
    data[offset] ^= 1
    with tg.open(bytes(data)) as archive:
        for use in (memoryview, np.asarray, bytes):
            with pytest.raises(tg.IntegrityError):
                use(archive["w"])


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_records_inside_records_are_arrays(count: int) -> None:
    array = np.zeros(count, [("a", [("x", "i4"), ("y", "i2")]), ("b", "f8")])
    assert np.asarray(tg.dynd.array(array)).dtype == array.dtype  # NumPy cannot read its own format of one such record


def test_a_tensor_without_dimensions_is_a_number() -> None:
    assert (float(tg.dynd.array(2.5)), int(tg.dynd.array(np.int8(-7))), complex(tg.dynd.array(2j))) == (2.5, -7, 2j)
    assert float(tg.dynd.array(ml_dtypes.bfloat16(1.5))) == 1.5
    assert "abc"[tg.dynd.array(np.uint8(1))] == "b"
    assert (bool(tg.dynd.array(0)), bool(tg.dynd.array(True))) == (False, True)


@pytest.mark.parametrize("value", [np.frombuffer(b"123", np.uint8), np.zeros((0, 2)), "12", b"12", [1]])
@pytest.mark.parametrize("number", [float, int, complex, lambda tensor: "abc"[tensor]])
def test_the_bytes_of_a_tensor_are_not_taken_for_the_text_of_a_number(value: Any, number: Any) -> None:
    with pytest.raises(TypeError):
        number(tg.dynd.array(value))
