"""What chunks were made from, as their commits tell: for deltas of what is stored in full.

A commit finds the predecessor of each tensor in its parent. Blocks that come in a bundle,
or that several writers stored at once, do not know theirs. So the commits are followed
from the first to the last: each chunk that is new in one has the width of its elements,
and the chunk at the same place of the tensor of the same name in the parent. Nodes that
commits share are read once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import zip_longest

from tensorglot.errors import FormatError
from tensorglot.store.checkout import parse_type, read_node
from tensorglot.store.manifest import Manifest, parse_node
from tensorglot.store.objects import ArrayNode, Commit, parse_array, parse_tensor
from tensorglot.store.packs import Packs
from tensorglot.store.units import comparable, element_nbytes
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cid import CID, RAW, parse_chunk_node

__all__ = ["Origin", "commits_from", "find_origins", "previous_arrays"]

Find = Callable[[str, str], ArrayNode | None]
"""The array of a part of a tensor."""


class Origin(NamedTuple):
    """How a chunk may be encoded."""

    width: int
    """Bytes of an element."""
    base: bytes | None
    """The digest of the chunk that it replaced."""


def commits_from(packs: Packs, cids: Iterable[CID]) -> Iterator[Commit]:
    """Commits and all their ancestors, each once. Other nodes are skipped, since a tag may name a value."""
    seen: set[CID] = set()
    stack = list(cids)
    while stack:
        cid = stack.pop()
        if cid not in seen:
            seen.add(cid)
            with contextlib.suppress(FormatError):
                commit = Commit.parse(cid, read_node(packs, cid))
                stack += map(CID.parse, commit.parents)
                yield commit


def find_origins(packs: Packs, commits: Iterable[Commit]) -> dict[bytes, Origin]:
    """The origin of each chunk, by its digest, in the order of commits, whose parents come first."""
    return _Lineage(packs).follow(commits)


def previous_arrays(packs: Packs, commit: Commit) -> Find:
    """Looks up the arrays of the tensors of a commit."""
    read = partial(read_node, packs)
    manifest = Manifest(commit.tensors, read)

    def find(name: str, part: str) -> ArrayNode | None:
        link = manifest.find(name)
        return None if link is None else _arrays(read, link).get(part)

    return find


def _arrays(read: Callable[[CID], bytes], link: CID) -> dict[str, ArrayNode]:
    """The arrays of a tensor, by the names of its parts."""
    block = read(link)
    if block[:1] == b"\xa4":
        return {"data": parse_array(block)}
    return {part.name: parse_array(read(part.array)) for part in parse_tensor(block).parts}


class _Lineage:
    def __init__(self, packs: Packs) -> None:
        self._packs = packs
        self._read = partial(read_node, packs)
        self._seen: set[CID] = set()
        """Nodes whose chunks were found."""
        self._found: dict[bytes, Origin] = {}

    def follow(self, commits: Iterable[Commit]) -> dict[bytes, Origin]:
        for commit in commits:
            find: Find | None = None
            for name, link in self._new_tensors(commit.tensors):
                if find is None and commit.parents:
                    parent = CID.parse(commit.parents[0])
                    find = previous_arrays(self._packs, Commit.parse(parent, self._read(parent)))
                for part, array in _arrays(self._read, link).items():
                    self._add(array, None if find is None else find(name, part))
        return self._found

    def _new_tensors(self, manifest: CID) -> Iterator[tuple[str, CID]]:
        stack = [manifest]
        while stack:
            link = stack.pop()
            if link not in self._seen:
                self._seen.add(link)
                node = parse_node(self._read(link))
                if node.leaf:
                    entries = zip(node.names, node.links, strict=True)
                    yield from (entry for entry in entries if entry[1] not in self._seen)
                    self._seen.update(node.links)
                else:
                    stack += reversed(node.links)

    def _add(self, array: ArrayNode, old: ArrayNode | None) -> None:
        type = parse_type(array.type)
        width = element_nbytes(type)
        related = old is not None and comparable(parse_type(old.type), type)
        stack: list[tuple[CID, CID | None]] = [(array.data, old.data if old is not None and related else None)]
        while stack:
            link, before = stack.pop()
            if link == before or link in self._seen:
                continue
            self._seen.add(link)
            if before is not None and before.codec != link.codec:
                before = None  # the tree has grown by a level
            if link.codec == RAW:
                self._found[link.digest] = Origin(width, None if before is None else before.digest)
            else:
                links = parse_chunk_node(self._read(link))[0]
                olds = [] if before is None else parse_chunk_node(self._read(before))[0][: len(links)]
                stack += reversed(list(zip_longest(links, olds)))
