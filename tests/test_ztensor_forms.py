"""One reader for every form of an index: equal rows from equal contents, and one rule for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import tensorglot as tg
from ztensor_builder import (
    ABSENT,
    MAGIC_2,
    Long,
    Open,
    Raw,
    cbor,
    entry,
    file01,
    file1,
    file2,
    footer,
    part,
    tensor,
)


def in_chunks(value: Any) -> Any:
    """The same with indefinite lengths and texts in chunks."""
    if isinstance(value, dict):
        pairs = [cbor(in_chunks(key)) + cbor(in_chunks(item)) for key, item in value.items()]
        return Raw(b"\xbf" + b"".join(pairs) + b"\xff")
    if isinstance(value, list):
        return Open([in_chunks(item) for item in value])
    return Open(value) if isinstance(value, str) else value


def long(value: Any) -> Any:
    """The same with heads that are longer than needed."""
    if isinstance(value, dict):
        pairs = [cbor(long(key)) + cbor(long(item)) for key, item in value.items()]
        return Raw(b"\xbb" + len(value).to_bytes(8, "big") + b"".join(pairs))
    if isinstance(value, list):
        return Raw(b"\x9b" + len(value).to_bytes(8, "big") + b"".join(cbor(long(item)) for item in value))
    if isinstance(value, str):
        return Raw(b"\x7b" + len(value.encode()).to_bytes(8, "big") + value.encode())
    return Long(value) if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else value


def backwards(value: Any) -> Any:
    """The same with the keys of entries in another order."""
    return [dict(reversed(one.items())) if isinstance(one, dict) else one for one in value]


FORMS: dict[str, Callable[[Any], Any]] = {"chunks": in_chunks, "long": long, "backwards": backwards}
PARTS = {"part_of": "m", "logical_layout": "zt.sparse_coo/1", "logical_shape": [2]}
CONTENT = [
    entry("a", checksum="crc32c:0x92C80A31"),
    entry("big", dtype="int16", shape=[2], data_endianness="big"),
    entry("custom", offset=128, unit="kg", depth=[1, {"x": None}]),
    entry("x", dtype="float8_x", offset=192),
    entry("z", encoding="zstd", size=4, offset=256, shape=[9], dtype="uint16"),
    entry("l", encoding="lz4", size=4, offset=320, shape=[9]),
    entry("__metadata__", offset=0, size=0, shape=[0], metadata={"step": 3}),
    entry("m#values", offset=384, part="values", **PARTS),
    entry("w#data", offset=448, part_of="w", part="data", logical_layout="dense", logical_shape=[2, 4],
          logical_type="float4_e2m1fn"),
    entry("m#coords", offset=512, size=16, dtype="uint32", shape=[4], part_of="m", part="coords"),
]  # fmt: skip
BODY = bytes(range(200)) + bytes(400)


def rows(data: bytes) -> Any:
    """Everything that an index says."""
    with tg.open(data) as archive:
        index = archive.index
        return (
            [archive.info(name) for name in archive],
            archive.metadata,
            {name: dict(fields) for name, fields in archive.attributes.items()},
            index.dims.tolist(),
            index.begins.tolist(),
            index.ends.tolist(),
            index.nbytes.tolist(),
            sorted(index.big_endian),
            dict(index.unknown_dtypes),
            sorted(index.codecs),
        )


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_equal_contents_give_equal_rows(form: Callable[[Any], Any]) -> None:
    plain, other = file01(CONTENT, BODY), file01(form(CONTENT), BODY)
    assert plain != other
    assert rows(other) == rows(plain)
    assert [info["name"] for info in rows(plain)[0]] == ["a", "big", "custom", "x", "z", "l", "m", "w"]


@pytest.mark.parametrize("form", [in_chunks, long])
def test_equal_manifests_of_1_give_equal_rows(form: Callable[[Any], Any]) -> None:
    data = {"dtype": "u8", "offset": 64, "length": 4, "digest": "crc32c:0x92C80A31"}
    objects = {
        "a": {"shape": [4], "format": "dense", "components": {"data": data}, "attributes": {"k": [1]}},
        "q": {"shape": [4], "format": "q", "components": {"r": data | {"encoding": "x"}, "s": data | {"dtype": "f3"}}},
    }
    manifest = {"version": "1.1.0", "objects": objects, "attributes": {"m": "x"}}
    assert rows(file1(form(manifest))) == rows(file1(manifest))


# What is wrong with one entry, and the rule that says so, whatever the form and whatever else the entry has.
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"offset": "64"}, "ztensor.entry.kind"),
    "missing": ({"size": ABSENT}, "ztensor.entry.missing"),
    "alignment": ({"offset": 65}, "ztensor.blob.alignment"),
    "magic": ({"offset": 0}, "ztensor.blob.magic"),
    "end": ({"offset": 1 << 20}, "ztensor.blob.end"),
    "index": ({"offset": 64, "size": 700, "shape": [700]}, "ztensor.blob.index"),
    "overlap": ({"size": 66, "shape": [66]}, "ztensor.blob.overlap"),
    "bounds": ({"offset": (1 << 64) - 64}, "ztensor.blob.bounds"),
    "size": ({"size": 3}, "ztensor.blob.size"),
    "product": ({"shape": [1 << 40, 1 << 40, 0]}, "ztensor.shape.product"),
    "bytes": ({"shape": [1 << 60], "dtype": "float64"}, "ztensor.shape.product"),
    "rank": ({"shape": [1] * 65}, "ztensor.limit.rank"),
    "name": ({"name": "n" * 100_001}, "ztensor.limit.name"),
    "twice": ({"name": "other"}, "ztensor.name.duplicate"),
    "endianness": ({"data_endianness": "middle"}, "ztensor.entry.endianness"),
    "expansion": ({"encoding": "zstd", "shape": [1 << 50]}, "ztensor.blob.expansion"),
}
CUSTOM = {"none": {}, "custom": {"unit": "kg"}, "part": {"part_of": "w", "part": "p"}}


@pytest.mark.parametrize(("fields", "rule"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_rule_is_the_same_rule_in_every_form(fields: dict[str, Any], rule: str) -> None:
    found = set()
    for beside in CUSTOM.values():
        index = [entry("other", offset=128), entry(**({"name": "a"} | fields), **beside)]
        for form in (lambda value: value, *FORMS.values()):
            with pytest.raises(tg.FormatError) as caught:
                tg.open(file01(form(index), bytes(600)))
            found.add((caught.value.rule, type(caught.value)))
    assert {one for one, _ in found} == {rule}
    assert len(found) == 1


# Likewise for version 2, which has one form: with fields that nobody knows, and in a tensor of several parts.
BROKEN_2: dict[str, tuple[dict[str, Any], str]] = {
    "kind": ({"blob": "x"}, "ztensor.entry.kind"),
    "missing": ({"dtype": ABSENT}, "ztensor.entry.missing"),
    "alignment": ({"blob": [4097, 4]}, "ztensor.blob.alignment"),
    "first": ({"blob": [0, 4]}, "ztensor.blob.alignment"),
    "end": ({"blob": [1 << 20, 4]}, "ztensor.blob.end"),
    "bounds": ({"blob": [(1 << 64) - 4096, 4]}, "ztensor.blob.bounds"),
    "pair": ({"blob": [4096]}, "ztensor.entry.blob"),
    "dtype": ({"dtype": "q8"}, "ztensor.entry.dtype"),
    "type": ({"dtype": "f32", "type": "bool"}, "ztensor.entry.type"),
    "digest": ({"digest": "xxh3"}, "ztensor.entry.digest"),
    "decoded": ({"decoded_length": 4}, "ztensor.entry.decoded"),
    "expansion": ({"encoding": "zt.zstd-seekable/1", "decoded_length": 1 << 50}, "ztensor.blob.expansion"),
    "shard": ({"shard": "nowhere"}, "ztensor.shard.unknown"),
}


@pytest.mark.parametrize(("fields", "rule"), BROKEN_2.values(), ids=list(BROKEN_2))
def test_a_broken_rule_of_2_is_the_same_rule_in_every_tensor(fields: dict[str, Any], rule: str) -> None:
    shape = [1 << 50] if "encoding" in fields else [4]
    tensors = {
        "plain": tensor(shape=shape, parts={"data": part(**fields)}),
        "more": tensor(shape=shape, parts={"data": part(zzz=1, **fields)}, zzz={"a": 1}, attributes={"k": 1}),
        "several": tensor(shape=[2], layout="x.y/1", parts={"a": part(**fields), "b": part()}),
    }
    found = set()
    for name, one in tensors.items():
        with pytest.raises(tg.FormatError) as caught:
            tg.open(file2({"objects": {"other": tensor(), name: one}}, bytes(64)))
        found.add(caught.value.rule)
        assert caught.value.tensor == name
    assert found == {rule}


def test_many_parts_and_dims_are_found_in_a_second_scan() -> None:
    parts = {f"p{i}": part(blob=[4096 * (1 + i), 4]) for i in range(50)}
    objects = {"deep": tensor(shape=[1] * 63 + [4]), "wide": tensor(shape=[200], layout="x.y/1", parts=parts)}
    with tg.open(file2({"objects": objects}, bytes(4096 * 50))) as archive:
        assert archive["deep"].shape == (*[1] * 63, 4)
        assert list(archive["wide"].parts) == sorted(parts, key=lambda name: (len(name), name))
        assert [one.nbytes for one in archive["wide"].parts.values()] == [4] * 50


MAGICS = {
    b"ZTEN0002": "zTensor 0002 is newer than this package",
    b"ZTEN2000": "zTensor 2000 is newer than this package",
    b"\x89ZT3\r\n\x1a\n": "zTensor 3 is newer than this package",
    b"ZTEN0000": "not a zTensor file: wrong magic number",
    b"ZTENSORS": "not a zTensor file: wrong magic number",
    b"\x89ZT2\n\n\x1a\n": "not a zTensor file: wrong magic number",
}


@pytest.mark.parametrize(("magic", "message"), MAGICS.items())
def test_a_version_to_come_is_named(magic: bytes, message: str) -> None:
    data = magic + file01()[8:]
    with pytest.raises(tg.FormatError, match=message):
        tg.open(data)  # recognised by the first bytes, without a suffix
    (problem,) = tg.verify(data).problems
    assert problem.message == message


# Files that can be read, and are not in the one form that strict=True accepts.

W = {"w": np.arange(5, dtype=np.int16)}
ONE, TWO = (
    tg.dumps(W, format=f"ztensor@{version}", checksum=sum) for version, sum in (("0.1", "crc32c"), ("2", "xxh3"))
)
INDEX_AT = len(ONE) - 8 - int.from_bytes(ONE[-8:], "little")
MANIFEST_AT = 2 << 16
MANIFEST = TWO[MANIFEST_AT:-40]
NOT_STRICT: dict[str, tuple[bytes, str]] = {
    "0.1: a gap before the index": (ONE[:INDEX_AT] + bytes(64) + ONE[INDEX_AT:], "place"),
    "0.1: tensors that share bytes": (file01([entry("a"), entry("b")]), "place"),
    "0.1: padding": (ONE[:20] + b"x" + ONE[21:], "padding"),
    "0.1: compressed": (tg.dumps(W, format="ztensor@0.1", compression="zstd"), "encoding"),
    "0.1: big-endian": (file01([entry(dtype="uint16", shape=[2], data_endianness="big")]), "encoding"),
    "0.1: an unknown type": (file01([entry(dtype="q7")]), "encoding"),
    "0.1: an unknown checksum": (file01([entry(checksum="md9:00")]), "checksum"),
    "0.1: a checksum in lower case": (file01([entry(checksum="crc32c:0xabcdef01")]), "checksum"),
    "0.1: fields in another order": (file01(), "index"),
    "2: a gap before the manifest": (
        TWO[:MANIFEST_AT] + bytes(1 << 16) + MANIFEST + footer(MANIFEST_AT + (1 << 16), MANIFEST), "place",
    ),
    "2: a gap behind the manifest": (TWO[:-40] + bytes(8) + TWO[-40:], "place"),
    "2: padding": (TWO[:100] + b"x" + TWO[101:], "padding"),
    "2: compressed": (tg.dumps(W, format="ztensor@2", compression="zstd", checksum="xxh3"), "encoding"),
    "2: no digest": (tg.dumps(W, format="ztensor@2", checksum=None), "digest"),
    "2: another digest": (tg.dumps(W, format="ztensor@2", checksum="sha256"), "digest"),
    "2: a name that is not NFC": (tg.dumps({"e\u0301": W["w"]}, format="ztensor@2", checksum="xxh3"), "name"),
    "2: another alignment": (
        file2({"objects": {"a": tensor(parts={"data": part(digest="xxh3:" + "0" * 16)})}}), "manifest",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_STRICT)
def test_what_is_not_the_canonical_form(case: str) -> None:
    data, rule = NOT_STRICT[case]
    with tg.open(data) as archive:
        assert len(archive)
    with pytest.raises(tg.FormatError) as caught:
        tg.open(data, strict=True)
    assert caught.value.rule == f"ztensor.strict.{rule}"


def test_shards_are_not_the_canonical_form(tmp_path: Path) -> None:
    body = TWO[MANIFEST_AT - 4096 : MANIFEST_AT]
    shard = MAGIC_2 + bytes(4088) + body + footer(0, b"", digest=0)
    entries = {"00001": {"size": len(shard), "digest": f"xxh3:{xxhash.xxh3_64_hexdigest(shard)}"}}
    digest = f"xxh3:{xxhash.xxh3_64_hexdigest(bytes(4))}"
    parts = {"data": part(shard="00001", digest=digest)}
    (tmp_path / "m.zt").write_bytes(file2({"objects": {"w": tensor(parts=parts)}, "shards": entries}, b""))
    (tmp_path / "m-00001.zt").write_bytes(shard)
    with tg.open(tmp_path / "m.zt") as archive:
        assert archive["w"].numpy().tolist() == [0] * 4
    with tg.open(tmp_path / "m-00001.zt") as archive:
        assert len(archive) == 0
    for name, rule in (("m.zt", "shards"), ("m-00001.zt", "shard")):
        with pytest.raises(tg.FormatError) as caught:
            tg.open(tmp_path / name, strict=True)
        assert caught.value.rule == f"ztensor.strict.{rule}"
    with tg.open((tmp_path / "m.zt").read_bytes()) as archive, pytest.raises(tg.UnsupportedError) as alone:
        archive["w"].numpy()
    assert alone.value.rule == "ztensor.shard.path"
    with tg.open(tmp_path / "m.zt") as archive:
        held = archive["w"]
    with pytest.raises(tg.InputError) as closed:
        held.numpy()
    assert closed.value.rule == "archive.closed"


@pytest.mark.parametrize(("data", "asked"), [(ONE, "2"), (TWO, "0.1"), (TWO, "1.2")])
def test_another_version_than_asked_for(data: bytes, asked: str) -> None:
    with pytest.raises(tg.FormatError) as caught:
        tg.open(data, format=f"ztensor@{asked}")
    assert caught.value.rule == "ztensor.version"
