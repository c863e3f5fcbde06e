"""Committed (named) datatypes: a message of one object that says in which other object the type is (IV.A.2).

A reference is followed once: the object that it names must have the type itself, so
references cannot form a circle.
"""

from __future__ import annotations

from tensorglot.containers.hdf5.objects import DATATYPE, Message, Objects
from tensorglot.errors import UnsupportedError

__all__ = ["follow_type"]

_IN_HEAP = 1
"""From version 2 on: the message is in the heap of the file's table of shared messages."""


def follow_type(objects: Objects, message: Message) -> Message:
    """The datatype that a message has, or that it refers to."""
    if not message.shared:
        return message
    address = message.offset - objects.begin
    version, kind = objects.unpack("<2B", message.data, address)
    if version not in (1, 2, 3) or (version > 1 and kind == _IN_HEAP):
        raise UnsupportedError(
            "messages in a table of shared messages are not supported", rule="hdf5.shared", offset=message.offset
        )
    place = objects.unpack("<Q", message.data, address, 8 if version == 1 else 2)[0]
    found = objects.committed.get(place)
    if found is None:
        types = [held for held in objects.header(place) if held.kind == DATATYPE]
        if len(types) != 1 or types[0].shared:
            raise objects.fault("a datatype refers to an object that has none of its own", "shared", place)
        found = objects.committed[place] = types[0]
    return found
