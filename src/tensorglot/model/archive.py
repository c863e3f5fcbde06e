"""An archive is an index bound to a source: a read-only mapping from names to tensors.

A Tensor is made when it is looked up, and reads when its values are needed. Writers use
rows instead: their bytes as spans to copy, or decoded in bounded memory. Knows no format;
the function that reopens the file in another process is passed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import InputError, TensorNotFound, TruncatedError, escape, plural
from tensorglot.kernels.gather import gather
from tensorglot.kernels.ndarrays import has_repeated
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import Index, Note, place_rows
from tensorglot.model.names import Names
from tensorglot.model.payload import (
    PIECE_NBYTES,
    SMALL_NBYTES,
    TOGETHER_NBYTES,
    Check,
    Chunk,
    Encoded,
    Memory,
    Payload,
    Source,
    Span,
    as_bytes,
    join_arrays,
    location,
)
from tensorglot.model.tensor import Part, Tensor
from tensorglot.providers import provided

__all__ = ["Archive", "Verifier"]


_GAP_NBYTES = 8 << 10
"""Rows with gaps up to this size between them are read together."""
_ROWS_AT_ONCE = 2048
"""Rows that are read and written together. Views of more rows would survive the garbage collector's young generations,
which then takes longer."""
_NAMES_SHOWN = 20
"""Names in the repr of `archive.keys()`."""
TIED_NBYTES = 4096
"""Arrays in memory from this size on are compared by address to find ties."""


class Verifier(Protocol):
    """Makes the checks of payloads, and remembers which have passed."""

    @property
    def required(self) -> bool:
        """Whether a missing checksum is an error."""
        ...

    def check(self, index: Index, row: int, source: Source, tensor: str) -> Check | None:
        """The check for the payload of a row; None if there is nothing to compare."""
        ...

    def compare(
        self, index: Index, source: Source | None, rows: NDArray[np.int64], joined: memoryview, stops: NDArray[np.int64]
    ) -> None:
        """Compares the checksums of raw rows with their concatenated bytes; row i ends at stops[i].

        Does not remember that they passed.
        """
        ...


class Archive(Mapping[str, Tensor]):
    """The tensors of one file, by name. Closing it closes the file.

    An archive that was opened from a path, a URL or bytes can be pickled. Unpickling opens it
    again: the path is sent, and no tensor.
    """

    def __init__(
        self,
        index: Index,
        source: Source | None,
        *,
        limits: Limits = DEFAULT,
        verifier: Verifier | None = None,
        reopen: Callable[[], Archive] | None = None,
    ) -> None:
        self.index = index
        self.source = source
        self.limits = limits
        self.verifier = verifier
        """None if no checksums are compared."""
        self._reopen = reopen
        self._asked = False

    @property
    def format(self) -> str:
        """Format and version: `bintensors@1`."""
        return self.index.format

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """The metadata of the whole file; None if the file has none."""
        return self.index.metadata

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is valid but unusual about the file."""
        return tuple(self.index.notes)

    @property
    def attributes(self) -> dict[str, Mapping[str, Any]]:
        """The custom fields of each tensor that has any."""
        return {self.index.names[i]: fields for i, fields in self.index.attributes.items()}

    def info(self, name: str) -> dict[str, Any]:
        """Everything the index has about one tensor, as plain values."""
        tensor = self[name]
        return {
            "name": tensor.name,
            "type": str(tensor.type),
            "dtype": None if tensor.dtype is None else tensor.dtype.name,
            "shape": list(tensor.shape),
            "nbytes": tensor.nbytes,
            "stored_nbytes": tensor.stored_nbytes,
            "layout": tensor.layout,
            "encoding": tensor.encoding,
            "checksum": tensor.checksum,
            "offset": tensor.offset,
            "attributes": dict(tensor.attributes),
            "parts": {
                part_name: {
                    "dtype": part.dtype_name,
                    "shape": list(part.shape),
                    "nbytes": part.nbytes,
                    "encoding": part.encoding,
                    "checksum": part.checksum,
                    "offset": part.offset,
                }
                for part_name, part in tensor.parts.items()
            },
        }

    def __getitem__(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise TensorNotFound(f"a tensor name must be a str, not {type(name).__name__}", rule="tensor.name")
        position = self._position(name)
        if position is None:
            raise TensorNotFound.among(name, self.index.names)
        return self.tensor_at(position, name)

    def _position(self, name: str) -> int | None:
        """The position of a name. The first lookup scans the names, which is faster than building a dictionary."""
        names, again = self.index.names, self._asked
        self._asked = True
        if again or not isinstance(names, Names):
            return self.index.positions.get(name)
        return names.find(name)

    def tensor_at(self, position: int, name: str | None = None) -> Tensor:
        """The tensor at a position of `index.names`; `name`, if it is known, is not decoded again."""
        index = self.index
        layout = index.layouts.get(position)
        name = index.names[position] if name is None else name
        part_names = index.part_names
        parts = {
            "data" if part_names is None else part_names[row]: self.part(row, name) for row in index.rows(position)
        }
        return Tensor(
            name,
            parts,
            "dense" if layout is None else layout.name,
            None if layout is None else layout.type,
            index.attributes.get(position, {}),
        )

    def array_type(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any] | None]:
        """The `shape` and `dtype` of a tensor, without making the Tensor if possible."""
        index = self.index
        if not index.plain or name not in index.positions:
            return self[name].shape, self[name].dtype
        row = index.positions[name]
        return index.shapes[row], TABLE[index.dtypes[row]].numpy

    def part(self, row: int, name: str) -> Part:
        """The Part of a row, which belongs to the tensor `name`."""
        index = self.index
        return Part(
            index.dtype(row),
            index.shape(row),
            self.payload(row, name),
            row in index.big_endian,
            None if index.checksums is None else index.checksums[row],
            index.checksum_is_decoded(row),
            index.unknown_dtypes.get(row),
        )

    def payload(self, row: int, name: str) -> Payload:
        """The payload of a row, which belongs to the tensor `name`."""
        index = self.index
        held = None if index.payloads is None else index.payloads[row]
        if held is not None:
            return Memory(held) if isinstance(held, np.ndarray) else held
        source = index.sources.get(row, self.source)
        if source is None:
            raise InputError("the archive is closed", rule="archive.closed", tensor=name)
        begin, end = index.begins.item(row), index.ends.item(row)
        codec = index.codecs.get(row)
        check = None if self.verifier is None else self.verifier.check(index, row, source, name)
        if codec is None:
            return Span(source, begin, end, check)
        return Encoded(source, begin, end, index.decoded_nbytes[row], codec, name, self.limits, check)

    def chunks(self, rows: NDArray[np.int64], pads: Sequence[bytes] | None = None) -> Iterator[Chunk]:
        """The decoded, little-endian bytes of rows in the given order: in bounded memory, or as spans to copy.

        `pads` has bytes to put before each row. Small rows are joined, in the fastest way that
        applies: arrays in memory, adjacent rows of the file by one read, close rows by few reads.
        """
        listed, payloads = rows.tolist(), self.index.payloads
        ends = np.cumsum(self.index.nbytes[rows])
        at_once = PIECE_NBYTES if payloads is None else TOGETHER_NBYTES
        groups = place_rows(ends - self.index.nbytes[rows], ends, SMALL_NBYTES, at_once).groups
        for a, b in _cut(groups):
            if payloads is not None and b - a > 1:
                held = [payloads[row] for row in listed[a:b]]
                if set(map(type, held)) == {np.ndarray}:
                    yield join_arrays(cast("list[NDArray[Any]]", held), None if pads is None else pads[a:b])
                    continue
            run = self._read_run(rows[a:b]) if b - a > 1 and pads is None else None
            if run is not None:
                yield run
                continue
            close = self.read_rows(rows[a:b]) if b - a > 1 else None
            if close is not None:  # one chunk: the consumers of chunks take longer for each than to copy a small row
                yield b"".join(close if pads is None else chain.from_iterable(zip(pads[a:b], close, strict=True)))
                continue
            for i, row in enumerate(listed[a:b], a):
                if pads is not None:
                    yield pads[i]
                yield from self._row_chunks(row)

    def _read_run(self, rows: NDArray[np.int64]) -> memoryview | None:
        """The bytes of raw rows that are adjacent in the archive's file and have no checksums to compare.

        None if a row is not like that. One object for all rows, because an object for each would
        cost more than copying them, and the garbage collector's time grows with their number.
        """
        index, source = self.index, self.source
        if source is None or index.payloads is not None or index.codecs or index.big_endian or index.sources:
            return None
        if self.verifier is not None and (self.verifier.required or index.checksums is not None):
            return None
        begins, ends = index.begins[rows], index.ends[rows]
        if np.count_nonzero(begins[1:] != ends[:-1]):
            return None
        return source.read(int(begins[0]), int(ends[-1] - begins[0]))

    def read_rows(self, rows: NDArray[np.int64]) -> list[memoryview] | None:
        """The bytes of each of these small raw rows; None in the cases of `join_rows`."""
        index = self.index
        if index.payloads is not None:
            held = self._arrays(rows)
            return None if held is None else [as_bytes(array) for array in held]
        joined = self.join_rows(rows)
        ends = np.cumsum(index.ends[rows] - index.begins[rows]).tolist()
        return None if joined is None else [joined[begin:end] for begin, end in pairwise([0, *ends])]

    def join_rows(self, rows: NDArray[np.int64]) -> memoryview | None:
        """The concatenated bytes of small raw rows, by few reads, compared with their checksums.

        None if a row is encoded, big-endian, or in memory but not an array, or if a file is
        truncated or closed: then the caller reads rows one by one, whose errors name the tensor.
        """
        index = self.index
        if index.payloads is not None:
            held = self._arrays(rows)
            return None if held is None else memoryview(join_arrays(held))
        if self._is_special(rows):
            return None
        sizes = index.ends[rows] - index.begins[rows]
        stops = np.cumsum(sizes)
        joined = np.empty(int(sizes.sum()), np.uint8)
        found = 0
        try:
            for source, chosen in self.by_source(rows):
                at = chosen[np.argsort(index.begins[rows[chosen]], kind="stable")]
                _read_runs(source, index.begins[rows[at]], sizes[at], joined, (stops - sizes)[at])
                found += len(at)
        except TruncatedError:
            return None
        if found < len(rows):
            return None
        if self.verifier is not None and index.checksums is not None:
            self.verifier.compare(index, self.source, rows, joined.data, stops)
        return joined.data

    def _is_special(self, rows: NDArray[np.int64]) -> bool:
        """Whether one of the rows is encoded or big-endian."""
        columns = [column for column in (self.index.codecs.keys(), self.index.big_endian) if column]
        return any(not column.isdisjoint(rows.tolist()) for column in columns)

    def _arrays(self, rows: NDArray[np.int64]) -> list[NDArray[Any]] | None:
        """The payloads of raw rows in memory, if all are arrays."""
        payloads = self.index.payloads
        held = [] if payloads is None else [payloads[row] for row in rows.tolist()]
        arrays = [array for array in held if isinstance(array, np.ndarray)]
        return None if len(arrays) < len(rows) or self._is_special(rows) else arrays

    def by_source(self, rows: NDArray[np.int64]) -> list[tuple[Source, NDArray[np.int64]]]:
        """The files of the archive, and the positions in `rows` of the rows in each."""
        own, sources = self.source, self.index.sources  # another thread may close the archive meanwhile
        if own is not None and not sources:
            return [(own, np.arange(len(rows)))]
        # Looks up these rows only: a file of many tensors is read by many calls, and each must not visit all rows.
        each = [sources.get(row, own) for row in rows.tolist()]
        held = {id(source): source for source in each if source is not None}
        ids = np.array([id(source) for source in each], np.int64)
        return [(source, np.flatnonzero(ids == key)) for key, source in held.items()]

    def _row_chunks(self, row: int) -> Iterator[Chunk]:
        name = self.index.name_of(row)
        if row in self.index.big_endian:
            return self.part(row, name).swapped_chunks()
        return self.payload(row, name).chunks()

    def select(self, names: Collection[str]) -> Archive:
        """An archive whose index has at least these tensors; `self` if the index has been read."""
        return self

    def with_index(self, index: Index) -> Archive:
        """The same source under another index."""
        return Archive(index, self.source, limits=self.limits, verifier=self.verifier)

    def find_ties(self) -> dict[int, int]:
        """Maps each tensor that shares its bytes with an earlier one of the same type and shape to that one.

        Arrays in memory below TIED_NBYTES are tied only if they are the same object: asking every
        small array for its address would take longer than writing it twice.
        """
        index = self.index
        if len(index.dtypes) < 2:
            return {}
        candidates = index.find_shared_rows() if index.payloads is None else _maybe_shared(index.payloads, index.nbytes)
        if len(candidates) < 2:
            return {}
        firsts = index.row_offsets
        seen: dict[tuple[object, ...], int] = {}
        ties: dict[int, int] = {}
        for row in candidates.tolist():
            tensor = int(np.searchsorted(firsts, row, side="right")) - 1
            if index.nbytes[row] and firsts[tensor + 1] - firsts[tensor] == 1:
                key = (location(self.payload(row, index.names[tensor])), int(index.dtypes[row]), index.shape(row))
                first = seen.setdefault(key, tensor)
                if first != tensor:
                    ties[tensor] = first
        return ties

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.index.positions

    def __iter__(self) -> Iterator[str]:
        return iter(self.index.names)

    def __len__(self) -> int:
        return len(self.index.names)

    def keys(self) -> KeysView[str]:
        """The names, in the order of the file."""
        return _Keys(self)

    def close(self) -> None:
        """Closes the file. Arrays that share its memory stay valid."""
        source, self.source = self.source, None
        for held in {id(held): held for held in (source, *self._other_sources())}.values():
            close = getattr(held, "close", None)
            if close is not None:
                close()

    def _other_sources(self) -> Iterable[Source]:
        return self.index.sources.values()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is None:
            raise InputError(
                "only an archive opened from a path, bytes, or a URL without credentials in it can be pickled",
                rule="archive.pickle",
            )
        return self._reopen, ()

    def _repr_html_(self) -> str:
        """The archive in a notebook."""
        return provided("report.html")(self)  # type: ignore[no-any-return]

    def _ipython_key_completions_(self) -> list[str]:
        """What IPython offers after `archive["`."""
        return list(self)

    def __repr__(self) -> str:
        return f"Archive({self.format}, {plural(len(self), 'tensor')})"


