"""BinTensors files field by field, right or wrong: a second, independent writer for tests.

Every number may be given as an int, which is encoded in its shortest form, or as
bytes, which stand as they are. So any field of a file can be made to lie. It imports
nothing of the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Number", "Row", "Text", "build", "header", "number", "overlong", "text"]

Number = int | bytes
Text = str | bytes | tuple[Number, bytes]
"""Text, its bytes, or a length of its own and the bytes."""


def number(value: Number) -> bytes:
    """bincode's varint."""
    if isinstance(value, bytes):
        return value
    if value < 251:
        return value.to_bytes(1, "little")
    for tag, width in ((251, 2), (252, 4), (253, 8), (254, 16)):
        if value < 1 << (8 * width):
            return bytes([tag]) + value.to_bytes(width, "little")
    raise ValueError(value)


def overlong(value: int, tag: int) -> bytes:
    """The same number in the form of a chosen tag."""
    return bytes([tag]) + value.to_bytes({251: 2, 252: 4, 253: 8, 254: 16, 255: 32}[tag], "little")


def text(value: Text) -> bytes:
    if isinstance(value, tuple):
        return number(value[0]) + value[1]
    data = value.encode() if isinstance(value, str) else value
    return number(len(data)) + data


@dataclass(frozen=True)
class Row:
    """One tensor; two bytes of uint8 unless told otherwise."""

    name: Text = "a"
    dtype: Number = 1
    shape: Sequence[Number] = (2,)
    begin: Number = 0
    end: Number = 2
    rank: Number | None = None
    index: Number | None = None
    """Layout 0: the position that the map gives for the name."""

    def info(self) -> bytes:
        rank = len(self.shape) if self.rank is None else self.rank
        numbers = (self.dtype, rank, *self.shape, self.begin, self.end)
        return b"".join(map(number, numbers))


def header(
    layout: int,
    rows: Sequence[Row] = (Row(),),
    *,
    metadata: Sequence[tuple[Text, Text]] | bytes | None = None,
    count: Number | None = None,
    map_count: Number | None = None,
    map_rows: Sequence[Row] | None = None,
) -> bytes:
    """A header without its padding."""
    if metadata is None:
        head = b"\0"
    elif isinstance(metadata, bytes):
        head = metadata
    else:
        head = b"\1" + number(len(metadata)) + b"".join(text(part) for pair in metadata for part in pair)
    head += number(len(rows) if count is None else count)
    if layout == 1:
        return head + b"".join(text(row.name) + row.info() for row in rows)
    named = list(rows) if map_rows is None else list(map_rows)
    places = [i if row.index is None else row.index for i, row in enumerate(named)]
    entries = [text(row.name) + number(place) for row, place in zip(named, places, strict=True)]
    return (
        head
        + b"".join(row.info() for row in rows)
        + number(len(named) if map_count is None else map_count)
        + b"".join(entries)
    )


def build(head: bytes, data: bytes = b"\1\2", *, padding: bytes | None = None, length: int | None = None) -> bytes:
    """A file: the length field, the header, its padding, the data."""
    head += b" " * (-len(head) % 8) if padding is None else padding
    return (len(head) if length is None else length).to_bytes(8, "little") + head + data
