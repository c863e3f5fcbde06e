"""Compares checksums: of each read, for `verify=` of `open`, and of a whole file, for the verb `verify`.

A checksum covers the stored or the decoded bytes of a part, by the rules of its format.
It is compared in the pass that reads them: threads read the pieces of a large part, and
the one that has the next piece hashes it, while it is in the processor's cache. For a
whole file, the digests of all stored bytes are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, IntegrityError, UnsupportedError, escape
from tensorglot.io.local import BaseSource
from tensorglot.memory import SCRATCH_NBYTES, allocate, scratch
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.nonzero_bools import stored_payload
from tensorglot.model.payload import Buffer, Check, Composed, Encoded, FrameChecked, Rearranged, Source
from tensorglot.operations._digests import READ_NBYTES, Stretch, digest_rows, digests
from tensorglot.operations._reads import InOrder, Piece, fill
from tensorglot.threads import for_each
from tensorglot.wire import checksums

__all__ = ["Checked", "OnceVerifier", "RowChecks", "Rows", "check_archive", "row_checks"]

Key = tuple[int, int, int, str | None, str | None]
"""Source, begin, end, checksum and encoding: tensors that share bytes are compared once."""


class OnceVerifier:
    """The verifier of an archive: compares each checksum the first time its bytes are read in full.

    The result is remembered, so that a tensor that is read again costs nothing, and one that failed fails again.
    """

    def __init__(self, *, required: bool) -> None:
        self.required = required
        self.matched: set[Key] = set()
        self.failed: set[Key] = set()
        self._rows: tuple[Index, RowChecks] | None = None

    def check(self, index: Index, row: int, source: Source, tensor: str) -> Check | None:
        checksum = None if index.checksums is None else index.checksums[row]
        if checksum is None and (not self.required or isinstance(index.codecs.get(row), FrameChecked)):
            return None
        codec = index.codecs.get(row)
        encoding = None if codec is None else codec.name
        key = id(source), int(index.begins[row]), int(index.ends[row]), checksum, encoding
        return _Check(self, key, index.checksum_is_decoded(row), tensor, _path_of(source))

    def compare(
        self, index: Index, source: Source | None, rows: NDArray[np.int64], joined: memoryview, stops: NDArray[np.int64]
    ) -> None:
        made = self._rows
        if made is None or made[0] is not index:
            made = self._rows = index, RowChecks(index, source, required=self.required)
        made[1].compare(Rows(joined, rows, np.append(0, stops[:-1]), stops))

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy starts without results: the keys contain the addresses of sources."""
        return partial(OnceVerifier, required=self.required), ()


def _path_of(source: Source | None) -> str | None:
    """The file of a source. With several files, the tensor alone would not say which is damaged."""
    return source.path if isinstance(source, BaseSource) else None


class _Running:
    """The running checksum of a row or a payload. Does nothing if there is no checksum that can be verified."""

    def __init__(self, text: str | None, tensor: str, offset: int, path: str | None, *, required: bool) -> None:
        self._tensor = tensor
        self._offset = offset
        self._path = path
        expected = None if text is None else checksums.parse(text, tensor)
        self.expected = None if expected is None or expected.digest is None else expected
        if self.expected is None and required:
            what = "no checksum" if text is None else f"checksum '{escape(text, longest=40)}' cannot be verified here"
            raise IntegrityError(
                f"{what}, and verify='require' needs one",
                rule="verify.absent",
                tensor=tensor,
                offset=offset,
                path=path,
            )
        self._hasher = None if self.expected is None else checksums.hasher(self.expected.algorithm)

    def update(self, data: memoryview) -> None:
        if self._hasher is not None:
            self._hasher.update(data)

    def finish(self) -> None:
        if self._hasher is not None:
            self.compare(self._hasher.digest())

    def compare(self, digest: bytes) -> None:
        if self.expected is not None and digest != self.expected.digest:
            raise _mismatch(self.expected, self._tensor, self._offset, self._path)


def _mismatch(expected: checksums.Checksum, tensor: str, offset: int, path: str | None = None) -> IntegrityError:
    return IntegrityError(
        f"checksum mismatch: the bytes do not match their {expected.algorithm}",
        rule="checksum.mismatch",
        tensor=tensor,
        offset=offset,
        path=path,
    )


