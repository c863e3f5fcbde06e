"""Reads CBOR (RFC 8949) that `cbor_check` has validated as Python values: a head, or an item.

Recurses over nesting, to a bound. Bytes that were not validated are safe: every position is
compared with their end, and what has no value here is left to the caller.
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
        BYTES,
        NEGATIVE,
        OPEN_ENDED,
        SPECIAL,
        TAG,
        TEXT,
        UINT,
        argument_of,
        head_end,
    )

_UNUSUAL = object()
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


def value(data: bytes, pos: cython.Py_ssize_t, depth: cython.int, tag: Any) -> tuple[Any, int] | None:
    """The item at `pos` of validated bytes as a value, and the position after it.

    None if it is nested deeper than `depth`, has indefinite lengths, keys that are not text, or
    simple values other than false, true and null. A tag is what `tag` makes of its number and value.
    """
    if pos < 0:
        return None
    reader: _Reader = _Reader(data, pos, tag)
    found: Any = reader.item(depth)
    return None if found is _UNUSUAL else (found, reader.pos)


@cython.final
@cython.cclass
class _Reader:
    """A position in the data: the items before it were read. Each method gives _UNUSUAL for what it does not read."""

    data: bytes
    p: cython.p_const_uchar
    end: cython.Py_ssize_t
    pos: cython.Py_ssize_t
    tag: Any

    def __init__(self, data: bytes, pos: cython.Py_ssize_t, tag: Any) -> None:
        self.data = self.p = data
        self.end = len(data)
        self.pos = pos
        self.tag = tag

    @cython.cfunc
    def item(self, depth: cython.int) -> object:
        """Reads an item and moves past it."""
        begin: cython.Py_ssize_t = self.pos
        after: cython.Py_ssize_t = head_end(self.p, begin, self.end)
        if after < 0 or self.p[begin] & 31 == OPEN_ENDED or depth < 0:
            return _UNUSUAL
        major: cython.int = self.p[begin] >> 5
        argument: cython.ulonglong = argument_of(self.p, begin, after)
        self.pos = after
        if major == UINT:
            return argument
        if major == NEGATIVE:
            number: Any = argument
            return -1 - number
        if major == SPECIAL:
            if after - begin > 2:
                return _FLOATS[after - begin].unpack(self.data[begin + 1 : after])[0]
            return _SIMPLE.get(argument, _UNUSUAL)
        if major == TAG:
            inner: Any = self.item(depth - 1)
            return _UNUSUAL if inner is _UNUSUAL else self.tag(argument, inner)
        # What follows takes at least a byte for each of `argument`.
        if argument > cython.cast(cython.ulonglong, self.end - after):
            return _UNUSUAL
        count: cython.Py_ssize_t = argument
        if major == ARRAY:
            return self.array(count, depth - 1)
        if major != BYTES and major != TEXT:
            return self.map(count, depth - 1)
        self.pos = after + count
        if major == BYTES:
            return self.data[after : self.pos]
        try:
            return self.data[after : self.pos].decode("utf-8")
        except UnicodeDecodeError:
            return _UNUSUAL

    @cython.cfunc
    def array(self, count: cython.Py_ssize_t, depth: cython.int) -> object:
        items: list[Any] = []
        item: Any
        for _ in range(count):
            item = self.item(depth)
            if item is _UNUSUAL:
                return _UNUSUAL
            items.append(item)
        return items

    @cython.cfunc
    def map(self, count: cython.Py_ssize_t, depth: cython.int) -> object:
        pairs: dict[Any, Any] = {}
        key: Any
        item: Any
        for _ in range(count):
            key = self.item(depth)
            if type(key) is not str:
                return _UNUSUAL
            item = self.item(depth)
            if item is _UNUSUAL:
                return _UNUSUAL
            pairs[key] = item
        return pairs if len(pairs) == count else _UNUSUAL
