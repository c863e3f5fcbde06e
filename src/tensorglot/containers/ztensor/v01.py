"""Version 0.1, the document: reading.

    file = "ZTEN0001", blobs at multiples of 64, index, u64 size of the index

The index is a CBOR array of maps, one for each tensor (§4), read by the kernel where
it has the common form and by `entries` where it has not. Blobs may stand in any order
and two tensors may share one; no blob touches another, the magic number or the index.
Unknown words are no error (§8): such a tensor is listed, and its bytes can be copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorglot.containers.table import ReadOptions
from tensorglot.containers.ztensor.blobs import Label, Region, check_blobs, refuse_first
from tensorglot.containers.ztensor.codecs import EXPANSION, TOO_SMALL, Zstd
from tensorglot.containers.ztensor.constants import ALIGNMENT_01, MAGIC_01, NAMES_01
from tensorglot.containers.ztensor.entries import KNOWN, SIZE_END, Entry, read_entry
from tensorglot.containers.ztensor.lazy import metadata_at
from tensorglot.containers.ztensor.parts import METADATA, gather_parts, metadata_field, row_of
from tensorglot.containers.ztensor.splice import Object, Row, Scanned, splice
from tensorglot.containers.ztensor.strict import check_01
from tensorglot.errors import FormatError, LimitError, TruncatedError
from tensorglot.kernels import cbor_check, ztensor_index
from tensorglot.limits import Limits
from tensorglot.model.dtypes import BY_NAME, TABLE
from tensorglot.model.index import Index
from tensorglot.model.names import Names
from tensorglot.model.payload import Source
from tensorglot.wire import cbor

__all__ = ["HIDDEN", "index_bytes", "read"]

HIDDEN: Mapping[str, str | None] = {**dict.fromkeys(KNOWN), "layout": "dense"}
"""What is no attribute. To the document `layout` is; to the packages 0.1.0 to 0.1.4 it is required."""

_DTYPES = [name.encode() for name in NAMES_01]
_ENCODINGS = [b"raw", b"zstd"]
_ENDIANS = [b"little", b"big"]
_OUR_CODE = np.array([BY_NAME[name].code for name in NAMES_01], np.uint8)
_ITEMSIZE = np.array([BY_NAME[name].bits // 8 for name in NAMES_01], np.int64)


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    index, begin = index_bytes(source, limits)
    count, first = _count(index, begin, limits)
    columns = ztensor_index.Columns(count, len(index))
    ztensor_index.scan_entries(
        index, first, count, cbor_check.skip, limits.rank, limits.name_nbytes, _DTYPES, _ENCODINGS, _ENDIANS, columns
    )
    entries = {
        row: read_entry(index, int(columns.entries[row]), limits, begin)
        for row in np.flatnonzero(columns.flags == ztensor_index.SLOW_PATH).tolist()
    }
    names = Names(index, columns.name_begins, columns.name_ends)

    def label(row: int) -> tuple[str, int]:
        return entries[row].name if row in entries else names[row], begin + int(columns.entries[row])

    scanned = _scanned(columns, names, label)
    rows = {row: row_of(entry, begin + int(columns.entries[row])) for row, entry in entries.items()}
    _check_places(scanned, rows, Region(ALIGNMENT_01, ALIGNMENT_01, begin, source.size), label)
    odd: dict[int, Object | None] = {
        row: Object(entry.name, (rows[row],), None, int(columns.entries[row]) if entry.custom else None)
        for row, entry in entries.items()
    }
    odd |= gather_parts(index, entries, rows, begin)
    metadata = _metadata(index, columns, scanned, entries, odd)
    found = splice(scanned, odd, Zstd(), format="ztensor@0.1", data=index, metadata=metadata, hidden=HIDDEN)
    twice = _twice(names, odd, found.names, entries)
    if twice is not None:
        raise FormatError("two tensors of one name", rule="ztensor.name.duplicate", offset=begin, tensor=twice)
    if options.strict:
        check_01(source, found, index, begin)
    return found


def index_bytes(source: Source, limits: Limits) -> tuple[bytes, int]:
    """The bytes of the index, and where they stand."""
    if source.size < len(MAGIC_01) + 8:
        raise TruncatedError("too short for a magic number and a size", rule="ztensor.size", offset=0)
    nbytes = int.from_bytes(source.read_bytes(source.size - 8, 8), "little")
    room = source.size - len(MAGIC_01) - 8
    if nbytes > room or (nbytes == 0 and room):
        raise TruncatedError(
            f"an index of {nbytes} bytes in a file of {source.size}", rule="ztensor.index.size", offset=source.size - 8
        )
    if nbytes > limits.header_nbytes:
        raise LimitError(
            f"an index of {nbytes} bytes is beyond Limits.header_nbytes",
            rule="ztensor.limit.index",
            offset=source.size - 8,
        )
    begin = source.size - 8 - nbytes
    return source.read_bytes(begin, nbytes) or b"\x80", begin


def _count(index: bytes, begin: int, limits: Limits) -> tuple[int, int]:
    """How many entries a checked index has, and where the first one begins."""
    profile = cbor.with_depth(cbor.LENIENT, limits.cbor_depth)
    cbor.check(index, profile, base=begin)
    cursor = cbor.Cursor(index, base=begin, rule="ztensor.index.root")
    count = cursor.count("index")
    if count > limits.tensors_or():
        raise LimitError(
            f"{count} tensors, more than Limits.tensors allows", rule="ztensor.limit.tensors", offset=begin
        )
    return count, cursor.pos


def _scanned(columns: ztensor_index.Columns, names: Names, label: Label) -> Scanned:
    """The columns of the kernel in our terms, the size of every blob checked."""
    plain = columns.flags != ztensor_index.SLOW_PATH
    itemsizes = _ITEMSIZE[columns.dtypes]
    wide = plain & (columns.counts > (SIZE_END - 1) // itemsizes)
    refuse_first(wide, label, "ztensor.shape.product", "more bytes than 2**63")
    nbytes = columns.counts * itemsizes
    raw = columns.encodings == 0
    refuse_first(
        plain & raw & (columns.sizes != nbytes),
        label,
        "ztensor.blob.size",
        "the blob has not the size that dtype and shape ask for",
    )
    refuse_first(plain & ~raw & (nbytes // EXPANSION > columns.sizes), label, "ztensor.blob.expansion", TOO_SMALL)
    ends = columns.offsets + np.minimum(columns.sizes, SIZE_END - 1 - columns.offsets)
    customs = np.flatnonzero(columns.flags == ztensor_index.CUSTOM).tolist()
    return Scanned(
        names=names,
        dtypes=_OUR_CODE[columns.dtypes],
        dims=columns.dims[: columns.dim_offsets[-1]].copy(),
        dim_offsets=columns.dim_offsets,
        begins=columns.offsets,
        ends=ends,
        encoded=~raw,
        nbytes=nbytes,
        big_endian=(columns.endians == 2) & raw & (itemsizes > 1),
        checksum_begins=columns.checksum_begins,
        checksum_sizes=columns.checksum_sizes,
        attributes={row: int(columns.entries[row]) for row in customs},
    )


def _check_places(scanned: Scanned, rows: Mapping[int, Row], region: Region, label: Label) -> None:
    begins, ends = scanned.begins.copy(), scanned.ends.copy()
    for position, row in rows.items():
        begins[position], ends[position] = row.begin, row.end
    check_blobs(begins, ends, region, label)


def _metadata(
    index: bytes,
    columns: ztensor_index.Columns,
    scanned: Scanned,
    entries: Mapping[int, Entry],
    odd: dict[int, Object | None],
) -> Mapping[str, Any] | None:
    """What the entry for metadata says: an empty vector of bytes by that name. It is no tensor."""
    rows = [row for row, entry in entries.items() if _is_metadata(entry.name, entry.dtype, entry.shape, entry.encoding)]
    for row in scanned.attributes:
        if scanned.nbytes[row] == 0:
            dims = scanned.dims[scanned.dim_offsets[row] : scanned.dim_offsets[row + 1]].tolist()
            encoding = "zstd" if scanned.encoded[row] else "raw"
            if _is_metadata(scanned.names[row], TABLE[scanned.dtypes[row]].name, tuple(dims), encoding):
                rows.append(row)
    for row in rows:
        begin = metadata_field(index, int(columns.entries[row]))
        if begin is not None:
            odd[row] = None
            return metadata_at(index, begin)
    return None


def _is_metadata(name: str, dtype: str, shape: tuple[int, ...], encoding: str) -> bool:
    return (name, dtype, shape, encoding) == (METADATA, "uint8", (0,), "raw")


def _twice(
    names: Names, odd: Mapping[int, Object | None], tensors: Sequence[str], entries: Mapping[int, Entry]
) -> str | None:
    """A name that two entries have, or two tensors."""
    if odd:
        listed = list(names)
        for row, entry in entries.items():
            listed[row] = entry.name
        found = _duplicate(listed)
        return found if found is not None else _duplicate(tensors)
    first = names.first_duplicate()
    return None if first is None else names[first]


def _duplicate(names: Sequence[str]) -> str | None:
    """A name that stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
