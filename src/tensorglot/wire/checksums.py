"""Checksums as text and as running computations: `crc32c:0x1234ABCD`, `sha256:…`, `xxh3:…`.

Text is parsed to a value before anything is compared. An algorithm that is not in the
table is a value too: it can be kept and shown, never verified. Knows no tensor and no
file.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash

from tensorglot.errors import FormatError, InputError

__all__ = ["ALGORITHMS", "Checksum", "Hasher", "Numbers", "hasher", "numbers", "parse"]


@dataclass(frozen=True, slots=True)
class Checksum:
    """An algorithm and, where we know it, its result."""

    algorithm: str
    digest: bytes | None
    """None for an algorithm that we do not know."""

    def __str__(self) -> str:
        if self.digest is None:
            return f"{self.algorithm}:?"
        if self.algorithm in ("crc32", "crc32c"):
            return f"{self.algorithm}:0x{self.digest.hex().upper()}"
        return f"{self.algorithm}:{self.digest.hex()}"


class Hasher(Protocol):
    """Takes bytes, piece by piece."""

    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc32c:
    def __init__(self) -> None:
        self._crc32c = _crc32c()
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        self._value = self._crc32c(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


ALGORITHMS: dict[str, tuple[Callable[[], Hasher], re.Pattern[str]]] = {
    "crc32": (_Crc32, re.compile("0[xX]([0-9a-fA-F]{1,8})", re.ASCII)),
    "crc32c": (_Crc32c, re.compile("0[xX]([0-9a-fA-F]{1,8})", re.ASCII)),
    "sha256": (hashlib.sha256, re.compile("([0-9a-fA-F]{64})", re.ASCII)),
    "xxh3": (xxhash.xxh3_64, re.compile("([0-9a-fA-F]{16})", re.ASCII)),
}
"""By name: how to compute it, and how it is written."""


def parse(text: str, tensor: str | None = None) -> Checksum:
    """The value of a checksum in text, or a refusal of what no algorithm writes."""
    algorithm, colon, written = text.partition(":")
    if not colon:
        raise FormatError("a checksum names no algorithm", rule="checksum.form", tensor=tensor)
    if algorithm not in ALGORITHMS:
        return Checksum(algorithm, None)
    match = ALGORITHMS[algorithm][1].fullmatch(written)
    if match is None:
        raise FormatError(f"not a {algorithm} checksum", rule="checksum.form", tensor=tensor)
    return Checksum(algorithm, bytes.fromhex(match[1].zfill(8)))


@dataclass(frozen=True, slots=True)
class Numbers:
    """Many checksums of one algorithm, in a form that is quick to compare."""

    compute: Callable[[memoryview], int]
    expected: list[int]


def numbers(texts: Sequence[str | None]) -> Numbers | None:
    """The checksums as numbers, if all are written as we write them, with one algorithm that has numbers."""
    first = texts[0] if texts else None
    prefix = None if first is None else next(filter(first.startswith, _NUMBERS), None)
    if first is None or prefix is None or None in texts or set(map(len, texts)) != {len(first)}:  # type: ignore[arg-type]
        return None
    dtype, computed = _NUMBERS[prefix]
    table = np.frombuffer("".join(texts).encode(), np.uint8)  # type: ignore[arg-type]
    if table.size != len(texts) * len(first):
        return None
    table = table.reshape(len(texts), len(first))
    digits = table[:, len(prefix) :].tobytes()
    try:
        if (table[:, : len(prefix)] == np.frombuffer(prefix.encode(), np.uint8)).all() and digits.isalnum():
            return Numbers(computed(), np.frombuffer(bytes.fromhex(digits.decode()), dtype).tolist())
    except ValueError:
        pass
    return None


def _crc32c() -> Callable[..., int]:
    from crc32c import crc32c  # which takes a third of the time that NumPy takes to import

    return crc32c


_NUMBERS: dict[str, tuple[str, Callable[[], Callable[[memoryview], int]]]] = {
    "crc32:0x": (">u4", lambda: zlib.crc32),
    "crc32c:0x": (">u4", _crc32c),
    "xxh3:": (">u8", lambda: xxhash.xxh3_64_intdigest),
}
"""By how they begin: the number that the digits are, and what computes it."""


def hasher(algorithm: str) -> Hasher:
    """A fresh computation."""
    if algorithm not in ALGORITHMS:
        raise InputError(f"checksums are {', '.join(ALGORITHMS)}, not {algorithm!r}", rule="checksum.algorithm")
    return ALGORITHMS[algorithm][0]()
