"""BSON made by hand, so that tests need no driver: every kind of element, valid and broken."""

from __future__ import annotations

import struct

__all__ = ["EVERY_KIND", "array", "binary", "document", "element", "string", "vector"]


def document(*elements: bytes) -> bytes:
    body = b"".join(elements)
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def element(kind: int, key: str | bytes, value: bytes) -> bytes:
    return bytes((kind,)) + (key if isinstance(key, bytes) else key.encode()) + b"\0" + value


def string(text: str) -> bytes:
    raw = text.encode() + b"\0"
    return struct.pack("<i", len(raw)) + raw


def binary(subtype: int, data: bytes) -> bytes:
    return struct.pack("<i", len(data)) + bytes((subtype,)) + data


def vector(key: str, payload: bytes) -> bytes:
    return element(5, key, binary(9, payload))


def array(*values: bytes) -> bytes:
    """An array of elements that were made with the keys 0, 1, 2, …"""
    return document(*values)


EVERY_KIND: dict[str, bytes] = {
    "double": element(0x01, "k", struct.pack("<d", -0.0)),
    "string": element(0x02, "k", string("héllo\0 there")),
    "document": element(0x03, "k", document(element(0x10, "a", struct.pack("<i", 1)))),
    "array": element(0x04, "k", array(element(0x0A, "0", b""), element(0x08, "1", b"\1"))),
    "binary": element(0x05, "k", binary(0, b"abc")),
    "binary, old": element(0x05, "k", binary(2, struct.pack("<i", 2) + b"ab")),
    "binary, uuid": element(0x05, "k", binary(4, bytes(16))),
    "vector": vector("k", b"\x03\x00\x01\xff"),
    "undefined": element(0x06, "k", b""),
    "object id": element(0x07, "k", bytes(range(12))),
    "bool": element(0x08, "k", b"\0"),
    "date": element(0x09, "k", struct.pack("<q", 1_700_000_000_123)),
    "date, far": element(0x09, "k", struct.pack("<q", 2**62)),
    "null": element(0x0A, "k", b""),
    "regex": element(0x0B, "k", b"^a.*\0im\0"),
    "pointer": element(0x0C, "k", string("db.c") + bytes(12)),
    "code": element(0x0D, "k", string("function() {}")),
    "symbol": element(0x0E, "k", string("s")),
    "code with scope": element(0x0F, "k", struct.pack("<i", 4 + len(string("f")) + 5) + string("f") + document()),
    "int32": element(0x10, "k", struct.pack("<i", -5)),
    "timestamp": element(0x11, "k", bytes(8)),
    "int64": element(0x12, "k", struct.pack("<q", 7)),
    "int64, large": element(0x12, "k", struct.pack("<q", -(2**63))),
    "decimal": element(0x13, "k", bytes(range(16))),
    "minKey": element(0xFF, "k", b""),
    "maxKey": element(0x7F, "k", b""),
}
