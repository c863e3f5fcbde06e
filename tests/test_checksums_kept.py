"""Every verb and command that copies tensors keeps the algorithm of each checksum, or takes the format's fast one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from command_line import run

TENSORS = {"a": np.arange(10.0), "b": np.arange(3), "c": np.ones(4)}
CHOSEN = {"a": "crc32c", "b": "sha256", "c": None}
KEPT = {"a": "crc32c", "b": "sha256", "c": "crc32c"}


def algorithms(path: Path) -> dict[str, str | None]:
    with tg.open(path) as archive:
        return {name: tensor.checksum and tensor.checksum.partition(":")[0] for name, tensor in archive.items()}


def save_archive(source: Path, target: Path) -> None:
    with tg.open(source) as archive:
        tg.save(target, archive)


WAYS: dict[str, Callable[[Path, Path], object]] = {
    "convert": tg.convert,
    "convert, cast": lambda source, target: tg.convert(source, target, dtype="float32"),
    "merge": lambda source, target: tg.merge([source], target),
    "split": lambda source, target: tg.split(source, target),
    "save": save_archive,
    "edit": lambda source, target: (target.write_bytes(source.read_bytes()), tg.edit(target, replace=TENSORS)),
    "tensorglot convert": lambda source, target: run("convert", source, target),
    "tensorglot merge": lambda source, target: run("merge", source, target),
    "tensorglot split": lambda source, target: run("split", source, target),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_tensor_keeps_its_algorithm(way: str, tmp_path: Path) -> None:
    tg.save(tmp_path / "from.zt", TENSORS, checksum=CHOSEN)
    target = tmp_path / ("shards" if way.endswith("split") else "to.zt")
    WAYS[way](tmp_path / "from.zt", target)
    assert algorithms(target) == KEPT
    assert tg.verify(target).ok


def test_names_may_change_on_the_way(tmp_path: Path) -> None:
    tg.save(tmp_path / "from.zt", TENSORS, checksum=CHOSEN)
    report = tg.convert(tmp_path / "from.zt", tmp_path / "to.zt", select=["b", "c"], rename={"b": "c", "c": "b"})
    assert algorithms(tmp_path / "to.zt") == {"c": "sha256", "b": "crc32c"}
    assert report.plan is not None
    assert report.plan.to_dict()["checksum"] == {"c": "sha256", "b": "crc32c"}


@pytest.mark.parametrize(
    ("to", "wanted"),
    [
        ("ztensor@0.1", {"a": "crc32c", "b": "sha256", "c": "crc32c"}),
        ("ztensor@2", {"a": "xxh3", "b": "sha256", "c": "xxh3"}),
    ],
)
def test_what_the_format_does_not_support_becomes_its_fast_one(to: str, wanted: dict[str, str], tmp_path: Path) -> None:
    tg.save(tmp_path / "from.zt", TENSORS, checksum=CHOSEN)
    tg.convert(tmp_path / "from.zt", tmp_path / "to.zt", format=to)
    assert algorithms(tmp_path / "to.zt") == wanted


@pytest.mark.parametrize("command", ["convert", "merge"])
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), "crc32c"),
        (("--checksum", "auto"), "crc32c"),
        (("--checksum", "sha256"), "sha256"),
        (("--checksum", "none"), None),
    ],
)
def test_on_the_command_line(command: str, arguments: tuple[str, ...], wanted: str | None, tmp_path: Path) -> None:
    tg.save(tmp_path / "from.safetensors", TENSORS)
    run(command, tmp_path / "from.safetensors", tmp_path / "to.zt", *arguments)
    assert set(algorithms(tmp_path / "to.zt").values()) == {wanted}


def test_a_commit_is_checked_out_with_checksums(tmp_path: Path) -> None:
    tg.store.Store.create(tmp_path / "run").commit("main", TENSORS)
    run("store", "checkout", tmp_path / "run", "main", tmp_path / "to.zt")
    assert set(algorithms(tmp_path / "to.zt").values()) == {"crc32c"}
