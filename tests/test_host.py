"""What the host does to a reader: files that are none, and files that change while they are open."""

from __future__ import annotations

import errno
import json
import os
import pickle
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from bounds import at_once, seconds
from replaced import NEW, OLD, names
from tensorglot.containers import table
from tensorglot.io.local import FileSource


@pytest.fixture
def strange(tmp_path: Path) -> Iterator[dict[str, Path]]:
    os.mkfifo(tmp_path / "fifo.bt")
    (tmp_path / "directory.bt").mkdir()
    (tmp_path / "link.bt").symlink_to("/dev/zero")
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/s.bt")
        yield {
            "fifo": tmp_path / "fifo.bt",
            "directory": tmp_path / "directory.bt",
            "link to a device": tmp_path / "link.bt",
            "device": Path("/dev/zero"),
            "null device": Path("/dev/null"),
            "socket": Path(short) / "s.bt",
        }


KINDS = ["fifo", "directory", "link to a device", "device", "null device", "socket"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["auto", "pread", "mmap"])
def test_only_regular_files_are_opened_and_the_refusal_comes_at_once(
    kind: str, backend: Any, strange: dict[str, Path]
) -> None:
    def opened() -> None:
        with pytest.raises((tg.InputError, OSError)) as caught:
            tg.open(strange[kind], backend=backend, format="bintensors")
        if kind == "socket":  # the kernel opens none
            assert isinstance(caught.value, OSError)
            assert caught.value.errno == errno.ENXIO
        else:
            assert isinstance(caught.value, tg.InputError)
            assert caught.value.rule == "source.regular"

    with at_once():
        assert seconds(opened, 0.010) < 0.010


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_replaced(kind: str, strange: dict[str, Path]) -> None:
    path = strange[kind]
    before, beside = path.lstat(), names(path.parent)

    def saved() -> None:
        with pytest.raises(tg.InputError) as caught:
            tg.save(path, OLD, format="bintensors")
        assert caught.value.rule == "sink.target"

    with at_once():
        assert seconds(saved, 0.010) < 0.010
    assert (path.lstat().st_mode, path.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert names(path.parent) == beside


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tg.open(tmp_path / "none.bt")
    with pytest.raises(FileNotFoundError):
        tg.save(tmp_path / "none" / "x.bt", OLD)


# A file that changes while it is open


def test_a_file_cut_short_under_an_open_archive_is_a_truncated_error(tmp_path: Path) -> None:
    path = tmp_path / "model.bt"
    tensors = {f"t{i}": np.full(300_000, i, np.float32) for i in range(4)}
    tg.save(path, tensors)
    with tg.open(path) as archive:
        offset = archive["t2"].offset
        assert offset is not None
        os.truncate(path, offset + 4000)
        assert (archive["t1"].numpy() == tensors["t1"]).all()
        assert archive["t2"][999] == 2
        reads: list[Callable[[], object]] = [
            archive["t2"].numpy,
            lambda: archive["t2"].numpy(np.empty(300_000, np.float32)),
            lambda: archive["t2"][1000],
            lambda: archive["t2"][:1001],
            lambda: archive["t2"][::200],
            lambda: archive["t2"][...],
            lambda: np.asarray(archive["t2"]),
        ]
        for read in reads:
            with pytest.raises(tg.TruncatedError) as caught:
                read()
            assert caught.value.tensor == "t2"
            assert caught.value.offset is not None
        with pytest.raises(tg.TruncatedError):
            tg.save(tmp_path / "copy.bt", archive)
        with pytest.raises(tg.TruncatedError):
            tg.dumps(archive, format="bintensors@1")
    assert names(tmp_path) == ["model.bt"]


def test_loading_a_file_that_is_cut_short_meanwhile_names_a_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.bt"
    tg.save(path, {f"t{i}": np.full(300_000, i, np.float32) for i in range(4)})
    read = FileSource.read_into

    def cut_first(self: FileSource, offset: int, out: memoryview) -> None:
        if offset > 8:  # behind the length and the header
            os.truncate(path, 3_000_000)
        read(self, offset, out)

    monkeypatch.setattr(FileSource, "read_into", cut_first)
    for threads in (1, 4):
        with pytest.raises(tg.TruncatedError) as caught:
            tg.load(path, threads=threads)
        assert caught.value.tensor in ("t2", "t3")
        path.unlink()
        monkeypatch.undo()
        tg.save(path, {f"t{i}": np.full(300_000, i, np.float32) for i in range(4)})
        monkeypatch.setattr(FileSource, "read_into", cut_first)


def test_a_file_cut_short_while_its_header_is_read(target: Path) -> None:
    for size in (0, 7, 8, 20):
        tg.save(target, OLD)
        source = FileSource(target)
        os.truncate(target, size)
        with pytest.raises(tg.TruncatedError):
            table.named("bintensors")[0].container.read(source, table.ReadOptions())
        source.close()


def test_a_file_emptied_before_it_is_mapped(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = FileSource.__init__

    def emptied(self: FileSource, file: Any) -> None:
        opened(self, file)
        os.truncate(target, 0)

    monkeypatch.setattr(FileSource, "__init__", emptied)
    with pytest.raises(tg.TruncatedError):
        tg.open(target, backend="mmap")


def test_the_error_for_a_truncated_tensor_has_the_sizes_in_bytes(target: Path) -> None:
    with tg.open(target) as archive:
        size = target.stat().st_size
        os.truncate(target, size - 10)
        with pytest.raises(tg.TruncatedError, match=rf"file truncated: needs {size} bytes, has {size - 10} "):
            archive["w"].numpy()


def test_growth_and_replacement_do_not_reach_an_open_archive(target: Path) -> None:
    with tg.open(target) as archive, tg.open(target, backend="mmap") as mapped:
        with target.open("ab") as file:
            file.write(b"more")
        assert (archive["w"].numpy() == OLD["w"]).all()
        with pytest.raises(tg.FormatError) as caught:
            tg.open(target)
        assert caught.value.rule == "bintensors.data.trailing"
        tg.save(target, NEW)
        for one in (archive, mapped):
            assert one["w"].shape == (1000,)
            assert (one["w"].numpy() == OLD["w"]).all()
        again = pickle.loads(pickle.dumps(archive))
        assert again["w"].shape == NEW["w"].shape
        again.close()


def index_of(folder: Path, shard: str) -> None:
    (folder / "m.bt.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "cut short": (lambda f: (f / "cut.bt").write_bytes(CUT), "cut.bt", "cut.bt"),
    "no format": (lambda f: (f / "x").write_bytes(b"x"), "x", "x"),
    "a FIFO": (lambda f: os.mkfifo(f / "fifo"), "fifo", "fifo"),
    "not there": (lambda f: None, "none.bt", "none.bt"),
    "a directory of nothing": (lambda f: (f / "d").mkdir(), "d", "d"),
    "an index that is none": (lambda f: (f / "m.bt.index.json").write_text("{"), "", "m.bt.index.json"),
    "a shard cut short": (lambda f: ((f / "s.bt").write_bytes(CUT), index_of(f, "s.bt")), "", "s.bt"),
    "a shard that is not there": (lambda f: index_of(f, "s.bt"), "m.bt.index.json", "s.bt"),
    "a shard that is a directory": (lambda f: ((f / "s.bt").mkdir(), index_of(f, "s.bt")), "", "s.bt"),
    "a shard's name that is none": (lambda f: index_of(f, "../x"), "", "m.bt.index.json"),
    "a sidecar that is none": (
        lambda f: ((f / "a.bt").write_bytes(CUT + b"\0"), (f / "a.bt.sums").write_text("x")),
        "a.bt",
        "a.bt.sums",
    ),
}
CUT = tg.dumps({"w": np.zeros(9)}, format="bintensors")[:-1]


@pytest.mark.parametrize("backend", ["pread", "mmap"])
@pytest.mark.parametrize("case", BROKEN)
def test_an_error_has_the_path_of_the_file_that_could_not_be_opened(
    case: str, backend: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, opened, named = BROKEN[case]
    make(folder)
    monkeypatch.chdir(folder.parent)
    for given in (folder, Path("folder")):
        with pytest.raises((tg.TensorglotError, OSError)) as caught:
            tg.open(given / opened, backend=backend, verify="auto")
        error = caught.value
        path = error.path if isinstance(error, tg.TensorglotError) else error.filename
        assert path == str(given / named)


WRITERS: dict[str, Callable[..., object]] = {
    "save": lambda source, target, **options: tg.save(target, tg.load(source), **options),
    "convert": tg.convert,
    "merge": lambda source, target, **options: tg.merge([source], target, **options),
    "Writer": lambda source, target, **options: tg.Writer(target, **options),
}


@pytest.mark.parametrize("verb", WRITERS)
@pytest.mark.parametrize(
    ("target", "options", "rule"),
    [("b.xyz", {}, "format.suffix"), ("b.bt", {"compression": "zstd"}, "save.compression")],
)
def test_an_error_has_the_path_of_the_file_that_cannot_be_written(
    verb: str, target: str, options: dict[str, str], rule: str, tmp_path: Path
) -> None:
    tg.save(tmp_path / "a.bt", {"w": np.zeros(9)})
    with pytest.raises(tg.TensorglotError) as caught:
        WRITERS[verb](tmp_path / "a.bt", tmp_path / target, **options)
    assert (caught.value.rule, caught.value.path) == (rule, str(tmp_path / target))


def test_the_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut\n.bt"
    path.write_bytes(tg.dumps({"w": np.zeros(9)}, format="bintensors")[:-1])
    with pytest.raises(tg.TruncatedError) as caught:
        tg.open(path)
    again = pickle.loads(pickle.dumps(caught.value))
    for error in (caught.value, again):
        assert error.path == str(path)
        assert str(error).startswith(f"{tmp_path}/cut\\n.bt: file truncated: needs ")
    with pytest.raises(tg.TruncatedError) as caught:
        tg.open(path.read_bytes())
    assert caught.value.path is None


def test_a_relative_path_in_a_directory_that_was_removed_is_named(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    uses: list[Callable[[], object]] = [
        lambda: tg.open("x.bt"),
        lambda: tg.save("x.bt", {"w": np.ones(3)}),
        lambda: tg.convert(target, "x.bt"),
        lambda: tg.split(target, "x.bt"),
        lambda: tg.merge([target], "x.bt"),
        lambda: tg.store.Store.create("x.bt"),
        lambda: tg.Writer("x.bt"),
    ]
    for use in uses:
        with pytest.raises(FileNotFoundError) as caught:
            use()
        assert caught.value.filename == "x.bt"
