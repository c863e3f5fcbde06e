"""Small tensors far apart in a file are read in few reads, and come out as if each were read by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.io.local import FileSource
from tensorglot.kernels.gather import gather
from tensorglot.operations import load
from ztensor_builder import entry, file01


@pytest.fixture
def far_apart(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Small tensors, some of them empty, 4096 bytes from one to the next."""
    rng = np.random.default_rng(3)
    tensors = {f"t{i:03}": rng.integers(0, 256, rng.integers(0, 40), np.uint8) for i in range(300)}
    tg.save(tmp_path / "far.zt", tensors, format="ztensor@2", checksum="sha256", durable=False)
    return tmp_path / "far.zt", tensors


def test_small_tensors_far_apart_are_read_together(
    far_apart: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = far_apart
    reads: list[int] = []
    plain = FileSource.read_into

    def counted(self: FileSource, offset: int, out: memoryview) -> None:
        reads.append(len(out))
        plain(self, offset, out)

    monkeypatch.setattr(FileSource, "read_into", counted)
    loaded = tg.load(path)
    assert len(reads) < 20
    assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())
    for array in list(loaded.values())[::2]:
        array[...] = 0
    assert all(np.array_equal(loaded[name], tensors[name]) for name in list(loaded)[1::2])


def test_some_of_them_in_arrays_of_the_caller(far_apart: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = far_apart
    rng = np.random.default_rng(4)
    for _ in range(30):
        names = rng.choice(list(tensors), rng.integers(0, 200), replace=False).tolist()
        out = {name: np.zeros_like(tensors[name]) for name in names if rng.random() < 0.5}
        loaded = tg.load(path, names=names, out=out)
        assert loaded.keys() == set(names)
        assert all(np.array_equal(loaded[name], tensors[name]) for name in names)
        assert all(loaded[name] is array for name, array in out.items())


@pytest.mark.parametrize("kept", [0.001, 0.3, 0.7, 0.9])
def test_a_file_cut_short_names_the_first_tensor_that_is_not_there(
    far_apart: tuple[Path, dict[str, Any]], kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = far_apart
    size = int(path.stat().st_size * kept)
    with tg.open(path) as archive:
        missing = {name for name, one in archive.items() if one.nbytes and one.offset + one.nbytes > size}
        first = min(missing, key=lambda name: archive[name].offset)
    plain = load.load_rows

    def cut(*given: Any) -> Any:
        os.truncate(path, size)
        return plain(*given)

    monkeypatch.setattr(load, "load_rows", cut)
    with pytest.raises(tg.TruncatedError) as caught:
        tg.load(path, threads=1)
    assert caught.value.tensor == first


def test_tied_tensors_are_loaded_as_separate_arrays(tmp_path: Path) -> None:
    rows = [entry(f"t{i}", offset=1024 * (1 + i // 2)) for i in range(40)]
    blobs = b"".join(bytes(range(i, i + 4)).ljust(1024, b"\0") for i in range(20))
    (tmp_path / "tied.zt").write_bytes(file01(rows, bytes(1024 - 64) + blobs))
    loaded = tg.load(tmp_path / "tied.zt")
    assert all(loaded[f"t{i}"].tolist() == list(range(i // 2, i // 2 + 4)) for i in range(40))
    loaded["t0"][:] = 99
    assert loaded["t1"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("begins", "sizes", "offsets", "done"),
    [
        ([0, 6, 6], [2, 2, 2], [4, 0, 2], True),
        ([8, 0], [0, 8], [8, 0], True),
        ([], [], [], True),
        ([-1], [2], [0], False),
        ([7], [2], [0], False),
        ([0], [2], [7], False),
        ([0], [2], [-1], False),
        ([0], [9], [0], False),
        ([0], [-1], [0], False),
        ([(1 << 63) - 1], [2], [0], False),
        ([0], [2], [(1 << 63) - 1], False),
        ([0, 1], [2], [0], False),
        ([0, 7], [2, 2], [0, 0], False),
    ],
)
def test_gather(begins: list[int], sizes: list[int], offsets: list[int], done: bool) -> None:
    data, out = bytes(range(8)), bytearray(8)
    columns = [np.array(column, np.int64) for column in (begins, sizes, offsets)]
    assert gather(data, columns[0], columns[1], out, columns[2]) is done
    expected = bytearray(8)
    for begin, nbytes, offset in zip(begins, sizes, offsets, strict=True) if done else ():
        expected[offset : offset + nbytes] = data[begin : begin + nbytes]
    assert out == expected