class _Keys(KeysView[str]):
    """The names of an archive, which are shown: `archive.keys()` is how one looks at them in an interpreter."""

    def __repr__(self) -> str:
        shown = [f"'{escape(name, longest=60)}'" for name in islice(self, _NAMES_SHOWN)]
        rest = len(self) - len(shown)
        return f"keys([{', '.join(shown)}{f', … {rest:,} more' if rest else ''}])"


def _cut(groups: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The rows of each group, at most _ROWS_AT_ONCE at a time."""
    for a, b in pairwise(groups):
        for first in range(a, b, _ROWS_AT_ONCE):
            yield first, min(b, first + _ROWS_AT_ONCE)


def _read_runs(
    source: Source, begins: NDArray[np.int64], sizes: NDArray[np.int64], out: NDArray[np.uint8], at: NDArray[np.int64]
) -> None:
    """Copies the bytes of ascending spans to `at` of `out`; spans that are close together by one read."""
    ends = begins + sizes
    new = np.zeros(len(begins), np.bool_)
    new[1:] = begins[1:] - np.maximum.accumulate(ends)[:-1] > _GAP_NBYTES
    new[1:] |= np.diff((begins - begins[:1]) // PIECE_NBYTES) > 0
    for a, b in pairwise([0, *np.flatnonzero(new).tolist(), len(begins)]):
        if b > a:
            low, high = int(begins[a]), int(ends[a:b].max())
            gather(source.read(low, high - low), begins[a:b] - low, sizes[a:b], out, at[a:b])


def _maybe_shared(payloads: Sequence[Payload | NDArray[Any] | None], nbytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows in memory that may be tied to another, so that `find_ties` must compare their locations."""
    worth = nbytes >= TIED_NBYTES
    if set(map(type, payloads)) != {np.ndarray}:
        worth |= np.array([not isinstance(payload, np.ndarray) for payload in payloads], np.bool_)
    if has_repeated(list(payloads)):
        ids = np.fromiter(map(id, payloads), np.uintp, len(payloads))
        order = np.argsort(ids)
        repeated = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
        worth[order[repeated]] = worth[order[repeated + 1]] = True
    return np.flatnonzero(worth)
