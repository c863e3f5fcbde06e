"""zTensor beside the real packages: 0.1.4, 1.2.3 and 2.1.2, both ways, values and bytes.

Values travel as a folder of raw bytes and a JSON list of them, which any of the
environments can read.
"""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse

import tensorglot as tg
from peers import run
from tensorglot.containers.ztensor import dtypes_in
from tensorglot.containers.ztensor.constants import LOGICAL_2, STORAGE_2
from tensorglot.model.dtypes import BY_NAME

pytestmark = pytest.mark.peers

SHARED = """
import json, sys, pathlib
import ml_dtypes, numpy as np
folder = pathlib.Path(sys.argv[1])
listed = json.loads((folder / "list.json").read_text())
def given():
    for i, row in enumerate(listed):
        data = (folder / f"{i}.bin").read_bytes()
        kind = np.dtype(getattr(ml_dtypes, row["dtype"], None) or row["dtype"])
        yield row["name"], np.frombuffer(data, kind).reshape(row["shape"])
def same(name, array, expected):
    assert array.dtype == expected.dtype, (name, array.dtype, expected.dtype)
    assert tuple(array.shape) == expected.shape, (name, array.shape)
    assert array.tobytes() == expected.tobytes(), name
"""
READ_01 = (
    SHARED
    + """
import ztensor
reader = ztensor.Reader(sys.argv[2])
assert len(reader) == len(listed)
for name, expected in given():
    same(name, np.array(reader.read_tensor(name)), expected)
print("ok")
"""
)
WRITE_01 = (
    SHARED
    + """
import ztensor
writer = ztensor.Writer(sys.argv[2])
for name, array in given():
    writer.add_tensor(name, array)
writer.finalize()
"""
)
READ_1 = (
    SHARED
    + """
import ztensor
reader = ztensor.Reader(sys.argv[2])
assert sorted(reader.keys()) == sorted(row["name"] for row in listed)
for name, expected in given():
    array = np.array(reader.read_numpy(name))
    same(name, array if expected.shape else array.reshape(()), expected)  # to this package a scalar has one dimension
print("ok")
"""
)
WRITE_1 = (
    SHARED
    + """
import ztensor
with ztensor.Writer(sys.argv[2]) as writer:
    for i, (name, array) in enumerate(given()):
        writer.write_numpy(name, array, compress=bool(i % 2), checksum=("none", "crc32c", "sha256")[i % 3])
"""
)
CODES = """
codes = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
         "int16": "i16", "int8": "i8", "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8"}
logical = {"bool": ("u8", "bool"), "float8_e4m3fn": ("u8", "f8_e4m3fn"), "float8_e5m2": ("u8", "f8_e5m2"),
           "complex64": ("f32", "complex64"), "complex128": ("f64", "complex128")}
def words(dtype):
    return (codes[dtype], None) if dtype in codes else logical[dtype]
"""
READ_2 = (
    SHARED
    + CODES
    + """
import ztensor
source = ztensor.open(sys.argv[2])
assert sorted(source.keys()) == sorted(row["name"] for row in listed)
for name, expected in given():
    tensor = source[name]
    assert (tensor.dtype, tensor.logical) == words(expected.dtype.name), name
    assert tuple(tensor.shape) == expected.shape
    assert tensor.tobytes() == expected.tobytes(), name
print(json.dumps(list(ztensor.verify(sys.argv[2], deep=True))))
"""
)
WRITE_2 = (
    SHARED
    + CODES
    + """
import ztensor
options = json.loads(sys.argv[3])
encoding = options.pop("encoding", None)
attributes = options.pop("attributes", None)
writer = ztensor.Writer(sys.argv[2], **options)
if attributes is not None:
    writer.set_attributes(attributes)
for name, array in sorted(given(), key=lambda pair: pair[0].encode()):
    dtype, kind = words(array.dtype.name)
    writer.add(name, array.tobytes(), list(array.shape), dtype, logical=kind, encoding=encoding)
writer.finish()
"""
)

COMMON = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16",
          "uint8", "bool"]  # fmt: skip
MORE = ["float8_e4m3fn", "float8_e5m2", "complex64", "complex128"]


