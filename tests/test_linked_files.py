"""Files that another file names: a symbolic link must not lead elsewhere, and a cache of Hugging Face opens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from test_onnx import external
from test_ztensor_2 import shard_of
from ztensor_builder import file2, part, tensor

DCP = Path(__file__).parent / "corpus" / "dcp" / "ranks2"


def onnx(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(np.array([1, 2], "<f4").tobytes())
    (folder / "m.onnx").write_bytes(external("w.bin"))
    return folder / "m.onnx"


def onnx_below(folder: Path) -> Path:
    (folder / "sub").mkdir()
    (folder / "sub" / "w.bin").write_bytes(np.array([1, 2], "<f4").tobytes())
    (folder / "m.onnx").write_bytes(external("sub/w.bin"))
    return folder / "m.onnx"


def sharded(folder: Path) -> Path:
    tg.split(tg.dumps({"a": np.arange(9.0), "b": np.ones(9)}, format="safetensors"), folder / "model", shard_nbytes=100)
    for path in (folder / "model").iterdir():
        path.rename(folder / path.name)
    (folder / "model").rmdir()
    return folder / "model.safetensors.index.json"


def ztensor(folder: Path) -> Path:
    root = folder / "m.zt"
    table = {"00001": shard_of(root, "00001", b"abcd")}
    root.write_bytes(file2({"objects": {"one": tensor(parts={"data": part(shard="00001")})}, "shards": table}))
    return root


def distributed(folder: Path) -> Path:
    shutil.copytree(DCP, folder, dirs_exist_ok=True)
    return folder / ".metadata"


MAKERS: list[Callable[[Path], Path]] = [onnx, onnx_below, sharded, ztensor, distributed]


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file that names others, which are all the other files below its folder."""
    folder = tmp_path / "snapshots" / "1"
    folder.mkdir(parents=True)
    made: Path = request.param(folder)
    return made


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def values(path: Path) -> dict[str, Any]:
    return {name: np.asarray(array).tobytes() for name, array in tg.load(path).items()}


def move(path: Path, folder: Path) -> None:
    """Moves a file elsewhere and leaves a link."""
    folder.mkdir(exist_ok=True)
    target = folder / f"blob{len(list(folder.iterdir()))}"
    path.rename(target)
    path.symlink_to(target)


def test_a_link_to_elsewhere_is_refused(root: Path, tmp_path: Path) -> None:
    assert values(root)
    for path in files_below(root.parent):
        if path != root:
            move(path, tmp_path / "elsewhere")
    with pytest.raises(tg.FormatError, match="leads out of its directory") as caught:
        values(root)
    assert caught.value.rule == "source.link"


def test_a_link_within_the_folder_is_followed(root: Path) -> None:
    expected = values(root)
    for path in files_below(root.parent):
        if path != root:
            move(path, root.parent / "data")
    assert values(root) == expected


def test_links_of_all_files_to_one_folder_are_followed(root: Path, tmp_path: Path) -> None:
    """As in a cache of Hugging Face: snapshots/1/model.onnx -> ../../blobs/…"""
    expected = values(root)
    for path in files_below(root.parent):
        move(path, tmp_path / "blobs")
    assert values(root) == expected


def test_a_link_to_the_folder_is_followed(root: Path, tmp_path: Path) -> None:
    expected = values(root)
    (tmp_path / "latest").symlink_to(root.parent)
    assert values(tmp_path / "latest" / root.name) == expected


def test_a_folder_below_may_not_be_a_link_to_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    root = onnx_below(tmp_path / "model")
    (tmp_path / "model" / "sub").rename(tmp_path / "elsewhere")
    (tmp_path / "model" / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(tg.FormatError, match="leads out of its directory"):
        values(root)
