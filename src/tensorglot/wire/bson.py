"""Scans many BSON documents for one field or for all vectors, with columns as the result.

Other values are skipped by their length, without decoding or checking their contents.
`bson_value` decodes values, `bson_vector` the payload of a vector. Knows no tensor and
no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, InputError, LimitError, TruncatedError, escape
from tensorglot.kernels import bson_walk as walk
from tensorglot.limits import DEFAULT, Limits

__all__ = [
    "ARRAY",
    "BINARY",
    "DEPTH",
    "DOCUMENT",
    "DOCUMENT_MAX_NBYTES",
    "DOUBLE",
    "FIELDS_RULE",
    "NULL",
    "PIECE_NBYTES",
    "VECTOR_SUBTYPE",
    "Column",
    "Vectors",
    "find",
    "find_all",
    "find_vectors",
    "key_bytes",
    "kind_name",
    "numbers",
    "path_bytes",
    "path_texts",
    "pieces",
    "refusal",
    "view",
]

DEPTH: Final = 100
"""Nesting limit of MongoDB."""
DOCUMENT_MAX_NBYTES: Final = (16 << 20) + (16 << 10)
"""The largest document in a dump: MongoDB's limit for users plus its internal overhead."""
PIECE_NBYTES: Final = 8 << 20
_ROOM_NBYTES = 64  # the least buffer of `pieces`
ROOM_ROWS = 1 << 16
_PATHS_NBYTES = 1 << 20
"""Paths of this many bytes are allowed however small the documents are."""
_VECTOR_NBYTES = 7
"""The smallest vector element: type, NUL of an empty key, length, subtype."""
_ARRAY_NBYTES = 14
"""The smallest array of one number, an int32, as an element with an empty key."""
DOUBLE, DOCUMENT, ARRAY, BINARY, NULL = 0x01, 0x03, 0x04, 0x05, 0x0A
VECTOR_SUBTYPE = 9
FIELDS_RULE = "bson.limit.tensors"

_KINDS = {
    0x01: "double", 0x02: "string", 0x03: "document", 0x04: "array", 0x05: "binary", 0x06: "undefined",
    0x07: "ObjectId", 0x08: "bool", 0x09: "date", 0x0A: "null", 0x0B: "regular expression", 0x0C: "DBPointer",
    0x0D: "JavaScript code", 0x0E: "symbol", 0x0F: "JavaScript code with scope", 0x10: "int32", 0x11: "timestamp",
    0x12: "int64", 0x13: "decimal128", 0x7F: "maxKey", 0xFF: "minKey",
}  # fmt: skip

_FAULTS: dict[int, tuple[type[FormatError], str, str]] = {
    walk.PAST_END: (TruncatedError, "bson.length", "truncated: a value extends past the end of its document"),
    walk.TOO_SMALL: (FormatError, "bson.length", "the length of a value is negative or too small"),
    walk.NO_NUL: (FormatError, "bson.nul", "missing NUL terminator"),
    walk.KIND: (FormatError, "bson.kind", "unknown BSON element type"),
    walk.BOOL: (FormatError, "bson.bool", "a bool must be 0 or 1"),
    walk.INNER: (
        FormatError,
        "bson.binary.inner",
        "the inner length of a binary of subtype 2 does not match its outer length",
    ),
    walk.DUPLICATE: (FormatError, "bson.key.duplicate", "duplicate key in a document"),
    walk.DEPTH: (LimitError, "bson.depth", f"documents nest more than {DEPTH} levels deep"),
    walk.NOT_NUMBER: (FormatError, "bson.array.number", "an element of the array is not a number"),
    walk.PATHS: (LimitError, "bson.limit.paths", "paths of nested vectors exceed Limits.path_ratio; pass a larger one"),
}


def refusal(fault: int, offset: int) -> FormatError:
    """Returns the error for a fault code of the kernel."""
    error, name, message = _FAULTS[fault]
    return error(message, rule=name, offset=offset)


def kind_name(kind: int) -> str:
    """Returns the name of a BSON type; 0 means that the field is absent."""
    return _KINDS.get(kind, "nothing")


def view(data: Any) -> memoryview:
    """Casts any contiguous buffer to bytes."""
    try:
        return memoryview(data).cast("B")
    except (TypeError, ValueError, BufferError) as error:
        raise InputError(f"expected BSON bytes, got {type(data).__name__}", rule="bson.input") from error


def key_bytes(key: str) -> bytes:
    """Encodes one key with its NUL."""
    if "\0" in key:
        raise InputError(f"the key '{escape(key)}' contains a NUL", rule="bson.key")
    try:
        return key.encode() + b"\0"
    except UnicodeEncodeError as error:
        raise InputError(f"the key '{escape(key)}' is not valid Unicode", rule="bson.key") from error


def path_bytes(path: str) -> list[bytes]:
    """Splits a dotted path into keys, outermost first, each with its NUL."""
    if not isinstance(path, str):
        raise InputError(f"the path of a field must be a string, not {type(path).__name__}", rule="bson.path")
    names = path.split(".")
    if "" in names or len(names) > DEPTH:
        raise InputError(f"'{escape(path)}' is not a dotted path of 1 to {DEPTH} keys", rule="bson.path")
    return [key_bytes(name) for name in names]