def random_tensors(seed: int, kinds: list[str], count: int = 40, scalars: bool = True) -> dict[str, Any]:
    """Any bits of any shape, names of any kind, and a tensor of several frames.

    The writers of 0.1.4 and 1.2.3 make one dimension of none: their files have no scalars.
    """
    rng = np.random.default_rng(seed)
    tensors = {}
    for i in range(count):
        kind = np.dtype(getattr(ml_dtypes, str(kinds[i % len(kinds)]), None) or kinds[i % len(kinds)])
        shape = tuple(rng.integers(0 if i % 5 == 0 else 1, 9, rng.integers(0 if scalars else 1, 4)).tolist())
        nbytes = int(np.prod(shape)) * kind.itemsize
        bits = rng.integers(0, 2 if kind == np.bool_ else 256, nbytes, np.uint8)
        tensors[f"{('w', '层.权重', 'é/x', 'a b')[i % 4]}.{rng.integers(1000)}.{i}"] = bits.view(kind).reshape(shape)
    tensors["large"] = rng.integers(0, 9, (5 << 20) // 4, np.int32)
    return tensors


def listed(folder: Path, tensors: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [{"name": name, "dtype": a.dtype.name, "shape": list(a.shape)} for name, a in tensors.items()]
    (folder / "list.json").write_text(json.dumps(rows))
    for i, array in enumerate(tensors.values()):
        (folder / f"{i}.bin").write_bytes(array.tobytes())
    return folder


def check(loaded: dict[str, Any], tensors: dict[str, Any]) -> None:
    assert set(loaded) == set(tensors)
    for name, expected in tensors.items():
        assert loaded[name].dtype == expected.dtype, name
        assert loaded[name].shape == expected.shape, name
        assert loaded[name].tobytes() == expected.tobytes(), name


OPTIONS_01 = [
    {},
    {"compression": "zstd"},
    {"compression": "zstd", "level": 7, "checksum": "frame"},
    {"checksum": "crc32c"},
    {"checksum": "sha256"},
    {"compression": "zstd", "checksum": "crc32c"},
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("options", OPTIONS_01, ids=[str(list(options.values())) for options in OPTIONS_01])
def test_0_1_is_read_by_0_1_4_and_1_2_3(seed: int, options: dict[str, Any], tmp_path: Path) -> None:
    tensors = random_tensors(seed, COMMON)
    folder = listed(tmp_path / "values", tensors)
    tg.save(tmp_path / "a.zt", tensors, durable=False, **options)
    assert run("zt01", READ_01, folder, tmp_path / "a.zt") == "ok\n"
    assert run("zt1", READ_1, folder, tmp_path / "a.zt") == "ok\n"


@pytest.mark.parametrize("seed", range(3))
def test_0_1_4_is_read_and_written_byte_for_byte(seed: int, tmp_path: Path) -> None:
    tensors = random_tensors(seed, COMMON, 60, scalars=False)
    run("zt01", WRITE_01, listed(tmp_path / "values", tensors), tmp_path / "theirs.zt")
    check(tg.load(tmp_path / "theirs.zt", strict=True), tensors)
    tg.save(tmp_path / "ours.zt", tensors, durable=False, checksum=None)
    assert (tmp_path / "ours.zt").read_bytes() == (tmp_path / "theirs.zt").read_bytes()


@pytest.mark.parametrize("seed", range(2))
def test_1_2_3_is_read(seed: int, tmp_path: Path) -> None:
    tensors = random_tensors(seed, COMMON, scalars=False)
    run("zt1", WRITE_1, listed(tmp_path / "values", tensors), tmp_path / "theirs.zt")
    check(tg.load(tmp_path / "theirs.zt", verify="auto"), tensors)
    report = tg.verify(tmp_path / "theirs.zt", deep=True)
    assert report.ok
    assert report.checksums > 20
    with tg.open(tmp_path / "theirs.zt") as archive:
        assert archive.format == "ztensor@1.2"
        tg.save(tmp_path / "ours.zt", archive, durable=False)
    check(tg.load(tmp_path / "ours.zt"), tensors)


def test_parts_of_0_1_are_ordinary_tensors_to_the_packages(tmp_path: Path) -> None:
    import scipy.sparse

    matrix = scipy.sparse.random_array((40, 30), density=0.1, dtype=np.float32, rng=np.random.default_rng(0)).tocsr()
    tg.save(
        tmp_path / "a.zt", {"m": matrix, "w": np.arange(4.0)}, metadata={"a": [1]}, attributes={"w": {"k": {"x": 1}}}
    )
    parts = {"__metadata__": np.zeros(0, np.uint8), "w": np.arange(4.0), "m#values": matrix.data,
             "m#indices": matrix.indices.astype("u4"), "m#indptr": matrix.indptr.astype("u4")}  # fmt: skip
    folder = listed(tmp_path / "values", parts)
    assert run("zt01", READ_01, folder, tmp_path / "a.zt") == "ok\n"
    assert run("zt1", READ_1, folder, tmp_path / "a.zt") == "ok\n"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options",
    [{"checksum": "xxh3"}, {"compression": "zstd", "checksum": "xxh3"}, {"checksum": "sha256"}],
    ids=["canonical", "zstd", "sha256"],
)
def test_2_is_read_by_2_1_2(seed: int, options: dict[str, Any], tmp_path: Path) -> None:
    tensors = random_tensors(seed, COMMON + MORE)
    tg.save(tmp_path / "a.zt", tensors, format="ztensor@2", durable=False, **options)
    assert run("zt2", READ_2, listed(tmp_path / "values", tensors), tmp_path / "a.zt") == f"[{len(tensors)}, 0]\n"


@pytest.mark.parametrize("seed", range(3))
def test_2_1_2_is_read_and_written_byte_for_byte(seed: int, tmp_path: Path) -> None:
    tensors = random_tensors(seed, COMMON + MORE)
    tensors["copy"] = tensors["large"].copy()
    folder = listed(tmp_path / "values", tensors)
    metadata = {"framework": "x", "z": {"b": [1, None, 0.5], "a": True}, "n": -(1 << 40)}
    run("zt2", WRITE_2, folder, tmp_path / "theirs.zt", json.dumps({"attributes": metadata}))
    check(tg.load(tmp_path / "theirs.zt", strict=True, verify="require"), tensors)
    tg.save(tmp_path / "ours.zt", tensors, format="ztensor@2", checksum="xxh3", metadata=metadata, durable=False)
    assert (tmp_path / "ours.zt").read_bytes() == (tmp_path / "theirs.zt").read_bytes()


OBJECTS_WRITE_2 = """
import base64, json, sys, ztensor
for one in json.load(open(sys.argv[1])):
    writer = ztensor.Writer(one["path"])
    if one["metadata"] is not None:
        writer.set_attributes(one["metadata"])
    for thing in sorted(one["objects"], key=lambda thing: thing["name"].encode()):
        parts = {name: {"dtype": dtype, "data": base64.b64decode(data), **({"logical": logical} if logical else {})}
                 for name, (dtype, logical, data) in thing["parts"].items()}
        writer.add_object(thing["name"], thing["shape"], parts, thing["layout"], thing["attributes"])
    writer.finish()
"""


def random_objects(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors of every type and layout that version 2 has, and attributes of some of them."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    for i in range(int(rng.integers(0, 14))):
        name = f"{rng.choice(['w', '层', 'é/x', 'a b', 'Z', 'aa', 'zz' * 20])}{i}"
        kind = rng.integers(0, 8)
        if kind < 4:
            dtype = BY_NAME[str(rng.choice(dtypes_in("2")))]
            shape = tuple(rng.integers(0, 5, rng.integers(0, 4)).tolist())
            bits = rng.integers(0, 2 if dtype.name == "bool" else 256, dtype.nbytes(math.prod(shape)), np.uint8)
            small = rng.integers(0, 4, shape).astype(dtype.numpy)
            tensors[name] = small if dtype.packed else bits.view(dtype.numpy).reshape(shape)
            if rng.random() < 0.4:
                attributes[name] = {"k": [1, {"z": None}], "é": float(rng.random()), "n": -int(rng.integers(1 << 40))}
        elif kind < 6:
            matrix = (rng.random((4, 6)) < 0.4) * rng.random((4, 6)).astype(np.float32)
            tensors[name] = (scipy.sparse.csr_array if kind == 4 else scipy.sparse.coo_array)(matrix)
        elif kind == 6:
            parts: dict[str, Any] = {"data": rng.integers(0, 4, (2, 32)).astype(ml_dtypes.float4_e2m1fn)}
            parts["scales"] = rng.integers(0, 256, 2, np.uint8).view(ml_dtypes.float8_e8m0fnu)
            tensors[name] = tg.Tensor.of_parts(name, "zt.mx/1", (2, 32), parts, {"block_size": 32})
        else:
            parts = {"data": rng.integers(0, 256, 16, np.uint8), "scales": rng.random(8).astype(np.float16)}
            said = {"bits": 4, "group_size": 4, "axis": 1, "scale_form": "f16_factors",
                    "packing": {"word": "u8", "per_word": 2, "order": "lsb_first"},
                    "zero_point": {"form": "implied", "value": 8}}  # fmt: skip
            tensors[name] = tg.Tensor.of_parts(name, "zt.quant_group/1", (4, 8), parts, said)
    return tensors, attributes


def test_canonical_files_of_every_type_and_layout_are_those_of_2_1_2(tmp_path: Path) -> None:
    words = {dtype: (code, None) for code, dtype in STORAGE_2.items()}
    words |= {dtype: (storage, code) for code, (dtype, storage) in LOGICAL_2.items()}
    theirs = []
    for seed in range(20):
        tensors, attributes = random_objects(seed)
        metadata = {"a": 1, "b": {"z": 1.5, "y": [True, None]}} if seed % 2 else None
        tg.save(
            tmp_path / f"{seed}.zt",
            tensors,
            format="ztensor@2",
            checksum="xxh3",
            attributes=attributes,
            metadata=metadata,
        )
        objects = [
            {"name": name, "shape": tensor.shape, "layout": tensor.layout,
             "attributes": dict(tensor.attributes) or None,
             "parts": {part: (*words[one.dtype], base64.b64encode(one.payload.read(0, one.nbytes)).decode())
                       for part, one in tensor.parts.items()}}
            for name, tensor in tg.open(tmp_path / f"{seed}.zt", strict=True).items()
        ]  # fmt: skip
        theirs.append({"path": str(tmp_path / f"their {seed}.zt"), "metadata": metadata, "objects": objects})
    (tmp_path / "list.json").write_text(json.dumps(theirs))
    run("zt2", OBJECTS_WRITE_2, tmp_path / "list.json")
    for seed in range(20):
        assert (tmp_path / f"{seed}.zt").read_bytes() == (tmp_path / f"their {seed}.zt").read_bytes(), seed
    assert {layout for one in theirs for layout in (thing["layout"] for thing in one["objects"])} == {
        "dense", "zt.sparse_csr/1", "zt.sparse_coo/1", "zt.mx/1", "zt.quant_group/1"
    }  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"canonical": False}, {"canonical": False, "align": 4096, "encoding": "zt.zstd-seekable/1"}]
)
def test_other_files_of_2_1_2_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    tensors = random_tensors(5, COMMON + MORE)
    run(
        "zt2",
        WRITE_2,
        listed(tmp_path / "values", tensors),
        tmp_path / "theirs.zt",
        json.dumps(options | {"canonical": False}),
    )
    check(tg.load(tmp_path / "theirs.zt", verify="require"), tensors)
    with tg.open(tmp_path / "theirs.zt") as archive:
        array = tensors["large"]
        assert np.array_equal(archive["large"][700_000:700_100], array[700_000:700_100])
        assert tg.verify(tmp_path / "theirs.zt", deep=True).ok


