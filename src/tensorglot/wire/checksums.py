"""Parses, formats and computes checksums: `crc32c:0x1234ABCD`, `sha256:…`, `xxh3:…`.

Text is parsed before anything is compared. A checksum of an unknown algorithm can be kept
and shown, but not verified. Knows no tensor and no file.

A library is imported by the first checksum that needs it: most files have one kind, or none.
"""

from __future__ import annotations

import re
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, InputError
from tensorglot.kernels.crc32c_rows import crc32c_rows, is_fast
from tensorglot.tuples import NamedTuple

if TYPE_CHECKING:
    import xxhash

__all__ = [
    "ALGORITHMS",
    "Checksum",
    "Hasher",
    "Numbers",
    "TextColumn",
    "digest_each",
    "digest_rows",
    "hasher",
    "is_short",
    "numbers",
    "parse",
]


_SHORT_NBYTES = 16 << 10
"""Spans of up to this size on average are hashed by our kernel, in 0.1 µs for each KiB. The package takes 0.3 µs for a
call, and half as long for each KiB."""


class Checksum(NamedTuple):
    """An algorithm and its digest."""

    algorithm: str
    digest: bytes | None
    """None for an unknown algorithm."""

    def __str__(self) -> str:
        if self.digest is None:
            return f"{self.algorithm}:?"
        if self.algorithm in ("crc32", "crc32c"):
            return f"{self.algorithm}:0x{self.digest.hex().upper()}"
        return f"{self.algorithm}:{self.digest.hex()}"


