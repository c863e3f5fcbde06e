"""Embeddings: vectors with their ids and other fields, a row for each document.

The value that moves between places (files, collections). Ids and fields are columns of
BSON values, so that what was read in one place can be joined with the documents of
another. Knows no place; `read_embeddings` and `write_embeddings` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorglot.arguments import as_integer, check_flags
from tensorglot.bson.coerce import DType, VectorData, coerce_vector
from tensorglot.bson.columns import ValueColumn, concat, from_plain, from_values
from tensorglot.bson.quantize import quantize
from tensorglot.errors import InputError, escape
from tensorglot.model.payload import as_bytes
from tensorglot.wire.bson import path_bytes
from tensorglot.wire.bson_value import OBJECT_ID

__all__ = ["BATCH_NBYTES", "ID", "Digest", "Embeddings", "Ranges", "check_counts", "check_paths", "concat_embeddings"]

ID = "_id"
Ranges: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The lowest and the highest value of each dimension."""
BATCH_NBYTES = 16 << 20
"""Vectors of about this many bytes are read, changed and written at a time."""
_DIGEST_NBYTES = 8


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Embeddings:
    """Vectors at a dotted path `key`, and what their documents have beside them."""

    key: str
    vectors: VectorData
    ids: ValueColumn | None
    """None if the source has no ids: a file with only a matrix."""
    fields: Mapping[str, ValueColumn] = field(default_factory=dict)
    """Other fields by their dotted paths."""
    ranges: Ranges | None = None
    """The ranges with which int8 vectors were quantized."""
    new_ranges: bool = False
    """Whether `quantize` has just computed the ranges, so that no file has them yet."""

    def __init__(
        self,
        matrix: Any,
        key: str = "embedding",
        ids: Iterable[Any] | ValueColumn | None = None,
        fields: Mapping[str, Iterable[Any] | ValueColumn] | None = None,
        *,
        dtype: DType = None,
        ranges: Ranges | None = None,
        new_ranges: bool = False,
    ) -> None:
        check_flags(new_ranges=new_ranges)
        vectors = matrix if isinstance(matrix, VectorData) else coerce_vector(matrix, dtype, None, 2)
        columns = {name: from_values(values) for name, values in (fields or {}).items()}
        own_ids = None if ids is None else from_values(ids)
        check_paths(key, columns)
        check_counts(own_ids, columns, len(vectors.data))
        if own_ids is not None and not own_ids.kinds.all():
            raise InputError(f"row {int(np.argmin(own_ids.kinds))} has no _id", rule="bson.ids")
        values = (key, vectors, own_ids, columns, ranges, new_ranges)
        # The class is frozen: __init__ converts its arguments, so it sets the fields itself.
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def columns(self) -> dict[str, ValueColumn]:
        """The ids, if there are any, and the fields."""
        return {**({} if self.ids is None else {ID: self.ids}), **self.fields}

    @property
    def matrix(self) -> NDArray[Any]:
        """One row for each vector: float32, int8, or bool with a column for each bit."""
        return self.vectors.numbers()

    def __len__(self) -> int:
        return len(self.vectors.data)

    def __repr__(self) -> str:
        what = f"{len(self)} × {self.vectors.row} '{escape(self.key)}'"
        return f"Embeddings({what}, with {', '.join(map(escape, self.columns)) or 'no ids'})"

    def under(self, key: str) -> Embeddings:
        """The same embeddings under another key."""
        return self._replace(key=key)

    def quantize(self, to: Literal["int8", "packed_bit"] = "int8", *, ranges: Ranges | None = None) -> Embeddings:
        """Quantizes the vectors; ids and fields stay. For queries, pass the `ranges` of their corpus."""
        small = quantize(self.matrix, to, ranges=ranges)
        kept = None if small.low is None or small.high is None else (small.low, small.high)
        return self._replace(matrix=small, ranges=kept, new_ranges=kept is not None and ranges is None)

    def with_ids(self) -> Embeddings:
        """The same with ids; missing ones are ObjectIds derived from the contents and the row number.

        Equal contents get equal ids, so that an interrupted import is completed by running it again.
        """
        if self.ids is not None:
            return self
        digest = Digest()
        digest.add(self)
        return digest.number(self, 0)

    def rows(self, begin: int, end: int) -> Embeddings:
        """The rows from `begin` to `end`, with their ids and fields."""
        begin, end = as_integer(begin, "begin", "bson.rows", 0), as_integer(end, "end", "bson.rows", 0)
        vectors = VectorData(self.vectors.data[begin:end], self.vectors.kind, self.vectors.padding)
        return self._replace(
            matrix=vectors,
            ids=None if self.ids is None else self.ids.part(begin, end),
            fields={name: column.part(begin, end) for name, column in self.fields.items()},
        )

    def batches(self, nbytes: int = BATCH_NBYTES) -> Iterator[Embeddings]:
        """All rows in batches of about `nbytes` bytes of vectors; at least one batch."""
        nbytes = as_integer(nbytes, "nbytes", "bson.batches", 1)
        step = max(1, nbytes // max(1, self.vectors.row.nbytes))
        for begin in range(0, max(1, len(self)), step):
            yield self.rows(begin, min(begin + step, len(self)))

    def without_ids(self) -> Embeddings:
        """The same embeddings without their ids."""
        return self._replace(ids=None)

    def _replace(self, **changes: Any) -> Embeddings:
        """The same embeddings with other arguments of `__init__`."""
        own = {name: getattr(self, name) for name in ("key", "ids", "fields", "ranges", "new_ranges")}
        return Embeddings(**{"matrix": self.vectors, **own, **changes})


class Digest:
    """Derives ids from contents that come in batches: a digest of all vectors, and the number of the row."""

    def __init__(self) -> None:
        self._hasher: blake3 | None = None

    def add(self, batch: Embeddings) -> None:
        if self._hasher is None:
            vectors = batch.vectors
            self._hasher = blake3(f"{batch.key}\0{vectors.row}\0{vectors.padding}\0".encode())
        self._hasher.update(as_bytes(batch.vectors.data))

    def number(self, batch: Embeddings, first: int) -> Embeddings:
        """The batch, whose first row is number `first`, with ids."""
        assert self._hasher is not None  # noqa: S101 - all batches were added
        ids = np.empty((len(batch), 12), np.uint8)
        # 8 bytes of the digest of all vectors, then the number of the row, big-endian: ids sort like the rows.
        ids[:, :_DIGEST_NBYTES] = np.frombuffer(self._hasher.digest(_DIGEST_NBYTES), np.uint8)
        ids[:, _DIGEST_NBYTES:] = np.arange(first, first + len(batch), dtype=">u4").view(np.uint8).reshape(-1, 4)
        column = from_plain(ids.view("V12").reshape(-1), OBJECT_ID)
        return Embeddings(batch.vectors, batch.key, column, batch.fields, ranges=batch.ranges)


def concat_embeddings(batches: Iterable[Embeddings], expected_rows: int = 0) -> Embeddings | None:
    """The rows of all batches; None without batches. A single batch is not copied.

    Ids are kept if every batch has them. Memory for the expected rows is allocated at once;
    untouched pages cost nothing.
    """
    rest = iter(batches)
    first = next(rest, None)
    second = next(rest, None)
    if first is None or second is None:
        return first
    ids, fields = [first.ids], {name: [column] for name, column in first.fields.items()}
    matrix, filled = _grow(first.vectors.data, len(first), expected_rows), len(first)
    for batch in chain([second], rest):
        end = filled + len(batch)
        if end > len(matrix):
            matrix = _grow(matrix, filled, max(2 * len(matrix), end))
        matrix[filled:end] = batch.vectors.data
        filled = end
        ids.append(batch.ids)
        for name, columns in fields.items():
            columns.append(batch.fields[name])
    every = [column for column in ids if column is not None]
    return Embeddings(
        VectorData(matrix[:filled], first.vectors.kind, first.vectors.padding),
        first.key,
        concat(every) if len(every) == len(ids) else None,
        {name: concat(columns) for name, columns in fields.items()},
        ranges=first.ranges,
    )


def _grow(matrix: NDArray[Any], filled: int, rows: int) -> NDArray[Any]:
    larger = np.empty((max(rows, filled), matrix.shape[1]), matrix.dtype)
    larger[:filled] = matrix[:filled]
    return larger


def check_counts(ids: Sized | None, columns: Mapping[str, Sized], rows: int) -> None:
    """Refuses a column whose number of values is not the number of vectors."""
    for name, column in (*columns.items(), *(() if ids is None else ((ID, ids),))):
        if len(column) != rows:
            raise InputError(
                f"'{escape(name)}' has {len(column)} values, there are {rows} vectors",
                rule="bson.ids" if name == ID else "bson.fields",
            )


def check_paths(key: str, fields: Iterable[str]) -> None:
    """Refuses fields that would contain one another, or the vector, or the id."""
    paths = [(key, path_bytes(key)), *((name, path_bytes(name)) for name in fields), (ID, path_bytes(ID))]
    for i, (name, path) in enumerate(paths):
        for other, longer in paths[i + 1 :]:
            shared = min(len(path), len(longer))
            if path[:shared] == longer[:shared]:
                raise InputError(
                    f"the fields '{escape(name)}' and '{escape(other)}' overlap"
                    + (": _id is always kept" if other == ID and name != key else ""),
                    rule="bson.fields",
                )
