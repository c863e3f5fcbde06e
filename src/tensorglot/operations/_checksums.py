"""Compares checksums: of each read, for `verify=` of `open`, and of a whole file, for the verb `verify`.

A checksum covers the stored or the decoded bytes of a part, by the rules of its format.
It is compared in the pass that reads them: threads read the pieces of a large part, and
the one that has the next piece hashes it, while it is in the processor's cache. For a
whole file, the digests of all stored bytes are computed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, IntegrityError, UnsupportedError, escape
from tensorglot.io.local import BaseSource
from tensorglot.memory import SCRATCH_NBYTES, allocate, scratch
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.nonzero_bools import stored_payload
from tensorglot.model.payload import Buffer, Check, Composed, Encoded, FrameChecked, Rearranged, Source, read_pieces
from tensorglot.operations._digests import digest_rows
from tensorglot.operations._reads import InOrder, Piece, fill
from tensorglot.threads import for_each
from tensorglot.tuples import NamedTuple
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
            raise _mismatch(self.expected.algorithm, self._tensor, self._offset, self._path)


def _mismatch(algorithm: str, tensor: str, offset: int, path: str | None = None) -> IntegrityError:
    return IntegrityError(
        f"checksum mismatch: the bytes do not match their {algorithm}",
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
            raise _mismatch(expected.algorithm, self.tensor, self.key[1], self.path)
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
            found = digest_rows(source, np.array([begin]), np.array([end]), running.expected.algorithm)
            with self._remembered():
                running.compare(found[0].tobytes())
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
            raise _mismatch(self._numbers.algorithm, name, int(self._index.begins[row]), self._path(row))

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
    names = index.names[:] if index.first_rows is None else [index.name_of(row) for row in range(len(index.dtypes))]
    found: dict[int, Checked] = {}
    # Stored bytes are hashed together, in file order.
    for algorithm, rows, expected in _stored_digests(archive, names, found):
        for source, chosen in archive.by_source(rows):
            some = rows[chosen]
            try:
                digests = digest_rows(source, index.begins[some], index.ends[some], algorithm, advance)
            except FormatError:  # a file truncated since it was opened: the single checks find the tensors
                continue
            matched = digests == expected[chosen]
            checked = map(Checked, [names[row] for row in some.tolist()], matched.tolist())
            found.update(zip(some.tolist(), checked, strict=True))
            for row in some[~matched].tolist():
                found[row] = Checked(names[row], error=_mismatch(algorithm, names[row], int(index.begins[row])))
    plain = Archive(index, archive.source, limits=archive.limits, verifier=OnceVerifier(required=False))

    def check(row: int) -> None:
        found[row] = _check_alone(plain, row, names[row], advance)
        if index.cids is None:
            advance(int(index.ends[row] - index.begins[row]))

    # All other rows are read alone: most must be decoded.
    for_each(check, [row for row in range(len(names)) if row not in found] if len(found) < len(names) else ())
    return [found[row] for row in range(len(names))]


_Digests: TypeAlias = tuple[str, NDArray[np.int64], NDArray[np.void]]
"""An algorithm, rows that have a checksum of it, and their digests."""


def _stored_digests(archive: Archive, names: Sequence[str], found: dict[int, Checked]) -> list[_Digests]:
    """The checksums of stored bytes, by algorithm; in `found` the results for rows without a checksum to compare."""
    index, texts = archive.index, archive.index.checksums
    alike = None if texts is None else checksums.numbers(texts)
    if alike is not None and index.payloads is None and not index.codecs:
        return [(alike.algorithm, np.arange(len(names)), alike.expected.view(f"V{alike.expected.itemsize}"))]
    digests: dict[str, dict[int, bytes]] = {}
    for row, name in enumerate(names):
        text = None if texts is None else texts[row]
        try:
            expected = None if text is None else checksums.parse(text, name)
        except FormatError as error:
            found[row] = Checked(name, error=error)
            continue
        if expected is None or expected.digest is None:
            if row not in index.codecs and index.cids is None:  # frames may have checksums, blocks of a store have CIDs
                found[row] = Checked(name)
        elif index.payloads is None and not (row in index.codecs and index.checksum_is_decoded(row)):
            digests.setdefault(expected.algorithm, {})[row] = expected.digest
    return [
        (algorithm, np.array([*rows]), np.frombuffer(b"".join(rows.values()), f"V{len(next(iter(rows.values())))}"))
        for algorithm, rows in digests.items()
    ]


def _check_alone(archive: Archive, row: int, name: str, advance: Callable[[int], None]) -> Checked:
    payload = archive.payload(row, name)
    try:
        if archive.index.cids is not None:  # the source compares each block with its CID
            for piece in read_pieces(payload):
                advance(len(piece))
            return Checked(name, matched=True)
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
