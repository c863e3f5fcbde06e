"""Writing zTensor: an encoding and a checksum for each tensor, hashed while it is written, and indices of any size."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
import scipy.sparse
import xxhash

import tensorglot as tg
from bounds import INTERPRETED, MB, resident_nbytes
from tensorglot.containers.table import PerTensor, WriteOptions, named
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.payload import Span, buffers
from test_ztensor_01 import index_of
from test_ztensor_2 import manifest_of
from ztensor_builder import entry, file01

ZTENSOR = named("ztensor")[0]
VERSIONS = {"0.1": ("crc32c", "sha256"), "2": ("xxh3", "sha256")}
DIGESTS = {
    "crc32c": lambda data: f"crc32c:0x{crc32c.crc32c(data):08X}",
    "sha256": lambda data: f"sha256:{hashlib.sha256(data).hexdigest()}",
    "xxh3": lambda data: f"xxh3:{xxhash.xxh3_64_hexdigest(data)}",
}
MIXED = {
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.float64(1.5),
    "large": np.random.default_rng(0).integers(0, 255, 5 << 20, np.uint8),
    "again": np.random.default_rng(1).integers(0, 255, 5 << 20, np.uint8),
    "small": np.arange(7, dtype=np.int16),
    "strided": np.arange(900_000, dtype=np.float32)[::3],
    "swapped": np.arange(500, dtype=">i4"),
    "last": np.zeros(0, np.int8),
}


def written(tensors: dict[str, Any], options: WriteOptions) -> bytes:
    archive = tg.open(tg.dumps(tensors, format="ztensor", checksum=None))
    return b"".join(bytes(chunk) for chunk in buffers(ZTENSOR.write(archive, options)))


def test_the_fast_checksum_of_a_version_is_one_that_it_has() -> None:
    assert dict(ZTENSOR.fast_checksums) == {"0.1": "crc32c", "2": "xxh3"}
    for version, algorithm in ZTENSOR.fast_checksums.items():
        assert algorithm in ZTENSOR.checksums_in(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_tensor_has_its_own_encoding_and_checksum(version: str) -> None:
    fast, slow = VERSIONS[version]
    tensors = {name: np.arange(1000, dtype=np.int32) + i for i, name in enumerate("abcd")}
    tensors["m"] = scipy.sparse.csr_array(np.eye(4))
    compression = PerTensor(None, {"b": "zstd", "c": "zstd", "m": "zstd"})
    checksum = PerTensor(fast, {"c": "frame", "d": None, "m": slow})
    with tg.open(written(tensors, WriteOptions(version, compression, None, checksum))) as archive:
        kinds = {name: (tensor.encoding != "raw", tensor.checksum and tensor.checksum.split(":")[0])
                 for name, tensor in archive.items()}  # fmt: skip
        assert kinds == {
            "a": (False, fast),
            "b": (True, fast),
            "c": (True, None),
            "d": (False, None),
            "m": (True, slow),
        }
        assert {part.checksum.split(":")[0] for part in archive["m"].parts.values()} == {slow}
        for name in "abcd":
            assert archive[name].numpy().tolist() == tensors[name].tolist()
        assert archive["m"].scipy().toarray().tolist() == np.eye(4).tolist()


@pytest.mark.parametrize("version", VERSIONS)
def test_exceptions_that_say_the_same_change_nothing(version: str) -> None:
    fast, _ = VERSIONS[version]
    for choices in ((None, None), ("zstd", fast), (None, fast)):
        uniform = WriteOptions(version, PerTensor(choices[0]), None, PerTensor(choices[1]))
        each = WriteOptions(
            version,
            PerTensor("zstd", dict.fromkeys(MIXED, choices[0])),
            None,
            PerTensor("sha256", dict.fromkeys(MIXED, choices[1])),
        )
        assert written(MIXED, uniform) == written(MIXED, each)


@pytest.mark.parametrize("version", VERSIONS)
def test_tied_tensors_that_are_to_be_stored_otherwise_are_stored_twice(version: str) -> None:
    array = np.arange(2000, dtype=np.int32)
    data = tg.dumps({"a": array, "b": array, "c": array}, format="ztensor", checksum=None)
    options = WriteOptions(version, PerTensor(None, {"c": "zstd"}), None, PerTensor())
    again = b"".join(bytes(chunk) for chunk in buffers(ZTENSOR.write(tg.open(data), options)))
    with tg.open(again) as archive:
        assert archive["a"].offset == archive["b"].offset != archive["c"].offset
        assert {tuple(tensor.numpy().tolist()) for tensor in archive.values()} == {tuple(array.tolist())}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_big_endian_blob_that_two_widths_share_is_swapped_for_each(version: str, compression: str | None) -> None:
    fields = {"offset": 64, "size": 8, "encoding": "raw", "data_endianness": "big"}
    entries = [
        entry("narrow", dtype="uint16", shape=[4], **fields),
        entry("wide", dtype="uint32", shape=[2], **fields),
    ]
    source = tg.open(file01(entries, body=bytes(range(8))))
    again = tg.loads(tg.dumps(source, format=f"ztensor@{version}", compression=compression, checksum=None))
    assert again["narrow"].tolist() == [0x0001, 0x0203, 0x0405, 0x0607]
    assert again["wide"].tolist() == [0x00010203, 0x04050607]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("from_file", [False, True])
def test_every_checksum_is_that_of_its_bytes(
    version: str, compression: str | None, from_file: bool, tmp_path: Path
) -> None:
    source: Any = MIXED
    if from_file:
        tg.save(tmp_path / "source.zt", MIXED, checksum=None, durable=False)
        source = tg.open(tmp_path / "source.zt")
    for algorithm in VERSIONS[version]:
        path = tmp_path / "target.zt"
        tg.save(path, source, format=f"ztensor@{version}", compression=compression, checksum=algorithm, durable=False)
        data = path.read_bytes()
        with tg.open(path, verify="require") as archive:
            for name, tensor in archive.items():
                begin = tensor.offset or 0
                stored = data[begin : begin + tensor.stored_nbytes]
                covered = (
                    stored if version == "0.1" else np.ascontiguousarray(MIXED[name]).astype(tensor.dtype).tobytes()
                )
                assert tensor.checksum == DIGESTS[algorithm](covered), name
                assert np.array_equal(tensor.numpy(), MIXED[name]), name
        assert tg.verify(path, deep=True).checksums == len(MIXED)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_checksum_there_is_none(version: str) -> None:
    data = tg.dumps(MIXED, format=f"ztensor@{version}", checksum=None)
    assert b"checksum" not in data
    assert b"digest" not in data
    assert tg.verify(data).checksums == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_raw_tensors_are_still_copied_by_the_system(version: str, tmp_path: Path) -> None:
    tg.save(tmp_path / "a.zt", {"large": MIXED["large"], "small": MIXED["small"]}, checksum=None, durable=False)
    with tg.open(tmp_path / "a.zt") as archive:
        options = WriteOptions(version, checksum=PerTensor(VERSIONS[version][0]))
        spans = [chunk for chunk in ZTENSOR.write(archive, options) if isinstance(chunk, Span)]
    assert MIXED["large"].nbytes in [span.nbytes for span in spans]


@pytest.mark.parametrize("version", VERSIONS)
def test_hashing_needs_bounded_memory(version: str, tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {f"t{i}": MIXED["large"].copy() for i in range(16)}, durable=False)
    convert = partial(tg.convert, checksum=VERSIONS[version][0], format=f"ztensor@{version}", durable=False)
    assert resident_nbytes(partial(convert, tmp_path / "a.bt", tmp_path / "b.zt")) < 40 * MB


@pytest.mark.parametrize("version", VERSIONS)
def test_a_source_that_ends_early_leaves_no_file(version: str, tmp_path: Path) -> None:
    tg.save(tmp_path / "a.bt", {"w": MIXED["large"], "v": MIXED["again"]}, durable=False)
    target = tmp_path / "folder" / "b.zt"
    target.parent.mkdir()
    with tg.open(tmp_path / "a.bt") as archive:
        os.truncate(tmp_path / "a.bt", 7 << 20)
        with pytest.raises(tg.TruncatedError):
            tg.save(target, archive, format=f"ztensor@{version}", checksum=VERSIONS[version][0])
    assert list(target.parent.iterdir()) == []


def test_saves_at_the_same_time(tmp_path: Path) -> None:
    expected = {version: tg.dumps(MIXED, format=f"ztensor@{version}", checksum="sha256") for version in VERSIONS}
    wrong: list[str] = []

    def save(number: int) -> None:
        version = ("0.1", "2")[number % 2]
        path = tmp_path / f"{number}.zt"
        tg.save(path, MIXED, format=f"ztensor@{version}", checksum="sha256", durable=False)
        if path.read_bytes() != expected[version]:
            wrong.append(path.name)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _appended(path: Path, **options: Any) -> None:
    with tg.Writer(path, append=True, **options) as out:
        for name, array in MIXED.items():
            out.add(f"new {name}", array)


WRITING: dict[str, Callable[..., object]] = {
    "dumps": lambda path, into, **options: tg.dumps(MIXED, format=into, **options),
    "convert": lambda path, into, **options: tg.convert(MIXED, path, format=into, **options),
    "a plan": lambda path, into, **options: tg.convert(MIXED, path, format=into, dry_run=True, **options),
    "merge": lambda path, into, **options: tg.merge(path, path, format=into, **options),
    "append": lambda path, into, **options: _appended(path, **options),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("verb", WRITING)
def test_options_that_no_file_can_have_are_refused_by_every_verb(tmp_path: Path, verb: str, version: str) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, {"w": np.ones(2)}, format=f"ztensor@{version}")
    before = path.read_bytes()
    for options, rule in (
        ({"compression": "zstd", "level": 23}, "save.level"),
        ({"compression": "zstd", "level": -(1 << 17) - 1}, "save.level"),
        ({"level": 3}, "save.level"),
        ({"checksum": "frame"}, "save.checksum"),
        ({"checksum": {"*": "frame"}}, "save.checksum"),
        ({"checksum": {"*": 1}}, "save.checksum"),
        ({"compression": {"*": ["zstd"]}}, "save.compression"),
    ):
        with pytest.raises(tg.InputError) as caught:
            WRITING[verb](path, f"ztensor@{version}", **options)
        assert caught.value.rule == rule
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", VERSIONS)
def test_the_checksum_of_a_frame_needs_one(version: str) -> None:
    with pytest.raises(tg.InputError, match="needs compression") as caught:
        tg.dumps(MIXED, format=f"ztensor@{version}", compression={"*": "zstd", "small": None}, checksum="frame")
    assert caught.value.tensor == "small"


@pytest.mark.parametrize("append", [False, True])
def test_a_writer_refuses_options_before_any_tensor_is_written(tmp_path: Path, append: bool) -> None:
    path = tmp_path / "x.zt"
    tg.save(path, {"w": np.ones(2)})
    for options in ({"compression": "gzip"}, {"checksum": "md5"}, {"compression": "zstd", "level": 23}):
        with pytest.raises(tg.TensorglotError, match=r"x\.zt"):
            tg.Writer(path, append=append, **options)
    metadata: Any
    for metadata in ([("a", "b")], "text", {1: "a"}, {"a": object()}):
        with pytest.raises(tg.TensorglotError, match="metadata"):
            tg.Writer(path, append=append, metadata=metadata)
    if append:
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.Writer(path, append=True, in_place=True)
        assert caught.value.rule == "edit.in_place"
    with tg.Writer(path, append=append) as out:
        for choice in ({"compression": "gzip"}, {"checksum": "md5"}, {"compression": {"v": "zstd"}}):
            with pytest.raises(tg.TensorglotError, match=f"rule save.{next(iter(choice))}"):
                out.add("v", np.ones(2), **choice)
        out.add("v", np.zeros(2))
    assert tg.load(path)["v"].tolist() == [0, 0]


def test_an_attribute_called_layout_is_refused_with_a_reason() -> None:
    tensors, attributes = {"w": np.arange(3)}, {"w": {"layout": "NCHW"}}
    with pytest.raises(tg.UnsupportedError, match=r"ztensor 0\.1\.0 to 0\.1\.4") as caught:
        tg.dumps(tensors, format="ztensor@0.1", attributes=attributes)
    assert (caught.value.rule, caught.value.tensor) == ("ztensor.write.layout", "w")
    assert tg.open(tg.dumps(tensors, format="ztensor@2", attributes=attributes)).attributes == attributes


@pytest.mark.skipif(INTERPRETED, reason="120 MB of names are a matter for compiled loops")
@pytest.mark.parametrize(("version", "count", "nbytes"), [("0.1", 1_100, 100_000), ("2", 110_000, 1_000)])
def test_an_index_may_have_a_gigabyte(version: str, count: int, nbytes: int) -> None:
    empty = np.zeros(0, np.uint8)
    names = [f"{i:0{nbytes}}" for i in range(count)]
    data = tg.dumps(dict.fromkeys(names, empty), format=f"ztensor@{version}", checksum=None)
    assert len(data) > 110_000_000
    with tg.open(data) as archive:
        assert len(archive) == count
        assert archive[names[-1]].shape == (0,)
    with pytest.raises(tg.LimitError, match=r"Limits\.header_nbytes") as caught:
        tg.open(data, limits=tg.Limits(header_nbytes=100_000_000))
    assert caught.value.rule == "ztensor.limit.index"


def test_the_index_has_the_form_of_the_packages() -> None:
    tensors = {"a": np.arange(3, dtype=np.float32), "b": np.zeros(2, np.uint8)}
    plain = written(tensors, WriteOptions("0.1", checksum=PerTensor("crc32c")))
    general = written(tensors, WriteOptions("0.1", checksum=PerTensor("crc32c", {"b": "crc32c"})))
    assert plain == general
    assert [list(row) for row in index_of(plain)] == [
        ["name", "offset", "size", "dtype", "layout", "shape", "encoding", "data_endianness", "checksum"],
        ["name", "offset", "size", "dtype", "layout", "shape", "encoding", "checksum"],
    ]
    parts = manifest_of(written(tensors, WriteOptions("2")))["objects"]["a"]["parts"]
    assert set(parts["data"]) == {"dtype", "blob"}


RAGGED = [[1], [2, 3]]
PART_OF = {"part_of": "a", "part": "data", "logical_shape": [2], "logical_layout": "dense"}
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a field of the format": ("0.1", {"w": np.ones(2)}, {"w": {"offset": 2}}, "ztensor.write.attribute"),
    "an empty key": ("2", {"w": np.ones(2)}, {"w": {"": 2}}, "ztensor.write.name"),
    "an empty name": ("2", {"": np.ones(2)}, {}, "ztensor.write.name"),
    "a long name": ("2", {"é" * 513: np.ones(2)}, {}, "ztensor.write.name"),
    "the name of a part": ("0.1", {"a#offsets": np.ones(2), "a": RAGGED}, {}, "ztensor.write.name"),
    "attributes of a part": ("0.1", {"a#data": np.zeros(2, np.uint8)}, {"a#data": PART_OF}, "ztensor.write.part"),
    "what is read as metadata": (
        "0.1", {"__metadata__": np.zeros(0, np.uint8)}, {"__metadata__": {"metadata": {}}}, "ztensor.write.name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_read_as_something_else_is_refused(case: str) -> None:
    version, tensors, attributes, rule = REFUSED[case]
    with pytest.raises(tg.TensorglotError) as caught:
        tg.dumps(tensors, format=f"ztensor@{version}", attributes=attributes)
    assert (caught.value.rule, caught.value.tensor) == (rule, next(iter(tensors)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("kind", ["metadata", "attributes"])
def test_what_is_nested_as_deep_as_can_be_written_can_be_read(kind: str, dtype: str, version: str) -> None:
    deepest = 0
    for depth in range(1, 40):
        value: Any = 1
        for _ in range(depth):
            value = [value]
        options = {"metadata": {"x": value}} if kind == "metadata" else {"attributes": {"w": {"x": value}}}
        try:
            data = tg.dumps({"w": np.ones(2, dtype)}, format=f"ztensor@{version}", **options)
        except tg.TensorglotError:
            break
        with tg.open(data) as archive:
            assert (archive.metadata if kind == "metadata" else archive["w"].attributes) == {"x": value}
        deepest = depth
    assert deepest in range(28, 32)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "attributes"), [("a", {"part_of": "a", "part": "data"}), ("__metadata__", {})])
def test_what_only_looks_like_it_is_written(name: str, attributes: dict[str, Any], version: str) -> None:
    with tg.open(tg.dumps({name: np.ones(2)}, format=f"ztensor@{version}", attributes={name: attributes})) as archive:
        assert archive[name].numpy().tolist() == [1, 1]
        assert archive[name].attributes == attributes
        assert archive.metadata is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", [-(1 << 17) - 1, 23, "3", 1.5])
def test_levels_that_zstd_does_not_have(version: str, level: Any) -> None:
    with pytest.raises(tg.InputError) as caught:
        tg.dumps({"w": np.ones(2)}, format=f"ztensor@{version}", compression="zstd", level=level)
    assert caught.value.rule == "save.level"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", [-(1 << 17), 22])
def test_the_lowest_and_the_highest_level(version: str, level: int) -> None:
    data = tg.dumps({"w": np.ones(2000)}, format=f"ztensor@{version}", compression="zstd", level=level)
    assert tg.loads(data)["w"].tolist() == [1] * 2000


@pytest.mark.parametrize("checksum", ["auto", "sha256", None])
@pytest.mark.parametrize("version", VERSIONS)
def test_no_tensors(version: str, checksum: Any) -> None:
    with tg.open(tg.dumps({}, format=f"ztensor@{version}", checksum=checksum), strict=True) as archive:
        assert len(archive) == 0


def test_more_types_than_an_index_can_number() -> None:
    """Unknown element types are kept under their names, up to 256 of them."""
    for count in (256, 257):
        data = file01([entry(f"t{i:03}", dtype=f"type{i}", shape=[0], size=0, offset=64) for i in range(count)])
        with tg.open(data) as archive:
            if count == 256:
                assert len(tg.open(tg.dumps(archive, format="ztensor@0.1"))) == 256
                continue
            with pytest.raises(tg.UnsupportedError) as caught:
                tg.dumps(archive, format="ztensor@0.1")
            assert caught.value.rule == "ztensor.write.dtype"


@pytest.mark.parametrize("name", ["int4", "uint1", "float6_e2m3fn", "float8_e3m4"])
def test_a_type_that_version_2_lacks_is_named(name: str) -> None:
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.dumps({"w": np.zeros(4).astype(BY_NAME[name].require_numpy())}, format="ztensor@2")
    assert caught.value.message == f"ztensor@2 does not support {name}"
    assert (caught.value.rule, caught.value.tensor) == ("ztensor.write.dtype", "w")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("value", [np.ones(2, np.complex64), RAGGED], ids=["complex", "ragged"])
def test_attributes_of_parts_may_have_the_names_of_fields(value: Any, version: str) -> None:
    attributes = {"name": "x", "shape": [4], "layout": "dense", "checksum": None, "part": 1}
    data = tg.dumps({"w": value}, format=f"ztensor@{version}", attributes={"w": attributes})
    with tg.open(data) as archive:
        assert {key: archive["w"].attributes.get(key) for key in attributes} == attributes
    again = tg.loads(tg.dumps(tg.open(data), format=f"ztensor@{version}"))
    assert list(again) == ["w"]
