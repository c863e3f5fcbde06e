"""Where bytes come from and go to: every source refuses to read outside of itself, and file objects may be odd."""

from __future__ import annotations

import errno
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.containers.dcp.directory import File, Section
from tensorglot.io import local, stream
from tensorglot.io.local import BaseSource, BufferSource, FileSource, MmapSource
from tensorglot.io.stream import StreamSource

DATA = bytes(range(100))
SOURCES: dict[str, Callable[[Path], BaseSource]] = {
    "bytes": lambda path: BufferSource(DATA),
    "shared bytes": lambda path: BufferSource(DATA, share=True),
    "file": FileSource,
    "mapped file": MmapSource,
    "file object": lambda path: StreamSource(io.BytesIO(DATA)),
    "item of a file": lambda path: cast(
        "BaseSource", Section(cast("File", BufferSource(b"a" + DATA + b"b")), 1, 101, "w")
    ),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").write_bytes(DATA)
    return tmp_path / "data"


@pytest.mark.parametrize("kind", SOURCES)
def test_a_read_outside_is_refused_by_every_method(kind: str, path: Path) -> None:
    source = SOURCES[kind](path)
    for offset, nbytes in ((0, 100), (40, 7), (99, 1), (100, 0)):
        expected = DATA[offset : offset + nbytes]
        out = memoryview(bytearray(nbytes))
        source.read_into(offset, out)
        assert out == source.read(offset, nbytes) == source.read_bytes(offset, nbytes) == expected
        assert source.view(offset, nbytes) in (None, expected)
    for offset, nbytes in ((0, 101), (100, 1), (1 << 40, 1)):
        for method in (source.read, source.read_bytes, lambda at, n: source.read_into(at, memoryview(bytearray(n)))):
            with pytest.raises(tg.TruncatedError):
                method(offset, nbytes)
        if source.view(0, 1) is not None:
            with pytest.raises(tg.TruncatedError):
                source.view(offset, nbytes)


def test_a_system_call_that_reads_less_is_called_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, pread = FileSource(path), os.pread
    monkeypatch.setattr(local.os, "pread", lambda fd, nbytes, offset: pread(fd, min(nbytes, 9), offset))
    assert source.read_bytes(3, 90) == DATA[3:93]


def test_a_file_by_descriptor_cannot_be_pickled(path: Path) -> None:
    with path.open("rb") as file, pytest.raises(tg.InputError, match="open it by path"):
        pickle.dumps(FileSource(os.dup(file.fileno())))
    with pytest.raises(tg.InputError, match="open the file by path"):
        pickle.dumps(StreamSource(io.BytesIO(DATA)))


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EACCES])
def test_a_file_is_mapped_read_only_where_memory_is_reserved(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(local, "PrivateMapping", refuse)
    if number == errno.ENOMEM:
        assert MmapSource(path).read(10, 5) == DATA[10:15]
    else:
        with pytest.raises(PermissionError):
            MmapSource(path)


class Odd(io.BytesIO):
    """A file object with a method of its own."""

    def __init__(self, data: bytes = b"", **methods: Any) -> None:
        super().__init__(data)
        for name, method in methods.items():
            setattr(self, name, method)


def fails(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


READS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a text file": (lambda: io.StringIO("text"), tg.InputError, "binary mode"),
    "read returns None": (lambda: Odd(DATA, read=lambda nbytes: None), tg.InputError, "not NoneType"),
    "read returns too much": (lambda: Odd(DATA, read=lambda nbytes: DATA), tg.InputError, "at most 0 bytes"),
    "read fails": (lambda: Odd(DATA, read=fails(RuntimeError("odd"))), tg.InputError, "RuntimeError: odd"),
    "read is unsupported": (lambda: Odd(DATA, read=fails(io.UnsupportedOperation("no"))), tg.InputError, "no"),
    "the disk fails": (lambda: Odd(DATA, read=fails(OSError(errno.EIO, "broken"))), OSError, "broken"),
    "it is closed": (lambda: closed(), tg.InputError, "closed file"),
}


def closed() -> io.BytesIO:
    file = io.BytesIO(DATA)
    file.close()
    return file


@pytest.mark.parametrize("case", READS)
def test_file_objects_that_cannot_be_read_are_named(case: str) -> None:
    make, error, said = READS[case]
    with pytest.raises(error, match=said) as caught:
        tg.open(make(), format="safetensors")
    assert error is OSError or getattr(caught.value, "rule", "") == "source.stream"


def test_a_file_object_that_ends_early() -> None:
    """It says that it has 100 bytes, and has 50."""
    file = Odd(DATA[:50], tell=lambda: 100)
    with pytest.raises(tg.TruncatedError) as caught:
        StreamSource(file).read(0, 100)
    assert "has 50" in str(caught.value)


class Pipe:
    """What has `read` and nothing else."""

    def __init__(self, data: bytes, step: int) -> None:
        self._file, self._step = io.BytesIO(data), step

    def read(self, nbytes: int) -> bytes:
        return self._file.read(min(nbytes, self._step))


@pytest.mark.parametrize("spooled", [False, True])
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_a_stream_that_cannot_seek_is_kept_in_memory_or_in_a_file(
    spooled: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"w": np.arange(500)}
    data = tg.dumps(tensors, format="safetensors")
    monkeypatch.setattr(stream, "SPOOL_NBYTES", 100 if spooled else len(data))
    source = stream.source_of_stream(cast("BinaryIO", Pipe(data, step)))
    assert isinstance(source, FileSource if spooled else BufferSource)
    assert source.read(0, source.size) == data
    with tg.open(Pipe(data, step)) as archive:  # type: ignore[arg-type]
        assert (archive["w"].numpy() == tensors["w"]).all()


def test_a_file_object_after_a_fork(path: Path) -> None:
    with path.open("rb") as file:
        source = StreamSource(file)
        child = os.fork()
        if child == 0:
            try:
                source.read(0, 1)
            except tg.InputError as error:
                os._exit(0 if error.rule == "source.fork" else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_targets_that_take_bytes_in_odd_ways() -> None:
    tensors = {"w": np.arange(5000)}
    expected = tg.dumps(tensors, format="safetensors")
    short, silent = io.BytesIO(), io.BytesIO()
    tg.save(Odd(write=lambda data: short.write(data[:100])), tensors, format="safetensors")
    assert short.getvalue() == expected
    tg.save(Odd(write=lambda data: silent.write(data) and None), tensors, format="safetensors")
    assert silent.getvalue() == expected
    with pytest.raises(BlockingIOError):
        tg.save(Odd(write=lambda data: 0), tensors, format="safetensors")
    with pytest.raises(tg.InputError, match="binary mode"):
        tg.save(Odd(write=fails(ValueError("closed"))), tensors, format="safetensors")
    for target, rule in ((object(), "sink.target"), (io.StringIO(), "sink.stream")):
        with pytest.raises(tg.InputError, match=f"rule {rule}"):
            tg.save(target, tensors, format="safetensors")  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [1, 8])
def test_runs_of_which_a_system_call_reads_only_the_first_bytes(
    nbytes: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column is many short runs, which one call reads together with the gaps between them."""
    tensors, preadv = {"w": np.arange(180_000).reshape(120, 1500)}, os.preadv
    tg.save(path, tensors, format="safetensors")
    calls = []

    def read_less(fd: int, buffers: list[Any], offset: int) -> int:
        calls.append(len(buffers))
        return preadv(fd, [buffers[0][:nbytes]], offset)

    monkeypatch.setattr(local.os, "preadv", read_less)
    with tg.open(path) as archive:
        assert (archive["w"][:, 3] == tensors["w"][:, 3]).all()
        assert max(calls) > 100
        os.truncate(path, path.stat().st_size - 1500 * 8)
        with pytest.raises(tg.TruncatedError):
            archive["w"][:, 3]


@pytest.mark.parametrize("kind", [FileSource, MmapSource])
def test_a_pickled_file_that_has_changed_is_not_read(kind: type[FileSource | MmapSource], path: Path) -> None:
    pickled = pickle.dumps(kind(path))
    assert pickle.loads(pickled).read(10, 5) == DATA[10:15]
    path.write_bytes(DATA[::-1] + b"more")
    with pytest.raises(tg.InputError) as caught:
        pickle.loads(pickled)
    assert (caught.value.rule, caught.value.path) == ("source.changed", str(path))
