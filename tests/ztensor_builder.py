"""zTensor files of every version, right or wrong in any detail. Shares no code with the library.

CBOR is written as the values say: shortest heads, maps in the order given. What is to
be wrong is said by wrapping it: Raw bytes, Pairs with any keys, Open for indefinite
lengths, Long for heads that are too long.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import xxhash

__all__ = ["MAGIC_01", "MAGIC_1", "MAGIC_2", "Long", "Open", "Pairs", "Raw", "cbor", "deterministic", "entry", "file01",
           "file1", "file2", "footer", "part", "tensor"]  # fmt: skip

MAGIC_01 = b"ZTEN0001"
MAGIC_1 = b"ZTEN1000"
MAGIC_2 = b"\x89ZT2\r\n\x1a\n"


@dataclass(frozen=True)
class Raw:
    """These bytes, whatever they are."""

    data: bytes


@dataclass(frozen=True)
class Pairs:
    """A map of these pairs, keys repeated or not."""

    items: tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class Open:
    """An array, a map or a text of indefinite length."""

    value: Any


@dataclass(frozen=True)
class Long:
    """An integer in a head of eight bytes."""

    value: int


def head(major: int, argument: int, width: int | None = None) -> bytes:
    if width is None and argument < 24:
        return bytes([major << 5 | argument])
    if width is None:
        width = next(w for w in (1, 2, 4, 8) if argument < 1 << 8 * w)
    return bytes([major << 5 | {1: 24, 2: 25, 4: 26, 8: 27}[width]]) + argument.to_bytes(width, "big")


def cbor(value: Any) -> bytes:
    match value:
        case Raw(data):
            return data
        case Long(number):
            return head(0, number, 8)
        case None | bool():
            return {None: b"\xf6", False: b"\xf4", True: b"\xf5"}[value]
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case float():
            return b"\xfb" + struct.pack(">d", value)
        case str():
            return head(3, len(value.encode())) + value.encode()
        case bytes():
            return head(2, len(value)) + value
        case list() | tuple():
            return head(4, len(value)) + b"".join(map(cbor, value))
        case dict():
            return cbor(Pairs(tuple(value.items())))
        case Pairs(items):
            return head(5, len(items)) + b"".join(cbor(key) + cbor(item) for key, item in items)
        case Open(list() as items):
            return b"\x9f" + b"".join(map(cbor, items)) + b"\xff"
        case Open(dict() as pairs):
            return b"\xbf" + b"".join(cbor(key) + cbor(item) for key, item in pairs.items()) + b"\xff"
        case Open(str() as text):
            half = len(text) // 2
            return b"\x7f" + cbor(text[:half]) + cbor(text[half:]) + b"\xff"
    raise TypeError(value)


def deterministic(value: Any) -> Any:
    """The same value with every dict in the order of its encoded keys."""
    if isinstance(value, dict):
        return Pairs(tuple((key, deterministic(value[key])) for key in sorted(value, key=cbor)))
    return [deterministic(item) for item in value] if isinstance(value, list) else value


ABSENT = object()


def entry(name: Any = "a", **fields: Any) -> dict[str, Any]:
    """An entry of 0.1: four uint8 at 64, unless the fields say something else. ABSENT leaves one out."""
    usual = {
        "name": name,
        "offset": 64,
        "size": 4,
        "dtype": "uint8",
        "layout": "dense",
        "shape": [4],
        "encoding": "raw",
    }
    return {key: value for key, value in (usual | fields).items() if value is not ABSENT}


def file01(index: Any = ABSENT, body: bytes = b"abcd", size: int | None = None) -> bytes:
    """Magic number, the body at 64, the index, its size."""
    encoded = cbor([entry()] if index is ABSENT else index)
    start = MAGIC_01 + (bytes(56) + body if body else b"")
    return start + encoded + struct.pack("<Q", len(encoded) if size is None else size)


def file1(manifest: Any, body: bytes = b"abcd", size: int | None = None, tail: bytes = MAGIC_1) -> bytes:
    """Version 1.1: the same, with a map and the magic number again."""
    encoded = cbor(manifest)
    return MAGIC_1 + bytes(56) + body + encoded + struct.pack("<Q", len(encoded) if size is None else size) + tail


def part(**fields: Any) -> dict[str, Any]:
    """A part of 2: four u8 at 4096."""
    usual = {"dtype": "u8", "blob": [4096, 4]}
    return {key: value for key, value in (usual | fields).items() if value is not ABSENT}


def tensor(parts: Any = ABSENT, **fields: Any) -> dict[str, Any]:
    """An object of 2: dense, of one such part."""
    usual = {"shape": [4], "layout": "dense", "parts": {"data": part()} if parts is ABSENT else parts}
    return {key: value for key, value in (usual | fields).items() if value is not ABSENT}


def footer(offset: int, manifest: bytes, version: int = 2, magic: bytes = MAGIC_2, digest: int | None = None) -> bytes:
    hashed = xxhash.xxh3_64_intdigest(manifest) if digest is None else digest
    return struct.pack("<QQQII", offset, len(manifest), hashed, version, 0) + magic


def file2(manifest: Any, body: bytes = b"abcd", exact: bool = False) -> bytes:
    """Magic number, the body at 4096, the manifest behind it, the footer. `exact` keeps the order of keys."""
    encoded = cbor(manifest if exact else deterministic(manifest))
    start = MAGIC_2 + bytes(4096 - 8) + body
    start += bytes(-len(start) % 4096)
    return start + encoded + footer(len(start), encoded)
