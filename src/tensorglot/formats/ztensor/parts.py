"""Tensors of several parts in version 0.1, which has no place for them.

Each part is an ordinary entry named `<tensor>#<part>` with the fields `part_of` and
`part`; the first one has the layout, shape and attributes of the tensor. A reader
that knows nothing of it sees ordinary dense tensors. So does this one where the
fields are somebody else's and do not fit together.

    part_of, part                    on every part
    logical_type                     on a part whose elements 0.1 has no name for: it is stored as bytes
    logical_layout, logical_shape    on the first part
    attributes                       on the first part, if there are any

The field `layout` stays "dense": the packages 0.1.0 to 0.1.4 refuse a file that has
another word there. A layout found there is understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorglot.errors import FormatError
from tensorglot.formats.ztensor.entries import Entry
from tensorglot.formats.ztensor.splice import Object, Row
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Layout
from tensorglot.model.layouts import Piece, arrange
from tensorglot.wire.cbor import MAP, TEXT, Cursor

__all__ = ["METADATA", "gather_parts", "metadata_field"]

METADATA = "__metadata__"
"""The name of an empty uint8 tensor whose field `metadata` is the file's."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An entry that says that it is a part."""

    position: int
    tensor: str
    fields: Mapping[str, Any]
    row: Row


def gather_parts(index: bytes, entries: Mapping[int, Entry], rows: Mapping[int, Row]) -> dict[int, Object | None]:
    """The tensors that parts make up, each at the position of its first part, and None at the others."""
    groups: dict[str, list[_Part]] = {}
    for position, entry in entries.items():
        if "part_of" in entry.custom:
            part = _part(index, position, entry, rows[position])
            if part is not None:
                groups.setdefault(part.tensor, []).append(part)
    found: dict[int, Object | None] = {}
    for tensor, parts in groups.items():
        whole = _tensor(tensor, parts, index, entries[parts[0].position])
        if whole is not None:
            found |= dict.fromkeys(part.position for part in parts)
            found[parts[0].position] = whole
    return found


def _part(index: bytes, position: int, entry: Entry, row: Row) -> _Part | None:
    fields = {key: Cursor(index, pos=begin).value() for key, begin in entry.custom.items() if key != "attributes"}
    tensor, part = fields["part_of"], fields.get("part")
    if not isinstance(tensor, str) or not isinstance(part, str) or entry.name != f"{tensor}#{part}":
        return None
    logical = fields.get("logical_type")
    if isinstance(logical, str) and entry.dtype == "uint8":
        dtype = BY_NAME.get(logical)
        row = replace(row, dtype=dtype, unknown_dtype=None if dtype is not None else logical)
    return _Part(position, tensor, fields, replace(row, part=part))


def _tensor(name: str, parts: list[_Part], index: bytes, first: Entry) -> Object | None:
    shape = _dims(parts[0].fields.get("logical_shape"))
    layout = parts[0].fields.get("logical_layout", parts[0].fields.get("layout"))
    if shape is None or not isinstance(layout, str) or len({part.row.part for part in parts}) < len(parts):
        return None
    begin = first.custom.get("attributes")
    attributes = {} if begin is None else Cursor(index, pos=begin).value()
    if not isinstance(attributes, dict):
        return None
    pieces = {part.row.part: Piece(part.row.dtype, _nbytes(part.row)) for part in parts}
    if layout == "dense":
        return _dense(name, parts, shape, begin)
    arranged = arrange(layout, shape, pieces, attributes, name)
    rows = tuple(replace(part.row, shape=arranged.shapes[part.row.part]) for part in parts)
    return Object(name, rows, Layout(layout, arranged.type), begin)


def _dense(name: str, parts: list[_Part], shape: tuple[int, ...], attributes_begin: int | None) -> Object | None:
    row = parts[0].row
    if len(parts) > 1 or row.part != "data":
        return None
    count = 1
    for size in shape:
        count *= size
    if row.dtype is not None and row.dtype.nbytes(count) != _nbytes(row):
        raise FormatError(
            "the blob has not the size that type and shape ask for", rule="ztensor.blob.size", tensor=name
        )
    return Object(name, (replace(row, shape=shape),), None, attributes_begin)


def _nbytes(row: Row) -> int:
    return row.end - row.begin if row.codec is None else row.nbytes


def _dims(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(size) is int and 0 <= size < 1 << 63 for size in value):
        return None
    return tuple(value)


def metadata_field(index: bytes, entry: int) -> int | None:
    """Where the field `metadata` of an entry begins, if it is a map with text keys."""
    cursor = Cursor(index, pos=entry)
    found = None
    for _ in cursor.map("entry"):
        key = cursor.text("key")
        begin = cursor.skip()[0]
        if key == "metadata" and index[begin] >> 5 == MAP:
            found = begin
    if found is None:
        return None
    cursor.pos = found
    for _ in cursor.map("metadata"):
        if cursor.major() != TEXT:
            return None
        cursor.skip()
        cursor.skip()
    return found
