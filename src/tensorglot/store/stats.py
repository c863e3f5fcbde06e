"""What a store holds and what it costs: in total, and for each commit.

A commit costs the stored bytes of the blocks that no earlier commit has. Sizes of nodes
of manifests are added up once, however many commits share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tensorglot.errors import human_nbytes, plural
from tensorglot.operations._jsonable import Record
from tensorglot.store.checkout import read_nodes
from tensorglot.store.columns import parse_arrays
from tensorglot.store.manifest import MAX_LEVELS, Node, parse_node, too_deep
from tensorglot.store.objects import Commit, parse_array, parse_tensor
from tensorglot.store.packs import Packs
from tensorglot.store.reach import Walk, has_links
from tensorglot.wire.cid import CID, RAW

__all__ = ["CommitCost", "Sizes", "StoreStats", "commit_costs", "store_stats"]

_TOGETHER = 16384
"""Nodes of tensors that are read together."""


@dataclass(frozen=True, slots=True, repr=False)
class StoreStats(Record):
    """The result of `Store.stats`."""

    logical_nbytes: int
    """Size of the tensors of all commits, as if each commit were a file."""
    unique_nbytes: int
    """Size of the distinct chunks of these tensors."""
    stored_nbytes: int
    """Size of all packs."""
    commits: int
    tensors: int
    """Distinct ones, by name and value."""
    packs: int
    blocks: int

    def __repr__(self) -> str:
        share = f", {self.stored_nbytes / self.logical_nbytes:.1%}" if self.logical_nbytes else ""
        return (
            f"StoreStats({plural(self.commits, 'commit')} of {human_nbytes(self.logical_nbytes)} "
            f"stored in {human_nbytes(self.stored_nbytes)}{share})"
        )


@dataclass(frozen=True, slots=True)
class CommitCost(Record):
    """What one commit added."""

    commit: Commit
    tensors: int
    nbytes: int
    """Size of all its tensors."""
    changed: int
    """Tensors that no earlier commit has under that name."""
    stored_nbytes: int
    """Stored size of the blocks that no earlier commit has."""


class Sizes:
    """Number and bytes of the tensors below nodes of manifests. A node is read once, and many are read together."""

    def __init__(self, packs: Packs) -> None:
        self._packs = packs
        self._below: dict[bytes, tuple[int, int]] = {}
        """Tensors and bytes below a node of a manifest, by its digest."""
        self._nbytes: dict[bytes, int] = {}
        """Size of the tensor of each node."""
        self._walk = Walk(packs)
        self.tensors: set[tuple[str, bytes]] = set()
        """Distinct ones: their names and the digests of their nodes."""
        self._met: set[bytes] = set()
        self.nodes: list[bytes] = []
        """The digests of the nodes that were met, in that order."""
        self.data: list[bytes] = []
        """And those of the chunks of their values."""

    def of(self, root: CID) -> tuple[int, int]:
        """Tensors and bytes below a node of a manifest."""
        new: list[tuple[bytes, Node]] = []
        level = [root]
        for _ in range(MAX_LEVELS + 1):
            level = [link for link in dict.fromkeys(level) if link.digest not in self._below]
            nodes = list(map(parse_node, read_nodes(self._packs, level)))
            new += zip([link.digest for link in level], nodes, strict=True)
            level = [child for node in nodes if not node.leaf for child in node.links]
            if not level:
                break
        else:
            raise too_deep()
        self._add_tensors([link for _, node in new if node.leaf for link in node.links])
        for digest, node in reversed(new):  # a node that is met on two levels has its place on the upper one
            if node.leaf:
                self.tensors.update((name, link.digest) for name, link in zip(node.names, node.links, strict=True))
                self._below[digest] = len(node.links), sum(self._nbytes[link.digest] for link in node.links)
            else:
                below = [self._below[child.digest] for child in node.links]
                self._below[digest] = sum(count for count, _ in below), sum(nbytes for _, nbytes in below)
            self._meet(digest, self.nodes)
        return self._below[root.digest]

    def visit(self, roots: Iterable[CID]) -> None:
        """Adds the blocks that nodes of any kind lead to."""
        for cid in self._walk.visit(roots):
            self._meet(cid.digest, self.data if cid.codec == RAW else self.nodes)

    def add_commit(self, cid: CID, commit: Commit) -> None:
        """Adds a commit whose manifest was added, and the parents of it that were not."""
        self._meet(cid.digest, self.nodes)
        self._walk.seen |= {cid, commit.tensors}
        self.visit(map(CID.parse, commit.parents))

    def skip(self, cid: CID) -> None:
        """Does not follow a commit, whose manifest was added, to its parents."""
        self._walk.seen.add(cid)

    def _meet(self, digest: bytes, blocks: list[bytes]) -> None:
        if digest not in self._met:
            self._met.add(digest)
            blocks.append(digest)

    def _add_tensors(self, links: Sequence[CID]) -> None:
        new = [link for link in dict.fromkeys(links) if link.digest not in self._nbytes]
        for at in range(0, len(new), _TOGETHER):
            some = new[at : at + _TOGETHER]
            blocks = read_nodes(self._packs, some)
            for link, block, array in zip(some, blocks, parse_arrays(blocks), strict=True):
                if array is not None:
                    self._nbytes[link.digest] = array.nbytes
                else:
                    parts = read_nodes(self._packs, [part.array for part in parse_tensor(block).parts])
                    self._nbytes[link.digest] = sum(parse_array(part).nbytes for part in parts)
                if array is not None and array.data.codec == RAW and not has_links(array.type):
                    self._meet(link.digest, self.nodes)
                    self._meet(array.data.digest, self.data)
                else:
                    self.visit([link])


def store_stats(packs: Packs, commits: Iterable[Commit]) -> StoreStats:
    """Counts over commits, all of a store."""
    sizes = Sizes(packs)
    logical = count = 0
    for commit in commits:
        count += 1
        logical += sizes.of(commit.tensors)[1]
    indexes = packs.indexes.values()
    return StoreStats(
        logical_nbytes=logical,
        unique_nbytes=packs.sizes(sizes.data)[0],
        stored_nbytes=sum(index.nbytes for index in indexes),
        commits=count,
        tensors=len(sizes.tensors),
        packs=len(indexes),
        blocks=sum(len(index.digests) for index in indexes),
    )


def commit_costs(packs: Packs, commits: Iterable[Commit], before: Iterable[Commit] = ()) -> Iterator[CommitCost]:
    """What each commit added to the earlier ones, the oldest first. Blocks of the commits in `before` do not count."""
    sizes = Sizes(packs)
    for commit in before:
        sizes.of(commit.tensors)
        sizes.skip(CID.parse(commit.cid))
    for commit in commits:
        tensors, nodes, data = len(sizes.tensors), len(sizes.nodes), len(sizes.data)
        count, nbytes = sizes.of(commit.tensors)
        sizes.add_commit(CID.parse(commit.cid), commit)
        stored = packs.sizes(sizes.nodes[nodes:] + sizes.data[data:])[1]
        yield CommitCost(commit, count, nbytes, len(sizes.tensors) - tensors, stored)
