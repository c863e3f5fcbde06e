"""Verbs on executors: the same results as without, on threads, on processes and on Dask, also when a worker dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from descriptors import open_below
from peers import needs


@pytest.fixture(scope="module", params=["threads", "processes", "dask"])
def executor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with ExitStack() as stack:
        if request.param == "threads":
            yield stack.enter_context(ThreadPoolExecutor(2))
        elif request.param == "processes":
            yield stack.enter_context(ProcessPoolExecutor(2, mp_context=get_context("spawn")))
        else:
            yield stack.enter_context(cluster(tmp_path_factory.mktemp("dask")))


def cluster(folder: Path) -> Any:
    """A client of two processes."""
    distributed = needs("distributed")
    dask = needs("dask")
    stack = ExitStack()
    stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": 3}))
    local = stack.enter_context(
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", local_directory=str(folder)
        )
    )
    client = distributed.Client(local)
    stack.push(client)
    client.close_all = stack.close
    return client


def tensors() -> dict[str, Any]:
    random = np.random.default_rng(3)
    return {
        "large": random.standard_normal((3000, 1000)).astype(np.float32),
        "larger": random.integers(-9, 9, 9_000_000, np.int32),
        "brain": random.standard_normal((100, 7)).astype(ml_dtypes.bfloat16),
        "empty": np.empty((0, 3), np.float64),
        "scalar": np.array(2.5),
        "bools": random.random(1001) > 0.5,
        **{f"small.{i}": random.standard_normal(50) for i in range(200)},
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    values = tensors()
    for name in ("a.safetensors", "a.zt", "a.bt"):
        tg.save(folder / name, values, durable=False)
    values["large"] = values["large"].copy()
    values["large"][1, 1] += 1
    del values["brain"]
    tg.save(folder / "b.zt", values, durable=False)
    return folder


SOURCES = ("a.safetensors", "a.zt", "a.bt")


class TestResults:
    """Everything is equal to what the verb returns without an executor."""

    @pytest.mark.parametrize("source", SOURCES)
    def test_verify(self, source: str, folder: Path, executor: Executor) -> None:
        assert tg.verify(folder / source, executor=executor) == tg.verify(folder / source)
        assert tg.verify(folder / source, deep=True, executor=executor) == tg.verify(folder / source, deep=True)

    @pytest.mark.parametrize("source", SOURCES)
    def test_stats_and_identify(self, source: str, folder: Path, executor: Executor) -> None:
        assert tg.stats(folder / source, executor=executor) == tg.stats(folder / source)
        assert tg.identify(folder / source, executor=executor) == tg.identify(folder / source)
        assert tg.stats(folder / source, "small.1*", executor=executor) == tg.stats(folder / source, "small.1*")

    @pytest.mark.parametrize(("one", "two"), [("a.zt", "b.zt"), ("a.bt", "a.safetensors")])
    def test_diff(self, one: str, two: str, folder: Path, executor: Executor) -> None:
        assert tg.diff(folder / one, folder / two, executor=executor) == tg.diff(folder / one, folder / two)

    @pytest.mark.parametrize("target", ["x.safetensors", "x.bt", "x.zt", "x.npz"])
    @pytest.mark.parametrize(
        "options", [{}, {"dtype": {"large": "bfloat16"}}, {"select": "small.*", "rename": {"small.*": "s.*"}}]
    )
    def test_convert(
        self, target: str, options: dict[str, Any], folder: Path, tmp_path: Path, executor: Executor
    ) -> None:
        options = {"on_loss": "drop", "durable": False} | options
        here = tg.convert(folder / "a.zt", tmp_path / target, **options)
        there = tg.convert(folder / "a.zt", tmp_path / f"there-{target}", executor=executor, **options)
        assert (tmp_path / target).read_bytes() == (tmp_path / f"there-{target}").read_bytes()
        assert there.casts == here.casts
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"there-{target}", target]

    def test_convert_with_compression(self, folder: Path, tmp_path: Path, executor: Executor) -> None:
        options: dict[str, Any] = {"compression": "zstd", "select": "small.*"}
        tg.convert(folder / "a.safetensors", tmp_path / "x.zt", **options)
        tg.convert(folder / "a.safetensors", tmp_path / "y.zt", executor=executor, **options)
        assert (tmp_path / "x.zt").read_bytes() == (tmp_path / "y.zt").read_bytes()

    def test_an_archive_and_its_tensors(self, folder: Path, executor: Executor) -> None:
        with tg.open(folder / "a.bt") as archive:
            assert tg.identify(archive, select="small.*", executor=executor) == tg.identify(archive, select="small.*")
            assert archive["scalar"].numpy() == 2.5

    def test_a_distributed_checkpoint(self, tmp_path: Path, executor: Executor) -> None:
        source = Path(__file__).parent / "corpus" / "dcp" / "ranks4"
        tg.convert(source, tmp_path / "x.safetensors", on_loss="drop", executor=executor)
        assert tg.diff(source, tmp_path / "x.safetensors", executor=executor).equal == 13
        assert tg.identify(source, executor=executor) == tg.identify(source)

    def test_ties_stay(self, tmp_path: Path, executor: Executor) -> None:
        shared = np.arange(10_000.0)
        tg.save(tmp_path / "a.zt", {"a": shared, "b": shared, "c": shared + 1})
        tg.convert(tmp_path / "a.zt", tmp_path / "b.zt", executor=executor)
        assert (tmp_path / "a.zt").read_bytes() == (tmp_path / "b.zt").read_bytes()

    @pytest.mark.parametrize("compression", [None, "zstd"])
    @pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
    def test_parts_of_tied_tensors_stay_shared(
        self, format: str, compression: str | None, tmp_path: Path, executor: Executor
    ) -> None:
        ragged, dense = tg.dynd.array([[1, 2], [], [3]]), np.arange(7.0)
        tensors = {"ragged": ragged, "again": ragged, "dense": dense, "same": dense}
        tg.save(tmp_path / "a.zt", tensors, format=format, compression=compression)
        for target in ("ztensor@0.1", "ztensor@2"):
            for dtype in (None, {"dense": "float32", "same": "float32"}):
                tg.convert(tmp_path / "a.zt", tmp_path / "b.zt", format=target, dtype=dtype)
                tg.convert(tmp_path / "a.zt", tmp_path / "c.zt", format=target, dtype=dtype, executor=executor)
                assert (tmp_path / "c.zt").read_bytes() == (tmp_path / "b.zt").read_bytes()

    @pytest.mark.parametrize("kind", ["plain", "compressed", "tied", "plain and compressed"])
    def test_large_files_of_ztensor(self, kind: str, tmp_path: Path, executor: Executor) -> None:
        """Jobs write plain rows to their places; what has other rows is one job."""
        large = np.arange(9 << 20, dtype="int16")
        tensors = {"a": large, "b": large if kind == "tied" else large[::-1]}
        tg.save(tmp_path / "a.zt", tensors, durable=False)
        compression = {"compressed": "zstd", "plain and compressed": {"b": "zstd"}}.get(kind)
        tg.convert(tmp_path / "a.zt", tmp_path / "b.zt", compression=compression, durable=False)
        tg.convert(tmp_path / "a.zt", tmp_path / "c.zt", compression=compression, durable=False, executor=executor)
        assert (tmp_path / "c.zt").read_bytes() == (tmp_path / "b.zt").read_bytes()

    def test_a_tensor_whose_parts_are_large_has_one_account(self, tmp_path: Path) -> None:
        """Each part is large enough for a job, and all are in one."""
        sparse = needs("scipy.sparse")
        numbers = np.arange(2_200_000)
        tensor = sparse.coo_array((np.ones(len(numbers)), (numbers, numbers)), (3_000_000, 3_000_000))
        tg.save(tmp_path / "a.zt", {"w": tensor}, durable=False)
        options: dict[str, Any] = {"format": "ztensor@2", "dtype": "float32", "durable": False}
        expected = tg.convert(tmp_path / "a.zt", tmp_path / "x.zt", **options)
        with ThreadPoolExecutor(2) as threads:
            found = tg.convert(tmp_path / "a.zt", tmp_path / "y.zt", executor=threads, **options)
        assert found.casts == expected.casts
        assert (tmp_path / "y.zt").read_bytes() == (tmp_path / "x.zt").read_bytes()

    def test_progress_reaches_the_end(self, folder: Path, tmp_path: Path, executor: Executor) -> None:
        for verb in (
            lambda **options: tg.convert(folder / "a.bt", tmp_path / "x.bt", executor=executor, **options),
            lambda **options: tg.verify(folder / "a.zt", executor=executor, **options),
            lambda **options: tg.stats(folder / "a.zt", executor=executor, **options),
        ):
            seen: list[tuple[int, int]] = []
            verb(progress=lambda done, total, seen=seen: seen.append((done, total)))
            assert seen[-1][0] == seen[-1][1] > 0


class TestErrors:
    @pytest.fixture
    def corrupt(self, folder: Path, tmp_path: Path) -> Path:
        data = bytearray((folder / "a.zt").read_bytes())
        with tg.open(folder / "a.zt") as archive:
            data[archive["large"].offset or 0] ^= 1
        (tmp_path / "a.zt").write_bytes(data)
        return tmp_path / "a.zt"

    def test_a_corrupt_tensor(self, corrupt: Path, executor: Executor) -> None:
        assert tg.verify(corrupt, executor=executor) == tg.verify(corrupt)
        assert tg.stats(corrupt, executor=executor) == tg.stats(corrupt)
        assert tg.identify(corrupt, executor=executor) == tg.identify(corrupt)
        before = sorted(corrupt.parent.iterdir())
        for target in ("x.bt", "x.zt"):
            with pytest.raises(tg.IntegrityError) as caught:
                tg.convert(corrupt, corrupt.parent / target, executor=executor)
            assert caught.value.tensor == "large"
        assert sorted(corrupt.parent.iterdir()) == before

    def test_an_overflow(self, folder: Path, tmp_path: Path, executor: Executor) -> None:
        with pytest.raises(tg.UnsupportedError, match="cannot hold"):
            tg.convert(folder / "a.bt", tmp_path / "x.bt", dtype={"larger": "uint8"}, executor=executor)
        assert list(tmp_path.iterdir()) == []

    def test_sources_that_cannot_be_sent(self, tmp_path: Path, executor: Executor) -> None:
        for verb in (tg.stats, tg.identify):
            with pytest.raises(tg.InputError, match="workers open the source"):
                verb({"w": np.ones(3)}, executor=executor)
        tg.convert({"w": np.ones(3)}, tmp_path / "x.bt", dtype="float16", executor=executor)
        assert tg.load(tmp_path / "x.bt")["w"].dtype == np.float16

    def test_what_is_no_executor(self, folder: Path) -> None:
        with pytest.raises(tg.InputError, match="submit"):
            tg.stats(folder / "a.bt", executor=5)  # type: ignore[arg-type]


class Dying(Executor):
    """Runs jobs in other processes; the worker of the second job is killed while it writes."""

    def __init__(self) -> None:
        self.pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
        self.count = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        self.count += 1
        if self.count == 2:
            return self.pool.submit(_die, function, *arguments)
        return self.pool.submit(function, *arguments)


def _die(function: Callable[..., Any], *arguments: Any) -> Any:
    """Writes what the job writes, and is killed before it can say so."""
    function(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


def test_jobs_leave_no_descriptor_open(folder: Path, tmp_path: Path) -> None:
    """Of the files that they read and wrote; other tests may have others open."""
    (tmp_path / "a.bt").write_bytes((folder / "a.bt").read_bytes())
    with ThreadPoolExecutor(2) as threads:
        tg.convert(tmp_path / "a.bt", tmp_path / "x.safetensors", executor=threads, durable=False)
        assert open_below(tmp_path) == []


class TestDeadWorkers:
    @pytest.mark.parametrize("target", ["x.safetensors", "x.zt"])
    def test_a_pool_breaks_and_nothing_is_left(self, target: str, folder: Path, tmp_path: Path) -> None:
        from concurrent.futures.process import BrokenProcessPool

        (tmp_path / target).write_bytes(b"before")
        executor = Dying()
        with pytest.raises(BrokenProcessPool):
            tg.convert(folder / "a.bt", tmp_path / target, executor=executor, durable=False)
        executor.pool.shutdown()
        assert executor.count > 2
        assert [path.name for path in tmp_path.iterdir()] == [target]
        assert (tmp_path / target).read_bytes() == b"before"

    def test_dask_completes(self, folder: Path, tmp_path: Path) -> None:
        """One of two workers is killed during the conversion; Dask starts another."""
        once = tmp_path / "once"
        client = cluster(tmp_path)
        try:
            killing = Killing(client, once)
            tg.convert(folder / "a.bt", tmp_path / "x.safetensors", executor=killing, durable=False)  # type: ignore[arg-type]
        finally:
            client.close_all()
        assert once.exists()
        assert (tmp_path / "x.safetensors").read_bytes() == (folder / "a.safetensors").read_bytes()
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tensorglot")]


class Killing:
    """A client whose workers are killed in their first job, once."""

    def __init__(self, client: Any, once: Path) -> None:
        self._client = client
        self._once = str(once)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Any:
        return self._client.submit(_die_once, self._once, function, *arguments)


def _die_once(once: str, function: Callable[..., Any], *arguments: Any) -> Any:
    result = function(*arguments)
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return result
    return os.kill(os.getpid(), signal.SIGKILL)


class TestDask:
    @pytest.fixture
    def dask(self) -> Any:
        needs("dask.array")
        from tensorglot.bridges import dask

        return dask

    def test_arrays(self, dask: Any, folder: Path) -> None:
        values = tensors()
        arrays = dask.open(folder / "a.zt", chunks="1MiB")
        assert set(arrays) == set(values)
        assert arrays["large"].numblocks[0] > 4
        for name in ("large", "brain", "empty", "scalar", "bools", "small.3"):
            found = arrays[name].compute(scheduler="threads")
            assert found.dtype == values[name].dtype
            assert np.array_equal(found, values[name])
        assert arrays["large"][10:20].sum().compute() == pytest.approx(values["large"][10:20].sum(), rel=1e-5)

    def test_on_a_cluster(self, dask: Any, folder: Path, tmp_path: Path) -> None:
        client = cluster(tmp_path)
        try:
            arrays = dask.open(folder / "a.bt")
            assert client.compute(arrays["larger"].sum()).result() == tensors()["larger"].sum()
            with tg.open(Path(__file__).parent / "corpus" / "dcp" / "ranks2") as archive:
                name = "model.columns to rows"
                found = client.compute(dask.open(archive, names=[name])[name]).result()
                assert found.tobytes() == archive[name].numpy().tobytes()
        finally:
            client.close_all()

    def test_refused(self, dask: Any, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(tg.TensorNotFound):
            dask.open(folder / "a.bt", names=["nothing"])
        tg.save(tmp_path / "x.zt", {"w": tg.dynd.array([[1], [2, 3]])})
        with pytest.raises(tg.UnsupportedError, match="not an array"):
            dask.open(tmp_path / "x.zt")

    def test_a_file_that_changed(self, dask: Any, tmp_path: Path) -> None:
        tg.save(tmp_path / "x.bt", {"w": np.ones(3)})
        arrays = dask.open(tmp_path / "x.bt")
        tg.save(tmp_path / "x.bt", {"w": np.zeros(4)})
        with pytest.raises(tg.InputError, match="changed"):
            arrays["w"].compute(scheduler="synchronous")
