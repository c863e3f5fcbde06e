"""What our own reader would refuse by default is refused when it is saved, by a rule, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from tensorglot import limits as limits_module
from tensorglot.containers import table as table_module
from tensorglot.containers.table import named

WRITABLE = [f"{row.name}@{version}" for row in tg.formats() for version in row.writes]
MATRIX = np.zeros((2, 3), np.float32)


def saved(folder: Path, format: str, tensors: dict[str, Any], **options: Any) -> str:
    """The rule of the refusal, or `read` if a reader takes what was written."""
    path = folder / "file"
    try:
        tg.save(path, tensors, format=format, durable=False, **options)
    except (tg.InputError, tg.UnsupportedError) as error:
        rule = error.rule
    else:
        assert set(tg.load(path, format=format)) == set(tensors)
        return "read"
    assert list(folder.iterdir()) == []
    return rule


@pytest.mark.parametrize("nbytes", [100_000, 100_001, 200_000])
@pytest.mark.parametrize("letter", ["n", "é"])
@pytest.mark.parametrize("format", [format for format in WRITABLE if named(format)[0].names])
def test_a_name_too_long_to_be_read_is_not_saved(tmp_path: Path, format: str, letter: str, nbytes: int) -> None:
    name = letter * (nbytes // len(letter.encode())) + "n" * (nbytes % len(letter.encode()))
    assert len(name.encode()) == nbytes
    rule = saved(tmp_path, format, {name: MATRIX})
    if nbytes > 100_000:
        assert rule == "name.length"
    else:
        assert rule in ("read", "ztensor.write.name", "npz.write.name", "gguf.write.name", "dynd.type.length")


def test_names_of_every_kind_of_value(tmp_path: Path) -> None:
    name = "n" * 100_001
    for tensors in ({name: MATRIX}, {name: MATRIX, "b": MATRIX[::2]}, {name: [1.0]}, {"b": MATRIX, name: MATRIX}):
        assert saved(tmp_path, "bintensors", tensors) == "name.length"
    with pytest.raises(tg.InputError) as caught:
        tg.convert({"a": MATRIX}, tmp_path / "x.bt", rename={"a": name})
    assert caught.value.rule == "name.length"
    with tg.Writer(tmp_path / "x.bt") as out, pytest.raises(tg.InputError) as caught:
        out.add(name, MATRIX)
    assert caught.value.rule == "name.length"


def test_a_name_that_only_a_raised_limit_lets_in_is_not_written(tmp_path: Path) -> None:
    raised = tg.Limits(name_nbytes=200_000)
    header = json.dumps({"n" * 100_001: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(24)
    with pytest.raises(tg.LimitError):
        tg.open(data)
    assert len(tg.loads(data, limits=raised)) == 1
    for write in (
        lambda: tg.convert(data, tmp_path / "x.bt", limits=raised),
        lambda: tg.save(tmp_path / "x.zt", tg.open(data, limits=raised)),
        lambda: tg.dumps(tg.open(data, limits=raised), format="npz"),
    ):
        with pytest.raises(tg.InputError) as caught:
            write()
        assert caught.value.rule == "name.length"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["\ud800", 5])
def test_new_names_are_checked_like_all_names(tmp_path: Path, name: Any) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.convert({"a": MATRIX}, tmp_path / "x.zt", rename=lambda _: name)
    assert caught.value.rule in ("name.utf8", "name.text")


@pytest.mark.parametrize("format", [format for format in WRITABLE if named(format)[0].names])
def test_how_many_tensors(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound of ten in place of the real ones, on both sides."""
    lower = tg.Limits(tensors=10)
    monkeypatch.setattr(table_module, "DEFAULT", lower)
    assert saved(tmp_path, format, {f"{i}": MATRIX.copy() for i in range(11)}) == "save.tensors.count"
    data = tg.dumps({f"{i}": MATRIX.copy() for i in range(10)}, format=format)
    assert len(tg.loads(data, format=format, limits=lower)) == 10


def test_the_real_numbers_of_tensors() -> None:
    assert {row.name: row.most_tensors for row in tg.formats()} == {
        row.name: 1_388_888 if row.name == "bintensors" else limits_module.TENSORS_MAX for row in tg.formats()
    }


