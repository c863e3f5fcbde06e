"""Which vector fields many documents have, and whether each could be one matrix.

One pass over pieces of whole documents, columns out: all rules are checked by vector
operations, so that a file of many small fields costs no more than one of few. What is
wrong with a field is said, not raised: the other fields of the file are still good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError
from tensorglot.kernels import bson_walk as walk
from tensorglot.wire.bson import find_vectors, path_text, refusal
from tensorglot.wire.bson_vector import Row, row_of_head

__all__ = ["Field", "Fields", "scan"]


@dataclass(frozen=True, slots=True)
class Field:
    """One vector field."""

    name: str
    row: Row | None
    """What each of its vectors is; None where they are not alike or not valid."""
    trouble: str | None
    """Why its vectors are not the rows of one matrix."""
    begins: NDArray[np.int64]
    """Where the payloads are."""


@dataclass(frozen=True, slots=True)
class Fields:
    """All vector fields of some documents."""

    documents: int
    fields: tuple[Field, ...]


def scan(pieces: Iterable[tuple[int, memoryview]]) -> Fields:
    """The vector fields of the documents in `pieces`, each given with where it begins."""
    paths: dict[bytes, int] = {}
    columns: list[NDArray[np.int64]] = [np.empty((_COLUMNS, 0), np.int64)]
    documents = 0
    for start, data in pieces:
        found = find_vectors(data)
        if found.paths:
            numbers = np.array([paths.setdefault(path, len(paths)) for path in found.paths], np.int64)
            raw = np.frombuffer(data, np.uint8)
            sizes = found.ends - found.begins
            second = np.minimum(found.begins + 1, len(raw) - 1)
            columns.append(
                np.array(
                    [
                        numbers[found.fields],
                        found.documents + documents,
                        found.begins + start,
                        sizes,
                        raw[found.begins],
                        raw[second],
                        raw[found.ends - 1],
                    ],
                    np.int64,
                )
            )
        documents += found.count
    return Fields(documents, _fields(list(paths), np.concatenate(columns, axis=1), documents))


_COLUMNS = 7


def _fields(paths: list[bytes], columns: NDArray[np.int64], documents: int) -> tuple[Field, ...]:
    columns = columns[:, np.argsort(columns[0], kind="stable")]
    path, document, begins = columns[:3]
    twice = np.flatnonzero((path[1:] == path[:-1]) & (document[1:] == document[:-1]))
    if twice.size:
        raise refusal(walk.DUPLICATE, int(begins[twice[0] + 1]))
    counts = np.bincount(path, minlength=len(paths))
    offsets = np.concatenate(([0], np.cumsum(counts)))
    first = np.repeat(offsets[:-1], counts)
    troubles = _ignored_bits(path, *columns[5:])
    troubles |= _short(counts, documents)
    troubles |= _disagreements(path, columns[3:6], first)
    heads = columns[3:6, offsets[:-1]].T.tolist()
    rows = {tuple(head): _row(*head) for head in heads}
    names = [path_text(name) for name in paths]
    if len(set(names)) < len(names):
        raise FormatError("two fields have the same dotted name", rule="bson.key.duplicate")
    fields = []
    for i, (name, head, begin, end) in enumerate(
        zip(names, heads, offsets.tolist(), offsets[1:].tolist(), strict=False)
    ):
        row = rows[tuple(head)]
        trouble = row if isinstance(row, str) else troubles.get(i)
        fields.append(Field(name, None if isinstance(row, str) else row, trouble, begins[begin:end]))
    return tuple(fields)


def _row(size: int, code: int, padding: int) -> Row | str:
    """What vectors with this head are, or what is wrong with them."""
    try:
        return row_of_head(size, code, padding)
    except FormatError as error:
        return error.message


def _ignored_bits(path: NDArray[np.int64], paddings: NDArray[np.int64], lasts: NDArray[np.int64]) -> dict[int, str]:
    set_bits = (paddings <= 7) & (lasts & ((1 << np.minimum(paddings, 7)) - 1) != 0)
    return dict.fromkeys(np.unique(path[set_bits]).tolist(), "ignored bits of a vector are not zero")


def _short(counts: NDArray[np.int64], documents: int) -> dict[int, str]:
    few = np.flatnonzero(counts < documents).tolist()
    return {i: f"{counts[i]} of {documents} documents have a vector here" for i in few}


def _disagreements(path: NDArray[np.int64], heads: NDArray[np.int64], first: NDArray[np.int64]) -> dict[int, str]:
    wrong = np.flatnonzero((heads != heads[:, first]).any(axis=0))
    troubles = {}
    for i, at in zip(*np.unique(path[wrong], return_index=True), strict=True):
        one, other = (_row(*heads[:, row].tolist()) for row in (first[wrong[at]], wrong[at]))
        troubles[int(i)] = f"vectors disagree: {one}, then {other}"
    return troubles
