"""Tensors replaced, dropped and added in a file: every format, what stays is unchanged, kills, two writers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tensorglot as tg
from command_line import run as cli
from faults import FaultyOs, copied_nbytes
from replaced import change_at_once, names
from tensorglot.io import sink
from traced import Traced, python

TENSORS = {
    "a": np.arange(6.0).reshape(2, 3), "b": np.ones(700, np.float32), "none": np.zeros((0, 2)), "c": np.arange(100),
}  # fmt: skip
NAMED = [(spec, f"{spec.name}@{v}") for spec in tg.formats() for v in spec.writes if spec.names and spec.name != "bson"]
CASES = [(spec, format, compression) for spec, format in NAMED for compression in (None, *spec.compression)]
IDS = [f"{format} {compression}" for _, format, compression in CASES]
ZTENSOR = ["ztensor@0.1", "ztensor@2"]


def made(folder: Path, spec: Any, format: str, **options: Any) -> Path:
    path = folder / f"model{spec.suffixes[0]}"
    if spec.metadata != "none":
        options.setdefault("metadata", {"k": "v"})
    tg.save(path, TENSORS, format=format, **options)
    return path


def check(path: Path, expected: dict[str, NDArray[Any]]) -> None:
    with tg.open(path) as archive:
        assert set(archive) == set(expected)
        for name, array in expected.items():
            assert archive[name].dtype == array.dtype
            assert archive[name].shape == array.shape
            assert (archive[name].numpy() == array).all()
    assert tg.verify(path, deep=True).ok
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize(("spec", "format", "compression"), CASES, ids=IDS)
def test_every_change_in_every_format(spec: Any, format: str, compression: str | None, tmp_path: Path) -> None:
    path = made(tmp_path, spec, format, compression=compression)
    with tg.open(path) as archive:
        before = archive.info("c")
    expected = dict(TENSORS)
    new = np.full((3, 3), 7.0)
    done = tg.edit(path, replace={"b": new})
    assert (done.changed, done.replaced, done.dropped, done.added) == (True, ("b",), (), ())
    expected["b"] = new
    check(path, expected)
    tg.edit(path, drop=["a"])
    del expected["a"]
    check(path, expected)
    with tg.Writer(path, append=True) as out:
        out.add("d", np.arange(3))
        with out.stream("e", "float32", (4, 2)) as stream:
            stream.write(np.ones((4, 2), np.float32))
    expected |= {"d": np.arange(3), "e": np.ones((4, 2), np.float32)}
    check(path, expected)
    done = tg.edit(path, replace={"c": new}, drop=["d", "none"], add={"f": new.copy()})
    expected = {"b": new, "c": new, "e": expected["e"], "f": new}
    check(path, expected)
    with tg.open(path) as archive:
        assert archive.format == format
        assert archive.metadata == (None if spec.metadata == "none" else {"k": "v"})
        assert archive["c"].encoding == before["encoding"]
        assert (archive["c"].checksum is None) == (before["checksum"] is None)
    tg.edit(path, drop=[*expected])
    check(path, {})


@pytest.mark.parametrize("format", ZTENSOR)
def test_what_stays_is_copied_as_it_is_stored(format: str, tmp_path: Path) -> None:
    """Sparse and compressed tensors, custom fields, checksums; nothing is decoded or hashed again."""
    path = tmp_path / "x.zt"
    csr = tg.Tensor.of_parts(
        "s", "zt.sparse_csr/1", (2, 3),
        {"values": np.ones(2), "indices": np.array([0, 2], np.uint32), "indptr": np.array([0, 1, 2], np.uint32)},
    )  # fmt: skip
    values = {"w": TENSORS["b"], "s": csr, "z": TENSORS["b"], "x": TENSORS["a"], "last": TENSORS["c"]}
    options: Any = {"compression": {"z": "zstd"}, "checksum": "sha256", "attributes": {"w": {"unit": [1, None]}}}
    tg.save(path, values, format=format, metadata={"m": {"deep": [1]}}, **options)

    def told(name: str) -> Any:
        info = archive.info(name)
        for place in (info, *info["parts"].values()):
            place.pop("offset")
        return info

    with tg.open(path) as archive:
        before = {name: told(name) for name in archive}
    tg.edit(path, drop=["x"], replace={"last": np.zeros(1000)}, add={"s2": csr})
    with tg.open(path, verify="require") as archive:
        for name in ("w", "s", "z"):
            assert told(name) == before[name]
        assert (archive["z"].numpy() == TENSORS["b"]).all()
        assert (archive["s2"].parts["indices"].array() == [0, 2]).all()
        assert archive["last"].checksum is not None
        assert archive["last"].checksum.startswith("sha256:")
        assert archive.metadata == {"m": {"deep": [1]}}
        spans = sorted((p.offset or 0, p.nbytes) for t in archive.values() for p in t.parts.values())
        assert spans[0][0] <= 65536, "what was dropped leaves no hole at the front"
    assert tg.verify(path, deep=True).ok


@pytest.mark.parametrize("format", ZTENSOR)
def test_an_append_moves_nothing(format: str, tmp_path: Path) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, TENSORS, format=format)
    with tg.open(path) as archive:
        before = {name: archive.info(name) for name in archive}
    with tg.Writer(path, append=True, compression="zstd", metadata={"step": 2}) as out:
        out.add("new", np.zeros(5000))
    with tg.open(path) as archive:
        assert {name: archive.info(name) for name in archive if name != "new"} == before
        assert "zstd" in archive["new"].encoding
        assert archive.metadata == {"step": 2}


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2", "safetensors@1"])
def test_the_operating_system_copies_what_stays(format: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    tg.save(path, {"w": np.zeros(1 << 20), "v": np.zeros(9), "x": np.ones(1 << 18)}, format=format)
    assert copied_nbytes(lambda: tg.edit(path, drop=["v"])) >= 10 << 20


def test_a_corrupt_tensor_that_stays_is_not_blessed(tmp_path: Path) -> None:
    """zTensor keeps the old checksum; a .npz, whose checksums are written anew, is refused."""
    for suffix in (".zt", ".npz"):
        path = tmp_path / f"x{suffix}"
        tg.save(path, TENSORS)
        data = bytearray(path.read_bytes())
        with tg.open(path) as archive:
            data[archive["b"].offset or 0] ^= 1
        path.write_bytes(data)
        if suffix == ".zt":
            tg.edit(path, drop=["a"])
            assert {problem.tensor for problem in tg.verify(path).problems} == {"b"}
        else:
            with pytest.raises(tg.IntegrityError):
                tg.edit(path, drop=["a"])
            assert path.read_bytes() == data


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a tensor that is not there is replaced": ({"replace": {"x": np.ones(1)}}, "tensor.name"),
    "a tensor that is not there is dropped": ({"drop": ["x"]}, "tensor.name"),
    "a tensor that is there is added": ({"add": {"a": np.ones(1)}}, "edit.add"),
    "dropped and replaced": ({"drop": ["a"], "replace": {"a": np.ones(1)}}, "edit.drop"),
    "dropped twice": ({"drop": ["a", "a"]}, "edit.drop"),
    "a text for names": ({"drop": "a"}, "edit.drop"),
    "no mapping": ({"replace": ["a"]}, "edit.replace"),
    "a name that is no text": ({"add": {3: np.ones(1)}}, "edit.add"),
    "a value that is none": ({"replace": {"a": object()}}, "dynd.infer"),
    "a value that the format has not": ({"replace": {"a": np.array([1 + 2j])}}, "bintensors.write.dtype"),
    "in place": ({"drop": ["a"], "in_place": True}, "edit.in_place"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path) -> None:
    options, rule = REFUSED[what]
    path = tmp_path / "x.bt"
    tg.save(path, TENSORS)
    before = path.read_bytes()
    with pytest.raises(tg.TensorglotError) as caught:
        tg.edit(path, **options)
    assert caught.value.rule == rule
    assert path.read_bytes() == before
    assert names(tmp_path) == ["x.bt"]


def test_what_cannot_be_appended_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tg.Writer(tmp_path / "none.zt", append=True)
    np.save(tmp_path / "x.npy", np.ones(3))
    tg.save(tmp_path / "x.zt", TENSORS)
    for target, rule in ((tmp_path / "x.npy", "format.write"), (tmp_path, "writer.append")):
        with pytest.raises(tg.TensorglotError) as caught:
            tg.Writer(target, append=True)
        assert caught.value.rule == rule
    before = (tmp_path / "x.zt").read_bytes()
    with tg.Writer(tmp_path / "x.zt", append=True) as out, pytest.raises(tg.InputError) as caught:
        out.add("a", np.ones(1))
    assert (caught.value.rule, caught.value.tensor) == ("writer.name", "a")

    def fail() -> None:
        with tg.Writer(tmp_path / "x.zt", append=True) as out:
            out.add("new", np.ones(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with tg.open(tmp_path / "x.zt") as archive:
        assert set(archive) == set(TENSORS)
    assert len((tmp_path / "x.zt").read_bytes()) == len(before)


def test_a_sidecar_is_not_left_wrong(tmp_path: Path) -> None:
    path = tmp_path / "x.bt"
    tg.save(path, TENSORS)
    tg.verify(path, sums="write")
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.edit(path, drop=["a"])
    assert caught.value.rule == "edit.sidecar"
    with pytest.raises(tg.UnsupportedError, match=r"rule edit\.sidecar"), tg.Writer(path, append=True) as out:
        out.add("new", np.ones(1))
    assert tg.verify(path).ok


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2", "safetensors@1"])
def test_all_who_append_and_edit_at_once_are_in_the_file(format: str, tmp_path: Path) -> None:
    suffix = ".zt" if format.startswith("ztensor") else ".safetensors"
    path = tmp_path / f"x{suffix}"
    tg.save(path, TENSORS, format=format, durable=False)
    check(path, {**TENSORS, **change_at_once(path, in_place=False)})


def test_two_who_append_one_name(tmp_path: Path) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, TENSORS)
    late = tg.Writer(path, append=True)
    with tg.Writer(path, append=True) as early:
        early.add("new", np.ones(1))
    late.add("new", np.zeros(1))
    with pytest.raises(tg.InputError) as caught:
        late.__exit__(None, None, None)
    assert (caught.value.rule, caught.value.tensor) == ("writer.name", "new")
    check(path, {**TENSORS, "new": np.ones(1)})


def edit(path: Path) -> None:
    tg.edit(path, replace={"b": np.zeros(9)}, drop=["a"])


def append(path: Path) -> None:
    with tg.Writer(path, append=True) as out:
        out.add("new", np.arange(5))


KILLED = """
import sys
import numpy as np
import tensorglot as tg
path, how = sys.argv[1:]
if how == "edit":
    tg.edit(path, replace={"b": np.zeros(9)}, drop=["a"])
