"""Tensors of several parts in version 0.1: our extension, which other readers see as ordinary dense tensors.

Each part is an entry named `<tensor>#<part>` with the fields `part_of` and `part`; the
first one has the layout, shape and attributes of the tensor. Entries whose fields are
inconsistent are read as ordinary tensors.

    part_of, part                    on every part
    logical_type                     on a part whose dtype 0.1 does not have: it is stored as bytes
    logical_layout, logical_shape    on the first part
    attributes                       on the first part, if there are any

The field `layout` is "dense", because the packages 0.1.0 to 0.1.4 refuse any other value.
When reading, a layout in that field is accepted, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.ztensor.catalogue import RAW, Catalogue, splice_dims
from tensorglot.containers.ztensor.codecs import Zstd
from tensorglot.containers.ztensor.entries import read_entries
from tensorglot.containers.ztensor.rules import SIZE_END, check_sizes, check_unique
from tensorglot.errors import FormatError
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import UNKNOWN, take_shapes
from tensorglot.tuples import NamedTuple
from tensorglot.wire.cbor import ARRAY, TEXT, UINT, Cursor

__all__ = ["METADATA", "gather_parts", "metadata_field", "part_rows", "rows_read_as_parts"]

V = TypeVar("V")

METADATA = "__metadata__"
"""The name of an empty uint8 tensor whose field `metadata` has the metadata of the file."""


class _PartRow(NamedTuple):
    """A row that is a part."""

    row: int
    part: str
    fields: Mapping[str, int]
    """The position of the value of each field of the entry."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """A tensor that several rows are parts of."""

    name: str
    rows: list[_PartRow]
    shape: tuple[int, ...]
    layout: str
    attributes: int | None
    """Position of the attributes."""


def gather_parts(catalogue: Catalogue, marked: list[int], hidden: list[int]) -> Catalogue:
    """Groups rows to tensors, each at the position of its first part; leaves out the hidden rows."""
    wholes = _find_wholes(catalogue, marked)
    if not wholes and not hidden:
        return catalogue
    firsts = np.arange(len(catalogue.places))
    for whole in wholes:
        firsts[[held.row for held in whole.rows]] = whole.rows[0].row
    order = np.argsort(firsts, kind="stable")
    order = order[~np.isin(order, np.array(hidden, np.int64), kind="table")]
    tensors, first_rows = np.unique(firsts[order], return_index=True)
    gathered = _take(catalogue, order, tensors)
    if not wholes:
        return gathered
    gathered.first_rows = np.append(first_rows, len(order))
    at = np.searchsorted(tensors, [whole.rows[0].row for whole in wholes]).tolist()
    name_ends = len(gathered.data) + np.cumsum([len(whole.name.encode()) for whole in wholes])
    gathered.data += b"".join(whole.name.encode() for whole in wholes)
    gathered.name_ends[at] = name_ends
    gathered.name_begins[at] = np.append(len(catalogue.data), name_ends[:-1])
    for tensor, whole in zip(at, wholes, strict=True):
        _describe(gathered, tensor, whole)
    taken = tensors.copy()
    taken[at] = -1
    shapes = {tensor: whole.shape for tensor, whole in zip(at, wholes, strict=True)}
    gathered.dims, gathered.dim_offsets = splice_dims(catalogue.dims, catalogue.dim_offsets, taken, shapes)
    check_unique(gathered)
    check_sizes(gathered)
    return gathered


def rows_read_as_parts(index: bytes) -> set[int]:
    """Rows of an index that would be read as parts; if a tensor of such parts breaks a rule, all with `part_of`."""
    cursor = Cursor(index)
    catalogue, marked = read_entries(cursor, cursor.count("index"))
    check_sizes(catalogue)
    try:
        gather_parts(catalogue, marked, []).to_index("ztensor@0.1", Zstd(), None)
    except FormatError:
        return set(marked)
    return {held.row for whole in _find_wholes(catalogue, marked) for held in whole.rows}


def part_rows(index: bytes) -> dict[int, str]:
    """The rows of a valid index that are parts, each with the name of its tensor."""
    cursor = Cursor(index)
    catalogue, marked = read_entries(cursor, cursor.count("index"))
    return {held.row: whole.name for whole in _find_wholes(catalogue, marked) for held in whole.rows}


def metadata_field(catalogue: Catalogue) -> tuple[int, int] | None:
    """The row with the metadata of the file, and the position of the metadata."""
    row = catalogue.names.find(METADATA) if catalogue.attributes else None
    if row not in catalogue.attributes or catalogue.encodings[row] != RAW:
        return None
    if catalogue.dtype(row) is not BY_NAME["uint8"] or catalogue.shape(row) != (0,):
        return None
    begin = Cursor(catalogue.data, pos=catalogue.attributes[row]).fields("entry").get("metadata")
    return None if begin is None or not _has_text_keys(catalogue.data, begin) else (row, begin)


def _find_wholes(catalogue: Catalogue, marked: list[int]) -> list[_Whole]:
    groups: dict[str, list[_PartRow]] = {}
    for row in marked:
        fields = _fields(catalogue, row)
        tensor, part = _text(catalogue, fields, "part_of"), _text(catalogue, fields, "part")
        if tensor is not None and part is not None and catalogue.name(row) == f"{tensor}#{part}":
            groups.setdefault(tensor, []).append(_PartRow(row, part, fields))
    found = (_whole(catalogue, name, rows) for name, rows in groups.items())
    return [whole for whole in found if whole is not None]


def _whole(catalogue: Catalogue, name: str, rows: list[_PartRow]) -> _Whole | None:
    """The tensor that the first part describes; None if its fields are missing or inconsistent."""
    fields = rows[0].fields
    shape, attributes = _shape(catalogue, fields), fields.get("attributes")
    layout = _text(catalogue, fields, "logical_layout") or _text(catalogue, fields, "layout")
    if shape is None or layout is None or (attributes and not _has_text_keys(catalogue.data, attributes)):
        return None
    if layout == "dense" and [held.part for held in rows] != ["data"]:
        return None
    return _Whole(name, rows, shape, layout, attributes)


def _take(catalogue: Catalogue, order: NDArray[np.int64], tensors: NDArray[np.int64]) -> Catalogue:
    """Takes rows in an order, and some of the tensors."""
    count = len(catalogue.places)
    new_row, new_tensor = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    new_row[order], new_tensor[tensors] = np.arange(len(order)), np.arange(len(tensors))
    dims, dim_offsets = take_shapes(catalogue.dims, catalogue.dim_offsets, tensors)

    def renumber(values: Mapping[int, V], to: NDArray[np.int64]) -> dict[int, V]:
        return {int(to[old]): value for old, value in values.items() if to[old] >= 0}

    by_row = ("row_places", "dtypes", "begins", "sizes", "encodings", "nbytes", "checksums", "big_endian")
    by_tensor = ("name_begins", "name_ends", "places", "counts")
    columns: dict[str, Any] = {name: getattr(catalogue, name)[order] for name in by_row}
    columns |= {name: getattr(catalogue, name)[tensors] for name in by_tensor}
    return replace(
        catalogue,
        **columns,
        dims=dims,
        dim_offsets=dim_offsets,
        attributes=renumber(catalogue.attributes, new_tensor),
        unknown_dtypes=renumber(catalogue.unknown_dtypes, new_row),
        unknown_encodings=renumber(catalogue.unknown_encodings, new_row),
    )


def _describe(gathered: Catalogue, tensor: int, whole: _Whole) -> None:
    """Replaces the description of the first part by the description of the tensor."""
    gathered.counts[tensor] = min(math.prod(whole.shape), SIZE_END - 1)
    gathered.attributes.pop(tensor, None)
    if whole.attributes is not None:
        gathered.attributes[tensor] = whole.attributes
    if whole.layout != "dense":
        gathered.layouts[tensor] = whole.layout
    for row, held in zip(gathered.rows(tensor), whole.rows, strict=True):
        if held.part != "data":
            gathered.parts[row] = held.part
        if gathered.dtype(row) is not BY_NAME["uint8"]:
            continue
        logical = _text(gathered, held.fields, "logical_type")
        if logical is not None:
            gathered.dtypes[row] = BY_NAME[logical].code if logical in BY_NAME else UNKNOWN
            if logical not in BY_NAME:
                gathered.unknown_dtypes[row] = logical


def _fields(catalogue: Catalogue, row: int) -> dict[str, int]:
    """Position of the value of each field of an entry."""
    return Cursor(catalogue.data, pos=int(catalogue.row_places[row])).fields("entry")


def _text(catalogue: Catalogue, fields: Mapping[str, int], key: str) -> str | None:
    """The value of a field if it is text, else None."""
    begin = fields.get(key)
    if begin is None:
        return None
    cursor = Cursor(catalogue.data, pos=begin)
    return cursor.text(key) if cursor.major() == TEXT else None


def _shape(catalogue: Catalogue, fields: Mapping[str, int]) -> tuple[int, ...] | None:
    """The logical shape if it is an array of sizes, else None."""
    begin = fields.get("logical_shape")
    cursor = Cursor(catalogue.data, pos=begin or 0)
    if begin is None or cursor.major() != ARRAY:
        return None
    dims = []
    for _ in cursor.array("logical_shape"):
        if cursor.major() != UINT:
            return None
        dims.append(cursor.uint("logical_shape"))
    return tuple(dims) if all(size < SIZE_END for size in dims) else None


def _has_text_keys(data: bytes, begin: int) -> bool:
    """Whether the item is a map whose keys are all text."""
    try:
        Cursor(data, pos=begin).fields("map")
    except FormatError:
        return False
    return True
