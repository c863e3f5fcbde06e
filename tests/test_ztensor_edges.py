"""Rare files and values of zTensor: what limits say in every version, mixed checksums, parts that describe nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
import ztensor_builder as zt
from ztensor_builder import entry


def two_01() -> bytes:
    return zt.file01([entry("a"), entry("b")])


def two_1() -> bytes:
    part = {"dtype": "u8", "offset": 64, "length": 4}
    thing = {"shape": [4], "format": "dense", "components": {"data": part}}
    return zt.file1({"version": "1.1.0", "objects": {"a": thing, "b": thing}})


def two_2() -> bytes:
    return zt.file2({"objects": {"a": zt.tensor(), "b": zt.tensor()}})


@pytest.mark.parametrize("make", [two_01, two_1, two_2])
def test_the_number_of_tensors_is_limited_in_every_version(make: Callable[[], bytes]) -> None:
    assert list(tg.open(make(), limits=tg.Limits(tensors=2))) == ["a", "b"]
    with pytest.raises(tg.LimitError) as caught:
        tg.open(make(), limits=tg.Limits(tensors=1))
    assert caught.value.rule == "ztensor.limit.tensors"


@pytest.mark.parametrize("data", [b"", zt.MAGIC_01[:7]])
def test_shorter_than_a_magic_number(data: bytes) -> None:
    with pytest.raises(tg.TruncatedError) as caught:
        tg.open(data, format="ztensor")
    assert caught.value.rule == "ztensor.magic"


def quantized(attributes: dict[str, Any]) -> bytes:
    parts = {
        "data": zt.part(blob=[4096, 4]),
        "scales": zt.part(dtype="f16", blob=[8192, 8]),
    }
    form = {"bits": 8, "group_size": 1, "axis": 0, "scale_form": "f16_factors",
            "packing": {"word": "u8", "per_word": 1, "order": "lsb_first"}, "zero_point": {"form": "none"}}  # fmt: skip
    thing = zt.tensor(parts, layout="zt.quant_group/1", attributes=form | attributes)
    return zt.file2({"objects": {"a": thing}}, bytes(4096 + 8))


def test_attributes_that_describe_parts_are_limited() -> None:
    """Those of other layouts are not decoded, and may be of any size."""
    data = quantized({"note": "x" * 70_000})
    with pytest.raises(tg.LimitError) as caught:
        tg.open(data)
    assert caught.value.rule == "ztensor.limit.attributes"
    assert caught.value.tensor == "a"
    assert caught.value.offset == data.index(b"\x6aattributes") + 11, "behind the key"
    plain = zt.file2({"objects": {"a": zt.tensor(attributes={"note": "x" * 70_000})}})
    assert tg.open(plain)["a"].attributes == {"note": "x" * 70_000}


CRC = "crc32c:0x92C80A31"
CHECKSUMS: dict[str, tuple[list[str], str | None]] = {
    "one algorithm": ([CRC, CRC], None),
    "of two lengths": ([CRC, "sha256:" + 64 * "0"], "checksum.mismatch"),
    "long and short": (["sha256:" + 64 * "0", CRC], "checksum.mismatch"),
    "not ASCII, of one length": ([CRC, "é" + CRC[2:]], None),
    "empty": (["", ""], "checksum.form"),
}
"""Checksums of b"abcd" twice, and the rule by which the values are refused; an unknown algorithm is not checked."""


@pytest.mark.parametrize("what", CHECKSUMS)
def test_checksums_of_all_forms_are_read_together(what: str) -> None:
    texts, rule = CHECKSUMS[what]
    data = zt.file01([entry(name, checksum=text) for name, text in zip("ab", texts, strict=True)])
    assert [tensor.checksum for tensor in tg.open(data).values()] == texts
    if rule is None:
        assert tg.load(data)["b"].tobytes() == b"abcd"
        return
    with pytest.raises(tg.FormatError) as caught:
        tg.load(data)
    assert caught.value.rule == rule


def part_01(name: str, part: str, **fields: Any) -> dict[str, Any]:
    return entry(f"{name}#{part}", part_of=name, part=part, **fields)


def test_a_dense_tensor_has_one_part_that_is_its_data() -> None:
    """Anything else that says so is read as the tensors that are there."""
    whole = {"logical_layout": "dense", "logical_shape": [4]}
    other = zt.file01([part_01("w", "values", **whole)])
    assert list(tg.open(other)) == ["w#values"]
    assert list(tg.open(zt.file01([part_01("w", "data", **whole)]))) == ["w"]


def test_a_part_of_an_unknown_type() -> None:
    whole = {"logical_layout": "x.y/1", "logical_shape": [4]}
    with tg.open(zt.file01([part_01("w", "p", logical_type="my.type", **whole)])) as archive:
        assert archive["w"].layout == "x.y/1"
        part = archive["w"].parts["p"]
        assert (part.dtype, part.unknown_dtype) == (None, "my.type")
        again = tg.open(tg.dumps(archive, format="ztensor@0.1"))["w"].parts["p"]
        assert (again.unknown_dtype, bytes(again.payload.read(0, 4))) == ("my.type", b"abcd")


def test_only_bytes_have_another_type() -> None:
    """`logical_type` says what uint8 elements are; beside another dtype it means nothing."""
    whole = {"logical_layout": "x.y/1", "logical_shape": [1]}
    part = part_01("w", "p", dtype="float32", shape=[1], logical_type="int32", **whole)
    found = tg.open(zt.file01([part]))["w"].parts["p"].dtype
    assert found is not None
    assert found.name == "float32"


@pytest.mark.parametrize(("shape", "what"), [
    ([(1 << 63) - 1, 2], "2**63 bytes or more"), ([1 << 33, 1 << 31, 0], "2**64 or more"),
])  # fmt: skip
def test_products_beyond_what_a_file_can_have(shape: list[int], what: str) -> None:
    """Below 2**64 elements, as the format allows, and of more bytes than there can be; and beyond that."""
    with pytest.raises(tg.FormatError) as caught:
        tg.open(zt.file2({"objects": {"a": zt.tensor(shape=shape)}}))
    assert caught.value.rule == "ztensor.shape.product"
    assert what in str(caught.value)


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize(
    "attributes", [{"k": object()}, {"k": [1 << 70]}, 3, {1: 2}], ids=["object", "int", "3", "key"]
)
def test_errors_of_attributes_name_the_tensor(format: str, attributes: Any, tmp_path: Path) -> None:
    def add() -> None:
        with tg.Writer(tmp_path / "x.zt", format=format) as out:
            out.add("a", np.zeros(2), attributes=attributes)

    for write in (lambda: tg.dumps({"a": np.zeros(2)}, format=format, attributes={"a": attributes}), add):
        with pytest.raises((tg.InputError, tg.UnsupportedError)) as caught:
            write()
        assert caught.value.tensor == "a"
    assert not (tmp_path / "x.zt").exists()


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_keys_of_attributes_are_text(format: str) -> None:
    """Also those of a tensor that somebody has made himself."""
    with pytest.raises(tg.InputError) as caught:
        tg.dumps({"a": np.zeros(2)}, format=format, attributes={"a": {1: 2}})
    assert caught.value.rule == "save.attributes"
    with pytest.raises(tg.InputError) as caught:
        tg.dumps({"a": replace(tg.dynd.array(np.zeros(2)), attributes={1: 2})}, format=format)
    assert caught.value.rule == "ztensor.write.attribute"


def test_more_dimensions_than_version_2_has() -> None:
    index = zt.file01([entry("a", shape=[1] * 65, size=1)])
    with tg.open(index, limits=tg.Limits(rank=65)) as archive, pytest.raises(tg.UnsupportedError) as caught:
        tg.dumps(archive, format="ztensor@2")
    assert caught.value.rule == "ztensor.write.shape"


def test_an_empty_tensor_may_begin_anywhere() -> None:
    """In 0.1 and 1 also at 0: it has no bytes that could be those of the magic number."""
    one = zt.file01([entry(offset=0, size=0, shape=[0])])
    assert tg.loads(one, format="ztensor")["a"].shape == (0,)


MANY = 12_000
LAST = f"{MANY - 1}.usual"
FAST = {"ztensor@0.1": "crc32c", "ztensor@2": "xxh3"}


def many(format: str, path: Path) -> dict[str, Any]:
    """Tensors of which one in a hundred is "rare", in a file whose index has more than 1 MiB."""
    values = {f"{i}.{'usual' if i % 100 else 'rare'}": np.full(2, i, np.float32) for i in range(MANY)}
    tg.save(path, values, format=format, durable=False, checksum={"*.usual": FAST[format], "*.rare": FAST[format]})
    return values


@pytest.mark.parametrize("format", FAST)
def test_an_archive_of_many_tensors_keeps_no_cbor(format: str, tmp_path: Path) -> None:
    """The CBOR takes 150 bytes for each tensor, and the columns of its scan 70; what is needed later takes 80."""
    many(format, tmp_path / "many.zt")
    tg.open(tmp_path / "many.zt").close()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with tg.open(tmp_path / "many.zt") as archive:
            kept = tracemalloc.get_traced_memory()[0] - before
        assert len(archive) == MANY
    finally:
        tracemalloc.stop()
    assert kept < 120 * MANY


@pytest.mark.parametrize("rare", ["the same", "sha256", None])
@pytest.mark.parametrize("format", FAST)
def test_names_and_checksums_of_many_tensors(format: str, rare: str | None, tmp_path: Path) -> None:
    path, other = tmp_path / "many.zt", FAST[format] if rare == "the same" else rare
    values = many(format, path)
    tg.save(path, values, format=format, durable=False, checksum={"*.usual": FAST[format], "*.rare": other})
    with tg.open(path) as archive:
        assert set(archive) == set(values)
        for name in ("0.rare", "1.usual", "100.rare", LAST):
            chosen = other if name.endswith("rare") else FAST[format]
            alone = tg.dumps({name: values[name]}, format=format, checksum=chosen)
            assert archive[name].checksum == tg.open(alone)[name].checksum
    assert tg.verify(path).ok
    tg.convert(path, tmp_path / "some.zt", format=format, select=["*.rare", "1.usual"], durable=False)
    assert tg.verify(tmp_path / "some.zt").tensors == MANY // 100 + 1
    with tg.open(path) as archive:
        place = archive[LAST].offset
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"damage")
    assert [problem.tensor for problem in tg.verify(path).problems] == [LAST]