else:
    with tg.Writer(path, append=True) as out:
        out.add("new", np.arange(5))
"""


@pytest.mark.parametrize("how", ["edit", "append"])
def test_a_kill_at_any_system_call_leaves_the_old_file_or_the_new_one(how: str, tmp_path: Path) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, TENSORS)
    old = path.read_bytes()
    program = Traced(python(KILLED, path, how))
    calls = program.system_calls()
    new = path.read_bytes()
    assert new != old
    assert "copy_file_range" in calls
    outcomes = []
    for i, call in enumerate(calls):
        path.write_bytes(old)
        program.kill(calls, i)
        contents = path.read_bytes()
        assert contents in (old, new), (call, i)
        outcomes.append(contents == new)
        for left in set(names(tmp_path)) - {path.name}:
            (tmp_path / left).unlink()
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


@pytest.mark.parametrize("how", [edit, append])
def test_a_fault_of_any_operation_leaves_the_old_file(
    how: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, TENSORS)
    old = path.read_bytes()
    seen: list[str] = []
    faulty = FaultyOs()
    faulty.before = lambda name, arguments: seen.append(name)
    with monkeypatch.context() as patched:
        patched.setattr(sink, "os", faulty)
        how(path)
    new = path.read_bytes()
    total = len(seen)
    assert total > 8
    for failing in range(total):
        path.write_bytes(old)
        count = 0

        def fail(name: str, arguments: tuple[Any, ...], failing: int = failing) -> None:
            nonlocal count
            count += 1
            if count == failing + 1:
                raise OSError(5, "Input/output error")

        faulty = FaultyOs()
        faulty.before = fail
        with monkeypatch.context() as patched:
            patched.setattr(sink, "os", faulty)
            with contextlib.suppress(OSError):
                how(path)
        assert path.read_bytes() in (old, new), (failing, seen[failing])
        assert names(tmp_path) == ["x.zt"], (failing, seen[failing])


def test_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, TENSORS)
    np.save(tmp_path / "one.npy", np.full(3, 2.0))
    tg.save(tmp_path / "many.bt", {"c": np.zeros(2), "q": np.ones(2)})
    done = cli(
        "edit", path, "--replace", f"b={tmp_path / 'one.npy'}", "--replace", f"c={tmp_path / 'many.bt'}",
        "--add", f"new={tmp_path / 'many.bt'}:q", "--drop", "a", "--set", "k=v",
    )  # fmt: skip
    assert "replaced b" in done.stderr
    assert "dropped a" in done.stderr
    with tg.open(path) as archive:
        assert archive.metadata == {"k": "v"}
        assert {name: tensor.numpy().tolist() for name, tensor in archive.items()} == {
            "b": [2.0] * 3, "none": [], "c": [0.0] * 2, "new": [1.0] * 2,
        }  # fmt: skip
    cli("edit", path, "--drop", "a", code=2)
    cli("edit", path, code=2)
