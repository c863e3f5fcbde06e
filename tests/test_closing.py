"""Closing an archive while others read from it: they get their bytes or an error, never those of another file.

The operating system gives the number of a closed descriptor to the next file that is
opened. So each test opens a file of other values at the worst moment.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
import test_onnx
from descriptors import open_below
from tensorglot.io.local import FileSource
from test_dcp import WHOLE, write_index
from test_ztensor_2 import shard_of
from ztensor_builder import file2, part, tensor

COUNT = 4096
MINE = {f"t{i}": np.full(COUNT, i, np.int32) for i in range(8)}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of the same size with other values."""
    mine, other = tmp_path / "mine.bt", tmp_path / "other.bt"
    tg.save(mine, MINE, durable=False)
    tg.save(other, {name: -1 - array for name, array in MINE.items()}, durable=False)
    return mine, other


WAYS: dict[str, tuple[str, Callable[[tg.Archive, Path], Any]]] = {
    "numpy": ("preadv", lambda archive, folder: archive["t5"].numpy()),
    "a slice": ("preadv", lambda archive, folder: archive["t5"][:]),
    "into an array": ("preadv", lambda archive, folder: archive["t5"].numpy(np.empty(COUNT, np.int32))),
    "dumps": ("preadv", lambda archive, folder: tg.loads(tg.dumps(archive, format="bintensors"))["t5"]),
    "save": ("copy_file_range", lambda archive, folder: saved(archive, folder)),
}


def saved(archive: tg.Archive, folder: Path) -> Any:
    with contextlib.suppress(tg.InputError):  # the other tensors may be refused
        tg.save(folder / "new.bt", {"t5": archive["t5"]}, durable=False)
        return tg.load(folder / "new.bt")["t5"]
    return MINE["t5"]


