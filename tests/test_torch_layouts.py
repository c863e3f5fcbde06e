"""Sparse and quantized tensors of PyTorch: stored with their parts, read with their values, else refused by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorglot as tg
from peers import needs

FORMATS = ["ztensor@0.1", "ztensor@2"]


@pytest.fixture
def torch() -> Any:
    found = needs("torch")
    with warnings.catch_warnings():  # CSR is in beta, and quantized tensors are deprecated, says PyTorch
        warnings.simplefilter("ignore")
        yield found


def sample(torch: Any, dtype: str = "float32") -> Any:
    dense = torch.arange(24).reshape(4, 6) % 5
    dense[1] = 0
    return dense.to(getattr(torch, dtype))


SPARSE = {
    "COO": lambda dense: dense.to_sparse(),
    "CSR": lambda dense: dense.to_sparse_csr(),
    "CSC": lambda dense: dense.to_sparse_csc(),
    "COO of three axes": lambda dense: dense.reshape(2, 2, 6).to_sparse(),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("form", SPARSE)
def test_sparse(torch: Any, form: str, format: str, tmp_path: Path) -> None:
    for dtype in ("float32", "float64", "int32"):
        tensor = SPARSE[form](sample(torch, dtype))
        tg.save(tmp_path / "x.zt", {"x": tensor}, format=format)
        assert tg.verify(tmp_path / "x.zt", deep=True).ok
        with tg.open(tmp_path / "x.zt") as archive:
            back = archive["x"].torch()
            assert torch.equal(back.to_dense(), tensor.to_dense())
            assert back.dtype == tensor.dtype
            if form == "COO":
                assert (archive["x"].scipy().toarray() == tensor.to_dense().numpy()).all()


def test_duplicates_are_summed(torch: Any) -> None:
    tensor = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 3.0], (2, 2))
    with tg.open(tg.dumps({"x": tensor}, format="ztensor")) as archive:
        assert archive["x"].parts["values"].array().tolist() == [3.0, 3.0]
        assert torch.equal(archive["x"].torch().to_dense(), tensor.to_dense())


def test_no_values(torch: Any) -> None:
    for tensor in (torch.zeros(3, 2).to_sparse(), torch.zeros(3, 2).to_sparse_csr()):
        with tg.open(tg.dumps({"x": tensor}, format="ztensor@2")) as archive:
            assert torch.equal(archive["x"].torch().to_dense(), torch.zeros(3, 2))


def quantized(torch: Any) -> dict[str, Any]:
    values = torch.linspace(-3, 3, 32).reshape(4, 8)
    scales, zeros = torch.tensor([0.125, 0.5, 0.0625, 1.0]), torch.tensor([0, 1, 2, -3])
    rows = torch.quantize_per_channel
    return {
        "one scale": torch.quantize_per_tensor(values, 0.25, 10, torch.quint8),
        "signed": torch.quantize_per_tensor(values, 0.25, -3, torch.qint8),
        "a scale of double precision": torch.quantize_per_tensor(values, 0.1, 0, torch.qint8),
        "rows": rows(values, scales, zeros, 0, torch.qint8),
        "columns": rows(values.T.contiguous(), scales, zeros, 1, torch.qint8),
        "float zeros": rows(values, scales, zeros.float() + 0.5, 0, torch.quint8),
        "four bits": rows(values, scales, zeros.float(), 0, torch.quint4x2),
        "strided": torch.quantize_per_tensor(values, 0.25, 10, torch.quint8)[:, ::2],
        "one axis": torch.quantize_per_tensor(values[0], 0.25, 0, torch.qint8),
    }


@pytest.mark.parametrize("format", FORMATS)
def test_quantized(torch: Any, format: str) -> None:
    tensors = quantized(torch)
    with tg.open(tg.dumps(tensors, format=format)) as archive:
        for name, tensor in tensors.items():
            held = archive[name]
            assert held.layout == "zt.quant_group/1"
            assert held.shape == tuple(tensor.shape)
            np.testing.assert_allclose(held.dequantize(), tensor.dequantize().numpy(), rtol=1e-6, err_msg=name)
            assert tg.dynd.deserialize(held.serialize(), held.type).tolist() == held.dequantize().tolist()
        assert (archive["rows"].parts["data"].array() == tensors["rows"].int_repr().numpy().reshape(-1)).all()
        assert archive["one scale"].dequantize().tolist() == tensors["one scale"].dequantize().tolist()


def test_refused(torch: Any) -> None:
    batch = torch.ones(2, 3, 4).to_sparse_csr()
    cases = {
        "torch.layout": [batch, torch.ones(2, 3).to_sparse(1), torch.ones(4, 4).to_sparse_bsr((2, 2))],
        "torch.quantized": [
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint32),
            torch.quantize_per_tensor(torch.ones(0), 0.1, 0, torch.qint8),
            torch.quantize_per_tensor(torch.tensor(1.0), 0.1, 0, torch.qint8),
        ],
        "torch.sparse": [
            torch.sparse_csr_tensor([0, 2], [1, 0], [1.0, 2.0], (1, 2), check_invariants=False),
        ],
        "torch.meta": [torch.empty((2, 2), layout=torch.sparse_coo, device="meta")],
    }
    for rule, tensors in cases.items():
        for tensor in tensors:
            with pytest.raises(tg.TensorglotError) as caught:
                tg.dumps({"x": tensor}, format="ztensor")
            assert (caught.value.rule, caught.value.tensor) == (rule, "x")
    for tensor in (torch.eye(2).to_sparse(), torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)):
        with pytest.raises(tg.UnsupportedError) as caught:
            tg.dumps({"x": tensor}, format="safetensors")
        assert caught.value.rule == "save.layout"
