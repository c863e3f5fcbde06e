"""edit: other metadata, the same tensors, byte for byte; in place, and what is left when that fails."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest

import tensorglot as tg
from command_line import run
from faults import copied_nbytes
from peers import needs
from tensorglot.containers.ztensor.constants import FOOTER_2
from tensorglot.containers.ztensor.parts import METADATA
from ztensor_builder import file2, tensor

TENSORS: dict[str, Any] = {"w": np.arange(3000, dtype=np.float32), "b": np.ones(5), "empty": np.zeros((0, 2))}
EDITABLE = [f"{row.name}@{v}" for row in tg.formats() for v in row.writes if row.metadata != "none"]
SUFFIX = {f"{row.name}@{v}": row.suffixes[0] for row in tg.formats() for v in row.writes}


def made(folder: Path, format: str, **options: Any) -> Path:
    path = folder / f"model{SUFFIX[format]}"
    tg.save(path, TENSORS, format=format, **options)
    return path


def metadata_of(path: Path) -> Any:
    with tg.open(path) as archive:
        return archive.metadata


@pytest.mark.parametrize("old", [None, {}, {"a": "1", "b": "2"}])
@pytest.mark.parametrize("format", EDITABLE)
def test_what_is_written_is_what_save_would_write(format: str, old: Any, tmp_path: Path) -> None:
    options = {"checksum": "xxh3"} if format == "ztensor@2" else {}  # without it the form is not canonical
    path = made(tmp_path, format, metadata=old, **options)
    done = tg.edit(path, {"b": "3", "c": "é"})
    assert done.changed
    new = {**(old or {}), "b": "3", "c": "é"}
    assert metadata_of(path) == new
    assert path.read_bytes() == tg.dumps(TENSORS, format=format, metadata=new, **options)
    assert tg.open(path, strict=True).format == format


@pytest.mark.parametrize("format", EDITABLE)
def test_removing(format: str, tmp_path: Path) -> None:
    path = made(tmp_path, format, metadata={"a": "1", "b": "2"})
    tg.edit(path, remove=["a"])
    assert metadata_of(path) == {"b": "2"}
    before = path.read_bytes()
    with pytest.raises(tg.InputError) as caught:
        tg.edit(path, remove=["a"])
    assert caught.value.rule == "edit.remove"
    assert path.read_bytes() == before
    assert not tg.edit(path, {"b": "2"}).changed


ZTENSOR = ["ztensor@0.1", "ztensor@2"]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("format", ZTENSOR)
def test_encodings_checksums_and_attributes_stay(format: str, in_place: bool, tmp_path: Path) -> None:
    options = {"compression": "zstd", "checksum": "sha256", "attributes": {"w": {"unit": [1, {"x": None}]}}}
    path = made(tmp_path, format, **options)
    with tg.open(path) as archive:
        before = {name: archive.info(name) for name in archive}
    tg.edit(path, {"list": [1, 2.5, {"deep": True}]}, in_place=in_place)
    with tg.open(path, verify="require") as archive:
        assert {name: archive.info(name) for name in archive} == before
        assert archive.metadata == {"list": [1, 2.5, {"deep": True}]}
        assert archive["w"].numpy().tolist() == TENSORS["w"].tolist()


@pytest.mark.parametrize("format", ZTENSOR)
def test_in_place_writes_only_the_end(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, format)
    inode = path.stat().st_ino
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def noted(fd: int, data: Any, offset: int) -> int:
        written.append((offset, len(data)))
        return pwrite(fd, data, offset)

    with tg.open(path) as archive:
        end = max(tensor.offset + tensor.nbytes for tensor in archive.values() if tensor.offset is not None)
    monkeypatch.setattr(os, "pwrite", noted)
    tg.edit(path, {"k": "v" * 100}, in_place=True)
    assert path.stat().st_ino == inode
    assert all(offset >= end for offset, _ in written)
    if format == "ztensor@2":  # appended; `tests/test_in_place.py`
        with tg.open(path) as archive:
            assert archive.metadata == {"k": "v" * 100}
    else:
        assert path.read_bytes() == tg.dumps(TENSORS, format=format, metadata={"k": "v" * 100})
    tg.edit(path, remove=["k"], in_place=True)
    assert metadata_of(path) == {}


@pytest.mark.parametrize("fails", ["pwrite", "ftruncate", "fsync"])
def test_in_place_undoes_what_failed(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, "ztensor@0.1")
    before = path.read_bytes()
    real, calls = getattr(os, fails), 0

    def broken(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            if fails == "pwrite":
                real(arguments[0], b"half", arguments[2])
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, fails, broken)
    with pytest.raises(OSError, match="No space"):
        tg.edit(path, {"k": "v"}, in_place=True)
    assert path.read_bytes() == before


def test_in_place_needs_an_index_at_the_end(tmp_path: Path) -> None:
    path = made(tmp_path, "bintensors@1")
    before = path.read_bytes()
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.edit(path, {"k": "v"}, in_place=True)
    assert caught.value.rule == "edit.in_place"
    assert path.read_bytes() == before


@pytest.mark.parametrize("format", ["bintensors@0", "ztensor@0.1", "safetensors@1"])
def test_the_operating_system_copies(format: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{SUFFIX[format]}"
    tg.save(path, {"w": np.zeros(1 << 20)}, format=format)
    assert copied_nbytes(lambda: tg.edit(path, {"k": "v"})) >= 8 << 20


@pytest.mark.parametrize("format", ["bintensors@0", "ztensor@0.1"])
def test_a_sidecar_goes_along(format: str, tmp_path: Path) -> None:
    path = made(tmp_path, format)
    tg.verify(path, sums="write")
    tg.edit(path, {"k": "v"})
    report = tg.verify(path)
    own = len(TENSORS) if format.startswith("ztensor") else 0
    assert (report.ok, report.checksums) == (True, own + len(TENSORS) + 1)
    data = bytearray(path.read_bytes())
    with tg.open(path) as archive:
        data[archive["w"].offset or 0] ^= 1
    path.write_bytes(data)
    tg.edit(path, {"k": "w"})
    assert {problem.tensor for problem in tg.verify(path).problems} == {"w"}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a value that is no text": ("bintensors@0", {"metadata": {"n": 3}}, "save.metadata"),
    "a key that is no text": ("ztensor@2", {"metadata": {3: "n"}}, "save.metadata"),
    "a key that is set and removed": ("ztensor@2", {"metadata": {"k": "new"}, "remove": ["k"]}, "edit.remove"),
    "no metadata in the format": ("dynd@1", {"metadata": {"k": "v"}}, "save.metadata"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    format, options, rule = REFUSED[case]
    path = made(tmp_path, format)
    before = path.read_bytes()
    with pytest.raises(tg.TensorglotError) as caught:
        tg.edit(path, **options)
    assert caught.value.rule == rule
    assert path.read_bytes() == before


def test_old_versions_are_refused(tmp_path: Path) -> None:
    corpus = Path(__file__).parent / "corpus" / "ztensor-1"
    path = tmp_path / "old.zt"
    path.write_bytes(next(iter(sorted(corpus.glob("*.zt")))).read_bytes())
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.edit(path, {"k": "v"})
    assert caught.value.rule == "format.write"


@pytest.mark.parametrize(
    "format", ["bintensors@0", "bintensors@1", "safetensors", "npz", "gguf", "ztensor@0.1", "ztensor@2"]
)
def test_several_tensors_at_once(format: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    tensors = {name: np.full(3, number, np.float32) for number, name in enumerate("abcdefg")}
    tg.save(path, {name: tensors[name] for name in "abc"}, format=format, durable=False)
    changed = {"b": np.full(5, 9, np.float32), "c": np.full(2, 8, np.float32)}
    tg.edit(path, drop=["a"], replace=changed, add={name: tensors[name] for name in "defg"}, durable=False)
    loaded = tg.load(path, format=format)
    expected = changed | {name: tensors[name] for name in "defg"}
    assert {name: array.tolist() for name, array in loaded.items()} == {k: v.tolist() for k, v in expected.items()}


class TestCommandLine:
    def test_edit(self, tmp_path: Path) -> None:
        path = made(tmp_path, "ztensor@0.1", metadata={"old": "x"})
        result = run("edit", path, "--set", "a=b=c", "--set-json", 'n={"x": [1]}', "--remove", "old", "--in-place")
        assert metadata_of(path) == {"a": "b=c", "n": {"x": [1]}}
        assert result.stdout.split() == ["a", "b=c", "n", "{'x':", "[1]}"]
        report = json.loads(run("edit", path, "--set", "a=b=c", "--json").stdout)
        assert (report["changed"], report["metadata"]["a"]) == (False, "b=c")
        run("edit", path, code=2)
        report = json.loads(run("edit", path, "--set-json", "n=[NaN]", "--json").stdout)
        assert report["metadata"]["n"] == ["NaN"]
        run("edit", path, "--set-json", "n={", code=2)
        run("edit", path, "--remove", "nothing", code=2)


def test_a_manifest_that_is_not_last(tmp_path: Path) -> None:
    """As in a file that was appended to: what is behind it may belong to a tensor, and is kept."""
    path = made(tmp_path, "ztensor@2")
    data = path.read_bytes()
    path.write_bytes(data[:-FOOTER_2] + bytes(8) + data[-FOOTER_2:])
    assert metadata_of(path) is None
    for in_place in (False, True):
        tg.edit(path, {"a": str(in_place)}, in_place=in_place)
        assert metadata_of(path) == {"a": str(in_place)}
        assert {name: array.tobytes() for name, array in tg.load(path, verify="require").items()} == {
            name: array.tobytes() for name, array in TENSORS.items()
        }
    assert path.read_bytes().startswith(data[:-FOOTER_2])


CHANGES: dict[str, dict[str, Any]] = {
    "drop": {"drop": ["v"]},
    "replace": {"replace": {"v": np.arange(3)}},
    "add": {"add": {"u": np.arange(3)}},
    "add in place": {"add": {"u": np.arange(3)}, "in_place": True},
    "metadata": {"metadata": {"a": "b"}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_pairs_of_a_manifest_that_have_no_meaning_here_stay(change: str, tmp_path: Path) -> None:
    path = tmp_path / "a.zt"
    path.write_bytes(file2({"objects": {"v": tensor(), "w": tensor()}, "x.y": {"z": [1, 2]}}))
    tg.edit(path, **CHANGES[change])
    data = path.read_bytes()
    begin, nbytes = struct.unpack_from("<QQ", data, len(data) - FOOTER_2)
    assert cbor2.loads(data[begin : begin + nbytes])["x.y"] == {"z": [1, 2]}
    assert tg.load(path, names=["w"])["w"].tobytes() == b"abcd"


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_a_file_whose_tensors_are_all_dropped_keeps_its_metadata(format: str, tmp_path: Path) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, {"w": np.ones(3)}, format=format, metadata={"a": "b"})
    tg.edit(path, drop=["w"])
    assert tg.verify(path, deep=True).ok
    with tg.open(path) as archive:
        assert (len(archive), archive.metadata) == (0, {"a": "b"})


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_added_tensors_that_share_memory_share_bytes_and_have_checksums(format: str, tmp_path: Path) -> None:
    path, shared = tmp_path / "x.zt", np.arange(50.0)
    tg.save(path, {"w": np.ones(3)}, format=format)
    tg.edit(path, add={"a": shared, "b": shared})
    with tg.open(path) as archive:
        assert archive["a"].offset == archive["b"].offset
        assert archive["a"].parts["data"].checksum is not None
        assert archive["a"].parts["data"].checksum == archive["b"].parts["data"].checksum
    assert tg.verify(path, deep=True).ok


def test_a_part_of_an_added_tensor_that_has_the_name_of_another(tmp_path: Path) -> None:
    sparse = needs("scipy.sparse").csr_array(np.eye(3))
    tg.save(tmp_path / "x.zt", {"s#values": np.ones(3)}, format="ztensor@0.1")
    before = (tmp_path / "x.zt").read_bytes()
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.edit(tmp_path / "x.zt", add={"s": sparse})
    assert (caught.value.rule, caught.value.tensor) == ("ztensor.write.name", "s#values")
    assert (tmp_path / "x.zt").read_bytes() == before


@pytest.mark.parametrize("value", [np.ones(2), np.zeros(0, np.float32), np.zeros(3, np.uint8)], ids=str)
def test_a_tensor_with_the_name_of_the_metadata_entry_of_ztensor_01(value: Any, tmp_path: Path) -> None:
    """It is kept, whatever attributes it has, and metadata, which needs an entry of this name, is refused."""
    path, name = tmp_path / "model.zt", "__metadata__"
    attributes = {name: {"metadata": {"a": 1}}}
    tg.save(path, {name: value, "w": np.ones(3), "b": np.ones(4)}, format="ztensor@0.1", attributes=attributes)
    before = path.read_bytes()
    for change in ({}, {"drop": ["w"]}, {"add": {"n": np.ones(1)}}):
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.edit(path, {"step": "1"}, **change)  # type: ignore[arg-type]
        assert (caught.value.rule, caught.value.tensor) == ("ztensor.write.name", name)
        assert path.read_bytes() == before
    tg.edit(path, drop=["w"])
    with tg.open(path) as archive:
        assert sorted(archive) == [name, "b"]
        assert archive[name].attributes == attributes[name]
        assert np.array_equal(archive[name].numpy(), value)
    tg.edit(path, {"step": "1"}, drop=[name])
    with tg.open(path) as archive:
        assert (list(archive), archive.metadata) == (["b"], {"step": "1"})
    with pytest.raises(tg.UnsupportedError, match=r"rule ztensor\.write\.name"):
        tg.edit(path, add={name: np.ones(2)})
    assert list(tg.load(path)) == ["b"]


SIMILAR = [(1, True), (True, 1), (1, 1.0), (0.0, -0.0), ([1, [0]], [1, [False]])]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2", "npz@1"])
@pytest.mark.parametrize(("old", "new"), SIMILAR)
def test_a_value_that_only_equals_the_old_one_is_written(
    old: Any, new: Any, format: str, in_place: bool, tmp_path: Path
) -> None:
    path = made(tmp_path, format, metadata={"x": old})
    assert tg.edit(path, {"x": new}, in_place=in_place).changed
    assert repr(metadata_of(path)["x"]) == repr(new)
    assert not tg.edit(path, {"x": new}, in_place=in_place).changed


def test_a_width_of_gguf_is_written_over_another(tmp_path: Path) -> None:
    path = made(tmp_path, "gguf@3", metadata={"x": 1})
    for value in (np.uint64(1), np.arange(3), np.array(7, np.int16)):
        assert tg.edit(path, {"x": value}).changed
        assert path.read_bytes() == tg.dumps(TENSORS, format="gguf", metadata={"x": value})
    assert metadata_of(path) == {"x": 7}


def test_not_a_number_is_no_change(tmp_path: Path) -> None:
    path = made(tmp_path, "ztensor@0.1", metadata={"x": float("nan")})
    assert not tg.edit(path, {"x": float("nan")}).changed


def test_a_tensor_with_the_name_of_a_part_is_another_tensor(tmp_path: Path) -> None:
    """Its own part is the entry `s#values#data`; the entry `s#values` belongs to the sparse tensor."""
    parts = {"values": np.ones(1, np.float32), "coords": np.uint32([[0], [1]])}
    sparse = tg.Tensor.of_parts("s", "zt.sparse_coo/1", (2, 2), parts, {})
    path = tmp_path / "a.zt"
    tg.save(path, {"s#values": np.ones(2, np.complex64), "s": sparse})
    with tg.open(path) as archive:
        before = archive["s"].cid()
    tg.edit(path, replace={"s#values": np.zeros(3, np.complex64)}, add={"new": np.ones(1)})
    with tg.open(path) as archive:
        assert (list(archive), archive["s"].cid()) == (["s#values", "s", "new"], before)
        assert archive["s#values"].numpy().tolist() == [0, 0, 0]
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.edit(path, replace={"s#values": np.zeros(3)})
    assert caught.value.rule == "ztensor.write.name"
    tg.edit(path, drop=["s"])
    assert list(tg.load(path)) == ["s#values", "new"]


def test_metadata_is_the_first_entry_of_a_changed_index(tmp_path: Path) -> None:
    path = made(tmp_path, "ztensor@0.1", metadata={"old": "x"})
    tg.edit(path, {"a": "b"}, add={"u": np.arange(3)})
    data = path.read_bytes()
    nbytes = int.from_bytes(data[-8:], "little")
    assert [entry["name"] for entry in cbor2.loads(data[-8 - nbytes : -8])] == [METADATA, *TENSORS, "u"]
