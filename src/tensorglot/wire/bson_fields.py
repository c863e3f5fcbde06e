"""Finds the vector fields of many documents, and whether each can be read as one matrix.

One pass over pieces of complete documents. The rules are checked on columns, so many
small fields cost little more than a few large ones. A problem of one field is reported,
not raised: the other fields can still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import distinct, prefix_sums
from tensorglot.errors import FormatError
from tensorglot.kernels import bson_walk as walk
from tensorglot.limits import DEFAULT, Limits
from tensorglot.wire.bson import FIELDS_RULE, find_vectors, path_texts, refusal
from tensorglot.wire.bson_vector import Row, row_of_head

__all__ = ["Fields", "scan"]


@dataclass(frozen=True, slots=True)
class Fields:
    """All vector fields of some documents."""

    documents: int
    names: list[str]
    """Dotted paths, in the order of their first appearance."""
    heads: list[Row | str]
    """Distinct kinds of vectors: the row, or the error message if it is invalid."""
    head: NDArray[np.int64]
    """For each field the index into `heads` of its first vector."""
    begins: NDArray[np.int64]
    """Offsets of the payloads, grouped by field."""
    offsets: NDArray[np.int64]
    """Field i has begins[offsets[i]:offsets[i + 1]]."""
    nbytes: NDArray[np.int64]
    """Size of all vectors of each field, as BSON stores them."""
    troubles: Mapping[int, str]
    """Why a field cannot be one matrix, for each such field."""

    def begins_of(self, field: int) -> NDArray[np.int64]:
        return self.begins[self.offsets[field] : self.offsets[field + 1]]

    def row_of(self, field: int) -> Row | None:
        """Returns the row of the first vector of a field; None if it is invalid."""
        row = self.heads[int(self.head[field])]
        return None if isinstance(row, str) else row


_BINARY_NBYTES = 5
"""The length and the subtype before the bytes of a binary value."""
_PATH, _DOCUMENT, _BEGIN, _HEAD, _LAST = range(5)
"""Columns of a scan. HEAD combines the size, dtype byte and padding byte of a payload in one number."""


def scan(pieces: Iterable[tuple[int, memoryview]], limits: Limits = DEFAULT) -> Fields:
    """Finds the vector fields of the documents in `pieces`, each given with its offset."""
    paths: dict[bytes, int] = {}
    blocks: list[NDArray[np.int64]] = [np.empty((5, 0), np.int64)]
    documents = 0
    for start, data in pieces:
        found = find_vectors(data, limits, start)
        if found.paths:
            raw = np.frombuffer(data, np.uint8)
            block = np.empty((5, len(found.begins)), np.int64)
            for path in found.paths:
                paths.setdefault(path, len(paths))
            limits.check_tensors(len(paths), rule=FIELDS_RULE, what="vector fields")
            block[_PATH] = np.array([paths[path] for path in found.paths])[found.fields]
            block[_DOCUMENT] = found.documents + documents
            block[_BEGIN] = found.begins + start
            padding = raw[np.minimum(found.begins + 1, len(raw) - 1)]
            block[_HEAD] = (found.ends - found.begins << 16) + (raw[found.begins].astype(np.int64) << 8) + padding
            block[_LAST] = raw[found.ends - 1]
            blocks.append(block)
        documents += found.count
    return _group(list(paths), np.concatenate(blocks, axis=1), documents)


def _group(paths: list[bytes], columns: NDArray[np.int64], documents: int) -> Fields:
    columns = columns[:, np.argsort(columns[_PATH], kind="stable")]
    path, document, begins, keys, lasts = columns
    twice = np.flatnonzero((path[1:] == path[:-1]) & (document[1:] == document[:-1]))
    if twice.size:
        raise refusal(walk.DUPLICATE, int(begins[twice[0] + 1]))
    names = path_texts(paths)
    if len(set(names)) < len(names):
        raise FormatError(
            "two vector fields have the same dotted path (a key contains a dot)", rule="bson.key.duplicate"
        )
    counts = np.bincount(path, minlength=len(paths))
    offsets = prefix_sums(counts)
    known, head = np.unique(keys[offsets[:-1]], return_inverse=True)
    heads = [_row(key) for key in known.tolist()]
    # The ignored bits are the lowest ones of the last byte, as many as the padding.
    bits_set = lasts & ((1 << np.minimum(keys & 0xFF, 7)) - 1) != 0
    troubles = dict.fromkeys(distinct(path[bits_set]).tolist(), "ignored bits of a vector are not zero")
    few = np.flatnonzero(counts < documents)
    troubles |= _explain(few, counts[few], lambda n: f"{n} of {documents} documents have a vector here")
    differing = np.flatnonzero(keys != np.repeat(keys[offsets[:-1]], counts))
    unlike, at = np.unique(path[differing], return_index=True)
    others, which = np.unique(keys[differing[at]], return_inverse=True)
    troubles |= _explain(
        unlike,
        head[unlike] * len(others) + which,
        lambda pair: f"vectors differ: {heads[pair // len(others)]}, then {_row(int(others[pair % len(others)]))}",
    )
    wrong = np.flatnonzero(np.array([isinstance(row, str) for row in heads], np.bool_)[head])
    troubles |= _explain(wrong, head[wrong], lambda which: str(heads[which]))
    nbytes = np.zeros(len(paths), np.int64)
    np.add.at(nbytes, path, (keys >> 16) + _BINARY_NBYTES)
    return Fields(documents, names, heads, head, begins, offsets, nbytes, troubles)


def _explain(fields: NDArray[np.int64], causes: NDArray[np.int64], text: Callable[[int], str]) -> dict[int, str]:
    """Maps fields to messages; the message of each distinct cause is built once."""
    texts = {cause: text(cause) for cause in distinct(causes).tolist()}
    return dict(zip(fields.tolist(), map(texts.__getitem__, causes.tolist()), strict=True))


def _row(head: int) -> Row | str:
    """Returns the row that a head describes, or the error message."""
    try:
        return row_of_head(head >> 16, head >> 8 & 0xFF, head & 0xFF)
    except FormatError as error:
        return error.message
