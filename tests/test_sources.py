"""Every verb takes the same sources, and what it was given to reach them stays secret."""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
import tensorglot.numpy
from peers import needs
from tensorglot.io.place import as_place

TENSORS = {"w": np.arange(6, dtype="float32").reshape(2, 3), "b": np.ones(3)}
SECRET = "a-secret-of-the-caller"
OPTIONS = {"secret_access_key": SECRET, "default_headers": {"Authorization": SECRET}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tg.save(tmp_path / "model.zt", TENSORS)
    return tmp_path / "model.zt"


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "str": str,
    "Path": lambda path: path,
    "URL": lambda path: path.as_uri(),
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "array": lambda path: np.frombuffer(path.read_bytes(), np.uint8),
    "mmap": mapped,
    "stream": lambda path: io.BytesIO(path.read_bytes()),
    "list": lambda path: [str(path)],
    "list of URLs": lambda path: [path.as_uri()],
    "list of bytes": lambda path: [path.read_bytes()],
    "tuple": lambda path: (path,),
    "archive": tg.open,
}


def by_convert(source: Any, folder: Path) -> Any:
    tg.convert(source, folder / "converted.zt")
    return folder / "converted.zt"


def by_split(source: Any, folder: Path) -> Any:
    tg.split(source, folder / "shards", shard_nbytes=24)
    return folder / "shards"


def by_merge(source: Any, folder: Path) -> Any:
    tg.merge(source, folder / "merged.zt")
    return folder / "merged.zt"


def by_verify(source: Any, folder: Path) -> Any:
    report = tg.verify(source, deep=True)
    assert (report.ok, report.checksums, report.unverified) == (True, 2, ())
    return TENSORS


def by_stats(source: Any, folder: Path) -> Any:
    assert sorted(row.name for row in tg.stats(source).rows) == sorted(TENSORS)
    return TENSORS


