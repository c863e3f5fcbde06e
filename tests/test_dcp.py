"""Distributed checkpoints: directories of PyTorch equal to what PyTorch finds, ours, and hostile ones of both kinds."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from arrays import raw
from bounds import INTERPRETED, MB, allocated_nbytes, seconds
from command_line import run
from dcp_pickles import METADATA, Call, Global, Object, Raw, assemble, box, metadata, place
from dcp_ranks import WAYS, launch
from peers import needs
from tensorglot.containers.dcp import checkpoint as checkpoint_module

CORPUS = Path(__file__).parent / "corpus" / "dcp"
MANIFEST: dict[str, dict[str, Any]] = json.loads((CORPUS / "manifest.json").read_text())
VALUES = {"step": 7, "lr": 1e-3, "name": "é", "nothing": None, "betas": [0.9, 0.999], "big": 2**70, "raw": b"\0\xff"}


def entries(source: Any) -> dict[str, Any]:
    with tg.open(source) as archive:
        return {
            name: [str(tensor.dtype), list(tensor.shape), hashlib.sha256(raw(tensor.numpy())).hexdigest()]
            for name, tensor in archive.items()
        }


@pytest.fixture(params=MANIFEST)
def checkpoint(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestDirectoriesOfPyTorch:
    """Made with torch 2.13.0 by two and by four ranks; the manifest has what dcp_to_torch_save finds."""

    def test_it_is_complete(self) -> None:
        assert {path.name for path in CORPUS.iterdir() if path.is_dir()} == set(MANIFEST)

    def test_equal_to_pytorch(self, checkpoint: str) -> None:
        assert entries(CORPUS / checkpoint) == MANIFEST[checkpoint]
        loaded = tg.load(CORPUS / checkpoint)
        with tg.open(CORPUS / checkpoint / ".metadata") as archive:
            assert all(raw(loaded[name]) == raw(tensor.numpy()) for name, tensor in archive.items())

    def test_plain_values_are_metadata(self, checkpoint: str) -> None:
        with tg.open(CORPUS / checkpoint) as archive:
            assert archive.metadata == {f"values.{name}": value for name, value in VALUES.items()}
            assert archive.format == "dcp@torch"
            assert archive.notes == ()

    def test_info(self, checkpoint: str) -> None:
        found = json.loads(run("info", CORPUS / checkpoint, "--json").stdout)
        assert (found["format"], found["tensors"]) == ("dcp@torch", len(MANIFEST[checkpoint]))
        files = {path.name: path.stat().st_size for path in (CORPUS / checkpoint).iterdir()}
        assert found["file_nbytes"] == sum(files.values())
        assert {shard["file"]: shard["nbytes"] for shard in found["shards"]} == {
            name: nbytes for name, nbytes in files.items() if name != ".metadata"
        }
        assert sum(shard["tensors"] for shard in found["shards"]) > len(MANIFEST[checkpoint]), "one is in several"
        assert found["checked_by"] == "box"
        assert "those in the files" in run("info", CORPUS / checkpoint).stdout

    def test_checksums_of_all_boxes_are_compared(self, checkpoint: str, tmp_path: Path) -> None:
        report = tg.verify(CORPUS / checkpoint, deep=True)
        assert report.ok
        assert report.unverified == ()
        copy = tmp_path / "copy"
        shutil.copytree(CORPUS / checkpoint, copy)
        data = bytearray((copy / "__0_0.distcp").read_bytes())
        with tg.open(copy) as archive:
            wanted = raw(archive["model.rows to columns"][:1])
        data[data.index(wanted)] ^= 1
        (copy / "__0_0.distcp").write_bytes(data)
        report = tg.verify(copy)
        assert [problem.rule for problem in report.problems] == ["checksum.mismatch"]
        assert report.problems[0].tensor == "model.rows to columns"
        with tg.open(copy) as archive, pytest.raises(tg.IntegrityError):
            archive["model.rows to columns"].numpy()
        with pytest.raises(tg.IntegrityError):
            tg.convert(copy, tmp_path / "x.safetensors", on_loss="drop", select="model.rows*")
        assert not (tmp_path / "x.safetensors").exists()
        with tg.open(copy, verify="never") as archive:
            archive["model.rows to columns"].numpy()

    def test_slices(self, checkpoint: str) -> None:
        with tg.open(CORPUS / checkpoint) as archive:
            for tensor in archive.values():
                whole = tensor.numpy()
                for index in indices(whole.shape):
                    assert raw(np.asarray(tensor[index])) == raw(np.asarray(whole[index])), (tensor.name, index)
                payload = tensor.parts["data"].payload
                for _ in range(20):
                    a, b = sorted(random.randrange(payload.nbytes + 1) for _ in range(2))
                    assert bytes(payload.read(a, b - a)) == raw(whole)[a:b]

    @pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
    def test_an_integer_of_more_than_64_bits(self, checkpoint: str, format: str, tmp_path: Path) -> None:
        """CBOR has none: the key is named, with what to do; without it, all else is kept."""
        target = tmp_path / "model.zt"
        with pytest.raises(tg.UnsupportedError, match=r"'values\.big'.* 64 bits; pass on_loss='drop'"):
            tg.convert(CORPUS / checkpoint, target, format=format)
        assert not target.exists()
        tg.convert(CORPUS / checkpoint, target, format=format, on_loss="drop")
        with tg.open(target) as archive:
            assert archive.metadata == {f"values.{name}": VALUES[name] for name in VALUES if name != "big"}
        with tg.store.Store.create(tmp_path / "store") as store:
            with pytest.raises(tg.UnsupportedError, match=r"'values\.big'.* 64 bits; pass metadata="):
                store.commit("main", CORPUS / checkpoint)
            assert store.stats().stored_nbytes == 0
            store.commit("main", CORPUS / checkpoint, metadata={"step": 7})

    @pytest.mark.parametrize("suffix", [".safetensors", ".zt", ".npz"])
    def test_convert_merges(self, checkpoint: str, suffix: str, tmp_path: Path) -> None:
        report = tg.convert(CORPUS / checkpoint, tmp_path / f"model{suffix}", metadata={"step": "7"}, on_loss="drop")
        assert report.written
        assert entries(tmp_path / f"model{suffix}") == MANIFEST[checkpoint]
        assert tg.diff(CORPUS / checkpoint, tmp_path / f"model{suffix}").equal == len(MANIFEST[checkpoint])

    def test_the_command_line(self, checkpoint: str) -> None:
        for verb in ("ls", "info", "verify", "stats", "hash"):
            assert run(verb, str(CORPUS / checkpoint)).exit_code == 0, verb

    def test_archives_travel_to_other_processes(self, checkpoint: str) -> None:
        with tg.open(CORPUS / checkpoint) as archive, pickle.loads(pickle.dumps(archive)) as again:
            assert {name: raw(t.numpy()) for name, t in again.items()} == {
                n: raw(t.numpy()) for n, t in archive.items()
            }


def indices(shape: tuple[int, ...]) -> Iterator[Any]:
    yield ...
    choices = [
        [slice(None), slice(1, None), slice(None, None, -2), slice(0, 0), slice(2, None, 3), *([0, -1] if size else [])]
        for size in shape
    ]
    for _ in range(60 if shape else 0):
        yield tuple(map(random.choice, choices))


def save_boxes(folder: Path, name: str, array: np.ndarray[Any, Any], cuts: list[list[int]], suffix: str) -> None:
    """A directory as our writer makes it: a file for each box of a regular grid."""
    boxes: list[Any] = []
    files: list[str] = []
    edges = [[0, *cut, size] for cut, size in zip(cuts, array.shape, strict=True)]
    for at in np.ndindex(*(len(edge) - 1 for edge in edges)):
        starts = [edge[i] for edge, i in zip(edges, at, strict=True)]
        ends = [edge[i + 1] for edge, i in zip(edges, at, strict=True)]
        files.append(f"{len(files)}{suffix}")
        tg.save(folder / files[-1], {name: array[tuple(map(slice, starts, ends))]})
        boxes.append([len(files) - 1, name, starts, [b - a for a, b in zip(starts, ends, strict=True)]])
    tensor = {"dtype": str(array.dtype), "itemsize": array.itemsize, "shape": list(array.shape), "boxes": boxes}
    write_index(folder, files=files, tensors={name: tensor})


def write_index(folder: Path, **fields: Any) -> None:
    index = {"tensorglot": "dcp", "version": 1, "files": [], "tensors": {}, "values": {}, "paths": {}} | fields
    (folder / "dcp.json").write_text(json.dumps(index, separators=(",", ":")))


class TestOurDirectories:
    @pytest.mark.parametrize("suffix", [".safetensors", ".zt", ".bt"])
    def test_boxes_become_the_array(self, suffix: str, tmp_path: Path) -> None:
        array = np.arange(7 * 10 * 3, dtype=np.float32).reshape(7, 10, 3)
        save_boxes(tmp_path, "w", array, [[2, 5], [4], [1, 2]], suffix)
        with tg.open(tmp_path) as archive:
            assert archive.format == "dcp@json"
            for index in indices(array.shape):
                assert raw(np.asarray(archive["w"][index])) == raw(np.asarray(array[index]))
        assert tg.diff(tmp_path, {"w": array}).same
        assert tg.verify(tmp_path).ok

    def test_a_slice_needs_only_the_files_of_its_boxes(self, tmp_path: Path) -> None:
        array = np.arange(80, dtype=np.int16).reshape(8, 10)
        save_boxes(tmp_path, "w", array, [[4], [5]], ".safetensors")
        (tmp_path / "3.safetensors").unlink()
        with tg.open(tmp_path) as archive:
            assert (archive["w"][:4] == array[:4]).all()
            assert (archive["w"][:, :5] == array[:, :5]).all()
            assert (archive["w"][::7, 4] == array[::7, 4]).all()
            with pytest.raises(tg.FormatError, match=r"3\.safetensors is missing"):
                archive["w"][4:, 5:]
        assert [problem.rule for problem in tg.verify(tmp_path).problems] == ["dcp.file.missing"]

    @pytest.mark.parametrize("cuts", [[[512], []], [[], [512]], [[300, 700], [100, 900]]])
    def test_converting_takes_little_memory(self, cuts: list[list[int]], tmp_path: Path) -> None:
        """A tensor of 64 MB, cut by rows, by columns and both, in 40 MB."""
        array = np.random.default_rng(0).random((8192, 1024))
        save_boxes(tmp_path, "w", array, cuts, ".safetensors")
        assert allocated_nbytes(lambda: tg.convert(tmp_path, tmp_path / "whole.npy", on_loss="drop")) < 40 * MB
        assert (np.load(tmp_path / "whole.npy") == array).all()

    def test_more_files_than_stay_open(self, tmp_path: Path) -> None:
        array = np.arange(100 * 3, dtype=np.int64).reshape(100, 3)
        save_boxes(tmp_path, "w", array, [list(range(1, 100)), []], ".safetensors")
        with tg.open(tmp_path) as archive:
            assert (archive["w"].numpy() == array).all()
            for row in range(1, 100):  # the file of row 0 is no longer among the last ones, whatever threads did before
                assert (archive["w"][row] == array[row]).all()
            tg.save(tmp_path / "0.safetensors", {"w": array[:1] + 1})
            with pytest.raises(tg.InputError, match="changed"):
                archive["w"].numpy()

    def test_a_closed_archive_reads_nothing(self, tmp_path: Path) -> None:
        save_boxes(tmp_path, "w", np.ones((4, 2)), [[2], []], ".safetensors")
        with tg.open(tmp_path) as archive:
            tensor = archive["w"]
        with pytest.raises(tg.InputError, match="closed"):
            tensor.numpy()


def box_of(file: int, name: Any, starts: Any, counts: Any) -> list[Any]:
    return [file, name, starts, counts]


WHOLE = {"dtype": "float32", "itemsize": 4, "shape": [4, 2], "boxes": [box_of(0, "w", [0, 0], [4, 2])]}
BAD_INDEXES: dict[str, tuple[dict[str, Any], str]] = {
    "no files": ({"files": None}, "dcp.index"),
    "a file above": ({"files": ["../w.safetensors"]}, "dcp.file.path"),
    "an absolute file": ({"files": ["/etc/passwd"]}, "dcp.file.path"),
    "a file in a hidden folder": ({"files": ["a/.git/w"]}, "dcp.file.path"),
    "a control character": ({"files": ["w\x1b.safetensors"]}, "dcp.file.path"),
    "a mark that reverses text": ({"files": ["w\u202e.safetensors"]}, "dcp.file.path"),
    "a character without width": ({"files": ["a\u200b/w.safetensors"]}, "dcp.file.path"),
    "another version": ({"version": 2}, "dcp.index"),
    "half of a character in a name": ({"tensors": {"\ud800": WHOLE}}, "dcp.json.surrogate"),
    "a box outside": ({"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [1, 0], [4, 2])]}}}, "dcp.box.range"),
    "a box that wraps": (
        {"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [2**63 - 1, 0], [4, 2])]}}},
        "dcp.box.range",
    ),
    "a hole": ({"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [0, 0], [3, 2])]}}}, "dcp.box.missing"),
    "no boxes": ({"tensors": {"w": WHOLE | {"boxes": []}}}, "dcp.box.missing"),
    "an overlap": (
        {"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [0, 0], [3, 2]), box_of(0, "v", [2, 0], [1, 2])]}}},
        "dcp.box.overlap",
    ),
    "a place used twice": (
        {"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [0, 0], [2, 2]), box_of(0, "w", [2, 0], [2, 2])]}}},
        "dcp.item.overlap",
    ),
    "a place of two tensors": ({"tensors": {"w": WHOLE, "v": WHOLE}}, "dcp.item.overlap"),
    "a file number beyond": ({"tensors": {"w": WHOLE | {"boxes": [box_of(1, "w", [0, 0], [4, 2])]}}}, "dcp.index"),
    "a bool as a size": ({"tensors": {"w": WHOLE | {"shape": [True, 2]}}}, "dcp.index"),
    "a negative size": ({"tensors": {"w": WHOLE | {"shape": [-4, -2]}}}, "dcp.index"),
    "more than 2**63 bytes": ({"tensors": {"w": WHOLE | {"shape": [2**40, 2**40]}}}, "dcp.shape.product"),
    "65 dimensions": ({"tensors": {"w": WHOLE | {"shape": [1] * 65}}}, "dcp.limit.rank"),
    "a wrong width": ({"tensors": {"w": WHOLE | {"itemsize": 8}}}, "dcp.index"),
    "a value of an impossible kind": ({"values": {"x": {"!": "set", "of": 5}}}, "dcp.value"),
    "a path that is none": ({"paths": {"w": "w"}}, "dcp.index"),
    "a path of floats": ({"paths": {"w": [1.5]}}, "dcp.index"),
    "files that are numbers": ({"files": [1]}, "dcp.index"),
    "no values": ({"values": []}, "dcp.index"),
    "a tensor that is none": ({"tensors": {"w": 5}}, "dcp.index"),
    "boxes of three": ({"tensors": {"w": WHOLE | {"boxes": [[0, "w", [0, 0]]]}}}, "dcp.index"),
    "a name that is a number": ({"tensors": {"w": WHOLE | {"boxes": [box_of(0, 7, [0, 0], [4, 2])]}}}, "dcp.index"),
    "starts of another rank": ({"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [0], [4, 2])]}}}, "dcp.index"),
    "starts that are floats": ({"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [0.0, 0], [4, 2])]}}}, "dcp.index"),
    "counts of 2**63": ({"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [0, 0], [2**63, 2])]}}}, "dcp.index"),
    "negative starts": ({"tensors": {"w": WHOLE | {"boxes": [box_of(0, "w", [-1, 0], [4, 2])]}}}, "dcp.index"),
    "a scalar in two boxes": (
        {"tensors": {"w": WHOLE | {"shape": [], "boxes": [box_of(0, "w", [], []), box_of(0, "v", [], [])]}}},
        "dcp.box.overlap",
    ),
    "a path of 4,097 characters": ({"files": ["a/" * 2048 + "w"]}, "dcp.file.path"),
}
LIMITS: dict[str, tuple[tg.Limits, str]] = {
    "an index too large": (tg.Limits(header_nbytes=50), "dcp.limit"),
    "too many tensors": (tg.Limits(tensors=0), "dcp.limit.tensors"),
    "too many dimensions": (tg.Limits(rank=1), "dcp.limit.rank"),
}


def grid(rows: int, columns: int) -> list[Any]:
    return [box_of(0, f"{i} {j}", [3 * i, 2 * j], [3, 2]) for i in range(rows) for j in range(columns)]


def staircase(size: int) -> list[Any]:
    """Columns that are cut at the diagonal: along the first axis, each box meets all of the columns before it."""
    below = [box_of(0, f"a{i}", [i, i], [size - i, 1]) for i in range(size)]
    return below + [box_of(0, f"b{i}", [0, i], [i, 1]) for i in range(1, size)]


def pinwheels(count: int) -> list[Any]:
    """Five boxes around a centre, which no cut separates, `count` times along the diagonal, and the rest."""
    wheel = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]
    found = []
    for i in range(count):
        found += [box_of(0, f"{i} {n}", [3 * i + a, 3 * i + b], size) for n, ((a, b), size) in enumerate(wheel)]
        for name, start, width in (("left", 0, 3 * i), ("right", 3 * i + 3, 3 * (count - i - 1))):
            if width:
                found.append(box_of(0, f"{name} {i}", [3 * i, start], [3, width]))
    return found


ARRANGEMENTS: dict[str, tuple[list[int], list[Any]]] = {
    "rows": ([9000, 2], grid(3000, 1)),
    "columns": ([3, 6000], grid(1, 3000)),
    "a grid": ([3 * 60, 2 * 60], grid(60, 60)),
    "a staircase": ([2000, 2000], staircase(2000)),
    "pinwheels": ([1500, 1500], pinwheels(500)),
}


class TestManyBoxes:
    @staticmethod
    def index(shape: list[int], boxes: list[Any], folder: Path) -> Path:
        write_index(folder, files=["w.safetensors"], tensors={"w": WHOLE | {"shape": shape, "boxes": boxes}})
        return folder

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_any_arrangement_is_checked_in_the_time_of_its_index(self, arrangement: str, tmp_path: Path) -> None:
        path = self.index(*ARRANGEMENTS[arrangement], tmp_path)
        bound = 0.010 + 3e-6 * (path / "dcp.json").stat().st_size
        assert seconds(lambda: tg.open(path).close(), bound) < bound

    @pytest.mark.parametrize("arrangement", ARRANGEMENTS)
    def test_one_box_of_many_that_overlaps_another(self, arrangement: str, tmp_path: Path) -> None:
        shape, boxes = ARRANGEMENTS[arrangement]
        moved = random.Random(5).randrange(len(boxes) - 1)
        file, name, starts, counts = boxes[moved]
        along = 0 if shape[0] > counts[0] else 1
        starts = [*starts]
        starts[along] += 1 if starts[along] + counts[along] < shape[along] else -1
        changed = [*boxes[:moved], [file, name, starts, counts], *boxes[moved + 1 :]]
        with pytest.raises(tg.FormatError, match="overlap") as caught:
            tg.open(self.index(shape, changed, tmp_path))
        assert caught.value.rule == "dcp.box.overlap"

    @pytest.mark.parametrize("compared", [2, 128])
    def test_every_pair_of_boxes_is_compared(
        self, compared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Against a count of how many boxes each element is in; with cuts down to two boxes, and without a cut."""
        monkeypatch.setattr(checkpoint_module, "COMPARED_BOXES", compared)
        rng = random.Random(3)
        refused = 0
        for shape in ([8], [4, 5], [3, 3, 3]) * 40:
            boxes: list[Any] = []
            counted = np.zeros(shape, int)
            while counted.sum() < counted.size:
                starts = [rng.randrange(size) for size in shape]
                counts = [rng.randint(1, size - start) for size, start in zip(shape, starts, strict=True)]
                region = tuple(slice(a, a + n) for a, n in zip(starts, counts, strict=True))
                if counted[region].any() and (counted.sum() < counted.size - 3 or rng.random() < 0.9):
                    empty = np.argwhere(counted == 0)[0].tolist()
                    starts, counts, region = empty, [1] * len(shape), tuple(slice(a, a + 1) for a in empty)
                counted[region] += 1
                boxes.append(box_of(0, str(len(boxes)), starts, counts))
            path = self.index(shape, boxes, tmp_path)
            if (counted == 1).all():
                tg.open(path).close()
            else:
                refused += 1
                with pytest.raises(tg.FormatError) as caught:
                    tg.open(path)
                assert caught.value.rule == "dcp.box.overlap"
                named = [json.loads(text) for text in re.findall(r"\[[\d, ]+\]", str(caught.value))]
                assert any(
                    [a, b] in (named, named[::-1])
                    and all(max(s, t) < min(s + n, t + m) for s, n, t, m in zip(a, size, b, other, strict=True))
                    for (_, _, a, size), (_, _, b, other) in combinations(boxes, 2)
                ), "the boxes that it names overlap"
        assert 0 < refused < 120

    def test_the_work_is_limited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checkpoint_module, "WORK_PER_BOX", 2)
        with pytest.raises(tg.LimitError) as caught:
            tg.open(self.index(*ARRANGEMENTS["a grid"], tmp_path))
        assert caught.value.rule == "dcp.limit.boxes"

    def test_sizes_whose_sum_wraps(self, tmp_path: Path) -> None:
        """Five times 2**62 is 2**62 in 64 bits."""
        boxes = [box_of(0, str(i), [0, 0], [1 << 59, 2]) for i in range(5)]
        with pytest.raises(tg.FormatError) as caught:
            tg.open(self.index([1 << 59, 2], boxes, tmp_path))
        assert caught.value.rule == "dcp.box.overlap"