class _Check(NamedTuple):
    """The check of one payload."""

    once: OnceVerifier
    key: Key
    decoded: bool
    tensor: str
    path: str | None

    @property
    def strict(self) -> bool:
        return self.once.required

    def pending(self) -> bool:
        if self.key in self.once.matched:
            return False
        expected = self._running().expected
        if expected is not None and self.key in self.once.failed:
            raise _mismatch(expected, self.tensor, self.key[1], self.path)
        return expected is not None

    def _running(self) -> _Running:
        return _Running(self.key[3], self.tensor, self.key[1], self.path, required=self.strict)

    @contextmanager
    def _remembered(self) -> Iterator[None]:
        """Remembers the result of the comparison."""
        try:
            yield
        except IntegrityError:
            self.once.failed.add(self.key)
            raise
        self.once.matched.add(self.key)

    def read(self, source: Source, begin: int, nbytes: int) -> memoryview:
        if begin + nbytes > source.size:
            return source.read(begin, nbytes)  # raises: the file is truncated
        out = allocate(nbytes, begin)
        self.read_into(source, begin, out)
        return out

    def read_into(self, source: Source, begin: int, out: memoryview) -> None:
        running = self._running()
        done = 0

        def follow(end: int) -> None:
            nonlocal done
            running.update(out[done:end])
            done = end

        fill(source, [Piece(begin, out, InOrder(follow))], [], None)
        with self._remembered():
            running.finish()

    def follow(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        running = self._running()
        for chunk in chunks:
            running.update(memoryview(chunk))
            yield chunk
        with self._remembered():
            running.finish()

    @contextmanager
    def stored(self, source: Source, begin: int, end: int) -> Iterator[memoryview | None]:
        running = self._running()
        assert running.expected is not None  # noqa: S101
        if end - begin > SCRATCH_NBYTES:
            digest = digests([Stretch(source, begin, end, running.expected.algorithm)])[0]
            with self._remembered():
                running.compare(digest)
            yield None
            return
        with scratch() as memory:
            held = memory.room(end - begin, begin)
            source.read_into(begin, held)
            running.update(held)
            with self._remembered():
                running.finish()
            yield held


def row_checks(archive: Archive) -> RowChecks | None:
    """The checks of an archive's raw rows; None if there is nothing to compare."""
    verifier, index = archive.verifier, archive.index
    if verifier is None or (index.checksums is None and not verifier.required):
        return None
    return RowChecks(index, archive.source, required=verifier.required)


class Rows(NamedTuple):
    """Rows of an index in one block of memory: their positions, and where the bytes of each start and stop."""

    memory: memoryview
    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    @property
    def pieces(self) -> Iterator[memoryview]:
        """The bytes of each row; one at a time, since many views at once would set off the garbage collector."""
        return map(self.memory.__getitem__, map(slice, self.starts.tolist(), self.stops.tolist()))

    def between(self, first: int, last: int) -> Rows:
        return Rows(self.memory, self.rows[first:last], self.starts[first:last], self.stops[first:last])


class RowChecks:
    """Compares the checksums of raw rows of an index while their bytes are read. Keeps no results."""

    def __init__(self, index: Index, source: Source | None, *, required: bool) -> None:
        self._index = index
        self._source = source
        self._required = required
        self._texts = [None] * len(index.dtypes) if index.checksums is None else index.checksums
        self._numbers = checksums.numbers(self._texts)

    def compare(self, held: Rows) -> None:
        """Compares rows with their bytes."""
        if self._numbers is None:
            for row, piece in zip(held.rows.tolist(), held.pieces, strict=True):
                running = self.running(row)
                running.update(piece)
                running.finish()
            return
        digests = checksums.digest_rows(self._numbers.algorithm, held.memory, held.starts, held.stops)
        expected = self._numbers.expected[held.rows]
        wrong = np.flatnonzero(np.frombuffer(digests, expected.dtype) != expected)
        if wrong.size:
            row = int(held.rows[wrong[0]])
            name = self._index.name_of(row)
            declared = checksums.parse(self._texts[row] or "", name)
            raise _mismatch(declared, name, int(self._index.begins[row]), self._path(row))

    def running(self, row: int) -> _Running:
        name, offset = self._index.name_of(row), int(self._index.begins[row])
        return _Running(self._texts[row], name, offset, self._path(row), required=self._required)

    def _path(self, row: int) -> str | None:
        return _path_of(self._index.sources.get(row, self._source))

    def follower(self, rows: Rows) -> InOrder:
        """Compares the rows while their memory is being filled."""
        return InOrder(_RowFollower(self, rows))


class _RowFollower:
    """Compares each row when it is complete; a row that is read in pieces is hashed piece by piece."""

    def __init__(self, checks: RowChecks, rows: Rows) -> None:
        self._checks = checks
        self._rows = rows
        self._next = 0
        self._begun: _Running | None = None
        self._hashed = 0
        """Up to where the row in progress is hashed."""

    def __call__(self, end: int) -> None:
        if self._begun is not None:
            self._add(end)
        rows = self._rows
        # Complete rows are compared together. Of the row around `end`, the bytes that have been read are hashed.
        first, self._next = self._next, max(self._next, int(np.searchsorted(rows.stops, end, "right")))
        self._checks.compare(rows.between(first, self._next))
        if self._next < len(rows.rows) and rows.starts[self._next] < end:
            self._begun = self._checks.running(int(rows.rows[self._next]))
            self._hashed = int(rows.starts[self._next])
            self._next += 1
            self._add(end)

    def _add(self, end: int) -> None:
        """Hashes more of the row in progress."""
        stop = int(self._rows.stops[self._next - 1])
        assert self._begun is not None  # noqa: S101
        self._begun.update(self._rows.memory[self._hashed : min(stop, end)])
        self._hashed = end
        if stop <= end:
            self._begun.finish()
            self._begun = None


class Checked(NamedTuple):
    """The result for one checksum."""

    tensor: str | None
    """None for the checksum of the bytes outside the tensors."""
    matched: bool = False
    """False without an error: there is no checksum, or its algorithm is unknown."""
    error: FormatError | None = None


def check_archive(archive: Archive, advance: Callable[[int], None] = lambda nbytes: None) -> list[Checked]:
    """Compares every checksum of an archive. `advance` is called with the number of bytes read, from any thread."""
    index = archive.index
    found = _check_small(archive, advance)
    # Rows whose stored bytes are hashed are read together, in file order. Rows that must be decoded are read alone.
    together: list[tuple[int, str, checksums.Checksum, Stretch]] = []
    alone: list[tuple[int, str]] = []
    rows = ((row, name) for i, name in enumerate(index.names) for row in index.rows(i) if row not in found)
    for row, name in rows if len(found) < len(index.dtypes) else ():
        text = None if index.checksums is None else index.checksums[row]
        try:
            expected = None if text is None else checksums.parse(text, name)
        except FormatError as error:
            found[row] = Checked(name, error=error)
            continue
        source = index.sources.get(row, archive.source)
        if expected is None or expected.digest is None:
            if row in index.codecs:  # a compressed row may have checksums in its frames
                alone.append((row, name))
            else:
                found[row] = Checked(name)
        elif source is None or index.payloads is not None or (row in index.codecs and index.checksum_is_decoded(row)):
            alone.append((row, name))
        else:
            stretch = Stretch(source, int(index.begins[row]), int(index.ends[row]), expected.algorithm)
            together.append((row, name, expected, stretch))
    try:
        computed = digests([stretch for _, _, _, stretch in together], advance)
    except FormatError:  # a file truncated since it was opened: the single checks find the tensors
        alone += [(row, name) for row, name, _, _ in together]
        together, computed = [], []
    for (row, name, expected, stretch), digest in zip(together, computed, strict=True):
        matched = digest == expected.digest
        found[row] = Checked(name, matched, None if matched else _mismatch(expected, name, stretch.begin))
    checked = Archive(index, archive.source, limits=archive.limits, verifier=OnceVerifier(required=False))

    def check(job: tuple[int, str]) -> None:
        found[job[0]] = _check_alone(checked, *job)
        advance(int(index.ends[job[0]] - index.begins[job[0]]))

    for_each(check, alone)
    return [found[row] for row in range(len(index.dtypes))]


def _check_small(archive: Archive, advance: Callable[[int], None]) -> dict[int, Checked]:
    """The results of the small raw rows, by row, in one pass; none unless all checksums have one algorithm."""
    index, source, texts = archive.index, archive.source, archive.index.checksums
    numbers = None if texts is None else checksums.numbers(texts)
    if texts is None or numbers is None or source is None:
        return {}
    if index.payloads is not None or index.sources or index.codecs:
        return {}
    rows = np.flatnonzero(index.ends - index.begins <= READ_NBYTES)
    try:
        digests = digest_rows(source, index.begins[rows], index.ends[rows], numbers.algorithm, advance)
    except FormatError:  # a file truncated since it was opened: the single checks find the tensors
        return {}
    expected = numbers.expected[rows]
    matched = np.frombuffer(digests, expected.dtype) == expected
    names = index.names[:] if index.first_rows is None else [index.name_of(row) for row in range(len(index.dtypes))]
    found = dict(zip(rows.tolist(), map(Checked, [names[row] for row in rows.tolist()], matched.tolist()), strict=True))
    for row in rows[~matched].tolist():
        mismatch = _mismatch(checksums.parse(texts[row] or "", names[row]), names[row], int(index.begins[row]))
        found[row] = Checked(names[row], error=mismatch)
    return found


def _check_alone(archive: Archive, row: int, name: str) -> Checked:
    payload = archive.payload(row, name)
    try:
        if isinstance(payload, Encoded) and (payload.check is None or not payload.check.pending()):
            return Checked(name, matched=_decodes(payload))
        payload.verify()
    except UnsupportedError:  # a checksum of decoded bytes, and the encoding is unknown
        return Checked(name)
    except FormatError as error:
        error.tensor = name  # the source of a truncated file does not know the tensor
        return Checked(name, error=error)
    return Checked(name, matched=True)


def _decodes(payload: Encoded) -> bool:
    """Decodes a compressed payload, which compares the checksums in its frames.

    Returns whether its codec requires every frame to have one: only then is the whole payload verified.
    """
    inner = payload.codec.below(payload) if isinstance(payload.codec, Rearranged) else stored_payload(payload)
    if not isinstance(inner, Encoded):
        return False
    if isinstance(inner.codec, Composed):
        return inner.codec.verify(inner, OnceVerifier(required=False))
    for _ in inner.codec.chunks(inner):
        pass
    return isinstance(inner.codec, FrameChecked)
