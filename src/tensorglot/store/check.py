"""Checking a store: is everything there that refs lead to, and is it what its CID says?

Structure: the refs, the index of every pack, every node and every link from the refs on,
and the bases of deltas. `data=True` also decodes every record of every pack and hashes
all blocks in it, on all processors. Records that are damaged are marked, so that writers
store their blocks again (`marks.py`).

One cause is one problem: it names the pack or the blocks, the commits that cannot be read
because of it, and what to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from tensorglot.errors import FormatError, IntegrityError, TensorglotError
from tensorglot.operations._progress import Progress
from tensorglot.operations.verify import Problem, Report
from tensorglot.store.backend import Backend, require_store
from tensorglot.store.checkout import FORMAT, read_node
from tensorglot.store.condemned import condemned
from tensorglot.store.lookup import Stored
from tensorglot.store.marks import Marks, Span, merge_spans, update_marks
from tensorglot.store.objects import Commit, parse_array
from tensorglot.store.pack import PackIndex
from tensorglot.store.packs import Packs, pack_key
from tensorglot.store.reach import Walk
from tensorglot.store.refs import Ref, inspect_refs
from tensorglot.store.stats import Sizes
from tensorglot.store.structure import Structure
from tensorglot.threads import ordered_map
from tensorglot.wire.cid import CHUNK_NBYTES, CID

__all__ = ["check_store"]

_BATCH_COUNT, _BATCH_NBYTES = 256, 4 * CHUNK_NBYTES
"""Records that a thread decodes at a time."""
_SHORT = 12
"""Characters of the CID of a commit, as `store log` prints it."""

Damage = dict[str, dict[Span, TensorglotError | None]]
"""Packs to their damaged records; None for what an earlier check has found."""

_WAY_OUT = "pull from a copy, or commit the same tensors again"


def check_store(backend: Backend, packs: Packs, *, data: bool, progress: Progress | None) -> Report:
    """The report on a whole store."""
    require_store(backend)  # without it no ref is there, and so nothing would be missing
    packs.refresh()
    hashed = 0
    damage: Damage = {pack: dict.fromkeys(spans) for pack, spans in packs.marks.items() if pack in packs.indexes}
    if data:
        hashed, damage = _rehash(packs, progress)
        _mark(backend, packs, damage)
    refs = list(inspect_refs(backend))
    packs.refresh()  # after the refs were read: what they lead to is there
    roots = [ref.cid for ref in refs if isinstance(ref, Ref)]
    walk = Walk(packs, keep_links=True)
    reached = list(walk.visit(roots))
    lost = _Lost(packs, walk, reached)
    for pack, spans in lost.damage.items():
        damage[pack] = {**spans, **damage.get(pack, {})}
    commits = {cid: commit for cid in reached if (commit := _commit(packs, cid)) is not None}
    above = _Above(walk.links or {}, commits)
    waiting = condemned(backend)
    problems = [Problem.of(error) for error in refs if isinstance(error, TensorglotError)]
    for name, error in packs.unreadable.items():
        if name not in waiting or lost.missing:
            problems.append(Problem(error.rule, f"{pack_key(name)}: {error.message}", None, error.offset))
    for pack, spans in damage.items():
        if pack not in waiting or lost.blocks[pack]:
            problems.append(_damage_problem(pack, spans, above.name(lost.blocks[pack])))
    problems += [_missing_problem(rule, cids, above.name(lost.blocks[rule])) for rule, cids in lost.missing.items()]
    problems += [_node_problem(cid, error, above) for cid, error in lost.wrong]
    problems += _wrong_nodes(packs, roots, commits, lost.all)
    sizes = Sizes(packs)
    nbytes = 0 if problems else sum(sizes.of(commit.tensors)[1] for commit in commits.values())
    return Report(FORMAT, len(sizes.tensors), nbytes, hashed, problems=tuple(problems))


class _Lost:
    """Blocks that refs lead to and that cannot be read, by their cause."""

    def __init__(self, packs: Packs, walk: Walk, reached: list[CID]) -> None:
        self.blocks: defaultdict[str, list[CID]] = defaultdict(list)
        """The damage, by the name of the damaged pack, or by the rule that a missing block breaks."""
        self.damage: defaultdict[str, dict[Span, TensorglotError | None]] = defaultdict(dict)
        self.missing: defaultdict[str, set[CID]] = defaultdict(set)
        """Blocks that are in no pack: those that links lead to, and the bases of deltas."""
        self.wrong: list[tuple[CID, TensorglotError]] = []
        """Nodes that can be read, but are malformed or of another kind than the link to them requires."""
        there = packs.contains([cid.digest for cid in reached])
        for cid in (cid for cid, found in zip(reached, there, strict=True) if not found):
            self._add(cid, packs.cause(cid.digest), packs.has_copy(cid.digest))
        known = {cid.digest for cid, found in zip(reached, there, strict=True) if found}
        for cid, error in walk.broken:
            if cid.digest in known and error.path is None:
                self.wrong.append((cid, error))
            elif cid.digest in known:  # read, and found damaged
                pack = error.path.removeprefix("packs/").removesuffix(".pack") if error.path else ""
                self.blocks[pack].append(cid)
                self.damage[pack][error.offset or 0, (error.offset or 0) + 1] = error
        self.all = {cid.digest for cids in self.blocks.values() for cid in cids} | {cid.digest for cid, _ in self.wrong}

    def _add(self, cid: CID, cause: Stored | bytes, is_delta: bool) -> None:
        if isinstance(cause, bytes):
            rule = "store.chain.base" if is_delta else "store.block.missing"
            self.blocks[rule].append(cid)
            self.missing[rule].add(cid if cause == cid.digest else CID(cause))
        else:
            self.blocks[cause.pack].append(cid)
            self.damage[cause.pack][cause.span] = None


class _Above:
    """Which commits lead to blocks, other than through their parents."""

    def __init__(self, links: Mapping[CID, list[CID]], commits: Mapping[CID, Commit]) -> None:
        self._commits = commits
        self._links = links
        self._parents: defaultdict[bytes, list[CID]] | None = None

    def name(self, blocks: Collection[CID]) -> str:
        """The last commits that need some blocks, as text for a message; empty if there are no blocks."""
        found = self._of(blocks)
        if not found:
            return "needed by a ref" if blocks else ""
        names = ", ".join(commit.cid[:_SHORT] for commit in found[:3])
        more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
        return f"needed by {'commit' if len(found) == 1 else 'commits'} {names}{more}"

    def _of(self, blocks: Iterable[CID]) -> list[Commit]:
        if self._parents is None:
            self._parents = defaultdict(list)
            for cid, below in self._links.items():
                for child in below:
                    self._parents[child.digest].append(cid)
        stack = list(blocks)
        seen = set(stack)
        while stack:
            cid = stack.pop()
            new = [] if cid in self._commits else [one for one in self._parents[cid.digest] if one not in seen]
            seen.update(new)
            stack += new
        return sorted((self._commits[cid] for cid in seen & self._commits.keys()), key=lambda one: one.time)[::-1]


def _damage_problem(pack: str, spans: Mapping[Span, TensorglotError | None], needed: str) -> Problem:
    (first, _), error = min(spans.items(), key=lambda item: (item[1] is None, item[0]))
    many = len({begin for begin, _ in spans})
    which = f"{many:,} records are damaged, the first of them at byte" if many > 1 else "damaged record at byte"
    why = "" if error is None else f": {error.message}"
    way_out = f"{needed}; {_WAY_OUT}, then repack" if needed else "no commit needs it; repack removes it"
    rule = "store.block.hash" if error is None else error.rule
    return Problem(rule, f"{pack_key(pack)}: {which} {first}{why}, {way_out}", None, first)


def _missing_problem(rule: str, missing: Collection[CID], needed: str) -> Problem:
    which = "a block is missing" if len(missing) == 1 else f"{len(missing):,} blocks are missing"
    why = "" if rule == "store.block.missing" else " from which others are deltas"
    named = f"{min(map(str, missing))}{' …' * (len(missing) > 1)}"
    return Problem(rule, f"{which}{why}: {named}, {needed}; {_WAY_OUT}")


def _node_problem(cid: CID, error: TensorglotError, above: _Above) -> Problem:
    return Problem(error.rule, f"{cid}: {error.message} ({above.name([cid])})", error.tensor)


def _wrong_nodes(
    packs: Packs, roots: list[CID], commits: Mapping[CID, Commit], lost: Collection[bytes]
) -> Iterator[Problem]:
    """Refs and parents that are no commits or values, and commits whose nodes are not what they must be."""
    structure = Structure(packs)
    for cid in roots:
        if cid not in commits and cid.digest not in lost:
            try:
                parse_array(read_node(packs, cid))
            except TensorglotError as error:
                yield Problem(error.rule, f"a ref leads to {cid}, which is neither a commit nor a value")
    for cid, commit in commits.items():
        try:
            for parent in map(CID.parse, commit.parents):
                if parent not in commits and parent.digest not in lost:
                    raise FormatError(f"the parent {parent} is not a commit", rule="store.commit")
            structure.check(commit)
        except IntegrityError:
            pass  # a block that cannot be read is a problem of its own
        except TensorglotError as error:
            yield Problem(error.rule, f"commit {cid}: {error.message}", error.tensor, error.offset)


def _rehash(packs: Packs, progress: Progress | None) -> tuple[int, Damage]:
    """The number of blocks in all packs, and the records that are damaged."""
    damage: Damage = {}
    total, done = sum(len(index.digests) for index in packs.indexes.values()), 0
    batches = ((name, batch) for name, index in packs.indexes.items() for batch in _batches(index))
    for name, batch, faults in ordered_map(lambda job: (*job, packs.faults(*job)), batches):
        for rows, fault in zip(batch, faults, strict=True):
            done += len(rows)
            if fault is not None:
                stored = Stored(name, packs.indexes[name].record(rows[0]))
                damage.setdefault(name, {})[stored.span] = fault
        if progress is not None:
            progress(done, total)
    return total, damage


def _batches(index: PackIndex) -> Iterator[list[list[int]]]:
    """The rows of each record, some records at a time."""
    order = np.argsort(index.blocks["record"], kind="stable")
    records = index.blocks["record"][order]
    batch: list[list[int]] = []
    nbytes = 0
    for rows in np.split(order, np.flatnonzero(np.diff(records)) + 1) if len(order) else ():
        batch.append(rows.tolist())
        nbytes += index.records["stored"].item(index.blocks["record"].item(rows[0]))
        if nbytes >= _BATCH_NBYTES or len(batch) == _BATCH_COUNT:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


def _mark(backend: Backend, packs: Packs, damage: Damage) -> None:
    """Marks damaged records, and removes marks of intact ones. If the store is read-only, only this process knows."""
    found: Marks = {pack: merge_spans(spans) for pack, spans in damage.items()}
    present = {pack: spans for pack, spans in packs.marks.items() if pack in packs.indexes}
    try:
        update_marks(backend, present, found)
    except OSError:
        packs.note_damage(found)


def _commit(packs: Packs, cid: CID) -> Commit | None:
    """The commit that a block is, if it is one: a map of seven keys."""
    try:
        block = read_node(packs, cid)
        return Commit.parse(cid, block) if block[:1] == b"\xa7" else None
    except FormatError:
        return None