class TestHostileIndexes:
    @pytest.mark.parametrize("attack", BAD_INDEXES)
    def test_refused_when_opened(self, attack: str, tmp_path: Path) -> None:
        fields, rule = BAD_INDEXES[attack]
        write_index(tmp_path, **({"files": ["w.safetensors"], "tensors": {"w": WHOLE}} | fields))
        with pytest.raises(tg.FormatError) as caught:
            tg.open(tmp_path)
        assert caught.value.rule == rule

    def test_the_longest_path_is_looked_for(self, tmp_path: Path) -> None:
        write_index(tmp_path, files=["a/" * 2047 + "ww"], tensors={"w": WHOLE})
        with tg.open(tmp_path) as archive, pytest.raises(OSError, match="File name too long"):
            archive["w"].numpy()

    @pytest.mark.parametrize("limit", LIMITS)
    @pytest.mark.parametrize("kind", ["json", "torch"])
    def test_limits(self, limit: str, kind: str, tmp_path: Path) -> None:
        limits, rule = LIMITS[limit]
        if kind == "json":
            write_index(tmp_path, files=["w.safetensors"], tensors={"w": WHOLE})
        else:
            (tmp_path / ".metadata").write_bytes(of())
        with pytest.raises(tg.LimitError) as caught:
            tg.open(tmp_path, limits=limits)
        assert caught.value.rule == rule

    @pytest.mark.parametrize(
        ("file", "rule"), [("tensor.pt", "dcp.file.format"), ("w.zt", "dcp.box.layout"), ("w", "format.unknown")]
    )
    def test_a_file_that_is_not_of_a_rank(self, file: str, rule: str, tmp_path: Path) -> None:
        write_index(tmp_path, files=[file], tensors={"w": WHOLE})
        if file == "tensor.pt":
            shutil.copy(CORPUS.parent / "pt" / file, tmp_path)
        elif file == "w":
            (tmp_path / file).write_bytes(bytes(100))
        else:
            tg.save(tmp_path / file, {"w": [[1.0], [2.0, 3.0]]})
        with tg.open(tmp_path) as archive, pytest.raises(tg.TensorglotError) as caught:
            archive["w"].numpy()
        assert caught.value.rule == rule

    @pytest.mark.parametrize(
        ("tensors", "rule"),
        [
            ({"v": np.ones((4, 2), np.float32)}, "dcp.box.absent"),
            ({"w": np.ones((2, 4), np.float32)}, "dcp.box.shape"),
            ({"w": np.ones((4, 2), np.float64)}, "dcp.box.shape"),
            ({"w": np.ones((4, 2), np.int32)}, "dcp.box.dtype"),
            ({"w": np.ones((4, 2), np.uint32)}, "dcp.box.dtype"),
        ],
    )
    def test_a_file_that_does_not_match(self, tensors: Any, rule: str, tmp_path: Path) -> None:
        write_index(tmp_path, files=["w.safetensors"], tensors={"w": WHOLE})
        tg.save(tmp_path / "w.safetensors", tensors)
        with tg.open(tmp_path) as archive, pytest.raises(tg.FormatError) as caught:
            archive["w"].numpy()
        assert caught.value.rule == rule
        with tg.open(tmp_path) as archive, pytest.raises(tg.FormatError, match=f"rule {rule}"):
            archive["w"][1:3]
        with pytest.raises(tg.FormatError, match=f"rule {rule}"):
            tg.convert(tmp_path, tmp_path / "x.zt")
        assert [problem.rule for problem in tg.verify(tmp_path, deep=True).problems] == [rule]

    def test_bytes_of_an_unknown_type_are_stored_as_bytes(self, tmp_path: Path) -> None:
        unknown = WHOLE | {"dtype": "torch.float4_e2m1fn_x2", "itemsize": 1}
        write_index(tmp_path, files=["w.safetensors"], tensors={"w": unknown})
        for values, rules in ((np.ones((4, 2), np.uint8), []), (np.ones((4, 2), np.int8), ["dcp.box.dtype"])):
            tg.save(tmp_path / "w.safetensors", {"w": values})
            assert [problem.rule for problem in tg.verify(tmp_path, deep=True).problems] == rules

    def test_a_triangle_of_columns_is_compared_along_them(self, tmp_path: Path) -> None:
        """Boxes that start at as many rows as columns, and meet on the rows only."""
        count = 4_000
        boxes = [box_of(0, f"a{i}", [i, i], [count - i, 1]) for i in range(count)]
        boxes += [box_of(0, f"b{i}", [0, i], [i, 1]) for i in range(1, count)]
        write_index(tmp_path, files=["w"], tensors={"w": WHOLE | {"shape": [count, count], "boxes": boxes}})
        bound = 0.010 + 3e-6 * sum(path.stat().st_size for path in tmp_path.iterdir())
        assert seconds(lambda: tg.open(tmp_path).close(), bound) < bound

    def test_a_tensor_larger_than_memory(self, tmp_path: Path) -> None:
        huge = WHOLE | {"shape": [2**45, 2], "boxes": [box_of(0, "w", [0, 0], [2**45, 2])]}
        write_index(tmp_path, files=["w.safetensors"], tensors={"w": huge})
        tg.save(tmp_path / "w.safetensors", {"w": np.ones((4, 2), np.float32)})
        for read in (tg.load, lambda path: tg.open(path)["w"].numpy(), lambda path: tg.open(path)["w"][-1]):
            with pytest.raises(tg.FormatError, match=r"rule dcp\.box\.shape"):
                read(tmp_path)

    def test_an_index_beside_a_fifo(self, tmp_path: Path) -> None:
        import os

        write_index(tmp_path, files=["w.safetensors"], tensors={"w": WHOLE})
        os.mkfifo(tmp_path / "w.safetensors")
        with tg.open(tmp_path) as archive, pytest.raises(tg.FormatError, match="FIFO"):
            archive["w"].numpy()


