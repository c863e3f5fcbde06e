"""Decoding a block from its chain: a record in full, and the deltas on it, in place.

The bodies of all records that some blocks need are read into one buffer, neighbours by one
request, and are decoded from there: no body is copied, and all deltas of one kind on a block
are one call of a kernel. Knows records and where they are; compares nothing with its digest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add

import numpy as np
from numpy.typing import NDArray

from tensorglot.memory import SCRATCH_NBYTES, Scratch, allocate, scratch
from tensorglot.store.backend import Backend
from tensorglot.store.encodings import IS_DELTA, SPARE_NBYTES, apply_chain, decode, wrong_base
from tensorglot.store.lookup import Chains, Stored
from tensorglot.store.salvage import pack_key
from tensorglot.tuples import NamedTuple

__all__ = ["Bodies", "decode_chain", "read_bodies"]

_GAP_NBYTES = 32 << 10
"""Records with at most this many bytes between them are read by one request."""
_PAGE = 4096


class Bodies(NamedTuple):
    """The bodies of records in memory."""

    data: memoryview
    spans: NDArray[np.int64]
    """Begin and end of each in `data`, which has SPARE_NBYTES more bytes."""

    def body(self, at: int) -> memoryview:
        begin, end = self.spans[at].tolist()
        return self.data[begin:end]


def read_bodies(
    backend: Backend, packs: Sequence[str], offsets: Sequence[int], sizes: Sequence[int], memory: Scratch
) -> Bodies:
    """Reads bodies, into `memory` if they fit.

    Those of a batch of chunks lie together in the pack of each version, so four chunks with ten deltas each need
    11 reads instead of 44: requests, in an object store.
    """
    begins = [0] * len(packs)
    runs: list[_Run] = []
    used = 0
    for at in sorted(filter(sizes.__getitem__, range(len(packs))), key=lambda at: (packs[at], offsets[at])):
        offset = offsets[at]
        if not runs or runs[-1].pack != packs[at] or offset - runs[-1].end > _GAP_NBYTES:
            used += (offset - used) % _PAGE
            runs.append(_Run(packs[at], offset, offset, used))
        run = runs[-1]
        run.end = max(run.end, offset + sizes[at])
        used = run.start + run.end - run.begin
        begins[at] = run.start + offset - run.begin
    nbytes = used + SPARE_NBYTES
    data = memory.room(nbytes, 0) if nbytes <= SCRATCH_NBYTES else allocate(nbytes)
    for run in runs:
        backend.read_into(pack_key(run.pack), run.begin, data[run.start : run.start + run.end - run.begin])
    return Bodies(data, np.array([begins, list(map(add, begins, sizes))], np.int64).T.copy())


@dataclass(slots=True, eq=False)
class _Run:
    """Bodies that are read together. They may overlap, in packs that others have written."""

    pack: str
    begin: int
    end: int
    start: int
    """Where it begins in memory: congruent to its place in the pack, modulo a page (`memory.py`)."""


def decode_chain(
    chains: Chains, first: int, last: int, bodies: Bodies, group: Callable[[Stored], bytes], out: memoryview
) -> None:
    """Decodes the block whose records are those from `first` to `last`.

    A base of another size is cut, or followed by zeros. `group` returns a block that is one of a group.
    """
    encodings, sizes = chains.encodings[first + 1 : last], chains.sizes[first:last]
    if (
        chains.encodings[first] in IS_DELTA
        or any(chains.grouped[first + 1 : last])
        or not IS_DELTA.issuperset(encodings)
    ):
        raise wrong_base()

    def decode_first(out: memoryview) -> None:
        if chains.grouped[first]:
            out[:] = group(chains.records(first))
        else:
            decode(chains.encodings[first], bodies.body(first), out)

    if min(sizes) == len(out) == max(sizes):
        decode_first(out)
        apply_chain(encodings, bodies.data, bodies.spans[first + 1 : last], out)
        return
    with scratch() as memory:
        room, filled = memory.room(max(sizes), 0), sizes[0]
        decode_first(room[:filled])
        for at, nbytes in enumerate(sizes[1:], first + 1):
            room[filled:nbytes] = bytes(max(0, nbytes - filled))
            filled = nbytes
            apply_chain([chains.encodings[at]], bodies.data, bodies.spans[at : at + 1], room[:filled])
        out[:] = room[:filled]
