"""One entry of a 0.1 index, whatever its form: the reader that knows every rule of §4.

The kernel reads the entries of the common form; all others come here, the unlawful
ones to be refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorglot.errors import FormatError, LimitError
from tensorglot.limits import Limits
from tensorglot.wire.cbor import Cursor

__all__ = ["KNOWN", "SIZE_END", "Entry", "read_entry", "read_shape"]

KNOWN = frozenset(("name", "offset", "size", "dtype", "shape", "encoding", "data_endianness", "checksum"))
"""Fields of the document. `layout` is one of somebody's own."""

SIZE_END = 1 << 63


@dataclass(frozen=True, slots=True)
class Entry:
    """What an entry says."""

    name: str
    offset: int
    size: int
    dtype: str
    shape: tuple[int, ...]
    encoding: str
    endianness: str | None
    checksum: str | None
    custom: dict[str, int]
    """Where the value of each field beside the known ones begins."""

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def read_entry(index: bytes, begin: int, limits: Limits, base: int) -> Entry:
    """The entry at `begin` of a checked index, which stands at `base` of the file."""
    cursor = Cursor(index, base=base, pos=begin, rule="ztensor.entry.kind")
    numbers: dict[str, int] = {}
    texts: dict[str, str] = {}
    custom: dict[str, int] = {}
    shape: tuple[int, ...] | None = None
    for _ in cursor.map("entry"):
        key = cursor.text("key")
        if key in ("offset", "size"):
            numbers[key] = cursor.uint(key)
        elif key == "shape":
            shape = read_shape(cursor, limits)
        elif key in KNOWN:
            texts[key] = cursor.text(key)
        else:
            custom[key] = cursor.skip()[0]
    for key in ("name", "offset", "size", "dtype", "shape", "encoding"):
        if key not in texts and key not in numbers and not (key == "shape" and shape is not None):
            raise FormatError(
                f"an entry without '{key}'",
                rule="ztensor.entry.missing",
                offset=base + begin,
                tensor=texts.get("name"),
            )
    entry = Entry(
        texts["name"],
        numbers["offset"],
        numbers["size"],
        texts["dtype"],
        shape or (),
        texts["encoding"],
        texts.get("data_endianness"),
        texts.get("checksum"),
        custom,
    )
    _check(entry, limits, base + begin)
    return entry


def read_shape(cursor: Cursor, limits: Limits) -> tuple[int, ...]:
    """The dims of a tensor, their product below 2**63 whatever zeros are among them."""
    begin = cursor.pos
    dims: list[int] = []
    for _ in cursor.array("shape"):
        if len(dims) == limits.rank:
            raise LimitError(
                "more dimensions than Limits.rank allows", rule="ztensor.limit.rank", offset=cursor.base + begin
            )
        dims.append(cursor.uint("shape"))
    if math.prod(size or 1 for size in dims) >= SIZE_END:
        raise FormatError(
            "the product of the dimensions passes 2**63", rule="ztensor.shape.product", offset=cursor.base + begin
        )
    return tuple(dims)


def _check(entry: Entry, limits: Limits, offset: int) -> None:
    if len(entry.name.encode()) > limits.name_nbytes:
        raise LimitError(
            "a name longer than Limits.name_nbytes allows", rule="ztensor.limit.name", offset=offset, tensor=entry.name
        )
    if entry.offset + entry.size >= SIZE_END:
        raise FormatError("a blob beyond 2**63", rule="ztensor.blob.bounds", offset=offset, tensor=entry.name)
    if entry.endianness not in (None, "little", "big"):
        raise FormatError(
            "data_endianness is neither little nor big",
            rule="ztensor.entry.endianness",
            offset=offset,
            tensor=entry.name,
        )
