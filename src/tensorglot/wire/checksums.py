"""Checksums as text and as running computations: `crc32c:0x1234ABCD`, `sha256:…`, `xxh3:…`.

Text is parsed to a value before anything is compared. An algorithm that is not in the
table is a value too: it can be kept and shown, never verified. Knows no tensor and no
file.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import xxhash

from tensorglot.errors import FormatError, InputError

__all__ = ["ALGORITHMS", "Checksum", "Hasher", "hasher", "one_shot", "parse"]


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
        from crc32c import crc32c  # which takes a third of the time that NumPy takes to import

        self._crc32c = crc32c
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


def hasher(algorithm: str) -> Hasher:
    """A fresh computation."""
    if algorithm not in ALGORITHMS:
        raise InputError(f"checksums are {', '.join(ALGORITHMS)}, not {algorithm!r}", rule="checksum.algorithm")
    return ALGORITHMS[algorithm][0]()


def one_shot(algorithm: str) -> Callable[[memoryview], bytes]:
    """The digest of bytes that are all there, for many short ones."""
    if algorithm == "crc32c":
        from crc32c import crc32c

        return lambda data: crc32c(data).to_bytes(4, "big")

    def digest(data: memoryview) -> bytes:
        running = hasher(algorithm)
        running.update(data)
        return running.digest()

    return digest
