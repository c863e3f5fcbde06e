"""The chunks of a value by number: nodes are read on the way to one, and only these.

A tree of few nodes can describe petabytes of equal chunks, so it is never listed. Its
shape follows from the size of the value; a node of another shape is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorglot.errors import FormatError
from tensorglot.store.objects import ArrayNode
from tensorglot.wire.cid import BLAKE3, CHUNK_NBYTES, CID, FANOUT, RAW, chunk_links, parse_chunk_node

__all__ = ["Chunks", "check_tree"]

KEPT_NODES = 4
"""Nodes that are kept: chunks are mostly read in order."""


class Chunks:
    """The digests of the chunks of a value. Threads may share it."""

    def __init__(self, array: ArrayNode, read: Callable[[CID], bytes]) -> None:
        self._array = array
        self._read = read
        self._nodes: dict[CID, list[CID]] = {}
        self._capacity = CHUNK_NBYTES
        """The most bytes below the root."""
        while self._capacity < array.nbytes:
            self._capacity *= FANOUT
        self._check(array.data, self._capacity)

    def __len__(self) -> int:
        return max(1, -(-self._array.nbytes // CHUNK_NBYTES))

    def __getitem__(self, number: int) -> bytes:
        link, size, capacity, start = self._array.data, self._array.nbytes, self._capacity, number * CHUNK_NBYTES
        while capacity > CHUNK_NBYTES:
            capacity //= FANOUT
            links = self._links(link, size, -(-size // capacity))
            position, start = divmod(start, capacity)
            link, size = links[position], min(capacity, size - position * capacity)
            self._check(link, capacity)
        return link.digest

    def _check(self, link: CID, capacity: int) -> None:
        if (link.codec == RAW) != (capacity == CHUNK_NBYTES) or link.hash != BLAKE3:
            raise _other_tree(self._array)

    def _links(self, link: CID, size: int, count: int) -> list[CID]:
        found = self._nodes.get(link)
        if found is None:
            found, stated = parse_chunk_node(self._read(link))
            if stated != size:
                raise _other_tree(self._array)
            if len(self._nodes) >= KEPT_NODES:
                self._nodes.clear()
            self._nodes[link] = found
        if len(found) != count:
            raise _other_tree(self._array)
        return found


def check_tree(
    array: ArrayNode, read: Callable[[CID], bytes], nbytes_of: Callable[[CID], int], seen: set[tuple[CID, int]]
) -> None:
    """Checks the shape of the tree of a value and the sizes of its chunks; `seen` has the links that were checked."""
    link, nbytes = array.data, array.nbytes
    if (link.codec == RAW) != (nbytes <= CHUNK_NBYTES):
        raise _other_tree(array)
    for chunk, size in [(link, nbytes)] if link.codec == RAW else chunk_links(link, read, nbytes, seen):
        if chunk.hash != BLAKE3 or nbytes_of(chunk) != size:
            raise _other_tree(array)


def _other_tree(array: ArrayNode) -> FormatError:
    return FormatError(
        f"the tree of {array.data} does not have the shape that {array.nbytes} bytes require", rule="cid.tree"
    )