GOOD = ("float32", (4, 2), [box((0, 0), (2, 2)), box((2, 0), (2, 2))])
PLACES = [("w", (0, 0), place("a.distcp", 0, 100)), ("w", (2, 0), place("a.distcp", 100, 100))]


def of(tensors: dict[str, Any] | None = None, places: list[Any] | None = None, **more: Any) -> bytes:
    return assemble(metadata(tensors or {"w": GOOD}, places or PLACES, **more))


def places_at(*at: Any) -> list[Any]:
    """File, offset, length and transforms of each place."""
    fields = [dict(zip(("file", "offset", "length", "transform_descriptors"), where, strict=False)) for where in at]
    return [(name, offset, place(**where)) for (name, offset, _), where in zip(PLACES, fields, strict=True)]


ITSELF = Raw(b"]\x94h\x00a")  # a list that contains itself
MANY = Raw(b"(" + b"K\x01" * 20_000 + b"t\x94")


VALUE = assemble("v")[2:-1] + assemble(Object(Global(METADATA, "BytesStorageMetadata"), None))[2:-1]
WHERE = ("v", None, place("a", 0, 1))
STORAGE_META = assemble(Global(METADATA, "StorageMeta"))[2:-1]


def bomb() -> bytes:
    """torch.Size of one tuple of 20,000 numbers, 5,000 times: 100 million numbers in 90 KB."""
    call = b"h\x00h\x01\x85R"
    return b"\x80\x04" + b"ctorch\nSize\n\x94" + b"(" + b"K\x01" * 20_000 + b"t\x94(" + call * 5_000 + b"t."


