"""Version 2: canonical form, what leaves it, shards, appended files, the content digest."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import cbor2
import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorglot as tg
from tensorglot.wire import zstd
from tensorglot.wire.seektable import seek_table
from test_ztensor_01 import arrays, equal, sample
from ztensor_builder import cbor as encoded
from ztensor_builder import deterministic, file2, footer, part, tensor

LOGICAL = ("bool", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
           "float4_e2m1fn", "complex64", "complex128")  # fmt: skip
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)


def manifest_of(data: bytes) -> dict[str, Any]:
    offset, length = (int.from_bytes(data[at : at + 8], "little") for at in (len(data) - 40, len(data) - 32))
    return cbor2.loads(data[offset : offset + length])


@given(
    st.dictionaries(names, arrays, max_size=4),
    st.sampled_from([None, "zstd"]),
    st.sampled_from([None, "xxh3", "sha256"]),
)
@settings(max_examples=40, deadline=None)
def test_round_trip(tensors: dict[str, Any], compression: str | None, checksum: str | None) -> None:
    data = tg.dumps(tensors, format="ztensor@2", compression=compression, checksum=checksum)
    canonical = compression is None and checksum == "xxh3" and all(map(_nfc, tensors))
    with tg.open(data, verify="auto" if checksum is None else "require", strict=canonical) as archive:
        assert set(archive) == set(tensors)
        assert {(tensor.checksum or ":").split(":")[0] or None for tensor in archive.values()} <= {checksum}
        assert all(
            equal(archive[name].numpy(), np.ascontiguousarray(a).reshape(a.shape)) for name, a in tensors.items()
        )
    shuffled = dict(reversed(tensors.items()))
    assert tg.dumps(shuffled, format="ztensor@2", compression=compression, checksum=checksum) == data
    report = tg.verify(data, deep=True)
    assert report.ok
    assert report.canonical == canonical or not tensors


def _nfc(name: str) -> bool:
    return unicodedata.is_normalized("NFC", name)


@pytest.mark.parametrize("name", LOGICAL)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_logical_types(name: str, compression: str | None) -> None:
    for shape in ((3, 5), (2, 4), (), (0, 2)):
        array = sample(name, shape)
        with tg.open(tg.dumps({"w": array}, format="ztensor@2", checksum="xxh3", compression=compression)) as archive:
            assert equal(archive["w"].numpy(), array)
            assert tg.dumps(archive, format="ztensor@2", checksum="xxh3", compression=compression) == tg.dumps(
                {"w": array}, format="ztensor@2", checksum="xxh3", compression=compression
            )


@pytest.mark.parametrize("name", ["int4", "uint2", "float6_e2m3fn", "float8_e3m4"])
def test_types_that_it_lacks_are_refused_by_name(name: str) -> None:
    with pytest.raises(tg.UnsupportedError, match=name) as caught:
        tg.dumps({"w": sample(name)}, format="ztensor@2", checksum="xxh3")
    assert caught.value.tensor == "w"


def test_an_empty_file_has_65586_bytes() -> None:
    data = tg.dumps({}, format="ztensor@2", checksum="xxh3")
    assert len(data) == 65_586
    assert tg.open(data, strict=True).metadata is None
    assert tg.open(tg.dumps({}, format="ztensor@2", checksum="xxh3", metadata={}), strict=True).metadata == {}


def test_equal_contents_are_stored_once() -> None:
    array = np.arange(8, dtype=np.float32)
    data = tg.dumps(
        {"a": array, "b": array.view(np.int32), "c": array + 1, "e": np.zeros(0)}, format="ztensor@2", checksum="xxh3"
    )
    blobs = {name: thing["parts"]["data"]["blob"] for name, thing in manifest_of(data)["objects"].items()}
    assert blobs["a"] == blobs["b"] == [65536, 32]
    assert blobs["c"] == [131072, 32]
    assert blobs["e"] == [196608, 0]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025])
def test_names_that_it_cannot_have(name: str) -> None:
    with pytest.raises(tg.UnsupportedError, match=r"rule ztensor\.write\.name"):
        tg.dumps({name: np.arange(3)}, format="ztensor@2", checksum="xxh3")
    with pytest.raises(tg.UnsupportedError, match=r"rule ztensor\.write\.name"):
        tg.dumps({"w": np.arange(3)}, format="ztensor@2", checksum="xxh3", attributes={"w": {name: 1}})


def test_attributes_and_metadata() -> None:
    attributes = {"w": {"b": [1, {"c": None}], "a": -1.5, "n": b"\0"}}
    metadata = {"framework": "x", "z": {"y": [True, 2**63]}}
    data = tg.dumps({"w": np.arange(3)}, format="ztensor@2", checksum="xxh3", attributes=attributes, metadata=metadata)
    with tg.open(data, strict=True) as archive:
        assert archive.attributes == attributes
        assert archive.metadata == metadata
    nested: Any = 1
    for _ in range(40):
        nested = [nested]
    with pytest.raises(tg.UnsupportedError, match="'a': nested deeper"):
        tg.dumps({"w": np.arange(3)}, format="ztensor@2", checksum="xxh3", metadata={"a": nested})


def test_attributes_are_as_deep_as_a_reader_accepts() -> None:
    def nested(depth: int) -> Any:
        return 1 if depth == 0 else [nested(depth - 1)]

    for depth in range(20, 40):
        for kind in ("metadata", "attributes"):
            value: Any = {"a": nested(depth)}
            try:
                given: dict[str, Any] = {kind: value if kind == "metadata" else {"w": value}}
                data = tg.dumps({"w": np.arange(3)}, format="ztensor@2", checksum="xxh3", **given)
            except (tg.InputError, tg.UnsupportedError):
                assert depth > 27
                continue
            tg.open(data, strict=True)


def test_large_metadata_is_read_when_it_is_wanted() -> None:
    metadata = {f"key {i}": i for i in range(1000)}
    archive = tg.open(tg.dumps({}, format="ztensor@2", checksum="xxh3", metadata=metadata))
    assert archive.metadata == metadata
    assert dict(archive.metadata) == metadata
    assert json.loads(json.dumps(dict(archive.metadata))) == metadata


def test_seekable_frames() -> None:
    array = np.random.default_rng(0).integers(0, 9, (3000, 1000), np.int32)
    data = tg.dumps({"w": array}, format="ztensor@2", checksum="xxh3", compression="zstd")
    (row,) = (thing["parts"]["data"] for thing in manifest_of(data)["objects"].values())
    assert (row["encoding"], row["decoded_length"]) == ("zt.zstd-seekable/1", array.nbytes)
    assert row["digest"] == f"xxh3:{xxhash.xxh3_64_hexdigest(array)}"
    with tg.open(data) as archive:
        assert np.array_equal(archive["w"][1234:1300, ::7], array[1234:1300, ::7])
        assert equal(archive["w"].numpy(), array)


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ((100, 90, 100), "zstd.seek.equal"),
        ((100, 101), "zstd.seek.equal"),
        (((16 << 20) + 1,), "zstd.seek.large"),
        ((16 << 20, 5), None),
        ((100, 100, 1), None),
    ],
)
def test_frames_are_of_one_size_and_not_too_large(sizes: tuple[int, ...], rule: str | None) -> None:
    frames = [zstd.compress(bytes(size), level=1, checksum=True) for size in sizes]
    stream = b"".join(frames) + seek_table(zip(map(len, frames), sizes, strict=True))
    said = part(blob=[4096, len(stream)], encoding="zt.zstd-seekable/1", decoded_length=sum(sizes))
    data = file2({"objects": {"a": tensor(shape=[sum(sizes)], parts={"data": said})}}, stream)
    with tg.open(data) as archive:
        if rule is None:
            assert not archive["a"].numpy().any()
            return
        with pytest.raises(tg.FormatError) as caught:
            archive["a"].numpy()
    assert (caught.value.rule, caught.value.tensor, caught.value.offset) == (rule, "a", 4096)


def shard_of(root: Path, name: str, body: bytes) -> dict[str, Any]:
    """Writes a data shard beside a root, and returns what the root's table says of it."""
    data = b"\x89ZT2\r\n\x1a\n" + bytes(4088) + body + footer(0, b"", digest=0)
    root.with_name(f"{root.stem}-{name}.zt").write_bytes(data)
    return {"size": len(data), "digest": f"sha256:{hashlib.sha256(data).hexdigest()}"}


