"""Checking a store: is everything there that refs lead to, and is it what its CID says?

Structure: the refs, the index of every pack, every node and every link from the refs on,
and the bases of deltas. `data=True` also decodes and hashes every block of every pack, on
all processors. A problem names the block, its pack, and the commits that need it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set

from tensorglot.errors import FormatError, TensorglotError
from tensorglot.operations._progress import Progress
from tensorglot.operations.verify import Problem, Report
from tensorglot.store.backend import Backend
from tensorglot.store.checkout import FORMAT, read_node
from tensorglot.store.objects import Commit, parse_array
from tensorglot.store.packs import MissingBlock, Packs, pack_key
from tensorglot.store.reach import Walk
from tensorglot.store.refs import Ref, inspect_refs
from tensorglot.store.stats import Sizes
from tensorglot.store.structure import Structure
from tensorglot.threads import ordered_map
from tensorglot.wire.cid import CID

__all__ = ["check_store"]

_BATCH = 64
"""Blocks that a thread hashes at a time."""


def check_store(backend: Backend, packs: Packs, *, data: bool, progress: Progress | None) -> Report:
    """The report on a whole store."""
    packs.refresh()
    problems = [Problem(error.rule, f"{pack_key(name)}: {error.message}") for name, error in packs.damaged.items()]
    refs = list(inspect_refs(backend))
    problems += [Problem.of(error) for error in refs if isinstance(error, TensorglotError)]
    walk = Walk(packs, keep_links=True)
    roots = [ref.cid for ref in refs if isinstance(ref, Ref)]
    missing = [cid for cid in walk.visit(roots) if packs.find(cid.digest) is None]
    wrong: dict[bytes, TensorglotError] = {cid.digest: error for cid, error in walk.broken}
    orphans = packs.orphans() if missing else {}
    wrong |= {cid.digest: _missing(cid, orphans.get(cid.digest)) for cid in missing}
    hashed = 0
    for digest, error in _rehash(packs, progress) if data else ():
        hashed += 1
        if error is not None:
            wrong[digest] = error
    commits = {cid: commit for cid in walk.seen if (commit := _commit(packs, cid)) is not None}
    problems += _wrong_nodes(packs, roots, commits, wrong)
    needed_by = _commits_that_need(wrong, walk.links or {}, commits.keys()) if wrong else {}
    problems += [_problem(error, needed_by.get(digest, [])) for digest, error in wrong.items()]
    sizes = Sizes(packs)
    nbytes = 0 if problems else sum(sizes.of(commit.tensors)[1] for commit in commits.values())
    return Report(FORMAT, len(sizes.tensors), nbytes, hashed, problems=tuple(problems))


def _wrong_nodes(
    packs: Packs, roots: list[CID], commits: Mapping[CID, Commit], wrong: Mapping[bytes, TensorglotError]
) -> Iterator[Problem]:
    """Refs and parents that are no commits or values, and commits whose nodes are not what they must be."""
    structure = Structure(packs)
    for cid in roots:
        if cid not in commits and cid.digest not in wrong:
            try:
                parse_array(read_node(packs, cid))
            except TensorglotError as error:
                yield Problem(error.rule, f"a ref leads to {cid}, which is neither a commit nor a value")
    for cid, commit in commits.items():
        try:
            for parent in map(CID.parse, commit.parents):
                if parent not in commits and parent.digest not in wrong:
                    raise FormatError(f"the parent {parent} is not a commit", rule="store.commit")
            structure.check(commit)
        except MissingBlock:
            pass  # the block is a problem of its own
        except TensorglotError as error:
            yield Problem(error.rule, f"commit {cid}: {error.message}", error.tensor, error.offset)


def _missing(cid: CID, orphan: tuple[str, bytes] | None) -> FormatError:
    """The error for a block that is not there, or only as a delta from one that is not."""
    if orphan is None:
        return FormatError(f"block {cid} is missing", rule="store.block.missing")
    pack, base = orphan
    return FormatError(
        f"block {cid} is a delta from block {CID(base)}, which is missing",
        rule="store.chain.base",
        path=pack_key(pack),
    )


def _rehash(packs: Packs, progress: Progress | None) -> Iterator[tuple[bytes, TensorglotError | None]]:
    """Every block of every pack that has its base, and what is wrong with it."""
    digests = {digest for digest, *_ in packs.copies()}
    order = sorted(digests, key=lambda digest: _place(packs, digest))
    done = 0
    for batch in ordered_map(
        lambda batch: [(digest, _read_error(packs, digest)) for digest in batch],
        (order[at : at + _BATCH] for at in range(0, len(order), _BATCH)),
    ):
        yield from batch
        done += len(batch)
        if progress is not None:
            progress(done, len(order))


def _place(packs: Packs, digest: bytes) -> tuple[str, int]:
    found = packs.find(digest)
    return ("", 0) if found is None else (found.pack, found.record.offset)


def _read_error(packs: Packs, digest: bytes) -> TensorglotError | None:
    try:
        packs.check(digest)
    except TensorglotError as error:
        return error
    return None


def _commit(packs: Packs, cid: CID) -> Commit | None:
    """The commit that a block is, if it is one: a map of seven keys."""
    try:
        block = read_node(packs, cid)
        return Commit.parse(cid, block) if block[:1] == b"\xa7" else None
    except FormatError:
        return None


def _commits_that_need(
    wrong: Mapping[bytes, object], links: Mapping[CID, list[CID]], commits: Set[CID]
) -> dict[bytes, list[str]]:
    """For each block the commits that lead to it, other than through their parents."""
    above: defaultdict[bytes, list[CID]] = defaultdict(list)
    for cid, below in links.items():
        for child in below:
            above[child.digest].append(cid)
    found = {}
    for digest in wrong:
        seen: set[bytes] = {digest}
        needing, stack = [], [digest]
        while stack:
            for parent in above[stack.pop()]:
                if parent.digest not in seen:
                    seen.add(parent.digest)
                    if parent in commits:
                        needing.append(str(parent))
                    else:
                        stack.append(parent.digest)
        found[digest] = needing
    return found


def _problem(error: TensorglotError, commits: list[str]) -> Problem:
    where = "" if error.path is None else f"{error.path}: "
    more = f" and {len(commits) - 3} more" if len(commits) > 3 else ""
    needed = f"needed by {', '.join(commits[:3])}{more}" if commits else "no commit needs it"
    return Problem(error.rule, f"{where}{error.message} ({needed})", error.tensor, error.offset)
