"""Scans the CBOR of an index to columns, by a table of the fields that the maps of a version have.

A kernel reads the maps in every form that CBOR allows: any order of keys, any width of
integers, chunked strings. It checks the type of each value, required fields, and the
syntax of names and digests. All other rules are checked on the columns (see `rules`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError
from tensorglot.kernels import cbor_scan as kernel
from tensorglot.tuples import NamedTuple
from tensorglot.wire import cbor
from tensorglot.wire.cbor import Cursor

__all__ = [
    "NAME_NBYTES",
    "NOTHING",
    "Columns",
    "Field",
    "Record",
    "Scanned",
    "Table",
    "pass_attributes",
    "positions",
    "scan",
]

NAME_NBYTES = 1024
"""The longest name of version 2."""

Kind: TypeAlias = Literal[
    "name", "uint", "text", "digest", "word", "shape", "pair", "attributes", "parts", "silent", "mark"
]
"""The type of a field, which decides the columns that it fills: see `kernel.KINDS`."""
_NUMBERS: Mapping[Kind, int] = {"name": 2, "shape": 2, "pair": 2, "word": 0, "silent": 0, "mark": 0}
"""The number of columns of numbers that a kind fills, if that is not one."""


class Field(NamedTuple):
    """A field of a map."""

    key: str
    kind: Kind
    words: tuple[str, ...] = ()
    required: bool = False
    absent: int = 0
    """The number for a field that is absent."""


class Record:
    """The fields of the maps to be scanned."""

    def __init__(self, title: str, *fields: Field, named: bool, text_keys: bool, name_nbytes: int = 0) -> None:
        """A `named` record is preceded by its name, which is its first field. If `name_nbytes` is not 0, names have 1
        to that many bytes, and no NUL."""
        self.title = title
        self.fields = fields
        self.named = named
        self.text_keys = text_keys
        self.name_nbytes = name_nbytes
        self.least_nbytes = 1 + sum(len(field.key) + 2 for field in fields if field.required)
        """Size of the shortest map with all required fields."""
        self.keys = [field.key for field in fields]
        texts = [cbor.text(text) for text in (*self.keys, *(word for field in fields for word in field.words))]
        self.texts = b"".join(texts)
        """The keys, then the words of all fields, as CBOR."""
        self.text_begins = _sums(map(len, texts))
        self.first_words = _sums((len(field.words) for field in fields), len(fields))
        """The words of field i are the texts first_words[i] to first_words[i + 1]."""
        self.kinds = array("q", [kernel.KINDS.index(field.kind) for field in fields])
        widths = [_NUMBERS.get(field.kind, 1) for field in fields]
        self.number_columns = _sums(widths, 1)
        self.code_columns = _sums((field.kind == "word" for field in fields), 1)
        """The first column of each field; column 0 has positions and flags."""
        columns = dict(zip(self.keys, self.number_columns, strict=False))
        self.number_at = {
            key: slice(columns[key], columns[key] + 2) if width == 2 else columns[key]
            for key, width in zip(self.keys, widths, strict=True)
            if width
        }
        self.code_at = {field.key: self.code_columns[i] for i, field in enumerate(fields) if field.kind == "word"}
        self.absent = {columns[field.key]: field.absent for field in fields if field.absent}
        self.required = sum(1 << i for i, field in enumerate(fields) if field.required)


def _sums(numbers: Iterable[int], first: int = 0) -> array[int]:
    return array("q", accumulate(numbers, initial=first))


NOTHING = Record("nothing", named=False, text_keys=False)


class Columns:
    """The memory for a scan: a row for each record, and a spare one for records beyond the capacity."""

    def __init__(self, record: Record, rows: int) -> None:
        self.record = record
        self.rows = rows
        self.numbers = np.zeros((record.number_columns[-1], rows + 1), np.int64)
        self.codes = np.zeros((record.code_columns[-1], rows + 1), np.uint8)
        for column, number in record.absent.items():
            self.numbers[column] = number


class Table:
    """The result of a scan: a row for each record, and columns by field."""

    def __init__(self, columns: Columns, rows: int) -> None:
        self.record = record = columns.record
        self.rows = rows
        numbers, codes = columns.numbers[:, :rows], columns.codes[:, :rows]
        self.places: NDArray[np.int64] = numbers[0]
        """Position of each record."""
        self.flags: NDArray[np.uint8] = codes[0]
        self.numbers: dict[str, NDArray[np.int64]] = {key: numbers[at] for key, at in record.number_at.items()}
        """A column for each field; two for a name (begin and end), a pair, or a shape (product, and end in `dims`)."""
        self.codes: dict[str, NDArray[np.uint8]] = {key: codes[at] for key, at in record.code_at.items()}
        """One more than the position of a value in `words`, 0 if absent."""


_NO_PARTS = Columns(NOTHING, 0)


@dataclass(frozen=True, slots=True)
class Scanned:
    """The records of an index, the parts inside them, and their shapes."""

    data: bytes
    """The CBOR, followed by the texts of indefinite length, their chunks joined."""
    base: int
    """Offset of the CBOR in the file."""
    records: Table
    parts: Table
    dims: NDArray[np.int64]

    def texts(self, table: Table, rows: NDArray[np.bool_], key: str) -> dict[int, str]:
        """Decodes a text field of some rows: values that are not in `words`."""
        found, cursor = {}, Cursor(self.data)
        some = rows.nonzero()[0]
        for row, cursor.pos in zip(some.tolist(), table.places[some].tolist(), strict=True):
            if table.record.named:
                cursor.skip()
            cursor.pos = cursor.fields("record", others=True)[key]
            found[row] = cursor.text(key)
        return found

    def names(self, table: Table, rows: NDArray[np.bool_]) -> dict[int, str]:
        """Decodes the names of some records."""
        found, cursor = {}, Cursor(self.data)
        some = rows.nonzero()[0]
        for row, cursor.pos in zip(some.tolist(), table.places[some].tolist(), strict=True):
            found[row] = cursor.text("name")
        return found


def positions(column: NDArray[np.int64]) -> dict[int, int]:
    """The entries of a sparse column that are not 0, by row."""
    return {row: int(column[row]) for row in column.nonzero()[0].tolist()}


_FAULTS: dict[str, tuple[str, str]] = {
    "not uint": ("ztensor.entry.kind", "'{}' is not an unsigned integer"),
    "not text": ("ztensor.entry.kind", "'{}' is not text"),
    "not array": ("ztensor.entry.kind", "'{}' is not an array"),
    "not map": ("ztensor.entry.kind", "'{}' is not a map"),
    "not pair": ("ztensor.entry.blob", "'{}' must be an offset and a length"),
    "name": ("ztensor.name.form", f"a name must have 1 to {NAME_NBYTES} bytes and no NUL"),
    "digest": ("ztensor.entry.digest", "'{}' must be an algorithm, a colon and lower-case hex"),
    "missing": ("ztensor.entry.missing", "'{}' is missing"),
}


def scan(cursor: Cursor, count: int, record: Record, parts: Record = NOTHING) -> Scanned:
    """Scans `count` records at the cursor, and the `parts` inside them; moves the cursor past them."""
    data = cursor.data
    rows = min(count, len(data) // record.least_nbytes + 1)
    room, dims = (rows if parts is not NOTHING else 0), 2 * rows
    while True:
        columns, shapes = Columns(record, rows), np.zeros(dims, np.int64)
        inner = _NO_PARTS if parts is NOTHING else Columns(parts, room)
        found = kernel.scan(data, cursor.pos, count, columns, inner, shapes)
        fault, position, key, row, *needed, joined = found
        if fault:
            name = _name(data + joined, columns, row)
            rule, message = _FAULTS[fault]
            raise FormatError(message.format(key), rule=rule, offset=cursor.base + position, tensor=name)
        if needed[0] <= room and needed[1] <= dims:
            break
        room, dims = max(room, needed[0]), max(dims, needed[1])
    cursor.pos = position
    records, within = Table(columns, count), Table(inner, needed[0])
    return Scanned(data + joined if joined else data, cursor.base, records, within, shapes[: needed[1]])


def pass_attributes(cursor: Cursor, name_nbytes: int = 0) -> int:
    """Skips a map whose keys must be names; returns its position."""
    begin = cursor.pos
    fault, position = kernel.scan_attributes(cursor.data, begin, name_nbytes)
    if fault:
        rule, message = _FAULTS[fault]
        raise FormatError(message.format("attributes"), rule=rule, offset=cursor.base + position)
    cursor.pos = position
    return begin


def _name(data: bytes, columns: Columns, row: int) -> str | None:
    """The name of a record, if it was read. All records before it are valid, so the columns have room for it."""
    begin, end = columns.numbers[columns.record.number_at["name"], row]
    return data[begin:end].decode() if end else None
