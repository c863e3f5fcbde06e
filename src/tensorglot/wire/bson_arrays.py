"""Finds the arrays of numbers in documents: what a migration to vectors would convert.

One pass over pieces of complete documents, in bounded memory: for each field only sums
are kept. Arrays inside arrays are not listed, since no migration reaches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.limits import DEFAULT, Limits
from tensorglot.wire.bson import find_all, path_texts

__all__ = ["ArrayField", "ArrayScan"]

_TYPES = {1: "double", 2: "int32", 4: "int64"}
_VECTOR_NBYTES = 7
"""Bytes of a float32 vector before its numbers: length, subtype, dtype, padding."""


@dataclass(frozen=True, slots=True)
class ArrayField:
    """The arrays of numbers at one path."""

    name: str
    arrays: int
    types: tuple[str, ...]
    shortest: int
    longest: int
    nbytes: int
    """Size of all arrays, as they are stored."""
    numbers: int
    """Numbers in all arrays."""

    @property
    def saved_nbytes(self) -> int:
        """Bytes that float32 vectors instead of the arrays would save."""
        return self.nbytes - _VECTOR_NBYTES * self.arrays - 4 * self.numbers


class ArrayScan:
    """Sums for each field over the arrays of numbers in a stream of pieces."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits
        self._paths: dict[bytes, int] = {}
        self._sums = np.zeros((4, 0), np.int64)
        """For each path: arrays, numbers, bytes, types."""
        self._shortest = np.zeros(0, np.int64)
        self._longest = np.zeros(0, np.int64)

    def watch(self, pieces: Iterable[tuple[int, memoryview]]) -> Iterator[tuple[int, memoryview]]:
        """Yields the pieces unchanged, and adds up the arrays of each."""
        for start, data in pieces:
            for (_, fields, found, sizes), _ in find_all(data, self._paths, self._limits, start, arrays=True):
                self._count(fields, found >> 3, found & 7, sizes)
            yield start, data

    def _count(
        self, fields: NDArray[np.int64], counts: NDArray[np.int64], types: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> None:
        new = len(self._paths) - len(self._shortest)
        self._sums = np.pad(self._sums, ((0, 0), (0, new)))
        self._shortest = np.pad(self._shortest, (0, new), constant_values=np.iinfo(np.int64).max)
        self._longest = np.pad(self._longest, (0, new))
        np.add.at(self._sums[0], fields, 1)
        np.add.at(self._sums[1], fields, counts)
        np.add.at(self._sums[2], fields, sizes)
        np.bitwise_or.at(self._sums[3], fields, types)
        np.minimum.at(self._shortest, fields, counts)
        np.maximum.at(self._longest, fields, counts)

    def fields(self) -> list[ArrayField]:
        """The fields found so far, in the order of their first appearance."""
        found = []
        for i, name in enumerate(path_texts(self._paths)):
            arrays, numbers, nbytes, mask = self._sums[:, i].tolist()
            types = tuple(text for bit, text in _TYPES.items() if mask & bit)
            shortest, longest = int(self._shortest[i]), int(self._longest[i])
            found.append(ArrayField(name, arrays, types, shortest, longest, nbytes, numbers))
        return found
