"""Checksums: what `verify=` asks of every read, and what `verify` asks of a whole file.

A checksum covers the bytes of a part as they are stored, or as they are decoded, as
its format has it. Those bytes are read once, in pieces, into memory that stays warm.
Of a whole file, all that are of stored bytes are computed together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tensorglot.arguments import check_choice
from tensorglot.errors import FormatError, IntegrityError, UnsupportedError, escape
from tensorglot.memory import Scratch
from tensorglot.model.archive import Archive, Verifier
from tensorglot.model.payload import Encoded, Memory, Span, as_bytes
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._digests import Stretch, digests
from tensorglot.threads import for_each
from tensorglot.wire import checksums

__all__ = ["Checked", "check_archive", "check_part", "verifier_for"]

_PIECE_NBYTES = 1 << 20
"""Small enough to stay in the processor's cache between the read and the hash."""


def verifier_for(mode: str) -> Verifier | None:
    """What an archive calls before it hands out values: nothing, or a check of each tensor, once."""
    check_choice(mode, ("never", "lazy", "require"), "verify", "verify.mode")
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
    """Refuses a part whose bytes do not match its checksum; False where it has none that we can compute."""
    if part.checksum is None:
        return False
    expected = checksums.parse(part.checksum, tensor)
    if expected.digest is None:
        return False
    hasher = checksums.hasher(expected.algorithm)
    try:
        for piece in _covered(part):
            hasher.update(piece)
    except UnsupportedError:  # it is of decoded bytes, and the encoding is not known here
        return False
    if hasher.digest() != expected.digest:
        raise _mismatch(expected, tensor, part.offset)
    return True


def _mismatch(expected: checksums.Checksum, tensor: str, offset: int | None) -> IntegrityError:
    return IntegrityError(
        f"{expected.algorithm} does not match the bytes", rule="checksum.mismatch", tensor=tensor, offset=offset
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one checksum."""

    tensor: str | None
    """None for that of bytes outside all tensors."""
    matched: bool = False
    """False without an error: there is none, or none of a kind that we know."""
    error: FormatError | None = None


def check_archive(archive: Archive, seen: Callable[[int], None] = lambda nbytes: None) -> list[Checked]:
    """Every checksum of an archive, in its order. `seen` is told of bytes that are done, from any thread."""
    index = archive.index
    found: dict[int, Checked] = {}
    together: list[tuple[int, str, checksums.Checksum, Stretch]] = []
    alone: list[tuple[int, str]] = []
    for position, name in enumerate(index.names):
        for row in index.rows(position):
            text = None if index.checksums is None else index.checksums[row]
            try:
                expected = None if text is None else checksums.parse(text, name)
            except FormatError as error:
                found[row] = Checked(name, error=error)
                continue
            source = index.sources.get(row, archive.source)
            if expected is None or expected.digest is None:
                found[row] = Checked(name)
            elif (
                source is None or index.payloads is not None or (row in index.codecs and index.checksum_is_decoded(row))
            ):
                alone.append((row, name))
            else:
                stretch = Stretch(source, int(index.begins[row]), int(index.ends[row]), expected.algorithm)
                together.append((row, name, expected, stretch))
    try:
        computed = digests([stretch for _, _, _, stretch in together], seen)
    except FormatError:  # a file that is shorter than it was: each on its own says which are affected
        alone += [(row, name) for row, name, _, _ in together]
        together, computed = [], []
    for (row, name, expected, stretch), digest in zip(together, computed, strict=True):
        matched = digest == expected.digest
        found[row] = Checked(name, matched, None if matched else _mismatch(expected, name, stretch.begin))

    def look(job: tuple[int, str]) -> None:
        found[job[0]] = _check_alone(archive, *job)
        seen(int(index.ends[job[0]] - index.begins[job[0]]))

    for_each(look, alone)
    return [found[row] for position in range(len(index.names)) for row in index.rows(position)]


def _check_alone(archive: Archive, row: int, name: str) -> Checked:
    try:
        return Checked(name, check_part(archive.part(row, name), name))
    except FormatError as error:
        return Checked(name, error=error)


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
    scratch = Scratch(min(_PIECE_NBYTES, span.nbytes))
    for start in range(0, span.nbytes, _PIECE_NBYTES):
        piece = scratch.room(min(_PIECE_NBYTES, span.nbytes - start), span.begin + start)
        span.read_into(start, piece)
        yield piece
