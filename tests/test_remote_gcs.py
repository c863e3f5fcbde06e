"""gs:// against a stub of Google's XML API: what it is asked for, and that conditions are by generation."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from gallery import same
from peers import needs
from stub_gcs import stub_gcs
from tensorglot.store import Store

pytestmark = pytest.mark.remote

TENSORS: dict[str, Any] = {
    "embed": np.random.default_rng(6).standard_normal((3000, 1024)).astype(np.float32),
    "bias": np.arange(1000),
}


@pytest.fixture
def server() -> Iterator[tuple[dict[str, Any], dict[str, bytes], dict[str, Any]]]:
    needs("obstore")
    with stub_gcs() as (endpoint, objects, uploads):
        yield {"base_url": endpoint, "bearer_token": "token-of-tests", "max_retries": 0}, objects, uploads


@pytest.mark.parametrize("suffix", [".bt", ".zt", ".safetensors"])
def test_objects(suffix: str, server: Any) -> None:
    options, _, _ = server
    url = f"gs://tests/folder/model{suffix}"
    tg.save(url, TENSORS, storage_options=options)
    with tg.open(url, storage_options=options) as archive:
        assert (archive["embed"][30:40, ::7] == TENSORS["embed"][30:40, ::7]).all()
    assert same(tg.load(url, storage_options=options), TENSORS)
    assert tg.verify(url, deep=True, storage_options=options).ok
    tg.split(url, "gs://tests/shards", shard_nbytes=4_000_000, storage_options=options)
    assert same(tg.load("gs://tests/shards/", storage_options=options), TENSORS)


def test_a_save_that_fails_leaves_nothing(server: Any) -> None:
    options, objects, uploads = server

    def fail(done: int, total: int) -> None:
        if done:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        tg.save("gs://tests/model.bt", TENSORS, progress=fail, storage_options=options)
    assert objects == uploads == {}


def test_an_object_that_is_replaced(server: Any) -> None:
    options, _, _ = server
    tg.save("gs://tests/model.bt", TENSORS, storage_options=options)
    with tg.open("gs://tests/model.bt", storage_options=options) as archive:
        tg.save("gs://tests/model.bt", {"embed": np.zeros((3000, 1024), np.float32)}, storage_options=options)
        with pytest.raises(tg.InputError, match="changed"):
            archive["embed"].numpy()


def test_a_store(server: Any) -> None:
    options, objects, _ = server
    store = Store.create("gs://tests/run", options)
    first = store.commit("main", TENSORS, message="one")
    store.commit("main", {**TENSORS, "bias": np.zeros(3)}, message="two")
    store.tag("v1", first.cid)
    store.delete("v1")
    store.tag("v1", "main")
    assert same(tg.load(f"store://gs://tests/run#{first.cid}", storage_options=options), TENSORS)
    store.collect(grace=0)
    assert store.check(data=True).ok
    assert not any("/probe/" in key or "/writers/" in key or key.endswith(".lock") for key in objects)


def test_many_writers_of_one_ref(server: Any) -> None:
    options, _, _ = server
    Store.create("gs://tests/run", options)

    def write(number: int) -> list[str]:
        store = Store("gs://tests/run", options)
        return [store.commit("main", {"w": np.full(9, 10 * number + i)}).cid for i in range(3)]

    with ThreadPoolExecutor(4) as pool:
        acknowledged = [cid for cids in pool.map(write, range(4)) for cid in cids]
    log = Store("gs://tests/run", options).log("main")
    assert sorted(commit.cid for commit in log) == sorted(acknowledged)
