"""Reads CBOR (RFC 8949) that `cbor_check` has validated as Python values: a head, or an item.

Does not recurse over nesting. Bytes that were not validated are safe: every position is
compared with their end, and IndexError is raised.
"""

from __future__ import annotations

import struct
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tensorglot.kernels import nocython as cython
if cython.compiled:
    from cython.cimports.tensorglot.kernels.cbor_heads import *  # noqa: F403
else:
    from tensorglot.kernels.cbor_heads import (
        ARRAY,
        BREAK,
        MAP,
        NEGATIVE,
        OPEN_ENDED,
        SPECIAL,
        TAG,
        TEXT,
        UINT,
        argument_of,
        head_end,
    )

_FLOATS = {3: struct.Struct(">e"), 5: struct.Struct(">f"), 9: struct.Struct(">d")}
"""By the size of the item."""
_SIMPLE = {20: False, 21: True, 22: None}


def head(data: bytes, pos: cython.Py_ssize_t) -> tuple[int, int, int, int]:
    """The head at `pos` of validated bytes: major type, additional information, argument, position after it.

    Raises IndexError if there is no head at `pos`.
    """
    p: cython.p_const_uchar = data
    after: cython.Py_ssize_t = head_end(p, pos, len(data)) if pos >= 0 else -1
    if after < 0:
        raise IndexError(pos)
    return p[pos] >> 5, p[pos] & 31, argument_of(p, pos, after), after


def value(data: bytes, pos: cython.Py_ssize_t, tag: Any, simple: Any, mapping: Any) -> tuple[Any, int]:
    """The item at `pos` of validated bytes as a value, and the position after it.

    `tag` makes the value of a tag from its number and the value in it, `simple` that of a
    number other than false, true and null, and `mapping` that of a map with other keys than
    text from its keys and values in turn.
    """
    reader: _Reader = _Reader(data, pos)
    outer: list[tuple[int, int, int, list[Any]]] = []
    major: cython.int = ARRAY
    number: cython.ulonglong = 0
    wanted: cython.longlong = 1
    items: list[Any] = []
    ends: cython.bint
    # Invariant: the innermost open container is of this major type, with the argument `number`, and has `items` of the
    # `wanted` ones (-1: until a break). `outer` has those around it; the outermost one is for the item itself.
    while True:
        reader.read()
        ends = reader.major == SPECIAL and reader.info == OPEN_ENDED
        if ends and wanted != -1:
            raise IndexError(reader.begin)
        if ARRAY <= reader.major <= TAG:
            outer.append((major, number, wanted, items))
            major, number, wanted, items = reader.major, reader.argument, reader.wanted(), []
        elif not ends:
            items.append(reader.scalar(simple))
        while ends or len(items) == wanted:
            if not outer:
                return items[0], reader.pos
            item: Any = items
            if major != ARRAY:
                item = tag(number, items[0]) if major == TAG else _map(items, mapping)
            major, number, wanted, items = outer.pop()
            items.append(item)
            ends = False


@cython.cfunc
def _map(items: list[Any], mapping: Any) -> Any:
    """A map of keys and values in turn."""
    pairs: dict[Any, Any] = {}
    at: cython.Py_ssize_t
    for at in range(0, len(items) - 1, 2):
        if type(items[at]) is not str:
            return mapping(items)
        pairs[items[at]] = items[at + 1]
    return pairs


@cython.final
@cython.cclass
class _Reader:
    """A position in the data, and the head that was read last."""

    data: bytes
    p: cython.p_const_uchar
    end: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    """Where that head begins."""
    pos: cython.Py_ssize_t
    major: cython.int
    info: cython.int
    argument: cython.ulonglong

    def __init__(self, data: bytes, pos: cython.Py_ssize_t) -> None:
        self.data = self.p = data
        self.end = len(data)
        self.begin = self.pos = pos

    @cython.cfunc
    def read(self) -> cython.int:
        """Reads the head at the position."""
        self.begin = self.pos
        self.pos = head_end(self.p, self.begin, self.end) if self.begin >= 0 else -1
        if self.pos < 0:
            raise IndexError(self.begin)
        self.major = self.p[self.begin] >> 5
        self.info = self.p[self.begin] & 31
        self.argument = argument_of(self.p, self.begin, self.pos)
        return 0

    @cython.cfunc
    def wanted(self) -> cython.longlong:
        """How many items the container has whose head was read; -1 if that is indefinite."""
        if self.major == TAG:
            return 1
        if self.info == OPEN_ENDED:
            return -1
        if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):  # an item takes a byte or more
            raise IndexError(self.begin)
        return cython.cast(cython.longlong, self.argument) * (2 if self.major == MAP else 1)

    @cython.cfunc
    def scalar(self, simple: Any) -> Any:
        """The item whose head was read, which is no container."""
        number: Any = self.argument
        if self.major == UINT:
            return number
        if self.major == NEGATIVE:
            return -1 - number
        if self.major != SPECIAL:
            return self.string(self.major == TEXT)
        if self.info < 25:
            return _SIMPLE[number] if 20 <= self.argument <= 22 else simple(number)
        return _FLOATS[self.pos - self.begin].unpack(self.data[self.begin + 1 : self.pos])[0]

    @cython.cfunc
    def string(self, text: cython.bint) -> Any:
        """The contents of the string whose head was read, in one piece or in chunks."""
        begin: cython.Py_ssize_t = self.pos
        chunks: list[bytes] = []
        if self.info != OPEN_ENDED:
            self.skip()
            return self.data[begin : self.pos].decode("utf-8") if text else self.data[begin : self.pos]
        while self.pos < self.end and self.p[self.pos] != BREAK:
            self.read()
            begin = self.pos
            self.skip()
            chunks.append(self.data[begin : self.pos])
        if self.pos >= self.end:
            raise IndexError(self.begin)
        self.pos += 1
        joined: bytes = b"".join(chunks)
        return joined.decode("utf-8") if text else joined

    @cython.cfunc
    def skip(self) -> cython.int:
        """Moves past the contents of a string of definite length."""
        if self.argument > cython.cast(cython.ulonglong, self.end - self.pos):
            raise IndexError(self.begin)
        self.pos += cython.cast(cython.Py_ssize_t, self.argument)
        return 0
