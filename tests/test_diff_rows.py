"""diff of many small tensors: what is found by the columns of two indexes is what tensors one by one would say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg

COUNT = 5000
"""More than one batch."""
TARGETS = ("a.bt", "a.zt", "two.zt", "a.safetensors", "a.npz", "shards")


def many(seed: int = 1) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    kinds = ("float32", "int16", "uint8", "bool", "float64")
    shapes = ((4,), (2, 2), (), (0, 3), (1, 4))
    tensors = {}
    for i in range(COUNT):
        shape = shapes[i % len(shapes)]
        tensors[f"layer.{i}"] = generator.integers(0, 100, shape).astype(kinds[i % 7 % len(kinds)])
    return tensors


def write(tensors: dict[str, np.ndarray], path: Path) -> Path:
    if path.name == "shards":
        whole = path.with_suffix(".safetensors")
        write(tensors, whole)
        tg.split(whole, path, shard_nbytes=40_000)
    else:
        tg.save(path, tensors, durable=False, format="ztensor@2" if path.name == "two.zt" else None)
    return path


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "a.bt"])
def test_every_change_is_found_and_all_others_are_equal(tmp_path: Path, name: str) -> None:
    tensors = many()
    changed = random.Random(7).sample([n for n, v in tensors.items() if v.size and v.dtype != bool], 25)
    other = {n: v + v.dtype.type(1) if n in changed else v for n, v in tensors.items()}
    (tmp_path / "old").mkdir()
    old, new = write(tensors, tmp_path / "old" / name), write(other, tmp_path / name)
    found = tg.diff(old, new)
    assert {change.tensor for change in found.changes} == set(changed)
    assert {change.kind for change in found.changes} == {"values"}
    assert (found.tensors, found.equal) == (COUNT, COUNT - 25)
    assert tg.diff(old, old).equal == COUNT


def test_between_formats_and_with_memory(tmp_path: Path) -> None:
    tensors = many()
    paths = [write(tensors, tmp_path / name) for name in ("a.bt", "a.zt", "two.zt", "a.npz")]
    reordered = dict(random.Random(3).sample(sorted(tensors.items()), len(tensors)))
    tg.save(tmp_path / "b.zt", reordered, durable=False)
    for path in (*paths[1:], tmp_path / "b.zt"):
        found = tg.diff(paths[0], path)
        assert (found.same, found.tensors, found.equal) == (True, len(tensors), len(tensors))
    assert tg.diff(reordered, paths[0]).equal == tg.diff(paths[1].read_bytes(), reordered).equal == len(tensors)
    assert not tg.diff({**reordered, "layer.3": np.float32(0.5)}, paths[0]).same


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(3, 2), "shape"),
        (np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(3, 2), "shape"),
        (np.zeros(4, np.float32), np.zeros(4, np.int32), "type"),
        (np.float32([0.0, 1.0]), np.float32([-0.0, 1.0]), "bits"),
        (np.float32([0.0, 1.0]), np.float32([1.0, 1.0]), "values"),
    ],
)
def test_equal_bytes_are_not_enough(tmp_path: Path, old: np.ndarray, new: np.ndarray, kind: str) -> None:
    beside = {f"t{i}": np.arange(3) for i in range(10)}
    tg.save(tmp_path / "a.zt", {**beside, "w": old})
    tg.save(tmp_path / "b.zt", {**beside, "w": new})
    found = tg.diff(tmp_path / "a.zt", tmp_path / "b.zt")
    assert [(change.tensor, change.kind) for change in found.changes] == [("w", kind)]
    assert (found.tensors, found.equal) == (11, 10)


def test_attributes_and_names_on_one_side(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.zt", {"x": np.arange(3), "gone": np.arange(2)}, attributes={"x": {"unit": "m"}})
    tg.save(tmp_path / "b.zt", {"x": np.arange(3), "new": np.arange(2)}, attributes={"x": {"unit": "s"}})
    changes = tg.diff(tmp_path / "a.zt", tmp_path / "b.zt").changes
    assert [(change.tensor, change.kind) for change in changes] == [
        ("x", "attributes"), ("gone", "removed"), ("new", "added"),
    ]  # fmt: skip


def test_any_byte_but_zero_is_true(tmp_path: Path) -> None:
    """In zTensor 0.1 two files with other bytes hold the same bools."""
    tg.save(tmp_path / "a.zt", {"flags": np.array([True, False, True])}, checksum=None)
    data = bytearray((tmp_path / "a.zt").read_bytes())
    data[64] = 7
    (tmp_path / "b.zt").write_bytes(data)
    assert tg.diff(tmp_path / "a.zt", tmp_path / "b.zt").same


def test_a_wrong_checksum_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.zt", many())
    with tg.open(tmp_path / "a.zt") as archive:
        at = archive["layer.4400"].offset
    data = bytearray((tmp_path / "a.zt").read_bytes())
    data[at] ^= 1
    (tmp_path / "b.zt").write_bytes(data)
    with pytest.raises(tg.IntegrityError) as caught:
        tg.diff(tmp_path / "a.zt", tmp_path / "b.zt")
    assert (caught.value.tensor, caught.value.offset) == ("layer.4400", at)


def test_a_file_cut_short_while_open(tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", many())
    (tmp_path / "b.bt").write_bytes((tmp_path / "a.bt").read_bytes())
    with tg.open(tmp_path / "a.bt") as one, tg.open(tmp_path / "b.bt") as two:
        with (tmp_path / "b.bt").open("r+b") as file:
            file.truncate((tmp_path / "b.bt").stat().st_size - 1000)
        with pytest.raises(tg.TruncatedError) as caught:
            tg.diff(one, two)
    assert caught.value.tensor is not None
