"""The chunks of a value by number: nodes are read on the way to one, and only these.

A tree of few nodes can describe petabytes of equal chunks, so it is never listed. Its
shape follows from the size of the value; a node of another shape is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from tensorglot.errors import FormatError
from tensorglot.store.objects import ArrayNode
from tensorglot.wire.cid import BLAKE3, CHUNK_NBYTES, CID, FANOUT, RAW, parse_chunk_node

__all__ = ["Chunks"]

_KEPT_NODES = 4
"""Nodes that are kept: chunks are mostly read in order."""


class Chunks(Sequence[bytes]):
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

    @overload
    def __getitem__(self, number: int) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...
    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
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
            raise self._other_tree()

    def _links(self, link: CID, size: int, count: int) -> list[CID]:
        found = self._nodes.get(link)
        if found is None:
            found, stated = parse_chunk_node(self._read(link))
            if stated != size:
                raise self._other_tree()
            if len(self._nodes) >= _KEPT_NODES:
                self._nodes.clear()
            self._nodes[link] = found
        if len(found) != count:
            raise self._other_tree()
        return found

    def _other_tree(self) -> FormatError:
        return FormatError(
            f"the tree of {self._array.data} does not have the shape that {self._array.nbytes} bytes require",
            rule="cid.tree",
        )
