"""The names of a commit: a tree of DAG-CBOR nodes that versions share.

    leaf  = {"links": [link of each tensor], "names": [name of each, sorted]}
    inner = {"first": [first name below each], "links": [link of each node]}

The sorted list of names is cut where the names themselves say so: after a name whose
CRC-32, started with the level of the node, has five zero bits at its end. So a cut does
not move when tensors change or come and go elsewhere, and a commit in which ten of
100,000 tensors changed writes the nodes on the way to these ten. A node has at least two
entries, unless it is the only one of its level, and at most 256 (257 at the end). It is
also cut after the name with which its names have 256 KiB or more.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import ge

from tensorglot.cached import cached_property
from tensorglot.errors import FormatError
from tensorglot.wire import cbor
from tensorglot.wire.cid import (
    CID,
    DAG_CBOR,
    LINK_HEAD,
    LINK_NBYTES,
    PROFILE,
    blake3_cids,
    parse_digests,
    parse_links,
)

__all__ = ["MAX_LEVELS", "Entry", "Manifest", "Node", "build", "parse_node", "too_deep"]

_MASK = 31
_LEAST, _MOST = 2, 256
_MOST_NBYTES = 256 << 10
"""Most bytes of the names of a node, but for the last one: a node must fit into a block."""
MAX_LEVELS = 64
"""A tree of two entries for each node that is deeper has more names than there are atoms."""

Entry = tuple[str, CID]
Add = Callable[[bytes], CID]
Read = Callable[[CID], bytes]


@dataclass(frozen=True)
class Node:
    leaf: bool
    names: list[str]
    """Names of the tensors; in an inner node the first name below each link."""
    digests: list[bytes] | None
    """The digests of the links; None if one of the links is not to a node."""
    others: list[CID]
    """The links, if there are no digests."""

    @cached_property
    def links(self) -> list[CID]:
        return self.others if self.digests is None else blake3_cids(self.digests, DAG_CBOR)


def build(entries: Sequence[Entry], add: Add) -> CID:
    """Stores the nodes of a manifest and returns the link of its root. `entries` are sorted by the UTF-8 of names."""
    level, rows = 0, list(entries)
    while True:
        rows = [(group[0][0] if group else "", add(_encode(group, leaf=level == 0))) for group in _cut(rows, level)]
        if len(rows) == 1:
            return rows[0][1]
        level += 1


def _cut(rows: list[Entry], level: int) -> Iterator[list[Entry]]:
    start, last, nbytes = 0, len(rows), 0
    for at, (name, _) in enumerate(rows):
        count, key = at + 1 - start, name.encode()
        nbytes += len(key)
        full = count >= _MOST or nbytes >= _MOST_NBYTES
        # What remains must be no entry, or enough for a node.
        if count >= _LEAST and last - at != 2 and (full or not zlib.crc32(key, level) & _MASK):
            yield rows[start : at + 1]
            start, nbytes = at + 1, 0
    if start < last or not rows:
        yield rows[start:]


def _encode(rows: Sequence[Entry], *, leaf: bool) -> bytes:
    """The bytes of a node. Its keys are sorted by length, then by their bytes."""
    links = b"".join([b"\x65links", cbor.head(4, len(rows)), *(LINK_HEAD + bytes(link) for _, link in rows)])
    texts = [cbor.text(name) for name, _ in rows]
    names = b"".join([b"\x65names" if leaf else b"\x65first", cbor.head(4, len(rows)), *texts])
    return b"\xa2" + (links + names if leaf else names + links)


def parse_node(block: bytes) -> Node:
    """Parses and checks a node: as many links as names, which are sorted."""
    cbor.check(block, PROFILE)
    cursor = cbor.Cursor(block, rule="store.manifest")
    if cursor.count("a manifest", cbor.MAP) != 2:
        raise _malformed()
    names: list[str] | None = None
    digests: list[bytes] | None = None
    links: list[CID] | None = None
    leaf = False
    for _ in range(2):
        key = cursor.text("a key")
        if key == "links":
            count = cursor.count("links")
            digests, links = _parse_links(block, cursor.pos, count)
            cursor.pos += count * LINK_NBYTES
        elif key in ("names", "first"):
            leaf = key == "names"
            names = cursor.texts("a name", cursor.count("names"))
        else:
            raise _malformed()
    if names is None or links is None or len(names) != len(links if digests is None else digests):
        raise _malformed()
    if not (leaf or names):
        raise _malformed()
    if any(map(ge, names, names[1:])):  # code points are in the order of their UTF-8
        raise FormatError("the names of a manifest are not sorted, or not unique", rule="store.manifest.order")
    return Node(leaf, names, digests, links)


def _parse_links(block: bytes, begin: int, count: int) -> tuple[list[bytes] | None, list[CID]]:
    """The digests of links to nodes, or else the links: of 100,000 tensors no object is made for each."""
    alike = parse_digests(block, begin, count)
    if alike is not None and alike[0] == DAG_CBOR:
        return alike[1], []
    links = parse_links(block, begin, count)
    if links is None:
        raise _malformed()
    return None, links


def _malformed() -> FormatError:
    return FormatError("not a node of a manifest", rule="store.manifest")


class Manifest:
    """The names of one commit: one of them is found node by node, all of them level by level."""

    def __init__(self, root: CID, read: Read) -> None:
        self.root = root
        self._read = read
        self._nodes: dict[CID, Node] = {}

    def _node(self, link: CID) -> Node:
        node = self._nodes.get(link)
        if node is None:
            if link.codec != DAG_CBOR:
                raise _malformed()
            node = self._nodes[link] = parse_node(self._read(link))
        return node

    def _read_all(self, read_each: Callable[[Sequence[CID]], list[bytes]]) -> None:
        """Reads the nodes of a level at once: they are in the packs of many commits, and many in each."""
        level = [self._node(self.root)]
        for _ in range(MAX_LEVELS):
            inner = [node for node in level if not node.leaf and node.digests is not None]
            links = dict.fromkeys(chain.from_iterable(node.links for node in inner))
            new = [link for link in links if link not in self._nodes]
            if not new:
                break
            level = list(map(parse_node, read_each(new)))
            self._nodes.update(zip(new, level, strict=True))

    def find(self, name: str) -> CID | None:
        """The link of one tensor, by reading the nodes on the way to it."""
        link, first = self.root, ""
        for _ in range(MAX_LEVELS):
            node = self._node(link)
            if first and node.names[:1] != [first]:
                raise _wrong_first()
            # Code points are in the order of their UTF-8.
            at = bisect_right(node.names, name) - 1
            if at < 0:
                return None
            if node.leaf:
                return node.links[at] if node.names[at] == name else None
            link, first = node.links[at], node.names[at]
        raise too_deep()

    def leaves(self, most: int, read_each: Callable[[Sequence[CID]], list[bytes]]) -> list[Node]:
        """The nodes that have all tensors, in the order of their names; more than `most` are an error."""
        self._read_all(read_each)
        found: list[Node] = []
        count, last = 0, b""
        stack = [(self.root, 0, "")]
        while stack:
            link, level, first = stack.pop()
            if level > MAX_LEVELS:
                raise too_deep()
            node = self._node(link)
            if first and node.names[:1] != [first]:
                raise _wrong_first()
            if node.leaf:
                if count and node.names and last >= node.names[0].encode():
                    raise FormatError("the names of a manifest are not sorted", rule="store.manifest.order")
                found.append(node)
                count, last = count + len(node.names), node.names[-1].encode() if node.names else last
                if count > most:
                    raise FormatError(f"more than {most} tensors (Limits.tensors)", rule="store.manifest.count")
            else:
                below = zip(node.links, [level + 1] * len(node.names), node.names, strict=True)
                stack.extend(reversed(list(below)))
        return found


def _wrong_first() -> FormatError:
    return FormatError("a manifest names the first tensor of a node wrongly", rule="store.manifest.order")


def too_deep() -> FormatError:
    return FormatError(f"a manifest of more than {MAX_LEVELS} levels", rule="store.manifest")
