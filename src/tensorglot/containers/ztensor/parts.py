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

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorglot.containers.ztensor.codecs import EXPANSION, TOO_SMALL, Opaque, Zstd
from tensorglot.containers.ztensor.constants import NAMES_01
from tensorglot.containers.ztensor.entries import SIZE_END, Entry, read_entry
from tensorglot.containers.ztensor.splice import Object, Row
from tensorglot.errors import FormatError, LimitError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Layout
from tensorglot.model.layouts import MX, QUANT_GROUP, Piece, arrange
from tensorglot.model.tensor import NESTED
from tensorglot.wire.cbor import ARRAY, MAP, TEXT, UINT, Cursor

__all__ = ["METADATA", "gather_parts", "layout_attributes", "metadata_field", "parts_in", "row_of"]

ATTRIBUTES_NBYTES = 64 << 10
"""Of a quantized or nested tensor, whose attributes must be understood before it is listed."""
METADATA = "__metadata__"
"""The name of an empty uint8 tensor whose field `metadata` is the file's."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An entry that says that it is a part."""

    position: int
    tensor: str
    row: Row


def row_of(entry: Entry, position: int) -> Row:
    """An odd entry as a row. Elements or encodings that we do not know stay as they are."""
    known = entry.dtype in NAMES_01
    dtype = BY_NAME[entry.dtype] if known else None
    nbytes = dtype.nbytes(entry.count) if dtype is not None else entry.size
    if nbytes >= SIZE_END:
        raise FormatError("more bytes than 2**63", rule="ztensor.shape.product", offset=position, tensor=entry.name)
    if entry.encoding == "raw":
        codec: Zstd | Opaque | None = None
        if entry.size != nbytes:
            raise FormatError(
                "the blob has not the size that dtype and shape ask for",
                rule="ztensor.blob.size",
                offset=position,
                tensor=entry.name,
            )
    else:
        codec = Zstd() if entry.encoding == "zstd" and known else Opaque(entry.encoding)
        if isinstance(codec, Zstd) and nbytes // EXPANSION > entry.size:
            raise FormatError(TOO_SMALL, rule="ztensor.blob.expansion", offset=position, tensor=entry.name)
    return Row(
        "data",
        dtype,
        entry.shape,
        entry.offset,
        entry.offset + entry.size,
        codec,
        nbytes,
        entry.checksum,
        entry.endianness == "big" and codec is None and (dtype is None or dtype.bits > 8),
        None if known else entry.dtype,
    )


def gather_parts(
    index: bytes, entries: Mapping[int, Entry], rows: Mapping[int, Row], base: int
) -> dict[int, Object | None]:
    """The tensors that parts make up, each at the position of its first part, and None at the others."""
    groups: dict[str, list[_Part]] = {}
    for position, entry in entries.items():
        part = _part(index, position, entry, rows[position])
        if part is not None:
            groups.setdefault(part.tensor, []).append(part)
    found: dict[int, Object | None] = {}
    for tensor, parts in groups.items():
        whole = _tensor(tensor, parts, index, entries[parts[0].position], base)
        if whole is not None:
            found |= dict.fromkeys(part.position for part in parts)
            found[parts[0].position] = whole
    return found


def parts_in(index: bytes) -> set[int]:
    """Positions of the entries that are read as parts; all, where they would be parts that break a rule."""
    cursor = Cursor(index)
    begins = [cursor.skip()[0] for _ in range(cursor.count("index"))]
    limits = Limits(rank=SIZE_END - 1, name_nbytes=SIZE_END - 1)
    entries = {i: read_entry(index, begin, limits, 0) for i, begin in enumerate(begins)}
    rows = {i: row_of(entry, begins[i]) for i, entry in entries.items()}
    try:
        return set(gather_parts(index, entries, rows, 0))
    except FormatError:
        return set(entries)


def _text(index: bytes, entry: Entry, key: str) -> str | None:
    """A field, if it is there and is text."""
    begin = entry.custom.get(key)
    return None if begin is None or index[begin] >> 5 != TEXT else Cursor(index, pos=begin).text(key)


