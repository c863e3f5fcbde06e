"""Attributes (IV.A.2.m): numbers and texts, single or in a list. Any other attribute is only noted."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np

from tensorglot.containers.hdf5.dense import dense_attributes
from tensorglot.containers.hdf5.objects import ATTRIBUTE, DATATYPE, Message, Objects
from tensorglot.containers.hdf5.types import Element, parse_shape, read_type
from tensorglot.errors import UnsupportedError, escape
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Note

__all__ = ["read_attributes"]

_SHARED_TYPE, _SHARED_SPACE = 1, 2
"""Flags of an attribute."""


def read_attributes(
    objects: Objects, messages: list[Message], notes: list[Note] | None = None
) -> dict[str, Any] | None:
    """The attributes of an object by name; None if it has none that can be read."""
    found: dict[str, Any] = {}
    own = (message for message in messages if message.kind == ATTRIBUTE)
    for message in chain(own, dense_attributes(objects, messages)):
        name, value = _attribute(objects, message)
        if value is None:
            if notes is not None:
                notes.append(Note("hdf5.attribute", f"the attribute '{escape(name)}' is not read"))
        else:
            found[name] = value
    return found or None


def _attribute(objects: Objects, message: Message) -> tuple[str, Any]:
    data, address = message.data, message.offset - objects.begin
    version, flags, name_nbytes, type_nbytes, space_nbytes = objects.unpack("<2B3H", data, address)
    if version not in (1, 2, 3) or (version > 1 and flags & _SHARED_SPACE):
        raise UnsupportedError(
            f"unsupported attribute: version {version}, flags {flags}", rule="hdf5.attribute", offset=message.offset
        )
    at = 9 if version == 3 else 8
    pieces = []
    for nbytes in (name_nbytes, type_nbytes, space_nbytes):
        pieces.append(data[at : at + nbytes])
        at += -(-nbytes // 8) * 8 if version == 1 else nbytes
    name = pieces[0].split(b"\0")[0].decode(errors="replace")
    kind = Message(DATATYPE, pieces[1], message.offset, version > 1 and bool(flags & _SHARED_TYPE))
    element = read_type(objects, kind)
    shape = parse_shape(objects, pieces[2], address)
    count = 0 if shape is None else math.prod(shape)
    values = _values(objects, element, data[at:], count)
    if values is None or shape is None:
        return name, None
    return name, values[0] if shape == () else values


def _values(objects: Objects, element: Element, data: bytes, count: int) -> list[Any] | None:
    if count * element.nbytes > len(data):
        return None
    raw = [data[i * element.nbytes : (i + 1) * element.nbytes] for i in range(count)]
    if element.variable and element.nbytes == 16:
        return [_heap_text(objects, *struct.unpack("<4xQI", item)) for item in raw]
    if element.kind == "string":
        return [_text(item.split(b"\0")[0]) for item in raw]
    if element.known and element.name != "bfloat16" and not element.name.startswith("complex"):
        dtype = BY_NAME[element.name].require_numpy().newbyteorder(">" if element.big_endian else "<")
        return np.frombuffer(data, dtype, count).tolist()  # type: ignore[no-any-return]
    return None


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _heap_text(objects: Objects, address: int, index: int) -> str | bytes:
    """A text in a global heap collection (III.E). Each collection is read once: many values may refer to one."""
    if address == 0:
        return ""
    if address not in objects.texts:
        objects.texts[address] = dict(_heap_texts(objects, address))
    found = objects.texts[address].get(index)
    if found is None:
        raise objects.fault("an object is missing in its global heap", "heap", address)
    return found


def _heap_texts(objects: Objects, address: int) -> Iterator[tuple[int, str | bytes]]:
    head = objects.read(address, 16)
    nbytes = int.from_bytes(head[8:], "little")
    if head[:4] != b"GCOL" or nbytes < 16:
        raise objects.fault("no global heap at this address", "heap", address)
    objects.collected += nbytes
    if objects.collected > objects.end - objects.begin:
        raise objects.fault("global heaps overlap", "heap", address)
    data = objects.read(address, nbytes)
    at = 16
    while at + 16 <= nbytes:
        number, size = struct.unpack_from("<H6xQ", data, at)
        if number == 0:
            return
        yield number, _text(data[at + 16 : at + 16 + size])
        at += 16 + -(-size // 8) * 8
