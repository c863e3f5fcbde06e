"""The head of a CBOR item (RFC 8949, §3), for kernels that run interpreted; `cbor_heads.pxd` is the C form.

It is decoded here and nowhere else.
"""

from __future__ import annotations

from typing import Any

OK, ENDS, RESERVED = range(3)
"""Faults that a head can have: it ends too early, or its additional information has no meaning."""
UINT, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SPECIAL = range(8)
OPEN_ENDED = 31
"""The additional information of an indefinite length, and of the break that ends it."""
BREAK = 0xFF


def head_end(data: Any, pos: int, end: int) -> int:
    """Where the head at `pos` ends, or minus a fault."""
    if pos >= end:
        return -ENDS
    info = data[pos] & 31
    if info < 24 or info == OPEN_ENDED:
        return pos + 1
    if info > 27:
        return -RESERVED
    return pos + 1 + (1 << (info - 24)) if end - pos > 1 << (info - 24) else -ENDS


def argument_of(data: Any, pos: int, head_end: int) -> int:
    """The argument of the head at `pos`; 31 of an indefinite length."""
    if head_end == pos + 1:
        return int(data[pos] & 31)
    return int.from_bytes(data[pos + 1 : head_end], "big")
