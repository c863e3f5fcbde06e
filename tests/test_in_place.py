"""Tensors changed in place in zTensor 2: nothing of the old file is touched, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from faults import FaultyOs
from replaced import change_at_once, names
from tensorglot.io import in_place, sink
from traced import CALLS, Traced, python

LARGE = np.arange(60_000, dtype=np.float64)
TENSORS = {"large": LARGE, "a": np.arange(6.0).reshape(2, 3), "b": np.ones(700, np.float32), "none": np.zeros((0, 2))}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.zt"
    tg.save(path, TENSORS, format="ztensor@2", metadata={"k": "v"}, compression={"a": "zstd"})
    return path


def contents(path: Path) -> dict[str, Any]:
    """Values and metadata, all checked."""
    assert tg.verify(path, deep=True).ok
    with tg.open(path) as archive:
        return {**{name: tensor.numpy().tolist() for name, tensor in archive.items()}, "metadata": archive.metadata}


def expected(**changes: Any) -> dict[str, Any]:
    found = {**TENSORS, "metadata": {"k": "v"}, **changes}
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}
    return {name: value for name, value in plain.items() if value is not None}


def replace(path: Path) -> Any:
    return tg.edit(path, replace={"b": np.zeros((3, 3))}, drop=["a"], in_place=True)


def append(path: Path) -> None:
    with tg.Writer(path, append=True, in_place=True, compression="zstd") as out:
        out.add("new", np.arange(5000))


def metadata(path: Path) -> Any:
    return tg.edit(path, {"step": 3}, in_place=True)


def test_in_place_is_a_way_to_append(tmp_path: Path) -> None:
    with pytest.raises(tg.InputError, match="in_place= needs append=True") as caught:
        tg.Writer(tmp_path / "new.zt", in_place=True)
    assert caught.value.rule == "writer.append"
    assert not (tmp_path / "new.zt").exists()


CHANGES: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "replace": (replace, {"b": np.zeros((3, 3)), "a": None}),
    "append": (append, {"new": np.arange(5000)}),
    "metadata": (metadata, {"metadata": {"k": "v", "step": 3}}),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_changes_before_it_is_opened_for_writing(
    how: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty, done = FaultyOs(), list[str]()

    def strike(name: str, arguments: Any) -> None:
        if name == "open" and not done:
            done.append(name)
            tg.save(path, {"other": np.ones(9)}, format="ztensor@2")

    faulty.before = strike
    monkeypatch.setattr(in_place, "os", faulty)
    if how == "append":
        CHANGES[how][0](path)  # what is appended does not depend on what was there
    else:
        with pytest.raises(tg.InputError) as caught:
            CHANGES[how][0](path)
        assert caught.value.rule == "source.changed"
    assert done
    assert set(tg.load(path)) == ({"other", "new"} if how == "append" else {"other"})


@pytest.mark.parametrize("how", CHANGES)
def test_the_old_file_is_a_prefix_of_the_new_one(how: str, path: Path) -> None:
    change, difference = CHANGES[how]
    old, inode = path.read_bytes(), path.stat().st_ino
    reader = tg.open(path)
    done = change(path)
    assert path.read_bytes().startswith(old)
    assert path.stat().st_ino == inode
    assert done is None or done.in_place
    assert contents(path) == expected(**difference)
    assert (reader["b"].numpy() == TENSORS["b"]).all(), "an archive that was open reads the old tensors"
    reader.close()
    assert names(path.parent) == [path.name]


def test_what_an_edit_in_place_leaves_behind_is_not_canonical(tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    tg.save(path, {"a": np.arange(9)}, format="ztensor@2")
    tg.open(path, strict=True).close()
    assert metadata(path).in_place
    with pytest.raises(tg.FormatError, match=r"rule ztensor\.strict\.place"):
        tg.open(path, strict=True)


def test_one_change_after_the_other_and_a_copy_at_the_end(path: Path) -> None:
    for how in ("append", "metadata", "replace"):
        CHANGES[how][0](path)
    difference = {"new": np.arange(5000), "b": np.zeros((3, 3)), "a": None, "metadata": {"k": "v", "step": 3}}
    assert contents(path) == expected(**difference)
    large = path.stat().st_size
    tg.edit(path, {"step": 4})
    assert contents(path) == expected(**difference | {"metadata": {"k": "v", "step": 4}})
    tg.edit(path, drop=["none"])
    assert path.stat().st_size < large
    with tg.open(path) as archive:
        spans = sorted((part.offset or 0, part.nbytes) for t in archive.values() for part in t.parts.values())
    unused = path.stat().st_size - sum(nbytes for _, nbytes in spans)
    assert unused < 6 * 4096, "a copy leaves only what alignment needs"


def test_a_copy_is_made_where_most_of_the_file_would_be_unused(path: Path) -> None:
    inode, before = path.stat().st_ino, path.stat().st_size
    done = tg.edit(path, replace={"large": np.ones(3)}, in_place=True)
    assert not done.in_place
    assert path.stat().st_ino != inode
    assert path.stat().st_size < before / 4
    assert contents(path) == expected(large=np.ones(3))


def test_padding_does_not_count_as_unused(tmp_path: Path) -> None:
    """Most of this file is padding, which a copy would have as well."""
    path = tmp_path / "model.zt"
    tg.save(path, {"a": np.zeros(40_000, np.uint8), "b": np.ones(40_000, np.uint8)}, format="ztensor@2")
    old = path.read_bytes()
    assert tg.edit(path, drop=["b"], in_place=True).in_place
    assert path.read_bytes().startswith(old)


def test_other_formats_are_refused_and_left_alone(tmp_path: Path) -> None:
    for name in ("x.zt", "x.bt", "x.safetensors", "x.npz"):
        tg.save(tmp_path / name, TENSORS)
        before = (tmp_path / name).read_bytes()
        for change in (replace, append):
            with pytest.raises(tg.UnsupportedError) as caught:
                change(tmp_path / name)
            assert caught.value.rule == "edit.in_place"
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(tg.InputError, match=r"rule writer\.append"):
        tg.Writer(tmp_path / "new.zt", in_place=True)


def test_a_file_that_changes_meanwhile_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"other": np.ones(9)}
    for change in (replace, append, metadata):
        tg.save(path, TENSORS, format="ztensor@2")
        faulty, done = FaultyOs(), []

        def strike(name: str, arguments: Any, done: list[str] = done) -> None:
            if name == "pwrite" and not done:
                done.append(name)
                tg.save(path, other, format="ztensor@2")

        faulty.before = strike
        with monkeypatch.context() as patched:
            patched.setattr(sink, "os", faulty)
            if change is append:
                change(path)  # what is appended does not depend on what was there
            else:
                with pytest.raises(tg.InputError) as caught:
                    change(path)
                assert caught.value.rule == "source.changed"
        assert done
        assert set(tg.load(path)) == ({"other", "new"} if change is append else {"other"})


@pytest.mark.parametrize("how", CHANGES)
def test_a_fault_of_any_operation_restores_the_old_file(how: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = path.read_bytes()
    change, _ = CHANGES[how]
    counting = FaultyOs()
    with monkeypatch.context() as patched:
        patched.setattr(in_place, "os", counting)
        patched.setattr(sink, "os", counting)
        change(path)
    total = len(counting.calls)
    assert {"pwrite", "copy_file_range", "fsync"} <= set(counting.calls)
    for after in (False, True) if how == "replace" else (False,):
        for strike in range(1, total + 1):
            path.write_bytes(old)
            faulty = FaultyOs(strike, OSError(5, "Input/output error"), after=after)
            with monkeypatch.context() as patched:
                patched.setattr(in_place, "os", faulty)
                patched.setattr(sink, "os", faulty)
                with pytest.raises(OSError, match="Input/output"):
                    change(path)
            if faulty.calls[strike - 1] != "close":
                assert path.read_bytes() == old, (faulty.calls[strike - 1], after)
    assert names(path.parent) == [path.name]


def test_a_tail_of_several_steps_where_the_operating_system_does_not_copy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyOs()
    faulty.lacks = frozenset({"copy_file_range"})
    for module in (in_place, sink):
        monkeypatch.setattr(module, "os", faulty)
    added = np.arange(2 * in_place.GROWTH_NBYTES // 8 + 1)
    with tg.Writer(path, append=True, in_place=True) as out:
        out.add("new", added)
    assert (tg.load(path, verify="require")["new"] == added).all()


def test_all_who_change_one_file_in_place_at_once(path: Path) -> None:
    added = change_at_once(path, in_place=True)
    assert contents(path) == expected(**added)


KILLED = """
import sys
from pathlib import Path
import test_in_place
test_in_place.CHANGES[sys.argv[2]][0](Path(sys.argv[1]))
"""


@pytest.mark.parametrize("how", ["replace", "append"])
def test_a_kill_at_any_system_call_leaves_the_old_contents_or_the_new_ones(how: str, path: Path) -> None:
    old = path.read_bytes()
    program = Traced(python(KILLED, path, how), f"{CALLS},write")
    calls = program.system_calls()
    before, after = expected(), expected(**CHANGES[how][1])
    assert contents(path) == after
    first = calls.index("pwrite64")
    assert calls[first:].count("pwrite64") == 2
    outcomes = []
    for i, call in list(enumerate(calls))[first:]:
        path.write_bytes(old)
        program.kill(calls, i)
        assert path.read_bytes().startswith(old)
        found = contents(path)
        assert found in (before, after), (call, i)
        outcomes.append(found == after)
        tg.edit(path, {"again": 1}, in_place=True)  # whatever was left, the next change works
        assert contents(path) == found | {"metadata": {"k": "v", "again": 1}}
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)
