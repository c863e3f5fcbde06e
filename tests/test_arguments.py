"""Every public verb with every kind of wrong argument: what leaves is one of our errors, or an OSError.

A value that is wrong for one argument may be right for another; then the verb does its
work. Nothing is asserted of it but that no other error leaves, and that files given to
be read are as they were.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg

TENSORS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.int8)}
DATA = tg.dumps(TENSORS, format="ztensor@0.1", metadata={"k": "v"})


class OnlyReads:
    """A stream that has `read` and nothing else."""

    def __init__(self, data: bytes = DATA) -> None:
        self._data = io.BytesIO(data)

    def read(self, nbytes: int) -> bytes:
        return self._data.read(nbytes)


class Odd(io.BytesIO):
    """A stream whose `read` answers what no file answers."""

    def __init__(self, answer: Any) -> None:
        super().__init__(DATA)
        self._answer = answer

    def read(self, nbytes: int | None = -1) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


class BytesPath:
    def __fspath__(self) -> bytes:
        return b"model.zt"


class NoPath:
    def __fspath__(self) -> int:
        return 3


class Taking(io.BytesIO):
    """A file object whose `write` returns an answer of the caller; None is an error."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    def write(self, data: Any) -> Any:
        if self._answer is None:
            raise RuntimeError("no connection")
        return self._answer


def closed() -> io.BytesIO:
    file = io.BytesIO(DATA)
    file.close()
    return file


def released() -> memoryview:
    view = memoryview(DATA)
    view.release()
    return view


WRONG: dict[str, Callable[[Path], Any]] = {
    "None": lambda folder: None,
    "True": lambda folder: True,
    "a number": lambda folder: 5,
    "a negative number": lambda folder: -1,
    "a huge number": lambda folder: 1 << 80,
    "a float": lambda folder: 0.5,
    "a text": lambda folder: "w",
    "no text at all": lambda folder: "",
    "a NUL": lambda folder: "a\0b.zt",
    "a lone surrogate": lambda folder: "\ud800.zt",
    "a long path": lambda folder: "x" * 5000 + ".zt",
    "a path of bytes": lambda folder: BytesPath(),
    "a path that is none": lambda folder: NoPath(),
    "a directory": lambda folder: folder,
    "no file": lambda folder: folder / "none.zt",
    "in no folder": lambda folder: folder / "none" / "none.zt",
    "in a file": lambda folder: folder / "model.zt" / "none.zt",
    "bytes": lambda folder: b"w",
    "a released view": lambda folder: released(),
    "a view with holes": lambda folder: memoryview(DATA)[::2],
    "an array of objects": lambda folder: np.array([object()]),
    "an array of none": lambda folder: np.empty((0, 3)),
    "an array of numbers": lambda folder: np.ones((2, 3)),
    "an array without dimensions": lambda folder: np.array(0.5),
    "an object": lambda folder: object(),
    "a list of numbers": lambda folder: [1, 2],
    "a list of lists": lambda folder: [["w"]],
    "a set": lambda folder: {"w"},
    "a mapping of numbers": lambda folder: {1: 2},
    "a mapping to objects": lambda folder: {"w": object()},
    "a mapping to itself": lambda folder: cyclic(),
    "a mapping with a surrogate": lambda folder: {"\ud800": "\ud800"},
    "StringIO": lambda folder: io.StringIO("text"),
    "a text file": lambda folder: (folder / "text").open("r+"),
    "a file for writing": lambda folder: (folder / "text").open("wb"),
    "a file for reading": lambda folder: (folder / "model.zt").open("rb"),
    "a closed file": lambda folder: closed(),
    "a stream without seek": lambda folder: OnlyReads(),
    "a stream of text without seek": lambda folder: Odd("text"),
    "a stream that answers a number": lambda folder: Odd(3),
    "a stream that answers too much": lambda folder: Odd(DATA * 9),
    "a stream that breaks": lambda folder: Odd(EOFError("broken")),
    "an archive that is closed": lambda folder: closed_archive(folder),
}


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["w"] = value
    return value


