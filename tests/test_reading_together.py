"""Small tensors far apart in a file are read in few reads, and come out as if each were read by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
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


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


class TestMapped:
    """A mapped file is loaded as views of it: the same values as are read, and no copy."""

    def test_views_are_where_the_file_has_them(self, far_apart: tuple[Path, dict[str, Any]]) -> None:
        path, tensors = far_apart
        loaded = tg.load(path, backend="mmap")
        assert list(loaded) == list(tg.load(path))
        assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())
        assert not any(array.flags.writeable for array in loaded.values())
        with tg.open(path) as archive:
            starts = {address(loaded[name]) - (archive[name].offset or 0) for name in loaded if loaded[name].size}
        assert len(starts) == 1
        some = tg.load(path, backend="mmap", names=["t299", "t007", "t100"])
        assert list(some) == ["t299", "t007", "t100"]
        assert all(np.array_equal(some[name], tensors[name]) for name in some)

    def test_checksums_are_compared(self, far_apart: tuple[Path, dict[str, Any]]) -> None:
        path, tensors = far_apart
        name = next(name for name, array in tensors.items() if array.size)
        data = bytearray(path.read_bytes())
        data[tg.open(path)[name].offset or 0] ^= 1
        path.write_bytes(data)
        for threads in (1, 4):
            with pytest.raises(tg.IntegrityError) as caught:
                tg.load(path, backend="mmap", threads=threads)
            assert caught.value.tensor == name
        assert tg.load(path, backend="mmap", verify="never")[name][0] == tensors[name][0] ^ 1

    def test_shapes_shards_and_unaligned_elements(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(6)
        shapes = [(), (0,), (3,), (3,), (3,), (2, 3), (2, 0, 3), (7, 5), (7, 5)]
        tensors = {f"t{i}": rng.standard_normal(shapes[i % len(shapes)]).astype("f4") for i in range(40)}
        odd = {"a": np.arange(3, dtype=np.uint8), "b": np.arange(5, dtype=np.float64), "c": np.array([True, False])}
        tg.save(tmp_path / "m.safetensors", tensors, durable=False)
        tg.split(tmp_path / "m.safetensors", tmp_path / "shards", shard_nbytes=300)
        for source, backend in product(("m.safetensors", "shards"), ("mmap", "pread")):
            loaded = tg.load(tmp_path / source, backend=backend)
            assert loaded.keys() == tensors.keys()
            for name, array in tensors.items():
                assert (loaded[name].shape, loaded[name].tobytes()) == (array.shape, array.tobytes())
        header = b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F64","shape":[5],"data_offsets":[3,43]},"c":{"dtype":"BOOL","shape":[2],"data_offsets":[43,45]}}'  # noqa: E501
        data = len(header).to_bytes(8, "little") + header + b"".join(array.tobytes() for array in odd.values())
        (tmp_path / "odd.safetensors").write_bytes(data)
        loaded = tg.load(tmp_path / "odd.safetensors", backend="mmap")
        assert {name: array.tolist() for name, array in loaded.items()} == {n: a.tolist() for n, a in odd.items()}
        numbers = {f"x{i:02}": np.float64(i) for i in range(20)}
        spans = {name: [8 * i + 1, 8 * i + 9] for i, name in enumerate(numbers)}
        rows = {name: {"dtype": "F64", "shape": [], "data_offsets": span} for name, span in spans.items()}
        header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, **rows}).encode()
        far = len(header).to_bytes(8, "little") + header + b"\7" + b"".join(n.tobytes() for n in numbers.values())
        (tmp_path / "far.safetensors").write_bytes(far)
        loaded = tg.load(tmp_path / "far.safetensors", backend="pread")
        assert all(array.flags.aligned for array in loaded.values())
        assert {name: array.item() for name, array in loaded.items()} == {"a": 7, **numbers}
        (tmp_path / "odd.safetensors").write_bytes(data[:-1] + b"\x02")
        with pytest.raises(tg.FormatError) as caught:
            tg.load(tmp_path / "odd.safetensors", backend="mmap")
        assert (caught.value.rule, caught.value.tensor) == ("values.bool", "c")


@pytest.mark.parametrize("count", [5, 100])
def test_what_is_read_at_once_is_bounded(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors with long gaps between them are read one by one: they do not need memory for all of the file."""
    small = {f"s{i:03}": np.full(4, i, np.uint8) for i in range(count)}
    large = {f"s{i:03}x": np.zeros(1 << 16, np.uint8) for i in range(count)}
    path = tmp_path / "far.zt"
    tg.save(path, dict(sorted({**small, **large}.items())), checksum=None, durable=False)
    reads: list[int] = []
    read_into = FileSource.read_into

    def counted(self: FileSource, offset: int, out: memoryview) -> None:
        reads.append(len(out))
        read_into(self, offset, out)

    with tg.open(path):
        monkeypatch.setattr(FileSource, "read_into", counted)
    found = tg.load(path, names=list(small))
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in small.items()
    }
    assert max(reads, default=0) < 1 << 16


class Unlisted(dict[int, Any]):
    """Sources by row, of which there may be a million: asking for some rows must not go through all."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all sources were listed")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_the_files_of_some_rows_are_found_without_going_through_all(tmp_path: Path) -> None:
    for name in "ab":
        tg.save(tmp_path / f"{name}.bt", {f"{name}{i}": np.arange(i + 1) for i in range(3)})
    with tg.open([tmp_path / "a.bt", tmp_path / "b.bt"]) as archive:
        sources = archive.index.sources
        several = archive.with_index(replace(archive.index, sources=Unlisted(sources)))
        found = several.by_source(np.array([5, 0, 4, 1]))
        assert [(source, rows.tolist()) for source, rows in found] == [(sources[5], [0, 2]), (sources[0], [1, 3])]
