"""Quantizing: the round trip within half a step, errors as measured, every container, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorglot as tg
from command_line import run as cli

SCHEMES = ("int8", "int4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
RANDOM = np.random.default_rng(5)
W = RANDOM.standard_normal((6, 256)).astype(np.float32)
STEPS = {"int8": 127, "int4": 7, "int4:128": 7, "int8:64": 127}


@pytest.mark.parametrize("scheme", STEPS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_value_is_within_half_a_step(scheme: str, dtype: str) -> None:
    values = W.astype(getattr(ml_dtypes, dtype, None) or dtype)
    group = int(scheme.partition(":")[2] or 32)
    quantized, errors = tg.quantize(values, scheme)
    back = quantized.dequantize()
    real = values.astype(np.float32)
    step = np.abs(real.reshape(6, -1, group)).max(axis=2) / STEPS[scheme]
    difference = np.abs(back - real).reshape(6, -1, group)
    assert (difference <= step[..., None] * 0.5001).all()
    assert (back[real == 0] == 0).all()
    exact = np.abs(back.astype(np.float64) - real)
    assert errors.max_error == exact.max()
    assert errors.rms_error == pytest.approx(np.sqrt(np.mean(exact**2)), rel=1e-12)
    assert (errors.count, errors.old) == (W.size, dtype)


@pytest.mark.parametrize("scheme", [*SCHEMES, "int4:128"])
@pytest.mark.parametrize("format", ["ztensor@0.1", "ztensor@2"])
def test_files_have_the_values_of_memory(scheme: str, format: str, tmp_path: Path) -> None:
    tg.save(tmp_path / "x.bt", {"w": W, "bias": W[0], "odd": W[:, :5], "n": np.arange(64).reshape(2, 32)})
    report = tg.convert(tmp_path / "x.bt", tmp_path / "x.zt", format=format, quantize=scheme)
    quantized, errors = tg.quantize(W, scheme)
    assert [(q.tensor, q.max_error, q.rms_error) for q in report.quantized] == [
        ("w", errors.max_error, errors.rms_error)
    ]
    with tg.open(tmp_path / "x.zt") as archive:
        assert (archive["w"].dequantize() == quantized.dequantize()).all()
        assert (archive["bias"].numpy() == W[0]).all()
        assert archive["odd"].dtype == np.float32
    assert tg.verify(tmp_path / "x.zt", deep=True).ok
    tg.save(tmp_path / "y.zt", {"w": quantized}, format=format)
    with tg.open(tmp_path / "y.zt") as archive:
        assert (archive["w"].dequantize() == quantized.dequantize()).all()
    tg.convert(tmp_path / "x.zt", tmp_path / "back.bt", dtype="float32")
    assert (tg.load(tmp_path / "back.bt")["w"] == quantized.dequantize()).all()


def test_more_than_one_piece(tmp_path: Path) -> None:
    """Pieces of a stream do not end where groups do."""
    large = RANDOM.standard_normal((5000, 96)).astype(np.float32)
    tg.save(tmp_path / "x.bt", {"w": large})
    report = tg.convert(tmp_path / "x.bt", tmp_path / "x.zt", quantize="int4:48")
    quantized, errors = tg.quantize(large, "int4:48")
    with tg.open(tmp_path / "x.zt") as archive:
        assert (archive["w"].dequantize() == quantized.dequantize()).all()
    assert report.quantized[0].count == large.size
    assert report.quantized[0].rms_error == pytest.approx(errors.rms_error)


def test_schemes_by_pattern_and_ties(tmp_path: Path) -> None:
    tg.save(tmp_path / "x.zt", {"a": W, "b": W, "c": W, "v": W[0]})
    report = tg.convert(tmp_path / "x.zt", tmp_path / "y.zt", quantize={"a": "int8", "b": "int4", "v": "q8_0"})
    assert {q.tensor: q.new for q in report.quantized} == {"a": "int8", "b": "int4", "v": "q8_0"}
    with tg.open(tmp_path / "y.zt") as archive:
        for name, scheme in (("a", "int8"), ("b", "int4")):
            assert (archive[name].dequantize() == tg.quantize(W, scheme)[0].dequantize()).all()
        assert archive["v"].layout == "gguf.Q8_0"
        assert (archive["c"].numpy() == W).all()
    again = tg.convert(tmp_path / "y.zt", tmp_path / "z.zt", quantize={"a": "int4"})
    assert again.quantized[0].old == "zt.quant_group/1"


REFUSED: dict[str, tuple[Any, str, str]] = {
    "no scheme": (W, "int3", "quantize.scheme"),
    "a number as a scheme": (W, 8, "quantize.scheme"),  # type: ignore[dict-item]
    "half a byte": (W, "int4:3", "quantize.scheme"),
    "rows that do not fit": (W[:, :5], "int8", "quantize.value"),
    "no dimension": (np.float32(1), "int8", "quantize.value"),
    "integers": (np.ones((2, 32), np.int32), "int8", "quantize.value"),
    "text": (["a"] * 32, "int8", "quantize.value"),
    "NaN": (np.full(32, np.nan), "int8", "quantize.finite"),
    "infinity": (np.full(32, np.inf), "q8_0", "quantize.finite"),
    "beyond float32": (np.full(32, 1e300), "int4", "quantize.finite"),
    "beyond the scale of a block": (np.full(32, 1e38, np.float32), "q4_0", "quantize.range"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str, tmp_path: Path) -> None:
    value, scheme, rule = REFUSED[what]
    with pytest.raises(tg.TensorglotError) as caught:
        tg.quantize(value, scheme)
    assert caught.value.rule == rule
    with pytest.raises(tg.TensorglotError) as caught:
        tg.convert({"x": value}, tmp_path / "x.zt", quantize={"x": scheme})
    assert caught.value.rule == rule
    assert not [*tmp_path.iterdir()]


def test_small_and_empty_values_have_no_error_that_is_not_reported() -> None:
    for value in (np.zeros((2, 32), np.float32), np.full((1, 32), 1e-42, np.float32), np.zeros((0, 32), np.float32)):
        for scheme in SCHEMES:
            quantized, errors = tg.quantize(value, scheme)
            assert errors.max_error == np.abs(quantized.dequantize() - value).max(initial=0)


def test_a_target_without_the_layout_is_a_named_loss(tmp_path: Path) -> None:
    for target, scheme in (("x.gguf", "int8"), ("x.bt", "q8_0")):
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.convert({"w": W}, tmp_path / target, quantize=scheme)
        assert (caught.value.rule, caught.value.tensor) == ("convert.layout", "w")


def test_the_command_line_reports_the_errors(tmp_path: Path) -> None:
    tg.save(tmp_path / "x.bt", {f"w{i}": W + i for i in range(3)} | {"n": np.arange(3)})
    done = cli("convert", tmp_path / "x.bt", tmp_path / "x.zt", "--quantize", "w*=int4:128")
    assert done.stderr.count("float32 to int4:128, error at most") == 3
    shown = cli("convert", tmp_path / "x.bt", tmp_path / "x.zt", "--quantize", "int8", "--dry-run")
    assert "quantize" in shown.stdout


def test_a_quantized_tensor_has_the_type_of_its_values_and_no_dtype() -> None:
    """Its part `data` has one: that of the codes."""
    quantized, _ = tg.quantize(W, "int8")
    assert quantized.parts["data"].dtype is not None
    assert quantized.dtype is None
