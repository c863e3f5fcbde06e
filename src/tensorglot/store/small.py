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

from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import UNKNOWN
from tensorglot.model.payload import as_bytes
from tensorglot.model.types.algebra import dense
from tensorglot.model.types.text import text_of
from tensorglot.operations.load import load_archive
from tensorglot.store.objects import leaf_array_ends
from tensorglot.store.session import Session
from tensorglot.wire.cid import CID, DAG_CBOR, RAW

__all__ = ["TINY_NBYTES", "ingest_small", "small_tensors"]

TINY_NBYTES = 256
"""Smaller values are not stored as deltas: the record of a delta would take as much."""
_FEW = 64
"""Fewer tensors are not worth a batch."""
_BATCH = 1 << 14
_CONVERTED = [row.code for row in TABLE if row.packed or row.name == "bool" or row.numpy is None]
"""Element types whose canonical bytes are not those of the file, or must be checked."""


def small_tensors(archive: Archive) -> NDArray[np.int64]:
    """The positions of the tensors that can be stored this way, if they are many."""
    index = archive.index
    if index.first_rows is not None:
        return np.empty(0, np.int64)
    small = (index.nbytes < TINY_NBYTES) & ~np.isin(index.dtypes, [*_CONVERTED, UNKNOWN])
    small[[*index.layouts, *index.attributes, *index.codecs, *index.big_endian]] = False
    if index.payloads is not None:
        small &= np.fromiter((isinstance(held, np.ndarray) for held in index.payloads), np.bool_, len(small))
    found = np.flatnonzero(small)
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
                ends[kind] = leaf_array_ends(text_of(dense(TABLE[kind[0]], kind[1])), len(data))
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
    index = archive.index
    if index.payloads is not None:
        held = cast("list[NDArray[Any]]", [index.payloads[position] for position in batch])
        return [array.tobytes() for array in held]
    pieces = archive.read_rows(np.array(batch, np.int64))
    if pieces is not None:
        return [*map(bytes, pieces)]
    names = [index.names[position] for position in batch]
    arrays = load_archive(archive, names, {})
    return [bytes(as_bytes(cast("NDArray[Any]", arrays[name]))) for name in names]
