"""Checksums: what `verify=` asks of every read, and what `verify` asks of a whole file.

A checksum covers the bytes of a part as they are stored, or as they are decoded, as
its format has it. Those bytes are read once, in pieces, into memory that stays warm.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from tensorglot.errors import InputError, IntegrityError, escape
from tensorglot.model.archive import Verifier
from tensorglot.model.payload import Encoded, Memory, Span, as_bytes
from tensorglot.model.tensor import Part, Tensor
from tensorglot.wire import checksums

__all__ = ["check_part", "verifier_for"]

_PIECE_NBYTES = 1 << 20
"""Small enough to stay in the processor's cache between the read and the hash."""


def verifier_for(mode: str) -> Verifier | None:
    """What an archive calls before it hands out values: nothing, or a check of each tensor, once."""
    if mode not in ("never", "lazy", "require"):
        raise InputError(f"verify is 'never', 'lazy' or 'require', not {mode!r}", rule="verify.mode")
    return None if mode == "never" else _Once(required=mode == "require")


class _Once:
    """Checks a tensor when it is first read. One that failed is checked again."""

    def __init__(self, *, required: bool) -> None:
        self._required = required
        self._checked: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, tensor: Tensor) -> None:
        with self._lock:
            if tensor.name in self._checked:
                return
        for part in tensor.parts.values():
            if not check_part(part, tensor.name) and self._required:
                what = "no checksum" if part.checksum is None else f"checksum '{escape(part.checksum, longest=40)}'"
                raise IntegrityError(
                    f"{what} that could be verified", rule="verify.absent", tensor=tensor.name, offset=part.offset
                )
        with self._lock:
            self._checked.add(tensor.name)


def check_part(part: Part, tensor: str) -> bool:
    """Refuses a part whose bytes do not match its checksum; False where it has none that we know."""
    if part.checksum is None:
        return False
    expected = checksums.parse(part.checksum, tensor)
    if expected.digest is None:
        return False
    hasher = checksums.hasher(expected.algorithm)
    for piece in _covered(part):
        hasher.update(piece)
    if hasher.digest() != expected.digest:
        raise IntegrityError(
            f"{expected.algorithm} does not match the bytes",
            rule="checksum.mismatch",
            tensor=tensor,
            offset=part.offset,
        )
    return True


def _covered(part: Part) -> Iterator[memoryview]:
    """The bytes that the checksum of a part is of."""
    payload = part.payload
    if isinstance(payload, Memory) or (isinstance(payload, Encoded) and part.checksum_decoded):
        for chunk in payload.chunks():
            yield as_bytes(chunk)
        return
    span = Span(payload.source, payload.begin, payload.end)
    shared = span.view()
    if shared is not None:
        yield shared
        return
    room = memoryview(bytearray(min(_PIECE_NBYTES, span.nbytes)))
    for start in range(0, span.nbytes, _PIECE_NBYTES):
        piece = room[: span.nbytes - start]
        span.read_into(start, piece)
        yield piece