HOSTILE: dict[str, tuple[bytes, str]] = {
    "a function": (assemble(Call(Global("os", "system"), ("touch hacked",))), "pt.pickle.global"),
    "a function in a field": (of(planner_data=Call(Global("builtins", "eval"), ("1",))), "pt.pickle.global"),
    "an attribute of torch": (of(planner_data=Global("torch", "load")), "pt.pickle.global"),
    "a class that is not allowed": (of(storage_meta=Object(Global("io", "BytesIO"))), "pt.pickle.global"),
    "a storage": (of(planner_data=Raw(b"NQ")), "pt.pickle.opcode"),
    "a function as a class": (of(storage_meta=Raw(b"ctorch\nSize\n)\x81")), "pt.pickle.call"),
    "a class as a function": (of(storage_meta=Call(Global(METADATA, "Metadata"), ())), "pt.pickle.call"),
    "a state of another class": (
        of(storage_meta=Object(Global(METADATA, "StorageMeta"), {"__class__": 1})), "pt.pickle.build",
    ),
    "a state of a thousand fields": (
        of(storage_meta=Object(Global(METADATA, "StorageMeta"), {str(i): i for i in range(999)})), "pt.pickle.build",
    ),
    "not metadata": (assemble({"w": 1}), "dcp.metadata"),
    "chunks that contain themselves": (of({"w": ("float32", (4, 2), ITSELF)}), "dcp.metadata"),
    "a tensor that is none": (of({"w": 5}), "dcp.metadata"),
    "a dtype that is none": (of({"w": ("Size", (4, 2), [])}), "dcp.metadata"),
    "an unknown dtype": (of({"w": ("float1", (4, 2), [])}), "pt.pickle.global"),
    "a sparse layout": (
        of(planner_data=Call(Global("torch.serialization", "_get_layout"), ("torch.sparse_coo",))), "dcp.layout",
    ),
    "negative sizes": (of({"w": ("float32", (-4, -2), [])}), "pt.tensor.shape"),
    "2**80 bytes": (of({"w": ("float32", (2**40, 2**40), [])}), "dcp.shape.product"),
    "65 dimensions": (of({"w": ("float32", (1,) * 65, [])}), "dcp.limit.rank"),
    "a box too many": (
        of({"w": (*GOOD[:2], [*GOOD[2], box((1, 0), (1, 2))])}, [*PLACES, ("w", (1, 0), place("a.distcp", 200, 50))]),
        "dcp.box.overlap",
    ),
    "a box twice": (of({"w": (*GOOD[:2], [GOOD[2][0], GOOD[2][0]])}), "dcp.item.missing"),
    "a box too few": (of({"w": (*GOOD[:2], GOOD[2][:1])}), "dcp.box.missing"),
    "a box outside": (of({"w": (*GOOD[:2], [GOOD[2][0], box((2, 0), (3, 2))])}), "dcp.box.range"),
    "a box of another rank": (of({"w": (*GOOD[:2], [box((0,), (4,))])}), "dcp.metadata"),
    "no place": (of(places=PLACES[:1]), "dcp.item.missing"),
    "two places": (of(places=[*PLACES, PLACES[0]]), "dcp.metadata"),
    "a file above": (of(places=places_at(("../a", 0, 100), ("../a", 100, 100))), "dcp.file.path"),
    "a file above a folder": (of(places=places_at(("b/../../a", 0, 100), ("a", 0, 100))), "dcp.file.path"),
    "an absolute file": (of(places=places_at(("/etc/passwd", 0, 100), ("a", 0, 100))), "dcp.file.path"),
    "a drive": (of(places=places_at(("C:\\a", 0, 100), ("a", 0, 100))), "dcp.file.path"),
    "a NUL": (of(places=places_at(("a\0b", 0, 100), ("a", 0, 100))), "dcp.file.path"),
    "an empty file name": (of(places=places_at(("", 0, 100), ("a", 0, 100))), "dcp.file.path"),
    "a long file name": (of(places=places_at(("a" * 300, 0, 100), ("a", 0, 100))), "dcp.file.path"),
    "one span of two boxes": (of(places=places_at(("a", 0, 100), ("a", 0, 100))), "dcp.item.overlap"),
    "spans that overlap": (of(places=places_at(("a", 0, 100), ("a", 50, 100))), "dcp.item.overlap"),
    "a span too small": (of(places=places_at(("a", 0, 8), ("a", 8, 100))), "dcp.item.size"),
    "a span that wraps": (of(places=places_at(("a", 2**62, 2**62), ("a", 2**63 - 1, 2**63 - 1))), "dcp.metadata"),
    "a negative offset": (of(places=places_at(("a", -8, 100), ("a", 8, 100))), "dcp.metadata"),
    "a path that is a number": (of(places=places_at((5, 0, 100), ("a", 8, 100))), "dcp.metadata"),
    "an offset that is a nest": (
        of(places=[("w", (0, 0), Object(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            {"relative_path": "a", "offset": ITSELF, "length": 1}))]), "dcp.metadata",
    ),
    "no names": (of(state_dict_metadata=[]), "dcp.metadata"),
    "a name that is a number": (of({5: GOOD}), "dcp.name"),
    "a name twice": (of(state_dict_metadata=Raw(b"}(" + 2 * VALUE + b"u"), places=[WHERE]), "dcp.name"),
    "places that are a list": (of(storage_data=[]), "dcp.metadata"),
    "a place without an index": (of(storage_data={"w": place("a", 0, 100)}), "dcp.metadata"),
    "no memory format": (of(planner_data=Call(Global(METADATA, "_MEM_FORMAT_ENCODING"), ())), "dcp.memory_format"),
    "a memory format of text": (
        of(planner_data=Call(Global(METADATA, "_MEM_FORMAT_ENCODING"), ("1",))), "dcp.memory_format",
    ),
    "memory format 3": (of(planner_data=Call(Global(METADATA, "_MEM_FORMAT_ENCODING"), (3,))), "dcp.memory_format"),
    "an object with arguments": (of(planner_data=Raw(STORAGE_META + b"K\x01\x85\x81")), "pt.pickle.call"),
    "a state that is a number": (of(planner_data=Object(Global(METADATA, "StorageMeta"), 5)), "pt.pickle.build"),
    "a field that is a number": (of(planner_data=Object(Global(METADATA, "StorageMeta"), {5: 5})), "pt.pickle.build"),
    "transforms in a text": (of(places=places_at(("a", 0, 100, "zstd"), ("a", 100, 100))), "dcp.metadata"),
    "a transform that is a number": (of(places=places_at(("a", 0, 100, [5]), ("a", 100, 100))), "dcp.metadata"),
    "numbers again and again": (bomb(), "pt.pickle.bomb"),
    "a tuple nested 50,000 deep": (of(planner_data=Raw(b")" + b"\x85" * 50_000)), "pt.pickle.bomb"),
    "trailing bytes": (of() + b"N.", "dcp.pickle.trailing"),
}  # fmt: skip