VERBS: dict[str, Callable[[Any, Path], Any]] = {
    "load": lambda source, _: tg.load(source),
    "convert": by_convert,
    "verify": by_verify,
    "stats": by_stats,
    "split": by_split,
    "merge": by_merge,
    "merge of a list": lambda source, folder: by_merge([source], folder),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", SOURCES)
def test_every_verb_takes_every_source(verb: str, kind: str, path: Path, tmp_path: Path) -> None:
    source = SOURCES[kind](path)
    assert tg.diff(VERBS[verb](source, tmp_path), TENSORS).same
    if kind == "archive":  # of the caller, who closes it
        assert (source["w"].numpy() == TENSORS["w"]).all()
        source.close()


def test_an_archive_is_verified_with_what_it_reads(path: Path) -> None:
    with tg.open(path) as archive:
        data = bytearray(path.read_bytes())
        data[archive["w"].offset or 0] ^= 1
        path.write_bytes(data)
        assert [problem.tensor for problem in tg.verify(archive).problems] == ["w"]


def test_merge_names_the_sources_of_a_duplicate(path: Path, tmp_path: Path) -> None:
    for given, shown in (([path, path.read_bytes()], "source 2"), ([path.read_bytes(), str(path)], "model.zt")):
        with pytest.raises(tg.InputError, match=shown) as caught:
            tg.merge(given, tmp_path / "merged.zt")
        assert (caught.value.rule, caught.value.tensor) == ("merge.name", "w")


def test_values_are_merged_with_files(path: Path, tmp_path: Path) -> None:
    more = np.arange(4)
    tg.merge([path, {"more": more}], tmp_path / "merged.bt")
    assert tg.diff(tmp_path / "merged.bt", {**TENSORS, "more": more}).same


@pytest.mark.parametrize("data", [["model.zt"], ("model.zt",), "model.zt", Path("model.zt"), None, 3], ids=repr)
def test_loads_opens_no_file(data: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with pytest.raises(tg.InputError, match=r"rule (loads\.data|source\.kind)"):
        tg.loads(data)


@pytest.mark.parametrize("load", [tg.loads, tensorglot.numpy.load])
@pytest.mark.parametrize("make", [Path.read_bytes, lambda path: memoryview(path.read_bytes()), mapped])
def test_bytes_of_every_kind_are_loaded(make: Callable[[Path], Any], load: Callable[[Any], Any], path: Path) -> None:
    assert tg.diff(load(make(path)), TENSORS).same


@pytest.mark.parametrize("kind", ["list", "list of URLs", "list of bytes", "bytearray", "memoryview"])
def test_workers_open_it(kind: str, path: Path, tmp_path: Path) -> None:
    source = SOURCES[kind](path)
    with ThreadPoolExecutor(2) as executor:
        assert tg.verify(source, deep=True, executor=executor).ok
        assert tg.identify(source, executor=executor) == tg.identify(TENSORS)
        tg.convert(source, tmp_path / "converted.bt", executor=executor)
    assert tg.diff(tmp_path / "converted.bt", TENSORS).same


@pytest.mark.parametrize(
    "call",
    [
        tg.load,
        tg.verify,
        tg.stats,
        tg.identify,
        lambda source, **options: tg.diff(source, source, **options),
        lambda source, **options: tg.convert(source, io.BytesIO(), format="ztensor", **options),
        lambda source, **options: tg.merge(source, io.BytesIO(), format="ztensor", **options),
    ],
    ids=["load", "verify", "stats", "identify", "diff", "convert", "merge"],
)
def test_storage_options_are_for_the_urls_of_a_list(call: Callable[..., Any], path: Path, tmp_path: Path) -> None:
    tg.save(tmp_path / "other.zt", {"other": np.ones(2)})
    call([path.as_uri(), tmp_path / "other.zt"], storage_options=OPTIONS)
    with pytest.raises(tg.InputError) as caught:
        call([path, tmp_path / "other.zt"], storage_options=OPTIONS)
    assert caught.value.rule == "source.url"


def test_storage_options_that_nothing_uses_are_refused_by_a_store(tmp_path: Path) -> None:
    store = tg.store.Store.create(tmp_path / "store")
    for write in (partial(store.commit, "main"), store.stage):
        with pytest.raises(tg.InputError) as caught:
            write(TENSORS, storage_options=OPTIONS)
        assert caught.value.rule == "source.url"


def holders(path: Path) -> dict[str, Any]:
    """Whatever keeps options of the caller and can be pickled."""
    url = path.as_uri()
    archive, several = tg.open(url, storage_options=OPTIONS), tg.open([url], storage_options=OPTIONS)
    store = tg.store.Store.create((path.parent / "store").as_uri(), OPTIONS)
    store.commit("main", TENSORS)
    return {
        "archive": archive,
        "tensor": archive["w"],
        "archive of a list": several,
        "tensor of a list": several["w"],
        "checkout": store.checkout("main"),
    }


def check_secret(held: dict[str, Any]) -> None:
    for kind, value in held.items():
        assert SECRET not in f"{value!r}{value}{getattr(value, '__dict__', '')}", kind
        assert SECRET.encode() not in pickle.dumps(value), kind


def test_no_pickle_has_a_secret(path: Path) -> None:
    held = holders(path)
    check_secret(held)
    assert (pickle.loads(pickle.dumps(held["archive of a list"]))["w"].numpy() == TENSORS["w"]).all()


def test_no_dask_array_has_a_secret(path: Path) -> None:
    needs("dask.array")
    from tensorglot.bridges import dask

    for source in (path.as_uri(), [path.as_uri()]):
        arrays = dask.open(source, storage_options=OPTIONS)
        check_secret(arrays)
        assert (np.asarray(arrays["w"]) == TENSORS["w"]).all()


def test_no_checkpointer_has_a_secret(tmp_path: Path) -> None:
    needs("torch")
    from tensorglot.bridges import dcp

    url = (tmp_path / "checkpoint").as_uri()
    check_secret(
        {"Writer": dcp.Writer(url, storage_options=OPTIONS), "Reader": dcp.Reader(url, storage_options=OPTIONS)}
    )


def test_no_error_has_the_user_of_a_url() -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.open(f"file://user:{SECRET}@localhost/model.zt")
    assert SECRET not in str(caught.value)


def test_a_place_is_the_same_file_in_another_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    place = as_place(path.name)
    sent = pickle.dumps(place)
    monkeypatch.chdir("/")
    assert pickle.loads(sent).text == place.absolute == str(path)


@pytest.mark.parametrize("url", ["https://user:secret@host/x.bt", "https://host/x.bt?signature=secret"])
def test_a_place_shows_no_credentials(url: str) -> None:
    place = as_place(url, {"token": "secret"})
    assert place.secret
    assert "secret" not in f"{place!r} {place.shown}"


def test_formats_that_are_only_read_are_refused_as_targets(tmp_path: Path) -> None:
    for target, format in (("x.h5", None), ("x", "hdf5"), ("x.onnx", "hdf5@1")):
        with pytest.raises(tg.InputError) as caught:
            tg.save(tmp_path / target, {"w": np.ones(3)}, format=format)
        assert caught.value.rule == "format.write"
    assert not list(tmp_path.iterdir())


def test_a_commit_is_no_file() -> None:
    with pytest.raises(tg.UnsupportedError, match="a commit in a store is not a file"):
        tg.store.apply("store://models#main", {})
    with pytest.raises(tg.UnsupportedError, match="can be read, not written"):
        tg.save("store://models/model.bt", {"w": np.ones(2)})


def test_the_url_of_a_file_whose_name_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff \xe9%41.zt")
    try:
        path.touch()
    except OSError:
        pytest.skip("the file system has only names that are text")
    for url in (path.as_uri(), f"file://{tmp_path.as_posix()}/{path.name.replace('%', '%25')}"):
        tg.save(url, TENSORS)
        assert tg.load(url).keys() == TENSORS.keys()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_nul_in_a_url_is_refused_by_rule(tmp_path: Path) -> None:
    url = tmp_path.as_uri() + "/a%00b.zt"
    for call in (tg.load, tg.verify, tg.identify, tg.Writer, lambda url: tg.save(url, TENSORS)):
        with pytest.raises(tg.InputError) as caught:
            call(url)
        assert caught.value.rule == "path.text"


@pytest.mark.parametrize(
    ("url", "name", "other"),
    [
        ("s3://bucket/a b/x#1.bt", "x#1.bt", "s3://bucket/a b/y z?.bt"),  # the key of an object is not quoted
        ("https://host/a%20b/x%231.bt?v=1", "x#1.bt", "https://host/a%20b/y%20z%3F.bt?v=1"),
    ],
)
def test_the_url_beside_another(url: str, name: str, other: str) -> None:
    place = as_place(url)
    assert place is not None
    assert (place.name, place.beside("y z?.bt").text) == (name, other)
