"""All ways of reading give the same values; what the caller may choose; sharing, closing, pickling."""

from __future__ import annotations

import datetime
import io
import json
import mmap
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from numpy.typing import NDArray

import tensorglot as tg
from bounds import allocated_nbytes
from descriptors import open_below
from gallery import NAMES, same, tensors
from tensorglot.errors import Hint


class Pipe(io.RawIOBase):
    """A stream that cannot seek."""

    def __init__(self, data: bytes) -> None:
        self.data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        piece = self.data.read(min(len(out), 1000))
        out[: len(piece)] = piece
        return len(piece)


def read(data: bytes, path: Path) -> dict[str, dict[str, NDArray[Any]]]:
    """The same file by every way that there is to read it."""
    path.write_bytes(data)
    format = "bintensors@1"

    def each(archive: tg.Archive, how: Callable[[tg.Tensor], NDArray[Any]]) -> dict[str, NDArray[Any]]:
        with archive:
            return {name: np.array(how(tensor)) for name, tensor in archive.items()}

    def rows(tensor: tg.Tensor) -> NDArray[Any]:
        whole = np.empty(tensor.shape, tensor.dtype)
        if not tensor.shape:
            whole[...] = tensor[()]
        for part in np.array_split(np.arange(tensor.shape[0]), 3) if tensor.shape else ():
            if part.size:
                rows = slice(int(part[0]), int(part[-1]) + 1)
                whole[rows] = tensor[rows]
        return whole

    def into(tensor: tg.Tensor) -> NDArray[Any]:
        return tensor.numpy(np.empty(tensor.shape, tensor.dtype, order="F"))

    results = {
        "loads": tg.loads(data, format=format),
        "loads of a view": tg.loads(memoryview(data), format=format),
        "load": tg.load(path, format=format),
        "load by mmap": tg.load(path, format=format, backend="mmap"),
        "load a stream": tg.load(io.BytesIO(data), format=format),
        "load a pipe": tg.load(cast("Any", Pipe(data)), format=format),
        "one thread": tg.load(path, format=format, threads=1),
        "three threads": tg.load(path, format=format, threads=3),
    }
    with path.open("rb") as file:
        results["load a file"] = tg.load(file, format=format)
    for backend in ("pread", "mmap"):
        for name, how in {"rows": rows, "into": into, "numpy": tg.Tensor.numpy, "asarray": np.asarray}.items():
            archive = tg.open(path, format=format, backend=cast("Any", backend))
            results[f"{name} by {backend}"] = each(archive, how)
    return results


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors(4))
def test_all_ways_to_read_give_the_same_values(folder: Path, values: dict[str, NDArray[Any]]) -> None:
    results = read(tg.dumps(values, format="bintensors@1"), folder / "x.bt")
    assert {how for how, arrays in results.items() if not same(arrays, values)} == set()


@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_many_compressed_tensors(backend: Any, tmp_path: Path) -> None:
    tensors = {f"w{i:02}": np.full((300, i), i, np.float32) for i in range(20)}
    tg.save(tmp_path / "x.zt", tensors, compression="zstd", durable=False)
    loaded = tg.load(tmp_path / "x.zt", backend=backend)
    assert {name: array.tolist() for name, array in loaded.items()} == {n: a.tolist() for n, a in tensors.items()}


def test_large_and_small_tensors_by_every_way_to_read(folder: Path) -> None:
    """Memory of their own, shared slabs, several reads for one tensor, runs of equal shapes, misaligned values."""
    values: dict[str, NDArray[Any]] = {"large": np.arange(2_500_000, dtype=np.float32)}
    values |= {f"run{i}": np.full((16, 16), i, np.float32) for i in range(3000)}
    values |= {f"mixed{i}": np.full((i % 5, 3), i, np.int16) for i in range(50)}
    values |= {f"full{i}": np.full((1,) * 63 + (2,), i, np.uint8) for i in range(3)}
    values |= {"flag": np.ones(3, np.bool_), "flags": np.zeros((5, 5), np.bool_)}
    results = read(tg.dumps(values, format="bintensors@1"), folder / "x.bt")
    assert {how for how, arrays in results.items() if not same(arrays, values)} == set()