def test_files_edited_in_place_are_read_by_2_1_2(tmp_path: Path) -> None:
    tensors = random_tensors(7, COMMON, 10)
    (first, *_, last), path = tensors, tmp_path / "a.zt"
    tg.save(path, {name: array for name, array in tensors.items() if name != last}, format="ztensor@2")
    new = np.arange(5, dtype=np.float32)
    done = tg.edit(path, {"k": "v"}, replace={first: new}, add={last: tensors[last]}, in_place=True)
    assert done.in_place
    expected = {**tensors, first: new}
    assert run("zt2", READ_2, listed(tmp_path / "values", expected), path) == f"[{len(expected)}, 0]\n"


def test_appended_files_of_2_1_2_are_read(tmp_path: Path) -> None:
    tensors = random_tensors(6, COMMON, 10)
    first, second = dict(list(tensors.items())[:6]), dict(list(tensors.items())[6:])
    run("zt2", WRITE_2, listed(tmp_path / "one", first), tmp_path / "a.zt", json.dumps({"canonical": False}))
    append = json.dumps({"canonical": False, "append": True})
    run("zt2", WRITE_2, listed(tmp_path / "two", second), tmp_path / "a.zt", append)
    check(tg.load(tmp_path / "a.zt", verify="require"), tensors)


