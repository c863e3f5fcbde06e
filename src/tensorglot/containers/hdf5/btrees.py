"""B-trees of version 2 (III.A.2): all records, in order.

The number of a node's records is stored in its parent, in as many bytes as the sizes of
nodes and records require. Each node is read once, and counts against the header limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorglot.containers.hdf5.objects import NODES, UNDEFINED, Objects
from tensorglot.tuples import NamedTuple

__all__ = ["ATTRIBUTES", "CHUNKS", "FILTERED_CHUNKS", "HUGE", "LINKS", "encoded_nbytes", "records"]

HUGE, LINKS, ATTRIBUTES, CHUNKS, FILTERED_CHUNKS = 1, 5, 8, 10, 11
"""Types of records: objects of a heap outside its blocks, links by name, attributes by name, chunks."""
_OVERHEAD = 10
"""Signature, version, type and checksum of a node."""
_DEPTH = 16


def encoded_nbytes(largest: int) -> int:
    """Bytes that encode every number up to `largest`."""
    return max(0, largest.bit_length() - 1) // 8 + 1


class _Node(NamedTuple):
    address: int
    records: int
    depth: int


def records(objects: Objects, address: int, kind: int) -> Iterator[bytes]:
    """The records of a tree of this type."""
    head = objects.read_checked(address, 34, b"BTHD\0" + bytes([kind]), "B-tree of this type", "tree")
    node_nbytes, size, depth = objects.unpack("<I2H", head, address, 6)
    root, count = objects.unpack("<QH", head, address, 16)
    if not size or node_nbytes <= _OVERHEAD + size or depth > _DEPTH:
        raise objects.fault("the node size, record size or depth of a B-tree is invalid", "tree", address)
    widths = _pointer_widths(node_nbytes, size, depth)
    todo = [] if root == UNDEFINED else [_Node(root, count, depth)]
    seen: set[int] = set()
    while todo:
        node = todo.pop()
        if node.address in seen or len(seen) == NODES:
            raise objects.fault(f"a B-tree leads to a node twice, or has more than {NODES} nodes", "tree", node.address)
        seen.add(node.address)
        yield from _read_node(objects, node, kind, size, widths, todo)


def _pointer_widths(node_nbytes: int, size: int, depth: int) -> list[tuple[int, int]]:
    """For each depth, the bytes of a child's own records and of all records below it."""
    most = (node_nbytes - _OVERHEAD) // size
    own, below = encoded_nbytes(most), most
    widths = [(0, 0)]
    total_nbytes = 0
    for _ in range(depth):
        widths.append((own, total_nbytes))
        pointer = 8 + own + total_nbytes
        inner = max(0, node_nbytes - _OVERHEAD - pointer) // (size + pointer)
        below = (inner + 1) * below + inner
        total_nbytes = encoded_nbytes(below)
    return widths


def _read_node(
    objects: Objects, node: _Node, kind: int, size: int, widths: list[tuple[int, int]], todo: list[_Node]
) -> list[bytes]:
    """The records of a node; adds its children to `todo`."""
    own, total = widths[node.depth]
    pointer = 8 + own + total
    children = node.records + 1 if node.depth else 0
    sign = (b"BTIN\0" if node.depth else b"BTLF\0") + bytes([kind])
    nbytes = 6 + node.records * size + children * pointer
    data = objects.read_checked(node.address, nbytes, sign, "B-tree node of this type", "tree")
    at = 6 + node.records * size
    for i in reversed(range(children)):
        begin = at + i * pointer
        child = int.from_bytes(data[begin : begin + 8], "little")
        count = int.from_bytes(data[begin + 8 : begin + 8 + own], "little")
        todo.append(_Node(child, count, node.depth - 1))
    return [data[6 + i * size : 6 + (i + 1) * size] for i in range(node.records)]