def test_the_index_is_let_go_of_before_there_are_all_arrays(folder: Path) -> None:
    """An array of four elements, its name and its entry take 220 bytes in CPython; an index of them as much."""
    count, path = 20_000, folder / "many.bt"
    tg.save(path, {f"layer.{i}.bias": np.full(4, i, np.float32) for i in range(count)}, durable=False)
    assert len(tg.load(path)) == count
    assert allocated_nbytes(lambda: tg.load(path)) < 300 * count


def test_names_choose_and_are_checked(folder: Path) -> None:
    values = {name: np.full(3, i, np.int32) for i, name in enumerate(NAMES[:8])}
    tg.save(folder / "x.bt", values)
    for wanted in ([], ["w"], ["é", "", "w"], iter(["w", "w"]), tuple(values)):
        wanted = list(wanted)
        loaded = tg.load(folder / "x.bt", names=wanted)
        assert same(loaded, {name: values[name] for name in wanted})
        assert list(loaded) == list(dict.fromkeys(wanted))
    with pytest.raises(tg.TensorNotFound) as caught:
        tg.load(folder / "x.bt", names=["w", "a.b/d"])
    assert caught.value.tensor == "a.b/d"
    assert "a.b/c" in str(caught.value)


def test_out_is_filled_and_returned(folder: Path) -> None:
    values = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4, dtype=np.int16), "c": np.array([True, False])}
    tg.save(folder / "x.bt", values)
    for backend in ("pread", "mmap"):
        out = {"a": np.empty((2, 3), order="F"), "c": np.empty(4, np.bool_)[::2], "b": np.empty(4, np.int16)}
        loaded = tg.load(folder / "x.bt", out=out, backend=cast("Any", backend), threads=2)
        assert all(loaded[name] is out[name] for name in values)
        assert same(loaded, values)
        loaded = tg.load(folder / "x.bt", names=["a", "b"], out={"b": out["b"]})
        assert loaded["b"] is out["b"]
        assert same(loaded, {"a": values["a"], "b": values["b"]})


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("out", "rule"),
    [
        (np.empty(5), "out.shape"),
        (np.empty((4, 1)), "out.shape"),
        (np.empty(4, np.float32), "out.shape"),
        (np.empty(4, ">f8"), "out.shape"),
        (_frozen(np.empty(4)), "out.writable"),
        ([0.0] * 4, "out.array"),
        (np.ma.zeros(4), "out.array"),
        (np.ma.array(np.zeros(4), mask=[True, False, False, False]), "out.array"),
    ],
    ids=["longer", "another shape", "another type", "another byte order", "read-only", "a list", "masked", "a mask"],
)
@pytest.mark.parametrize("backend", ["pread", "mmap"])
def test_out_that_does_not_fit_is_refused(folder: Path, out: Any, rule: str, backend: Any) -> None:
    tg.save(folder / "x.bt", {"x": np.arange(4.0)})
    for call in (
        lambda: tg.open(folder / "x.bt", backend=backend)["x"].numpy(out),
        lambda: tg.load(folder / "x.bt", backend=backend, out={"x": out}),
    ):
        with pytest.raises(tg.InputError) as caught:
            call()
        assert (caught.value.rule, caught.value.tensor) == (rule, "x")


