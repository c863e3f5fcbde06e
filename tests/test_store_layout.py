"""`docs/store.md` is enough: a reader written from the page alone reads what a store, a bundle and a delta hold."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import zstandard

import minimal_store as minimal
import tensorglot as tg

Arrays = dict[str, Any]


def versions() -> list[Arrays]:
    """Chunks of every encoding: raw, constant, planes, sparse and dense deltas, groups of small blocks."""
    rng = np.random.default_rng(1)
    first = {
        "bfloat16": rng.standard_normal((700, 900)).astype(ml_dtypes.bfloat16),
        "regular": rng.standard_normal((700, 900)).astype(ml_dtypes.bfloat16),
        "dense": rng.standard_normal((50, 60)).astype(np.float32),
        "random": np.frombuffer(rng.bytes(40_001), np.uint8),
        "zeros": np.zeros((300, 1000), np.int16),
        "wide": rng.standard_normal(3000).astype(np.complex128),
        "empty": np.zeros((0, 4)),
        "scalar": np.array(3.5),
        **{f"layer.{i}.bias": rng.standard_normal(8).astype(np.float32) for i in range(300)},
    }
    second = {name: array.copy() for name, array in first.items()}
    changed = rng.choice(630_000, 9_000, replace=False)
    second["bfloat16"].view(np.uint16).reshape(-1)[changed] += rng.choice([1, 0xFFFF], 9_000).astype(np.uint16)
    second["bfloat16"].view(np.uint16).reshape(-1)[changed[::50]] += 300
    second["regular"].view(np.uint16).reshape(-1)[::40] += 1
    second["dense"] *= np.float32(1.001)
    second["random"] = second["random"].copy()
    second["random"][::100] ^= 0x55
    second["wide"][::9] = 0
    second["layer.7.bias"] += 1
    third = {**second, "bfloat16": np.concatenate([second["bfloat16"], second["bfloat16"][:30]]), "more": np.ones(3)}
    del third["zeros"]
    return [first, second, third]


def canonical(arrays: Arrays) -> dict[str, tuple[str, bytes]]:
    return {name: (str(tg.dynd.typeof(array)), np.asarray(array).tobytes()) for name, array in arrays.items()}


@pytest.fixture
def store(tmp_path: Path) -> tg.store.Store:
    made = tg.store.Store.create(tmp_path / "run")
    for i, arrays in enumerate(versions()):
        made.commit("steps/é", arrays, message=str(i), metadata={"step": i, "rate": 0.5, "done": None})
    return made


def test_every_commit_of_a_store(store: tg.store.Store, tmp_path: Path) -> None:
    reader = minimal.Store(tmp_path / "run")
    digest = reader.ref("steps/é")
    for i, arrays in reversed(list(enumerate(versions()))):
        commit = reader.node(digest)
        assert (commit["message"], commit["metadata"]["step"], commit["kind"]) == (str(i), i, "commit")
        assert reader.tensors(digest) == canonical(arrays)
        digest = commit["parents"][0] if commit["parents"] else b""
    assert digest == b""
    assert {place[4] for place in reader.places.values()} >= {0, 1, 2, 5, 6, 7, 8}


def test_a_store_that_was_repacked(store: tg.store.Store, tmp_path: Path) -> None:
    store.repack(grace=0)
    reader = minimal.Store(tmp_path / "run")
    assert reader.tensors(reader.ref("steps/é")) == canonical(versions()[2])


def test_bundles_with_and_without_deltas(store: tg.store.Store, tmp_path: Path) -> None:
    whole, part = io.BytesIO(), io.BytesIO()
    store.bundle(whole, "steps/é")
    assert (bundle := minimal.Bundle(whole.getvalue())).tensors(bundle.commit) == canonical(versions()[2])
    earlier = store.log("steps/é")[1].cid
    store.bundle(part, "steps/é", have=earlier)
    assert len(part.getvalue()) < len(whole.getvalue()) / 4
    again = minimal.Bundle(part.getvalue(), minimal.Store(tmp_path / "run"))
    assert again.tensors(again.commit) == canonical(versions()[2])


@pytest.mark.parametrize(("one", "two"), [(0, 1), (1, 2), (2, 0), (1, 1)])
def test_a_delta(one: int, two: int) -> None:
    old, new = versions()[one], versions()[two]
    file = io.BytesIO()
    tg.store.delta(old, new, file)
    assert minimal.apply_delta(file.getvalue(), canonical(old)) == canonical(new)


def test_the_reader_finds_damage(store: tg.store.Store, tmp_path: Path) -> None:
    pack = max((tmp_path / "run" / "packs").glob("*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[len(data) // 3] ^= 1
    pack.write_bytes(data)
    reader = minimal.Store(tmp_path / "run")
    with pytest.raises((AssertionError, zstandard.ZstdError)):
        reader.tensors(reader.ref("steps/é"))


def test_a_pack_has_each_digest_once(tmp_path: Path) -> None:
    """Nodes refer to the digests of the index: 96 bytes of digests for each delta, and little else."""
    rng = np.random.default_rng(1)
    arrays = {f"layer.{i}.weight": rng.standard_normal((100, 50)).astype(np.float32) for i in range(200)}
    made = tg.store.Store.create(tmp_path / "run")
    made.commit("main", arrays)
    before = made.stats().stored_nbytes
    for array in arrays.values():
        array.view(np.uint32)[3, 4] += 1
    made.commit("main", arrays)
    assert made.stats().stored_nbytes - before < 200 * (96 + 40)