def value_item(value: Any) -> bytes:
    """A plain value as torch.save writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("v/data.pkl", assemble(value))
    return buffer.getvalue()


ONES = (CORPUS.parent / "pt" / "tensor.pt").read_bytes()
THREE = ("float32", (3,), [box((0,), (3,))])
BAD_ITEMS: dict[str, tuple[Any, bytes, str]] = {
    "a file cut short": (THREE, ONES[:-1], "dcp.item.end"),
    "another dtype": (("int32", *THREE[1:]), ONES, "dcp.item.dtype"),
    "no tensor": (THREE, value_item({"w": 5}), "dcp.item.dtype"),
    "another shape": (("float32", (1, 3), [box((0, 0), (1, 3))]), ONES, "dcp.box.shape"),
    "no archive": (THREE, bytes(100), "pt.zip.end"),
}


class TestItems:
    """Tensors and values of PyTorch's files are not what the metadata says."""

    def open(self, folder: Path, names: dict[str, Any], items: dict[str, bytes], limits: Any = None) -> tg.Archive:
        at = 0
        places = []
        for name, item in items.items():
            places.append((name, (0,) * len(names[name][1]) if names[name] else None, place("a.distcp", at, len(item))))
            at += len(item)
        (folder / ".metadata").write_bytes(of(names, places))
        if not (folder / "a.distcp").exists():
            (folder / "a.distcp").write_bytes(b"".join(items.values()))
        return tg.open(folder, limits=limits)

    def test_the_pattern_of_all_is_valid(self, tmp_path: Path) -> None:
        with self.open(tmp_path, {"w": THREE}, {"w": ONES}) as archive:
            assert archive["w"].numpy().tolist() == [1, 1, 1]

    @pytest.mark.parametrize("case", BAD_ITEMS)
    def test_a_tensor_that_does_not_match(self, case: str, tmp_path: Path) -> None:
        entry, data, rule = BAD_ITEMS[case]
        (tmp_path / "a.distcp").write_bytes(data)
        length = len(data) + (case == "a file cut short")
        with (
            self.open(tmp_path, {"w": entry}, {"w": bytes(length)}) as archive,
            pytest.raises(tg.FormatError) as caught,
        ):
            archive["w"].numpy()
        assert (caught.value.rule, caught.value.tensor) == (rule, "w")
        assert str(caught.value.path).endswith("a.distcp")

    def test_values(self, tmp_path: Path) -> None:
        """Those of a dict have its name in front; tensors inside them are listed, not read."""
        names = {"v": None, "w": None}
        listed = (CORPUS.parent / "pt" / "list.pt").read_bytes()
        with self.open(tmp_path, names, {"v": value_item({"a": 1, "b": "x"}), "w": listed}) as archive:
            assert archive.metadata == {"v.a": 1, "v.b": "x", "w.1.1": 7, "w.2": []}
            assert ["2 tensors" in note.message for note in archive.notes] == [True]

    def test_values_with_transforms(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(value_item(1))
        packed = place("a", 0, len(value_item(1)), transform_descriptors=["stream.zstd"])
        (tmp_path / ".metadata").write_bytes(of({"v": None}, [("v", None, packed)]))
        with tg.open(tmp_path) as archive:
            assert ["transforms" in note.message for note in archive.notes] == [True]

    def test_values_that_are_refused(self, tmp_path: Path) -> None:
        names = {"v": None, "v.a": None}
        with pytest.raises(tg.FormatError) as caught:
            self.open(tmp_path, names, {"v": value_item({"a": 1}), "v.a": value_item(2)})
        assert (caught.value.rule, caught.value.tensor) == ("dcp.name", "v.a")
        with pytest.raises(tg.LimitError) as limited:
            self.open(tmp_path, {"v": None}, {"v": value_item("x" * 9000)}, tg.Limits(header_nbytes=5000))
        assert limited.value.rule == "dcp.limit.values"
        (tmp_path / "a.distcp").write_bytes(value_item(2)[:-1])
        with pytest.raises(tg.TruncatedError) as cut:
            self.open(tmp_path, {"v": None}, {"v": value_item(2)})
        assert (cut.value.rule, cut.value.tensor) == ("dcp.item.end", "v")


class TestHostileMetadata:
    def test_the_pattern_of_all_is_valid(self, tmp_path: Path) -> None:
        (tmp_path / ".metadata").write_bytes(of())
        with tg.open(tmp_path) as archive:
            assert archive["w"].shape == (4, 2)
            with pytest.raises(tg.FormatError, match=r"a\.distcp is missing"):
                archive["w"].numpy()

    @pytest.mark.parametrize("attack", HOSTILE)
    def test_refused_and_nothing_executed(self, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        data, rule = HOSTILE[attack]
        (tmp_path / ".metadata").write_bytes(data)
        with pytest.raises(tg.TensorglotError) as caught:
            tg.open(tmp_path, format="dcp")
        assert caught.value.rule == rule
        assert not (tmp_path / "hacked").exists()

    @pytest.mark.parametrize("attack", HOSTILE)
    def test_within_bounds(self, attack: str, tmp_path: Path) -> None:
        path = tmp_path / ".metadata"
        path.write_bytes(HOSTILE[attack][0])

        def opening() -> None:
            with pytest.raises(tg.TensorglotError):
                tg.open(tmp_path, format="dcp")

        nbytes = path.stat().st_size
        bound = (0.01 + 3e-6 * nbytes) * (3 if INTERPRETED else 1)
        assert seconds(opening, bound) < bound
        assert allocated_nbytes(opening) < 8 * MB + 40 * nbytes

    def test_many_boxes_are_checked_in_time(self, tmp_path: Path) -> None:
        """A grid of 60 × 60 boxes, and one of them moved."""
        grid = [(2 * i, 2 * j) for i in range(60) for j in range(60)]
        spans = [("w", at, place("a", 20 * i, 20)) for i, at in enumerate(grid)]
        boxes = [box(at, (2, 2)) for at in grid]
        (tmp_path / ".metadata").write_bytes(of({"w": ("float32", (120, 120), boxes)}, spans))
        tg.open(tmp_path).close()
        moved = [*grid[:-1], (117, 117)]
        spans[-1] = ("w", moved[-1], spans[-1][2])
        data = of({"w": ("float32", (120, 120), [box(at, (2, 2)) for at in moved])}, spans)
        (tmp_path / ".metadata").write_bytes(data)
        with pytest.raises(tg.FormatError, match="overlap"):
            tg.open(tmp_path)

    @pytest.mark.parametrize(("file", "count"), [(".metadata", 500), ("__0_0.distcp", 120)])
    def test_mutants(self, file: str, count: int, tmp_path: Path) -> None:
        """Only our errors leave, whatever byte is changed, wherever the file ends."""
        copy = tmp_path / "copy"
        shutil.copytree(CORPUS / "ranks2", copy)
        good = (copy / file).read_bytes()
        dice = random.Random(file)
        for number in range(count):
            data = bytearray(good)
            if number % 5 == 0:
                del data[dice.randrange(len(data)) :]
            else:
                for _ in range(dice.choice([1, 1, 2, 8])):
                    data[dice.randrange(len(data))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
            (copy / file).write_bytes(data)
            with suppress(tg.TensorglotError):
                tg.load(copy)

    def test_a_value_that_is_not_plain_is_listed(self, tmp_path: Path) -> None:
        value = value_item(Call(Global("os", "system"), ("touch hacked",)))
        (tmp_path / "v.distcp").write_bytes(value + b"raw")
        places = [("bad", None, place("v.distcp", 0, len(value))), ("raw", None, place("v.distcp", len(value), 3))]
        (tmp_path / ".metadata").write_bytes(of({"bad": None, "raw": None}, places))
        with tg.open(tmp_path) as opened:
            assert opened.metadata is None
            assert ["os.system" in note.message for note in opened.notes] == [True, False]
            assert "not an archive of torch.save" in opened.notes[1].message
        with pytest.raises(tg.FormatError, match=r"os\.system"):
            tg.open(tmp_path, strict=True)

    def test_transforms_are_unsupported(self, tmp_path: Path) -> None:
        """The tensor, the transform and the rule are named, and nothing is written."""
        packed = {"transform_descriptors": ["stream.zstd"]}
        places = [("w", (0, 0), place("a", 0, 9, **packed)), ("w", (2, 0), place("a", 9, 9, **packed))]
        (tmp_path / ".metadata").write_bytes(of(places=places))
        for read in (lambda archive: archive["w"].numpy(), lambda archive: tg.convert(archive, tmp_path / "x.bt")):
            with tg.open(tmp_path) as archive, pytest.raises(tg.UnsupportedError, match=r"stream\.zstd") as caught:
                read(archive)
            assert (caught.value.tensor, caught.value.rule) == ("w", "dcp.item.transforms")
        assert not (tmp_path / "x.bt").exists()


@pytest.fixture(scope="module", params=[2, 4])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ranks have saved in every way, loaded with other placements and compared."""
    needs("torch")
    folder = tmp_path_factory.mktemp("ranks")
    launch(folder, request.param)
    return folder


@pytest.mark.filterwarnings("ignore")
class TestRanks:
    """Two and four processes: see dcp_ranks, which compares after resharding."""

    @pytest.mark.parametrize("way", WAYS)
    def test_equal_to_the_state(self, saved: Path, way: str) -> None:
        full = {f"{group}.{name}": found for group, name, found in self.full(saved)}
        loaded = tg.load(saved / way, framework="torch")
        assert set(loaded) == set(full)
        for name, tensor in full.items():
            assert raw(np.asarray(loaded[name].reshape(-1).view(self.torch.uint8))) == raw(
                np.asarray(tensor.reshape(-1).view(self.torch.uint8))
            ), name
        with tg.open(saved / way) as archive:
            assert archive.metadata == {f"values.{name}": value for name, value in VALUES.items()}
        assert tg.verify(saved / way).ok

    @property
    def torch(self) -> Any:
        return needs("torch")

    def full(self, saved: Path) -> Iterator[tuple[str, str, Any]]:
        state = self.torch.load(saved / "full.pt", weights_only=True)
        return ((group, name, value) for group in ("model", "extra") for name, value in state[group].items())

    def test_equal_to_dcp_to_torch_save(self, saved: Path, tmp_path: Path) -> None:
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        dcp_to_torch_save(saved / "torch", tmp_path / "joined.pt")
        assert entries(saved / "torch") == entries(tmp_path / "joined.pt")

    def test_nothing_but_the_checkpoint_is_left(self, saved: Path) -> None:
        for way in WAYS[1:]:
            files = json.loads((saved / way / "dcp.json").read_text())["files"]
            assert {path.name for path in (saved / way).iterdir()} == {"dcp.json", *files}


@pytest.mark.filterwarnings("ignore")
class TestOneProcess:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        needs("torch")

    def save(self, state: dict[str, Any], path: Path, format: str = "safetensors") -> None:
        import torch.distributed.checkpoint as dcp

        from tensorglot.bridges.dcp import Writer

        dcp.save(state, storage_writer=Writer(path, format), no_dist=True)  # type: ignore[arg-type]

    def load(self, state: dict[str, Any], source: Any) -> None:
        import torch.distributed.checkpoint as dcp

        from tensorglot.bridges.dcp import Reader

        dcp.load(state, storage_reader=Reader(source), no_dist=True)  # type: ignore[arg-type]

    @pytest.mark.parametrize("names", [("w",), ("a", "b" * 17, "c")])
    @pytest.mark.parametrize("format", ["safetensors", "ztensor"])
    def test_files_have_the_alignment_of_pytorch(self, format: str, names: tuple[str, ...], tmp_path: Path) -> None:
        torch = needs("torch")
        self.save({name: torch.randn(64, 3) for name in names}, tmp_path / "saved", format)
        (file,) = (path for path in (tmp_path / "saved").iterdir() if path.name != "dcp.json")
        with tg.open(file, strict=True) as archive:
            assert [(archive[name].offset or 0) % 64 for name in names] == [0] * len(names)
        assert tg.verify(tmp_path / "saved", strict=True).ok

    def test_old_files_are_removed_at_the_same_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One after the other, those of 1,000 ranks would take 1,000 requests to a bucket."""
        torch = needs("torch")
        from tensorglot.io.folder import Folder

        self.save({"w": torch.ones(3)}, tmp_path)
        names = [f"0000000{i}-0000{i}.safetensors" for i in range(4)]
        for name in names:
            (tmp_path / name).touch()
        together, remove = threading.Barrier(len(names) + 1, timeout=20), Folder.remove

        def meet(folder: Folder, name: str) -> None:
            together.wait()
            remove(folder, name)

        monkeypatch.setattr(Folder, "remove", meet)
        self.save({"w": torch.ones(3)}, tmp_path)
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_load_opens_the_source_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """And closes it; the next load of the same reader opens it again."""
        torch, dcp = needs("torch"), needs("torch.distributed.checkpoint")
        from tensorglot.bridges.dcp import reader as module

        self.save({"w": torch.ones(3), "step": 7}, tmp_path / "saved")
        opened: list[tg.Archive] = []

        def counted(*given: Any, **named: Any) -> tg.Archive:
            opened.append(tg.open(*given, **named))
            return opened[-1]

        monkeypatch.setattr(module, "open", counted)
        reader = module.Reader(tmp_path / "saved")
        for count in (1, 2):
            state = {"w": torch.zeros(3), "step": 0}
            dcp.load(state, storage_reader=reader, no_dist=True)
            assert (state["w"].tolist(), state["step"], len(opened)) == ([1, 1, 1], 7, count)
            with pytest.raises(tg.InputError, match="closed"):
                opened[-1]["w"].numpy()
        with pytest.raises(dcp.CheckpointException):
            dcp.load({"w": torch.zeros(4)}, storage_reader=reader, no_dist=True)  # planned, and never read
        reader.reset(tmp_path / "other")
        with pytest.raises(tg.InputError, match="closed"):
            opened[-1]["w"].numpy()

    def test_a_writer_goes_on_to_another_path(self, tmp_path: Path) -> None:
        torch = needs("torch")
        dcp = needs("torch.distributed.checkpoint")
        from tensorglot.bridges.dcp import Writer

        writer = Writer(tmp_path / "first")
        for number, name in enumerate(("first", "second")):
            dcp.save(
                {"w": torch.full((3,), number)}, checkpoint_id=tmp_path / name, storage_writer=writer, no_dist=True
            )
        for number, name in enumerate(("first", "second")):
            assert tg.load(tmp_path / name)["w"].tolist() == [number] * 3

    def test_items_as_safetensors_are_unsupported(self, tmp_path: Path) -> None:
        torch = needs("torch")
        dcp = needs("torch.distributed.checkpoint")
        kind = needs("torch.distributed.checkpoint.filesystem").SerializationFormat.SAFETENSORS
        writer = dcp.FileSystemWriter(tmp_path / "saved", serialization_format=kind)
        dcp.save({"w": torch.arange(12.0)}, storage_writer=writer, no_dist=True)
        with tg.open(tmp_path / "saved") as archive, pytest.raises(tg.UnsupportedError, match="SAFETENSORS") as caught:
            archive["w"].numpy()
        assert (caught.value.tensor, caught.value.rule) == ("w", "dcp.item.serialization")

    def test_quantized_tensors_of_torch_are_listed_and_refused(self, tmp_path: Path) -> None:
        """Beside others, which are read; a conversion names the tensor, and leaves nothing."""
        import torch
        import torch.distributed.checkpoint as dcp

        x = torch.arange(12.0).reshape(3, 4)
        state = {
            "w": x,
            "one": torch.quantize_per_tensor(x, 0.1, 3, torch.qint8),
            "wide": torch.quantize_per_tensor(x, 0.1, 0, torch.qint32),
            "rows": torch.quantize_per_channel(x, torch.ones(3), torch.zeros(3, dtype=torch.long), 0, torch.quint8),
        }
        dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path / "saved"), no_dist=True)
        with tg.open(tmp_path / "saved") as archive:
            assert [repr(archive[name]) for name in ("one", "wide", "rows")] == [
                "Tensor(one: torch.qint8[3, 4], 12 B)", "Tensor(wide: torch.qint32[3, 4], 48 B)",
                "Tensor(rows: torch.quint8[3, 4], 12 B)",
            ]  # fmt: skip
            assert [note.rule for note in archive.notes] == ["dcp.quantized"] * 3
            assert all("int_repr" in note.message for note in archive.notes)
            assert (archive["w"].numpy() == x.numpy()).all()
            for name in ("one", "wide", "rows"):
                for read in (lambda tensor: tensor.numpy(), lambda tensor: tensor[1:], lambda tensor: tensor.cid()):
                    with pytest.raises(tg.UnsupportedError) as caught:
                        read(archive[name])
                    assert caught.value.tensor == name
        with pytest.raises(tg.UnsupportedError, match=r"torch\.qint"):
            tg.convert(tmp_path / "saved", tmp_path / "x.safetensors")
        assert not (tmp_path / "x.safetensors").exists()
        tg.convert(tmp_path / "saved", tmp_path / "w.safetensors", on_loss="drop")
        assert list(tg.load(tmp_path / "w.safetensors")) == ["w"]
        assert tg.verify(tmp_path / "saved").ok

    def test_an_interrupted_save_is_not_a_checkpoint(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch
        from torch.distributed.checkpoint.api import CheckpointException

        from tensorglot.bridges.dcp import Writer

        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(Writer, "finish", interrupted)
        with pytest.raises((CheckpointException, KeyboardInterrupt)):
            self.save({"w": torch.ones(3)}, tmp_path)
        assert len(list(tmp_path.iterdir())) == 1
        self.refused(tmp_path)
        monkeypatch.undo()
        self.save({"w": torch.ones(3)}, tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
        monkeypatch.setattr(Writer, "finish", interrupted)
        with pytest.raises((CheckpointException, KeyboardInterrupt)):
            self.save({"w": torch.zeros(3)}, tmp_path)
        assert tg.load(tmp_path)["w"].tolist() == [1, 1, 1]

    def refused(self, path: Path) -> None:
        import torch
        from torch.distributed.checkpoint.api import CheckpointException

        with pytest.raises(CheckpointException):
            self.load({"w": torch.zeros(3), "v": torch.zeros(3)}, path)

    @pytest.mark.parametrize("value", [object, Path("x"), {1: {2: object}}])
    def test_a_value_that_needs_pickle_is_refused(self, value: Any, tmp_path: Path) -> None:
        import torch
        from torch.distributed.checkpoint.api import CheckpointException

        with pytest.raises(CheckpointException, match="without pickle"):
            self.save({"w": torch.ones(1), "odd": value}, tmp_path)
        assert not (tmp_path / "dcp.json").exists()

    def test_plain_values_return_as_they_were(self, tmp_path: Path) -> None:
        import collections

        import torch

        values = {
            "tuple": (1, (2.5, "x")), "set": {1, 2}, "bytes": b"\0", "nan": float("-inf"), "complex": 1 - 2j,
            "size": torch.Size([3]), "dtype": torch.bfloat16, "device": torch.device("cuda", 1),
            "nested": (None, True, 2**100, collections.OrderedDict(a=1), {3: [4]}), "text": "\u2028",
        }  # fmt: skip
        self.save(values, tmp_path)
        loaded: dict[str, Any] = dict.fromkeys(values)
        self.load(loaded, tmp_path)
        assert loaded == values
        assert {name: type(value) for name, value in loaded.items()} == {n: type(v) for n, v in values.items()}

    @pytest.mark.parametrize("name", ["m.safetensors", "m.zt", "m.npz", "m.bt"])
    def test_the_reader_takes_any_file(self, name: str, tmp_path: Path) -> None:
        import torch

        tg.save(tmp_path / name, {"w": np.arange(6.0).reshape(2, 3), "v": np.ones(2, np.int8)})
        state = {"w": torch.zeros(2, 3, dtype=torch.float32)}  # the planner casts
        self.load(state, tmp_path / name)
        assert state["w"].tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_the_reader_takes_a_store(self, tmp_path: Path) -> None:
        import torch

        state = {"w": torch.arange(6.0)}
        self.save(state, tmp_path / "dcp")
        with tg.store.Store.create(str(tmp_path / "store")) as store:
            store.commit("main", tmp_path / "dcp")
        loaded = {"w": torch.zeros(6)}
        self.load(loaded, f"store://{tmp_path / 'store'}#main")
        assert torch.equal(loaded["w"], state["w"])

    def test_a_format_without_names(self, tmp_path: Path) -> None:
        from tensorglot.bridges.dcp import Writer

        with pytest.raises(tg.InputError, match="no names"):
            Writer(tmp_path, "npy")


def test_the_classes_are_those_of_the_drop_in_module() -> None:
    from tensorglot.bridges import dcp

    assert (tg.torch.dcp.Writer, tg.torch.dcp.Reader) == (dcp.Writer, dcp.Reader)


def test_an_index_without_its_directory_reads_no_tensor(tmp_path: Path) -> None:
    save_boxes(tmp_path, "w", np.ones((2, 2)), [[1], []], ".zt")
    with (
        tg.open((tmp_path / "dcp.json").read_bytes()) as archive,
        pytest.raises(tg.UnsupportedError, match="by its path") as caught,
    ):
        archive["w"].numpy()
    assert caught.value.rule == "dcp.path"


def test_an_empty_tensor_needs_no_box(tmp_path: Path) -> None:
    write_index(tmp_path, tensors={"w": WHOLE | {"shape": [0, 2], "boxes": []}})
    assert tg.load(tmp_path)["w"].shape == (0, 2)
    assert tg.verify(tmp_path, deep=True).ok


def test_big_endian_complex_numbers_are_unsupported(tmp_path: Path) -> None:
    torch = needs("torch")
    saved, item = io.BytesIO(), io.BytesIO()
    torch.save(torch.tensor([1 + 2j, 3, 4], dtype=torch.complex64), saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(item, "w") as target:
        for name in source.namelist():
            target.writestr(name, b"big" if name.endswith("/byteorder") else source.read(name))
    entry = ("complex64", *THREE[1:])
    with TestItems().open(tmp_path, {"w": entry}, {"w": item.getvalue()}) as archive:
        with pytest.raises(tg.UnsupportedError) as caught:
            archive["w"].numpy()
        assert (caught.value.rule, caught.value.tensor) == ("dcp.byteorder", "w")