def closed_archive(folder: Path) -> tg.Archive:
    with tg.open(folder / "model.zt") as archive:
        return archive


def read(archive: tg.Archive) -> None:
    with archive:
        for tensor in archive.values():
            tensor.numpy()


def write(
    target: Any,
    name: Any = "w",
    value: Any = None,
    attributes: Any = None,
    dtype: Any = "int8",
    shape: Any = (2,),
    **options: Any,
) -> None:
    with tg.Writer(target, durable=False, **options) as out:
        out.add("x", np.ones(2) if value is None else value, attributes=attributes)
        with out.stream(name, dtype, shape) as stream:
            stream.write(b"ab")


VERBS: dict[str, tuple[Callable[..., Any], dict[str, Callable[[Path], Any]], list[str]]] = {
    "open": (
        lambda **given: read(tg.open(**given)),
        {"source": lambda f: f / "model.zt"},
        ["format", "backend", "verify", "limits", "storage_options"],
    ),
    "archive[]": (lambda **given: tg.open(DATA)[given["name"]], {"name": lambda f: "w"}, []),
    "archive.get": (lambda **given: tg.open(DATA).get(given["name"]), {"name": lambda f: "w"}, []),
    "in archive": (lambda **given: given["name"] in tg.open(DATA), {"name": lambda f: "w"}, []),
    "archive.info": (lambda **given: tg.open(DATA).info(**given), {"name": lambda f: "w"}, []),
    "load": (
        tg.load,
        {"source": lambda f: f / "model.zt"},
        ["names", "out", "threads", "framework", "format", "backend", "verify", "limits", "storage_options"],
    ),
    "loads": (
        tg.loads,
        {"data": lambda f: DATA},
        ["names", "out", "threads", "framework", "format", "verify", "limits"],
    ),
    "save": (
        partial(tg.save, durable=False),
        {"target": lambda f: f / "new.zt", "tensors": lambda f: TENSORS},
        ["format", "metadata", "compression", "level", "checksum", "attributes"],
    ),
    "save to a text format": (
        partial(tg.save, durable=False),
        {"target": lambda f: f / "new.bt", "tensors": lambda f: TENSORS},
        ["format", "metadata", "compression", "level", "checksum", "attributes"],
    ),
    "dumps": (
        tg.dumps,
        {"tensors": lambda f: TENSORS, "format": lambda f: "ztensor@2"},
        ["metadata", "compression", "level", "checksum", "attributes"],
    ),
    "Writer": (
        write,
        {"target": lambda f: f / "new.zt"},
        ["name", "value", "attributes", "dtype", "shape", "format", "metadata", "compression", "level", "checksum"],
    ),
    "convert": (
        partial(tg.convert, durable=False),
        {"source": lambda f: f / "model.zt", "target": lambda f: f / "new.bt", "on_loss": lambda f: "drop"},
        [
            "format", "select", "rename", "dtype", "metadata", "compression", "level", "checksum", "source_format",
            "verify", "limits",
        ],
    ),
    "verify": (
        tg.verify,
        {"source": lambda f: f / "model.zt"},
        ["format", "backend", "sums", "progress", "limits"],
    ),
    "diff": (tg.diff, {"a": lambda f: f / "model.zt", "b": lambda f: DATA}, ["progress", "limits"]),
    "edit": (
        partial(tg.edit, durable=False),
        {"path": lambda f: f / "edited.zt", "metadata": lambda f: {"a": "b"}},
        ["remove", "replace", "drop", "add", "format", "limits"],
    ),
    "split": (
        partial(tg.split, durable=False),
        {"source": lambda f: f / "model.zt", "target": lambda f: f / "shards"},
        ["shard_nbytes", "format", "limits"],
    ),
    "merge": (
        partial(tg.merge, durable=False),
        {"sources": lambda f: [f / "model.zt"], "target": lambda f: f / "new.zt"},
        ["format", "metadata", "compression", "level", "checksum", "limits"],
    ),
    "stats": (tg.stats, {"source": lambda f: TENSORS}, ["select", "format", "limits"]),
    "identify": (tg.identify, {"source": lambda f: TENSORS}, ["select", "format", "limits"]),
    "flatten": (tg.flatten, {"tensors": lambda f: TENSORS}, ["separator"]),
    "tensor.numpy": (lambda **given: tg.open(DATA)["w"].numpy(**given), {}, ["out"]),
    "tensor.numpy of a nested one": (lambda **given: tg.dynd.array([1], "var * int8").numpy(**given), {}, ["out"]),
    "Tensor.of_parts": (
        partial(tg.Tensor.of_parts, "x", shape=(1, 1)),
        {"layout": lambda f: "zt.sparse_coo/1", "parts": lambda f: {"values": np.ones(1), "coords": np.zeros(2, "u4")}},
        [],
    ),
    "bson.quantize": (partial(tg.bson.quantize, np.ones((2, 3), "f4")), {}, ["to", "ranges"]),
    "bson.encode_documents": (
        tg.bson.encode_documents,
        {"matrix": lambda f: np.ones((2, 3), "f4"), "key": lambda f: "v"},
        ["ids"],
    ),
    "bson.decode_matrix": (tg.bson.decode_matrix, {"source": lambda f: [b"\x03\0\x01"]}, ["key", "out", "on_missing"]),
    "bson.encode": (tg.bson.encode, {"array": lambda f: np.ones(2, "i1")}, ["dtype", "padding", "ignored_bits"]),
    "bson.encode_document": (tg.bson.encode_document, {"fields": lambda f: {"a": 1}}, []),
    "bson.from_extjson": (tg.bson.from_extjson, {"value": lambda f: {}}, []),
    "bson.from_database": (tg.bson.from_database, {"data": lambda f: b"abcd", "database": lambda f: "redis"}, []),
    "Store.create": (tg.store.Store.create, {"url": lambda f: f / "store"}, ["storage_options"]),
    "Limits": (tg.Limits, {}, ["header_nbytes", "tensors", "rank"]),
}  # fmt: skip


