"""convert: the plan, the losses, what the caller may ask for, and what is left when it goes wrong."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from bounds import MB, resident_nbytes
from faults import copied_nbytes
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.payload import Memory
from tensorglot.model.tensor import Part, Tensor
from tensorglot.model.types.algebra import dense

TENSORS: dict[str, Any] = {
    "model.0.weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "model.0.bias": np.float64([1.5, -2.25, 1e10]),
    "model.1.weight": np.ones((2, 2), ml_dtypes.bfloat16),
    "ids": np.arange(5),
    "mask": np.array([True, False]),
    "[x]": np.int8([1]),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tg.save(tmp_path / "a.bt", TENSORS, metadata={"step": "10"})
    return tmp_path / "a.bt"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "b.bt"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_written_is_what_save_would_write(source: Path, target: Path) -> None:
    report = tg.convert(source, target, format="bintensors@1")
    assert report.ok
    assert report.written
    assert target.read_bytes() == tg.dumps(TENSORS, format="bintensors@1", metadata={"step": "10"})
    assert tg.diff(source, target).same
    assert (report.format, report.tensors, report.losses) == ("bintensors@1", 6, ())
    assert report.nbytes == sum(array.nbytes for array in TENSORS.values())


def test_sources_and_targets_of_every_kind(source: Path) -> None:
    expected = tg.dumps(TENSORS, format="bintensors", metadata={"step": "10"})
    with tg.open(source) as archive, source.open("rb") as file:
        for given in (source, str(source), source.read_bytes(), file, archive):
            stream = io.BytesIO()
            tg.convert(given, stream, format="bintensors")
            assert stream.getvalue() == expected
        assert list(archive)
    stream = io.BytesIO()
    tg.convert(TENSORS, stream, format="bintensors", metadata={"step": "10"})
    assert stream.getvalue() == expected


def test_a_file_converted_onto_itself(source: Path) -> None:
    tg.convert(source, source, select="model.*")
    assert set(tg.load(source)) == {name for name in TENSORS if name.startswith("model.")}


SELECT: dict[str, tuple[Any, list[str]]] = {
    "a pattern": ("model.*", ["model.0.weight", "model.0.bias", "model.1.weight"]),
    "a name": ("ids", ["ids"]),
    "several": (["*.bias", "mask"], ["model.0.bias", "mask"]),
    "a name that is a pattern": ("[x]", ["[x]"]),
    "a function": (lambda name: "bias" in name, ["model.0.bias"]),
}


@pytest.mark.parametrize("case", SELECT)
def test_select(case: str, source: Path, target: Path) -> None:
    select, names = SELECT[case]
    tg.convert(source, target, select=select)
    assert sorted(tg.load(target)) == sorted(names)


RENAME: dict[str, tuple[Any, dict[str, str]]] = {
    "one": ({"ids": "positions"}, {"ids": "positions"}),
    "a star": (
        {"model.*": "*"},
        {"model.0.weight": "0.weight", "model.0.bias": "0.bias", "model.1.weight": "1.weight"},
    ),
    "two stars": (
        {"model.*.*": "*/*"},
        {"model.0.weight": "0/weight", "model.0.bias": "0/bias", "model.1.weight": "1/weight"},
    ),
    "a name before a pattern": ({"*": "x.*", "ids": "ids"}, {name: f"x.{name}" for name in TENSORS if name != "ids"}),
    "a function": (str.upper, {name: name.upper() for name in TENSORS}),
}


@pytest.mark.parametrize("case", RENAME)
def test_rename(case: str, source: Path, target: Path) -> None:
    rename, expected = RENAME[case]
    tg.convert(source, target, rename=rename)
    assert set(tg.load(target)) == {expected.get(name, name) for name in TENSORS}


CASTS: dict[str, tuple[Any, dict[str, str]]] = {
    "a float for the floats": (
        "float16",
        {"model.0.weight": "float16", "model.0.bias": "float16", "model.1.weight": "float16"},
    ),
    "an integer for the integers": (np.int32, {"ids": "int32", "[x]": "int32"}),
    "by pattern": ({"*.bias": "float32", "mask": "uint8"}, {"model.0.bias": "float32", "mask": "uint8"}),
    "the first pattern": ({"*.0.*": "float64", "*": np.float32}, {
        "model.0.weight": "float64", "model.1.weight": "float32", "ids": "float32", "mask": "float32", "[x]": "float32",
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", CASTS)
def test_dtype(case: str, source: Path, target: Path) -> None:
    dtype, changed = CASTS[case]
    report = tg.convert(source, target, dtype=dtype, on_loss="drop")
    loaded = tg.load(target)
    for name, array in TENSORS.items():
        kind = BY_NAME[changed.get(name, array.dtype.name)].numpy
        with np.errstate(over="ignore"):
            expected = array.astype(kind)
        assert loaded[name].dtype == kind
        assert np.array_equal(loaded[name].view(np.uint8), expected.view(np.uint8))
    assert {cast.tensor: cast.new for cast in report.casts} == {n: k for n, k in changed.items() if n in TENSORS}


def test_the_account_of_a_cast(source: Path, target: Path) -> None:
    report = tg.convert(source, target, dtype={"model.0.*": "float16"}, on_loss="drop")
    casts = {cast.tensor: cast for cast in report.casts}
    weight = TENSORS["model.0.weight"]
    rounded = np.count_nonzero(weight.astype(np.float16) != weight)
    assert (casts["model.0.weight"].rounded, casts["model.0.weight"].overflowed) == (rounded, 0)
    assert (casts["model.0.bias"].rounded, casts["model.0.bias"].overflowed) == (0, 1)
    assert report.to_dict()["casts"][0]["count"] == 3


def test_an_overflow_is_refused_and_leaves_nothing(source: Path, target: Path) -> None:
    with pytest.raises(tg.UnsupportedError, match="float16 cannot hold 1 of") as caught:
        tg.convert(source, target, dtype="float16")
    assert (caught.value.rule, caught.value.tensor) == ("convert.overflow", "model.0.bias")
    assert names_in(source.parent) == ["a.bt"]
    with pytest.warns(tg.LossWarning, match=r"model\.0\.bias: 1 "):
        tg.convert(source, target, dtype="float16", on_loss="warn")


def test_dry_run(source: Path, target: Path) -> None:
    report = tg.convert(source, target, dtype={"ids": "int4"}, rename={"mask": "m"}, dry_run=True)
    assert not report.written
    assert not report.ok
    assert not target.exists()
    plan = report.plan
    assert plan is not None
    assert [(loss.kind, loss.tensor) for loss in plan.losses] == [("dtype", "ids")]
    steps = {step.source: step for step in plan.steps}
    assert "ids" not in steps
    assert (steps["mask"].target, steps["mask"].action, steps["mask"].nbytes) == ("m", "copy", 2)
    assert report.to_dict()["plan"]["steps"][0]["action"] == "copy"
    assert report.to_dict()["plan"]["metadata"] == sorted(plan.metadata or ())
    without = tg.convert({"w": np.zeros(2)}, target, dry_run=True).to_dict()["plan"]
    assert without["metadata"] is None
    planned = tg.convert(source, target, dry_run=True)
    assert planned.ok
    assert " planned" in repr(planned)
    assert " converted" in repr(tg.convert(source, target))


def nested_lists(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def archive_with(**what: Any) -> Any:
    return tg.open(tg.dumps({"w": np.zeros(2)}, format="ztensor", checksum=None, **what))


def sparse() -> Tensor:
    part = Part(BY_NAME["float32"], (1,), Memory(np.float32([1])))
    return Tensor("w", {"values": part}, "zt.sparse_coo/1", dense(BY_NAME["float32"], (3, 3)))


LOSSES: dict[str, tuple[Any, str, str | None, Any]] = {
    "dtype": (lambda: {"w": np.zeros(2, ml_dtypes.int4)}, "dtype", "w", {}),
    "layout": (lambda: {"w": sparse()}, "layout", "w", {}),
    "attributes": (lambda: archive_with(attributes={"w": {"unit": "m"}}), "attributes", "w", {"w": [0.0, 0.0]}),
    "metadata that is no text": (lambda: archive_with(metadata={"n": 3}), "metadata", None, {"w": [0.0, 0.0]}),
    "metadata that is not even JSON": (lambda: archive_with(metadata={"n": b"x"}), "metadata", None, {"w": [0.0, 0.0]}),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_are_named_and_refused(case: str, target: Path) -> None:
    make, kind, tensor, left = LOSSES[case]
    with pytest.raises(tg.UnsupportedError, match="pass on_loss='drop' to convert the rest") as caught:
        tg.convert(make(), target)
    assert (caught.value.rule, caught.value.tensor) == (f"convert.{kind}", tensor)
    assert not target.exists()
    with pytest.warns(tg.LossWarning, match="bintensors cannot store|bintensors stores only text"):
        tg.convert(make(), target, on_loss="warn")
    target.unlink()
    report = tg.convert(make(), target, on_loss="drop")
    assert [(loss.kind, loss.tensor) for loss in report.losses] == [(kind, tensor)]
    assert {name: array.tolist() for name, array in tg.load(target).items()} == left


@pytest.mark.parametrize("format", [spec.name for spec in tg.formats() if spec.writes])
@pytest.mark.parametrize("value", [np.ones((2, 3), np.float32), [[1], [2, 3]]], ids=["dense", "ragged"])
def test_attributes_are_stored_or_lost_as_the_format_says(format: str, value: Any) -> None:
    spec = next(spec for spec in tg.formats() if spec.name == format)
    if not spec.holds_layout(tg.dynd.array(value).layout):
        return
    source = tg.open(tg.dumps({"data": value}, format="ztensor", checksum=None, attributes={"data": {"unit": "m"}}))
    for dry_run in (True, False):
        report = tg.convert(source, out := io.BytesIO(), format=format, on_loss="drop", dry_run=dry_run)
        assert [loss.kind for loss in report.losses] == ([] if spec.attributes else ["attributes"])
    found = tg.open(out.getvalue(), format=format)["data"]
    assert (found.cid(), found.attributes.get("unit")) == (source["data"].cid(), "m" if spec.attributes else None)
    if not spec.attributes:
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.convert(source, io.BytesIO(), format=format)
        assert caught.value.rule == "convert.attributes"


def test_metadata_is_carried_replaced_or_made_text(source: Path, target: Path) -> None:
    def found() -> Any:
        with tg.open(target) as archive:
            return archive.metadata

    tg.convert(source, target)
    assert found() == {"step": "10"}
    tg.convert(source, target, metadata={"by": "hand"})
    assert found() == {"by": "hand"}
    tg.convert(archive_with(metadata={"n": 3, "list": [1, "é"], "raw": b"x"}), target, on_loss="drop")
    assert found() == {"n": "3", "list": '[1, "é"]'}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a pattern for nothing": ({"select": "nothing*"}, "tensor.name"),
    "two of one name": ({"rename": {"ids": "mask"}}, "rename.twice"),
    "stars that do not match": ({"rename": {"*": "x"}}, "rename.stars"),
    "a rename that fits nothing": ({"rename": {"isd": "x"}}, "tensor.name"),
    "a pattern of renames that fits nothing": ({"rename": {"mask": "m", "modle.*": "*"}}, "tensor.name"),
    "a type for what is not there": ({"dtype": {"modle.*": "float16"}}, "tensor.name"),
    "no such type": ({"dtype": "float12"}, "dtype.name"),
    "no such policy": ({"on_loss": "ignore"}, "convert.on_loss"),
    "no such compression": ({"compression": "zstd"}, "save.compression"),
    "no such checksum": ({"checksum": "crc32c"}, "save.checksum"),
    "a type NumPy has not": ({"dtype": {"ids": "int128"}}, "convert.dtype"),
}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_invalid_arguments_are_refused(case: str, dry_run: bool, source: Path, target: Path) -> None:
    options, rule = REFUSED[case]
    if rule == "convert.dtype" and dry_run:
        assert not tg.convert(source, target, dry_run=True, **options).ok
        return
    with pytest.raises(tg.TensorglotError) as caught:
        tg.convert(source, target, dry_run=dry_run, **options)
    assert caught.value.rule == rule
    assert not target.exists()


def test_complex_is_not_cast_to_real(target: Path) -> None:
    with pytest.raises(tg.InputError, match="imaginary"):
        tg.convert({"w": np.array([1j])}, target, dtype={"w": "float64"})


def test_tied_tensors_are_found(target: Path) -> None:
    shared = np.arange(4, dtype=np.float32)
    tensors = {"a": shared, "b": shared, "c": shared[1:], "d": shared.copy()}
    with pytest.warns(tg.LossWarning, match="cannot share bytes"):
        report = tg.convert(tensors, target, dtype="bfloat16")
    plan = report.plan
    assert plan is not None
    assert {step.target: step.tied for step in plan.steps} == {"a": None, "b": "a", "c": None, "d": None}
    assert [cast.tensor for cast in report.casts] == ["a", "b", "c", "d"]
    assert tg.load(target)["b"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}, {"compression": "zstd"}], ids=str)
@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_tied_tensors_are_stored_once_where_the_target_can(format: str, options: Any, tmp_path: Path) -> None:
    shared = np.arange(5000, dtype=np.float32)
    tg.convert({"a": shared, "b": shared, "c": shared + 1}, tmp_path / "a.zt", format=format, on_loss="drop", **options)
    tg.convert(tmp_path / "a.zt", tmp_path / "b.zt", format=format, on_loss="drop", **options)
    for path in (tmp_path / "a.zt", tmp_path / "b.zt"):
        with tg.open(path) as archive:
            assert archive["a"].offset == archive["b"].offset
            assert archive["a"].offset != archive["c"].offset
            kind = archive["a"].numpy().dtype
            assert archive["b"].numpy().tobytes() == shared.astype(kind).tobytes()
            assert archive["c"].numpy().tobytes() == (shared + 1).astype(kind).tobytes()


def test_casts_of_different_arrays_in_memory_stay_different(tmp_path: Path) -> None:
    tensors = {f"t{i}": np.full(3000, i, np.float32) for i in range(5)}
    tg.convert(tensors, tmp_path / "a.zt", dtype="float16")
    assert {name: array[0] for name, array in tg.load(tmp_path / "a.zt").items()} == {f"t{i}": i for i in range(5)}


def test_interrupted(source: Path, target: Path) -> None:
    target.write_bytes(b"what was there")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tg.convert(source, target, progress=interrupt)
    assert target.read_bytes() == b"what was there"
    assert names_in(source.parent) == ["a.bt", "b.bt"]


def test_progress_reaches_the_end(source: Path, target: Path) -> None:
    seen: list[tuple[int, int]] = []
    tg.convert(source, target, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_executor(pool: str, tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "threads": ThreadPoolExecutor,
        "processes": partial(ProcessPoolExecutor, mp_context=get_context("spawn")),
    }
    tensors = {"w": np.linspace(-1, 1, 2_000_001, dtype=np.float32)}
    with kinds[pool](2) as executor:
        report = tg.convert(tensors, tmp_path / "a.bt", dtype="bfloat16", executor=executor)
    assert report.casts == tg.convert(tensors, tmp_path / "b.bt", dtype="bfloat16").casts
    assert (tmp_path / "a.bt").read_bytes() == (tmp_path / "b.bt").read_bytes()


def test_raw_spans_are_copied_by_the_operating_system(tmp_path: Path) -> None:
    old, new = tmp_path / "a.bt", tmp_path / "b.bt"
    tg.save(old, {"w": np.zeros(1 << 20)})
    assert copied_nbytes(lambda: tg.convert(old, new, format="bintensors@1")) == 8 << 20


@pytest.mark.parametrize("dtype", [None, "float64", "float8_e4m3fn"])
def test_bounded_memory(dtype: str | None, tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {"w": np.ones(24 << 20, np.float32)}, durable=False)
    used = resident_nbytes(lambda: tg.convert(tmp_path / "a.bt", tmp_path / "b.bt", dtype=dtype, durable=False))
    assert used < 64 * MB


@pytest.mark.parametrize("target", ["bintensors", "ztensor", "safetensors", "npz"])
@pytest.mark.parametrize("source", ["bintensors", "ztensor", "safetensors", "npz"])
def test_many_small_tensors(source: str, target: str) -> None:
    rng = np.random.default_rng(1)
    kinds = (np.float32, np.int8, np.float64, np.bool_)
    tensors = {f"t{i}": (rng.random(rng.integers(0, 40)) * 9).astype(kinds[i % 4]) for i in range(500)}
    tensors["large"] = rng.random(30_000)
    stream = io.BytesIO()
    tg.convert(tg.dumps(tensors, format=source), stream, format=target, select=lambda name: name != "t7")
    del tensors["t7"]
    loaded = tg.loads(stream.getvalue())
    assert loaded.keys() == tensors.keys()
    assert all(loaded[name].tobytes() == array.tobytes() for name, array in tensors.items())


@pytest.mark.parametrize("format", ["safetensors", "bintensors", "npz", "dynd"])
def test_ties_that_the_target_lacks_are_listed_and_not_refused(format: str, tmp_path: Path) -> None:
    shared = np.arange(5000, dtype=np.float32)
    tg.save(tmp_path / "tied.zt", {"a": shared, "b": shared, "c": shared + 1}, checksum=None)
    target = io.BytesIO()
    with pytest.warns(tg.LossWarning, match="cannot share bytes between tensors: stored separately from 'a'"):
        report = tg.convert(tmp_path / "tied.zt", target, format=format)
    tg.convert(tmp_path / "tied.zt", io.BytesIO(), format=format, on_loss="drop")  # without a warning
    assert [(loss.kind, loss.tensor) for loss in report.losses] == [("ties", "b")]
    assert "'a'" in str(report.losses[0])
    assert tg.loads(target.getvalue(), format=format)["b"].tolist() == shared.tolist()


@pytest.mark.parametrize(("count", "said"), [(1, "1 tensor"), (2, "2 tensors")])
def test_the_repr_of_a_conversion_has_its_name_and_counts(count: int, said: str) -> None:
    report = tg.convert({f"t{i}": np.zeros(2) for i in range(count)}, io.BytesIO(), format="npz")
    assert repr(report) == f"Conversion(npz@1, {said}, {16 * count} B converted)"


def test_every_cast_counts_also_one_that_loses_nothing() -> None:
    tensors = {f"t{i}": np.float64([0.1 * i, i]) for i in range(5)}
    report = tg.convert(tensors, io.BytesIO(), format="npz", dtype="float16")
    assert [(cast.tensor, cast.count) for cast in report.casts] == [(name, 2) for name in tensors]
    assert report.casts[0].rounded == 0


@pytest.mark.parametrize("metadata", [None, {}, {"a": "b"}])
@pytest.mark.parametrize("format", ["bintensors@1", "safetensors"])
def test_no_metadata_and_empty_metadata_are_not_the_same(format: str, metadata: Any, tmp_path: Path) -> None:
    source = tg.dumps({"w": np.ones(2)}, format="safetensors", metadata=metadata)
    assert tg.open(source).metadata == metadata
    tg.convert(source, tmp_path / "x", format=format)
    with tg.open(tmp_path / "x") as archive:
        assert archive.metadata == metadata


def test_a_warning_of_overflow_names_the_line_of_the_caller(tmp_path: Path) -> None:
    tg.save(tmp_path / "x.bt", {"w": np.array([1e30, 1.0])})
    with pytest.warns(tg.LossWarning, match="1 value overflowed") as caught:
        tg.convert(tmp_path / "x.bt", tmp_path / "y.bt", dtype="float16", on_loss="warn")
    assert {Path(warning.filename) for warning in caught} == {Path(__file__)}


LEFT_OUT: dict[str, tuple[str, dict[str, Any], str]] = {
    "five dimensions in GGUF": ("gguf", {"w": np.ones(2), "x": np.ones((1,) * 5)}, "shape"),
    "a long name in GGUF": ("gguf", {"w": np.ones(2), "n" * 64: np.ones(2)}, "name"),
    "the name of the metadata in safetensors": ("safetensors", {"w": np.ones(2), "__metadata__": np.ones(2)}, "name"),
    "half a byte in safetensors": (
        "safetensors", {"w": np.ones(2), "x": np.ones(3, ml_dtypes.float4_e2m1fn)}, "shape",
    ),
    "a path in npz": ("npz", {"w": np.ones(2), "../x": np.ones(2)}, "name"),
    "an empty name in zTensor 2": ("ztensor@2", {"w": np.ones(2), "": np.ones(2)}, "name"),
    "an empty key in BSON": ("bson", {"w": np.ones((1, 2), np.float32), "a..b": np.ones((1, 2), np.float32)}, "name"),
    "a vector in BSON": ("bson", {"w": np.ones((1, 2), np.float32), "x": np.ones(2, np.float32)}, "shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_tensor_that_only_the_writer_refuses_is_a_loss(case: str) -> None:
    format, tensors, kind = LEFT_OUT[case]
    refused = [*tensors][1]
    source = tg.open(tg.dumps(tensors, format="ztensor@0.1", checksum=None))
    with pytest.raises(tg.UnsupportedError, match="cannot store the tensor") as caught:
        tg.convert(source, io.BytesIO(), format=format)
    assert (caught.value.rule, caught.value.tensor) == (f"convert.{kind}", refused)
    planned = tg.convert(source, io.BytesIO(), format=format, dry_run=True)
    assert [(problem.rule, problem.tensor) for problem in planned.problems] == [(f"convert.{kind}", refused)]
    done = tg.convert(source, out := io.BytesIO(), format=format, on_loss="drop")
    assert [(loss.kind, loss.tensor, loss.fatal) for loss in done.losses] == [(kind, refused, True)]
    assert (done.tensors, list(tg.open(out.getvalue(), format=format))) == (1, ["w"])
    if kind == "name":  # it is the new name that counts
        renamed = tg.convert(source, out := io.BytesIO(), format=format, rename={refused: "x"})
        assert (renamed.losses, sorted(tg.loads(out.getvalue(), format=format))) == ((), ["w", "x"])


ATTRIBUTES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fields of zTensor 0.1": ("ztensor@2", "ztensor@0.1", {"layout": 1, "offset": 2}),
    "keys that zTensor 2 lacks": ("ztensor@0.1", "ztensor@2", {"": 1, "a\0": 2}),
    "values deeper than zTensor 2 allows": ("ztensor@0.1", "ztensor@2", {"deep": nested_lists(29)}),
}


@pytest.mark.parametrize("case", ATTRIBUTES)
def test_single_attributes_that_cannot_be_stored(case: str) -> None:
    old, new, lost = ATTRIBUTES[case]
    source = tg.open(tg.dumps({"w": np.ones(2)}, format=old, checksum=None, attributes={"w": {**lost, "kept": 3}}))
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.convert(source, io.BytesIO(), format=new)
    assert (caught.value.rule, caught.value.tensor) == ("convert.attributes", "w")
    done = tg.convert(source, out := io.BytesIO(), format=new, on_loss="drop")
    assert [(loss.kind, loss.tensor, loss.fatal) for loss in done.losses] == [("attributes", "w", False)] * len(lost)
    assert tg.open(out.getvalue())["w"].attributes == {"kept": 3}


METADATA: dict[str, tuple[str, dict[str, Any]]] = {
    "keys that zTensor 2 lacks": ("ztensor@2", {"": "1", "k" * 1025: "2"}),
    "values deeper than zTensor 0.1 allows": ("ztensor@0.1", {"deep": nested_lists(31)}),
}


@pytest.mark.parametrize("case", METADATA)
def test_single_keys_of_metadata_that_cannot_be_stored(case: str) -> None:
    format, lost = METADATA[case]
    source = tg.open(tg.dumps({"w": np.ones(2)}, format="npz", metadata={**lost, "kept": 3}))
    done = tg.convert(source, out := io.BytesIO(), format=format, on_loss="drop")
    assert [loss.kind for loss in done.losses] == ["metadata"] * len(lost)
    assert tg.open(out.getvalue()).metadata == {"kept": 3}


def test_text_is_json_or_nothing() -> None:
    metadata = {"nan": float("nan"), "list": [1.5, float("inf")], "kept": 2.5}
    done = tg.convert(archive_with(metadata=metadata), out := io.BytesIO(), format="bintensors", on_loss="drop")
    became = sorted(loss.message.rpartition(", ")[2] for loss in done.losses)
    assert became == ["becomes JSON text", "is left out", "is left out"]
    assert tg.open(out.getvalue()).metadata == {"kept": "2.5"}


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize("workers", [False, True])
def test_the_values_of_sparse_tensors_are_cast(format: str, workers: bool, tmp_path: Path) -> None:
    csr = {"values": np.float64([1.5, 2.0]), "indices": np.uint32([1, 0]), "indptr": np.uint32([0, 1, 2])}
    coo = {"values": np.float64([1.5, 1 / 3]), "coords": np.uint32([[0, 1], [1, 0]])}
    tensors = {
        "csr": Tensor.of_parts("csr", "zt.sparse_csr/1", (2, 2), csr, {"unit": "m"}),
        "coo": Tensor.of_parts("coo", "zt.sparse_coo/1", (2, 2), coo, {}),
    }
    tg.save(tmp_path / "a.zt", tensors)
    with ThreadPoolExecutor(2) as pool:
        executor = pool if workers else None
        done = tg.convert(tmp_path / "a.zt", tmp_path / "b.zt", format=format, dtype="float16", executor=executor)
    assert [(step.action, step.old, step.new, step.shape) for step in done.plan.steps] == [
        ("cast", "float64", "float16", (2, 2))
    ] * 2  # fmt: skip
    assert sorted((cast.tensor, cast.count, cast.rounded) for cast in done.casts) == [("coo", 2, 1), ("csr", 2, 0)]
    assert tg.verify(tmp_path / "b.zt", deep=True).ok
    with tg.open(tmp_path / "b.zt") as archive:
        assert {str(tensor.type) for tensor in archive.values()} == {"2 * 2 * float16"}
        assert archive["csr"].parts["values"].array("csr").tolist() == [1.5, 2.0]
        assert archive["csr"].attributes == {"unit": "m"}
        assert archive["coo"].parts["coords"].array("coo").tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("source", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize("target", [f"{spec.name}@{v}" for spec in tg.formats() for v in spec.writes])
def test_metadata_of_many_keys(source: str, target: str) -> None:
    if next(spec for spec in tg.formats() if spec.name == target.partition("@")[0]).metadata == "none":
        return
    metadata = {f"key {i}": "x" * 100 for i in range(50)}
    data = tg.dumps({"w": np.ones((1, 2))}, format=source, metadata=metadata)
    tg.convert(data, out := io.BytesIO(), format=target)
    assert tg.open(out.getvalue(), format=target).metadata == metadata
    assert tg.dumps({"w": np.ones((1, 2))}, format=target, metadata=MappingProxyType(metadata)) == tg.dumps(
        {"w": np.ones((1, 2))}, format=target, metadata=metadata
    )


SMALLER: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "compressed": ("ztensor@2", {"w": np.zeros(10_000)}, {"compression": "zstd"}),
    "shared": ("ztensor@2", {"v": np.zeros(10_000), "w": np.zeros(10_000)}, {}),
    "ragged": ("dynd", {"w": [[1.0, 2.0], [], [3.0]]}, {}),
}


@pytest.mark.parametrize("case", SMALLER)
def test_progress_of_a_file_smaller_than_its_values_reaches_the_end(case: str) -> None:
    format, tensors, options = SMALLER[case]
    seen: list[tuple[int, int]] = []
    tg.convert(tensors, io.BytesIO(), format=format, progress=lambda *now: seen.append(now), **options)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == sum(step.nbytes for step in tg.convert(
        tensors, io.BytesIO(), format=format, dry_run=True
    ).plan.steps)  # fmt: skip


def test_if_nothing_can_be_stored_the_reason_is_named() -> None:
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.convert({"data": [[1], [2, 3]]}, io.BytesIO(), format="npy")
    assert (caught.value.rule, caught.value.tensor) == ("convert.layout", "data")
    planned = tg.convert({"data": [[1], [2, 3]]}, io.BytesIO(), format="npy", dry_run=True)
    assert [problem.rule for problem in planned.problems] == ["convert.layout"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_choices_for_a_tensor_that_is_left_out_are_not_an_error(dry_run: bool, tmp_path: Path) -> None:
    tensors = {"w": np.ones(3, np.float32), "packed": np.ones(2, ml_dtypes.int4)}  # zTensor 2 has no int4
    for choices in ({"compression": {"p*": "zstd"}}, {"checksum": {"packed": "sha256"}}):
        options: dict[str, Any] = {"format": "ztensor@2", "on_loss": "drop", "dry_run": dry_run, **choices}
        report = tg.convert(tensors, tmp_path / "x.zt", **options)
        assert [loss.tensor for loss in report.losses] == ["packed"]
    with pytest.raises(tg.TensorNotFound):
        tg.convert(tensors, tmp_path / "x.zt", **{**options, "compression": {"q*": "zstd"}})


def written_by_a_writer(bad: Path, target: Path) -> None:
    with tg.Writer(target) as out, tg.open(bad) as archive:
        for name, tensor in archive.items():
            out.add(name, tensor)


def appended(bad: Path, target: Path) -> None:
    tg.save(target, {"x": np.zeros(2)})
    try:
        with tg.open(bad) as archive:
            tg.edit(target, add=dict(archive))
    finally:
        assert list(tg.open(target)) == ["x"]
        target.unlink()


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "convert": tg.convert,
    "convert to its own format": lambda bad, target: tg.convert(bad, target, format=tg.open(bad).format),
    "workers": lambda bad, target: tg.convert(bad, target, executor=ThreadPoolExecutor(1)),
    "save": lambda bad, target: tg.save(target, tg.open(bad)),
    "save a tensor": lambda bad, target: tg.save(target, dict(tg.open(bad))),
    "dumps": lambda bad, target: tg.dumps(tg.open(bad), format="ztensor"),
    "merge": lambda bad, target: tg.merge([bad], target),
    "split": lambda bad, target: tg.split(bad, target, format="ztensor"),
    "edit": appended,
    "Writer": written_by_a_writer,
}


@pytest.mark.parametrize("format", ["bintensors@0", "bintensors@1", "ztensor@2", "safetensors", "npy", "dynd"])
@pytest.mark.parametrize("way", COPIES)
def test_a_bool_that_cannot_be_read_is_not_copied(format: str, way: str, tmp_path: Path) -> None:
    """zTensor 0.1 would read it as true."""
    name = "data" if format == "npy" else "m"
    data = bytearray(tg.dumps({name: np.array([1, 1, 1, 0, 1], np.bool_)}, format=format, checksum=None))
    data[data.rindex(b"\1\1\1\0\1") + 2] = 2
    suffix = next(row.suffixes[0] for row in tg.formats() if row.name == format.partition("@")[0])
    bad, target = tmp_path / f"bad{suffix}", tmp_path / f"copy{suffix if 'own' in way else '.zt'}"
    bad.write_bytes(data)
    with pytest.raises(tg.FormatError) as caught:
        COPIES[way](bad, target)
    assert (caught.value.rule, caught.value.tensor) == ("values.bool", name)
    assert [*tmp_path.iterdir()] == [bad]
