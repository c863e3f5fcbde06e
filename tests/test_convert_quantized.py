"""convert and quantized tensors: carried as they are, refused by name, or as their real values."""

from __future__ import annotations

import io
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from bounds import MB, resident_nbytes
from gguf_builder import build, tensor
from tensorglot.containers.gguf.blocks import BLOCKS
from tensorglot.report.changes import change_card
from tensorglot.report.data import card

DECODED = {type: block for type, block in BLOCKS.items() if block.decode is not None}
UNDECODED = {type: block for type, block in BLOCKS.items() if block.decode is None}


def quantized(type: int, rows: int = 4) -> bytes:
    """Blocks with scales that are small numbers."""
    block = BLOCKS[type]
    raw = np.frombuffer(random.Random(type).randbytes(rows * 3 * block.nbytes), np.uint8) & 0x3B
    return build([tensor("x", (block.elements * 3, rows), type, 0)], data=raw.tobytes())


@pytest.mark.parametrize("type", DECODED, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_real_values(type: int, dtype: str, tmp_path: Path) -> None:
    data = quantized(type)
    with tg.open(data) as archive:
        expected = archive["x"].dequantize()
    for target in ("a.safetensors", "a.bt", "a.zt"):
        report = tg.convert(data, tmp_path / target, dtype=dtype)
        loaded = tg.load(tmp_path / target)["x"]
        assert loaded.dtype.name == dtype
        assert loaded.tobytes() == expected.astype(loaded.dtype).tobytes()
        assert report.plan is not None
        assert [step.action for step in report.plan.steps] == ["dequantize"]
        assert (report.casts[0].old, report.casts[0].count) == (f"gguf.{BLOCKS[type].name}", expected.size)


@pytest.mark.parametrize("type", BLOCKS, ids=str)
def test_blocks_are_copied_where_the_target_can_store_them(type: int, tmp_path: Path) -> None:
    data = quantized(type)
    tg.convert(data, tmp_path / "a.zt", on_loss="drop")
    with tg.open(data) as one, tg.open(tmp_path / "a.zt") as two:
        assert two["x"].layout == one["x"].layout
        assert two["x"].shape == one["x"].shape
        assert bytes(two["x"].parts["data"].payload.read(0, two["x"].nbytes)) == bytes(
            one["x"].parts["data"].payload.read(0, one["x"].nbytes)
        )
        assert two["x"].type == one["x"].type
        if type in DECODED:
            assert two["x"].cid() == one["x"].cid()


@pytest.mark.parametrize("type", BLOCKS, ids=str)
def test_blocks_stay_as_they_are_in_gguf(type: int, tmp_path: Path) -> None:
    source, tensors = tmp_path / "a.gguf", tmp_path / "a.zt"
    source.write_bytes(quantized(type))
    tg.convert(source, tmp_path / "same.gguf")
    assert tg.diff(source, tmp_path / "same.gguf").equal
    tg.convert(tmp_path / "same.gguf", tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "same.gguf").read_bytes()
    tg.convert(source, tensors)
    tg.convert(tensors, tmp_path / "back.gguf")
    tg.convert(source, tmp_path / "named.gguf", rename={"x": "y"})
    tg.convert(source, tmp_path / "chosen.gguf", select="x")
    with tg.open(source) as given:
        expected = bytes(given["x"].parts["data"].payload.read(0, given["x"].nbytes))
    for target, name in {"same": "x", "back": "x", "named": "y", "chosen": "x"}.items():
        with tg.open(tmp_path / f"{target}.gguf") as archive:
            assert list(archive) == [name]
            tensor = archive[name]
            assert tensor.layout == f"gguf.{BLOCKS[type].name}"
            assert bytes(tensor.parts["data"].payload.read(0, tensor.nbytes)) == expected


@pytest.mark.parametrize("type", DECODED, ids=str)
def test_statistics_and_cards_are_those_of_the_real_values(type: int) -> None:
    with tg.open(quantized(type)) as archive:
        values = archive["x"].dequantize()
        [row] = tg.stats(archive)
        [part] = card(archive["x"], 4096)["parts"]
    assert (row.part, row.dtype, row.shape, row.count) == ("data", "float32", values.shape, values.size)
    assert (row.min, row.max, row.zeros) == (values.min(), values.max(), np.count_nonzero(values == 0))
    assert row.mean == pytest.approx(values.mean(dtype=np.float64))
    assert (part["dtype"], part["shape"], part["min"]) == ("float32", list(values.shape), float(values.min()))


@pytest.mark.parametrize("type", UNDECODED, ids=str)
def test_blocks_that_cannot_be_decoded_have_no_statistics(type: int) -> None:
    """Those of their bytes would be taken for those of the values."""
    [row] = tg.stats(quantized(type))
    assert (row.min, row.unsupported) == (None, f"cannot dequantize gguf.{BLOCKS[type].name}")


@pytest.mark.parametrize("type", DECODED, ids=str)
def test_differences_are_those_of_the_real_values(type: int) -> None:
    block, data = BLOCKS[type], quantized(type)
    changed = bytearray(data)
    changed[-block.nbytes :] = bytes(range(1, 0x3B))[: block.nbytes].ljust(block.nbytes, b"\1")
    with tg.open(data) as one, tg.open(bytes(changed)) as two:
        x, y = one["x"].dequantize(), two["x"].dequantize()
    [change] = tg.diff(data, bytes(changed)).changes
    assert change.values is not None
    assert (change.kind, change.key, change.values.count) == ("values", None, x.size)
    assert change.values.changed == np.count_nonzero(x != y)
    largest = float(np.abs(x.astype(np.float64) - y).max())
    assert change.values.largest_absolute == largest
    assert tg.diff(data, bytes(changed), atol=largest).same
    assert not tg.diff(data, bytes(changed), atol=largest / 2).same
    found = change_card([change], tg.open(data), tg.open(bytes(changed)), 4096)
    assert (found[0]["where"]["rows"], found[0]["where"]["columns"]) == x.shape


def test_the_scale_of_zeros_is_no_difference_but_its_sign_is_one_of_bits() -> None:
    one, twice, minus = (
        build([tensor("x", (32,), 8, 0)], data=scale + bytes(32)) for scale in (b"\0\x3c", b"\0\x40", b"\0\xbc")
    )
    assert tg.diff(one, twice).same
    [change] = tg.diff(one, minus).changes
    assert (change.kind, change.values and change.values.bits_only) == ("bits", 32)


def test_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(tg.UnsupportedError, match=r"layout 'gguf\.Q4_0' \(.*\); cast it to a float type") as caught:
        tg.convert(quantized(2), tmp_path / "a.bt")
    assert (caught.value.rule, caught.value.tensor) == ("convert.layout", "x")
    with pytest.raises(tg.UnsupportedError) as caught:
        tg.convert(quantized(next(iter(UNDECODED))), tmp_path / "a.bt", dtype="float32")
    assert caught.value.rule == "convert.layout"
    assert list(tmp_path.iterdir()) == []


def test_an_integer_type_is_not_for_real_values(tmp_path: Path) -> None:
    report = tg.convert(quantized(2), tmp_path / "a.bt", dtype="int8", dry_run=True)
    assert [loss.kind for loss in report.losses] == ["layout"]


def test_quantized_tensors_of_the_corpus_become_their_real_values(tmp_path: Path) -> None:
    from tensorglot.model.layouts import MX

    corpus = Path(__file__).parent / "corpus" / "ztensor-2"
    found = 0
    for path in sorted(corpus.glob("*.zt")):
        with tg.open(path) as archive:
            names = [name for name in archive if archive[name].layout in (MX, "zt.quant_group/1")]
            for name in names:
                found += 1
                tg.convert(archive, tmp_path / "a.bt", select=name, dtype="float64", on_loss="drop")
                loaded = tg.load(tmp_path / "a.bt")[name]
                assert np.array_equal(loaded, archive[name].dequantize(), equal_nan=True)
    assert found


def test_bounded_memory(tmp_path: Path) -> None:
    elements = 32 << 20
    blocks = np.zeros((elements // 32, 18), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    (tmp_path / "a.gguf").write_bytes(build([tensor("x", (4096, elements // 4096), 2, 0)], data=blocks.tobytes()))
    del blocks

    def run() -> None:
        tg.convert(tmp_path / "a.gguf", tmp_path / "a.safetensors", dtype="bfloat16", durable=False)

    assert resident_nbytes(run) < 64 * MB
    with tg.open(tmp_path / "a.safetensors") as archive:
        assert archive["x"][5, 7] == ml_dtypes.bfloat16(-4.0)


@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_attributes_of_the_user_stay_when_values_are_quantized_and_back(format: str, tmp_path: Path) -> None:
    real, small, again = (tmp_path / name for name in ("a.zt", "b.zt", "c.zt"))
    attributes = {"w": {"layer": 3, "axis": "rows"}}
    tg.save(real, {"w": np.ones((2, 64), np.float32)}, checksum=None, attributes=attributes, format=format)
    with pytest.raises(tg.UnsupportedError, match="'axis' describes how the tensor is quantized") as caught:
        tg.convert(real, small, quantize="int8", format=format)
    assert caught.value.rule == "convert.attributes"
    tg.convert(real, small, quantize="int8", format=format, on_loss="drop")
    with tg.open(small) as archive:
        assert (archive["w"].attributes["layer"], archive["w"].attributes["axis"]) == (3, 1)
    assert tg.convert(small, again, dtype="float32", format=format).losses == ()
    with tg.open(again) as archive:
        assert archive["w"].attributes == {"layer": 3}
    for source, options in ((real, {"quantize": "q8_0"}), (small, {"dtype": "float32"})):
        with pytest.raises(tg.UnsupportedError, match=r"cannot store attributes: .*layer") as caught:
            tg.convert(source, tmp_path / "d.gguf", **options)
        assert caught.value.rule == "convert.attributes"


def test_real_values_have_attributes_of_dense_tensors() -> None:
    quantized, _ = tg.quantize(np.ones((2, 32), np.float32), "int8")
    data = tg.dumps({"w": quantized}, format="ztensor@2", checksum=None, attributes={"w": {"layer": 3, "shape": 4}})
    done = tg.convert(data, out := io.BytesIO(), format="ztensor@0.1", dtype="float32", on_loss="drop")
    assert [(loss.kind, loss.tensor) for loss in done.losses] == [("attributes", "w")]
    assert tg.open(out.getvalue())["w"].attributes == {"layer": 3}
    assert tg.convert(data, io.BytesIO(), format="ztensor@0.1").losses == ()