CASES = [
    pytest.param(verb, argument, id=f"{verb}-{argument}")
    for verb, (_, right, optional) in VERBS.items()
    for argument in (*right, *optional)
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("model.zt", "edited.zt"):
        (folder / name).write_bytes(DATA)
    (folder / "text").write_text("text")
    monkeypatch.chdir(folder)  # where names that are paths by mistake would lead
    return folder


@pytest.mark.parametrize(("verb", "argument"), CASES)
@pytest.mark.filterwarnings("ignore::tensorglot.LossWarning", "ignore::ResourceWarning")
def test_wrong_arguments_raise_only_errors_of_the_library(verb: str, argument: str, folder: Path) -> None:
    call, right, _ = VERBS[verb]
    leaked = {}
    for kind, make in WRONG.items():
        given = {name: value(folder) for name, value in right.items()} | {argument: make(folder)}
        try:
            call(**given)
        except (tg.TensorglotError, OSError):
            pass
        except Exception as error:  # noqa: BLE001 - the point of the test
            leaked[kind] = repr(error)
        assert (folder / "model.zt").read_bytes() == DATA or argument in ("target", "path"), kind
        (folder / "model.zt").write_bytes(DATA)
        for made in folder.glob("new.*"):
            made.unlink()
    assert leaked == {}


REFUSED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "loads of a path": ("loads.data", lambda f: tg.loads(str(f / "model.zt"))),  # type: ignore[arg-type]
    "loads of a file": ("loads.data", lambda f: tg.loads(io.BytesIO(DATA))),  # type: ignore[arg-type]
    "one name where names go": ("load.names", lambda f: tg.loads(DATA, names="w")),
    "a number where names go": ("load.names", lambda f: tg.loads(DATA, names=5)),  # type: ignore[arg-type]
    "a name that is a number": ("tensor.name", lambda f: tg.open(DATA)[3]),  # type: ignore[index]
    "a path with NUL": ("path.text", lambda f: tg.open("a\0b")),
    "a path with a surrogate": ("path.text", lambda f: tg.save("\ud800.zt", TENSORS)),
    "a text file to read": ("source.stream", lambda f: tg.open(io.StringIO("text"))),  # type: ignore[arg-type]
    "a text file to write": ("sink.stream", lambda f: tg.save(io.StringIO(), TENSORS, format="ztensor")),  # type: ignore[arg-type]
    "a writer to no target": ("sink.target", lambda f: tg.Writer(None, format="ztensor")),  # type: ignore[arg-type]
    "a writer to a number": ("sink.target", lambda f: tg.Writer(3, format="ztensor")),  # type: ignore[arg-type]
    "a writer to a directory": ("sink.target", lambda f: tg.Writer(f, format="ztensor")),
    "a writer to a file with a slash": ("sink.target", lambda f: tg.Writer(f"{f}/x.zt/")),
    "a slash after the name of a new file": ("sink.target", lambda f: tg.save(f"{f}/new.zt/", TENSORS, format="zt")),
    "a dot after the name of a new file": ("sink.target", lambda f: tg.convert(TENSORS, f"{f}/new/.", format="zt")),
    "an empty path to write": ("sink.target", lambda f: tg.save("", TENSORS, format="ztensor")),
    "a file object that counts wrongly": ("sink.stream", lambda f: tg.save(Taking(1 << 20), TENSORS, format="zt")),
    "a file object that counts in text": ("sink.stream", lambda f: tg.save(Taking("5"), TENSORS, format="zt")),
    "a file object that fails": ("sink.stream", lambda f: tg.save(Taking(None), TENSORS, format="zt")),
    "a writer to a text file": ("sink.stream", lambda f: tg.Writer(io.StringIO(), format="ztensor")),  # type: ignore[arg-type]
    "names that are bytes": ("load.names", lambda f: tg.loads(DATA, names=b"w")),  # type: ignore[arg-type]
    "a closed file to write": ("sink.stream", lambda f: tg.save(closed(), TENSORS, format="ztensor")),
    "limits that are a number": ("limits.type", lambda f: tg.open(DATA, limits=5)),  # type: ignore[arg-type]
    "metadata that is a list": ("save.metadata", lambda f: tg.dumps(TENSORS, format="ztensor", metadata=["a"])),  # type: ignore[arg-type]
    "a format that is a number": ("format.name", lambda f: tg.open(DATA, format=5)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_the_rule_says_what_was_expected(mistake: str, folder: Path) -> None:
    rule, call = REFUSED[mistake]
    with pytest.raises(tg.TensorglotError) as caught:
        call(folder)
    assert caught.value.rule == rule


def test_the_way_out_is_in_the_message() -> None:
    with pytest.raises(tg.InputError, match=r"names=\['w'\]"):
        tg.loads(DATA, names="w")
    with pytest.raises(tg.InputError, match="'rb'"):
        tg.open(io.StringIO("text"))  # type: ignore[arg-type]
    with pytest.raises(tg.InputError, match="'wb'"):
        tg.save(io.StringIO(), TENSORS, format="ztensor")  # type: ignore[arg-type]
    with pytest.raises(tg.InputError, match="use load"):
        tg.loads("model.zt")  # type: ignore[arg-type]


def test_a_name_that_is_not_a_str_is_not_found() -> None:
    with tg.open(DATA) as archive:
        assert archive.get(3) is None  # type: ignore[call-overload]
        assert 3 not in archive
        assert ["w"] not in archive


@pytest.mark.parametrize("extra", [0, 40 << 20], ids=["in memory", "in a file"])
def test_a_stream_with_nothing_but_read_is_read(extra: int) -> None:
    data = tg.dumps({**TENSORS, "large": np.zeros(extra, np.uint8)}, format="ztensor")
    loaded = tg.load(OnlyReads(data))  # type: ignore[arg-type]
    assert loaded["w"].tolist() == TENSORS["w"].tolist()
    assert loaded["large"].shape == (extra,)


def test_a_raw_stream_that_takes_nothing_is_an_error_and_not_a_short_file() -> None:
    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int | None:
            return None

    with pytest.raises(BlockingIOError):
        tg.save(Full(), TENSORS, format="ztensor")  # type: ignore[arg-type]
