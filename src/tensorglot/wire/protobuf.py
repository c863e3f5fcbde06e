"""The wire format of Protocol Buffers: the fields of a message, in order, without a schema.

Only tags and lengths are read: the contents of a field are a span, which the caller
descends into, reads, or skips. So scanning a model of many gigabytes reads little, and
every byte that is read counts against a limit. Groups, which are deprecated, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, LimitError, TruncatedError
from tensorglot.kernels.protobuf import scan_fields

__all__ = ["BYTES", "FIXED32", "FIXED64", "VARINT", "Field", "Reader", "decode_varints", "signed"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_WINDOW_NBYTES = 1 << 16
_VARINT_NBYTES = 10
_ALL = (1 << 64) - 1

Read: TypeAlias = "Callable[[int, int], bytes]"
"""`read(offset, nbytes)` returns exactly `nbytes` bytes."""


class Field(NamedTuple):
    """A field of a message."""

    number: int
    kind: int
    value: int
    """Value of a varint."""
    begin: int
    end: int
    """The span of the contents."""


class Reader:
    """Reads the fields of messages in a file of `size` bytes; reads at most `most` bytes in all."""

    def __init__(self, read: Read, size: int, most: int, rule: str) -> None:
        self._read = read
        self._size = size
        self.left = most
        """Bytes that may still be read."""
        self._rule = rule
        self._window = b""
        self._begin = 0

    def fields(
        self, begin: int, end: int, wanted: int = _ALL, pair: int = 0, pairs: dict[str, str] | None = None
    ) -> Iterator[Field]:
        """Yields the fields of the message from `begin` to `end` whose numbers are bits of `wanted`.

        Fields of the number `pair` that are a key and its value are added to `pairs` instead,
        unless the key is there.
        """
        position, pairs = begin, {} if pairs is None else pairs
        while position < end:
            found: list[Field] = []
            window, start = self.window(position)
            position, self.left = scan_fields(
                window, start, position, end, self.left, wanted, pair, Field, found, pairs
            )
            yield from found
            if position < min(start + len(window), end):
                field = self.field(position, end)
                if wanted >> min(field.number, 64) & 1:
                    yield field
                position = field.end

    def field(self, start: int, end: int) -> Field:
        """The field at a position of the message that ends at `end`."""
        key, position = self._varint(start, end)
        number, kind = key >> 3, key & 7
        first, value = position, 0
        if kind == VARINT:
            value, position = self._varint(position, end)
        elif kind == BYTES:
            nbytes, first = self._varint(position, end)
            position = first + nbytes
        elif kind in _WIDTHS:
            position += _WIDTHS[kind]
        else:
            raise FormatError(f"unknown wire type {kind}", rule=f"{self._rule}.wire", offset=start)
        if number == 0:
            raise FormatError("a field must have a number", rule=f"{self._rule}.wire", offset=start)
        if position > end:
            self._fail(position, end, start)
        return Field(number, kind, value, first, position)

    def window(self, position: int) -> tuple[bytes, int]:
        """Bytes of the file from `position` on or before it, and where they begin."""
        if not self._begin <= position < self._begin + len(self._window):
            self._begin = position
            self._window = self._read(position, min(_WINDOW_NBYTES, self._size - position))
        return self._window, self._begin

    def take(self, field: Field) -> bytes:
        """The contents of a field."""
        nbytes = field.end - field.begin
        self._charge(nbytes, field.begin)
        at = field.begin - self._begin
        if 0 <= at <= len(self._window) - nbytes:
            return self._window[at : at + nbytes]
        return bytes(self._read(field.begin, nbytes))

    def text(self, field: Field) -> str:
        try:
            return self.take(field).decode()
        except UnicodeDecodeError:
            raise FormatError("invalid UTF-8", rule=f"{self._rule}.utf8", offset=field.begin) from None

    def varints(self, field: Field) -> list[int]:
        """The numbers of a repeated field: packed, or a single one."""
        if field.kind == VARINT:
            return [field.value]
        numbers = decode_varints(np.frombuffer(self.take(field), np.uint8))
        if numbers is None:
            raise FormatError("invalid packed integers", rule=f"{self._rule}.varint", offset=field.begin)
        return numbers.tolist()  # type: ignore[no-any-return]

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        at = position - self._begin
        if position < end and 0 <= at < len(self._window) and self.left and self._window[at] < 0x80:
            self.left -= 1  # fast path: most varints have one byte
            return self._window[at], position + 1
        value = shift = 0
        first = position
        while position < end:
            window, begin = self.window(position)
            byte = window[position - begin]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._charge(position - first, first)
                return value & 0xFFFF_FFFF_FFFF_FFFF, position
            shift += 7
            if shift == 7 * _VARINT_NBYTES:
                raise FormatError("a varint of more than 10 bytes", rule=f"{self._rule}.varint", offset=first)
        self._fail(position + 1, end, first)
        raise AssertionError

    def _charge(self, nbytes: int, offset: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise LimitError("header exceeds Limits.header_nbytes", rule=f"{self._rule}.limit.header", offset=offset)

    def _fail(self, needed: int, end: int, offset: int) -> None:
        if end >= self._size:
            raise TruncatedError(
                f"file truncated: needs {needed} bytes, has {self._size}", rule=f"{self._rule}.end", offset=offset
            )
        raise FormatError("a field ends beyond its message", rule=f"{self._rule}.span", offset=offset)


def decode_varints(data: NDArray[np.uint8]) -> NDArray[np.uint64] | None:
    """The numbers of consecutive varints; None if the last one is cut or one has more than 10 bytes."""
    ends = np.flatnonzero(data < 0x80)
    if (int(ends[-1]) + 1 if ends.size else 0) != data.size:
        return None
    begins = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: ends.size]
    widths = ends - begins + 1
    if ends.size and int(widths.max()) > _VARINT_NBYTES:
        return None
    numbers = np.zeros(ends.size, np.uint64)
    # Byte `place` of all varints that have one, at a time: at most ten vector operations.
    for place in range(int(widths.max(initial=0))):
        wide = np.flatnonzero(widths > place)
        numbers[wide] |= (data[begins[wide] + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return numbers


def signed(value: int) -> int:
    """Interprets an unsigned 64-bit number as two's complement."""
    return value - (1 << 64) if value >> 63 else value
