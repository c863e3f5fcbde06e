"""Storing many small tensors at once: columns instead of a pipeline.

A plain dense tensor that is too small for a delta is two blocks, its bytes and its array
node. For 100,000 of them, what counts is not hashing but the work around it. So they are
read in batches, as `load` does; the end of the node, size and type, is encoded once for
each kind of tensor; and all digests of a batch are looked up together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorglot.dynd.cbor import array_block_ends
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE
from tensorglot.model.payload import as_bytes
from tensorglot.model.types.algebra import dense
from tensorglot.model.types.text import text_of
from tensorglot.operations._small_rows import is_small
from tensorglot.operations.load import load_archive
from tensorglot.store.session import Session
from tensorglot.wire.cid import CID, DAG_CBOR, RAW

__all__ = ["TINY_NBYTES", "ingest_small", "small_tensors"]

TINY_NBYTES = 256
"""Smaller values are not stored as deltas: the record of a delta would take as much."""
_FEW = 64
"""Fewer tensors are not worth a batch."""
_BATCH = 1 << 14


def small_tensors(archive: Archive) -> NDArray[np.int64]:
    """The positions of the tensors that can be stored this way, if they are many."""
    index = archive.index
    rows = np.arange(len(index.names))
    found = np.flatnonzero(is_small(index, rows) & (index.nbytes[rows] < TINY_NBYTES))
    return found if len(found) >= _FEW else found[:0]


def ingest_small(
    session: Session, archive: Archive, positions: NDArray[np.int64], seen: Callable[[int], None]
) -> Iterator[tuple[int, CID]]:
    """Stores tensors; yields the position and link of each."""
    index = archive.index
    shapes, codes = index.shapes, index.dtypes.tolist()
    ends: dict[tuple[int, tuple[int, ...]], tuple[bytes, bytes]] = {}
    for start in range(0, len(positions), _BATCH):
        batch = positions[start : start + _BATCH].tolist()
        datas = _read(archive, batch)
        digests = [blake3(data).digest() for data in datas]
        nodes = []
        for position, data, digest in zip(batch, datas, digests, strict=True):
            kind = codes[position], shapes[position]
            if kind not in ends:
                ends[kind] = array_block_ends(text_of(dense(TABLE[kind[0]], kind[1])), len(data))
            first, last = ends[kind]
            nodes.append(first + digest + last)
        links = [blake3(node).digest() for node in nodes]
        for blocks, names, codec in ((datas, digests, RAW), (nodes, links, DAG_CBOR)):
            for block, digest, known in zip(blocks, names, session.packs.contains(names), strict=True):
                if not known and not session.is_new(digest):
                    session.add(digest, block, codec)
        seen(sum(map(len, datas)))
        yield from zip(batch, (CID(link, DAG_CBOR) for link in links), strict=True)


def _read(archive: Archive, batch: list[int]) -> list[bytes]:
    """The bytes of some tensors."""
    pieces = archive.read_rows(np.array(batch, np.int64))
    if pieces is not None:
        return [*map(bytes, pieces)]
    names = [archive.index.names[position] for position in batch]
    arrays = load_archive(archive, names, {})()
    return [bytes(as_bytes(cast("NDArray[Any]", arrays[name]))) for name in names]
