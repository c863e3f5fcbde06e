"""Reads the entries of a 0.1 index (§4 of the document) as rows, each a dense tensor; `parts` groups them.

Unknown dtypes and encodings are not errors (§8): such a tensor is listed, and its bytes
can be copied.
"""

from __future__ import annotations

import numpy as np

from tensorglot.containers.ztensor.catalogue import OPAQUE, RAW, ZSTD, Catalogue
from tensorglot.containers.ztensor.constants import NAMES_01
from tensorglot.containers.ztensor.rules import refuse_row
from tensorglot.containers.ztensor.scan import Field, Record, positions, scan
from tensorglot.kernels import cbor_scan as kernel
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import UNKNOWN
from tensorglot.wire.cbor import Cursor

__all__ = ["KNOWN", "read_entries"]

_ENTRY = Record(
    "entry",
    Field("name", "name", required=True),
    Field("offset", "uint", required=True),
    Field("size", "uint", required=True),
    Field("dtype", "word", NAMES_01, required=True),
    Field("layout", "silent", ("dense",)),
    Field("shape", "shape", required=True),
    Field("encoding", "word", ("raw", "zstd"), required=True),
    Field("data_endianness", "word", ("little", "big")),
    Field("checksum", "text"),
    Field("part_of", "mark"),
    named=False,
    text_keys=True,
)
_ENCODINGS = np.full(256, OPAQUE, np.uint8)
_ENCODINGS[1:3] = RAW, ZSTD
_BIG = 2
_DTYPES = np.full(256, UNKNOWN, np.uint8)
_DTYPES[1 : 1 + len(NAMES_01)] = [BY_NAME[name].code for name in NAMES_01]

KNOWN = frozenset(field.key for field in _ENTRY.fields if field.kind not in ("silent", "mark"))
"""Fields of the document, which has no `layout`."""
_WIDE = np.array([dtype.bits > 8 for dtype in TABLE] + [True] * (256 - len(TABLE)))
"""By dtype code, whether elements have a byte order. Elements of unknown type may, so they keep it when copied."""


def read_entries(cursor: Cursor, count: int) -> tuple[Catalogue, list[int]]:
    """Reads `count` entries; returns also the rows with a field `part_of`."""
    found = scan(cursor, count, _ENTRY)
    columns = found.records
    dtypes, encodings = _DTYPES[columns.codes["dtype"]], _ENCODINGS[columns.codes["encoding"]]
    unknown, byte_orders, flags = dtypes == UNKNOWN, columns.codes["data_endianness"], columns.flags
    if np.count_nonzero(unknown):
        encodings[unknown & (encodings == ZSTD)] = OPAQUE
    big = byte_orders == _BIG
    catalogue = Catalogue.of(
        found,
        attributes=positions(np.where(flags & kernel.CUSTOM, columns.places, 0)) if np.count_nonzero(flags) else {},
        dtypes=dtypes,
        begins=columns.numbers["offset"],
        sizes=columns.numbers["size"],
        encodings=encodings,
        nbytes=np.full(count, -1, np.int64),
        checksums=columns.numbers["checksum"],
        big_endian=big & (encodings == RAW) & _WIDE[dtypes] if np.count_nonzero(big) else big,
        unknown_dtypes=found.texts(columns, unknown, "dtype"),
        unknown_encodings=found.texts(columns, encodings == OPAQUE, "encoding"),
    )
    refuse_row(
        catalogue,
        byte_orders == kernel.UNKNOWN,
        "ztensor.entry.endianness",
        "data_endianness must be little or big",
    )
    return catalogue, (flags & kernel.MARKED).nonzero()[0].tolist()
