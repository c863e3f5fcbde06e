"""Sharded checkpoints: opened as one archive, split and merged; hostile indexes; names that are never paths."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from descriptors import open_below
from replaced import names

TENSORS = {
    "embed": np.arange(24, dtype=np.float32).reshape(4, 6),
    "layer.0": np.ones((3, 5), ml_dtypes.bfloat16),
    "layer.1": np.arange(7, dtype=np.int64),
    "../../x": np.zeros((), np.bool_),
    "head": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(
        one[n].dtype == two[n].dtype and one[n].shape == two[n].shape and one[n].tobytes() == two[n].tobytes()
        for n in one
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in two shards, as other tools write it."""
    target = tmp_path / "checkpoint"
    target.mkdir()
    names = list(TENSORS)
    weight_map = {}
    for file, part in ((FIRST, names[:3]), (SECOND, names[3:])):
        tg.save(target / file, {name: TENSORS[name] for name in part}, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    write_index(target, weight_map)
    return target


def write_index(folder: Path, weight_map: Any, **more: Any) -> None:
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map, **more})
    (folder / "model.safetensors.index.json").write_text(text)


def read_index(folder: Path) -> dict[str, str]:
    value = json.loads((folder / "model.safetensors.index.json").read_text())
    return dict(value["weight_map"])


class TestOpen:
    @pytest.mark.parametrize("part", ["", "model.safetensors.index.json"])
    def test_one_archive(self, folder: Path, part: str) -> None:
        with tg.open(folder / part, strict=True) as archive:
            assert archive.format == "safetensors@1"
            assert archive.metadata == {"format": "pt"}
            assert archive.notes == ()
            assert same({name: tensor.numpy() for name, tensor in archive.items()}, TENSORS)
            assert archive["layer.1"][2:4].tolist() == [2, 3]
        assert same(tg.load(folder / part), TENSORS)
        assert same(tg.load(folder / part, names=["head", "embed"]), {n: TENSORS[n] for n in ("embed", "head")})

    def test_mmap_and_pickle(self, folder: Path) -> None:
        with tg.open(folder, backend="mmap") as archive, pickle.loads(pickle.dumps(archive)) as other:
            assert same({name: tensor.numpy() for name, tensor in other.items()}, TENSORS)

    def test_closed(self, folder: Path) -> None:
        archive = tg.open(folder)
        tensor = archive["embed"]
        archive.close()
        with pytest.raises(tg.InputError, match=r"rule archive\.closed"):
            tensor.numpy()

    def test_stray_shard_is_reported(self, folder: Path) -> None:
        tg.save(folder / "old.safetensors", {"x": np.zeros(1)})
        with tg.open(folder) as archive:
            assert [note.rule for note in archive.notes] == ["shards.stray"]
            assert "old.safetensors" in archive.notes[0].message
            assert same({name: tensor.numpy() for name, tensor in archive.items()}, TENSORS)
        report = tg.verify(folder)
        assert report.ok
        assert report.to_dict()["notes"][0]["rule"] == "shards.stray"
        with pytest.raises(tg.FormatError) as caught:
            tg.open(folder, strict=True)
        assert caught.value.rule == "shards.stray"

    def test_the_index_is_the_authority(self, folder: Path) -> None:
        weight_map = read_index(folder)
        del weight_map["layer.0"]
        write_index(folder, weight_map)
        with tg.open(folder) as archive:
            assert "layer.0" not in archive
            assert [note.rule for note in archive.notes] == ["shards.unlisted"]
            assert "'layer.0'" in archive.notes[0].message
        assert same(tg.load(folder), {n: a for n, a in TENSORS.items() if n != "layer.0"})

    def test_metadata_that_differs(self, folder: Path, tmp_path: Path) -> None:
        tg.save(folder / SECOND, {n: TENSORS[n] for n in list(TENSORS)[3:]}, metadata={"format": "np", "a": "b"})
        with tg.open(folder) as archive:
            assert archive.metadata == {"a": "b"}
            assert [note.rule for note in archive.notes] == ["shards.metadata"]
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.merge(folder, tmp_path / "one.safetensors")
        assert caught.value.rule == "merge.metadata"
        tg.merge(folder, tmp_path / "one.safetensors", metadata={"a": "b"})

    def test_shards_of_several_parts(self, folder: Path) -> None:
        tg.save(folder / "one.bt", {"a": np.arange(3)}, format="bintensors")
        tg.save(folder / "two.bt", {"b": np.arange(4)}, format="bintensors")
        (folder / "all.index.json").write_text(json.dumps({"weight_map": {"b": "two.bt", "a": "one.bt"}}))
        with tg.open(folder / "all.index.json") as archive:
            assert archive.format == "bintensors@0"
            assert list(archive) == ["b", "a"]

    def test_directory_without_index(self, tmp_path: Path) -> None:
        with pytest.raises(tg.InputError) as caught:
            tg.open(tmp_path)
        assert caught.value.rule == "source.regular"

    def test_directory_with_one_file_of_tensors(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "model.safetensors", TENSORS)
        (tmp_path / "config.json").write_text("{}")
        assert same(tg.load(tmp_path), TENSORS)
        assert tg.verify(tmp_path).ok
        tg.save(tmp_path / "other.bt", {"a": np.arange(3)})
        assert same(tg.load(tmp_path), TENSORS)
        (tmp_path / "model.safetensors").rename(tmp_path / "mine.safetensors")
        with pytest.raises(tg.InputError, match=r"open one of them: mine\.safetensors, other\.bt"):
            tg.open(tmp_path)

    def test_directory_with_two(self, tmp_path: Path) -> None:
        for name in ("a.bt.index.json", "b.bt.index.json"):
            (tmp_path / name).write_text('{"weight_map": {}}')
        with pytest.raises(tg.InputError, match="open one of them"):
            tg.open(tmp_path)
        with tg.open(tmp_path / "a.bt.index.json") as archive:
            assert (len(archive), archive.format) == (0, "bintensors@0")

    def test_verified_deeply(self, folder: Path) -> None:
        report = tg.verify(folder, deep=True)
        assert report.ok
        assert report.canonical is None

    def test_shards_of_several_formats(self, folder: Path) -> None:
        tg.save(folder / "other.bt", {"a": np.zeros(1)})
        write_index(folder, {**read_index(folder), "a": "other.bt"})
        with pytest.raises(tg.FormatError) as caught:
            tg.open(folder)
        assert caught.value.rule == "shards.format"


