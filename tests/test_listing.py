"""What a listing says, by the column and tensor by tensor alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorglot as tg
from tensorglot.errors import TensorNotFound
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import UNKNOWN, Index, Layout
from tensorglot.model.payload import Memory
from tensorglot.model.types.algebra import dense
from tensorglot.operations._patterns import selected
from tensorglot.operations.listing import _entry, entries, summarize

CORPUS = Path(__file__).parent / "corpus"
NAMES = ["a.weight", "a.bias", "b.weight", "[x]", "x"]


@pytest.mark.parametrize("path", sorted(CORPUS.glob("bintensors-[01]/*.bt")), ids=lambda path: path.stem)
def test_columns_and_tensors_agree(path: Path) -> None:
    with tg.open(path, limits=tg.Limits(rank=300)) as archive:
        rows = entries(archive)
        assert rows == [_entry(archive, i) for i in range(len(archive))]
        assert [row.name for row in rows] == list(archive)
        summary = summarize(archive)
    assert summary.tensors == len(rows)
    assert summary.nbytes == summary.stored_nbytes == sum(row.nbytes for row in rows)
    assert summary.file_nbytes == path.stat().st_size
    assert summary.note


def test_several_parts_and_unknown_types() -> None:
    float32, uint32 = BY_NAME["float32"], BY_NAME["uint32"]
    index = Index.of_payloads(
        ["sparse", "odd"],
        [float32.code, uint32.code, uint32.code, UNKNOWN],
        [(3,), (3,), (5,), (2, 2)],
        [Memory(np.zeros(n, np.float32)) for n in (3, 3, 5, 1)],
        first_rows=np.array([0, 3, 4]),
        part_names=["values", "indices", "indptr", "data"],
        layouts={0: Layout("zt.sparse_csr/1", dense(float32, (4, 9)))},
        unknown_dtypes={3: "float3"},
        checksums=["crc32c:0x00000000", None, None, None],
    )
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
    assert selected(NAMES, patterns) == found


def test_a_pattern_without_a_match_is_an_error() -> None:
    with pytest.raises(TensorNotFound, match=r"nearest: 'a\.weight'"):
        selected(NAMES, ["x", "a.wight"])
