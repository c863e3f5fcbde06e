"""A store at its edges: caches that are full, packs that are cut, races that are lost, file systems without locks."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import needs
from stores import assert_clean, flip, packs, same_tensors, step, tensors
from tensorglot.store import Store
from tensorglot.store.refs import read_ref, swap_ref

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def commits(store: Store, count: int) -> list[dict[str, Any]]:
    """Some commits, each in a pack of its own."""
    found = []
    for seed in range(count):
        found.append(tensors(seed))
        store.commit(f"branch-{seed}", found[-1])
    return found


def test_more_packs_than_files_that_stay_open(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorglot.store.backend.OPEN_FILES", 2)
    made = commits(store, 5)
    with store.checkout("branch-0") as first:
        for seed, expected in enumerate(made):
            with store.checkout(f"branch-{seed}") as archive:
                assert same_tensors(archive, expected)
        assert same_tensors(first, made[0])
    assert_clean(store)


def test_chunks_and_groups_that_no_cache_keeps_are_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorglot.store.checkout.KEPT_CHUNKS", 1)
    monkeypatch.setattr("tensorglot.store.packs.CACHE_NBYTES", 1)
    large = np.random.default_rng(1).integers(0, 255, 3 * MIB + 7, np.uint8)
    small = {str(i): np.arange(i, i + 4) for i in range(3)}
    store.commit("main", {"large": large, **small})
    store.commit("other", {name: array + 100 for name, array in small.items()})
    with store.checkout("main") as archive, store.checkout("other") as other:
        for _ in range(2):
            for begin in (0, MIB, 2 * MIB, MIB - 3):
                assert (archive["large"][begin : begin + 9] == large[begin : begin + 9]).all()
            for name, array in small.items():
                assert (archive[name].numpy() == array).all()
                assert (other[name].numpy() == array + 100).all()


def test_a_tree_of_more_nodes_than_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorglot.store.chunks.KEPT_NODES", 1)
    monkeypatch.setattr("tensorglot.store.chunks.FANOUT", 2)
    monkeypatch.setattr("tensorglot.wire.cid.FANOUT", 2)
    array = np.random.default_rng(2).integers(0, 255, 7 * MIB + 1, np.uint8)
    store.commit("main", {"x": array})
    with store.checkout("main") as archive:
        assert (archive["x"].numpy() == array).all()
        for begin in (6 * MIB, 0, 3 * MIB, 7 * MIB):
            assert (archive["x"][begin : begin + 5] == array[begin : begin + 5]).all()
    assert_clean(store)


def test_packs_are_cut(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorglot.store.session.PACK_NBYTES", MIB)
    expected = {f"t{i}": np.random.default_rng(i).standard_normal(50_000) for i in range(9)}
    store.commit("main", expected)
    assert len(packs(tmp_path / "store")) == 4, "the last one has the nodes"
    with store.checkout("main") as archive:
        assert same_tensors(archive, expected)
    assert_clean(store)


def test_groups_of_small_blocks_are_cut(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is damaged takes only the blocks of its group with it."""
    monkeypatch.setattr("tensorglot.store.session.GROUP_NBYTES", 20_000)
    expected = {f"t{i}": np.random.default_rng(i).standard_normal(1_000) for i in range(9)}
    store.commit("main", expected)
    (pack,) = packs(tmp_path / "store")
    flip(pack, 100)
    store.check(data=True)
    read = 0
    with store.checkout("main") as archive:
        for name, array in expected.items():
            with suppress(tg.TensorglotError):
                read += archive[name].numpy().tobytes() == array.tobytes()
    assert 0 < read < len(expected)


