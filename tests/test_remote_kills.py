"""The server is killed in the middle of what reads and writes: a clear error, nothing half-visible, then it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from counting import proxy_of
from gallery import same
from peers import needs
from seaweed import Seaweed
from tensorglot.store import Store

pytestmark = pytest.mark.remote

TENSORS = {f"w{i}": np.random.default_rng(i).integers(0, 256, 8 << 20, np.uint8) for i in range(6)}
OLD = {"w0": np.arange(3)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A server of its own, which may be killed."""
    needs("obstore")
    server = Seaweed(tmp_path_factory.mktemp("killed"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def killed_midway(server: Seaweed) -> Iterator[Callable[[int, int], None]]:
    """A progress that kills the server when a third is done."""

    def progress(done: int, total: int) -> None:
        if 3 * done > total:
            server.kill()

    yield progress
    if server.process is not None and server.process.poll() is not None:
        server.start()


def again(server: Seaweed) -> dict[str, Any]:
    server.start()
    return server.options


def test_in_the_middle_of_a_read(server: Seaweed, killed_midway: Any, tmp_path: Path) -> None:
    tg.save("s3://tests/model.bt", TENSORS, storage_options=server.options)
    with pytest.raises(tg.RemoteError) as caught:
        tg.convert("s3://tests/model.bt", tmp_path / "copy.zt", progress=killed_midway, storage_options=server.options)
    assert caught.value.path == "s3://tests/model.bt"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(tg.RemoteError):
        tg.load("s3://tests/model.bt", storage_options=server.options)
    options = again(server)
    tg.convert("s3://tests/model.bt", tmp_path / "copy.zt", storage_options=options)
    assert same(tg.load(tmp_path / "copy.zt"), TENSORS)


def test_in_the_middle_of_a_load(server: Seaweed) -> None:
    """Killed when some of its requests were answered: an error that names the object, and then all of it."""
    tg.save("s3://tests/loaded.bt", TENSORS, storage_options=server.options)
    answered: list[str] = []

    def kill_after_ten(method: str, path: str) -> bool:
        answered.append(path)
        if len(answered) == 10:
            server.kill()
        return False

    with proxy_of(server.endpoint) as proxy:
        proxy.lose = kill_after_ten
        options = {**server.options, "endpoint": proxy.endpoint}
        with pytest.raises(tg.RemoteError) as caught:
            tg.load("s3://tests/loaded.bt", storage_options=options)
    assert caught.value.path == "s3://tests/loaded.bt"
    assert len(answered) >= 10
    assert same(tg.load("s3://tests/loaded.bt", storage_options=again(server)), TENSORS)


def test_in_the_middle_of_a_save(server: Seaweed, killed_midway: Any) -> None:
    """One save replaces an object, one makes a new one."""
    tg.save("s3://tests/saved.bt", OLD, storage_options=server.options)
    urls = ("s3://tests/saved.bt", "s3://tests/new.bt")

    def save(url: str) -> str | None:
        with pytest.raises(tg.RemoteError) as caught:
            tg.save(url, TENSORS, progress=killed_midway, storage_options=server.options)
        return caught.value.path

    with ThreadPoolExecutor() as pool:
        assert tuple(pool.map(save, urls)) == urls
    options = again(server)
    assert same(tg.load("s3://tests/saved.bt", storage_options=options), OLD)
    with pytest.raises(FileNotFoundError):
        tg.open("s3://tests/new.bt", storage_options=options)
    tg.save("s3://tests/saved.bt", TENSORS, storage_options=options)
    assert same(tg.load("s3://tests/saved.bt", storage_options=options), TENSORS)


def test_in_the_middle_of_a_conversion(server: Seaweed, killed_midway: Any, tmp_path: Path) -> None:
    """To an object: by this process, and by workers."""
    tg.save(tmp_path / "model.bt", TENSORS, durable=False)
    tg.save("s3://tests/here.safetensors", OLD, storage_options=server.options)
    with pytest.raises(tg.RemoteError) as caught:
        tg.convert(
            tmp_path / "model.bt", "s3://tests/here.safetensors", progress=killed_midway, storage_options=server.options
        )
    assert caught.value.path == "s3://tests/here.safetensors"
    options = again(server)
    assert same(tg.load("s3://tests/here.safetensors", storage_options=options), OLD)
    with ThreadPoolExecutor(2) as pool:
        convert = partial(tg.convert, tmp_path / "model.bt", "s3://tests/workers.safetensors", executor=pool)
        with pytest.raises(tg.RemoteError):
            convert(progress=killed_midway, storage_options=options)
        options = again(server)
        with pytest.raises(FileNotFoundError):
            tg.open("s3://tests/workers.safetensors", storage_options=options)
        convert(storage_options=options)
    assert same(tg.load("s3://tests/workers.safetensors", storage_options=options), TENSORS)


def test_in_the_middle_of_a_commit(server: Seaweed, killed_midway: Any) -> None:
    store = Store.create("s3://tests/committed", server.options)
    store.commit("main", OLD, message="old")
    with pytest.raises(tg.RemoteError):
        store.commit("main", TENSORS, message="new", progress=killed_midway)
    options = again(server)
    remote = Store("s3://tests/committed", options)
    assert [commit.message for commit in remote.log("main")] == ["old"]
    assert remote.check(data=True).ok
    store.commit("main", TENSORS, message="new")
    assert [commit.message for commit in remote.log("main")] == ["new", "old"]
    assert same(tg.load("store://s3://tests/committed#main", storage_options=options), TENSORS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", ["s3://tests/step-1", "store://s3://tests/steps#main"])
def test_in_the_middle_of_a_distributed_save(server: Seaweed, place: str) -> None:
    """Killed when three parts have been sent; the state saved before stays."""
    torch = needs("torch")
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    from tensorglot.bridges.dcp import Reader, Writer

    sizes: list[int] = []

    def kill_after_three(nbytes: int) -> None:
        sizes.append(nbytes)
        if sum(size > 1 << 20 for size in sizes) == 3:
            server.kill()

    if place.startswith("store://"):
        Store.create("s3://tests/steps", server.options)
    with proxy_of(server.endpoint) as proxy:
        writer: Any = Writer(place, storage_options={**server.options, "endpoint": proxy.endpoint})
        dcp.save({"w0": torch.arange(3)}, storage_writer=writer, no_dist=True)
        state = {name: torch.from_numpy(array) for name, array in TENSORS.items()}
        proxy.sent = kill_after_three
        with pytest.raises(CheckpointException, match="RemoteError"):
            dcp.save(state, storage_writer=writer, no_dist=True)
        assert sum(sizes) > 20 << 20
        proxy.sent = bool
        options = again(server)
        assert same(tg.load(place, storage_options=options), OLD)
        dcp.save(state, storage_writer=writer, no_dist=True)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    reader: Any = Reader(place, storage_options=options)
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_in_the_middle_of_a_push(server: Seaweed, killed_midway: Any, tmp_path: Path) -> None:
    Store.create("s3://tests/store", server.options).commit("main", OLD, message="old")
    local = Store.create(tmp_path / "local")
    local.pull("s3://tests/store", storage_options=server.options)
    local.commit("main", TENSORS, message="new")
    with pytest.raises(tg.RemoteError):
        local.push("s3://tests/store", progress=killed_midway, storage_options=server.options)
    options = again(server)
    remote = Store("s3://tests/store", options)
    assert [commit.message for commit in remote.log("main")] == ["old"]
    assert remote.check(data=True).ok
    local.push("s3://tests/store", storage_options=options)
    assert [commit.message for commit in Store("s3://tests/store", options).log("main")] == ["new", "old"]
    assert same(tg.load("store://s3://tests/store#main", storage_options=options), TENSORS)
