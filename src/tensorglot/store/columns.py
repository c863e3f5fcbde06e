"""The arrays of a commit as columns: no object for each of 100,000 tensors.

A commit has few kinds of arrays, a type and a size each. The nodes of all of a kind differ
in a digest, so a kind is parsed and checked once. Tensors that are more than one dense
array (nested, sparse, with attributes) have rows of their own (`checkout.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from tensorglot.model.dtypes import DType
from tensorglot.model.index import Index, shape_columns, take_shapes
from tensorglot.model.types.algebra import dense_parts
from tensorglot.model.types.base import Type
from tensorglot.store.objects import LEAF_HEAD, LEAF_NBYTES, ArrayNode, parse_array
from tensorglot.wire.cid import BLAKE3, CID, RAW, blake3_cids

__all__ = ["ArrayColumns", "dense_index", "parse_arrays", "parse_columns"]


@dataclass(frozen=True, eq=False)
class ArrayColumns(Sequence[ArrayNode]):
    """Array nodes."""

    kinds: list[tuple[str, int]]
    """Types and sizes."""
    rows: NDArray[np.int32]
    """The kind of each array; -1 for another node."""
    digests: list[bytes]
    """The digest of the data of each array."""
    trees: dict[int, CID] = field(default_factory=dict)
    """Links to data that is not one block."""

    def __len__(self) -> int:
        return len(self.digests)

    @overload
    def __getitem__(self, at: int) -> ArrayNode: ...
    @overload
    def __getitem__(self, at: slice) -> list[ArrayNode]: ...
    def __getitem__(self, at: int | slice) -> ArrayNode | list[ArrayNode]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        tree = self.trees.get(at)
        return ArrayNode(*self.kinds[self.rows.item(at)], CID(self.digests[at]) if tree is None else tree)

    @property
    def nbytes(self) -> NDArray[np.int64]:
        return np.array([nbytes for _, nbytes in self.kinds], np.int64)[self.rows]


def parse_columns(blocks: Sequence[bytes]) -> ArrayColumns:
    """Many array nodes. Sizes and types that repeat are parsed once."""
    kinds: dict[tuple[str, int], int] = {}
    known: dict[bytes, int] = {}
    """What follows the digest in the node of a kind."""
    rows: list[int] = []
    trees: dict[int, CID] = {}
    for at, block in enumerate(blocks):
        kind = known.get(block[LEAF_NBYTES:]) if block.startswith(LEAF_HEAD) else None
        if kind is None and block[:1] != b"\xa4":
            kind = -1
        elif kind is None:
            array = parse_array(block)
            kind = kinds.setdefault((array.type, array.nbytes), len(kinds))
            if array.data.codec == RAW and array.data.hash == BLAKE3:
                known[block[LEAF_NBYTES:]] = kind
            else:
                trees[at] = array.data
        rows.append(kind)
    digests = [block[len(LEAF_HEAD) : LEAF_NBYTES] for block in blocks]
    return ArrayColumns(list(kinds), np.array(rows, np.int32), digests, trees)


def parse_arrays(blocks: Sequence[bytes]) -> list[ArrayNode | None]:
    """Many array nodes; None for other nodes."""
    found = parse_columns(blocks)
    kinds: list[tuple[str, int]] = found.kinds
    links = (found.trees.get(at, link) for at, link in enumerate(blake3_cids(found.digests, RAW)))
    return [
        None if kind < 0 else ArrayNode(kinds[kind][0], kinds[kind][1], link)
        for kind, link in zip(found.rows.tolist(), links, strict=True)
    ]


def dense_index(names: list[str], arrays: ArrayColumns, types: Sequence[Type]) -> Index | None:
    """The index of arrays that lie one after the other, of the types of their kinds; None if one is not plain."""
    blocks: list[tuple[DType, tuple[int, ...]]] = []
    for type in types:
        block = dense_parts(type)
        if block is None or block[0].packed:
            return None
        blocks.append(block)
    ends = np.cumsum(arrays.nbytes)
    dims, dim_offsets = take_shapes(*shape_columns([shape for _, shape in blocks]), arrays.rows.astype(np.int64))
    return Index(
        format="",
        names=names,
        dtypes=np.array([dtype.code for dtype, _ in blocks], np.uint8)[arrays.rows],
        dims=dims,
        dim_offsets=dim_offsets,
        begins=ends - arrays.nbytes,
        ends=ends,
        part_names=["data"] * len(names),
    )