def nested(folder: Path) -> None:
    """Directories that each name others twice: one hundred levels would be opened 2**100 times."""
    (folder / FIRST).unlink()
    (folder / FIRST).mkdir()
    (folder / FIRST / "a").symlink_to(folder)
    (folder / FIRST / "b").symlink_to(folder)
    write_index(folder / FIRST, {"x": "a", "y": "b"})


def absolute(folder: Path) -> None:
    write_index(folder, {"embed": str(folder / FIRST)})


NAMES = [
    "../secret.safetensors",
    "sub/x.safetensors",
    "..",
    ".",
    "",
    ".hidden",
    "a\\b",
    "C:x",
    "a\0b",
    "a\nb",
    "x" * 256,
]
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    **{
        f"shard named {name[:20]!r}": (lambda folder, name=name: write_index(folder, {"embed": name}), "shards.name")
        for name in NAMES
    },
    "shard is itself an index": (lambda f: write_index(f, {"embed": "model.safetensors.index.json"}), "shards.name"),
    "absolute path": (absolute, "shards.name"),
    "shard is a number": (lambda f: write_index(f, {"embed": 1}), "shards.weight_map"),
    "no map": (lambda f: write_index(f, None), "shards.weight_map"),
    "map is a list": (lambda f: write_index(f, []), "shards.weight_map"),
    "shard is a directory": (lambda f: (f / FIRST).unlink() or (f / FIRST).mkdir(), "shards.file"),
    "shard is a directory with an index": (lambda f: nested(f), "shards.file"),
    "shard is the directory itself": (
        lambda f: (f / FIRST).unlink() or (f / FIRST).symlink_to(f, target_is_directory=True),
        "shards.file",
    ),
    "shard is a link to the index": (
        lambda f: (f / FIRST).unlink() or (f / FIRST).symlink_to(f / "model.safetensors.index.json"),
        "safetensors.limit.header",
    ),
    "one file as two shards": (
        lambda f: (f / SECOND).unlink() or (f / SECOND).symlink_to(f / FIRST),
        "shards.same",
    ),
    "shard missing": (lambda f: (f / FIRST).unlink(), "shards.missing"),
    "tensor missing": (lambda f: write_index(f, {**read_index(f), "none": FIRST}), "shards.tensor"),
    "tensor in another shard": (lambda f: write_index(f, {**read_index(f), "embed": SECOND}), "shards.tensor"),
    "shard broken": (lambda f: (f / FIRST).write_bytes(b"\xff" * 100), "safetensors.limit.header"),
    "not JSON": (lambda f: (f / "model.safetensors.index.json").write_text("{"), "shards.json.syntax"),
    "not UTF-8": (lambda f: (f / "model.safetensors.index.json").write_bytes(b'{"\xff": 1}'), "shards.json.utf8"),
    "byte order mark": (
        lambda f: (f / "model.safetensors.index.json").write_bytes(b"\xef\xbb\xbf{}"),
        "shards.json.syntax",
    ),
    "NaN": (lambda f: (f / "model.safetensors.index.json").write_text('{"a": NaN}'), "shards.json.syntax"),
    "a number of 10,000 digits": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"a": ' + "1" * 10_000 + "}"),
        "shards.json.syntax",
    ),
    "a list": (lambda f: (f / "model.safetensors.index.json").write_text("[]"), "shards.weight_map"),
    "deep JSON": (lambda f: (f / "model.safetensors.index.json").write_text("[" * 100_000), "shards.json.depth"),
    "a name twice": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x", "a": "x"}}'),
        "shards.json.duplicate",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(folder: Path, case: str) -> None:
    damage, rule = REFUSED[case]
    damage(folder)
    with pytest.raises(tg.FormatError) as caught:
        tg.open(folder)
    assert caught.value.rule == rule


