"""GGUF written: types of metadata, plain tensors and blocks, rounding as the gguf package does, refusals."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
import ztensor_builder as zt
from gguf_builder import build, pair, string, tensor
from peers import needs
from tensorglot.containers.gguf.encode import ENCODERS
from tensorglot.containers.gguf.tensors import DTYPES

U8, I8, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = 0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12


def kinds(metadata: dict[str, Any]) -> bytes:
    """The pairs of the header that metadata is written as."""
    data = tg.dumps({}, format="gguf", metadata=metadata)
    return data[24:].rstrip(b"\0") if metadata else b""


def packed(kind: int, code: str, value: Any) -> bytes:
    return pair("k", kind, struct.pack(f"<{code}", value))


CHOSEN: dict[str, tuple[Any, bytes]] = {
    "a natural number": (5, packed(U32, "I", 5)),
    "a negative one": (-5, packed(I32, "i", -5)),
    "2**32 - 1": (2**32 - 1, packed(U32, "I", 2**32 - 1)),
    "2**32": (2**32, packed(U64, "Q", 2**32)),
    "-2**31 - 1": (-(2**31) - 1, packed(I64, "q", -(2**31) - 1)),
    "a number of single precision": (0.5, packed(F32, "f", 0.5)),
    "one of double precision": (0.1, packed(F64, "d", 0.1)),
    "a bool": (True, packed(BOOL, "?", True)),
    "text": ("é", pair("k", STRING, string("é"))),
    "bytes": (b"\xff", pair("k", STRING, string(b"\xff"))),
    "NumPy's uint8": (np.uint8(1), packed(U8, "B", 1)),
    "NumPy's int8": (np.int8(-1), packed(I8, "b", -1)),
    "NumPy's float32": (np.float32(0.1), packed(F32, "f", 0.1)),
    "NumPy's int64": (np.int64(1), packed(I64, "q", 1)),
    "integers": ([1, -2], pair("k", ARRAY, struct.pack("<IQ2i", I32, 2, 1, -2))),
    "large integers": ([1, 2**31], pair("k", ARRAY, struct.pack("<IQ2I", U32, 2, 1, 2**31))),
    "larger ones": ([-1, 2**31], pair("k", ARRAY, struct.pack("<IQ2q", I64, 2, -1, 2**31))),
    "floats": ([0.5, 1.5], pair("k", ARRAY, struct.pack("<IQ2f", F32, 2, 0.5, 1.5))),
    "texts": (["a", "bc"], pair("k", ARRAY, struct.pack("<IQ", STRING, 2) + string("a") + string("bc"))),
    "bools": ([True, True], pair("k", ARRAY, struct.pack("<IQ2?", BOOL, 2, True, True))),
    "an array": (np.array([1, 2], np.uint8), pair("k", ARRAY, struct.pack("<IQ2B", U8, 2, 1, 2))),
    "a tuple": ((1, 2), pair("k", ARRAY, struct.pack("<IQ2i", I32, 2, 1, 2))),
}


@pytest.mark.parametrize("what", CHOSEN)
def test_types_are_chosen_by_the_value(what: str) -> None:
    value, expected = CHOSEN[what]
    assert kinds({"k": value}).ljust(len(expected), b"\0") == expected


READ = [
    pair("u8", U8, b"\x05"), pair("i8", I8, b"\x05"), pair("u16", 2, b"\x05\0"), pair("i16", 3, b"\x05\0"),
    pair("i32", I32, struct.pack("<i", 5)), pair("u64", U64, struct.pack("<Q", 5)), pair("f64", F64, bytes(8)),
    pair("i64s", ARRAY, struct.pack("<IQ2q", I64, 2, 1, 2)), pair("f64s", ARRAY, struct.pack("<IQd", F64, 1, 0.5)),
    pair("no texts", ARRAY, struct.pack("<IQ", STRING, 0)), pair("no bytes", ARRAY, struct.pack("<IQ", U8, 0)),
    pair("nested", ARRAY, struct.pack("<IQ", ARRAY, 2) + struct.pack("<IQ2B", U8, 2, 1, 2) + struct.pack("<IQ", U8, 0)),
    pair("no arrays", ARRAY, struct.pack("<IQ", ARRAY, 0)), pair("bools", ARRAY, struct.pack("<IQ?", BOOL, 1, True)),
]  # fmt: skip


def test_types_survive_a_read_and_a_write(tmp_path: Path) -> None:
    data = build(pairs=READ)
    data += bytes(-len(data) % 32)
    with tg.open(data, strict=True) as archive:
        assert tg.dumps(archive, format="gguf") == data
        assert archive.metadata is not None
        assert tg.dumps({}, format="gguf", metadata=dict(archive.metadata)) == data
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    tg.edit(path, {"new": 1})
    tg.edit(path, remove=["new"])
    assert path.read_bytes() == data


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "bool": ({"x": np.ones(2, np.bool_)}, {}, "gguf.write.dtype"),
    "uint8": ({"x": np.ones(2, np.uint8)}, {}, "gguf.write.dtype"),
    "float8": ({"x": np.ones(2, ml_dtypes.float8_e5m2)}, {}, "gguf.write.dtype"),
    "five dimensions": ({"x": np.ones((1,) * 5)}, {}, "gguf.write.rank"),
    "a long name": ({"n" * 64: np.ones(1)}, {}, "gguf.write.name"),
    "missing metadata": ({}, {"k": None}, "gguf.write.metadata"),
    "a map as metadata": ({}, {"k": {"a": 1}}, "gguf.write.metadata"),
    "a mixed array": ({}, {"k": [1, "a"]}, "gguf.write.metadata"),
    "an integer of 65 bits": ({}, {"k": 2**64}, "gguf.write.metadata"),
    "an array in complex numbers": ({}, {"k": np.ones(1, np.complex64)}, "gguf.write.metadata"),
    "alignment 33": ({}, {"general.alignment": 33}, "gguf.write.alignment"),
    "bytes that are text": ({}, {"k": b"abc"}, "gguf.write.metadata"),
    "texts and bytes that are text": ({}, {"k": ["a", b"b"]}, "gguf.write.metadata"),
    "a bytearray": ({}, {"k": bytearray(b"\xff")}, "gguf.write.metadata"),
    "deep arrays": ({}, {"k": [[[[[[[[[1]]]]]]]]]}, "gguf.write.metadata"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_written_is_refused(what: str) -> None:
    tensors, metadata, rule = REFUSED[what]
    with pytest.raises(tg.TensorglotError) as caught:
        tg.dumps(tensors, format="gguf", metadata=metadata)
    assert caught.value.rule == rule


def carried(layout: str, shape: list[int], nbytes: int, dtype: str = "u8") -> bytes:
    """A zTensor file with one tensor of a layout."""
    part = zt.part(dtype=dtype, blob=[4096, nbytes])
    return zt.file2({"objects": {"x": zt.tensor({"data": part}, shape=shape, layout=layout)}}, bytes(nbytes))


@pytest.mark.parametrize(("layout", "shape", "nbytes", "rule"), [
    ("gguf.Q4_0", [32], 17, "gguf.write.blocks"),
    ("gguf.Q4_0", [33], 18, "gguf.write.blocks"),
    ("gguf.Q4_0", [], 18, "gguf.write.blocks"),
    ("gguf.Q9_9", [32], 18, "gguf.write.layout"),
])  # fmt: skip
def test_blocks_of_another_file_must_be_those_of_the_shape(
    layout: str, shape: list[int], nbytes: int, rule: str, tmp_path: Path
) -> None:
    with tg.open(carried(layout, shape, nbytes)) as archive:
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.save(tmp_path / "x.gguf", archive)
        assert caught.value.rule == rule
        with pytest.raises(tg.TensorglotError) as caught_too:
            archive["x"].dequantize()
        assert caught_too.value.rule in ("gguf.shape.blocks", "gguf.dequantize")
    right = tg.open(carried("gguf.Q4_0", [2, 32], 36))
    tg.save(tmp_path / "x.gguf", right)
    assert tg.open(tmp_path / "x.gguf")["x"].dequantize().tolist() == right["x"].dequantize().tolist()


def test_a_type_of_the_future_in_another_file() -> None:
    """Its number means nothing there."""
    data = zt.file01([zt.entry("x", dtype="ggml type 99", size=4, shape=[4])])
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.dumps(tg.open(data), format="gguf")
    assert caught.value.rule == "gguf.write.dtype"


def test_metadata_that_cannot_be_written_is_a_named_loss(tmp_path: Path) -> None:
    data = tg.dumps({"x": np.ones(2)}, format="ztensor", metadata={"a": 1, "b": {"c": None}, "d": b"abc"})
    with pytest.raises(tg.UnsupportedError, match="'b'"):
        tg.convert(data, tmp_path / "x.gguf")
    tg.convert(data, tmp_path / "x.gguf", on_loss="drop")
    assert tg.open(tmp_path / "x.gguf").metadata == {"a": 1}


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_plain_tensors(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    values = {"a": np.arange(6).astype(kind).reshape(2, 3), "none": np.zeros((0, 4), kind), "one": np.ones((), kind)}
    data = tg.dumps(values, format="gguf")
    loaded = tg.loads(data, strict=True)
    for name, value in values.items():
        assert loaded[name].dtype == kind
        assert loaded[name].shape == value.shape
        assert (loaded[name] == value).all()


def test_big_endian_files_become_little_endian() -> None:
    data = build([tensor("x", (3,), 0, 0, ">")], data=struct.pack(">3f", 1, 2, 3), order=">")
    with tg.open(data) as archive:
        assert tg.loads(tg.dumps(archive, format="gguf"))["x"].tolist() == [1, 2, 3]


def test_blocks_and_types_of_the_future_are_copied() -> None:
    tensors = [tensor("q", (256,), 12, 0), tensor("new", (5,), 999, 160), tensor("f", (2,), 0, 192)]
    data = build(tensors, data=bytes(range(144)) + bytes(16) + b"n" * 32 + struct.pack("<2f", 1, 2) + bytes(24))
    with tg.open(data) as archive:
        assert tg.dumps(archive, format="gguf") == data
        through = tg.dumps({name: archive[name] for name in ("q", "f")}, format="ztensor")
    with tg.open(through) as archive:
        assert tg.open(tg.dumps(archive, format="gguf"))["q"].parts["data"].array().tobytes() == bytes(range(144))


def sample(seed: int, scale: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((48, 96)) * scale).astype(np.float32)
    values[0] = 0
    values[1] = scale
    values[2, ::2] *= -1
    values[3] = np.rint(values[3])
    values[4] = -np.abs(values[4])
    values[5] = np.arange(96) * np.float32(scale)
    values[6, 5] = values[6, 9] = 3 * scale  # ties of magnitude, both signs
    values[6, 7] = -3 * scale
    return values


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 600.0, 1e-7, 1e-20, 2.0**-130])
def test_rounding_is_that_of_the_package(name: str, scale: float, tmp_path: Path) -> None:
    gguf = needs("gguf")
    kind = gguf.GGMLQuantizationType[name]
    values = sample(ord(name[1]) + ord(name[3]), scale)
    with np.errstate(all="ignore"):
        blocks = gguf.quants.quantize(values, kind)
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "test")
    writer.add_tensor("w", blocks, raw_dtype=kind)
    writer.add_tensor("b", values[3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tg.save(tmp_path / "x.safetensors", {"w": values, "b": values[3]})
    metadata = {"general.architecture": "test"}
    tg.convert(tmp_path / "x.safetensors", tmp_path / "ours.gguf", quantize=name.lower(), metadata=metadata, select="*")
    with tg.open(tmp_path / "ours.gguf") as ours, tg.open(tmp_path / "theirs.gguf") as theirs:
        for tensor_name in ("w", "b"):
            one, other = (archive[tensor_name].parts["data"].array() for archive in (ours, theirs))
            assert one.tobytes() == other.tobytes()
    reader = gguf.GGUFReader(tmp_path / "ours.gguf")
    assert {held.name: held.tensor_type.name for held in reader.tensors} == {"w": name, "b": "F32"}


def test_a_file_is_byte_for_byte_that_of_the_package(tmp_path: Path) -> None:
    gguf = needs("gguf")
    writer = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    writer.add_uint32("llama.context_length", 4096)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_uint64("big", 1)
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "é"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.25])
    writer.add_custom_alignment(64)
    arrays: dict[str, Any] = {
        "token_embd.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "norm": np.ones(5, np.float16),
        **{kind: np.arange(-3, 4).astype(kind) for kind in ("int8", "int16", "int32", "int64", "float64")},
    }  # fmt: skip
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    arrays["bf16"] = np.arange(10).reshape(2, 5).astype(ml_dtypes.bfloat16)
    writer.add_tensor("bf16", arrays["bf16"].view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = {
        "general.architecture": "llama", "llama.context_length": 4096, "llama.rope.freq_base": 10000.0,
        "big": np.uint64(1), "tokenizer.ggml.tokens": ["<s>", "é"], "tokenizer.ggml.scores": [0.5, -1.25],
        "general.alignment": 64,
    }  # fmt: skip
    tg.save(tmp_path / "ours.gguf", arrays, metadata=metadata)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()
