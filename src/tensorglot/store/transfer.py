"""Moving commits from one store to another: only what is missing, as it is stored.

All that a ref leads to is looked up in the target; what it lacks is copied, record by
record, with the bases of deltas. Each block is decoded and compared with its CID before
it is written. The target's packs become visible every 256 MiB, so a transfer that was
killed goes on where it stopped. The refs are moved last.

A ref moves forward only: the target's commit must be an ancestor of the new one. All refs
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
from tensorglot.store.packs import Packs
from tensorglot.store.reach import Walk
from tensorglot.store.refs import Ref, read_ref, swap_ref
from tensorglot.store.session import Session, start_session
from tensorglot.threads import ordered_map
from tensorglot.wire.cid import CID, RAW

__all__ = ["Transferred", "bases_of", "copy_missing", "forward_ref", "transfer"]

FLUSH_NBYTES = 256 << 20

History = Callable[[CID], Iterable[CID]]
"""A commit and all its ancestors."""


@dataclass(frozen=True, slots=True, repr=False)
class Transferred(Record):
    """The result of `push`, `pull`, `bundle` and `unbundle`."""

    refs: tuple[str, ...]
    """Those that were moved."""
    blocks: int
    """That the other side did not have."""
    nbytes: int
    """Stored bytes of these blocks."""

    def __repr__(self) -> str:
        names = ", ".join(escape(ref, longest=40) for ref in self.refs[:4]) or "no refs"
        return f"Transferred({names}: {plural(self.blocks, 'block')}, {human_nbytes(self.nbytes)})"


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


def transfer(
    source: Packs, backend: Backend, target: Packs, refs: Iterable[Ref], history: History, progress: Progress | None
) -> Transferred:
    """Copies what refs lead to, and moves the refs of the target."""
    source.refresh()
    refs = list(refs)
    moved: list[str] = []
    with start_session(backend, target) as session:
        for ref in refs:
            _check_forward(backend, ref, read_ref(backend, ref.name), history)
        blocks, nbytes = copy_missing(source, session, [ref.cid for ref in refs], progress)
        for ref in refs:
            if forward_ref(backend, ref, history, moved):
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


def forward_ref(backend: Backend, ref: Ref, history: History, moved: Sequence[str] = ()) -> bool:
    """Moves a ref of a store to a commit that comes after its present one. False if it is there already.

    `moved` are the refs that were moved before, for the error.
    """
    while True:
        old = read_ref(backend, ref.name)
        _check_forward(backend, ref, old, history, moved)
        if old is not None and old.cid == ref.cid:
            return False
        if swap_ref(backend, ref.name, old, Ref.new(ref.name, ref.cid, ref.kind, old)):
            return True


def _check_forward(backend: Backend, ref: Ref, old: Ref | None, history: History, moved: Sequence[str] = ()) -> None:
    """Refuses a ref that stands for another commit than an ancestor of the new one."""
    if old is None or old.cid == ref.cid:
        return
    if ref.kind == "tag" or old.kind == "tag" or old.cid not in history(ref.cid):
        done = f"only {', '.join(map(escape, moved))} moved" if moved else "no ref was moved"
        raise InputError(
            f"'{escape(ref.name)}' is {old.cid} in {escape(backend.url)}, which is not an ancestor of {ref.cid}; "
            f"{done}",
            rule="store.ref.diverged",
        )
