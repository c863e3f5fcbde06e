"""A content-addressed store of tensors: every version, for little more than one.

Logical, by content:

    objects.py      nodes: arrays, tensors, commits
    manifest.py     the names of a commit, in nodes that versions share
    reach.py        what a node leads to
    chunks.py       the chunks of a value, by number
    lineage.py      what each chunk replaced
    blocks.py       all blocks as a mapping, for links

Physical, where bytes are:

    backend.py      a directory: ranges, compare-and-swap, announcements of writers
    remote.py       a folder of an object store, with the same keys
    lease.py        announcements and locks that end by themselves
    location.py     paths and URLs of stores
    pack.py         many blocks in one object, with its index
    lookup.py       where each block of all packs is
    chains.py       decoding a block from a record in full and the deltas on it
    marks.py        which records are damaged
    packs.py        all packs: decoding and checking blocks
    salvage.py      a block from any copy that is intact
    encodings.py    a chunk as stored bytes: planes, deltas
    encoder.py      the smallest of them for a chunk
    session.py      writing new blocks
    copying.py      blocks as they are stored, from one pack to another
    condemned.py    packs that are about to be removed
    refs.py         names of commits

The verbs:

    store.py        Store
    units.py        tensors as values that are stored
    ingest.py       from tensors to blocks
    small.py        the same for many small tensors at once
    checkout.py     from a commit to an archive
    columns.py      the same for dense tensors, without an object for each
    distributed.py  the same for a commit that many ranks have written
    stats.py        what a store holds, what a commit costs
    structure.py    whether nodes are what they must be
    check.py        whether all is there and undamaged
    collect.py      removing garbage, joining packs
    transfer.py     push and pull
    bundle.py       commits as CAR files

Without a store:

    delta_make.py      a delta of two versions
    delta_small.py     the same for many small tensors at once
    delta_file.py      a delta in memory
    delta_targets.py   arrays of the caller as memory to change
    delta_apply.py     applying a delta to them
    delta_patch.py     applying a delta to a file
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorglot.store.delta_apply import apply as apply
    from tensorglot.store.delta_make import delta as delta
    from tensorglot.store.delta_patch import patch as patch
    from tensorglot.store.objects import Commit as Commit
    from tensorglot.store.stats import StoreStats as StoreStats
    from tensorglot.store.store import Store as Store
    from tensorglot.store.store import open_url as open_url

_HOME_OF = {
    "Commit": "objects",
    "Store": "store",
    "StoreStats": "stats",
    "apply": "delta_apply",
    "delta": "delta_make",
    "open_url": "store",
    "patch": "delta_patch",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"tensorglot.store.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tensorglot.store' has no attribute '{name}'", name=name)


def __dir__() -> list[str]:
    return __all__
