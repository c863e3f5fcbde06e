"""Parses the header of a GGUF file: metadata, and the description of each tensor.

The header is read in blocks on demand. Every count is checked against the remaining bytes
before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tensorglot.containers.gguf.values import ARRAY, BOOL, DEPTH, SCALARS, STRING, typed
from tensorglot.errors import FormatError, LimitError, TruncatedError, UnsupportedError
from tensorglot.limits import Limits
from tensorglot.model.payload import Source
from tensorglot.tuples import NamedTuple
from tensorglot.wire.fetch import Fetched

__all__ = ["Description", "Header", "alignment_of", "read_header"]

ALIGNMENT = 32

_LEAST_PAIR_NBYTES = 13
_LEAST_TENSOR_NBYTES = 24
_DTYPES = {order: {kind: np.dtype(f"{order}{name}") for kind, name in SCALARS.items()} for order in "<>"}
_WIDTHS = {kind: dtype.itemsize for kind, dtype in _DTYPES["<"].items()}
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_LAYOUTS = {order: {code: struct.Struct(order + code) for code in (*_CODES.values(), "IQ")} for order in "<>"}


class Description(NamedTuple):
    """The header's entry of one tensor."""

    name: str
    type: int
    shape: tuple[int, ...]
    """Slowest first."""
    offset: int
    """Relative to the data section."""
    at: int
    """Offset of the entry in the header."""


@dataclass(frozen=True, slots=True)
class Header:
    version: int
    big_endian: bool
    metadata: dict[str, Any]
    tensors: list[Description]
    alignment: int
    data: int
    """Offset of the data."""


class _Cursor(Fetched):
    """A position in the header."""

    order = "<"
    layouts = _LAYOUTS["<"]

    def numbers(self, codes: str) -> tuple[Any, ...]:
        layout = self.layouts[codes]
        return layout.unpack(self.take(layout.size))

    def number(self, code: str) -> Any:
        layout = self.layouts[code]
        return layout.unpack(self.take(layout.size))[0]

    def count(self, least_nbytes: int, rule: str) -> int:
        """Reads the number of items that take at least `least_nbytes` each."""
        return self.checked(self.number("Q"), least_nbytes, rule)

    def checked(self, count: int, least_nbytes: int, rule: str) -> int:
        """Refuses a count that was just read if so many items cannot fit the rest of the file."""
        if count and count * least_nbytes > self.left:
            raise FormatError(
                f"count of {count} exceeds the remaining {self.left} bytes",
                rule=f"gguf.{rule}",
                offset=self.position - 8,
            )
        return count

    def raw(self) -> bytes:
        length = self.number("Q")
        return self.take(length if length <= self.left else self.checked(length, 1, "text.length"))

    def text(self) -> str:
        raw = self.raw()
        try:
            return raw.decode()
        except UnicodeDecodeError:
            offset = self.position - len(raw) - 8
            raise FormatError("invalid UTF-8 in a name or key", rule="gguf.text.utf8", offset=offset) from None


