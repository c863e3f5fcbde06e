"""Chains of deltas: what they may cost to read, when they end, and how their records are read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from stores import assert_clean
from tensorglot.store import Store
from tensorglot.store.backend import Directory
from tensorglot.store.pack import MAX_CHAIN, MAX_DEPTH, PackIndex, read_index
from tensorglot.wire.cid import CHUNK_NBYTES

CHUNKS = 6


def new_pack(folder: Path, known: set[str]) -> PackIndex:
    """The index of the pack that the last commit wrote."""
    (name,) = {path.name for path in (folder / "packs").iterdir()} - known
    known.add(name)
    return read_index(Directory(str(folder)), f"packs/{name}")


def depths(index: PackIndex) -> list[int]:
    """Of the records of whole chunks."""
    found: list[int] = index.records["depth"][index.records["decoded"] == CHUNK_NBYTES].tolist()
    return found


def test_versions_share_the_cost_of_beginning_new_chains(tmp_path: Path) -> None:
    """Every element of float32 masters moves at each step: a third of a full copy."""
    rng = np.random.default_rng(1)
    masters = rng.normal(0, 0.05, CHUNKS * CHUNK_NBYTES // 4).astype(np.float32)
    store, known = Store.create(tmp_path / "store"), set[str]()
    sizes, begun = [], []
    for step in range(11):
        store.commit("main", {"w": masters})
        index = new_pack(tmp_path / "store", known)
        sizes.append(index.nbytes)
        records = index.records
        assert (records["chain"] <= MAX_CHAIN * records["decoded"]).all(), "more than twice the size is read"
        begun.append([depth == 1 for depth in depths(index)] if step > 1 else [False])
        masters = masters + rng.normal(0, 1e-6, masters.shape).astype(np.float32)
    assert max(sizes[1:]) < 0.7 * sizes[0], "a full copy"
    assert sum(sizes[1:]) / 10 < 1.06 * sizes[1], "deltas from further back than they need to be"
    assert any(any(rows) and not all(rows) for rows in begun), "the chunks of a version begin new chains together"
    assert_clean(store)


def test_a_chain_has_at_most_a_dozen_links(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    weights = rng.normal(0, 0.05, CHUNKS * CHUNK_NBYTES // 2).astype(ml_dtypes.bfloat16)
    store, known, found, sizes = Store.create(tmp_path / "store"), set[str](), [], []
    for _ in range(2 * MAX_DEPTH + 3):
        store.commit("main", {"w": weights})
        index = new_pack(tmp_path / "store", known)
        found.append(depths(index))
        sizes.append(index.nbytes)
        weights = weights.copy()
        weights.view(np.uint16)[rng.integers(0, weights.size, CHUNKS * 2000)] += 1
    assert found[: MAX_DEPTH - 1] == [[depth] * CHUNKS for depth in range(MAX_DEPTH - 1)]
    assert max(map(max, found)) == MAX_DEPTH
    shortened = [[now <= before for before, now in zip(*pair, strict=True)] for pair in pairwise(found)]
    assert all(map(any, zip(*shortened, strict=True))), "every chain was shortened"
    assert not any(map(all, shortened)), "the chains of a version are shortened together"
    assert max(sizes[1:]) < 0.01295 * weights.nbytes, "five times a successor of one step"
    assert_clean(store)


def test_records_of_one_pack_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 0.05, 4 * CHUNK_NBYTES // 2).astype(ml_dtypes.bfloat16)
    store = Store.create(tmp_path / "store")
    for _ in range(5):
        store.commit("main", {"w": weights})
        weights = weights.copy()
        weights.view(np.uint16)[rng.integers(0, weights.size, weights.size // 50)] += 1
    reads: list[int] = []
    plain, plain_into = Directory.read, Directory.read_into

    def counted(backend: Directory, key: str, offset: int, nbytes: int) -> memoryview:
        reads.append(nbytes)
        return plain(backend, key, offset, nbytes)

    def counted_into(backend: Directory, key: str, offset: int, out: memoryview) -> None:
        reads.append(len(out))
        plain_into(backend, key, offset, out)

    with tg.open(f"store://{tmp_path}/store#main") as archive:
        tensor = archive["w"]
        monkeypatch.setattr(Directory, "read", counted)
        monkeypatch.setattr(Directory, "read_into", counted_into)
        tensor.numpy()
    stored = sum(path.stat().st_size for path in (tmp_path / "store/packs").iterdir())
    assert len([nbytes for nbytes in reads if nbytes > 2000]) == 5, "one for each version, of four records"
    assert sum(reads) < 1.01 * stored


def test_bases_larger_than_what_is_made_from_them(tmp_path: Path) -> None:
    """Of eight megabytes of bases, for chunks of which many fit into one batch."""
    rng = np.random.default_rng(4)
    old = {f"{i}": rng.normal(0, 1, CHUNK_NBYTES // 4).astype(np.float32) for i in range(8)}
    new = {name: w[:100] + np.float32(i == 3) for i, (name, w) in enumerate(old.items())}
    store = Store.create(tmp_path / "store")
    for version in (old, new, old):
        store.commit("main", version)
        with store.checkout("main") as archive:
            assert all(np.array_equal(archive[name].numpy(), w) for name, w in version.items())
    assert_clean(store)


def test_a_base_that_chunks_share_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a small pack with many deltas from one base would take any amount of memory."""
    rng = np.random.default_rng(7)
    weights = rng.normal(0, 0.05, 200_000).astype(np.float32)
    store = Store.create(tmp_path / "store")
    store.commit("main", dict.fromkeys("abcd", weights))
    stored = store.stats().stored_nbytes
    versions = {name: weights.copy() for name in "abcd"}
    for at, version in enumerate(versions.values()):
        version[at::5000] += 1
    store.commit("main", versions)
    read = []
    read_into = Directory.read_into

    def counted(self: Directory, key: str, offset: int, out: memoryview) -> None:
        read.append(len(out))
        read_into(self, key, offset, out)

    monkeypatch.setattr(Directory, "read_into", counted)
    with store.checkout("main") as archive:
        loaded = tg.load(archive)
    assert all(np.array_equal(loaded[name], version) for name, version in versions.items())
    assert stored / 2 < sum(read) < 1.5 * stored
