"""Versions 1.0, 1.1 and 1.2: reading.

    file = "ZTEN1000", blobs at multiples of 64, manifest, u64 size of the manifest [, "ZTEN1000"]

1.0 ends with the size; later versions repeat the magic number after it. The manifest is a
CBOR map of named objects, each with components. In 1.0 the objects are called tensors, and
each has one dtype, by its long name; later, each component has a dtype, by its short name.
Digests cover the stored bytes.
"""

from __future__ import annotations

import numpy as np

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.ztensor import rules
from tensorglot.containers.ztensor.catalogue import OPAQUE, RAW, ZSTD, Catalogue
from tensorglot.containers.ztensor.codecs import Zstd
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, MAGIC_1, NAMES_1
from tensorglot.containers.ztensor.lazy import metadata_at
from tensorglot.containers.ztensor.scan import Field, Record, Scanned, pass_attributes, positions, scan
from tensorglot.errors import FormatError, escape
from tensorglot.limits import Limits
from tensorglot.model.index import UNKNOWN, Index
from tensorglot.model.layouts import COO, CSR
from tensorglot.model.payload import Source
from tensorglot.wire import cbor

__all__ = ["read"]

_DTYPES = tuple(NAMES_1)
_OBJECT = Record(
    "object",
    Field("name", "name"),
    Field("shape", "shape", required=True),
    Field("format", "word", ("dense", "sparse_csr", "sparse_coo"), required=True),
    Field("dtype", "word", _DTYPES),
    Field("components", "parts", required=True),
    Field("attributes", "attributes"),
    named=True,
    text_keys=True,
)
_INDICES = ("indices", "indptr", "coords")
"""Components that are uint64 if they have no dtype, as in 1.0."""
_COMPONENT = Record(
    "component",
    Field("role", "word", ("data", "values", *_INDICES)),
    Field("dtype", "word", _DTYPES),
    Field("offset", "uint", required=True),
    Field("length", "uint", required=True),
    Field("uncompressed_length", "uint", absent=-1),
    Field("encoding", "word", ("raw", "zstd")),
    Field("digest", "text"),
    named=True,
    text_keys=True,
)
_DENSE, _DATA = 1, 1
_LAYOUTS = {"sparse_csr": CSR, "sparse_coo": COO}
_ENCODINGS = np.full(256, OPAQUE, np.uint8)
_ENCODINGS[:3] = RAW, RAW, ZSTD
_CODES = np.full(256, UNKNOWN, np.uint8)
_CODES[1 : 1 + len(_DTYPES)] = [dtype.code for dtype in NAMES_1.values()]


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    footer = source.size >= 24 and source.read_bytes(source.size - 8, 8) == MAGIC_1
    data, begin = rules.read_index(source, source.size - (16 if footer else 8), limits)
    cbor.check(data, cbor.with_depth(cbor.LENIENT, limits.cbor_depth), base=begin)
    cursor = cbor.Cursor(data, base=begin, rule="ztensor.index.root")
    fields = cursor.fields("manifest")
    version = _version(cursor, fields, footer)
    attributes = fields.get("attributes")
    if attributes is not None:
        cursor.pos = attributes
        pass_attributes(cursor)
    catalogue = _catalogue(_scan(cursor, fields, limits))
    rules.check_limits(catalogue, limits)
    rules.check_sizes(catalogue)
    rules.check_places(catalogue, rules.Region(ALIGNMENT_01, ALIGNMENT_01, begin, source.size))
    metadata = None if attributes is None else metadata_at(data, attributes)
    return catalogue.to_index(f"ztensor@{version}", Zstd(), metadata)


def _version(cursor: cbor.Cursor, fields: dict[str, int], footer: bool) -> str:
    guess = "1.2" if footer else "1.0"
    if "version" not in fields:
        return guess
    cursor.pos = fields["version"]
    written = ".".join(cursor.text("version").split(".")[:2])
    if not written.startswith("1."):
        raise FormatError(
            f"version {escape(written)} is not 1.x", rule="ztensor.version", offset=cursor.base + fields["version"]
        )
    return written if written in ("1.0", "1.1", "1.2") else guess


def _scan(cursor: cbor.Cursor, fields: dict[str, int], limits: Limits) -> Scanned:
    begin = fields.get("objects", fields.get("tensors"))
    if begin is None:
        raise FormatError("the manifest has no objects", rule="ztensor.index.root", offset=cursor.base)
    cursor.pos, cursor.rule = begin, "ztensor.entry.kind"
    count = cursor.count("objects", cbor.MAP)
    limits.check_tensors(count, rule=rules.COUNT_RULE, offset=cursor.base)
    return scan(cursor, count, _OBJECT, _COMPONENT)


def _catalogue(found: Scanned) -> Catalogue:
    objects, parts = found.records, found.parts
    first_rows = np.append(0, objects.numbers["components"])
    owners = np.repeat(np.arange(objects.rows), np.diff(first_rows))
    dense = (objects.codes["format"] == _DENSE)[owners]
    indices = np.isin(parts.codes["role"], [3, 4, 5])
    own, inherited = parts.codes["dtype"], objects.codes["dtype"][owners]
    words = np.where(own > 0, own, np.where(indices, 1 + _DTYPES.index("uint64"), inherited))
    encodings, stated = _ENCODINGS[parts.codes["encoding"]], parts.numbers["uncompressed_length"]
    # The number of encoded elements is known only from a dense shape or a stated length; without them the dtype is
    # treated as unknown, so that the bytes are only copied.
    dtypes = np.where((encodings == RAW) | dense | (stated >= 0), _CODES[words], UNKNOWN).astype(np.uint8)
    encodings[(encodings == ZSTD) & (dtypes == UNKNOWN)] = OPAQUE
    catalogue = Catalogue.of(
        found,
        first_rows=first_rows,
        attributes=positions(objects.numbers["attributes"]),
        dtypes=dtypes,
        begins=parts.numbers["offset"],
        sizes=parts.numbers["length"],
        encodings=encodings,
        nbytes=stated,
        checksums=parts.numbers["digest"],
        parts=found.names(parts, parts.codes["role"] != _DATA),
        unknown_encodings=found.texts(parts, encodings == OPAQUE, "encoding"),
    )
    rules.refuse_row(catalogue, words == 0, "ztensor.entry.missing", "'dtype' is missing")
    unknown = dtypes == UNKNOWN
    inherits = unknown & (own == 0)
    heirs = np.zeros(objects.rows, np.bool_)
    heirs[owners[inherits & ~indices]] = True
    inherited_names = found.texts(objects, heirs, "dtype")
    own_names = found.texts(parts, unknown & ~inherits, "dtype")
    for row in np.flatnonzero(inherits).tolist():
        own_names[row] = "uint64" if indices[row] else inherited_names[int(owners[row])]
    catalogue.unknown_dtypes |= own_names
    sized = (encodings == RAW) | (stated >= 0)
    for tensor, layout in found.texts(objects, objects.codes["format"] != _DENSE, "format").items():
        whole = all(sized[row] for row in catalogue.rows(tensor))
        catalogue.layouts[tensor] = _LAYOUTS.get(layout, layout) if whole else layout
    rules.check_dense(catalogue)
    return catalogue
