"""What a store holds and what it costs: in total, and for each commit.

A commit costs the stored bytes of the blocks that no earlier commit has. Sizes of nodes
of manifests are added up once, however many commits share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tensorglot.errors import human_nbytes, plural
from tensorglot.operations._jsonable import Record
from tensorglot.store.checkout import read_node
from tensorglot.store.manifest import parse_node
from tensorglot.store.objects import Commit, parse_array, parse_arrays, parse_tensor
from tensorglot.store.packs import Packs
from tensorglot.store.reach import Walk
from tensorglot.wire.cid import CID, RAW

__all__ = ["CommitCost", "StoreStats", "commit_costs", "store_stats"]


@dataclass(frozen=True, slots=True, repr=False)
class StoreStats(Record):
    """The result of `Store.stats`."""

    logical_nbytes: int
    """Of the tensors of all commits, as if each commit were a file."""
    unique_nbytes: int
    """Of the distinct chunks of these tensors."""
    stored_nbytes: int
    """Of all packs."""
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
    """Of all its tensors."""
    changed: int
    """Tensors that no earlier commit has under that name."""
    stored_nbytes: int
    """Of the blocks that no earlier commit has."""


class Sizes:
    """Number and bytes of the tensors below nodes of manifests."""

    def __init__(self, packs: Packs) -> None:
        self._packs = packs
        self._read = partial(read_node, packs)
        self._below: dict[CID, tuple[int, int]] = {}
        self.tensors: set[tuple[str, CID]] = set()

    def of(self, root: CID) -> tuple[int, int]:
        """Tensors and bytes below a node of a manifest."""
        stack = [root]
        while stack:
            link = stack[-1]
            if link in self._below:
                stack.pop()
                continue
            node = parse_node(self._read(link))
            if node.leaf:
                self.tensors.update(zip(node.names, node.links, strict=True))
                self._below[link] = len(node.links), self._tensors(node.links)
                continue
            missing = [child for child in node.links if child not in self._below]
            stack += missing
            if not missing:
                below = [self._below[child] for child in node.links]
                self._below[link] = sum(count for count, _ in below), sum(nbytes for _, nbytes in below)
        return self._below[root]

    def _tensors(self, links: Sequence[CID]) -> int:
        new = [link for link in dict.fromkeys(links) if link not in self._below]
        blocks = self._packs.read_many([link.digest for link in new])
        for link, block, array in zip(new, blocks, parse_arrays(blocks), strict=True):
            if array is not None:
                nbytes = array.nbytes
            else:
                nbytes = sum(parse_array(self._read(part.array)).nbytes for part in parse_tensor(block).parts)
            self._below[link] = 1, nbytes
        return sum(self._below[link][1] for link in links)


def store_stats(packs: Packs, commits: Iterable[Commit]) -> StoreStats:
    """Counts over commits, all of a store."""
    sizes, walk = Sizes(packs), Walk(packs)
    logical = unique = count = 0
    for commit in commits:
        count += 1
        logical += sizes.of(commit.tensors)[1]
        unique += packs.sizes([cid.digest for cid in walk.visit([commit.tensors]) if cid.codec == RAW])[0]
    indexes = packs.indexes.values()
    return StoreStats(
        logical_nbytes=logical,
        unique_nbytes=unique,
        stored_nbytes=sum(index.nbytes for index in indexes),
        commits=count,
        tensors=len(sizes.tensors),
        packs=len(indexes),
        blocks=sum(len(index.digests) for index in indexes),
    )


def commit_costs(packs: Packs, commits: Iterable[Commit]) -> Iterator[CommitCost]:
    """What each commit added to those before it, the oldest first."""
    sizes, walk = Sizes(packs), Walk(packs)
    for commit in commits:
        before = len(sizes.tensors)
        count, nbytes = sizes.of(commit.tensors)
        stored = packs.sizes([cid.digest for cid in walk.visit([CID.parse(commit.cid)])])[1]
        yield CommitCost(commit, count, nbytes, len(sizes.tensors) - before, stored)
