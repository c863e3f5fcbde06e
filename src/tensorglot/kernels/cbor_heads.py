"""Decodes the head of a CBOR item (RFC 8949, §3): the form for interpreted kernels.

`cbor_heads.pxd` is the C form. No other code decodes heads.
"""

from __future__ import annotations

from typing import Any

OK, ENDS, RESERVED = range(3)
"""Faults of a head: it is truncated, or its additional information is one of 28 to 30, which are reserved."""
UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SPECIAL = range(8)
OPEN_ENDED = 31
"""The additional information that means indefinite length, and in major type 7 the break that ends it (§3.2)."""
BREAK = 0xFF


def head_end(data: Any, pos: int, end: int) -> int:
    """The position after the head at `pos`, or a negated fault. Reads no byte at or behind `end`."""
    if pos >= end:
        return -ENDS
    info = data[pos] & 31
    if info < 24 or info == OPEN_ENDED:
        return pos + 1
    if info > 27:
        return -RESERVED
    return pos + 1 + (1 << (info - 24)) if end - pos > 1 << (info - 24) else -ENDS


def argument_of(data: Any, pos: int, head_end: int) -> int:
    """The argument of the head from `pos` to `head_end`; 31 if the length is indefinite."""
    if head_end == pos + 1:
        return int(data[pos] & 31)
    return int.from_bytes(data[pos + 1 : head_end], "big")
