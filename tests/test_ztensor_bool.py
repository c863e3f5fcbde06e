"""Bools of version 0.1: every byte but zero is true (§5.1), and nobody but `verify` and `strict` sees which byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import tensorglot as tg
from ztensor_builder import entry, file01, file1, file2, part, tensor

ODD = bytes([0, 1, 2, 255, 0, 128])
TRUTH = np.array([0, 1, 1, 1, 0, 1], np.bool_).reshape(2, 3)
SQUEEZED = zstandard.compress(ODD)
FILES = {
    "raw": file01([entry(dtype="bool", shape=[2, 3], size=6)], ODD),
    "zstd": file01([entry(dtype="bool", shape=[2, 3], size=len(SQUEEZED), encoding="zstd")], SQUEEZED),
}


@pytest.fixture(params=list(FILES))
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "odd.zt"
    path.write_bytes(FILES[request.param])
    return path


def into(path: Path) -> Any:
    out = np.zeros((2, 3), np.bool_)
    tg.load(path, out={"a": out})
    return out


def streamed(path: Path) -> Any:
    with tg.open(path) as archive:
        chunks = b"".join(bytes(chunk) for chunk in archive["a"].parts["data"].payload.chunks())
    return np.frombuffer(chunks, np.uint8).reshape(2, 3)


READS: dict[str, Callable[[Path], Any]] = {
    "load": lambda path: tg.load(path)["a"],
    "loads": lambda path: tg.loads(path.read_bytes())["a"],
    "out": into,
    "numpy": lambda path: tg.open(path)["a"].numpy(),
    "mmap": lambda path: tg.open(path, backend="mmap")["a"].numpy(),
    "rows": lambda path: np.stack([tg.open(path)["a"][i] for i in range(2)]),
    "columns": lambda path: tg.open(path)["a"][:, ::-1][:, ::-1],
    "mmap slice": lambda path: tg.open(path, backend="mmap")["a"][:, :],
    "stream": streamed,
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_every_way_of_reading_gives_true_for_every_byte_but_zero(read: Callable[[Path], Any], odd: Path) -> None:
    assert read(odd).view(np.uint8).tolist() == TRUTH.view(np.uint8).tolist()


def test_the_identity_is_that_of_the_value(odd: Path) -> None:
    with tg.open(odd) as archive:
        held = tg.dynd.array(TRUTH)
        assert archive["a"].cid() == held.cid()
        assert bytes(archive["a"].serialize()) == bytes(held.serialize())
        assert archive["a"].tolist() == TRUTH.tolist()
        assert archive["a"].encoding in FILES


@pytest.mark.parametrize("target", ["a.zt", "a.bt", "a.safetensors", "a.npz", "a.dynd", "a.npy"])
@pytest.mark.parametrize("verb", ["convert", "save"])
def test_what_is_written_is_0_and_1(verb: str, target: str, odd: Path, tmp_path: Path) -> None:
    path = tmp_path / target
    if verb == "convert":
        tg.convert(odd, path, rename={"a": "data"})
    else:
        with tg.open(odd) as archive:
            tg.save(path, {"data": archive["a"]})
    with tg.open(path, strict=target != "a.npz") as archive:
        assert archive["data"].numpy().view(np.uint8).tolist() == TRUTH.view(np.uint8).tolist()
    assert TRUTH.tobytes() in path.read_bytes()
    assert ODD not in path.read_bytes()


def test_deep_verification_reports_the_byte(odd: Path) -> None:
    assert tg.verify(odd).ok
    (problem,) = tg.verify(odd, deep=True).problems
    assert (problem.rule, problem.tensor) == ("values.bool", "a")


def test_strict_refuses_the_byte(tmp_path: Path) -> None:
    data = bytearray(tg.dumps({"a": TRUTH}, format="ztensor", checksum=None))
    assert tg.loads(bytes(data), strict=True)["a"].tolist() == TRUTH.tolist()
    data[64] = 3
    with tg.open(bytes(data), strict=True) as archive, pytest.raises(tg.FormatError) as caught:
        archive["a"].numpy()
    assert (caught.value.rule, caught.value.tensor, caught.value.offset) == ("values.bool", "a", 64)
    with pytest.raises(tg.FormatError, match=r"rule values\.bool"):
        tg.loads(bytes(data), strict=True)
    assert tg.loads(bytes(data))["a"].tolist() == [[True, True, True], [True, False, True]]


@pytest.mark.parametrize(("covered", "matches"), [(ODD, True), (TRUTH.tobytes(), False)])
def test_a_checksum_is_of_the_bytes_that_are_stored(covered: bytes, matches: bool) -> None:
    checksum = f"sha256:{hashlib.sha256(covered).hexdigest()}"
    data = file01([entry(dtype="bool", shape=[2, 3], size=6, checksum=checksum)], ODD)
    assert tg.verify(data).ok == matches
    with nullcontext() if matches else pytest.raises(tg.IntegrityError):
        assert tg.loads(data, verify="require")["a"].tolist() == TRUTH.tolist()


@pytest.mark.parametrize(
    "data",
    [
        file1({"objects": {"a": {"shape": [6], "format": "dense", "components": {
            "data": {"dtype": "bool", "offset": 64, "length": 6}}}}}, ODD),
        file2({"objects": {"a": tensor(shape=[6], parts={"data": part(type="bool", blob=[4096, 6])})}}, ODD),
    ],
    ids=["1", "2"],
)  # fmt: skip
def test_other_versions_have_0_and_1_only(data: bytes) -> None:
    with tg.open(data) as archive, pytest.raises(tg.FormatError) as caught:
        archive["a"].numpy()
    assert caught.value.rule == "values.bool"
