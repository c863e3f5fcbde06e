"""BSON as columns: many documents stepped through at once, one field or all vectors found.

A value is stepped over by its length; what is skipped is neither built nor looked
into. `bson_value` builds values, `bson_vector` knows what a vector's payload is. Knows
no tensor and no file.
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
    "NULL",
    "PIECE_NBYTES",
    "VECTOR_SUBTYPE",
    "Column",
    "Vectors",
    "check_fields",
    "find",
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
"""Levels of nesting, as many as MongoDB itself allows."""
DOCUMENT_MAX_NBYTES: Final = (16 << 20) + (16 << 10)
"""The largest document in a dump: what MongoDB lets users store, and its own envelope."""
PIECE_NBYTES: Final = 8 << 20
_ROOM_NBYTES = 64
ROOM_ROWS = 1 << 16
_PATHS_NBYTES = 1 << 20
"""Paths of so many bytes are allowed in any run of documents."""
_VECTOR_NBYTES = 7
"""The least that a vector takes: kind, zero byte of its key, length, subtype."""
DOUBLE, DOCUMENT, ARRAY, BINARY, NULL = 0x01, 0x03, 0x04, 0x05, 0x0A
VECTOR_SUBTYPE = 9

_KINDS = {
    0x01: "double",
    0x02: "string",
    0x03: "document",
    0x04: "array",
    0x05: "binary",
    0x06: "undefined",
    0x07: "ObjectId",
    0x08: "bool",
    0x09: "date",
    0x0A: "null",
    0x0B: "regular expression",
    0x0C: "DBPointer",
    0x0D: "JavaScript code",
    0x0E: "symbol",
    0x0F: "JavaScript code with scope",
    0x10: "int32",
    0x11: "timestamp",
    0x12: "int64",
    0x13: "decimal128",
    0x7F: "maxKey",
    0xFF: "minKey",
}

_RULES: dict[int, tuple[type[FormatError], str, str]] = {
    walk.PAST_END: (TruncatedError, "bson.length", "a value goes past the end of what holds it"),
    walk.TOO_SMALL: (FormatError, "bson.length", "a length is negative or too small"),
    walk.NO_NUL: (FormatError, "bson.nul", "a closing zero byte is missing"),
    walk.KIND: (FormatError, "bson.kind", "an element of unknown kind"),
    walk.BOOL: (FormatError, "bson.bool", "a bool that is neither 0 nor 1"),
    walk.INNER: (FormatError, "bson.binary.inner", "the inner length of a binary of subtype 2 is wrong"),
    walk.DUPLICATE: (FormatError, "bson.key.duplicate", "a key occurs twice in one document"),
    walk.DEPTH: (LimitError, "bson.depth", f"documents nest more than {DEPTH} levels deep"),
    walk.NOT_NUMBER: (FormatError, "bson.array.number", "an element of the array is not a number"),
    walk.PATHS: (
        LimitError,
        "bson.limit.paths",
        "the paths of nested vectors take far more bytes than the documents; Limits(path_ratio=…) allows more",
    ),
}


def refusal(rule: int, offset: int) -> FormatError:
    """The error for a rule of the kernel."""
    error, name, message = _RULES[rule]
    return error(message, rule=name, offset=offset)


def kind_name(kind: int) -> str:
    """What a kind of element is called; 0 stands for an absent one."""
    return _KINDS.get(kind, "nothing")


def view(data: Any) -> memoryview:
    """Any contiguous buffer as bytes."""
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise InputError(f"expected bytes of BSON, got {type(data).__name__}", rule="bson.input") from error


def key_bytes(key: str) -> bytes:
    """One key with its zero byte."""
    if "\0" in key:
        raise InputError(f"the key '{escape(key)}' contains a zero byte", rule="bson.key")
    try:
        return key.encode() + b"\0"
    except UnicodeEncodeError as error:
        raise InputError(f"the key '{escape(key)}' is not valid Unicode", rule="bson.key") from error


def path_bytes(path: str) -> list[bytes]:
    """The keys of a dotted path, from the outside in, each with its zero byte."""
    if not isinstance(path, str):
        raise InputError(f"the path of a field must be a string, not {type(path).__name__}", rule="bson.path")
    names = path.split(".")
    if "" in names or len(names) > DEPTH:
        raise InputError(f"'{escape(path)}' is not a dotted path of 1 to {DEPTH} keys", rule="bson.path")
    return [key_bytes(name) for name in names]


def path_texts(paths: Iterable[bytes]) -> list[str]:
    """Keys with zero bytes, as the walk has them, in dotted form."""
    try:
        return [path[:-1].decode().replace("\0", ".") for path in paths]
    except UnicodeDecodeError as error:
        raise FormatError("a key is not UTF-8", rule="bson.utf8") from error


@dataclass(frozen=True, slots=True)
class Column:
    """One field over many documents: the kind of its value, 0 where it is absent, and where the value is."""

    kinds: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Every vector of many documents, a row each, in the order of the data."""

    paths: tuple[bytes, ...]
    documents: NDArray[np.int64]
    """The number of the row's document."""
    fields: NDArray[np.int64]
    """The row's position in `paths`."""
    begins: NDArray[np.int64]
    """Where its payload is."""
    ends: NDArray[np.int64]
    count: int
    """How many documents there are."""


