"""identify: one identity, however tensors are read. Small ones are hashed in runs of rows."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.wire.cid import CID, DAG_CBOR, block_cid, checkpoint_block, cid_texts, encode_node

TENSORS = {
    **{f"layer.{i}": np.arange(i % 5).astype(("f4", "i2", "u1", "?")[i % 4]) for i in range(1500)},
    "scalar": np.float64(2.5),
    "large": np.arange(100_000, dtype=np.float32),
    "é": np.zeros((0, 3), np.int64),
}


@pytest.mark.parametrize("name", ["a.bt", "a.zt", "two.zt", "a.safetensors", "a.npz", "packed.zt"])
def test_the_identity_of_each_tensor_is_its_own_in_every_container(tmp_path: Path, name: str) -> None:
    options = {"two.zt": {"format": "ztensor@2"}, "packed.zt": {"compression": "zstd"}}.get(name, {})
    tg.save(tmp_path / name, dict(random.Random(1).sample(sorted(TENSORS.items()), len(TENSORS))), **options)
    found = tg.identify(tmp_path / name)
    with tg.open(tmp_path / name) as archive:
        assert found.tensors == {key: tensor.cid() for key, tensor in archive.items()}
    assert found.cid == tg.identify(TENSORS).cid
    assert tg.identify(tmp_path / name, select="layer.7*").tensors.keys() == {n for n in TENSORS if "layer.7" in n}


def test_the_identity_of_all_is_that_of_the_checkpoint_node() -> None:
    cids = {name: block_cid(name.encode(), DAG_CBOR) for name in ("b", "a", "aa", "", "é" * 40, "n" * 300)}
    node = {"dynd": 1, "kind": "checkpoint", "meta": {}, "parents": [], "tensors": cids}
    assert checkpoint_block({name: bytes(cid) for name, cid in cids.items()}) == encode_node(node)
    assert checkpoint_block({}) == encode_node({**node, "tensors": {}})


def test_texts_of_many_cids_are_those_of_each() -> None:
    generator = np.random.default_rng(2)
    cids = [CID(generator.bytes(32), codec, hash) for codec in (0x55, 0x71) for hash in (0x12, 0x1E) for _ in range(50)]
    assert cid_texts([bytes(cid) for cid in cids]) == [str(cid) for cid in cids]
    assert cid_texts([]) == []


def test_every_damaged_tensor_is_a_problem_and_the_others_have_theirs(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.zt", TENSORS)
    whole = tg.identify(tmp_path / "a.zt")
    data = bytearray((tmp_path / "a.zt").read_bytes())
    damaged = {"layer.4", "layer.6", "layer.1408"}
    with tg.open(tmp_path / "a.zt") as archive:
        for name in damaged:
            data[archive[name].offset] ^= 1
    (tmp_path / "b.zt").write_bytes(data)
    found = tg.identify(tmp_path / "b.zt")
    assert {problem.tensor for problem in found.problems} == damaged
    assert found.cid is None
    assert found.tensors == {name: cid for name, cid in whole.tensors.items() if name not in damaged}