def test_shards(tmp_path: Path) -> None:
    root = tmp_path / "model.zt"
    table = {"00001": shard_of(root, "00001", b"abcd"), "b.x": shard_of(root, "b.x", b"efgh")}
    objects = {
        "own": tensor(),
        "one": tensor(parts={"data": part(shard="00001")}),
        "two": tensor(parts={"data": part(shard="b.x", digest=f"xxh3:{xxhash.xxh3_64_hexdigest(b'efgh')}")}),
    }
    root.write_bytes(file2({"objects": objects, "shards": table}, b"ijkl"))
    for backend in ("pread", "mmap"):
        with tg.open(root, backend=backend, verify="auto") as archive:
            read = {name: archive[name].numpy().tobytes() for name in archive}
        assert read == {"own": b"ijkl", "one": b"abcd", "two": b"efgh"}
    assert {name: array.tobytes() for name, array in tg.load(root).items()} == read
    assert tg.verify(root, deep=True).ok
    with tg.open(root) as archive:
        assert tg.loads(tg.dumps(archive, format="ztensor@2", checksum="xxh3"))["one"].tobytes() == b"abcd"
        assert tg.loads(tg.dumps(archive, format="ztensor"))["two"].tobytes() == b"efgh"
    with tg.open(root.read_bytes()) as archive:
        assert archive["own"].numpy().tobytes() == b"ijkl"
        with pytest.raises(tg.UnsupportedError, match="by its path"):
            archive["one"].numpy()

    changed = bytearray((tmp_path / "model-00001.zt").read_bytes())
    changed[4100] ^= 1
    (tmp_path / "model-00001.zt").write_bytes(changed)
    assert [problem.rule for problem in tg.verify(root, deep=True).problems] == ["ztensor.shard.digest"]
    (tmp_path / "model-00001.zt").write_bytes(changed[:-1])
    with tg.open(root) as archive:
        assert archive["two"].numpy().tobytes() == b"efgh"
        with pytest.raises(tg.IntegrityError) as caught:
            archive["one"].numpy()
        assert caught.value.rule == "ztensor.shard.size"
    (tmp_path / "model-00001.zt").unlink()
    with tg.open(root) as archive:
        assert archive["two"].numpy().tobytes() == b"efgh"
        with pytest.raises(tg.FormatError) as missing:
            archive["one"].numpy()
    assert (missing.value.rule, missing.value.path) == ("ztensor.shard.missing", str(tmp_path / "model-00001.zt"))
    for deep in (False, True):
        problems = tg.verify(root, deep=deep).problems
        assert {problem.rule for problem in problems} == {"ztensor.shard.missing"}
        assert all("model-00001.zt" in problem.message for problem in problems)


