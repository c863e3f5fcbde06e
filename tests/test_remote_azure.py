"""Containers of a real Azure server: read, sliced, written, listed, verified; a store with conditional puts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from azurite import KEY
from gallery import same
from tensorglot.store import Store

pytestmark = pytest.mark.remote

RANDOM = np.random.default_rng(6)
TENSORS: dict[str, Any] = {
    "embed": RANDOM.standard_normal((3000, 1024)).astype(np.float32),
    "bias": np.arange(1000),
    "empty": np.zeros((0, 4), np.float16),
}


@pytest.fixture
def base(request: pytest.FixtureRequest) -> str:
    safe = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"az://tests/{safe}-{RANDOM.integers(1 << 40)}"


@pytest.mark.parametrize("suffix", [".bt", ".zt", ".safetensors", ".npz"])
def test_objects(suffix: str, base: str, azure: dict[str, Any]) -> None:
    url = f"{base}/model{suffix}"
    tg.save(url, TENSORS, storage_options=azure)
    with tg.open(url, storage_options=azure) as archive:
        assert (archive["embed"][30:40, ::7] == TENSORS["embed"][30:40, ::7]).all()
    assert same(tg.load(url, storage_options=azure), TENSORS)
    assert tg.verify(url, deep=True, storage_options=azure).ok
    tg.convert(url, f"{base}/copy.zt", storage_options=azure, on_loss="drop")
    assert tg.diff(url, f"{base}/copy.zt", storage_options=azure).same


def test_folders_are_listed(base: str, azure: dict[str, Any]) -> None:
    tg.save(f"{base}/model.bt", TENSORS, storage_options=azure)
    written = tg.split(f"{base}/model.bt", f"{base}/shards", shard_nbytes=4_000_000, storage_options=azure)
    assert len(written) > 2
    for place in (f"{base}/shards", f"{base}/shards/"):
        assert same(tg.load(place, storage_options=azure), TENSORS)
    assert tg.verify(f"{base}/shards/", storage_options=azure).ok


def test_an_object_that_is_replaced(base: str, azure: dict[str, Any]) -> None:
    tg.save(f"{base}/model.bt", TENSORS, storage_options=azure)
    with tg.open(f"{base}/model.bt", storage_options=azure) as archive:
        tg.save(f"{base}/model.bt", {"embed": np.zeros((3000, 1024), np.float32)}, storage_options=azure)
        with pytest.raises(tg.InputError, match="changed"):
            archive["embed"].numpy()


def test_errors(base: str, azure: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError):
        tg.open(f"{base}/nothing.bt", storage_options=azure)
    wrong = {**azure, "account_key": "d3Jvbmc=", "max_retries": 0}
    with pytest.raises(PermissionError) as caught:
        tg.open(f"{base}/nothing.bt", storage_options=wrong)
    assert KEY not in str(caught.value)


def test_a_save_that_fails_leaves_the_old_object(base: str, azure: dict[str, Any]) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("enough")

    tg.save(f"{base}/model.bt", {"w": np.ones(3)}, storage_options=azure)
    with pytest.raises(RuntimeError, match="enough"):
        tg.save(f"{base}/model.bt", TENSORS, progress=fail, storage_options=azure)
    assert list(tg.load(f"{base}/model.bt", storage_options=azure)) == ["w"]


def test_a_store(base: str, azure: dict[str, Any]) -> None:
    store = Store.create(base, azure)
    first = store.commit("main", TENSORS, message="one")
    store.commit("main", {**TENSORS, "bias": np.zeros(3)}, message="two")
    store.tag("v1", first.cid)
    with pytest.raises(tg.InputError, match="exists"):
        store.tag("v1", "main")
    store.delete("v1")
    store.tag("v1", "main")
    assert same(tg.load(f"store://{base}#{first.cid}", storage_options=azure), TENSORS)
    assert store.collect(grace=0).packs == 0
    assert store.check(data=True).ok


def test_many_writers_of_one_ref(base: str, azure: dict[str, Any]) -> None:
    Store.create(base, azure)

    def write(number: int) -> list[str]:
        store = Store(base, azure)
        return [store.commit("main", {"w": np.full(9, 10 * number + i)}).cid for i in range(3)]

    with ThreadPoolExecutor(4) as pool:
        acknowledged = [cid for cids in pool.map(write, range(4)) for cid in cids]
    assert sorted(commit.cid for commit in Store(base, azure).log("main")) == sorted(acknowledged)
