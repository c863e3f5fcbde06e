"""The server is killed in the middle of a read, a save, a push: a clear error, nothing half-visible, then it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
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
