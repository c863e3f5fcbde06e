"""Archives and tensors travel as what opens them again, and find their files from wherever the process has gone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import needs

W = np.arange(4000, dtype="float32").reshape(40, 100)


def saved(name: str, **options: Any) -> Callable[[], Any]:
    def save() -> str:
        tg.save(name, {"w": W}, **options)
        return name

    return save


def in_store() -> str:
    tg.store.Store.create("store").commit("main", {"w": W, "ragged": [[1], [2, 3]]})
    return "store://store#main"


def in_shards() -> str:
    tg.split(tg.open(tg.dumps({"w": W, "b": W + 1}, format="bintensors")), "shards", shard_nbytes=1)
    return "shards"


def distributed(place: str) -> Callable[[], Any]:
    def save() -> str:
        torch = needs("torch")
        import torch.distributed.checkpoint as dcp

        from tensorglot.bridges.dcp import Writer

        if place.startswith("store://"):
            tg.store.Store.create("store")
        writer = dcp.FileSystemWriter(place) if place == "theirs" else Writer(place)
        dcp.save({"w": torch.from_numpy(W)}, storage_writer=writer, no_dist=True)
        return place

    return save


SOURCES: dict[str, Callable[[], Any]] = {
    "BinTensors": saved("w.bt"),
    "zTensor": saved("w.zt"),
    "zTensor, compressed": saved("w.zt", compression="zstd"),
    "NumPy, compressed": saved("w.npz", compression="deflate"),
    "shards": in_shards,
    "list": lambda: [saved("w.zt")()],
    "commit": in_store,
    "theirs, distributed": distributed("theirs"),
    "ours, distributed": distributed("ours"),
    "commit, distributed": distributed("store://store#main"),
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", SOURCES)
def test_it_opens_the_same_file_elsewhere(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with tg.open(SOURCES[kind]()) as archive:
        pickles = [pickle.dumps(archive), pickle.dumps(archive["w"])]
        assert max(map(len, pickles)) < 1500 < W.nbytes
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert (archive["w"].numpy() == W).all()  # files that are opened when they are read, too
        with pickle.loads(pickles[0]) as again:
            assert (again["w"].numpy() == W).all()
        assert (pickle.loads(pickles[1])[5:7, ::3] == W[5:7, ::3]).all()


def test_a_nested_tensor_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tg.open(in_store()) as archive:
        assert pickle.loads(pickle.dumps(archive["ragged"])).tolist() == [[1], [2, 3]]


def test_a_store_and_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = tg.store.Store.create("store")
    data = pickle.dumps((store, store.get(store.put(W))))
    monkeypatch.chdir("/")
    again, tensor = pickle.loads(data)
    assert again.refs() == {}
    assert (tensor.numpy() == W).all()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_rank_file_that_was_replaced_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tg.open(distributed("ours")()) as archive:
        archive["w"].numpy()
        data = pickle.dumps(archive["w"])
    (file,) = (tmp_path / "ours").glob("*.safetensors")
    tg.save(file, {**tg.load(file), "more": np.ones(1)})
    with pytest.raises(tg.InputError) as caught:
        pickle.loads(data).numpy()
    assert caught.value.rule == "source.changed"