def _part(index: bytes, position: int, entry: Entry, row: Row) -> _Part | None:
    tensor, part = _text(index, entry, "part_of"), _text(index, entry, "part")
    if tensor is None or part is None or entry.name != f"{tensor}#{part}":
        return None
    logical = _text(index, entry, "logical_type")
    if logical is not None and entry.dtype == "uint8":
        dtype = BY_NAME.get(logical)
        row = replace(row, dtype=dtype, unknown_dtype=None if dtype is not None else logical)
    return _Part(position, tensor, replace(row, part=part))


def _tensor(name: str, parts: list[_Part], index: bytes, first: Entry, base: int) -> Object | None:
    shape = _shape(index, first)
    layout = _text(index, first, "logical_layout") or _text(index, first, "layout")
    if shape is None or layout is None or len({part.row.part for part in parts}) < len(parts):
        return None
    begin = first.custom.get("attributes")
    if begin is not None and not has_text_keys(index, begin):
        return None
    offset = base + first.custom["part_of"]
    if layout == "dense":
        return _dense(name, parts, shape, begin, offset)
    pieces = {part.row.part: Piece(part.row.dtype, _nbytes(part.row)) for part in parts}
    attributes = layout_attributes(index, begin, layout, name, base)
    arranged = arrange(layout, shape, pieces, attributes, name, offset)
    rows = tuple(replace(part.row, shape=arranged.shapes[part.row.part]) for part in parts)
    return Object(name, rows, Layout(layout, arranged.type), begin)


def layout_attributes(data: bytes, begin: int | None, layout: str, tensor: str, base: int) -> dict[str, Any]:
    """The attributes that decide how parts are arranged; those of other layouts stay unread until they are wanted."""
    if begin is None or layout not in (QUANT_GROUP, MX, NESTED):
        return {}
    cursor = Cursor(data, pos=begin)
    if cursor.skip()[1] - begin > ATTRIBUTES_NBYTES:
        raise LimitError(
            f"more than {ATTRIBUTES_NBYTES} bytes of attributes",
            rule="ztensor.limit.attributes",
            tensor=tensor,
            offset=base + begin,
        )
    attributes: dict[str, Any] = Cursor(data, pos=begin).value()
    return attributes


def _dense(
    name: str, parts: list[_Part], shape: tuple[int, ...], attributes_begin: int | None, offset: int
) -> Object | None:
    row = parts[0].row
    if len(parts) > 1 or row.part != "data":
        return None
    if row.dtype is not None and row.dtype.nbytes(math.prod(shape)) != _nbytes(row):
        raise FormatError(
            "the blob has not the size that type and shape ask for",
            rule="ztensor.blob.size",
            tensor=name,
            offset=offset,
        )
    return Object(name, (replace(row, shape=shape),), None, attributes_begin)


def _nbytes(row: Row) -> int:
    return row.end - row.begin if row.codec is None else row.nbytes


def _shape(index: bytes, entry: Entry) -> tuple[int, ...] | None:
    """The logical shape, if it is there and is one."""
    begin = entry.custom.get("logical_shape")
    if begin is None or index[begin] >> 5 != ARRAY:
        return None
    cursor = Cursor(index, pos=begin)
    dims = []
    for _ in cursor.array("logical_shape"):
        if cursor.major() != UINT:
            return None
        dims.append(cursor.uint("logical_shape"))
    return tuple(dims) if all(size < SIZE_END for size in dims) else None


def metadata_field(index: bytes, entry: int) -> int | None:
    """Where the field `metadata` of an entry begins, if it is a map with text keys."""
    cursor = Cursor(index, pos=entry)
    found = None
    for _ in cursor.map("entry"):
        key = cursor.text("key")
        begin = cursor.skip()[0]
        if key == "metadata":
            found = begin
    return found if found is not None and has_text_keys(index, found) else None


def has_text_keys(data: bytes, begin: int) -> bool:
    """Whether the item is a map whose keys are all text."""
    if data[begin] >> 5 != MAP:
        return False
    cursor = Cursor(data, pos=begin)
    for _ in cursor.map("map"):
        if cursor.major() != TEXT:
            return False
        cursor.skip()
        cursor.skip()
    return True
