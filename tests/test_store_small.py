"""Many small tensors are stored in batches: the same blocks as one at a time, from every source."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from tensorglot.store import Store


def tensors() -> dict[str, Any]:
    """Small ones of several types and shapes, and what the batches leave out: large, empty, bool and sub-byte ones."""
    rng = np.random.default_rng(1)
    kinds = (np.float32, ml_dtypes.bfloat16, np.int64, np.uint8)
    small = {f"layer.{i}.bias": rng.integers(0, 9, (1 + i % 3, 2)).astype(kinds[i % 4]) for i in range(150)}
    others = {"large": np.arange(500.0), "flag": np.array([True]), "four": np.array([1, -2], ml_dtypes.int4)}
    return {**small, "empty": np.zeros((0, 2), np.float32), "scalar": np.array(2.5), **others}


@pytest.mark.parametrize("suffix", [".bt", ".zt", ".safetensors", ".npz"])
def test_the_same_tensors_from_a_file_and_from_memory_are_no_new_bytes(suffix: str, tmp_path: Path) -> None:
    arrays = {name: array for name, array in tensors().items() if name != "four"}
    store = tg.store.Store.create(tmp_path / "run")
    first = store.commit("main", arrays)
    before = store.stats()
    tg.save(tmp_path / f"a{suffix}", arrays)
    second = store.commit("main", tmp_path / f"a{suffix}")
    assert second.tensors == first.tensors
    assert store.stats().blocks == before.blocks + 1
    assert store.stats().tensors == before.tensors


def test_each_has_its_identity_and_comes_back(tmp_path: Path) -> None:
    arrays = tensors()
    store = tg.store.Store.create(tmp_path / "run")
    store.commit("main", arrays)
    with store.checkout("main") as archive:
        for name, array in arrays.items():
            assert archive[name].cid() == tg.dynd.array(array).cid()
            assert store.get(archive[name].cid()).numpy().tobytes() == array.tobytes()
    loaded = tg.load(f"store://{tmp_path}/run#main")
    assert all(loaded[name].tobytes() == array.tobytes() for name, array in arrays.items())
    assert store.check(data=True).ok


def test_opening_makes_no_object_for_each_tensor(tmp_path: Path) -> None:
    """Beside names and digests, which the garbage collector does not follow: 100,000 tensors are opened at once."""
    count = 3000
    store = tg.store.Store.create(tmp_path / "run")
    large = np.arange(1 << 19)  # of several chunks
    store.commit("main", {"large": large} | {f"{i}": np.full(2, i, np.float32) for i in range(count)})
    store.checkout("main").close()
    gc.collect()
    before = len(gc.get_objects())
    with store.checkout("main") as archive:
        gc.collect()
        assert len(gc.get_objects()) - before < count / 4
        assert archive["7"].numpy().tolist() == [7, 7]
        assert np.array_equal(archive["large"].numpy(), large)


def test_one_that_is_no_array_does_not_change_what_the_others_are(tmp_path: Path) -> None:
    arrays = {name: array for name, array in tensors().items() if name != "four"}
    store = tg.store.Store.create(tmp_path / "run")
    store.commit("plain", arrays)
    store.commit("mixed", {**arrays, "zz": tg.dynd.array([[1], [2, 3]])})
    with store.checkout("plain") as plain, store.checkout("mixed") as mixed:
        for name in arrays:
            one, other = plain[name], mixed[name]
            assert (one.type, one.shape, one.cid()) == (other.type, other.shape, other.cid())
            assert one.numpy().tobytes() == other.numpy().tobytes()


def test_a_commit_of_many_writes_what_changed(tmp_path: Path) -> None:
    arrays = {f"block.{i}.bias": np.full(4, i, np.float32) for i in range(5000)}
    store = tg.store.Store.create(tmp_path / "run")
    store.commit("main", arrays)
    arrays["block.7.bias"] = np.ones(4, np.float32)
    store.commit("main", arrays)
    one, two = store.costs("main")
    assert (one.changed, two.changed, two.tensors) == (5000, 1, 5000)
    assert two.stored_nbytes < 20_000 < one.stored_nbytes
    newest = min((tmp_path / "run/packs").iterdir(), key=lambda path: path.stat().st_size)
    assert newest.stat().st_size < 20_000


def test_a_file_that_is_cut_short_while_it_is_committed_names_the_tensor(tmp_path: Path) -> None:
    path, store = tmp_path / "model.safetensors", Store.create(tmp_path / "store")
    tg.save(path, {f"w{i:03}": np.full(8, i) for i in range(100)})
    with tg.open(path) as archive:
        os.truncate(path, path.stat().st_size - 64 * 30)
        with pytest.raises(tg.TruncatedError) as caught:
            store.commit("main", archive)
    assert (caught.value.tensor, caught.value.path) == ("w070", str(path))
    assert store.refs() == {}
