"""Where a save goes: links, modes, owners, long names, full disks, two writers at once.

A save is whole or absent; a failed one leaves the old file identical and nothing
beside it. What happens when it is broken off is in test_crashes and test_kills.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tensorglot as tg
from faults import FaultyOs
from replaced import NEW, NEW_BYTES, OLD, alone, names, same
from tensorglot.io import sink


@pytest.mark.parametrize("lacks", ["", "O_TMPFILE"])
def test_a_link_planted_at_the_temporary_name_is_not_followed(
    target: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    if lacks:
        faulty = FaultyOs()
        faulty.lacks = frozenset({lacks})
        monkeypatch.setattr(sink, "os", faulty)
    victim = target.parent.parent / "victim"
    victim.write_text("precious")
    planted = target.parent / ".tensorglot-0000000000000000.tmp"
    monkeypatch.setattr(sink, "temporary_name", lambda: planted.name)
    for plant in (lambda: planted.symlink_to(victim), lambda: planted.hardlink_to(victim), planted.touch):
        plant()
        with pytest.raises(FileExistsError):
            tg.save(target, NEW)
        assert victim.read_text() == "precious"
        assert same(target, OLD)
        planted.unlink()  # still there: it was not ours to remove
    tg.save(target, NEW)
    assert same(target, NEW)


def write_by_rows(source: Path, to: Path, **options: Any) -> None:
    with tg.Writer(to, **options) as writer:
        writer.add("w", np.ones(3))


def patch(source: Path, to: Path, **options: Any) -> None:
    tg.store.delta(source, source, to.with_suffix(".tgdelta"), durable=False)
    tg.store.patch(to.with_suffix(".tgdelta"), source, to, **options)


DURABLE: dict[str, Callable[..., object]] = {
    "save": lambda source, to, **options: tg.save(to, NEW, **options),
    "convert": lambda source, to, **options: tg.convert(source, to, **options),
    "edit": lambda source, to, **options: tg.edit(source, {"a": "b"}, **options),
    "edit in place": lambda source, to, **options: tg.edit(source, {"a": "b"}, in_place=True, **options),
    "split": lambda source, to, **options: tg.split(source, to.with_suffix(""), **options),
    "merge": lambda source, to, **options: tg.merge([source], to, **options),
    "Writer": write_by_rows,
    "delta": lambda source, to, **options: tg.store.delta(source, source, to, **options),
    "patch": patch,
}


@pytest.mark.parametrize("verb", DURABLE)
@pytest.mark.parametrize("options", [{}, {"durable": True}, {"durable": False}], ids=str)
def test_what_writes_is_durable_unless_told_otherwise(
    verb: str, options: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.zt"
    tg.save(source, {"w": np.ones(3)})
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(stat.S_IFMT(os.fstat(fd).st_mode)))
    DURABLE[verb](source, tmp_path / "to.zt", **options)
    assert (stat.S_IFREG in synced) == options.get("durable", True)


def test_temporary_names_are_not_predictable(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    faulty = FaultyOs()

    def note(name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("open", "link"):
            seen.update(name for name in arguments[:2] if str(name).endswith(".tmp"))

    faulty.before = note
    monkeypatch.setattr(sink, "os", faulty)
    for lacks in ("", "O_TMPFILE"):
        faulty.lacks = frozenset({lacks})
        for _ in range(10):
            tg.save(target, OLD, durable=False)
    assert len(seen) == 20
    assert all(len(name) == len(".tensorglot-.tmp") + 16 for name in seen)


def test_a_link_stays_a_link_and_what_it_points_to_is_replaced(target: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.bt"
    link.symlink_to(Path("folder") / "model.bt")
    tg.save(link, NEW)
    assert link.is_symlink()
    assert same(target, NEW)
    assert alone(target)
    dangling = tmp_path / "dangling.bt"
    dangling.symlink_to(tmp_path / "later.bt")
    tg.save(dangling, NEW)
    assert dangling.is_symlink()
    assert same(tmp_path / "later.bt", NEW)


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bt").symlink_to(tmp_path / "b.bt")
    (tmp_path / "b.bt").symlink_to(tmp_path / "a.bt")
    with pytest.raises((tg.InputError, OSError), match=r"rule sink\.target"):
        tg.save(tmp_path / "a.bt", OLD)
    assert names(tmp_path) == ["a.bt", "b.bt"]


def test_another_name_of_the_same_file_keeps_the_old_contents(target: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bt"
    other.hardlink_to(target)
    tg.save(target, NEW)
    assert same(target, NEW)
    assert same(other, OLD)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400, 0o444, 0o666, 0o755])
def test_the_mode_of_the_old_file_is_kept_also_where_it_is_read_only(target: Path, mode: int) -> None:
    target.chmod(mode)
    tg.save(target, NEW)
    assert stat.S_IMODE(target.stat().st_mode) == mode
    assert same(target, NEW)


@pytest.mark.parametrize("umask", [0, 0o022, 0o027, 0o077])
def test_a_new_file_has_the_mode_that_the_umask_leaves(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        tg.save(tmp_path / "x.bt", OLD)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.bt").stat().st_mode) == 0o666 & ~umask


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_of_the_old_file_is_kept(target: Path) -> None:
    os.chown(target, 12345, 23456)
    target.chmod(0o640)
    tg.save(target, NEW)
    status = target.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o640)


def test_a_secret_is_not_readable_by_others_while_it_is_written(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.chmod(0o600)
    modes = []
    faulty = FaultyOs()

    def note(name: str, arguments: tuple[Any, ...]) -> None:
        if name in ("pwrite", "fsync", "ftruncate") and stat.S_ISREG(os.fstat(arguments[0]).st_mode):
            modes.append(stat.S_IMODE(os.fstat(arguments[0]).st_mode))

    faulty.before = note
    monkeypatch.setattr(sink, "os", faulty)
    tg.save(target, NEW)
    assert len(modes) >= 3
    assert {mode & 0o077 for mode in modes} == {0}


@pytest.mark.parametrize(
    ("old", "gid_kept", "expected"),
    [
        (0o600, False, 0o600),
        (0o640, False, 0o600),
        (0o664, False, 0o644),
        (0o664, True, 0o664),
        (0o4755, True, 0o755),
    ],
)
def test_a_file_that_cannot_be_given_back_to_its_owner_is_no_more_readable_than_it_was(
    target: Path, monkeypatch: pytest.MonkeyPatch, old: int, gid_kept: bool, expected: int
) -> None:
    """As for a user who may write into a folder of somebody else."""
    target.chmod(old)
    faulty = FaultyOs()
    stolen = os.stat_result((old | stat.S_IFREG, *target.stat()[1:4], 54321, 54321, *target.stat()[6:]))
    faulty.answers["stat"] = stolen

    def forbid(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "fchown" and not (gid_kept and arguments[1] == -1):
            raise PermissionError(errno.EPERM, "not permitted")

    faulty.before = forbid
    monkeypatch.setattr(sink, "os", faulty)
    if gid_kept and os.geteuid() != 0:
        pytest.skip("only root can give files away")
    tg.save(target, NEW)
    assert stat.S_IMODE(target.stat().st_mode) == expected
    assert same(target, NEW)


@pytest.mark.parametrize("name", ["n" * 252 + ".bt", "é" * 126 + ".bt"])
def test_a_name_as_long_as_the_file_system_takes(tmp_path: Path, name: str) -> None:
    assert len(name.encode()) == 255
    for tensors in (OLD, NEW):
        tg.save(tmp_path / name, tensors)
        assert same(tmp_path / name, tensors)
        assert names(tmp_path) == [name]
    with pytest.raises(OSError, match="too long"):
        tg.save(tmp_path / f"n{name}", OLD)
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("lacks", ["posix_fallocate", "copy_file_range", "O_TMPFILE", "link"])
def test_a_file_system_that_lacks_an_operation(target: Path, lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another way is taken, and the same bytes are saved."""
    source = target.parent.parent / "source.bt"
    tg.save(source, NEW)
    faulty = FaultyOs()
    faulty.lacks = frozenset({lacks})
    monkeypatch.setattr(sink, "os", faulty)
    for save in (lambda: tg.save(target, NEW), lambda: tg.convert(source, target)):
        tg.save(target, OLD)
        faulty.calls.clear()
        save()
        assert same(target, NEW)
        assert alone(target)
    assert lacks == "O_TMPFILE" or lacks in faulty.calls


