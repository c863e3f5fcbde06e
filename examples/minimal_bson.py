"""Reads the vectors of BSON documents with NumPy: `python minimal_bson.py dump.bson`.

A dump is documents one after the other. A document is an int32 of its length, elements,
and a zero byte; an element is a byte of its type, its key and a zero byte, its value. A
vector is binary data (type 5) of subtype 9: a byte of its dtype, a byte of padding, numbers.
"""

import sys
from pathlib import Path

import numpy as np

SIZES = {0x01: 8, 0x06: 0, 0x07: 12, 0x08: 1, 0x09: 8, 0x0A: 0, 0x10: 4, 0x11: 8, 0x12: 8, 0x13: 16, 0x7F: 0, 0xFF: 0}
"""Bytes of a value, by its type; the others have a length."""


def int32(data, at):
    return int.from_bytes(data[at : at + 4], "little", signed=True)


def end_of(data, kind, at):
    """Where a value ends."""
    if kind in SIZES:
        return at + SIZES[kind]
    if kind in (0x03, 0x04, 0x0F):  # documents, arrays, code with a scope: the length counts itself
        return at + int32(data, at)
    if kind == 0x0B:  # a regular expression: two texts that end with zero
        return data.index(b"\0", data.index(b"\0", at) + 1) + 1
    extra = {0x05: 5, 0x0C: 16}.get(kind, 4)  # a subtype, an id; text has its zero in the length
    return at + extra + int32(data, at)


def decode(payload):
    """A vector: int8, float32, or bits."""
    kind, padding, numbers = payload[0], payload[1], np.frombuffer(payload, np.uint8, offset=2)
    if kind == 0x03:
        return numbers.view(np.int8)
    if kind == 0x27:
        return numbers.view("<f4")
    if kind == 0x10:
        return np.unpackbits(numbers)[: 8 * len(numbers) - padding].astype(bool)
    raise ValueError(f"unknown dtype {kind:#x}")


def vectors(data, at=0, prefix=""):
    """The vectors of one document, by dotted path."""
    end = at + int32(data, at) - 1
    if not at + 4 <= end < len(data) or data[end]:
        raise ValueError("a document is cut short")
    at += 4
    while at < end:
        kind, stop = data[at], data.index(b"\0", at + 1)
        key, value = prefix + data[at + 1 : stop].decode(), stop + 1
        at = end_of(data, kind, value)
        if not value <= at <= end:
            raise ValueError(f"{key} does not end in its document")
        if kind == 0x05 and data[value + 4] == 9:
            yield key, decode(data[value + 5 : at])
        elif kind == 0x03:
            yield from vectors(data, value, f"{key}.")


def read(path):
    """A dict of vectors for each document."""
    data, at, documents = Path(path).read_bytes(), 0, []
    while at < len(data):
        documents.append(dict(vectors(data, at)))
        at += int32(data, at)
    return documents


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python minimal_bson.py DUMP.bson")
    for document in read(sys.argv[1]):
        print({key: (vector.dtype.name, len(vector)) for key, vector in document.items()})
