"""What a listing says, by the column and tensor by tensor alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.errors import TensorNotFound
from tensorglot.model.archive import Archive
from tensorglot.model.builder import IndexBuilder, Row
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Layout
from tensorglot.model.payload import Memory
from tensorglot.model.types.algebra import dense
from tensorglot.operations.listing import Entry, entries, summarize

CORPUS = Path(__file__).parent / "corpus"


def said(tensor: tg.Tensor) -> Entry:
    """The row of a dense tensor, by what the tensor itself says."""
    dtype = tensor.parts["data"].dtype
    assert dtype is not None
    sizes = (tensor.nbytes, tensor.stored_nbytes, tensor.offset)
    return Entry(tensor.name, dtype.name, tensor.shape, *sizes, tensor.encoding, tensor.checksum, tensor.layout, 1)


NAMES = ["a.weight", "a.bias", "b.weight", "[x]", "x"]


@pytest.mark.parametrize("path", sorted(CORPUS.glob("bintensors-[01]/*.bt")), ids=lambda path: path.stem)
def test_columns_and_tensors_agree(path: Path) -> None:
    with tg.open(path, limits=tg.Limits(rank=300)) as archive:
        rows = entries(archive)
        assert rows == [said(tensor) for tensor in archive.values()]
        assert [row.name for row in rows] == list(archive)
        summary = summarize(archive)
    assert summary.tensors == len(rows)
    assert summary.nbytes == summary.stored_nbytes == sum(row.nbytes for row in rows)
    assert summary.file_nbytes == path.stat().st_size
    assert summary.note


def test_several_parts_and_unknown_types() -> None:
    float32, uint32 = BY_NAME["float32"], BY_NAME["uint32"]
    sizes = {"values": (float32, 3), "indices": (uint32, 3), "indptr": (uint32, 5)}
    parts = [
        Row(dtype=dtype, shape=(n,), part=part, payload=Memory(np.zeros(n, np.float32)), end=4 * n,
            checksum="crc32c:0x00000000" if part == "values" else None)
        for part, (dtype, n) in sizes.items()
    ]  # fmt: skip
    builder = IndexBuilder(tg.Limits(), "test")
    builder.add("sparse", *parts, layout=Layout("zt.sparse_csr/1", dense(float32, (4, 9))))
    builder.add("odd", Row(dtype="float3", shape=(2, 2), payload=Memory(np.zeros(1, np.float32)), end=4))
    index = builder.index("memory")
    sparse, odd = entries(Archive(index, None))
    assert (sparse.dtype, sparse.shape, sparse.nbytes, sparse.layout, sparse.parts) == (
        "float32",
        (4, 9),
        44,
        "zt.sparse_csr/1",
        3,
    )
    assert sparse.checksum == "crc32c:0x00000000"
    assert (odd.dtype, odd.shape, odd.layout, odd.checksum) == ("float3", (2, 2), "dense", None)


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (None, NAMES),
        ([], []),
        (["*.weight"], ["a.weight", "b.weight"]),
        (["b*", "a.bias"], ["a.bias", "b.weight"]),
        (["[x]"], ["[x]", "x"]),
        (["?"], ["x"]),
    ],
)
def test_patterns_select_names(patterns: list[str] | None, found: list[str]) -> None:
    rows = tg.stats({name: np.zeros(1) for name in NAMES}, select=patterns)
    assert [row.name for row in rows] == found


def test_a_pattern_without_a_match_is_an_error() -> None:
    with pytest.raises(TensorNotFound, match=r"did you mean 'a\.weight'"):
        tg.stats({name: np.zeros(1) for name in NAMES}, select=["x", "a.wight"])