class Hasher(Protocol):
    """A running computation."""

    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    def __init__(self, update: Callable[..., int]) -> None:
        self._update = update
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        self._value = self._update(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


@cache
def _crc32c() -> Callable[..., int]:
    # Importing the package takes 25 ms in a new process: it imports argparse and reads its own metadata. Only its
    # extension module is needed, so that is loaded by itself.
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    package = PathFinder.find_spec("crc32c")
    found = None if package is None else PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if found is None or found.loader is None:
        from crc32c import crc32c

        return crc32c
    extension = module_from_spec(found)
    found.loader.exec_module(extension)
    compute: Callable[..., int] = extension.crc32c
    return compute


def _sha256() -> Hasher:
    from hashlib import sha256  # loads OpenSSL, 3 ms, for a checksum that few files have

    return sha256()


def _xxh3() -> xxhash.xxh3_64:
    import xxhash

    return xxhash.xxh3_64()


def _xxh3_number() -> Callable[[memoryview], int]:
    import xxhash

    return xxhash.xxh3_64_intdigest


ALGORITHMS: dict[str, tuple[Callable[[], Hasher], str]] = {
    "crc32": (lambda: _Crc(zlib.crc32), "0[xX]([0-9a-fA-F]{1,8})"),
    "crc32c": (lambda: _Crc(_crc32c()), "0[xX]([0-9a-fA-F]{1,8})"),
    "sha256": (_sha256, "([0-9a-fA-F]{64})"),
    "xxh3": (_xxh3, "([0-9a-fA-F]{16})"),
}
"""By name: the hasher, and the syntax of the digest."""


@cache
def _syntax(algorithm: str) -> re.Pattern[str]:
    return re.compile(ALGORITHMS[algorithm][1], re.ASCII)


def parse(text: str, tensor: str | None = None) -> Checksum:
    """Parses a checksum; its digest is None if the algorithm is unknown. `tensor` is for errors."""
    algorithm, colon, written = text.partition(":")
    if not colon:
        raise FormatError(
            "checksum without an algorithm (expected e.g. crc32c:0x1234ABCD)", rule="checksum.form", tensor=tensor
        )
    if algorithm not in ALGORITHMS:
        return Checksum(algorithm, None)
    match = _syntax(algorithm).fullmatch(written)
    if match is None:
        raise FormatError(f"invalid {algorithm} checksum", rule="checksum.form", tensor=tensor)
    return Checksum(algorithm, bytes.fromhex(match[1].zfill(8)))


class TextColumn(Sequence[str | None]):
    """A column of texts that can be read without an object for each text."""

    @abstractmethod
    def joined(self) -> bytes | None:
        """All texts concatenated, if they are ASCII and have the same length; otherwise None."""


class Numbers(NamedTuple):
    """Many checksums of one algorithm as integers, to be compared together."""

    algorithm: str
    expected: NDArray[np.unsignedinteger[Any]]


def numbers(texts: Sequence[str | None]) -> Numbers | None:
    """Parses checksums to integers if all are of one algorithm and in our notation; else returns None."""
    joined = texts.joined() if isinstance(texts, TextColumn) else _join_alike(texts)
    algorithm = "" if joined is None else joined.partition(b":")[0].decode()
    if joined is None or algorithm not in _INTEGERS:
        return None
    prefix, dtype, _ = _INTEGERS[algorithm]
    length = len(prefix) + 2 * np.dtype(dtype).itemsize
    if len(joined) != len(texts) * length:
        return None
    table = np.frombuffer(joined, np.uint8).reshape(-1, length)
    digits = table[:, len(prefix) :].tobytes()
    try:
        # `fromhex` skips white space, which `isalnum` excludes.
        if (table[:, : len(prefix)] == np.frombuffer(prefix.encode(), np.uint8)).all() and digits.isalnum():
            return Numbers(algorithm, np.frombuffer(bytes.fromhex(digits.decode()), dtype))
    except ValueError:
        pass
    return None


def _join_alike(texts: Sequence[str | None]) -> bytes | None:
    """The texts concatenated, if all are ASCII and have the same length; otherwise None."""
    there = [text for text in texts if text is not None and text.isascii()]
    alike = len(there) == len(texts) and len(set(map(len, there))) == 1
    return "".join(there).encode() if alike else None


_INTEGERS: dict[str, tuple[str, str, Callable[[], Callable[[memoryview], int]]]] = {
    "crc32": ("crc32:0x", ">u4", lambda: zlib.crc32),
    "crc32c": ("crc32c:0x", ">u4", _crc32c),
    "xxh3": ("xxh3:", ">u8", _xxh3_number),
}
"""Algorithms whose digest is an integer: the text before the digits, its type, and the function that computes it."""


def hasher(algorithm: str) -> Hasher:
    """Starts a computation."""
    if algorithm not in ALGORITHMS:
        raise InputError(
            f"unknown checksum algorithm {algorithm!r} (supported: {', '.join(ALGORITHMS)})", rule="checksum.algorithm"
        )
    return ALGORITHMS[algorithm][0]()


def digest_each(algorithm: str, pieces: Iterable[memoryview]) -> bytes:
    """The digests of many short pieces, concatenated."""
    if algorithm in _INTEGERS:
        _, dtype, computed = _INTEGERS[algorithm]
        return np.array([*map(computed(), pieces)], dtype).tobytes()
    joined = bytearray()
    for piece in pieces:
        running = hasher(algorithm)
        running.update(piece)
        joined += running.digest()
    return bytes(joined)


def is_short(algorithm: str, count: int, nbytes: int) -> bool:
    """Whether our kernel hashes these spans, `nbytes` in all: then hashing takes less time than copying them."""
    return algorithm == "crc32c" and nbytes <= count * _SHORT_NBYTES and is_fast()


def digest_rows(algorithm: str, memory: memoryview, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> bytes:
    """The digests of spans of one buffer, concatenated."""
    if is_short(algorithm, len(starts), int((stops - starts).sum())):
        found = np.empty(len(starts), np.uint32)
        if not crc32c_rows(memory, starts, stops, found):
            raise IndexError("a span ends outside of the buffer")
        return found.astype(">u4").tobytes()
    return digest_each(algorithm, map(memory.__getitem__, map(slice, starts.tolist(), stops.tolist())))