@pytest.mark.parametrize(
    "format",
    [f for f in WRITABLE if named(f)[0].metadata != "none" and f != "npz@1"],  # a ZIP comment has a limit of its own
)
def test_a_header_too_large_to_be_read_is_not_saved(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = tg.Limits(header_nbytes=2000)
    monkeypatch.setattr(table_module, "DEFAULT", lower)
    rule = f"{format.partition('@')[0]}.write.header"
    for options in ({"metadata": {"k": "v" * 2000}}, {"metadata": {f"k{i}": "v" for i in range(900)}}):
        assert saved(tmp_path, format, {"a": MATRIX}, **options) == rule
    assert saved(tmp_path, format, {f"{i}": MATRIX.copy() for i in range(200)}) == rule
    path = tmp_path / "file"
    for nbytes in range(1500, 2000, 7):
        try:
            tg.save(path, {"a": MATRIX}, format=format, metadata={"k": "v" * nbytes}, durable=False)
        except tg.UnsupportedError as error:
            assert error.rule == rule  # noqa: PT017
            break
        assert tg.load(path, format=format, limits=lower).keys() == {"a"}
    else:
        pytest.fail("nothing was refused")
    before = path.read_bytes()
    for in_place in (True, False) if format.startswith("ztensor") else (False,):
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.edit(path, {"more": "v" * 2000}, in_place=in_place)
        assert caught.value.rule == rule
        assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_added_tensors_do_not_make_the_header_too_large(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, many = tmp_path / "file.zt", {f"{i}": MATRIX for i in range(100)}
    tg.save(path, {"a": MATRIX}, format=format, durable=False)
    before = path.read_bytes()
    monkeypatch.setattr(table_module, "DEFAULT", tg.Limits(header_nbytes=2000))
    for in_place in (False, True) if format == "ztensor@2" else (False,):
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.edit(path, add=many, in_place=in_place)
        assert caught.value.rule == "ztensor.write.header"
        assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("layout", "other", "tensors"),
    [
        ("0", "1", {"\x04\0\2\0\0\0": np.zeros(0, np.int16)}),
        ("1", "0", {"": np.zeros((0, 0, 0, 1), np.int8)}),
    ],
)
def test_bytes_that_mean_something_else_in_the_other_layout(
    tmp_path: Path, layout: str, other: str, tensors: dict[str, Any]
) -> None:
    assert saved(tmp_path, f"bintensors@{layout}", tensors) == "bintensors.write.ambiguous"
    assert saved(tmp_path, f"bintensors@{other}", tensors) == "read"


def test_an_index_of_zt_may_be_as_large_as_that_of_a_million_tensors() -> None:
    """More than the 100,000,000 bytes of other headers."""
    names = [f"{i:099000}" for i in range(1_020)]
    data = tg.dumps({name: np.zeros(1, np.int8) for name in names}, format="ztensor@0.1")
    assert int.from_bytes(data[-8:], "little") > 100_000_000
    assert list(tg.open(data)) == names


@pytest.mark.parametrize("format", ["safetensors", "bintensors"])
def test_a_header_beyond_the_limit_is_told_from_a_file_that_is_none(format: str) -> None:
    data = tg.dumps({"w": np.ones(3)}, format=format, metadata={"a": "b" * 500})
    for given, said in ((data, "exceeds Limits.header_nbytes (100)"), (data[:300], f"not a {format} file, or damaged")):
        with pytest.raises(tg.LimitError) as caught:
            tg.open(given, format=format, limits=tg.Limits(header_nbytes=100))
        assert said in caught.value.message
        assert caught.value.rule == f"{format}.limit.header"


LIMITED = [f"{spec.name}@{version}" for spec in tg.formats() for version in spec.writes if spec.names]


@pytest.mark.parametrize("format", LIMITED)
def test_every_reader_enforces_the_limits_of_tensors_and_names(format: str) -> None:
    tensors = {name: np.ones((2, 2), np.float32) for name in ("abc", "de", "f")}
    data = tg.dumps(tensors, format=format)
    assert len(tg.open(data, format=format, limits=tg.Limits(tensors=3, rank=2, name_nbytes=3))) == 3
    for limits in (tg.Limits(tensors=2), tg.Limits(name_nbytes=2)):
        with pytest.raises(tg.LimitError):
            tg.open(data, format=format, limits=limits)
    assert not tg.verify(data, format=format, limits=tg.Limits(tensors=2)).ok


def empty_of(shape: list[int]) -> tg.Archive:
    """A file without values, whose header may have any shape."""
    header = json.dumps({"data": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return tg.open(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize("shape", [[0, 2**61], [2**31, 0, 2**30]])
@pytest.mark.parametrize("format", WRITABLE)
def test_a_shape_that_cannot_be_read_is_not_saved(tmp_path: Path, format: str, shape: list[int]) -> None:
    archive = empty_of(shape)
    assert saved(tmp_path, format, archive) == "save.shape"
    with tg.Writer(tmp_path / "file", format=format) as out:
        out.add("data", archive["data"])
        with pytest.raises(tg.UnsupportedError) as caught:
            out.close()
    assert (caught.value.rule, caught.value.tensor) == ("save.shape", "data")
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.convert(archive, tmp_path / "file", format=format)
    assert (caught.value.rule, caught.value.tensor) == ("convert.shape", "data")
    if named(format)[0].names:  # a format without names holds one tensor, not none
        report = tg.convert(archive, tmp_path / "file", format=format, dry_run=True, on_loss="drop")
        assert [(loss.kind, loss.fatal) for loss in report.losses] == [("shape", True)]


@pytest.mark.parametrize("shape", [[0] * 64, [0, 2**61 - 1]], ids=["64 dims", "2**63 - 1"])
@pytest.mark.parametrize("format", WRITABLE)
def test_the_largest_shapes_that_can_be_read_are_saved(tmp_path: Path, format: str, shape: list[int]) -> None:
    refused = {"bson": "bson.write.shape", "gguf": f"gguf.write.{'rank' if len(shape) > 4 else 'shape'}"}
    assert saved(tmp_path, format, empty_of(shape)) == refused.get(format.partition("@")[0], "read")


def test_gguf_counts_60_bits_of_elements(tmp_path: Path) -> None:
    assert saved(tmp_path, "gguf", {"w": np.zeros((0, 2**60), np.int8)}) == "gguf.write.shape"
    assert saved(tmp_path, "gguf", {"w": np.zeros((0, 2**60 - 1), np.int8)}) == "read"


@pytest.mark.parametrize("shape", [(0,) * 65, (0, 2**63), (2**64, 0), (-1,)])
def test_a_stream_has_a_shape_that_can_be_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with tg.Writer(tmp_path / "x.zt") as out, pytest.raises(tg.InputError) as caught:
        out.stream("w", "float32", shape)
    assert (caught.value.rule, caught.value.tensor) == ("stream.shape", "w")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "use",
    [
        lambda value, path: tg.save(path, {"x": value}),
        lambda value, path: tg.identify({"x": value}),
        lambda value, path: tg.stats({"x": value}),
        lambda value, path: tg.store.Store.create(path).commit("main", {"x": value}),
    ],
)
def test_lists_nested_deeper_than_a_tensor_has_dimensions(tmp_path: Path, use: Any) -> None:
    use(nested(64), tmp_path / "x.zt")
    with pytest.raises(tg.InputError) as caught:
        use(nested(65), tmp_path / "y.zt")
    assert (caught.value.rule, caught.value.tensor) == ("dynd.type.rank", "x")


def test_nested_values_that_are_too_much_together_are_not_written(tmp_path: Path) -> None:
    value = tg.dynd.deserialize(b"", "600000 * void")
    store = tg.store.Store.create(tmp_path / "store")
    for write in (lambda tensors: store.commit("main", tensors), lambda tensors: tg.dumps(tensors, format="dynd")):
        write({"a": value})
        with pytest.raises(tg.InputError) as caught:
            write({"a": value, "b": value})
        assert caught.value.rule == "dynd.void"
    assert store.checkout("main").keys() == {"a"}
