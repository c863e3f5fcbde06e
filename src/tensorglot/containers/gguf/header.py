"""The header of a GGUF file as values: metadata, and what it says of each tensor.

A cursor over the beginning of the file, which is fetched as far as it is needed. Every
count is held against the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorglot.errors import FormatError, LimitError, TruncatedError, UnsupportedError
from tensorglot.limits import Limits
from tensorglot.model.payload import Source
from tensorglot.wire.fetch import Fetched

__all__ = ["Description", "Header", "read_header"]

ALIGNMENT = 32
DEPTH = 8

_SCALARS: dict[int, str] = {
    0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8",
}  # fmt: skip
"""The kinds of metadata that are numbers, as NumPy calls them."""
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LEAST_PAIR_NBYTES = 13
_LEAST_TENSOR_NBYTES = 24


@dataclass(frozen=True, slots=True)
class Description:
    """What the header says of one tensor."""

    name: str
    type: int
    shape: tuple[int, ...]
    """Slowest first."""
    offset: int
    """In the data."""
    at: int
    """Where the header says so."""


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    big_endian: bool
    metadata: dict[str, Any]
    tensors: list[Description]
    alignment: int
    data: int
    """Where the data begins."""


class _Cursor(Fetched):
    """A position in the header."""

    order = "<"

    def number(self, code: str) -> int:
        layout = struct.Struct(self.order + code)
        value: int = layout.unpack(self.take(layout.size))[0]
        return value

    def count(self, least_nbytes: int, rule: str) -> int:
        """A number of items that take at least so many bytes each."""
        start = self.position
        count = self.number("Q")
        if count * least_nbytes > self.left:
            raise FormatError("a count of more items than there are bytes for", rule=f"gguf.{rule}", offset=start)
        return count

    def raw(self) -> bytes:
        return self.take(self.count(1, "text.length"))

    def text(self) -> str:
        start = self.position
        try:
            return self.raw().decode()
        except UnicodeDecodeError:
            raise FormatError("a name is not UTF-8", rule="gguf.text.utf8", offset=start) from None


def read_header(source: Source, limits: Limits) -> Header:
    cursor = _Cursor(source.read, source.size, limits.header_or(), "gguf.header")
    if source.size < 24:
        raise TruncatedError("shorter than a header", rule="gguf.header.end", offset=0)
    if cursor.take(4) != b"GGUF":
        raise FormatError("no magic number of GGUF", rule="gguf.magic", offset=0)
    version = _version(cursor)
    tensors = cursor.count(_LEAST_TENSOR_NBYTES, "count")
    pairs = cursor.count(_LEAST_PAIR_NBYTES, "count")
    if tensors > limits.tensors_or():
        raise LimitError("more tensors than Limits.tensors allows", rule="gguf.limit.tensors", offset=8)
    metadata = _metadata(cursor, pairs)
    descriptions = [_description(cursor, limits.rank) for _ in range(tensors)]
    _check_names(descriptions)
    alignment = _alignment(metadata)
    data = -(-cursor.position // alignment) * alignment
    return Header(version, cursor.order == ">", metadata, descriptions, alignment, data)


def _version(cursor: _Cursor) -> int:
    version = cursor.number("I")
    if version & 0xFFFF == 0:
        cursor.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise UnsupportedError(f"version {version} of GGUF", rule="gguf.version", offset=4)
    return version


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.text()
        if key in metadata:
            raise FormatError("a metadata key stands twice", rule="gguf.metadata.duplicate", offset=start)
        metadata[key] = _value(cursor, cursor.number("I"), DEPTH)
    return metadata


def _value(cursor: _Cursor, kind: int, depth: int) -> Any:
    if kind == _STRING:
        return _string(cursor)
    if kind != _ARRAY:
        return _numbers(cursor, kind, 1)[0]
    start = cursor.position
    if depth == 0:
        raise LimitError("arrays nested too deep", rule="gguf.metadata.depth", offset=start)
    kind = cursor.number("I")
    if kind in _SCALARS:
        width = np.dtype(_SCALARS[kind]).itemsize
        return _numbers(cursor, kind, cursor.count(width, "metadata.length"))
    item: Callable[[], Any] = (
        (lambda: _string(cursor)) if kind == _STRING else (lambda: _value(cursor, kind, depth - 1))
    )
    return [item() for _ in range(cursor.count(8, "metadata.length"))]


def _string(cursor: _Cursor) -> str | bytes:
    """Text; a token of a vocabulary may be a part of a character, and stays bytes."""
    raw = cursor.raw()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _numbers(cursor: _Cursor, kind: int, count: int) -> list[Any]:
    start = cursor.position
    if kind not in _SCALARS:
        raise FormatError("a kind of metadata that GGUF does not have", rule="gguf.metadata.kind", offset=start)
    dtype = np.dtype(_SCALARS[kind]).newbyteorder(cursor.order)  # type: ignore[arg-type]
    raw = cursor.take(count * dtype.itemsize)
    if kind == _BOOL and raw.translate(None, b"\0\1"):
        raise FormatError("a bool is neither 0 nor 1", rule="gguf.metadata.bool", offset=start)
    values: list[Any] = np.frombuffer(raw, dtype).tolist()
    return values


def _description(cursor: _Cursor, max_rank: int) -> Description:
    start = cursor.position
    name = cursor.text()
    rank = cursor.number("I")
    if rank > max_rank:
        raise LimitError("more dimensions than Limits.rank allows", rule="gguf.limit.rank", offset=start, tensor=name)
    sizes = struct.unpack(f"{cursor.order}{rank}Q", cursor.take(8 * rank))
    return Description(name, cursor.number("I"), sizes[::-1], cursor.number("Q"), start)


def _check_names(descriptions: list[Description]) -> None:
    seen: set[str] = set()
    for description in descriptions:
        if description.name in seen:
            raise FormatError(
                "two tensors of one name", rule="gguf.name.duplicate", offset=description.at, tensor=description.name
            )
        seen.add(description.name)


def _alignment(metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1) or alignment >= 1 << 32:
        raise FormatError("the alignment is not a power of two", rule="gguf.alignment")
    return alignment