@pytest.mark.parametrize("way", WAYS)
def test_a_close_in_the_middle_of_a_read(
    way: str, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, read = WAYS[way]
    mine, other = files
    archive = tg.open(mine)
    real = getattr(os, call)
    strangers: list[int] = []

    def close_first(*arguments: Any) -> Any:
        archive.close()
        strangers.append(os.open(other, os.O_RDONLY))
        return real(*arguments)

    monkeypatch.setattr(os, call, close_first)
    try:
        assert (read(archive, tmp_path) == MINE["t5"]).all()
    except tg.InputError as error:
        assert error.rule == "archive.closed"  # noqa: PT017
    finally:
        for fd in strangers:
            os.close(fd)
    assert strangers, "nothing was read"


def test_many_threads_that_read_open_and_close(files: tuple[Path, Path]) -> None:
    mine, other = files
    current = [tg.open(mine)]
    done = threading.Event()
    wrong: list[Any] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not done.is_set():
            i = int(rng.integers(len(MINE)))
            try:
                values = set(current[0][f"t{i}"].numpy().tolist())
            except tg.InputError as error:
                values = {i} if error.rule == "archive.closed" else {error.rule}
            if values != {i}:
                wrong.append(values)

    def churn() -> None:
        while not done.is_set():
            with other.open("rb") as file:
                file.read(1)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    threads += [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        old, current[0] = current[0], tg.open(mine)
        old.close()
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_concurrent_closes_never_close_a_reused_descriptor(files: tuple[Path, Path], tmp_path: Path) -> None:
    mine, other = files
    start, lost = threading.Barrier(6, timeout=10), []
    rounds = 40
    sources: list[list[FileSource]] = [[] for _ in range(rounds)]

    def close() -> None:
        for opened in sources:
            start.wait()
            for source in opened:
                try:
                    source.close()
                except OSError as error:
                    lost.append(error)

    def open_others() -> None:
        for _ in sources:
            start.wait()
            for _ in range(40):
                fd = os.open(other, os.O_RDONLY)
                try:
                    os.close(fd)
                except OSError as error:
                    lost.append(error)

    for opened in sources:
        opened += [FileSource(mine) for _ in range(20)]
    threads = [threading.Thread(target=work) for work in (close, close, close, close, open_others, open_others)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert lost == []
    assert open_below(tmp_path) == []


def sharded(folder: Path) -> Path:
    tg.save(folder / "one.safetensors", MINE, durable=False)
    tg.split(folder / "one.safetensors", folder / "many", shard_nbytes=4 * COUNT, durable=False)
    return folder / "many"


SOURCES: dict[str, Callable[[Path], tg.Archive]] = {
    "a file": lambda folder: tg.open(folder / "mine.bt"),
    "shards": lambda folder: tg.open(sharded(folder)),
    "a long stream": lambda folder: tg.open(Piped(folder / "long.bt")),  # type: ignore[arg-type]
}


class Piped(io.RawIOBase):
    """A stream that cannot seek, longer than what is kept in memory."""

    def __init__(self, path: Path) -> None:
        tg.save(path, {**MINE, "long": np.zeros(20 << 20, np.int8)}, durable=False)
        self._file = io.BytesIO(path.read_bytes())

    def readable(self) -> bool:
        return True

    def readinto(self, out: Any) -> int:
        return self._file.readinto(out)


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_closed_is_refused_and_its_descriptors_are_gone(
    kind: str, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where a long stream is kept
    archive = SOURCES[kind](tmp_path)
    tensor = archive["t5"]
    assert tensor.numpy()[0] == 5
    assert open_below(tmp_path)
    archive.close()
    archive.close()
    assert open_below(tmp_path) == []
    for read in (tensor.numpy, lambda: tensor[:3], lambda: archive["t5"].numpy()):
        with pytest.raises(tg.InputError) as caught:
            read()
        assert caught.value.rule == "archive.closed"


def test_shards_of_version_2_are_not_opened_again_after_the_close(tmp_path: Path) -> None:
    root = tmp_path / "model.zt"
    shards = {"00001": shard_of(root, "00001", b"abcd")}
    root.write_bytes(file2({"objects": {"w": tensor(parts={"data": part(shard="00001")})}, "shards": shards}, b""))
    archive = tg.open(root)
    read = archive["w"]
    assert read.numpy().tobytes() == b"abcd"
    archive.close()
    assert open_below(tmp_path) == []
    with pytest.raises(tg.InputError) as caught:
        read.numpy()
    assert caught.value.rule == "archive.closed"


def test_an_error_that_is_kept_does_not_keep_the_file_open(files: tuple[Path, Path], tmp_path: Path) -> None:
    mine, _ = files
    kept = []
    with tg.open(mine) as archive:
        os.truncate(mine, 100)
        for read in (archive["t5"].numpy, lambda: archive["t5"][:]):
            with pytest.raises(tg.TruncatedError) as caught:
                read()
            kept.append(caught.value)
    with pytest.raises(tg.FormatError) as caught:
        tg.open(mine)
    kept.append(caught.value)
    assert open_below(tmp_path) == []
    assert [error.path for error in kept] == [str(mine)] * 3


def test_arrays_over_shared_memory_outlive_the_archive(files: tuple[Path, Path]) -> None:
    mine, _ = files
    with tg.open(mine, backend="mmap") as archive:
        array = archive["t5"].numpy()
    assert (array == MINE["t5"]).all()


def test_an_archive_is_closed_when_it_is_collected(files: tuple[Path, Path], tmp_path: Path) -> None:
    tensor = tg.open(files[0])["t5"]
    assert open_below(tmp_path), "a tensor keeps its file"
    assert tensor.numpy()[0] == 5
    del tensor
    assert open_below(tmp_path) == []


# Fork


@contextlib.contextmanager
def child(work: Callable[[], object]) -> Iterator[None]:
    """Runs `work` in a forked process, beside the block; it must not raise."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    try:
        yield
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def check(archive: tg.Archive, rounds: int = 200) -> None:
    for i in range(rounds):
        assert set(archive[f"t{i % 8}"].numpy().tolist()) == {i % 8}


def test_parent_and_child_read_and_close_each_their_own(files: tuple[Path, Path]) -> None:
    archive = tg.open(files[0])

    def work() -> None:
        check(archive)
        archive.close()

    with child(work):
        check(archive)
    check(archive)
    archive.close()


def test_a_file_object_is_not_read_by_two_processes(files: tuple[Path, Path]) -> None:
    """They share its position: each would read what the other one looked for."""
    with files[0].open("rb") as file, tg.open(file) as archive:

        def work() -> None:
            with pytest.raises(tg.InputError) as caught:
                archive["t5"].numpy()
            assert caught.value.rule == "source.fork"

        with child(work):
            check(archive)


def test_a_stream_in_memory_is_read_by_two_processes(files: tuple[Path, Path]) -> None:
    with tg.open(io.BytesIO(files[0].read_bytes())) as archive, child(lambda: check(archive)):
        check(archive)


def test_a_descriptor_is_taken_over(files: tuple[Path, Path], tmp_path: Path) -> None:
    source = FileSource(os.open(files[0], os.O_RDONLY))
    assert source.read_bytes(0, 8) == files[0].read_bytes()[:8]
    source.close()
    assert open_below(tmp_path) == []


def checkpoint(folder: Path) -> Path:
    write_index(folder, files=["w.safetensors"], tensors={"w": WHOLE})
    tg.save(folder / "w.safetensors", {"w": np.ones((4, 2), np.float32)}, durable=False)
    return folder


def model(folder: Path) -> Path:
    described = test_onnx.tensor("w", 1, (8,), location=1) + test_onnx.entry("location", "values")
    (folder / "w.onnx").write_bytes(test_onnx.model(described))
    (folder / "values").write_bytes(np.ones(8, np.float32).tobytes())
    return folder / "w.onnx"


@pytest.mark.parametrize("made", [checkpoint, model])
@pytest.mark.parametrize("read_before", [False, True])
def test_files_beside_the_index_are_not_opened_after_a_close(
    made: Callable[[Path], Path], read_before: bool, tmp_path: Path
) -> None:
    path = made(tmp_path)
    archive = tg.open(path)
    held = archive["w"]
    if read_before:
        assert held.numpy().all()
    archive.close()
    for read in (
        held.numpy,
        lambda: held[:1],
        lambda: archive["w"].numpy(),
        lambda: tg.dumps(archive, format="ztensor"),
    ):
        with pytest.raises(tg.InputError) as caught:
            read()
        assert caught.value.rule == "archive.closed"
    assert open_below(tmp_path) == []