def test_a_push_is_written_in_pieces(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was pushed before it broke off is there the next time."""
    monkeypatch.setattr("tensorglot.store.transfer.FLUSH_NBYTES", 1)
    made = commits(store, 3)
    other = Store.create(tmp_path / "other")
    store.push(tmp_path / "other")
    for seed, expected in enumerate(made):
        with other.checkout(f"branch-{seed}") as archive:
            assert same_tensors(archive, expected)
    assert_clean(other)


def test_progress_of_everything_that_reports_it(store: Store, tmp_path: Path) -> None:
    old = tensors(1)
    new = step(old, 2)
    calls: dict[str, list[tuple[int, int]]] = {}

    def noted(verb: str) -> Any:
        return lambda done, total: calls.setdefault(verb, []).append((done, total))

    store.commit("main", old, progress=noted("commit"))
    store.check(data=True, progress=noted("check"))
    tg.store.delta(old, new, tmp_path / "d", progress=noted("delta"))
    tg.save(tmp_path / "old.bt", old)
    tg.store.patch(tmp_path / "d", tmp_path / "old.bt", tmp_path / "new.bt", progress=noted("patch"))
    Store.create(tmp_path / "other")
    store.push(tmp_path / "other", progress=noted("push"))
    assert calls.keys() == {"commit", "check", "delta", "patch", "push"}
    for verb, made in calls.items():
        assert [done for done, _ in made] == sorted(done for done, _ in made), verb
        assert len({total for _, total in made}) == 1, verb
        assert made[-1][0] == made[-1][1], verb


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(number: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    store.commit("main", tensors(1))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(tg.InputError, match="does not support locks") as caught:
        store.collect()
    assert caught.value.rule == "store.lock"


def test_another_error_of_a_lock_is_not_hidden(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="input/output error"):
        store.collect()


def test_an_announcement_that_a_collector_removed_is_made_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its creation and its lock."""
    lock, removed = fcntl.flock, []

    def remove_once(fd: int, operation: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.parent.name == "writers" and not removed:
            removed.append(path)
            path.unlink()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_once)
    store.commit("main", tensors(1))
    assert len(removed) == 1
    assert_clean(store)


def test_a_tensor_is_staged_or_given(store: Store) -> None:
    staged = store.stage({"w": np.ones(3)})
    with pytest.raises(tg.InputError, match="both staged and given") as caught:
        store.commit("main", {"w": np.ones(3)}, staged=staged)
    assert (caught.value.rule, caught.value.tensor) == ("store.staged", "w")
    assert store.refs() == {}


def test_a_writer_that_always_comes_too_late_gives_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.commit("main", {"w": np.ones(3)})
    monkeypatch.setattr("tensorglot.store.store.swap_ref", lambda *_: False)
    monkeypatch.setattr("tensorglot.store.store.delete_ref", lambda *_: False)
    for call in (lambda: store.commit("main", {"w": np.zeros(3)}), lambda: store.delete("main")):
        with pytest.raises(tg.InputError, match="changed by another writer") as caught:
            call()
        assert caught.value.rule == "store.ref.changed"
    assert store.refs() == {"main": made.cid}


def test_a_push_that_another_writer_precedes_looks_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped: list[bool] = []

    def too_late_once(*arguments: Any) -> bool:
        swapped.append(bool(swapped) and swap_ref(*arguments))
        return swapped[-1]

    other = Store.create(tmp_path / "other")
    made = store.commit("main", {"w": np.ones(3)})
    monkeypatch.setattr("tensorglot.store.transfer.swap_ref", too_late_once)
    store.push(tmp_path / "other")
    assert swapped == [False, True]
    assert other.refs() == {"main": made.cid}


def test_a_ref_that_is_deleted_while_they_are_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = store.commit("main", {"w": np.ones(3)})
    store.commit("gone", {"w": np.zeros(3)})
    monkeypatch.setattr("tensorglot.store.refs.read_ref", lambda *at: None if at[1] == "gone" else read_ref(*at))
    assert store.refs() == {"main": made.cid}


def test_a_removed_tensor_that_the_base_lacks(tmp_path: Path) -> None:
    tg.store.delta({"a": np.ones(3), "b": np.ones(3)}, {"a": np.zeros(3)}, tmp_path / "d")
    with pytest.raises(tg.InputError, match="missing") as caught:
        tg.store.patch(tmp_path / "d", {"a": np.ones(3)}, tmp_path / "x.bt")
    assert (caught.value.rule, caught.value.tensor) == ("delta.base", "b")


def test_a_name_that_the_module_does_not_have() -> None:
    with pytest.raises(AttributeError, match=r"'tensorglot\.store' has no attribute 'nothing'"):
        _ = tg.store.nothing


def test_a_sparse_tensor_is_stored_as_the_difference_from_its_predecessor(store: Store, tmp_path: Path) -> None:
    sparse = needs("scipy.sparse")
    rng = np.random.default_rng(4)
    values = rng.standard_normal(40_000)
    place = (np.arange(40_000), np.arange(40_000) % 500)
    store.commit("main", {"s": sparse.csr_array((values, place), (40_000, 500))})
    before = sum(path.stat().st_size for path in packs(tmp_path / "store"))
    values[::1000] += 1
    store.commit("main", {"s": sparse.csr_array((values, place), (40_000, 500))})
    assert sum(path.stat().st_size for path in packs(tmp_path / "store")) - before < before / 20
    with store.checkout("main") as archive:
        assert archive["s"].parts["values"].array().tobytes() == values.tobytes()
    assert_clean(store)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_many_small_tensors_of_a_file(store: Store, tmp_path: Path, compression: str | None) -> None:
    """Those that are compressed cannot be read together."""
    expected = {f"t{i:03}": np.full(i, i, np.int32) for i in range(100)}
    tg.save(tmp_path / "x.zt", expected, compression=compression)
    store.commit("main", tmp_path / "x.zt")
    with store.checkout("main") as archive:
        assert same_tensors(archive, expected)
    loaded = tg.load(f"store://{tmp_path / 'store'}#main")
    assert all((loaded[name] == array).all() for name, array in expected.items())
    assert_clean(store)


def test_reads_outside_of_a_commit(store: Store) -> None:
    store.commit("main", {"a": np.arange(5), "b": np.arange(3)})
    with store.checkout("main") as archive:
        source = archive.source
        assert source is not None
        assert source.read(0, source.size) == source.read_bytes(0, source.size)
        for read in (source.read, source.read_bytes, lambda at, n: source.read_into(at, memoryview(bytearray(n)))):
            with pytest.raises(tg.TruncatedError):
                read(source.size - 1, 2)


def test_costs_of_the_last_commits_are_those_of_the_whole_log(store: Store) -> None:
    version = tensors(1)
    for seed in range(3):
        store.commit("main", version)
        version = step(version, seed)
    every = store.costs("main")
    assert len(every) == 3
    for limit in (1, 2, 3):
        assert store.costs("main", limit=limit) == every[-limit:]
