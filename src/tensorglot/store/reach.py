"""Reachability: the blocks that a node leads to.

Any DAG-CBOR node may be a root, and all links in it are followed, whatever kind of node
it is. Values whose type has links in it (`merkle[T]`) are read, and their links followed,
too. A block is visited once, so the walk is as long as there are blocks, however they
link to each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from tensorglot.dynd.link_columns import may_link
from tensorglot.dynd.merkle import Link, links_of
from tensorglot.errors import FormatError, TensorglotError, TensorNotFound
from tensorglot.model.types.base import Type
from tensorglot.store.blocks import Blocks
from tensorglot.store.checkout import array_tensor, parse_type, read_node
from tensorglot.store.objects import parse_array
from tensorglot.store.packs import Packs
from tensorglot.wire.cid import CID, DAG_CBOR, decode_node

__all__ = ["Walk", "first_missing", "has_links"]

_AHEAD = 4096
"""Nodes that are read together."""
_LINKING = ("merkle[", "array[")
"""Types of values that may have links in them are spelled with one of these."""


class Walk:
    """A walk from roots to all that they lead to."""

    def __init__(self, packs: Packs, *, keep_links: bool = False) -> None:
        self.seen: set[CID] = set()
        """The blocks that were visited."""
        self.broken: list[tuple[CID, TensorglotError]] = []
        """Nodes that could not be read."""
        self.links: dict[CID, list[CID]] | None = {} if keep_links else None
        """The links in each node, if they are kept."""
        self._packs = packs
        self._loaded: set[tuple[CID, Type]] = set()
        self._ahead: dict[bytes, bytes] = {}
        """Blocks that were read together with others."""

    def visit(self, roots: Iterable[CID]) -> Iterator[CID]:
        """The blocks that were not visited before, parents first."""
        stack: list[CID | Link] = list(roots)
        while stack:
            item = stack.pop()
            cid = item.cid if isinstance(item, Link) else item
            new = cid not in self.seen
            if new:
                self.seen.add(cid)
                yield cid
            try:
                if new and cid.codec == DAG_CBOR and cid.digest not in self._ahead:
                    self._read_ahead(
                        [cid, *(one for one in stack[-_AHEAD:] if isinstance(one, CID) and one not in self.seen)]
                    )
                below = self._below(cid) if new and cid.codec == DAG_CBOR else []
                if isinstance(item, Link) and may_link(item.type):
                    below += self._links(item)
                if self.links is not None:
                    known = self.links.setdefault(cid, [])
                    known += (each.cid if isinstance(each, Link) else each for each in below)
                stack += below
            except (FormatError, TensorNotFound) as error:
                self.broken.append((cid, error))

    def _read_ahead(self, cids: list[CID]) -> None:
        """Reads nodes together. One that cannot be read is left to its turn."""
        nodes = {cid.digest for cid in cids if cid.codec == DAG_CBOR} - self._ahead.keys()
        there = [digest for digest, found in zip(nodes, self._packs.contains(list(nodes)), strict=True) if found]
        with contextlib.suppress(FormatError):
            self._ahead.update(zip(there, self._packs.read_many(there, DAG_CBOR), strict=True))

    def _below(self, cid: CID) -> list[CID | Link]:
        block = self._ahead.pop(cid.digest, None) or read_node(self._packs, cid)
        found: list[CID | Link] = []
        if block[:1] == b"\xa4":
            array = parse_array(block)
            found.append(array.data)
            if has_links(array.type):
                found.extend(links_of(array_tensor(self._packs, array)))
        else:
            _collect(decode_node(block), found)
        return found

    def _links(self, link: Link) -> list[Link]:
        if (link.cid, link.type) in self._loaded:
            return []
        self._loaded.add((link.cid, link.type))
        return list(links_of(Link(link.type, link.cid, Blocks(self._packs)).value))


def has_links(type: str) -> bool:
    """Whether values of a type, by its text, may have links in them."""
    return any(word in type for word in _LINKING) and may_link(parse_type(type))


def _collect(value: Any, found: list[CID | Link]) -> None:
    """All links in a decoded node, whose depth the decoder has bounded."""
    if isinstance(value, CID):
        found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)


def first_missing(packs: Packs, root: CID) -> CID | None:
    """A block that a root leads to and that cannot be read; None if all are there."""
    walk = Walk(packs)
    for cid in walk.visit([root]):
        if packs.find(cid.digest) is None:
            return cid
    return walk.broken[0][0] if walk.broken else None
