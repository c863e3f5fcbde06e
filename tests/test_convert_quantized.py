"""convert and quantized tensors: carried as they are, refused by name, or as their real values."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from bounds import MB, resident_nbytes
from gguf_builder import build, tensor
from tensorglot.containers.gguf.blocks import BLOCKS

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


def test_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(tg.UnsupportedError, match=r"layout 'gguf\.Q4_0'; cast it to a float type") as caught:
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
        try:
            archive: Any = tg.open(path)
        except tg.TensorglotError:
            continue
        with archive:
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