def test_a_file_that_was_appended_to() -> None:
    first = file2({"objects": {"old": tensor()}}, b"abcd")
    start = first + bytes(-len(first) % 4096)
    manifest = encoded(
        deterministic({"objects": {"old": tensor(), "new": tensor(parts={"data": part(blob=[len(start), 4])})}})
    )
    data = start + b"efgh" + bytes(4092)
    data += manifest + footer(len(data), manifest)
    with tg.open(data) as archive:
        assert {name: archive[name].numpy().tobytes() for name in archive} == {"old": b"abcd", "new": b"efgh"}
    with pytest.raises(tg.FormatError, match=r"rule ztensor\.strict\.digest"):
        tg.open(data, strict=True)
    with pytest.raises(tg.FormatError, match=r"rule ztensor\.footer\.magic"):
        tg.open(data[:-1])


def test_the_content_digest_is_of_the_tensors_alone() -> None:
    tensors = {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 2), ml_dtypes.bfloat16), "c": np.array([True])}
    attributes = {"a": {"k": [1]}}
    plain = tg.dumps(tensors, format="ztensor@2", checksum="xxh3", attributes=attributes)
    squeezed = tg.dumps(
        dict(reversed(tensors.items())), format="ztensor@2", checksum="xxh3", attributes=attributes, compression="zstd"
    )
    digest = tg.verify(plain).content_digest
    assert digest == tg.verify(squeezed).content_digest
    said = {
        name: {
            "shape": thing["shape"],
            "layout": thing["layout"],
            "parts": {n: {k: p[k] for k in ("dtype", "type", "digest") if k in p} for n, p in thing["parts"].items()},
        }
        | ({"attributes": thing["attributes"]} if "attributes" in thing else {})
        for name, thing in manifest_of(plain)["objects"].items()
    }
    expected = encoded(["zt.content/1", deterministic(said)])
    assert digest == f"sha256:{hashlib.sha256(expected).hexdigest()}"
    others = [
        {**tensors, "a": tensors["a"] + 1},
        {"a": tensors["a"], "b": tensors["b"], "d": tensors["c"]},
        {**tensors, "b": tensors["b"].reshape(4)},
        {**tensors, "a": tensors["a"].view(np.int32)},
    ]
    found = {
        tg.verify(tg.dumps(other, format="ztensor@2", checksum="xxh3", attributes=attributes)).content_digest
        for other in others
    }
    assert len(found) == 4
    assert digest not in found
    assert tg.verify(file2({"objects": {"a": tensor()}})).content_digest is None


