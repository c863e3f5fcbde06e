"""Two who write to one file: nothing is lost, and nobody is told of a success that is none.

A save replaces whatever is there: the last one wins. An edit, a merge into one of its
sources and a sidecar depend on what was read: they stop if it has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from faults import FaultyOs
from replaced import names
from tensorglot.io import in_place as tail
from tensorglot.io import sink

TENSORS = {"w": np.arange(3000, dtype=np.float32), "b": np.ones(5)}
OTHER = {"other": np.zeros(7)}


@pytest.fixture
def path(folder: Path) -> Path:
    tg.save(folder / "model.zt", TENSORS, metadata={"step": "1"}, durable=False)
    return folder / "model.zt"


def metadata_of(path: Path) -> Any:
    with tg.open(path, strict=True) as archive:
        assert (archive["w"].numpy() == TENSORS["w"]).all()
        return archive.metadata


def at(faulty: FaultyOs, operation: str, do: Callable[[], object]) -> list[str]:
    """Does something before the first operation of that name, which is then in the list."""
    done: list[str] = []

    def before(name: str, arguments: tuple[Any, ...]) -> None:
        if name == operation and not done:
            done.append(name)
            do()

    faulty.before = before
    return done


IN_PLACE = {"in place": (True, True), "replacing": (False, False), "both": (True, False)}


def test_a_file_that_is_replaced_and_being_written_when_it_is_read_has_changed(path: Path) -> None:
    """Between the lock and the read, another editor replaced the file, and a third began to change the new one."""
    torn = path.with_name("torn")
    torn.write_bytes(path.read_bytes()[:-1])

    def read(replaced: bool) -> None:
        with tail.lock_for_edit(path):
            if replaced:
                torn.replace(path)
            tg.open(path)

    with pytest.raises(tg.InputError) as caught:
        read(replaced=True)
    assert caught.value.rule == "source.changed"
    with pytest.raises(tg.FormatError, match=r"rule ztensor\.index\.size"):
        read(replaced=False)


@pytest.mark.parametrize("how", IN_PLACE)
def test_every_edit_that_is_reported_as_done_is_in_the_file(how: str, path: Path) -> None:
    outcomes: dict[int, str] = {}
    start = threading.Barrier(4)

    def work(worker: int) -> None:
        start.wait()
        for i in range(worker, 80, 4):
            try:
                tg.edit(path, {f"key{i}": "x" * i}, in_place=IN_PLACE[how][i % 2], durable=False)
                outcomes[i] = "done"
            except tg.InputError as error:
                outcomes[i] = error.rule

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes.values()) <= {"done", "source.locked", "source.changed"}
    assert len(outcomes) == 80
    done = {f"key{i}": "x" * i for i, outcome in outcomes.items() if outcome == "done"}
    assert done, "nobody came through"
    assert metadata_of(path) == {"step": "1", **done}
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize("in_place", [False, True])
def test_a_file_that_another_process_is_editing_is_locked(in_place: bool, path: Path) -> None:
    before = path.read_bytes()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(tg.InputError) as caught:
            tg.edit(path, {"a": "b"}, in_place=in_place)
    assert (caught.value.rule, caught.value.path) == ("source.locked", str(path))
    assert path.read_bytes() == before
    tg.edit(path, {"a": "b"}, in_place=in_place)
    assert metadata_of(path) == {"step": "1", "a": "b"}


def save_other(path: Path) -> None:
    tg.save(path, OTHER, durable=False)


def write_over(path: Path) -> None:
    """As a program that knows nothing of locks."""
    data = path.read_bytes()
    path.write_bytes(data[:64] + data[:1] + data[65:])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [save_other, write_over, remove])
@pytest.mark.parametrize(
    ("in_place", "operation"),
    [
        (False, "open"),
        (False, "link"),
        (False, "close"),  # the last one before the file is replaced
        (True, "open"),
    ],
)
def test_a_file_that_changes_under_an_edit_is_left_as_it_is_now(
    in_place: bool, operation: str, change: Callable[[Path], None], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyOs()
    done = at(faulty, operation, lambda: change(path))
    with monkeypatch.context() as patched:
        patched.setattr(sink, "os", faulty)
        patched.setattr(tail, "os", faulty)
        with pytest.raises((tg.InputError, FileNotFoundError)) as caught:
            tg.edit(path, {"a": "b"}, in_place=in_place)
    assert done
    if isinstance(caught.value, tg.InputError):
        assert (caught.value.rule, caught.value.path) == ("source.changed", str(path))
    assert names(path.parent) == ([] if change is remove else [path.name])
    if change is save_other:
        assert tg.load(path).keys() == OTHER.keys()
    elif change is write_over:
        with tg.open(path) as archive:
            assert archive.metadata == {"step": "1"}


@contextlib.contextmanager
def replaced_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replaces the file before the first write of the block, which must notice it."""
    faulty = FaultyOs()
    done = at(faulty, "pwrite", lambda: save_other(path))
    with monkeypatch.context() as patched:
        patched.setattr(sink, "os", faulty)
        with pytest.raises(tg.InputError) as caught:
            yield
    assert done
    assert caught.value.rule == "source.changed"


