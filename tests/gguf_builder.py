"""GGUF files made by hand, right or wrong in any field."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["build", "pair", "string", "tensor"]


def string(text: str | bytes, order: str = "<") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(f"{order}Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes, order: str = "<") -> bytes:
    return string(key, order) + struct.pack(f"{order}I", kind) + value


def tensor(
    name: str | bytes, sizes: Sequence[int], type: int, offset: int, order: str = "<", rank: Any = None
) -> bytes:
    """`sizes` has the fastest first."""
    rank = len(sizes) if rank is None else rank
    return string(name, order) + struct.pack(f"{order}I{len(sizes)}QIQ", rank, *sizes, type, offset)


def build(
    tensors: Sequence[bytes] = (),
    pairs: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    order: str = "<",
    alignment: int = 32,
    counts: tuple[int, int] | None = None,
) -> bytes:
    count, pair_count = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack(f"{order}IQQ", version, count, pair_count) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data if data else head