FILES: dict[str, dict[str, Any]] = {
    "x.bt": {},
    "x.npz": {"compression": "deflate"},
    "x.zt": {"compression": "zstd"},
    "x.dynd": {},
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("file", FILES)
def test_out_may_be_a_subclass_of_arrays(folder: Path, file: str) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tg.save(folder / file, {"x": values}, **FILES[file])
    with tg.store.Store.create(folder / "store") as store:
        store.commit("main", {"x": values})
    for source in (folder / file, f"store://{folder / 'store'}#main"):
        for out in (
            np.asmatrix(np.zeros((3, 4), np.float32)),
            np.asmatrix(np.zeros((4, 3), np.float32)).T,
            np.memmap(folder / "mapped", np.float32, "w+", shape=(3, 4)),
        ):
            assert tg.load(source, out={"x": out})["x"] is out
            assert np.array_equal(np.asarray(out), values)
            out[...] = 0
            with tg.open(source) as archive:
                assert archive["x"].numpy(out=out) is out
            assert np.array_equal(np.asarray(out), values)


_BASE = np.zeros(40, np.float32)
_SQUARE = np.zeros((8, 5), np.float32)
OVERLAPS: dict[str, tuple[tuple[NDArray[Any], ...], bool]] = {
    "one array twice": ((_BASE[:5], _BASE[:5]), True),
    "one element in common": ((_BASE[:5], _BASE[4:9]), True),
    "neighbours": ((_BASE[:5], _BASE[5:10], _BASE[10:15]), False),
    "one inside another's steps": ((_BASE[::8], _BASE[1:6]), False),
    "an element of another's steps": ((_BASE[::8], _BASE[4:9]), True),
    "interleaved": ((_BASE[0:10:2], _BASE[1:11:2]), False),
    "backwards": ((_BASE[4::-1], _BASE[5:10]), False),
    "backwards over the first": ((_BASE[5:0:-1], _BASE[5:10]), True),
    "not the neighbour but the one after": ((_BASE[0:40:8], _BASE[1:6], _BASE[32:37]), True),
    "columns": (tuple(np.zeros((5, 8), np.float32).T[i] for i in range(3)), False),
    "a column and a row": ((_SQUARE[:5, 0], _SQUARE[0]), True),
    "a transposed square": ((_SQUARE.T,), False),
    "every second row and column": ((_SQUARE[::2, ::2],), False),
    "elements of its own in a large extent": ((np.lib.stride_tricks.as_strided(_BASE, (3, 3), (8, 16)),), True),
    "elements of its own": ((np.lib.stride_tricks.as_strided(_BASE, (5,), (0,)),), True),
}


@pytest.mark.parametrize("case", OVERLAPS)
@pytest.mark.parametrize("format", ["bintensors", "ztensor@2", "npz"])
def test_outputs_that_share_memory_are_refused(case: str, format: str) -> None:
    """Threads would write to it at the same time, and what comes out would be a mixture."""
    arrays, refused = OVERLAPS[case]
    values = {f"t{i}": np.full(array.shape, i + 1, np.float32) for i, array in enumerate(arrays)}
    data = tg.dumps(values, format=format)
    out = dict(zip(values, arrays, strict=True))
    if refused:
        with pytest.raises(tg.InputError) as caught:
            tg.loads(data, out=out)
        assert caught.value.rule == "out.overlap"
        assert caught.value.tensor in values
    else:
        tg.loads(data, out=out)
        assert all((out[name] == value).all() for name, value in values.items())


@pytest.mark.parametrize("wrong", ["model.bt", Path("model.bt"), io.BytesIO(b"")])
def test_loads_takes_bytes(wrong: Any) -> None:
    with pytest.raises(tg.InputError, match="loads takes bytes, not"):
        tg.loads(wrong)


@pytest.mark.parametrize("names", ["w", [1], [b"w"], [["w"]], [None]])
def test_names_are_several_texts(names: Any) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.loads(tg.dumps({"w": np.ones(1)}, format="bintensors"), names=names)
    assert caught.value.rule == "load.names"


@pytest.mark.parametrize("name", [1, None, b"w", ["w"], {}])
def test_an_archive_has_texts_for_names(name: Any) -> None:
    with tg.open(tg.dumps({"w": np.ones(1)}, format="bintensors")) as archive:
        assert name not in archive
        assert archive.get(name) is None
        with pytest.raises(tg.TensorNotFound):
            archive[name]


def test_outputs_without_elements_share_nothing() -> None:
    data = tg.dumps({"a": np.zeros((0, 3)), "b": np.zeros((0, 3))}, format="bintensors")
    empty = np.zeros((0, 3))
    assert tg.loads(data, out={"a": empty, "b": empty})["b"] is empty


def test_out_for_a_tensor_that_is_not_read_is_refused(folder: Path) -> None:
    tg.save(folder / "x.bt", {"x": np.arange(4.0), "y": np.arange(4.0)})
    for options in ({"out": {"z": np.empty(4)}}, {"out": {"y": np.empty(4)}, "names": ["x"]}):
        with pytest.raises(tg.TensorNotFound):
            tg.load(folder / "x.bt", **cast("Any", options))


def test_mmap_shares_the_files_memory_and_arrays_outlive_the_archive(folder: Path) -> None:
    path = folder / "x.bt"
    tg.save(path, {"x": np.arange(100_000, dtype=np.float32), "y": np.ones(3, np.uint8)})
    with tg.open(path, backend="mmap") as archive:
        whole, part = archive["x"].numpy(), archive["x"][10:20, None]
        assert np.shares_memory(whole, part)
        assert np.shares_memory(whole, archive["x"].numpy())
        assert not whole.flags.owndata
        assert not whole.flags.writeable
        with path.open("r+b") as file:  # the file's own memory: a change in place is seen
            file.seek(archive["x"].offset or 0)
            file.write(np.float32(7).tobytes())
        assert whole[0] == 7
    assert whole[99_999] == 99_999
    assert part.shape == (10, 1)
    with tg.open(path) as archive:
        one, two = archive["x"].numpy(), archive["x"].numpy()
        assert not np.shares_memory(one, two)
        assert one.flags.writeable


def test_shared_bytes_are_not_copied_and_others_are() -> None:
    data = bytearray(tg.dumps({"x": np.arange(10.0)}, format="bintensors"))
    shared, copied = tg.open(data, backend="mmap")["x"].numpy(), tg.open(data)["x"].numpy()
    data[-8:] = np.float64(42).tobytes()
    assert shared[-1] == 42
    assert copied[-1] == 9


def test_reading_a_closed_archive_is_an_error(folder: Path) -> None:
    tg.save(folder / "x.bt", {"x": np.arange(10.0)})
    archive = tg.open(folder / "x.bt")
    tensor = archive["x"]
    archive.close()
    archive.close()
    assert list(archive) == ["x"]
    for use in (tensor.numpy, lambda: tensor[0], lambda: archive["x"].numpy()):
        with pytest.raises(tg.InputError) as caught:
            use()
        assert caught.value.rule == "archive.closed"


def test_no_descriptor_is_left_open(folder: Path) -> None:
    tg.save(folder / "x.bt", {"x": np.arange(10.0)})
    (folder / "bad.bt").write_bytes(b"bad")

    for _ in range(20):
        for backend in ("pread", "mmap"):
            tg.load(folder / "x.bt", backend=cast("Any", backend))
            with pytest.raises(tg.FormatError, match=r"rule bintensors\.header\.length"):
                tg.open(folder / "bad.bt", backend=cast("Any", backend))
    assert open_below(folder) == []


def test_an_archive_travels_as_its_name(folder: Path) -> None:
    path = folder / "x.bt"
    tg.save(path, {"x": np.arange(1_000_000.0)}, metadata={"a": "b"})
    data = path.read_bytes()
    for source in (path, str(path), os.fspath(path), data, bytearray(data), [data], [path]):
        for options in ({}, {"backend": "mmap"}, {"strict": True, "limits": tg.Limits(rank=3)}):
            with tg.open(source, **cast("Any", options)) as archive:
                pickled = pickle.dumps(archive)
                assert len(pickled) < (len(data) if source in (data, [data]) else 0) + 2000
            with pickle.loads(pickled) as again:
                assert again.metadata == {"a": "b"}
                assert again["x"][999_999] == 999_999
    with path.open("rb") as file:
        for stream in (file, io.BytesIO(data), Pipe(data)):
            with pytest.raises(tg.InputError) as caught:
                pickle.dumps(tg.open(cast("Any", stream)))
            assert caught.value.rule == "archive.pickle"
    with pytest.raises(tg.InputError, match=r"rule archive\.pickle"):
        pickle.dumps(tg.open(memoryview(data)))


def test_errors_travel_with_all_that_they_say() -> None:
    for kind in (tg.FormatError, tg.LimitError, tg.TensorNotFound, tg.InputError, tg.OutOfRange, tg.AmbiguousFormat):
        error = kind("words", rule="a.rule", offset=7, tensor="a\nb", hint=Hint("pass a=1", "pass --a 1"))
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (again.message, again.rule, again.offset, again.tensor) == ("words", "a.rule", 7, "a\nb")
        assert str(again) == str(error) == "words; pass a=1 (tensor 'a\\nb', byte 7, rule a.rule)"
        assert again.describe(command_line=True) == "words; pass --a 1 (tensor 'a\\nb', byte 7, rule a.rule)"
        assert str(again) == str(error)
        assert "a\\nb" in str(error)


def test_many_threads_read_one_archive(folder: Path) -> None:
    values = {f"t{i}": np.full(10_000, i, np.int64) for i in range(20)}
    tg.save(folder / "x.bt", values)
    wrong: list[str] = []
    for archive in (tg.open(folder / "x.bt"), tg.open(io.BytesIO((folder / "x.bt").read_bytes()))):

        def work(start: int, archive: tg.Archive = archive) -> None:
            for i in range(200):
                name = f"t{(start + i) % 20}"
                if (archive[name][i : i + 9] != (start + i) % 20).any():
                    wrong.append(name)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        archive.close()
    assert wrong == []


def test_loads_takes_what_load_takes() -> None:
    data = tg.dumps({"a": np.arange(6.0), "b": np.ones(3)}, format="bintensors")
    out = np.empty(6)
    for threads in (None, 1, 3):
        loaded = tg.loads(data, names=["a"], out={"a": out}, threads=threads)
        assert list(loaded) == ["a"]
        assert loaded["a"] is out
        assert out.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_an_invalid_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.loads(tg.dumps({}, format="bintensors"), threads=threads)
    assert caught.value.rule == "load.threads"


def _others() -> dict[str, Any]:
    """What is no NumPy array, by name."""
    return {
        "ragged": tg.dynd.array([[1, 2], [], [3]], "3 * var * int64"),
        "texts": tg.dynd.array(["a", "bc"], "2 * string"),
        "sparse": tg.Tensor.of_parts(
            "sparse",
            "zt.sparse_csr/1",
            (2, 3),
            {"values": np.ones(2), "indices": np.array([0, 2], np.uint32), "indptr": np.array([0, 1, 2], np.uint32)},
        ),
    }


@pytest.mark.parametrize("backend", ["pread", "mmap"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_tensors_that_are_not_arrays_are_loaded_as_tensors_that_outlive_the_file(
    tmp_path: Path, backend: Any, compression: str | None
) -> None:
    others = _others()
    tg.save(tmp_path / "a.zt", {"w": np.arange(6.0), **others, "v": np.ones((2, 2))}, compression=compression)
    with tg.open(tmp_path / "a.zt") as archive:
        cids = {name: tensor.cid() for name, tensor in archive.items()}
    loaded = tg.load(tmp_path / "a.zt", backend=backend)
    (tmp_path / "a.zt").unlink()
    assert list(loaded) == list(cids)
    assert isinstance(loaded["w"], np.ndarray)
    for name in others:
        assert isinstance(loaded[name], tg.Tensor), name
        assert loaded[name].cid() == cids[name]
        assert loaded[name].tolist() == others[name].tolist()
    assert tg.loads(tg.dumps(loaded, format="ztensor@2"))["ragged"].tolist() == [[1, 2], [], [3]]


def test_records_are_arrays_still(tmp_path: Path) -> None:
    points = np.array([(1, 2.0), (3, 4.0)], [("x", "<i4"), ("y", "<f8")])
    tg.save(tmp_path / "a.zt", {"points": tg.dynd.array(points)})
    assert tg.load(tmp_path / "a.zt")["points"].tolist() == points.tolist()


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_library_that_cannot_represent_a_tensor_names_it_and_the_way_out(framework: Any) -> None:
    pytest.importorskip(framework)
    data = tg.dumps({"w": np.ones(3, np.float32), **_others()}, format="ztensor")
    with pytest.raises(tg.UnsupportedError, match="names=") as caught:
        tg.loads(data, framework=framework)
    assert caught.value.tensor in _others()
    assert list(tg.loads(data, framework=framework, names=["w"])) == ["w"]


def test_as_awkward_arrays() -> None:
    ak = pytest.importorskip("awkward")
    data = tg.dumps({"w": np.arange(6.0).reshape(2, 3), **_others()}, format="ztensor")
    loaded = tg.loads(data, framework="awkward")
    assert all(isinstance(value, ak.Array) for value in loaded.values())
    assert loaded["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["ragged"].tolist() == [[1, 2], [], [3]]
    assert loaded["texts"].tolist() == ["a", "bc"]
    assert loaded["sparse"].tolist() == [[1, 0, 0], [0, 0, 1]]
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.loads(tg.dumps({"w": np.ones(2, "bfloat16")}, format="ztensor"), framework="awkward")
    assert caught.value.tensor == "w"


@pytest.mark.parametrize(
    "value",
    [
        np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")]),
        np.array(["2020-01-01", "NaT"], "M8[ns]"),
        np.array([1, 2], "m8[us]"),
        [datetime.date(2020, 1, 1)],
        np.ma.array([1, 2], mask=[0, 1]),
        np.ma.array([[1.5, 2], [3, 4]], mask=[[0, 1], [0, 0]]),
    ],
    ids=str,
)
def test_load_makes_the_awkward_arrays_of_the_tensors(value: object) -> None:
    """Also those of types that NumPy has, but not as elements of a dense tensor."""
    pytest.importorskip("awkward")
    data = tg.dumps({"x": value}, format="ztensor")
    loaded, tensor = tg.loads(data, framework="awkward")["x"], tg.open(data)["x"].awkward()
    assert (str(loaded.type), loaded.tolist()) == (str(tensor.type), tensor.tolist())


def test_arrays_in_out_whose_elements_overlap_are_refused() -> None:
    """The stride of an axis of length 1 is never used, and may be anything."""
    data = tg.dumps({"a": np.arange(6, dtype=np.float32).reshape(1, 6)}, format="bintensors")
    memory = np.zeros(6, np.float32)
    as_strided = np.lib.stride_tricks.as_strided
    loaded = tg.load(data, out={"a": as_strided(memory, (1, 6), (0, 4))})
    assert loaded["a"].tolist() == [memory.tolist()] == [list(range(6))]
    for fill in (lambda out: tg.load(data, out={"a": out}), tg.open(data)["a"].numpy):
        with pytest.raises(tg.InputError) as caught:
            fill(as_strided(memory, (1, 6), (24, 0)))
        assert caught.value.rule == "out.overlap"
    assert memory.tolist() == list(range(6))
    empty = tg.dynd.array(np.zeros((0, 3)))
    assert empty.numpy(as_strided(np.zeros(1), (0, 3), (0, 0))).size == 0


@pytest.mark.parametrize(("count", "huge"), [(4, 10 << 20), (17, 8 << 20)])
def test_memory_at_the_ends_of_huge_pages_is_bounded(
    count: int, huge: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of 9 MiB may each end in a huge page, a MiB too large, if that is not much in total."""
    advised: list[int] = []

    class Recorded(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            advised.append(length)

    size = 9 << 20
    entries = {
        f"w{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(count)
    }
    header = json.dumps(entries).encode()
    header = header.ljust(-(-len(header) // 8) * 8)
    with (tmp_path / "w.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(file.tell() + count * size)  # a hole
    monkeypatch.setattr(mmap, "mmap", Recorded)
    assert len(tg.load(tmp_path / "w.safetensors")) == count
    assert advised == [huge] * count