def path_texts(paths: Iterable[bytes]) -> list[str]:
    """Decodes paths of NUL-terminated keys to dotted form."""
    try:
        return [path[:-1].decode().replace("\0", ".") for path in paths]
    except UnicodeDecodeError as error:
        raise FormatError("invalid UTF-8 in a key", rule="bson.utf8") from error


@dataclass(frozen=True, slots=True)
class Column:
    """One field in many documents: the type of its value (0 if absent) and its span."""

    kinds: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Kind, begin and end of each document's value."""
        return zip(self.kinds.tolist(), self.begins.tolist(), self.ends.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Vectors:
    """All vectors of many documents, a row each, in file order."""

    paths: tuple[bytes, ...]
    documents: NDArray[np.int64]
    """Document number of each row."""
    fields: NDArray[np.int64]
    """Index into `paths` of each row."""
    begins: NDArray[np.int64]
    """Where the payload begins."""
    ends: NDArray[np.int64]
    count: int
    """Number of documents."""


def pieces(read_into: Callable[[memoryview], int], nbytes: int = PIECE_NBYTES) -> Iterator[tuple[int, memoryview]]:
    """Yields complete documents of a stream in pieces of up to `nbytes`, with their offsets.

    `read_into` fills its argument from the front and returns the number of bytes filled,
    fewer than all only at the end. A piece is valid until the next one is requested.
    """
    room = bytearray(max(nbytes, _ROOM_NBYTES))
    rest, start = bytearray(), 0
    while True:
        room[: len(rest)] = rest
        filled = len(rest) + read_into(memoryview(room)[len(rest) :])
        fault, at, _ = walk.count(room, 0, filled)
        if fault and (filled < len(room) or fault != walk.PAST_END):
            raise refusal(fault, start + at)
        if at:
            yield start, memoryview(room)[:at]
        if filled < len(room):
            return
        rest, start = room[at:filled], start + at
        needed = int.from_bytes(rest[:4], "little") if len(rest) >= 4 else 0
        if needed > DOCUMENT_MAX_NBYTES:
            raise LimitError(
                f"document of {needed} bytes exceeds MongoDB's limit of {DOCUMENT_MAX_NBYTES}",
                rule="bson.document.size",
                offset=start,
            )
        if needed >= len(room):
            room = bytearray(needed + 1)


def find(data: memoryview, names: Sequence[bytes], start: int = 0) -> Column:
    """Finds the field at a path (from `path_bytes`) in each of the documents that fill `data`.

    `start` is the offset of `data` in its source, for errors.
    """
    starts = np.cumsum([0, *map(len, names[:-1])], dtype=np.int64)
    fault, at, count = walk.count(data, 0, len(data))
    if fault:
        raise refusal(fault, start + at)
    column = Column(np.empty(count, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64))
    closings = np.empty(len(starts), np.int64)
    fault, at, _ = walk.find(data, 0, b"".join(names), starts, column.kinds, column.begins, column.ends, closings)
    if fault:
        raise refusal(fault, start + at)
    return column


def find_vectors(data: memoryview, limits: Limits = DEFAULT, start: int = 0) -> Vectors:
    """Finds all vectors, at any depth, in the documents that fill `data`. Limits apply while scanning.

    `start` is the offset of `data` in its source, for errors.
    """
    paths: dict[bytes, int] = {}
    found = list(find_all(data, paths, limits, start, arrays=False))
    documents, fields, begins, ends = np.concatenate([block for block, _ in found], axis=1)
    return Vectors(tuple(paths), documents, fields, begins, ends, found[-1][1])


def find_all(
    data: memoryview, paths: dict[bytes, int], limits: Limits, start: int, *, arrays: bool
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yields blocks of rows, one row for each vector, or with `arrays` for each array of numbers.

    The columns of a block are those of the kernel `bson_walk.find_all`. Each block comes with
    the number of documents so far. New paths are added to `paths`.
    """
    closings, names, values = np.empty((3, DEPTH), np.int64)
    at = count = 0
    budget = max(_PATHS_NBYTES, min(limits.path_ratio * len(data), 1 << 62))
    room = min(ROOM_ROWS, len(data) // (_ARRAY_NBYTES if arrays else _VECTOR_NBYTES) + 1)
    what = "fields of numbers" if arrays else "vector fields"
    while True:
        block = np.empty((4, room), np.int64)
        fault, at, rows, done, budget = walk.find_all(
            data, at, len(data), closings, names, values, paths, budget, count, arrays, *block
        )
        if fault not in (walk.OK, walk.FULL):
            raise refusal(fault, start + at)
        limits.check_tensors(len(paths), rule=FIELDS_RULE, what=what)
        count += done
        yield block[:, :rows], count
        if fault == walk.OK:
            return
        room *= 2


def numbers(data: memoryview, begin: int, end: int) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Decodes the array of numbers at `begin` to `end`; returns the numbers and their BSON types."""
    room = max(0, end - begin - 5) // 6  # an int32 with an empty key takes six bytes
    kinds, raw = np.empty(room, np.uint8), np.empty(8 * room, np.uint8)
    fault, at, count = walk.numbers(data, begin, end, kinds, raw)
    if fault:
        raise refusal(fault, at)
    doubles, integers = raw[: 8 * count].view("<f8"), raw[: 8 * count].view("<i8")
    kinds = kinds[:count]
    floating = kinds == DOUBLE
    return (doubles if floating.all() else np.where(floating, doubles, integers)), kinds