def read_header(source: Source, limits: Limits) -> Header:
    cursor = _Cursor(source.read_bytes, source.size, limits.header_or(), "gguf.header")
    if source.size < 24:
        raise TruncatedError(
            f"file truncated: the header needs 24 bytes, has {source.size}", rule="gguf.header.end", offset=0
        )
    if cursor.take(4) != b"GGUF":
        raise FormatError("not a GGUF file: wrong magic number", rule="gguf.magic", offset=0)
    version = _version(cursor)
    tensors = cursor.count(_LEAST_TENSOR_NBYTES, "count")
    pairs = cursor.count(_LEAST_PAIR_NBYTES, "count")
    limits.check_tensors(tensors, rule="gguf.limit.tensors", offset=8)
    metadata = _metadata(cursor, pairs)
    descriptions: dict[str, Description] = {}
    for _ in range(tensors):
        tensor = _description(cursor, limits)
        if descriptions.setdefault(tensor.name, tensor) is not tensor:
            message = "duplicate tensor name"
            raise FormatError(message, rule="gguf.name.duplicate", offset=tensor.at, tensor=tensor.name)
    alignment = alignment_of(metadata)
    data = -(-cursor.position // alignment) * alignment
    return Header(version, cursor.order == ">", metadata, list(descriptions.values()), alignment, data)


def _version(cursor: _Cursor) -> int:
    version: int = cursor.number("I")
    if version & 0xFFFF == 0:
        cursor.order, cursor.layouts = ">", _LAYOUTS[">"]
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise UnsupportedError(f"unsupported GGUF version {version} (supported: 2, 3)", rule="gguf.version", offset=4)
    return version


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        start = cursor.position
        key = cursor.text()
        if key in metadata:
            raise FormatError("duplicate metadata key", rule="gguf.metadata.duplicate", offset=start)
        metadata[key] = _value(cursor, cursor.number("I"), DEPTH)
    return metadata


def _value(cursor: _Cursor, kind: int, depth: int) -> Any:
    if kind == STRING:
        return _string(cursor)
    if kind != ARRAY:
        return typed(_scalar(cursor, kind), kind)
    if depth == 0:
        raise LimitError(
            f"metadata arrays nested deeper than {DEPTH} levels", rule="gguf.metadata.depth", offset=cursor.position
        )
    kind, count = cursor.numbers("IQ")
    cursor.checked(count, _WIDTHS.get(kind, 8), "metadata.length")
    if kind in SCALARS:
        return typed(_numbers(cursor, kind, count), kind)
    return typed([_value(cursor, kind, depth - 1) for _ in range(count)], kind)


def _string(cursor: _Cursor) -> str | bytes:
    """Reads text; a vocabulary token may be part of a character, and stays bytes."""
    raw = cursor.raw()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _scalar(cursor: _Cursor, kind: int) -> Any:
    if kind not in SCALARS:
        raise FormatError(f"unknown metadata type {kind}", rule="gguf.metadata.kind", offset=cursor.position)
    if kind != BOOL:
        return cursor.number(_CODES[kind])
    value = cursor.number("B")
    if value > 1:
        raise FormatError("a bool must be 0 or 1", rule="gguf.metadata.bool", offset=cursor.position - 1)
    return value == 1


def _numbers(cursor: _Cursor, kind: int, count: int) -> list[Any]:
    if count == 0:
        return []
    dtype = _DTYPES[cursor.order][kind]
    raw = cursor.take(count * dtype.itemsize)
    if kind == BOOL and raw.translate(None, b"\0\1"):
        raise FormatError("a bool must be 0 or 1", rule="gguf.metadata.bool", offset=cursor.position - len(raw))
    values: list[Any] = np.frombuffer(raw, dtype).tolist()
    return values


def _description(cursor: _Cursor, limits: Limits) -> Description:
    start = cursor.position
    name = cursor.text()
    rank = cursor.number("I")
    if rank > limits.rank:
        limits.check_rank(rank, rule="gguf.limit.rank", offset=start, tensor=name)
    layout = _rest(cursor.order, rank)
    *sizes, type, offset = layout.unpack(cursor.take(layout.size))
    return Description(name, type, tuple(sizes[::-1]), offset, start)


@lru_cache(maxsize=128)
def _rest(order: str, rank: int) -> struct.Struct:
    """What follows the rank of a tensor: its sizes, its type and its offset."""
    return struct.Struct(f"{order}{rank}QIQ")


def alignment_of(metadata: Mapping[str, Any]) -> int:
    """The alignment of tensor offsets."""
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or isinstance(alignment, bool)
        or alignment < 1
        or alignment & (alignment - 1)
        or alignment >= 1 << 32
    ):
        raise FormatError(f"general.alignment is not a power of two: {alignment!r}", rule="gguf.alignment")
    return int(alignment)
