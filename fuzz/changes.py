"""A few changes of bytes, for targets that go through many mutants: about a microsecond for each."""

from __future__ import annotations

import random

__all__ = ["NUMBERS", "change"]

NUMBERS = (0, 1, 2, 8, 127, 128, 250, 251, 255, 1 << 16, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_PATTERNS = tuple(
    (number % (1 << 8 * width)).to_bytes(width, order)
    for number in NUMBERS
    for width in (1, 2, 4, 8)
    for order in ("little", "big")
)


def change(r: random.Random, data: bytes, other: bytes) -> bytes:
    """One to four changes: bits, numbers, cuts, repetitions, a piece of another input."""
    rand = r.random
    out = bytearray(data)
    for _ in range((1, 1, 1, 2, 2, 4)[int(rand() * 6)]):
        at = int(rand() * (len(out) + 1))
        kind = int(rand() * 8)
        if kind < 2 and at < len(out):
            out[at] ^= 1 << int(rand() * 8)
        elif kind == 2 and at < len(out):
            out[at] = int(rand() * 256)
        elif kind == 3:
            pattern = _PATTERNS[int(rand() * len(_PATTERNS))]
            out[at : at + len(pattern)] = pattern
        elif kind == 4:
            del out[at : at + (1, 1, 2, 8)[int(rand() * 4)]]
        elif kind == 5:
            out[at:at] = out[at : at + (1, 2, 4, 16)[int(rand() * 4)]]
        elif kind == 6 and other:
            begin = int(rand() * len(other))
            out[at : at + 8] = other[begin : begin + 8]
        elif rand() < 0.3:
            del out[at:]
    return bytes(out)