def test_an_edit_in_place_of_a_file_that_is_replaced_meanwhile_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replaced_meanwhile(path, monkeypatch):
        tg.edit(path, {"a": "b"}, in_place=True)
    assert tg.load(path).keys() == OTHER.keys()


def test_a_save_beside_an_edit_is_never_lost(path: Path) -> None:
    """Who replaces the file and is told so finds it replaced, or edited after that."""
    stop, lost = threading.Event(), []

    def edit() -> None:
        while not stop.is_set():
            try:
                tg.edit(path, {"e": os.urandom(4).hex()}, durable=False)
            except tg.InputError:
                continue

    editor = threading.Thread(target=edit)
    editor.start()
    for i in range(100):
        tg.save(path, TENSORS, metadata={"step": str(i)}, durable=False)
        with tg.open(path) as archive:
            if (archive.metadata or {}).get("step") != str(i):
                lost.append(i)
    stop.set()
    editor.join()
    assert lost == []


def test_a_lock_on_the_directory_does_not_block_a_save(path: Path) -> None:
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        save_other(path)
    finally:
        os.close(fd)
    assert tg.load(path).keys() == OTHER.keys()


# Sidecars


def test_a_sidecar_is_not_written_through_a_planted_link(path: Path, tmp_path: Path) -> None:
    victim, sidecar = tmp_path / "victim", path.with_name("model.zt.sums")
    for exists in (True, False):
        if exists:
            victim.write_text("precious")
        sidecar.symlink_to(victim)
        with pytest.raises(tg.InputError) as caught:
            tg.verify(path, sums="write")
        assert (caught.value.rule, caught.value.path) == ("sink.target", str(sidecar))
        planted = path.with_name("new.bt.sums")
        planted.symlink_to(victim)
        with pytest.raises(tg.InputError) as caught:
            tg.convert(path, path.with_name("new.bt"), sums=True)
        assert (caught.value.rule, caught.value.path) == ("sink.target", str(planted))
        assert not path.with_name("new.bt").exists()
        planted.unlink()
        assert victim.exists() == exists
        if exists:
            assert victim.read_text() == "precious"
            victim.unlink()
        sidecar.unlink()
    victim.write_text("precious")
    sidecar.hardlink_to(victim)
    tg.verify(path, sums="write")
    assert victim.read_text() == "precious"
    assert tg.verify(path).ok


def test_a_planted_link_stops_an_edit_that_would_take_its_sidecar_along(path: Path, tmp_path: Path) -> None:
    tg.verify(path, sums="write")
    sidecar, moved = path.with_name("model.zt.sums"), tmp_path / "moved"
    sidecar.rename(moved)
    sidecar.symlink_to(moved)
    before = moved.read_bytes(), path.read_bytes()
    with pytest.raises(tg.InputError) as caught:
        tg.edit(path, {"a": "b"})
    assert caught.value.rule == "sink.target"
    assert (moved.read_bytes(), path.read_bytes()) == before


