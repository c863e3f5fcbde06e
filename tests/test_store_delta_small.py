"""Deltas of many small tensors: made in runs, and the same as if they were compared one by one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from bounds import seconds
from fuzzing import delta as mutants
from tensorglot.model.archive import Archive

Arrays = dict[str, Any]


def small(count: int = 300) -> Arrays:
    """Of all that are plain: sizes of nothing to a few hundred bytes, of several types."""
    rng = np.random.default_rng(3)
    kinds = (np.float32, np.int8, np.float64, np.uint16)
    shapes = ((4,), (), (0, 3), (7, 5), (1, 2, 3))
    return {
        f"block.{i}": np.asarray(100 * rng.standard_normal(shapes[i % 5])).astype(kinds[i % 4]) for i in range(count)
    }


def successor(old: Arrays) -> Arrays:
    """Every fourth of them changed, and one for each other way of differing."""
    new = {name: array.copy() for name, array in old.items()}
    for name in list(new)[::4]:
        new[name] = (new[name] + 1).astype(new[name].dtype)
    new["block.100"] = np.arange(9, dtype=np.int16)  # another type and shape
    new["block.103"] = new["block.103"].reshape(-1, 1)  # the same bytes
    new["block.105"] = np.ones(3, np.bool_)  # one that has to be looked at
    new["block.106"] = np.ones(40_000, np.float32)  # not small any more
    del new["block.200"]
    return {"first": np.float32([1, 2]), **new, "last": np.zeros(4)}


def made(old: Any, new: Any) -> tuple[bytes, Any]:
    file = io.BytesIO()
    report = tg.store.delta(old, new, file)
    return file.getvalue(), report


def test_the_delta_gives_the_new_version_and_says_what_differs(tmp_path: Path) -> None:
    old = small()
    new = successor(old)
    tg.save(tmp_path / "old.zt", old)
    data, report = made(old, new)
    (tmp_path / "step.tgdelta").write_bytes(data)
    tg.store.patch(tmp_path / "step.tgdelta", tmp_path / "old.zt", tmp_path / "new.zt")
    assert tg.diff(tmp_path / "new.zt", new).same
    assert report.added == ("first", "last")
    assert report.removed == ("block.200",)
    assert report.resized == ("block.100", "block.103", "block.105", "block.106")
    differing = sum(old[name].tobytes() != new[name].tobytes() for name in old.keys() & new.keys())
    assert report.changed == differing + 1  # and block.103, whose bytes are the same


@pytest.mark.parametrize("suffix", ["zt", "bt", "safetensors", "npz"])
def test_files_and_arrays_give_the_same_delta(suffix: str, tmp_path: Path) -> None:
    old = small()
    new = successor(old)
    tg.save(tmp_path / f"old.{suffix}", old)
    tg.save(tmp_path / f"new.{suffix}", new)
    in_order = tg.load(tmp_path / f"new.{suffix}")  # a format may sort its tensors
    assert made(tmp_path / f"old.{suffix}", tmp_path / f"new.{suffix}")[0] == made(old, in_order)[0]


def test_a_store_whose_tensors_are_read_one_by_one_gives_the_same_new_version(tmp_path: Path) -> None:
    old = small()
    new = successor(old)
    store = tg.store.Store.create(tmp_path / "store")
    store.commit("main", old)
    data, report = made(f"store://{tmp_path}/store#main", new)
    assert report.changed == made(old, new)[1].changed
    tg.save(tmp_path / "old.zt", old)
    (tmp_path / "step.tgdelta").write_bytes(data)
    tg.store.patch(tmp_path / "step.tgdelta", tmp_path / "old.zt", tmp_path / "new.zt")
    assert tg.diff(tmp_path / "new.zt", new).same


def test_no_tensor_is_made_for_each_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    old = {f"block.{i}": rng.standard_normal(4) for i in range(5000)}
    new = {name: array + (i % 3) for i, (name, array) in enumerate(old.items())}
    for name, tensors in (("old", old), ("new", new)):
        tg.save(tmp_path / f"{name}.zt", tensors)
    tensors_made = []
    tensor_at = Archive.tensor_at
    monkeypatch.setattr(Archive, "tensor_at", lambda self, at: (tensors_made.append(at), tensor_at(self, at))[1])
    report = made(tmp_path / "old.zt", tmp_path / "new.zt")[1]
    assert report.changed == sum(i % 3 > 0 for i in range(5000))
    assert tensors_made == []


def test_patch_makes_no_tensor_for_each_of_many_of_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = small(5000), {name: array for name, array in small(4900).items() if name != "block.7"}
    new["block.8"] = new["block.8"] + np.ones_like(new["block.8"])
    new["added"] = np.arange(5)
    tg.save(tmp_path / "old.zt", old)
    data = made(old, new)[0]
    names_read = []
    get = Archive.__getitem__
    monkeypatch.setattr(Archive, "__getitem__", lambda self, name: (names_read.append(name), get(self, name))[1])
    tg.store.patch(data, tmp_path / "old.zt", tmp_path / "new.zt")
    monkeypatch.undo()
    assert names_read == []
    assert tg.diff(new, tmp_path / "new.zt").same


@pytest.mark.parametrize(
    "other",
    [np.zeros(4, np.float32), np.full(4, 57, np.int32), np.full((2, 2), 57, np.float32)],
    ids=["values", "element type", "shape"],
)
def test_patch_names_the_small_tensor_that_is_not_of_the_base(other: np.ndarray, tmp_path: Path) -> None:
    old = {f"block.{i}": np.full(4, i, np.float32) for i in range(100)}
    data = made(old, {name: array + 1 for name, array in old.items()})[0]
    tg.save(tmp_path / "other.zt", {**old, "block.57": other})
    with pytest.raises(tg.InputError, match="not the tensor that the delta was made from") as raised:
        tg.store.patch(data, tmp_path / "other.zt", tmp_path / "new.zt")
    assert raised.value.tensor == "block.57"
    assert not (tmp_path / "new.zt").exists()


def test_a_damaged_small_tensor_is_named(tmp_path: Path) -> None:
    old = {f"block.{i}": np.full(4, i, np.float32) for i in range(100)}
    tg.save(tmp_path / "old.zt", old)
    with tg.open(tmp_path / "old.zt") as archive:
        offset = archive["block.57"].offset
    data = bytearray((tmp_path / "old.zt").read_bytes())
    data[offset] ^= 1
    (tmp_path / "old.zt").write_bytes(data)
    with pytest.raises(tg.IntegrityError) as raised:
        tg.store.delta(tmp_path / "old.zt", old, tmp_path / "step.tgdelta")
    assert raised.value.tensor == "block.57"
    assert not (tmp_path / "step.tgdelta").exists()


def test_tied_small_tensors_are_stored_once() -> None:
    old = {f"block.{i}": np.full(40, i, np.float32) for i in range(100)}
    old["tied"] = old["block.7"]
    new = {name: np.arange(40, dtype=np.float32) * i for i, name in enumerate(old)}
    new["tied"] = new["block.7"]
    data, report = made(old, new)
    apart = made({**old, "tied": old["tied"].copy()}, {**new, "tied": new["tied"].copy()})[0]
    assert report.changed == 100
    assert len(data) < len(apart)
    tg.store.apply(data, old)
    assert all(np.array_equal(old[name], new[name]) for name in new)


def test_a_delta_of_many_names_is_applied_to_a_file_in_linear_time(tmp_path: Path) -> None:
    old = {f"block.{i}": np.int8([i % 100]) for i in range(16_000)}
    tg.save(tmp_path / "old.bt", old)
    tg.store.delta(old, {name: array + np.int8(1) for name, array in old.items()}, tmp_path / "step.tgdelta")

    def patch() -> None:
        tg.store.patch(tmp_path / "step.tgdelta", tmp_path / "old.bt", tmp_path / "new.bt", durable=False)

    assert seconds(patch, 5) < 5  # 11 s where the names were collected for each tensor


def test_progress_reaches_its_end() -> None:
    seen = []
    old = small()
    tg.store.delta(old, successor(old), io.BytesIO(), progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def lying(data: bytes, name: str) -> bytes:
    """The delta with another digest for the result of a tensor, and a right hash of its index."""
    bodies, index = mutants.split(data)
    rows = bytearray(index["rows"])
    size = len(rows) // len(index["names"])
    rows[size * (index["names"].index(name) + 1) - 1] ^= 1
    return mutants.join(bodies, {**index, "rows": bytes(rows)})


@pytest.mark.parametrize("count", [4, 40_000], ids=["small", "large"])
def test_a_delta_that_lies_about_one_of_many_changes_nothing(count: int, tmp_path: Path) -> None:
    old = {f"block.{i}": np.full(count if i > 18 else 4, i, np.float32) for i in range(20)}
    new = {name: array + 1 for name, array in old.items()}
    wrong, target = lying(made(old, new)[0], "block.19"), tmp_path / "new.zt"
    held = {name: array.copy() for name, array in old.items()}
    for attempt in (lambda: tg.store.apply(wrong, held), lambda: tg.store.patch(wrong, old, target)):
        with pytest.raises(tg.IntegrityError) as raised:
            attempt()
        assert (raised.value.rule, raised.value.tensor) == ("delta.result", "block.19")
    assert all((held[name] == old[name]).all() for name in old)
    assert not target.exists()


def test_small_arrays_of_any_memory_order_are_changed_in_place_and_patched(tmp_path: Path) -> None:
    old: Arrays = {f"block.{i}": np.arange(12.0).reshape(3, 4) + i for i in range(40)}
    new = {name: array * 2 for name, array in old.items()}
    data = made(old, new)[0]
    held = {name: np.asfortranarray(array) if i % 2 else array.copy() for i, (name, array) in enumerate(old.items())}
    tg.store.patch(data, held, tmp_path / "new.zt")
    assert tg.diff(new, tmp_path / "new.zt").same
    tg.store.apply(data, held)
    assert all((held[name] == new[name]).all() for name in new)


def test_patch_tells_its_progress_for_small_and_large_tensors(tmp_path: Path) -> None:
    old = {**small(100), "large": np.zeros(300_000, np.float32)}
    new = {name: array + np.ones_like(array) for name, array in old.items()}
    seen: list[tuple[int, int]] = []
    tg.store.patch(made(old, new)[0], old, tmp_path / "new.zt", progress=lambda *now: seen.append(now))
    total = sum(array.nbytes for array in new.values())
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)


def test_times_that_do_not_change_are_compared() -> None:
    times = np.array(["2026-01-01", "2026-01-02"], "datetime64[s]")
    data = made({"t": times, "w": np.zeros(3)}, {"t": times, "w": np.ones(3)})[0]
    held = np.zeros(3)
    with pytest.raises(tg.InputError) as raised:
        tg.store.apply(data, {"t": times + 1, "w": held})
    assert (raised.value.rule, raised.value.tensor, held.any()) == ("delta.base", "t", False)
    tg.store.apply(data, {"t": times, "w": held})
    assert held.all()