def test_a_file_can_be_saved_over_itself(target: Path) -> None:
    for backend in ("pread", "mmap"):
        with tg.open(target, backend=backend) as archive:
            tg.save(target, archive, metadata={"by": backend})
        assert same(target, OLD)
        with tg.open(target) as again:
            assert again.metadata == {"by": backend}


# Interrupts, full disks, two at once


@pytest.mark.parametrize("durable", [True, False])
def test_an_interrupted_save_leaves_the_old_file_and_nothing_else(target: Path, durable: bool) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = target.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        tg.save(target, NEW, durable=durable, progress=interrupt)
    assert target.read_bytes() == before
    assert alone(target)
    with pytest.raises(KeyboardInterrupt), tg.Writer(target, progress=interrupt) as out:
        out.add("w", NEW["w"])
    assert target.read_bytes() == before
    assert alone(target)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(target: Path) -> None:
    before = target.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for nbytes in (0, 1, 100, 4096, 800_000, len(NEW_BYTES) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        try:
            with pytest.raises(OSError, match="too large"):
                tg.save(target, NEW)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert target.read_bytes() == before
        assert alone(target)


def test_what_the_format_cannot_hold_is_refused_before_the_file_is_touched(target: Path) -> None:
    before = target.stat()
    refused: list[tuple[dict[Any, Any], str]] = [
        ({"c": np.ones(2, np.complex64)}, "bintensors.write.dtype"),
        ({"o": np.array([object()])}, "dynd.infer"),
        ({"\ud800": np.ones(1)}, "name.utf8"),
        ({1: [1]}, "name.text"),
    ]
    for tensors, rule in refused:
        with pytest.raises(tg.TensorglotError) as caught:
            tg.save(target, tensors)
        assert caught.value.rule == rule
    assert target.stat() == before
    assert alone(target)


def test_two_writers_and_a_reader_at_once_see_only_whole_files(target: Path) -> None:
    versions = [{"w": np.full(60_000, i, np.int32)} for i in range(4)]
    tg.save(target, versions[0])
    stop, torn = threading.Event(), []

    def write(mine: list[dict[str, NDArray[Any]]]) -> None:
        for i in range(40):
            tg.save(target, mine[i % 2], durable=False)

    def read() -> None:
        while not stop.is_set():
            if len(set(tg.load(target)["w"].tolist())) != 1:
                torn.append(1)

    threads = [
        threading.Thread(target=write, args=(versions[:2],)),
        threading.Thread(target=write, args=(versions[2:],)),
    ]
    reader = threading.Thread(target=read)
    for thread in (*threads, reader):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert not torn
    assert alone(target)


@pytest.mark.parametrize("format", ["npy", "bson", "dynd"])
def test_no_metadata_is_stored_where_there_is_no_place_for_any(format: str) -> None:
    values = {"data": np.ones((2, 3), np.float32)}
    assert tg.dumps(values, format=format, metadata={}) == tg.dumps(values, format=format)
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.dumps(values, format=format, metadata={"k": "v"})
    assert caught.value.rule == "save.metadata"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("lacks", ["", "O_TMPFILE"])
def test_an_error_of_a_save_names_the_target(
    number: int, lacks: str, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for strike in range(2, 100):  # the first operation opens the directory, and names that
        fault = OSError(number, os.strerror(number), "." if strike % 2 else None)
        faulty = FaultyOs(strike, fault)
        faulty.lacks = frozenset({lacks})
        with monkeypatch.context() as patched:
            patched.setattr(sink, "os", faulty)
            try:
                tg.save(target, NEW)
            except OSError:
                if faulty.calls[strike - 1] not in ("stat", "unlink", "close"):
                    assert (fault.filename, str(fault).count("->")) == (str(target), 0), faulty.calls
        if not faulty.struck:
            return
    raise AssertionError("a save without end")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder, new: tg.Writer(folder / new),
        lambda folder, new: tg.split(folder / "model.bt", folder / new),
        lambda folder, new: tg.convert(folder / "model.bt", folder / new, executor=ThreadPoolExecutor(1)),
    ],
    ids=["Writer", "split", "convert"],
)
def test_an_error_names_no_temporary_file(write: Any, target: Path) -> None:
    for new in ("none/new.zt", "model.bt/new.zt"):
        with pytest.raises(OSError, match=r"No such file|Not a directory") as caught:
            write(target.parent, new)
        assert "tmp" not in Path(caught.value.filename).name, caught.value
