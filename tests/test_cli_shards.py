"""split and merge: what they print, what they leave, and with which code they end."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from command_line import run

TENSORS: dict[str, Any] = {"a": np.arange(100, dtype=np.float32), "b": np.ones(7), "../c": np.zeros((), np.int8)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tg.save(tmp_path / "model.safetensors", TENSORS, metadata={"k": "v"})
    return tmp_path / "model.safetensors"


def test_split_and_merge(model: Path) -> None:
    shards, again = model.with_name("shards"), model.with_name("again.safetensors")
    result = run("split", model, shards, "--shard-size", "100")
    assert result.stdout == ""
    assert "3 shards and model.safetensors.index.json" in result.stderr
    assert len(list(shards.iterdir())) == 4
    assert "3 tensors, 457 B to " in run("merge", shards, again).stderr
    assert again.read_bytes() == model.read_bytes()
    assert "../c" in run("ls", shards).stdout
    run("verify", shards)
    run("diff", shards, model)


def test_a_file_without_tensors_is_one_shard_without_an_index(tmp_path: Path) -> None:
    tg.save(tmp_path / "empty.bt", {}, metadata={"k": "v"})
    assert run("split", tmp_path / "empty.bt", tmp_path / "shards").stderr == f"1 shard in {tmp_path / 'shards'}\n"


def test_an_error_names_a_file_of_the_target_not_of_the_temporary_directory(model: Path) -> None:
    shards = model.with_name("shards")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        said = run("split", model, shards, "--shard-size", "100", code=5).stderr
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said == f"error: {shards / 'model-00001-of-00003.safetensors'}: File too large\n"
    tg.save(model, {"mask": np.ones(3, bool)})
    said = run("split", model, shards, "--to", "gguf", code=4).stderr
    assert said.startswith(f"error: {model}: gguf does not support bool")


def test_json(model: Path) -> None:
    shards, again = model.with_name("shards"), model.with_name("again.bt")
    said = json.loads(run("split", model, shards, "--json").stdout)
    assert said["files"] == [
        str(shards / "model-00001-of-00001.safetensors"),
        str(shards / "model.safetensors.index.json"),
    ]
    said = json.loads(run("merge", shards, again, "--json").stdout)
    assert (said["tensors"], said["format"], said["ok"]) == (3, "bintensors@0", True)


def test_notes_are_printed(model: Path) -> None:
    shards = model.with_name("shards")
    run("split", model, shards)
    tg.save(shards / "stray.safetensors", {"x": np.zeros(1)})
    assert "note: stray.safetensors is not listed in" in run("merge", shards, model.with_name("b.bt")).stderr
    assert "stray.safetensors" in run("verify", shards).stderr
    assert "stray.safetensors" in run("info", shards).stderr
    assert json.loads(run("info", shards, "--json").stdout)["notes"][0]["rule"] == "shards.stray"


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    tied = np.zeros(2000)
    tg.save(tmp_path / "tied.zt", {"a": tied, "b": tied})
    said = run("merge", tmp_path / "tied.zt", tmp_path / "merged.bt").stderr.splitlines()
    assert said[0].startswith("warning: 'b' shares its bytes with 'a': bintensors cannot share")
    assert len(said) == 2


def test_stdin_and_stdout(model: Path) -> None:
    shards = model.with_name("shards")
    run("split", "-", shards, stdin=model.read_bytes())
    assert run("merge", shards, "-", "--to", "safetensors").stdout_bytes == model.read_bytes()


def test_exit_codes(model: Path) -> None:
    shards = model.with_name("shards")
    run("split", model, shards, "--shard-size", "5 lights", code=2)
    run("split", model, shards, "--shard-size", "0", code=2)
    run("split", model, model.parent, code=2)
    run("split", model.with_name("none"), shards, code=5)
    run("merge", model, model, model.with_name("b.bt"), code=2)
    run("merge", model, code=2)
    run("merge", model, "-", "--to", "bintensors", "--json", code=2)
    run("split", model, shards, "--to", "pt", code=2)
    run("split", model, shards)
    (shards / "model-00001-of-00001.safetensors").write_bytes(b"\xff" * 20)
    run("merge", shards, model.with_name("b.bt"), code=3)
    assert not model.with_name("b.bt").exists()


@pytest.mark.parametrize(
    ("text", "nbytes"), [("17", 17), ("2KB", 2000), ("3 MB", 3_000_000), ("1gb", 10**9), ("4GiB", 4 << 30), ("1B", 1)]
)
def test_sizes(text: str, nbytes: int) -> None:
    from tensorglot.cli.split import Size

    assert Size().convert(text, None, None) == nbytes
