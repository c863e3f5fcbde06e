"""Moving commits from one store to another: only what is missing, as it is stored.

All that a ref leads to is looked up in the target; what it lacks is copied, record by
record, with the bases of deltas. Each block is decoded and compared with its CID before
it is written. The target's packs become visible every 256 MiB, so a transfer that was
killed goes on where it stopped. The refs are moved last.

A ref moves forward only: the target's commit must be an ancestor of the new one. Where it
is a descendant, the target has the new one already: a receiver keeps its ref
(`keep_ahead`), a sender gets an error, since its commit is not the latest one. All refs
are compared before anything is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tensorglot.errors import InputError, escape, human_nbytes, plural
from tensorglot.operations._jsonable import Record
from tensorglot.operations._progress import Progress
from tensorglot.store.backend import Backend
from tensorglot.store.copying import Copy, add_copy, read_copy
from tensorglot.store.lineage import commits_from
from tensorglot.store.packs import Packs
from tensorglot.store.reach import Walk
from tensorglot.store.refs import Ref, read_ref, swap_ref
from tensorglot.store.session import Session, start_session
from tensorglot.threads import ordered_map
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import CID, RAW

__all__ = ["Receiver", "Transferred", "bases_of", "copy_missing", "forward_ref", "transfer"]

FLUSH_NBYTES = 256 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Transferred(Record):
    """The result of `push`, `pull`, `bundle` and `unbundle`."""

    refs: tuple[str, ...]
    """Refs that were moved."""
    blocks: int
    """Blocks that the other store did not have."""
    nbytes: int
    """Stored bytes of these blocks."""

    def __repr__(self) -> str:
        names = ", ".join(escape(ref, longest=40) for ref in self.refs[:4]) or "no refs"
        return f"Transferred({names}: {plural(self.blocks, 'block')}, {human_nbytes(self.nbytes)})"


class Receiver(NamedTuple):
    """The store that gets commits."""

    backend: Backend
    packs: Packs
    keep_ahead: bool
    """Whether a ref that has later commits already stays; otherwise it is an error."""


def bases_of(packs: Packs, cids: Iterable[CID], have: Callable[[bytes], bool]) -> dict[bytes, int]:
    """The digests and codecs of blocks, and of the bases that their deltas need and that the receiver lacks."""
    wanted = {cid.digest: cid.codec for cid in cids}
    stack = list(wanted)
    while stack:
        stored = packs.find(stack.pop())
        base = None if stored is None else stored.record.base
        if base is not None and base not in wanted and not have(base):
            wanted[base] = RAW
            stack.append(base)
    return wanted


def transfer(source: Packs, store: Receiver, refs: Iterable[Ref], progress: Progress | None) -> Transferred:
    """Copies what refs lead to, and moves the refs of the store."""
    source.refresh()
    refs = list(refs)
    moved: list[str] = []
    with start_session(store.backend, store.packs) as session:
        for ref in refs:
            _must_move(store, ref, read_ref(store.backend, ref.name), source)
        blocks, nbytes = copy_missing(source, session, [ref.cid for ref in refs], progress)
        for ref in refs:
            if forward_ref(store, ref, source, moved):
                moved.append(ref.name)
    return Transferred(tuple(moved), blocks, nbytes)


def copy_missing(
    source: Packs, session: Session, roots: Iterable[CID], progress: Progress | None = None
) -> tuple[int, int]:
    """Copies what roots lead to and a session does not find; returns the number of blocks and their stored bytes."""
    here = session.packs
    walk = Walk(source)
    missing = [cid for cid in walk.visit(roots) if here.find(cid.digest) is None]
    if walk.broken:
        raise walk.broken[0][1]
    wanted = bases_of(source, missing, lambda digest: here.find(digest) is not None)
    places = {digest: source.locate(digest) for digest in wanted}
    total = sum(stored.record.stored for stored in places.values())
    done = since = 0

    def read(digest: bytes) -> Copy:
        return read_copy(source, places[digest], digest, wanted[digest])

    # Bases before their deltas; else in the order of the source: neighbours are read, and stay, together.
    for copy in ordered_map(read, sorted(places, key=lambda digest: places[digest].order)):
        add_copy(session, copy)
        done += places[copy.digest].record.stored
        since += places[copy.digest].record.stored
        if since >= FLUSH_NBYTES:
            session.flush()
            since = 0
        if progress is not None:
            progress(done, total)
    session.flush()
    return len(wanted), total


def forward_ref(store: Receiver, ref: Ref, source: Packs, moved: Sequence[str] = ()) -> bool:
    """Moves a ref of a store to a commit of `source` that comes after its present one. False if it stays.

    `moved` are the refs that were moved before, for the error.
    """
    while True:
        old = read_ref(store.backend, ref.name)
        if not _must_move(store, ref, old, source, moved):
            return False
        if swap_ref(store.backend, ref.name, old, Ref.new(ref.name, ref.cid, ref.kind, old)):
            return True


def _must_move(store: Receiver, ref: Ref, old: Ref | None, source: Packs, moved: Sequence[str] = ()) -> bool:
    """Whether a ref has to be moved; an error if it may not."""
    if old is None or old.cid == ref.cid:
        return old is None
    if ref.kind != "tag" and old.kind != "tag":
        if _is_ancestor(source, old.cid, ref.cid):
            return True
        store.packs.refresh()  # another process may have committed
        if store.keep_ahead and _is_ancestor(store.packs, ref.cid, old.cid):
            return False
    done = f"only {', '.join(map(escape, moved))} moved" if moved else "no ref was moved"
    raise InputError(
        f"'{escape(ref.name)}' is {old.cid} in {escape(store.backend.url)}, which is not an ancestor of {ref.cid}; "
        f"{done}",
        rule="store.ref.diverged",
    )


def _is_ancestor(packs: Packs, old: CID, new: CID) -> bool:
    return any(commit.cid == str(old) for commit in commits_from(packs, [new]))
