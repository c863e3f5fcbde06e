"""`tensorglot hash`: the same values have the same identity, in whatever file, and nothing else has."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from click.testing import CliRunner

import tensorglot as tg
from bson_samples import document, vector
from tensorglot.cli import commands

VECTORS = json.loads((Path(__file__).parent / "corpus" / "dynd" / "cas_vectors.json").read_text())
TENSORS = {"w": np.array([10, 20, 30], np.int32), "name\x1b": np.zeros((2, 2))}


def hashed(path: Path, *args: str) -> Any:
    result = CliRunner().invoke(commands, ["hash", str(path), *args, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_same_in_every_file(tmp_path: Path) -> None:
    tg.save(tmp_path / "0.bt", TENSORS, metadata={"step": "1"})
    tg.save(tmp_path / "1.bt", dict(reversed(TENSORS.items())), format="bintensors@1")
    one, two = hashed(tmp_path / "0.bt"), hashed(tmp_path / "1.bt")
    assert one["tensors"] == two["tensors"]
    assert one["cid"] == two["cid"]
    assert one["tensors"]["w"] == VECTORS["array_node_cid"]


@pytest.mark.parametrize(
    "other",
    [
        {"w": np.array([10, 20, 31], np.int32)},
        {"w": np.array([10, 20, 30], np.uint32)},
        {"w": np.array([[10, 20, 30]], np.int32)},
        {"v": np.array([10, 20, 30], np.int32)},
        {},
    ],
)
def test_different_tensors_differ(tmp_path: Path, other: dict[str, np.ndarray[Any, Any]]) -> None:
    tg.save(tmp_path / "one.bt", {"w": TENSORS["w"]})
    tg.save(tmp_path / "two.bt", other)
    assert hashed(tmp_path / "one.bt")["cid"] != hashed(tmp_path / "two.bt")["cid"]


def test_a_line_for_each_tensor_and_one_for_all(tmp_path: Path) -> None:
    tg.save(tmp_path / "x.bt", TENSORS)
    found = hashed(tmp_path / "x.bt")
    result = CliRunner().invoke(commands, ["hash", str(tmp_path / "x.bt")])
    names = {"w": "w", "name\x1b": r"name\x1b"}
    assert result.stdout.splitlines() == [
        *(f"{cid}  {names[name]}" for name, cid in found["tensors"].items()),
        "",
        f"{found['cid']}  together, 2 tensors",
    ]
    assert set(hashed(tmp_path / "x.bt", "w")["tensors"]) == {"w"}


def test_several_are_the_node_of_a_checkpoint() -> None:
    """The vector's node with its metadata taken out: `meta` is the map of one entry `step: 10`."""
    node = bytes.fromhex(VECTORS["checkpoint_hex"]).replace(b"\x64meta\xa1\x64step\x0a", b"\x64meta\xa0")
    text = base64.b32encode(b"\x01\x71\x1e\x20" + blake3(node).digest()).decode().lower().rstrip("=")
    tensor = tg.dynd.deserialize(bytes.fromhex(VECTORS["leaf_hex"]), "3 * int32")
    identity = tg.identify({"w": tensor})
    assert identity.tensors == {"w": VECTORS["array_node_cid"]}
    assert identity.cid == f"b{text}"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Three tensors, of which one has a bit flipped."""
    path = tmp_path / "broken.zt"
    tg.save(path, {name: np.full(100, i) for i, name in enumerate(("a", "b\x1b", "c"))}, checksum="crc32c")
    with tg.open(path) as archive:
        at = archive["b\x1b"].offset
    assert at is not None
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("command", ["hash", "stats"])
def test_a_tensor_that_fails_to_verify_is_named_and_the_others_are_printed(broken: Path, command: str) -> None:
    result = CliRunner().invoke(commands, [command, str(broken)])
    assert result.exit_code == 1
    assert result.stderr.count("checksum.mismatch") == 1
    assert r"tensor 'b\x1b'" in result.stderr
    assert "together" not in result.stdout
    document = CliRunner().invoke(commands, [command, str(broken), "--json"])
    assert document.exit_code == 1
    found = json.loads(document.stdout)
    if command == "hash":
        assert set(found["tensors"]) == {"a", "c"}
        assert found["cid"] is None
        assert [(problem["rule"], problem["tensor"]) for problem in found["problems"]] == [
            ("checksum.mismatch", "b\x1b")
        ]
    else:
        assert [row["max"] for row in found["tensors"]] == [0, None, 2]
        assert found["tensors"][1]["problem"]["rule"] == "checksum.mismatch"


def test_tensors_without_an_identity_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.bson").write_bytes(document(vector("v", b"\x03\0a"), vector("w", b"\x99\0")))
    result = CliRunner().invoke(commands, ["hash", str(tmp_path / "x.bson")])
    assert result.exit_code == 4
    assert "tensor 'w'" in result.stderr
    assert len(result.stdout.splitlines()) == 1