def test_checksums_of_a_file_that_changes_meanwhile_are_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replaced_meanwhile(path, monkeypatch):
        tg.verify(path, sums="write")
    assert names(path.parent) == [path.name]


def test_the_sidecar_of_the_only_file_of_a_directory_is_beside_the_file(path: Path) -> None:
    assert tg.verify(path.parent, sums="write").ok
    assert names(path.parent) == ["model.zt", "model.zt.sums"]
    own, beside = len(TENSORS), len(TENSORS) + 1
    assert tg.verify(path).checksums == tg.verify(path.parent).checksums == own + beside


# Split and merge


def test_a_merge_into_one_of_its_sources_that_changes_meanwhile(path: Path) -> None:
    second = path.with_name("second.zt")
    tg.save(second, {"second": np.ones(3)}, durable=False)
    tg.merge([path, second], path, durable=False)
    assert tg.load(path).keys() == {*TENSORS, "second"}
    with pytest.raises(tg.InputError) as caught:
        tg.merge([path], path, progress=lambda done, total: save_other(path))
    assert caught.value.rule == "source.changed"
    assert tg.load(path).keys() == OTHER.keys()
    tg.merge([second], path, progress=lambda done, total: save_other(path))
    assert tg.load(path).keys() == {"second"}, "a target that was not read is replaced"


WAYS_OVER_ONESELF: dict[str, Callable[[Path, tg.Archive], object]] = {
    "save": lambda path, archive: tg.save(path, archive),
    "convert": lambda path, archive: tg.convert(archive, path, dtype="float64"),
}


@pytest.mark.parametrize("way", WAYS_OVER_ONESELF)
def test_an_archive_is_saved_over_its_own_file_only_as_it_was_read(way: str, path: Path) -> None:
    with tg.open(path) as archive:
        WAYS_OVER_ONESELF[way](path, archive)
    assert tg.load(path).keys() == TENSORS.keys()
    with tg.open(path) as archive:
        save_other(path)
        with pytest.raises(tg.InputError) as caught:
            WAYS_OVER_ONESELF[way](path, archive)
    assert caught.value.rule == "source.changed"
    assert tg.load(path).keys() == OTHER.keys()


def test_a_split_into_a_directory_that_others_write_to_meanwhile(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "shards"
    target.mkdir()
    with pytest.raises(tg.InputError) as caught:
        tg.split(path, target, progress=lambda done, total: (target / "mine").write_text("precious") and None)
    assert (caught.value.rule, caught.value.path) == ("split.target", str(target))
    assert names(target) == ["mine"]
    assert names(tmp_path) == ["folder", "shards"]


def test_two_splits_into_one_directory(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "shards"
    with pytest.raises(tg.InputError, match=r"rule split\.target"):
        tg.split(path, target, progress=lambda done, total: target.exists() or (tg.split(path, target) and None))
    assert tg.verify(target, deep=True).ok
    assert names(tmp_path) == ["folder", "shards"]


def test_nobody_else_can_write_into_a_split_before_it_is_done(path: Path, tmp_path: Path) -> None:
    modes = []

    def look(done: int, total: int) -> None:
        modes.extend(oct(entry.stat().st_mode & 0o777) for entry in tmp_path.glob(".tensorglot-*"))

    before = os.umask(0)
    try:
        tg.split(path, tmp_path / "shards", progress=look)
    finally:
        os.umask(before)
    assert set(modes) == {"0o700"}
    assert (tmp_path / "shards").stat().st_mode & 0o777 == 0o777


def test_a_split_through_a_link_to_an_empty_directory(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files = tg.split(path, tmp_path / "link")
    assert all(file.parent == tmp_path / "link" and file.exists() for file in files)
    assert (tmp_path / "link").is_symlink()
