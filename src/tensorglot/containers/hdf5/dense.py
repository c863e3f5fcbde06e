"""Links and attributes in dense storage: messages in a fractal heap, listed by a B-tree (IV.A.2.c, IV.A.2.v)."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from tensorglot.containers.hdf5 import btrees
from tensorglot.containers.hdf5.heaps import FractalHeap
from tensorglot.containers.hdf5.objects import ATTRIBUTE, ATTRIBUTE_INFO, LINK_INFO, UNDEFINED, Link, Message, Objects

__all__ = ["dense_attributes", "dense_links"]

_SHARED = 2


def dense_links(objects: Objects, messages: list[Message], address: int) -> Iterator[Link]:
    """The links of a large group, sorted by name as in the old form; the tree is sorted by hash."""
    found: list[Link] = []
    for message in messages:
        if message.kind == LINK_INFO:
            entries = _entries(objects, message, btrees.LINKS, 8)
            found += [objects.link(heap.get(record[4 : 4 + heap.id_nbytes]), address) for heap, record in entries]
    return iter(sorted(found, key=attrgetter("name")))


def dense_attributes(objects: Objects, messages: list[Message]) -> Iterator[Message]:
    """The attributes in dense storage, of an object with many or large ones, as messages of an object header."""
    for message in messages:
        if message.kind == ATTRIBUTE_INFO:
            for heap, record in _entries(objects, message, btrees.ATTRIBUTES, 2):
                if not record[heap.id_nbytes] & _SHARED:
                    yield Message(ATTRIBUTE, heap.get(record[: heap.id_nbytes]), message.offset)


def _entries(objects: Objects, message: Message, kind: int, counter_nbytes: int) -> Iterator[tuple[FractalHeap, bytes]]:
    """Yields the heap that an info message refers to, with each record of the B-tree by name."""
    address = message.offset - objects.begin
    flags = objects.unpack("<2B", message.data, address)[1]
    place, tree = objects.unpack("<2Q", message.data, address, 2 + (counter_nbytes if flags & 1 else 0))
    if place == UNDEFINED:
        return
    heap = FractalHeap(objects, place)
    for record in btrees.records(objects, tree, kind):
        if len(record) < heap.id_nbytes + 4:
            raise objects.fault("a record is too short for an id of its heap", "tree", tree)
        yield heap, record
