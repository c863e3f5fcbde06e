"""Embeddings: vectors with their ids and other fields, a row for each document.

The value that moves between places (files, collections). Ids and fields are columns of
BSON values, so that what was read in one place can be joined with the documents of
another. Knows no place; `read_embeddings` and `write_embeddings` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorglot.bson.coerce import DType, VectorData, coerce_vector
from tensorglot.bson.columns import ValueColumn, from_plain, from_values
from tensorglot.bson.quantize import quantize
from tensorglot.errors import InputError, escape
from tensorglot.model.payload import as_bytes
from tensorglot.wire.bson import path_bytes
from tensorglot.wire.bson_value import OBJECT_ID

__all__ = ["ID", "Embeddings", "Ranges", "check_paths"]

ID = "_id"
Ranges: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The lowest and the highest value of each dimension."""
_DIGEST_NBYTES = 8


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Embeddings:
    """Vectors at a dotted path `key`, and what their documents have beside them."""

    key: str
    vectors: VectorData
    ids: ValueColumn | None
    """None if the source has none: a file with only a matrix."""
    fields: Mapping[str, ValueColumn] = field(default_factory=dict)
    """Other fields by their dotted paths."""
    ranges: Ranges | None = None
    """What int8 vectors were quantized with."""
    new_ranges: bool = False
    """Whether no file has the ranges yet: `quantize` found them."""

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
        vectors = matrix if isinstance(matrix, VectorData) else coerce_vector(matrix, dtype, None, 2)
        columns = {name: from_values(values) for name, values in (fields or {}).items()}
        own_ids = None if ids is None else from_values(ids)
        check_paths(key, columns)
        for name, column in (*columns.items(), *(() if own_ids is None else ((ID, own_ids),))):
            if len(column) != len(vectors.data):
                raise InputError(
                    f"'{escape(name)}' has {len(column)} values, there are {len(vectors.data)} vectors",
                    rule="bson.ids" if name == ID else "bson.fields",
                )
        if own_ids is not None and not own_ids.kinds.all():
            raise InputError(f"row {int(np.argmin(own_ids.kinds))} has no _id", rule="bson.ids")
        values = (key, vectors, own_ids, columns, ranges, new_ranges)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def matrix(self) -> NDArray[Any]:
        """One row for each vector: float32, int8, or bool with a column for each bit."""
        return self.vectors.numbers()

    def __len__(self) -> int:
        return len(self.vectors.data)

    def __repr__(self) -> str:
        beside = [*(() if self.ids is None else (ID,)), *self.fields]
        what = f"{len(self)} × {self.vectors.row} '{escape(self.key)}'"
        return f"Embeddings({what}, with {', '.join(map(escape, beside)) or 'no ids'})"

    def under(self, key: str) -> Embeddings:
        """The same under another key."""
        return Embeddings(self.vectors, key, self.ids, self.fields, ranges=self.ranges, new_ranges=self.new_ranges)

    def quantize(self, to: Literal["int8", "packed_bit"] = "int8", *, ranges: Ranges | None = None) -> Embeddings:
        """Quantizes the vectors; ids and fields stay. `ranges` are those of another corpus, for queries."""
        small = quantize(self.matrix, to, ranges=ranges)
        kept = None if small.low is None or small.high is None else (small.low, small.high)
        new = kept is not None and ranges is None
        return Embeddings(small, self.key, self.ids, self.fields, ranges=kept, new_ranges=new)

    def with_ids(self) -> Embeddings:
        """The same, with ids in any case: ObjectIds derived from the contents and the row if there are none.

        Equal contents get equal ids, so that an interrupted import is completed by running it again.
        """
        if self.ids is not None:
            return self
        hasher = blake3(f"{self.key}\0{self.vectors.row}\0{self.vectors.padding}\0".encode())
        hasher.update(as_bytes(self.vectors.data))
        ids = np.empty((len(self), 12), np.uint8)
        ids[:, :_DIGEST_NBYTES] = np.frombuffer(hasher.digest(_DIGEST_NBYTES), np.uint8)
        ids[:, _DIGEST_NBYTES:] = np.arange(len(self), dtype=">u4").view(np.uint8).reshape(-1, 4)
        column = from_plain(ids.view("V12").reshape(-1), OBJECT_ID)
        return Embeddings(self.vectors, self.key, column, self.fields, ranges=self.ranges)


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