def test_index_beyond_limits(folder: Path) -> None:
    with pytest.raises(tg.LimitError):
        tg.open(folder, limits=tg.Limits(tensors=4))
    with pytest.raises(tg.LimitError):
        tg.open(folder, limits=tg.Limits(header_nbytes=10))


class TestSplit:
    @pytest.mark.parametrize("shard_nbytes", [1, 100, 130, 10**9])
    def test_and_merge(self, tmp_path: Path, shard_nbytes: int) -> None:
        one, many, again = tmp_path / "one.safetensors", tmp_path / "many", tmp_path / "again.safetensors"
        tg.save(one, TENSORS, metadata={"k": "v"})
        files = tg.split(one, many, shard_nbytes=shard_nbytes)
        assert sorted(files) == sorted(many.iterdir())
        assert files[-1].name == "model.safetensors.index.json"
        for file in files[:-1]:
            with tg.open(file, strict=True) as shard:
                assert len(shard) == 1 or sum(t.nbytes for t in shard.values()) <= shard_nbytes
        assert same(tg.load(many), dict(sorted(TENSORS.items(), key=lambda i: list(tg.load(one)).index(i[0]))))
        tg.merge(many, again)
        assert again.read_bytes() == one.read_bytes()
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []

    def test_shard_names_follow_the_convention(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "one.safetensors", TENSORS)
        files = tg.split(tmp_path / "one.safetensors", tmp_path / "many", shard_nbytes=100)
        assert [f.name for f in files[:2]] == [f"model-0000{i}-of-0000{len(files) - 1}.safetensors" for i in (1, 2)]
        index = json.loads(files[-1].read_text())
        assert index["metadata"]["total_size"] == sum(a.nbytes for a in TENSORS.values())
        assert set(index["weight_map"]) == set(TENSORS)

    def test_into_another_format_and_back(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "one.safetensors", TENSORS)
        tg.split(tmp_path / "one.safetensors", tmp_path / "many", shard_nbytes=100, format="bintensors@1")
        tg.merge(tmp_path / "many", tmp_path / "two.safetensors")
        assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()

    def test_nothing_is_overwritten(self, folder: Path, tmp_path: Path) -> None:
        before = {p.name: p.read_bytes() for p in folder.iterdir()}
        for target in (folder, next(folder.iterdir())):
            with pytest.raises(tg.InputError, match="the target exists and is not an empty directory") as caught:
                tg.split(folder, target)
            assert caught.value.rule == "split.target"
        assert {p.name: p.read_bytes() for p in folder.iterdir()} == before

    def test_failure_leaves_nothing(self, folder: Path, tmp_path: Path) -> None:
        class Stop(Exception):
            pass

        def stop(done: int, total: int) -> None:
            if done == total:
                raise Stop

        with pytest.raises(Stop):
            tg.split(folder, tmp_path / "new", shard_nbytes=100, progress=stop)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint"]

    def test_progress(self, folder: Path, tmp_path: Path) -> None:
        seen: list[tuple[int, int]] = []
        tg.split(folder, tmp_path / "new", shard_nbytes=100, progress=lambda *now: seen.append(now))
        total = sum(a.nbytes for a in TENSORS.values())
        assert seen[-1] == (total, total)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)

    def test_empty_archive(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "one.safetensors", {}, metadata={"step": "10"})
        assert len(tg.split(tmp_path / "one.safetensors", tmp_path / "many")) == 1
        assert tg.load(tmp_path / "many") == {}
        with tg.open(tmp_path / "many", strict=True) as archive:
            assert archive.metadata == {"step": "10"}

    def test_arrays_in_memory_need_a_format(self, tmp_path: Path) -> None:
        with pytest.raises(tg.InputError, match="pass format="):
            tg.split({"a": np.ones(2)}, tmp_path / "new")
        tg.split({"a": np.ones(2)}, tmp_path / "new", format="safetensors")
        assert tg.load(tmp_path / "new")["a"].tolist() == [1, 1]

    def test_a_shard_size_of_zero_is_refused(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(tg.InputError, match=r"rule split\.size"):
            tg.split(folder, tmp_path / "new", shard_nbytes=0)

    def test_a_source_whose_format_cannot_be_written_asks_for_one(self, tmp_path: Path) -> None:
        w = {"w": np.zeros(3, np.float32)}
        with tg.store.Store.create(tmp_path / "store") as store:
            store.commit("main", w)
        for source in (w, f"store://{tmp_path / 'store'}#main"):
            with pytest.raises(tg.InputError, match=r"pass format=") as caught:
                tg.split(source, tmp_path / "many")
            assert "memory" not in str(caught.value)
            assert not (tmp_path / "many").exists()
            tg.split(source, tmp_path / "many", format="ztensor")
            assert tg.diff(tmp_path / "many", w).same
            shutil.rmtree(tmp_path / "many")


class TestMerge:
    def test_files_of_different_formats(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "a.bt", {"a": np.arange(3)}, metadata={"x": "1"})
        tg.save(tmp_path / "b.safetensors", {"b": np.arange(4.0)}, metadata={"y": "2"})
        tg.merge([tmp_path / "a.bt", tmp_path / "b.safetensors"], tmp_path / "c.safetensors")
        with tg.open(tmp_path / "c.safetensors", strict=True) as archive:
            assert archive.metadata == {"x": "1", "y": "2"}
            assert same({n: t.numpy() for n, t in archive.items()}, {"b": np.arange(4.0), "a": np.arange(3)})

    def test_one_name_twice(self, tmp_path: Path) -> None:
        for name in ("a.bt", "b.bt"):
            tg.save(tmp_path / name, {"w": np.zeros(1)})
        with pytest.raises(tg.InputError) as caught:
            tg.merge([tmp_path / "a.bt", tmp_path / "b.bt"], tmp_path / "c.bt")
        assert (caught.value.rule, caught.value.tensor) == ("merge.name", "w")
        assert not (tmp_path / "c.bt").exists()

    def test_metadata_is_compared_by_type_and_value(self, tmp_path: Path) -> None:
        files = [tmp_path / "a.zt", tmp_path / "b.zt"]

        def merge(*values: Any) -> None:
            for path, value in zip(files, values, strict=True):
                tg.save(path, {path.stem: np.zeros(1)}, metadata={"x": value})
            tg.merge(files, tmp_path / "c.zt")

        merge([float("nan")], [float("nan")])
        with pytest.raises(tg.UnsupportedError) as caught:
            merge(True, 1)
        assert caught.value.rule == "merge.metadata"

    def test_nothing(self, tmp_path: Path) -> None:
        tg.merge([], tmp_path / "c.bt")
        assert tg.load(tmp_path / "c.bt") == {}


@pytest.mark.parametrize("deep", [False, True])
def test_a_missing_shard_is_a_problem_that_verify_reports(folder: Path, deep: bool) -> None:
    (folder / FIRST).unlink()
    report = tg.verify(folder, deep=deep)
    assert not report.ok
    assert [problem.rule for problem in report.problems] == ["shards.missing"]


class TestListsOfFiles:
    """Several files are one archive, in the order of the list."""

    def test_they_open_as_one(self, tmp_path: Path) -> None:
        one, two = {"a": np.arange(3), "b": np.ones(2, np.float32)}, {"c": np.zeros((2, 2), np.int8)}
        tg.save(tmp_path / "one.zt", one, metadata={"step": "1", "same": "x"})
        tg.save(tmp_path / "two.zt", two, metadata={"step": "2", "same": "x"})
        files = [tmp_path / "one.zt", str(tmp_path / "two.zt")]
        with tg.open(files) as archive:
            assert (list(archive), archive.format) == (["a", "b", "c"], "ztensor@0.1")
            assert archive.metadata == {"same": "x"}
            assert [note.rule for note in archive.notes] == ["source.metadata"]
            again = pickle.loads(pickle.dumps(archive))
            assert same({name: tensor.numpy() for name, tensor in again.items()}, one | two)
        assert same(tg.load(files), one | two)
        assert tg.verify(files).ok
        assert tg.diff(files, one | two).equal == 3
        assert tg.convert(files, tmp_path / "all.bt", on_loss="drop").tensors == 3
        assert same(tg.load([path.read_bytes() for path in map(Path, files)]), one | two)

    @pytest.mark.parametrize(
        ("second", "rule"), [("again.zt", "source.name"), ("other.bt", "source.formats"), (None, "source.list")]
    )
    def test_what_cannot_be_one_archive(self, second: str | None, rule: str, tmp_path: Path) -> None:
        tg.save(tmp_path / "one.zt", {"a": np.arange(3)})
        tg.save(tmp_path / "again.zt", {"a": np.arange(4)})
        tg.save(tmp_path / "other.bt", {"b": np.arange(4)})
        with pytest.raises(tg.InputError) as caught:
            tg.open([] if second is None else [tmp_path / "one.zt", tmp_path / second])
        assert caught.value.rule == rule

    def test_one_that_is_missing_leaves_no_file_open(self, tmp_path: Path) -> None:
        tg.save(tmp_path / "one.zt", {"a": np.arange(3)})
        with pytest.raises(FileNotFoundError):
            tg.open([tmp_path / "one.zt", tmp_path / "none.zt"])
        assert open_below(tmp_path) == []


def test_a_file_truncated_while_it_is_split_leaves_no_shards(tmp_path: Path) -> None:
    path = tmp_path / "model.bt"
    tg.save(path, {f"t{i}": np.full(8, i, np.float32) for i in range(10)})
    with tg.open(path) as archive:
        size = path.stat().st_size
        os.truncate(path, size - 4)
        with pytest.raises(tg.TruncatedError, match=f"needs {size} bytes, has {size - 4}") as caught:
            tg.split(archive, tmp_path / "shards")
    assert names(tmp_path) == ["model.bt"]
    assert caught.value.path == str(path), "the source, not a shard"