def test_strict_accepts_one_byte_string() -> None:
    array = np.arange(5, dtype=np.int16)
    data = tg.dumps({"w": array}, format="ztensor@2", checksum="xxh3", metadata={"m": 1}, attributes={"w": {"a": 1}})
    tg.open(data, strict=True)
    interesting = [*range(64), *range(65536 - 40, 65536 + 60), *range(131072 - 40, len(data))]
    for position in interesting:
        changed = bytearray(data)
        changed[position] ^= 1
        if 131072 <= position < len(data) - 40:
            manifest = bytes(changed[131072:-40])
            changed[-40:] = footer(131072, manifest)
        try:
            archive = tg.open(bytes(changed), strict=True, verify="never")
        except tg.FormatError:
            continue
        same = "w" in archive and archive["w"].layout == "dense" and equal(archive["w"].numpy(), array)
        said = archive.metadata == {"m": 1} and archive.attributes == {"w": {"a": 1}}
        checksum = "w" in archive and archive["w"].checksum == tg.open(data)["w"].checksum
        assert not (same and said and checksum), position


def test_unknown_layouts_keep_their_structure() -> None:
    data = file2(
        {
            "objects": {
                "layout": tensor(
                    layout="x.y/1", parts={"b": part(dtype="u16"), "a": part(type="q.z")}, attributes={"k": 1}
                ),
                "type": tensor(parts={"data": part(type="my.type")}),
                "encoding": tensor(parts={"data": part(encoding="x.z/1", decoded_length=4, digest="xxh3:00")}),
            }
        }
    )
    with tg.open(data) as archive:
        assert archive["layout"].parts["b"].array().tolist() == [0x6261, 0x6463]
        again = tg.dumps(archive, format="ztensor@2", checksum="xxh3")
    kept, old = manifest_of(again)["objects"], manifest_of(data)["objects"]
    for name in old:
        assert kept[name]["layout"] == old[name]["layout"]
        assert kept[name].get("attributes") == old[name].get("attributes")
        for part_name, one in old[name]["parts"].items():
            two = kept[name]["parts"][part_name]
            assert [two.get(k) for k in ("dtype", "type", "encoding", "decoded_length")] == [
                one.get(k) for k in ("dtype", "type", "encoding", "decoded_length")
            ]
            begin, length = two["blob"]
            assert again[begin : begin + length] == b"abcd"


def test_an_edit_in_place_leaves_tensors_of_shards_where_they_are(tmp_path: Path) -> None:
    root = tmp_path / "model.zt"
    table = {"00001": shard_of(root, "00001", b"abcd")}
    objects = {"own": tensor(), "one": tensor(parts={"data": part(shard="00001")})}
    root.write_bytes(file2({"objects": objects, "shards": table}, b"ijkl"))
    shard = (tmp_path / "model-00001.zt").read_bytes()
    done = tg.edit(root, {"step": 3}, replace={"own": np.frombuffer(b"mnop", np.uint8)}, in_place=True)
    assert done.in_place
    assert {name: array.tobytes() for name, array in tg.load(root).items()} == {"one": b"abcd", "own": b"mnop"}
    assert (tmp_path / "model-00001.zt").read_bytes() == shard
    assert tg.verify(root, deep=True).ok


def test_a_shard_with_a_digest_that_nobody_here_knows(tmp_path: Path) -> None:
    root = tmp_path / "model.zt"
    table = {"00001": {**shard_of(root, "00001", b"abcd"), "digest": "md5:00"}}
    root.write_bytes(file2({"objects": {"one": tensor(parts={"data": part(shard="00001")})}, "shards": table}, b""))
    assert tg.load(root)["one"].tobytes() == b"abcd"
    assert tg.verify(root, deep=True).ok


@pytest.mark.parametrize(
    ("attributes", "rule"),
    [
        ({"": 1}, "ztensor.name.form"),
        ({"x" * 1025: 1}, "ztensor.name.form"),
        ({"a\0b": 1}, "ztensor.name.form"),
        ([1], "ztensor.entry.kind"),
    ],
)
def test_attributes_of_the_file_have_names(attributes: Any, rule: str) -> None:
    with pytest.raises(tg.FormatError) as caught:
        tg.open(file2({"attributes": attributes, "objects": {"t": tensor()}}))
    assert caught.value.rule == rule


@pytest.mark.parametrize("digest", [f"md5:{'0' * 300}", f"md5:{'0' * 30}"])
def test_digests_of_any_length_are_listed(digest: str) -> None:
    objects = {name: tensor(parts={"data": part(digest=digest)}) for name in ("t", "u")}
    with tg.open(file2({"objects": objects}, b"abcd")) as archive:
        assert [held.checksum for held in archive.values()] == [digest, digest]
        assert tg.verify(archive, deep=True).unverified == ("t", "u")