def pieces(read_into: Callable[[memoryview], int], nbytes: int = PIECE_NBYTES) -> Iterator[tuple[int, memoryview]]:
    """Whole documents from a stream, and where they begin in it, in pieces of up to `nbytes`.

    `read_into` fills its argument from the front and returns how many bytes it filled,
    fewer than all only at the end. A piece is good until the next one is asked for.
    """
    room = bytearray(max(nbytes, _ROOM_NBYTES))
    rest, start = bytearray(), 0
    while True:
        room[: len(rest)] = rest
        filled = len(rest) + read_into(memoryview(room)[len(rest) :])
        rule, at, _ = walk.count(room, 0, filled)
        if rule and (filled < len(room) or rule != walk.PAST_END):
            raise refusal(rule, start + at)
        if at:
            yield start, memoryview(room)[:at]
        if filled < len(room):
            return
        rest, start = room[at:filled], start + at
        needed = int.from_bytes(rest[:4], "little") if len(rest) >= 4 else 0
        if needed > DOCUMENT_MAX_NBYTES:
            raise LimitError(
                f"a document of {needed} bytes; MongoDB allows {DOCUMENT_MAX_NBYTES}",
                rule="bson.document.size",
                offset=start,
            )
        if needed >= len(room):
            room = bytearray(needed + 1)


def find(data: memoryview, names: Sequence[bytes], start: int = 0) -> Column:
    """The field at a path, as `path_bytes` has it, in each of the documents that fill `data`.

    Errors count bytes from where the source of the data starts, `start` bytes before it.
    """
    starts = np.cumsum([0, *map(len, names[:-1])], dtype=np.int64)
    rule, at, count = walk.count(data, 0, len(data))
    if rule:
        raise refusal(rule, start + at)
    column = Column(np.empty(count, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64))
    closings = np.empty(len(starts), np.int64)
    rule, at, _ = walk.find(data, 0, b"".join(names), starts, column.kinds, column.begins, column.ends, closings)
    if rule:
        raise refusal(rule, start + at)
    return column


def find_vectors(data: memoryview, limits: Limits = DEFAULT, start: int = 0) -> Vectors:
    """Every vector, at any depth, in the documents that fill `data`. Limits are charged as vectors are found.

    `start` is that of `find`.
    """
    closings, names, values = np.empty((3, DEPTH), np.int64)
    paths: dict[bytes, int] = {}
    blocks: list[NDArray[np.int64]] = []
    at = count = 0
    budget = max(_PATHS_NBYTES, min(limits.path_ratio * len(data), 1 << 62))
    room = min(ROOM_ROWS, len(data) // _VECTOR_NBYTES + 1)
    while True:
        block = np.empty((4, room), np.int64)
        rule, at, rows, done, budget = walk.vectors(
            data, at, len(data), closings, names, values, paths, budget, count, *block
        )
        if rule not in (walk.OK, walk.FULL):
            raise refusal(rule, start + at)
        check_fields(len(paths), limits)
        count += done
        blocks.append(block[:, :rows])
        if rule == walk.OK:
            documents, fields, begins, ends = np.concatenate(blocks, axis=1)
            return Vectors(tuple(paths), documents, fields, begins, ends, count)
        room *= 2


def check_fields(count: int, limits: Limits) -> None:
    """Refuses more vector fields than a file may have tensors."""
    if count > limits.tensors_or():
        raise LimitError(f"{count} vector fields, more than Limits.tensors allows", rule="bson.limit.tensors")


def numbers(data: memoryview, begin: int, end: int) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """The array of numbers whose value is at `begin` to `end`, without an object for each, and their kinds."""
    room = max(0, end - begin - 5) // 6  # an int32 with an empty key takes six bytes
    kinds, raw = np.empty(room, np.uint8), np.empty(8 * room, np.uint8)
    rule, at, count = walk.numbers(data, begin, end, kinds, raw)
    if rule:
        raise refusal(rule, at)
    doubles, integers = raw[: 8 * count].view("<f8"), raw[: 8 * count].view("<i8")
    kinds = kinds[:count]
    floating = kinds == DOUBLE
    return (doubles if floating.all() else np.where(floating, doubles, integers)), kinds
