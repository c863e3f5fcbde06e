"""GGUF: metadata, every tensor type listed, values equal to the gguf package's, hostile files."""

from __future__ import annotations

import math
import random
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from gguf_builder import build, pair, string, tensor
from peers import run
from tensorglot.containers.gguf.blocks import BLOCKS
from tensorglot.containers.gguf.tensors import DTYPES

DECODED = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"}
U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def number(code: str, value: Any, order: str = "<") -> bytes:
    return struct.pack(f"{order}{code}", value)


class TestMetadata:
    PAIRS = (
        pair("u8", 0, b"\xff"),
        pair("i8", 1, b"\xff"),
        pair("u16", 2, number("H", 65535)),
        pair("i16", 3, number("h", -2)),
        pair("u32", U32, number("I", 2**32 - 1)),
        pair("i32", 5, number("i", -3)),
        pair("f32", F32, number("f", 0.5)),
        pair("bool", BOOL, b"\1"),
        pair("text", STRING, string("é")),
        pair("bytes", STRING, string(b"\xff")),
        pair("u64", U64, number("Q", 2**64 - 1)),
        pair("i64", 11, number("q", -4)),
        pair("f64", 12, number("d", 0.25)),
        pair("numbers", ARRAY, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
        pair("texts", ARRAY, struct.pack("<IQ", STRING, 2) + string("a") + string("")),
        pair(
            "nested", ARRAY, struct.pack("<IQ", ARRAY, 2) + struct.pack("<IQ2B", 0, 2, 1, 2) + struct.pack("<IQ", 0, 0)
        ),
        pair("none", ARRAY, struct.pack("<IQ", STRING, 0)),
    )

    def test_every_kind(self) -> None:
        with tg.open(build(pairs=self.PAIRS)) as archive:
            assert archive.format == "gguf@3"
            assert archive.metadata == {
                "u8": 255, "i8": -1, "u16": 65535, "i16": -2, "u32": 2**32 - 1, "i32": -3, "f32": 0.5, "bool": True,
                "text": "é", "bytes": b"\xff", "u64": 2**64 - 1, "i64": -4, "f64": 0.25, "numbers": [1, -2, 3],
                "texts": ["a", ""], "nested": [[1, 2], []], "none": [],
            }  # fmt: skip
            assert archive.metadata["bool"] is True

    def test_a_vocabulary(self) -> None:
        words = [f"token{i}" for i in range(50_000)]
        value = struct.pack("<IQ", STRING, len(words)) + b"".join(map(string, words))
        with tg.open(build(pairs=[pair("tokenizer", ARRAY, value)])) as archive:
            assert archive.metadata == {"tokenizer": words}


class TestTensors:
    @pytest.mark.parametrize("type", DTYPES)
    @pytest.mark.parametrize("order", ["<", ">"])
    def test_plain_types(self, type: int, order: str) -> None:
        kind = np.dtype(getattr(ml_dtypes, DTYPES[type], None) or DTYPES[type])
        array = np.arange(6).astype(kind).reshape(2, 3)
        raw = array.view(f"u{kind.itemsize}").astype(f"{order}u{kind.itemsize}").tobytes()
        data = build([tensor("x", (3, 2), type, 0, order)], data=raw, order=order)
        with tg.open(data) as archive:
            assert archive["x"].shape == (2, 3)
            assert archive["x"].dtype == kind
            assert (archive["x"].numpy() == array).all()
        assert (tg.loads(data)["x"] == array).all()

    @pytest.mark.parametrize("type", BLOCKS)
    def test_every_block_type_is_listed_and_carried(self, type: int) -> None:
        block = BLOCKS[type]
        raw = random.Random(type).randbytes(2 * 3 * block.nbytes)
        data = build([tensor("x", (block.elements * 3, 2), type, 0)], data=raw)
        with tg.open(data) as archive:
            held = archive["x"]
            assert held.layout == f"gguf.{block.name}"
            assert held.shape == (2, 3 * block.elements)
            assert held.dtype is None
            assert held.parts["data"].array().tobytes() == raw
            assert block.name in repr(held)
            with pytest.raises(tg.UnsupportedError, match="dequantize"):
                held.numpy()
            if block.name in DECODED:
                assert held.dequantize().shape == held.shape
                assert held.dequantize().dtype == np.float32
            else:
                with pytest.raises(tg.UnsupportedError, match=block.name):
                    held.dequantize()

    def test_a_type_of_the_future_is_listed(self) -> None:
        data = build([tensor("x", (5,), 999, 0), tensor("y", (2,), 0, 32)], data=bytes(40))
        with tg.open(data) as archive:
            assert archive["x"].nbytes == 32
            assert archive["x"].parts["data"].unknown_dtype == "ggml type 999"
            assert archive["y"].numpy().tolist() == [0, 0]

    def test_blocks_of_the_other_byte_order_are_listed(self) -> None:
        data = build([tensor("x", (32,), 2, 0, ">")], data=bytes(18), order=">")
        with tg.open(data) as archive, pytest.raises(tg.UnsupportedError, match=r"rule dtype\.known"):
            archive["x"].numpy()

    def test_alignment(self) -> None:
        pairs = [pair("general.alignment", U32, number("I", 128))]
        tensors = [tensor("x", (1,), 0, 0), tensor("empty", (0,), 0, 128), tensor("y", (1,), 0, 128)]
        data = build(tensors, pairs, number("f", 1.0).ljust(128, b"\0") + number("f", 2.0), alignment=128)
        assert {name: array.tolist() for name, array in tg.loads(data).items()} == {"x": [1.0], "empty": [], "y": [2.0]}

    def test_padding_after_the_last_tensor(self) -> None:
        """The writer of gguf pads, others do not; strictly there is one form."""
        for padding in (0, 28):
            assert tg.loads(build([tensor("x", (1,), 0, 0)], data=bytes(4 + padding)))["x"].tolist() == [0]
        assert tg.loads(build([tensor("x", (1,), 0, 0)], data=bytes(32)), strict=True)["x"].tolist() == [0]
        with pytest.raises(tg.FormatError) as caught:
            tg.loads(build([tensor("x", (1,), 0, 0)], data=bytes(4)), strict=True)
        assert caught.value.rule == "gguf.strict"

    def test_version_2(self) -> None:
        with tg.open(build(version=2)) as archive:
            assert archive.format == "gguf@2"

    @pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
    def test_blocks_are_carried_by_a_container_of_layouts(self, format: str, tmp_path: Path) -> None:
        raw = random.Random(1).randbytes(2 * 144)
        tensors = [tensor("q", (256, 2), 12, 0), tensor("f", (3,), 0, 288), tensor("iq", (256,), 16, 320)]
        data = build(tensors, TestMetadata.PAIRS, raw + bytes(32) + bytes(66))
        tg.convert(data, tmp_path / "x.zt", format=format)
        with tg.open(data) as before, tg.open(tmp_path / "x.zt") as after:
            assert after.metadata == before.metadata
            for name in ("q", "iq"):
                assert after[name].layout == before[name].layout
                assert after[name].shape == before[name].shape
                assert after[name].parts["data"].array().tobytes() == before[name].parts["data"].array().tobytes()
            assert np.array_equal(after["q"].dequantize(), before["q"].dequantize(), equal_nan=True)
            assert after["f"].numpy().tolist() == [0, 0, 0]

    def test_blocks_in_a_container_without_layouts_are_a_loss(self, tmp_path: Path) -> None:
        data = build([tensor("q", (32,), 2, 0)], data=bytes(18))
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.convert(data, tmp_path / "x.safetensors")
        assert (caught.value.rule, caught.value.tensor) == ("convert.layout", "q")


X = tensor("x", (1,), 0, 0)
REFUSED: dict[str, tuple[bytes, type[tg.TensorglotError], str]] = {
    "short": (b"GGUF\3\0\0\0", tg.TruncatedError, "header.end"),
    "magic": (b"GGXF" + bytes(20), tg.FormatError, "magic"),
    "version 1": (build(version=1), tg.UnsupportedError, "version"),
    "version 4": (build(version=4), tg.UnsupportedError, "version"),
    "version 0": (build(version=0), tg.UnsupportedError, "version"),
    "2**60 tensors": (build(counts=(2**60, 0)), tg.FormatError, "count"),
    "2**64 - 1 tensors": (build(counts=(2**64 - 1, 0)), tg.FormatError, "count"),
    "2**60 pairs": (build(counts=(0, 2**60)), tg.FormatError, "count"),
    "a pair that is not there": (build(counts=(0, 1)) + bytes(12), tg.FormatError, "count"),
    "header cut": (build(pairs=[pair("a", U32, b"")]) + bytes(0), tg.TruncatedError, "header.end"),
    "key of 2**60 bytes": (build(pairs=[number("Q", 2**60) + bytes(20)]), tg.FormatError, "text.length"),
    "key not UTF-8": (build(pairs=[pair(b"\xff", U32, bytes(4))]), tg.FormatError, "text.utf8"),
    "key twice": (build(pairs=[pair("a", U32, bytes(4))] * 2), tg.FormatError, "metadata.duplicate"),
    "kind 13": (build(pairs=[pair("a", 13, bytes(8))]), tg.FormatError, "metadata.kind"),
    "bool 2": (build(pairs=[pair("a", BOOL, b"\2")]), tg.FormatError, "metadata.bool"),
    "text of 2**63 bytes": (build(pairs=[pair("a", STRING, number("Q", 2**63))]), tg.FormatError, "text.length"),
    "array of 2**60": (
        build(pairs=[pair("a", ARRAY, struct.pack("<IQ", 5, 2**60))]),
        tg.FormatError,
        "metadata.length",
    ),
    "array of 2**60 texts": (
        build(pairs=[pair("a", ARRAY, struct.pack("<IQ", STRING, 2**60))]),
        tg.FormatError,
        "metadata.length",
    ),
    "array of kind 99": (
        build(pairs=[pair("a", ARRAY, struct.pack("<IQ", 99, 1) + bytes(8))]),
        tg.FormatError,
        "metadata.kind",
    ),
    "deep arrays": (
        build(pairs=[pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 10_000)]),
        tg.LimitError,
        "metadata.depth",
    ),
    "alignment 0": (build(pairs=[pair("general.alignment", U32, number("I", 0))]), tg.FormatError, "alignment"),
    "alignment 33": (build(pairs=[pair("general.alignment", U32, number("I", 33))]), tg.FormatError, "alignment"),
    "alignment text": (build(pairs=[pair("general.alignment", STRING, string("32"))]), tg.FormatError, "alignment"),
    "alignment true": (build(pairs=[pair("general.alignment", BOOL, b"\1")]), tg.FormatError, "alignment"),
    "alignment 2**63": (
        build(pairs=[pair("general.alignment", U64, number("Q", 2**63))]),
        tg.FormatError,
        "alignment",
    ),
    "alignment past the file": (
        build([X], [pair("general.alignment", U32, number("I", 2**31))], bytes(4)),
        tg.TruncatedError,
        "data.end",
    ),
    "name twice": (build([X, tensor("x", (1,), 0, 32)], data=bytes(36)), tg.FormatError, "name.duplicate"),
    "name not UTF-8": (build([tensor(b"\xff", (1,), 0, 0)], data=bytes(4)), tg.FormatError, "text.utf8"),
    "rank 2**32 - 1": (build([tensor("x", (1,), 0, 0, rank=2**32 - 1)], data=bytes(4)), tg.LimitError, "limit.rank"),
    "rank 65": (build([tensor("x", (1,) * 65, 0, 0)], data=bytes(4)), tg.LimitError, "limit.rank"),
    "product wraps to 0": (build([tensor("x", (2**32, 2**32), 0, 0)], data=bytes(4)), tg.FormatError, "shape.product"),
    "product wraps beside a zero": (
        build([tensor("x", (2**63, 2**63, 0), 0, 0)], data=bytes(4)),
        tg.FormatError,
        "shape.product",
    ),
    "size 2**64 - 1": (build([tensor("x", (2**64 - 1,), 0, 0)], data=bytes(4)), tg.FormatError, "shape.product"),
    "rows of half a block": (build([tensor("x", (16, 2), 2, 0)], data=bytes(18)), tg.FormatError, "shape.blocks"),
    "a block without dimensions": (build([tensor("x", (), 2, 0)], data=bytes(18)), tg.FormatError, "shape.blocks"),
    "offset that wraps": (build([tensor("x", (1,), 0, 2**64 - 32)], data=bytes(4)), tg.FormatError, "offset"),
    "offset unaligned": (build([tensor("x", (1,), 0, 4)], data=bytes(8)), tg.FormatError, "offset"),
    "overlap": (build([X, tensor("y", (1,), 0, 0)], data=bytes(36)), tg.FormatError, "offset"),
    "hole": (build([X, tensor("y", (1,), 0, 64)], data=bytes(68)), tg.FormatError, "offset"),
    "data cut": (build([X], data=bytes(3)), tg.TruncatedError, "data.end"),
    "no data": (build([X]), tg.TruncatedError, "data.end"),
    "data behind": (build([X], data=bytes(33)), tg.FormatError, "data.trailing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    data, kind, rule = REFUSED[case]
    with pytest.raises(tg.TensorglotError) as caught:
        tg.open(data, format="gguf")
    assert type(caught.value) is kind
    assert caught.value.rule == f"gguf.{rule}"


def test_padding_is_zero_strictly() -> None:
    data = build([X], data=bytes(4) + b"\1" * 28)
    assert len(tg.open(data)) == 1
    with pytest.raises(tg.FormatError) as caught:
        tg.open(data, strict=True)
    assert caught.value.rule == "gguf.strict.padding"


def test_limits() -> None:
    data = build([X, tensor("y", (1,), 0, 32)], data=bytes(36))
    for limits in (tg.Limits(tensors=1), tg.Limits(header_nbytes=60), tg.Limits(name_nbytes=0)):
        with pytest.raises(tg.LimitError):
            tg.open(data, limits=limits)


def test_mutants_raise_only_our_errors() -> None:
    rng = random.Random(3)
    base = build([tensor("x", (32,), 2, 0), tensor("y", (2, 3), 0, 32)], TestMetadata.PAIRS, bytes(56))
    accepted = 0
    for _ in range(3000):
        mutant = bytearray(base)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(mutant))
            if rng.random() < 0.5:
                mutant[at] = rng.choice([0, 1, 2, 9, 127, 128, 255])
            else:
                mutant[at : at + 8] = number("Q", rng.choice([0, 1, 2**31, 2**63, 2**64 - 1, len(base)]))
        try:
            with tg.open(bytes(mutant), format="gguf") as archive:
                for held in archive.values():
                    (held.dequantize if held.layout != "dense" else held.numpy)()
            accepted += 1
        except tg.TensorglotError:
            pass
    assert 0 < accepted < 3000


PACKAGE = r"""
import pathlib, sys
import numpy as np
from gguf import GGUFWriter, GGMLQuantizationType as T, GGML_QUANT_SIZES, quants
folder = pathlib.Path(sys.argv[1])
rng = np.random.default_rng(7)
for number in range(12):
    writer = GGUFWriter(folder / f"{number}.gguf", "llama")
    writer.add_uint32("test.number", number)
    writer.add_array("test.words", ["a", "é", ""])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_bool("test.yes", True)
    writer.add_float64("test.pi", 3.14159)
    if number % 3 == 1:
        writer.add_custom_alignment(64)
    for kind in (T.F32, T.F16, T.BF16, T.F64, T.I8, T.I16, T.I32, T.I64):
        size = GGML_QUANT_SIZES[kind][1]
        shape = [(3,), (2, 5), (2, 3, 4)][number % 3]
        raw = rng.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8)
        if kind == T.BF16:
            writer.add_tensor(f"plain.{kind.name}", raw, raw_dtype=kind)
        else:
            writer.add_tensor(f"plain.{kind.name}", raw.view(f"{kind.name[0].lower()}{size}"))
        np.save(folder / f"{number}.plain.{kind.name}.npy", raw)
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "Q2_K", "IQ4_XS", "MXFP4"):
        kind = T[name]
        elements, nbytes = GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (4, 3 * nbytes), np.uint8)
        if number % 2 and name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
            blocks = quants.quantize(rng.standard_normal((4, 3 * elements)).astype(np.float32), kind)
        writer.add_tensor(f"blocks.{name}", blocks, raw_dtype=kind)
        with np.errstate(all="ignore"):
            np.save(folder / f"{number}.blocks.{name}.npy", quants.dequantize(blocks, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
"""


@pytest.mark.peers
def test_files_of_the_gguf_package(tmp_path: Path) -> None:
    run("gguf", PACKAGE, tmp_path)
    files = sorted(tmp_path.glob("*.gguf"))
    assert len(files) == 12
    compared = 0
    for file in files:
        with tg.open(file, strict=True) as archive:
            assert archive.metadata is not None
            assert archive.metadata["test.number"] == int(file.stem)
            assert archive.metadata["test.words"] == ["a", "é", ""]
            assert archive.metadata["test.pi"] == 3.14159
            assert archive.metadata["general.architecture"] == "llama"
            for name, held in archive.items():
                expected = np.load(tmp_path / f"{file.stem}.{name}.npy")
                if held.layout == "dense":
                    assert held.numpy().tobytes() == expected.tobytes()
                elif held.layout.removeprefix("gguf.") in DECODED:
                    values = held.dequantize()
                    assert values.shape == expected.shape
                    assert np.array_equal(values, expected, equal_nan=True)
                    compared += 1
                else:
                    assert held.shape == expected.shape
    assert compared == 12 * len(DECODED)


def test_a_file_of_many_tensors_opens_in_time() -> None:
    tensors = [tensor(f"layer.{i}.weight", (2,), 0, 32 * i) for i in range(10_000)]
    data = build(tensors, data=bytes(32 * 10_000))
    with tg.open(data) as archive:
        assert len(archive) == 10_000
        assert math.prod(archive["layer.9999.weight"].shape) == 2
