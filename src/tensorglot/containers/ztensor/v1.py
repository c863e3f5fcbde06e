"""Versions 1.0, 1.1 and 1.2: reading.

    file = "ZTEN1000", blobs at multiples of 64, manifest, u64 size of the manifest [, "ZTEN1000"]

1.0 ends with the size, the later ones repeat the magic number behind it. The manifest
is a CBOR map of named objects, each of components. 1.0 calls the objects tensors and
gives each one dtype, by its long name; later each component has its own, by a short
one. Digests cover the stored bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.ztensor.blobs import Region, check_blobs
from tensorglot.containers.ztensor.codecs import EXPANSION, TOO_SMALL, Opaque, Zstd
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, MAGIC_1, NAMES_1
from tensorglot.containers.ztensor.entries import SIZE_END, read_shape
from tensorglot.containers.ztensor.lazy import metadata_at
from tensorglot.containers.ztensor.splice import Object, Row, Scanned, splice, structural
from tensorglot.errors import FormatError, LimitError, TruncatedError
from tensorglot.limits import Limits
from tensorglot.model.index import Index, Layout
from tensorglot.model.layouts import COO, CSR, LAYOUTS, Piece, arrange
from tensorglot.model.payload import Source
from tensorglot.wire import cbor

__all__ = ["read"]

_LAYOUTS = {"sparse_csr": CSR, "sparse_coo": COO}
_INDICES = ("indices", "indptr", "coords")
"""Components that are uint64 where 1.0 gives no dtype of their own."""


@dataclass(frozen=True, slots=True)
class _Component:
    part: str
    dtype: str
    offset: int
    length: int
    decoded: int | None
    encoding: str
    digest: str | None
    position: int


@dataclass(frozen=True, slots=True)
class _Object:
    name: str
    shape: tuple[int, ...]
    format: str
    components: tuple[_Component, ...]
    attributes_begin: int | None


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    data, begin, footer = _manifest(source, limits)
    cbor.check(data, cbor.with_depth(cbor.LENIENT, limits.cbor_depth), base=begin)
    version, objects, attributes_begin = _root(data, begin, footer, limits)
    odd: dict[int, Object | None] = {i: _placed(thing) for i, thing in enumerate(objects)}
    blobs = [(thing.name, part) for thing in objects for part in thing.components]
    check_blobs(
        np.array([part.offset for _, part in blobs], np.int64),
        np.array([part.offset + part.length for _, part in blobs], np.int64),
        Region(ALIGNMENT_01, ALIGNMENT_01, begin, source.size),
        lambda i: (blobs[i][0], blobs[i][1].position),
    )
    index = splice(
        Scanned.nothing(len(objects)),
        odd,
        Zstd(),
        format=f"ztensor@{version}",
        data=data,
        metadata=metadata_at(data, attributes_begin),
    )
    if len(index.positions) < len(index.names):
        raise FormatError("two objects of one name", rule="ztensor.name.duplicate", offset=begin)
    return index


def _manifest(source: Source, limits: Limits) -> tuple[bytes, int, bool]:
    """The bytes of the manifest, where they stand, and whether the magic number ends the file."""
    if source.size < 16:
        raise TruncatedError("too short for a magic number and a size", rule="ztensor.size", offset=0)
    room = 16 if source.size >= 24 else 8
    tail = source.read_bytes(source.size - room, room)
    footer = len(tail) == 16 and tail[8:] == MAGIC_1
    end = source.size - (16 if footer else 8)
    nbytes = int.from_bytes(tail[:8] if footer else tail[-8:], "little")
    if nbytes > end - len(MAGIC_1) or nbytes == 0:
        raise TruncatedError(
            f"a manifest of {nbytes} bytes in a file of {source.size}", rule="ztensor.index.size", offset=end
        )
    if nbytes > limits.header_nbytes:
        raise LimitError(
            f"a manifest of {nbytes} bytes is beyond Limits.header_nbytes", rule="ztensor.limit.index", offset=end
        )
    return source.read_bytes(end - nbytes, nbytes), end - nbytes, footer


def _root(data: bytes, base: int, footer: bool, limits: Limits) -> tuple[str, list[_Object], int | None]:
    cursor = cbor.Cursor(data, base=base, rule="ztensor.index.root")
    fields = _fields(cursor, "manifest")
    begin = fields.get("objects", fields.get("tensors"))
    if begin is None:
        raise FormatError("a manifest without objects", rule="ztensor.index.root", offset=base)
    version = "1.2" if footer else "1.0"
    if "version" in fields:
        cursor.pos = fields["version"]
        written = ".".join(cursor.text("version").split(".")[:2])
        if not written.startswith("1."):
            raise FormatError("a version that is not 1", rule="ztensor.version", offset=base + fields["version"])
        version = written if written in ("1.0", "1.1", "1.2") else version
    cursor.pos = begin
    cursor.rule = "ztensor.entry.kind"
    objects: list[_Object] = []
    for _ in cursor.map("objects"):
        if len(objects) == limits.tensors_or():
            raise LimitError("more tensors than Limits.tensors allows", rule="ztensor.limit.tensors", offset=base)
        objects.append(_object(cursor, limits))
    return version, objects, _attributes(cursor, fields)


def _fields(cursor: cbor.Cursor, what: str) -> dict[str, int]:
    """Where the value of each field of a map begins. Passes over the map."""
    fields = {}
    for _ in cursor.map(what):
        key = cursor.text("key")
        fields[key] = cursor.skip()[0]
    return fields


def _object(cursor: cbor.Cursor, limits: Limits) -> _Object:
    at = cursor.base + cursor.pos
    name = cursor.text("name")
    if len(name.encode()) > limits.name_nbytes:
        raise LimitError(
            "a name longer than Limits.name_nbytes allows", rule="ztensor.limit.name", offset=at, tensor=name
        )
    fields = _fields(cursor, "object")
    end = cursor.pos
    _require(fields, ("shape", "format", "components"), name, at)
    cursor.pos = fields["shape"]
    shape = read_shape(cursor, limits)
    cursor.pos = fields["format"]
    form = cursor.text("format")
    dtype = None
    if "dtype" in fields:
        cursor.pos = fields["dtype"]
        dtype = cursor.text("dtype")
    cursor.pos = fields["components"]
    components = tuple(_component(cursor, name, dtype) for _ in cursor.map("components"))
    if not components:
        raise FormatError("an object without components", rule="ztensor.entry.missing", offset=at, tensor=name)
    attributes = _attributes(cursor, fields)
    cursor.pos = end
    return _Object(name, shape, form, components, attributes)


def _attributes(cursor: cbor.Cursor, fields: dict[str, int]) -> int | None:
    """Where the attributes begin, which are a map with text keys."""
    begin = fields.get("attributes")
    if begin is not None:
        cursor.pos = begin
        _fields(cursor, "attributes")
    return begin


def _component(cursor: cbor.Cursor, name: str, object_dtype: str | None) -> _Component:
    at = cursor.base + cursor.pos
    part = cursor.text("role")
    fields = _fields(cursor, "component")
    end = cursor.pos
    _require(fields, ("offset", "length"), name, at)

    def number(key: str) -> int:
        cursor.pos = fields[key]
        return cursor.uint(key)

    def text(key: str) -> str:
        cursor.pos = fields[key]
        return cursor.text(key)

    dtype = text("dtype") if "dtype" in fields else "uint64" if part in _INDICES else object_dtype
    if dtype is None:
        raise FormatError("a component without 'dtype'", rule="ztensor.entry.missing", offset=at, tensor=name)
    found = _Component(
        part,
        dtype,
        number("offset"),
        number("length"),
        number("uncompressed_length") if "uncompressed_length" in fields else None,
        text("encoding") if "encoding" in fields else "raw",
        text("digest") if "digest" in fields else None,
        at,
    )
    if found.offset + found.length >= SIZE_END or (found.decoded or 0) >= SIZE_END:
        raise FormatError("a blob beyond 2**63", rule="ztensor.blob.bounds", offset=at, tensor=name)
    cursor.pos = end
    return found


def _require(fields: dict[str, int], keys: tuple[str, ...], name: str, offset: int) -> None:
    for key in keys:
        if key not in fields:
            raise FormatError(f"'{key}' is missing", rule="ztensor.entry.missing", offset=offset, tensor=name)


def _placed(thing: _Object) -> Object:
    """An object as rows. Elements of which nobody says how many there are stay unknown."""
    dense = thing.format == "dense"
    if dense and [part.part for part in thing.components] != ["data"]:
        raise FormatError(
            "a dense object has one component, data",
            rule="layout.parts",
            offset=thing.components[0].position,
            tensor=thing.name,
        )
    rows = []
    for part in thing.components:
        raw, stated = part.encoding == "raw", part.decoded
        dtype = NAMES_1.get(part.dtype) if raw or dense or stated is not None else None
        nbytes = part.length if raw or stated is None else stated
        if not raw and stated is None and dtype is not None:
            nbytes = dtype.nbytes(math.prod(thing.shape))
        known = part.encoding == "zstd" and dtype is not None
        codec = None if raw else Zstd() if known else Opaque(part.encoding)
        if known and nbytes // EXPANSION > part.length:
            raise FormatError(TOO_SMALL, rule="ztensor.blob.expansion", offset=part.position, tensor=thing.name)
        rows.append(
            Row(
                part.part,
                dtype,
                thing.shape,
                part.offset,
                part.offset + part.length,
                codec,
                nbytes,
                part.digest,
                unknown_dtype=None if dtype is not None else part.dtype,
            )
        )
    if dense:
        _check_dense(thing, rows[0])
        return Object(thing.name, tuple(rows), None, thing.attributes_begin)
    return _arranged(thing, rows)


def _check_dense(thing: _Object, row: Row) -> None:
    if row.dtype is None or isinstance(row.codec, Opaque):
        return
    if row.nbytes != row.dtype.nbytes(math.prod(thing.shape)):
        raise FormatError(
            "the component has not the size that dtype and shape ask for",
            rule="ztensor.blob.size",
            offset=thing.components[0].position,
            tensor=thing.name,
        )


def _arranged(thing: _Object, rows: list[Row]) -> Object:
    sized = all(part.encoding == "raw" or part.decoded is not None for part in thing.components)
    layout = _LAYOUTS.get(thing.format, thing.format) if sized else thing.format
    if layout not in LAYOUTS:
        rows = [structural(row) for row in rows]
    pieces = {row.part: Piece(row.dtype, row.nbytes) for row in rows}
    if len(pieces) < len(rows):
        raise FormatError("two components of one role", rule="ztensor.name.duplicate", tensor=thing.name)
    arranged = arrange(layout, thing.shape, pieces, {}, thing.name, thing.components[0].position)
    shaped = tuple(replace(row, shape=arranged.shapes[row.part]) for row in rows)
    return Object(thing.name, shaped, Layout(layout, arranged.type), thing.attributes_begin)
