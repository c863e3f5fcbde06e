"""Version 0.1: what is saved comes back, in every form that the document has and those that it has no place for."""

from __future__ import annotations

import io
import math
import os
import struct
import threading
from functools import partial
from pathlib import Path
from typing import Any

import cbor2
import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tensorglot as tg
from bounds import MB, resident_nbytes
from tensorglot.containers.table import named
from tensorglot.containers.ztensor.write01 import rows_first
from tensorglot.kernels import encode_headers
from tensorglot.model.dtypes import TABLE
from tensorglot.model.payload import Span, as_bytes
from tensorglot.operations.save import SaveOptions, collect, prepare
from tensorglot.wire import zstd
from tensorglot.wire.checksums import hasher
from tensorglot.wire.prefixed import join_texts
from ztensor_builder import Open, entry, file01

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
    "uint8", "bool",
)  # fmt: skip


def index_of(data: bytes) -> list[dict[str, Any]]:
    size = struct.unpack("<Q", data[-8:])[0]
    return cbor2.loads(data[-8 - size : -8])


def sample(name: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray[Any, Any]:
    row = next(row for row in TABLE if row.name == name)
    bits = np.random.default_rng(7).integers(0, 2, math.prod(shape), np.uint8)
    if row.name == "bool":
        return bits.astype(bool).reshape(shape)
    return bits.astype(row.numpy).reshape(shape)


def equal(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> bool:
    """The same type, shape and bits."""
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


arrays = st.one_of(
    hnp.arrays(
        st.sampled_from([np.dtype(name) for name in DTYPES if name != "bfloat16"]),
        hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
        elements={"allow_nan": True},
    ),
    hnp.arrays(np.float32, hnp.array_shapes(max_side=4)).map(lambda a: a.astype(ml_dtypes.bfloat16)),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
tensors = st.dictionaries(names, arrays, max_size=6)
options = st.fixed_dictionaries(
    {
        "compression": st.sampled_from([None, "zstd"]),
        "checksum": st.sampled_from([None, "crc32c", "sha256"]),
    }
)


@given(tensors, options)
@settings(max_examples=60, deadline=None)
def test_round_trip(given_tensors: dict[str, Any], given_options: dict[str, Any]) -> None:
    data = tg.dumps(given_tensors, format="ztensor", **given_options)
    with tg.open(data, verify="require" if given_options["checksum"] else "auto") as archive:
        assert list(archive) == list(given_tensors)
        for name, array in given_tensors.items():
            tensor = archive[name]
            assert equal(tensor.numpy(), np.ascontiguousarray(array).reshape(array.shape))
            assert tensor.encoding == (given_options["compression"] or "raw")
            assert (tensor.checksum is None) == (given_options["checksum"] is None)
    for i, row in enumerate(index_of(data)):
        assert list(row)[:7] == ["name", "offset", "size", "dtype", "layout", "shape", "encoding"]
        assert row["offset"] % 64 == 0
        assert i > 0 or row["offset"] == 64
        raw_and_wide = row["encoding"] == "raw" and row["dtype"] not in ("int8", "uint8", "bool")
        assert row.get("data_endianness") == ("little" if raw_and_wide else None)
    assert tg.verify(data, deep=True).ok


@given(arrays)
@settings(max_examples=40, deadline=None)
def test_any_order_and_byte_order(array: Any) -> None:
    views = {"F": np.asfortranarray(array), "reversed": array[::-1] if array.ndim else array, "T": array.T}
    if array.dtype.kind not in "bV":
        views["swapped"] = array.astype(array.dtype.newbyteorder(">"))
    for compression in (None, "zstd"):
        loaded = tg.loads(tg.dumps(views, format="ztensor", compression=compression))
        for name, view in views.items():
            assert equal(
                loaded[name], np.ascontiguousarray(view.astype(view.dtype.newbyteorder("="))).reshape(view.shape)
            )


def test_the_smallest_files() -> None:
    assert tg.dumps({}, format="ztensor") == b"ZTEN0001\x80\x01\0\0\0\0\0\0\0"
    assert list(tg.open(b"ZTEN0001" + bytes(8))) == []
    data = tg.dumps({"s": np.float32(1.5), "z": np.zeros((0, 3))}, format="ztensor")
    assert [row["shape"] for row in index_of(data)] == [[], [0, 3]]
    assert tg.loads(data)["s"].shape == ()


def test_big_endian_is_swapped_and_written_little() -> None:
    values = np.arange(6, dtype=">f4").reshape(2, 3)
    data = file01([entry(dtype="float32", shape=[2, 3], size=24, data_endianness="big")], values.tobytes())
    with tg.open(data) as archive:
        assert equal(archive["a"].numpy(), values.astype("=f4"))
        assert archive["a"][1, ::2].tolist() == [3.0, 5.0]
        out = np.empty((2, 3), np.float32)
        archive["a"].numpy(out)
        assert out.tolist() == values.tolist()
        again = tg.dumps(archive, format="ztensor")
    assert equal(tg.loads(again)["a"], values.astype("=f4"))
    assert index_of(again)[0]["data_endianness"] == "little"


def test_both_dialects_and_every_form() -> None:
    forms = [
        [entry()],
        [{key: value for key, value in entry().items() if key != "layout"}],
        [dict(reversed(entry().items()))],
        Open([Open(entry(Open("a")))]),
    ]
    for form in forms:
        assert tg.loads(file01(form))["a"].tolist() == [97, 98, 99, 100]


CUSTOM = {
    "text": "ü", "number": -42, "big": 2**64 - 1, "float": 0.1, "half": 1.5, "bytes": b"\0\xff", "nothing": None,
    "yes": True, "list": [1, [2, {}]], "map": {"b": 1, "a": {"c": [None]}}, "ключ": "значение",
}  # fmt: skip


def test_custom_fields_are_kept() -> None:
    array = np.arange(3)
    data = tg.dumps({"w": array, "v": array}, format="ztensor", attributes={"w": CUSTOM}, checksum=None)
    with tg.open(data) as archive:
        assert archive["w"].attributes == CUSTOM
        assert archive["v"].attributes == {}
        assert archive.attributes == {"w": CUSTOM}
        assert archive.info("w")["attributes"] == CUSTOM
        again = tg.dumps(archive, format="ztensor", checksum=None)
    assert again == data
    keys = list(index_of(data)[0])[8:]
    assert keys == sorted(CUSTOM, key=str.encode)


@pytest.mark.parametrize("key", ["name", "offset", "size", "dtype", "shape", "encoding", "data_endianness", "checksum"])
def test_attributes_are_not_fields_of_the_format(key: str) -> None:
    with pytest.raises(tg.InputError, match="field of zTensor"):
        tg.dumps({"w": np.arange(3)}, format="ztensor", attributes={"w": {key: 1}})


@pytest.mark.parametrize("metadata", [{}, {"step": "10"}, {"nested": {"a": [1, 2.5, None]}, "b": b"\1"}])
def test_metadata(metadata: dict[str, Any]) -> None:
    data = tg.dumps({"w": np.arange(3)}, format="ztensor", metadata=metadata)
    with tg.open(data) as archive:
        assert archive.metadata == metadata
        assert list(archive) == ["w"]
        assert tg.dumps(archive, format="ztensor") == data
    first = index_of(data)[0]
    assert (first["name"], first["dtype"], first["shape"]) == ("__metadata__", "uint8", [0])
    assert tg.open(tg.dumps({"w": np.arange(3)}, format="ztensor")).metadata is None


def test_a_tensor_may_be_called_as_the_metadata_is() -> None:
    tensors = {"__metadata__": np.zeros(0, np.uint8), "w": np.arange(3)}
    with tg.open(tg.dumps(tensors, format="ztensor")) as archive:
        assert list(archive) == list(tensors)
    with pytest.raises(tg.UnsupportedError, match=r"rule ztensor\.write\.name"):
        tg.dumps(tensors, format="ztensor", metadata={"a": "b"})


def test_unknown_dtypes_and_encodings_are_listed_and_copied() -> None:
    compressed = zstandard.compress(b"abcd")
    rows = [
        entry("raw", dtype="float8_x", data_endianness="big", shape=[2, 2], checksum="crc32c:0x92C80A31", mine=1),
        entry("zstd", dtype="float8_x", encoding="zstd", size=len(compressed), offset=128, shape=[7]),
        entry("lz4", dtype="float32", encoding="lz4", size=3, offset=192, shape=[5]),
        entry("fine", offset=256),
    ]
    body = b"abcd" + bytes(60) + compressed + bytes(64 - len(compressed)) + b"xyz" + bytes(61) + b"efgh"
    data = file01(rows, body)
    with tg.open(data) as archive:
        assert list(archive) == ["raw", "zstd", "lz4", "fine"]
        assert archive["lz4"].encoding == "lz4"
        assert archive["raw"].shape == (2, 2)
        assert archive.info("raw")["parts"]["data"]["dtype"] == "float8_x"
        for name, rule in (("raw", "dtype.known"), ("zstd", "dtype.known"), ("lz4", "encoding.known")):
            with pytest.raises(tg.UnsupportedError) as caught:
                archive[name].numpy()
            assert (caught.value.rule, caught.value.tensor) == (rule, name)
        assert archive["fine"].numpy().tobytes() == b"efgh"
        again = tg.dumps(archive, format="ztensor", checksum="crc32c")
        report = tg.verify(data, deep=True)
        assert report.ok
        assert set(report.unverified) == {"zstd", "lz4", "fine"}
        with pytest.raises(tg.UnsupportedError, match=r"rule save\.attributes"):
            tg.dumps(archive, format="bintensors")
    copied = index_of(again)
    for row, old in zip(copied, rows, strict=True):
        assert {key: row[key] for key in ("name", "dtype", "encoding", "shape")} == {
            key: old[key] for key in ("name", "dtype", "encoding", "shape")
        }
        assert again[row["offset"] : row["offset"] + row["size"]] == data[old["offset"] : old["offset"] + old["size"]]
        assert row.get("data_endianness") == old.get("data_endianness")
    assert copied[0]["mine"] == 1
    assert tg.verify(again).checksums == 4 - 0


LACKING = [row.name for row in TABLE if row.name not in DTYPES and row.numpy is not None]


@pytest.mark.parametrize("name", LACKING)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_elements_without_a_name_are_kept_as_bytes(name: str, compression: str | None) -> None:
    array = sample(name)
    data = tg.dumps({"w": array}, format="ztensor", compression=compression, attributes={"w": {"a": 1}})
    with tg.open(data, strict=compression is None) as archive:
        assert list(archive) == ["w"]
        assert equal(archive["w"].numpy(), array)
        assert archive["w"].attributes == {"a": 1}
        assert tg.dumps(archive, format="ztensor", compression=compression) == data
    (row,) = index_of(data)
    assert (row["name"], row["dtype"], row["layout"], row["part_of"]) == ("w#data", "uint8", "dense", "w")


def test_incomplete_parts_are_ordinary_tensors() -> None:
    rows = [
        entry("w#values", part_of="w", part="values"),
        entry("x", part_of="w", part="values"),
        entry("y#z", part_of=7, part="z"),
        entry("v#a", part_of="v", part="a", logical_shape=[-1], logical_layout="q"),
    ]
    with tg.open(file01(rows)) as archive:
        assert list(archive) == ["w#values", "x", "y#z", "v#a"]
        assert archive["w#values"].attributes == {"part_of": "w", "part": "values"}


def test_a_tensor_that_would_be_read_as_a_part_is_refused() -> None:
    array = np.arange(8, dtype=np.uint8)
    said = {"part_of": "w", "part": "data", "logical_layout": "dense", "logical_shape": [2], "logical_type": "float32"}
    with pytest.raises(tg.UnsupportedError, match="a part of another tensor") as caught:
        tg.dumps({"v": array, "w#data": array}, format="ztensor", attributes={"w#data": said})
    assert caught.value.tensor == "w#data"
    broken = said | {"logical_shape": [3]}
    with pytest.raises(tg.UnsupportedError, match="a part of another tensor"):
        tg.dumps({"w#data": array}, format="ztensor", attributes={"w#data": broken})
    sparse = {"m": scipy.sparse.csr_array(np.eye(3)), "m#more": array}
    with pytest.raises(tg.UnsupportedError, match="a part of another tensor"):
        tg.dumps(sparse, format="ztensor", attributes={"m#more": {"part_of": "m", "part": "more"}})
    for fine in (
        {"w#data": said | {"logical_shape": -1}},
        {"w#data": {"part_of": "w", "part": "data"}},
        {"v": said},
        {"w#data": {"part_of": "v", "part": "data"}},
    ):
        data = tg.dumps({"w#data": array, "v": array + 1}, format="ztensor", attributes=fine)
        with tg.open(data) as archive:
            assert archive.attributes == fine
            assert tg.dumps(archive, format="ztensor") == data


def test_tied_tensors_stay_tied_from_file_to_file(tmp_path: Path) -> None:
    rows = [entry("a"), entry("b"), entry("c", offset=128)]
    (tmp_path / "a.zt").write_bytes(file01(rows, b"abcd" + bytes(60) + b"abcd"))
    with tg.open(tmp_path / "a.zt") as archive:
        tg.save(tmp_path / "b.zt", archive, compression="zstd", checksum="crc32c")
        tg.save(tmp_path / "c.zt", archive)
    for name in "bc":
        with tg.open(tmp_path / f"{name}.zt", verify="auto") as archive:
            assert archive["a"].offset == archive["b"].offset != archive["c"].offset
            assert {tensor.numpy().tobytes() for tensor in archive.values()} == {b"abcd"}


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
def test_large_tensors_are_several_frames_and_slices_touch_few(version: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 9, (9000, 1000), np.int32)
    tg.save(tmp_path / "a.zt", {"w": array}, format=version, compression="zstd", checksum="frame", durable=False)
    with tg.open(tmp_path / "a.zt") as archive:
        tensor = archive["w"]
        assert tensor.stored_nbytes < tensor.nbytes / 4
        for index in (
            slice(None), 5, slice(2500, 2600), (slice(None), 7), (slice(0, 3000, 1500), slice(None, None, 3)),
            (..., -1), slice(0, 0), (slice(2990, 5, -700), 3), slice(8999, 9000),
        ):  # fmt: skip
            assert np.array_equal(tensor[index], array[index])
    assert tg.verify(tmp_path / "a.zt", deep=True).ok


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize(("first", "last", "frames"), [(0, 1, 1), (2900, 2910, 1), (8999, 9000, 1), (1040, 1060, 2)])
def test_a_slice_reads_and_decompresses_only_the_frames_that_it_touches(
    version: str, first: int, last: int, frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.random.default_rng(0).integers(0, 9, (9000, 1000), np.int32)
    tg.save(tmp_path / "a.zt", {"w": array}, format=version, compression="zstd", durable=False)
    read: list[int] = []
    decoded: set[Any] = set()
    with tg.open(tmp_path / "a.zt") as archive:
        tensor, plain, decode = archive["w"], archive.source.read, zstd.decode_frame
        monkeypatch.setattr(archive.source, "read", lambda at, nbytes: read.append(nbytes) or plain(at, nbytes))
        monkeypatch.setattr(zstd, "decode_frame", lambda *job: decoded.add(job[1]) or decode(*job))
        assert np.array_equal(tensor[first:last], array[first:last])
    one = tensor.stored_nbytes * zstd.FRAME_NBYTES / tensor.nbytes
    headers = 16 * (tensor.nbytes / (128 << 10)) + 4096  # of blocks: of all in 0.1, which has no table
    assert len(decoded) == frames
    assert sum(read) < 1.1 * frames * one + headers
    assert version == "ztensor@0.1" or len(read) < 40 * frames


def test_levels_and_checksums_of_frames() -> None:
    array = np.arange(200_000, dtype=np.int64)
    sizes = [len(tg.dumps({"w": array}, format="ztensor", compression="zstd", level=level)) for level in (-5, 1, 19)]
    assert sizes == sorted(sizes, reverse=True)
    plain = tg.dumps({"w": array}, format="ztensor", compression="zstd")
    checked = tg.dumps({"w": array}, format="ztensor", compression="zstd", checksum="frame")
    assert not zstandard.get_frame_parameters(plain[64:]).has_checksum
    assert zstandard.get_frame_parameters(checked[64:]).has_checksum
    for version in ("0.1", "2"):
        with pytest.raises(tg.InputError, match="needs compression"):
            tg.dumps({"w": array}, format=f"ztensor@{version}", checksum="frame")
        for level in (23, -(1 << 18), 1.5, "3"):
            with pytest.raises(tg.InputError, match="level must be"):
                tg.dumps({"w": array}, format=f"ztensor@{version}", compression="zstd", level=level)
    with pytest.raises(tg.UnsupportedError, match=r"rule save\.checksum"):
        tg.dumps({"w": array}, format="ztensor", checksum="xxh3")
    with pytest.raises(tg.UnsupportedError, match=r"rule save\.compression"):
        tg.dumps({"w": array}, format="ztensor", compression="lz4")


def test_compressed_tensors_in_parallel_are_what_they_were(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = {f"t{i}": rng.integers(0, 50, int(n), np.uint8) for i, n in enumerate(rng.integers(0, 9 << 20, 6))}
    tg.save(tmp_path / "a.zt", tensors, compression="zstd", durable=False)
    loaded = tg.load(tmp_path / "a.zt")
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
    assert all(array.flags.writeable for array in loaded.values())
    out = {name: np.empty_like(array) for name, array in tensors.items()}
    tg.load(tmp_path / "a.zt", out=out)
    assert all(np.array_equal(out[name], tensors[name]) for name in tensors)
    with tg.open(tmp_path / "a.zt") as archive:
        tg.save(tmp_path / "b.zt", archive, durable=False)
        tg.save(tmp_path / "c.bt", archive, durable=False)
    for path in ("b.zt", "c.bt"):
        assert all(np.array_equal(tg.load(tmp_path / path)[name], tensors[name]) for name in tensors)


def test_small_compressed_tensors_share_memory_and_nothing_else() -> None:
    rng = np.random.default_rng(2)
    sizes = [0, 1, 63, 64, 65, 0, 4096, 300_000, 5 << 20, 7, 0]
    tensors = {f"t{i}": rng.integers(0, 9, size, np.uint8) for i, size in enumerate(sizes)}
    tensors |= {"bool": rng.random(100) < 0.5, "wide": rng.standard_normal(33)}
    for version in ("ztensor@0.1", "ztensor@2"):
        loaded = tg.loads(tg.dumps(tensors, format=version, compression="zstd"))
        for name, array in list(loaded.items())[::2]:
            assert equal(array, tensors[name])
            array[...] = 0
        assert all(equal(array, tensors[name]) for name, array in list(loaded.items())[1::2])


def test_more_than_fits_in_memory_is_refused_by_name(tmp_path: Path) -> None:
    """A sparse file of 32 MiB can declare 1 TiB of zeros."""
    nbytes = 32 << 20
    run = b"\x02\x00\x10\x00"  # a block that is one byte, 131072 times
    index = cbor2.dumps([entry(encoding="zstd", size=nbytes, dtype="uint8", shape=[nbytes << 15])])
    with (tmp_path / "a.zt").open("wb") as file:
        file.write(b"ZTEN0001" + bytes(56) + b"\x28\xb5\x2f\xfd\x00\x38" + run)
        file.seek(64 + nbytes)
        file.write(index + len(index).to_bytes(8, "little"))
    for read in (lambda: tg.load(tmp_path / "a.zt"), lambda: tg.open(tmp_path / "a.zt")["a"].numpy()):
        with pytest.raises(tg.FormatError) as caught:
            read()
        assert caught.value.tensor == "a"


def test_strict_accepts_one_byte_string(tmp_path: Path) -> None:
    tensors = {"w": np.arange(5, dtype=np.int16), "v": np.zeros(3, np.float64)}
    data = tg.dumps(tensors, format="ztensor", attributes={"v": {"a": 1}}, metadata={"m": 1}, checksum="crc32c")
    checksums = {name: tensor.checksum for name, tensor in tg.open(data, strict=True).items()}
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        try:
            archive = tg.open(bytes(changed), strict=True, verify="never")
        except tg.FormatError:
            continue
        # What is left are the tensors themselves and what is said about them.
        same = all(
            name in archive and equal(archive[name].numpy(), array) and archive[name].checksum == checksums[name]
            for name, array in tensors.items()
        )
        assert not (same and archive.metadata == {"m": 1} and archive.attributes == {"v": {"a": 1}}), position


class Reentrant(io.BytesIO):
    """A file that decodes another one while it is read, a few bytes at a time."""

    other = b""

    def read(self, size: int | None = -1) -> bytes:
        tg.loads(self.other)
        return super().read(min(5000, -1 if size is None else size))


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
def test_a_file_that_decodes_another_while_it_is_read(version: str) -> None:
    tensors = {name: np.random.default_rng(i).integers(0, 9, 30_000, np.int32) for i, name in enumerate("ab")}
    one, two = (tg.dumps({name: tensor}, format=version, compression="zstd") for name, tensor in tensors.items())
    stream = Reentrant(one)
    stream.other = two
    assert np.array_equal(tg.load(stream)["a"], tensors["a"])


@pytest.mark.parametrize("threads", [1, 8])
def test_skippable_frames_are_skipped(threads: int, tmp_path: Path) -> None:
    beside = struct.pack("<II", 0x184D2A50, 3 << 20) + bytes(3 << 20)
    blob = beside + zstd.compress(b"abcd", level=1, checksum=False)
    step = -(-len(blob) // 64) * 64
    rows = [
        entry(f"t{i}", dtype="uint8", shape=[4], encoding="zstd", offset=64 + i * step, size=len(blob))
        for i in range(16)
    ]
    path = tmp_path / "a.zt"
    path.write_bytes(file01(rows, blob.ljust(step, b"\0") * 16))
    assert resident_nbytes(partial(tg.load, path, threads=threads)) < 4 * MB
    assert {array.tobytes() for array in tg.load(path, threads=threads).values()} == {b"abcd"}


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize("nbytes", [1000, 30_000_000])
def test_a_file_cut_short_under_a_reader(version: str, nbytes: int, tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 99, nbytes, np.uint8)
    tg.save(tmp_path / "a.zt", {"w": array}, format=version, compression="zstd", durable=False)
    with tg.open(tmp_path / "a.zt") as archive:
        middle = (archive["w"].offset or 0) + archive["w"].stored_nbytes // 2
        os.truncate(tmp_path / "a.zt", middle)
        with pytest.raises(tg.TruncatedError) as caught:
            archive["w"].numpy()
    assert caught.value.tensor == "w"
    assert middle <= (caught.value.offset or 0) < middle + nbytes


@pytest.mark.parametrize("threads", [2, 8])
@pytest.mark.parametrize("level", [1, 22])
def test_compressing_on_many_processors_stays_within_bounds(
    level: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorglot.threads.default_threads", lambda: threads)
    array = np.random.default_rng(0).integers(0, 255, 24 << 20, np.uint8)
    save = partial(tg.save, format="ztensor@0.1", compression="zstd", level=level)
    with Path(os.devnull).open("wb") as nowhere:
        assert resident_nbytes(partial(save, nowhere, {"w": array})) < 64 * MB


def test_large_tensors_of_one_frame_are_decoded_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = zstd.compress(bytes(5 << 20), level=1, checksum=False)
    step = -(-len(blob) // 64) * 64
    rows = [
        entry(f"t{i}", dtype="uint8", shape=[5 << 20], encoding="zstd", offset=64 + i * step, size=len(blob))
        for i in range(4)
    ]
    by: set[str] = set()
    decode = zstd.decode_frame
    monkeypatch.setattr(zstd, "decode_frame", lambda *job: by.add(threading.current_thread().name) or decode(*job))
    assert len(tg.loads(file01(rows, blob.ljust(step, b"\0") * 4), threads=2)) == 4
    assert by
    assert threading.current_thread().name not in by


HEADS = [0, 23, 24, 0xFF, 0x100, 0xFFFF, 0x1_0000, 0xFFFF_FFFF, 0x1_0000_0000, (1 << 63) - 1]


@pytest.mark.parametrize("rank", [0, 1, 23, 24, 256])
@pytest.mark.parametrize("number", HEADS)
def test_an_index_has_room_for_every_number(number: int, rank: int) -> None:
    name, column = "n" * min(number, 70_000), np.array([number], np.int64)
    dims, dim_offsets = np.full(rank, number, np.int64), np.array([0, rank], np.int64)
    one = [cbor2.dumps("raw")]
    fields = [cbor2.dumps("encoding") + one[0]]
    index = encode_headers.ztensor_01(*join_texts([name]), one, b"\0", dims, dim_offsets, column, column, fields)
    entry = {"name": name, "offset": number, "size": number, "shape": [number] * rank}
    assert cbor2.loads(index) == [{**entry, "dtype": "raw", "layout": "dense", "encoding": "raw"}]


@pytest.mark.parametrize("metadata", [None, {"step": "10", "a": "b"}])
@pytest.mark.parametrize("checksum", [None, "crc32c"])
def test_rows_first_is_the_same_file(metadata: dict[str, str] | None, checksum: str | None) -> None:
    """Where somebody else writes the rows: their bytes without those of the metadata, and then the index."""
    tensors = {"e": np.zeros((0, 2)), "w": np.arange(50, dtype=np.float32), "b": np.ones(3)}
    whole = tg.dumps(tensors, format="ztensor@0.1", metadata=metadata, checksum=checksum)
    archive = collect(tensors, metadata)
    spec, version = named("ztensor@0.1")
    found = rows_first(archive, prepare(archive, spec, version or "", SaveOptions(checksum=checksum)))
    assert found is not None
    digests = [hasher(name).digest() if name else b"" for name in found.algorithms]
    for i, (name, array) in enumerate(zip(found.algorithms, tensors.values(), strict=True)):
        if name:
            running = hasher(name)
            running.update(array.tobytes())
            digests[i] = running.digest()
    pieces = [chunk.read(0, chunk.nbytes) if isinstance(chunk, Span) else as_bytes(chunk) for chunk in found.chunks]
    assert b"".join([*pieces, *map(as_bytes, found.end(digests))]) == whole


def test_frames_of_more_tensors_than_are_remembered() -> None:
    """Where the frames of a tensor are is kept for its next slice, of some tensors only."""
    body, entries = b"", []
    for i in range(70):
        stream = b"".join(zstd.compress(bytes([i + frame]) * 1000, level=1, checksum=True) for frame in range(3))
        fields = {"encoding": "zstd", "offset": 64 + len(body), "size": len(stream), "shape": [3000]}
        entries.append(entry(f"w{i:02}", **fields))
        body += stream + bytes(-len(stream) % 64)
    with tg.open(file01(entries, body)) as archive:
        for _ in range(2):
            assert [int(held[1500]) for held in archive.values()] == [i + 1 for i in range(70)]


@pytest.mark.parametrize("limits", [tg.Limits(rank=2), tg.Limits(name_nbytes=3), tg.Limits(tensors=0)])
def test_limits_of_an_index(limits: tg.Limits) -> None:
    data = file01([entry("name", shape=[1, 2, 2])])
    assert tg.loads(data)["name"].shape == (1, 2, 2)
    with pytest.raises(tg.LimitError):
        tg.open(data, limits=limits)