OBJECTS_2 = (
    SHARED
    + """
import ztensor
source = ztensor.open(sys.argv[2])
tensor = source["m"]
found = {part: [tensor[part].dtype, tensor[part].logical, list(tensor[part].tobytes())] for part in tensor.parts}
print(json.dumps({"layout": tensor.layout, "shape": list(tensor.shape), "parts": found}))
ztensor.verify(sys.argv[2], deep=True)
"""
)


def test_sparse_and_quantized_tensors_are_read_by_2_1_2(tmp_path: Path) -> None:
    folder = listed(tmp_path / "values", {})
    for name in ("csr", "coo", "mx", "quant_group"):
        theirs = Path(__file__).parent / "corpus" / "ztensor-2" / f"{name}.zt"
        with tg.open(theirs) as archive:
            (one,) = archive
            tg.save(tmp_path / "a.zt", {"m": archive[one]}, format="ztensor@2", checksum="xxh3")
            expected = {part: list(p.payload.read(0, p.nbytes)) for part, p in archive[one].parts.items()}
            found = json.loads(run("zt2", OBJECTS_2, folder, tmp_path / "a.zt"))
            assert (found["layout"], found["shape"]) == (archive[one].layout, list(archive[one].shape))
            assert {part: row[2] for part, row in found["parts"].items()} == expected
