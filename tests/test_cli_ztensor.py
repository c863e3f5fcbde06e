"""The command line on zTensor files: what ls, info and verify show of them, and convert between their versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import tensorglot as tg
from test_cli import run, run_json

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Compressed, with checksums, dense and sparse."""
    path = tmp_path / "mixed.zt"
    matrix = scipy.sparse.csr_array(np.eye(100, dtype=np.float32))
    tensors = {"w": np.zeros((100, 100), np.float32), "m": matrix}
    tg.save(path, tensors, compression="zstd", checksum="crc32c", metadata={"step": 10}, attributes={"w": {"k": [1]}})
    return path


def test_ls(mixed: Path) -> None:
    lines = run("ls", "--long", mixed).stdout.splitlines()
    assert lines[0].split() == [
        "name", "dtype", "shape", "size", "stored", "ratio", "offset", "encoding", "layout", "checksum", "parts"
    ]  # fmt: skip
    w, m = (line.split() for line in lines[1:3])
    assert w[0] == "w"
    assert (w[-4], w[-3], w[-1]) == ("zstd", "dense", "1")
    assert (m[-4], m[-3], m[-1]) == ("zstd", "zt.sparse_csr/1", "3")
    assert float(w[-6]) > 100
    assert w[-2].startswith("crc32c:0x")
    rows = {row["name"]: row for row in run_json("ls", mixed)["tensors"]}
    assert (rows["m"]["parts"], rows["m"]["layout"], rows["w"]["encoding"]) == (3, "zt.sparse_csr/1", "zstd")
    assert rows["w"]["stored_nbytes"] < rows["w"]["nbytes"] == 40_000


def test_info(mixed: Path) -> None:
    text = run("info", mixed).stdout
    assert "ztensor@0.1" in text
    assert "read by ztensor 0.1.0 to 1.2.3" in text
    assert "ratio" in text
    assert "zstd 2" in text
    assert "zt.sparse_csr/1 1" in text
    one = run("info", mixed, "m").stdout
    for word in ("zt.sparse_csr/1", "indptr", "indices", "values", "zstd", "ratio", "crc32c:0x"):
        assert word in one
    assert run_json("info", mixed, "w")["attributes"] == {"k": [1]}
    assert run_json("info", mixed)["metadata"] == {"step": 10}


def test_verify(mixed: Path, tmp_path: Path) -> None:
    assert "4 checksums" in run("verify", "--deep", mixed).stdout
    report = run_json("verify", "--deep", CORPUS / "ztensor-2" / "canonical-2.zt")
    assert report["canonical"] is True
    assert report["content_digest"].startswith("sha256:")
    data = bytearray(mixed.read_bytes())
    data[70] ^= 1
    (tmp_path / "broken.zt").write_bytes(data)
    assert "checksum.mismatch" in run("verify", tmp_path / "broken.zt", code=1).stdout
    assert "no checksums" in run("verify", CORPUS / "ztensor-0.1" / "scalar.zt").stdout


@pytest.mark.parametrize("version", ["ztensor@0.1", "ztensor@2"])
@pytest.mark.parametrize("compression", [[], ["--compression", "zstd"]])
@pytest.mark.parametrize(
    "source",
    ["ztensor-0.1/all_dtypes_raw.zt", "ztensor-0.1/zstd_all_dtypes.zt", "ztensor-0.1/big_endian_raw.zt",
     "ztensor-1/1.0.0-csr.zt", "ztensor-1/1.2.3-dense.zt", "ztensor-2/canonical-2.zt", "ztensor-2/zstd-seekable.zt",
     "ztensor-2/mx.zt", "bintensors-1/gpt2_tiny.bt"],
)  # fmt: skip
def test_convert(version: str, compression: list[str], source: str, tmp_path: Path) -> None:
    target = tmp_path / "a.zt"
    run("convert", CORPUS / source, target, "--to", version, *compression)
    with tg.open(CORPUS / source) as one, tg.open(target, verify="auto") as two:
        assert two.format == version
        assert set(one) == set(two)
        for name, tensor in one.items():
            for part, before in tensor.parts.items():
                after = two[name].parts[part]
                assert after.array().tobytes() == before.array().tobytes()
                assert after.dtype is before.dtype
            assert (two[name].layout, two[name].shape) == (tensor.layout, tensor.shape)
    assert tg.verify(target, deep=True).ok
    if source.startswith("ztensor-0.1"):
        run("convert", target, tmp_path / "b.bt")
        assert set(tg.load(tmp_path / "b.bt")) == set(two)
