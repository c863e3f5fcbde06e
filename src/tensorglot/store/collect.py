"""Collecting garbage: removing the packs that no ref leads to, beside running writers.

In two steps, which may be years apart. First a pack that nothing needs is condemned:
writers that start from then on do not rely on it. Later it is removed, if it is still not
needed, has been condemned for the grace period, and every running writer has seen that it
is condemned. Packs of running writers are left alone. Each step can be interrupted at any
point: a pack is complete until it is gone.

If a node that refs lead to cannot be read, nothing is removed: what it leads to is not
known. A pack whose index cannot be read is not needed if everything is there without it.

Repacking copies what is needed out of packs that are small, mostly garbage or damaged, as
it is stored, into new packs. The old ones are then collected like any others.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensorglot.errors import FormatError, InputError, human_nbytes, plural
from tensorglot.operations._jsonable import Record
from tensorglot.store.backend import Backend
from tensorglot.store.condemned import condemn, condemned, pardon
from tensorglot.store.copying import Copy, add_chunk, add_copy, read_copy
from tensorglot.store.lineage import Origin, commits_from, find_origins
from tensorglot.store.marks import delete_marks
from tensorglot.store.pack import PackIndex
from tensorglot.store.packs import Packs, Stored, pack_key
from tensorglot.store.reach import Walk
from tensorglot.store.refs import Ref, list_refs
from tensorglot.store.session import PACK_NBYTES, Session, start_session
from tensorglot.threads import for_each, ordered_map
from tensorglot.wire.cid import CID, DAG_CBOR, RAW

__all__ = ["GRACE", "Collected", "collect", "repack"]

GRACE = 86_400.0
"""Seconds."""
_GARBAGE = 0.25
"""A pack with a larger share of garbage is rewritten."""


@dataclass(frozen=True, slots=True, repr=False)
class Collected(Record):
    """The result of `collect` and `repack`."""

    packs: int
    """Packs that were removed."""
    nbytes: int
    """Bytes that were freed."""
    waiting: int
    """Packs that are not needed, to be removed after the grace period."""
    waiting_nbytes: int

    def __repr__(self) -> str:
        later = f"; {plural(self.waiting, 'pack')} ({human_nbytes(self.waiting_nbytes)}) later" if self.waiting else ""
        return f"Collected({plural(self.packs, 'pack')}, {human_nbytes(self.nbytes)}{later})"


def collect(backend: Backend, packs: Packs, grace: float) -> Collected:
    """Condemns packs that are not needed, and removes packs that have been condemned for the grace period."""
    _check_grace(grace)
    with backend.exclusive("collect"):
        return _collect(backend, packs, grace)


def _check_grace(grace: float) -> None:
    if isinstance(grace, bool) or not isinstance(grace, (int, float)) or not grace >= 0:
        raise InputError(f"grace must be a number of seconds, not {grace!r}", rule="store.grace")


def _collect(backend: Backend, packs: Packs, grace: float) -> Collected:
    backend.clean(grace)
    packs.refresh()
    before, writers = _names(packs), backend.writers()
    for pack in before - _needed(backend, packs).rows.keys() - condemned(backend).keys():
        if pack.partition("-")[0] not in writers:
            condemn(backend, pack)
    # Writers that are announced from here on see what is condemned; those before are in the list.
    writers, since = backend.writers(), condemned(backend)
    packs.refresh()
    needed = _needed(backend, packs).rows
    removed, waiting = [], []
    sizes = {f"packs/{entry.name}": entry.nbytes for entry in backend.list("packs")}
    for pack in sorted(since):
        nbytes = sizes.get(pack_key(pack))
        if pack in needed or nbytes is None:
            pardon(backend, pack)
        elif time.time() - since[pack] >= grace and all(pack in note.split() for note in writers.values()):
            backend.delete(pack_key(pack))
            pardon(backend, pack)
            removed.append(nbytes)
        else:
            waiting.append(nbytes)
    packs.refresh()
    delete_marks(backend, {pack: spans for pack, spans in packs.marks.items() if pack not in _names(packs)})
    return Collected(len(removed), sum(removed), len(waiting), sum(waiting))


def _names(packs: Packs) -> set[str]:
    """All packs, also those whose index is damaged."""
    damaged = {name for name, error in packs.unreadable.items() if isinstance(error, FormatError)}
    return packs.indexes.keys() | damaged


@dataclass(frozen=True, slots=True)
class _Needed:
    """What refs lead to: the rows of each pack, by digest, and which of the blocks are nodes."""

    rows: dict[str, dict[bytes, int]]
    nodes: frozenset[bytes]


def _needed(backend: Backend, packs: Packs) -> _Needed:
    """The blocks that refs lead to, and the bases of deltas: from packs that stay, where these are enough."""
    refs = list(list_refs(backend))
    packs.refresh()  # after the refs were read: what they lead to is there
    walk = Walk(packs)
    reached = list(walk.visit(ref.cid for ref in refs))
    if walk.broken:
        cid, error = walk.broken[0]
        raise InputError(
            f"nothing was removed, since {cid} cannot be read ({error.message}); run check", rule="store.collect.broken"
        )
    doomed, every = condemned(backend).keys(), _homes(packs)
    staying = _homes(packs.without(doomed)) if doomed else every
    rows: dict[str, dict[bytes, int]] = {}
    wanted = [(cid.digest, staying if cid.digest in staying else every) for cid in reached]
    while wanted:
        digest, homes = wanted.pop()
        if digest not in homes:
            raise InputError(
                f"nothing was removed, since block {CID(digest)} is missing; run check", rule="store.collect.broken"
            )
        _, _, pack, row = homes[digest]
        found = rows.setdefault(pack, {})
        if digest not in found:
            found[digest] = row
            base = packs.indexes[pack].record(row).base
            wanted += [] if base is None else [(base, homes)]
    return _Needed(rows, frozenset(cid.digest for cid in reached if cid.codec == DAG_CBOR))


def _homes(packs: Packs) -> dict[bytes, tuple[int, int, str, int]]:
    """The best copy of each block: with the fewest deltas, so its base has a copy with still fewer; in a large pack."""
    homes: dict[bytes, tuple[int, int, str, int]] = {}
    for digest, pack, row, depth in packs.copies():
        place = depth, -packs.indexes[pack].nbytes, pack, row
        homes[digest] = min(place, homes.get(digest, place))
    return homes


def repack(backend: Backend, packs: Packs, grace: float) -> Collected:
    """Rewrites small packs and those with much garbage, and collects."""
    _check_grace(grace)
    with backend.exclusive("collect"):
        packs.refresh()
        needed, writers = _needed(backend, packs), backend.writers()
        poor = [
            pack
            for pack, rows in needed.rows.items()
            if (pack in packs.marks or _poor(packs.indexes[pack], len(rows))) and pack.partition("-")[0] not in writers
        ]
        if len(poor) > 1 or any(len(needed.rows[pack]) < len(packs.indexes[pack].digests) for pack in poor):
            with start_session(backend, packs) as session:
                _copy(packs, poor, needed, session, list_refs(backend))
            copies = packs.without(poor)
            copies.refresh()
            for_each(copies.check, [digest for pack in poor for digest in needed.rows[pack]], backend.concurrency)
            for pack in poor:
                condemn(backend, pack)
        return _collect(backend, packs, grace)


def _poor(index: PackIndex, needed: int) -> bool:
    """Whether a pack is small, or more than a quarter of its blocks is garbage."""
    return index.nbytes < PACK_NBYTES // 2 or needed < (1 - _GARBAGE) * len(index.digests)


def _copy(packs: Packs, poor: Iterable[str], needed: _Needed, session: Session, refs: Iterable[Ref]) -> None:
    """Copies records, bases before their deltas; small blocks are grouped anew.

    Records stay as they are, but a chunk in full that replaced another one becomes a delta where that is smaller.
    """
    places = {
        digest: Stored(pack, packs.indexes[pack].record(row))
        for pack in poor
        for digest, row in needed.rows[pack].items()
    }
    commits = list(commits_from(packs, (ref.cid for ref in refs)))
    order, deltas = _plan(places, find_origins(packs, reversed(commits)), packs)

    def read(digest: bytes) -> Copy:
        return read_copy(packs, places[digest], digest, DAG_CBOR if digest in needed.nodes else RAW)

    for copy in ordered_map(read, order):
        origin = deltas.get(copy.digest)
        if origin is None:
            add_copy(session, copy)
        else:
            add_chunk(session, copy.digest, copy.data, origin, packs.read)


def _plan(
    places: Mapping[bytes, Stored], origins: Mapping[bytes, Origin], packs: Packs
) -> tuple[list[bytes], dict[bytes, Origin]]:
    """The blocks of some places, bases first, and those in full that may become deltas."""
    deltas = {
        digest: origin
        for digest, origin in origins.items()
        if digest in places
        and places[digest].record.base is None
        and not places[digest].record.grouped
        and origin.base is not None
        and packs.find(origin.base) is not None
    }
    order: dict[bytes, None] = {}
    for first in sorted(places, key=lambda digest: places[digest].order):
        path = {first: None} if first not in order else {}
        while path:
            digest = next(reversed(path))
            base = deltas[digest].base if digest in deltas else places[digest].record.base
            if base is None or base not in places or base in order:
                order[digest] = path.pop(digest)
            elif base in path:  # a version came back: one of the circle stays in full
                circle = list(path)[list(path).index(base) :]
                while circle[-1] not in deltas:
                    del path[circle.pop()]
                del deltas[circle[-1]]
            else:
                path[base] = None
    return list(order), deltas
