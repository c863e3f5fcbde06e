"""BSON dumps: documents one after the other, as `mongodump` writes them, also gzipped.

Every vector field is a tensor with a row for each document: int8, float32, or bool for
packed bits. Its rows are scattered over the file, so its payload is encoded and the codec
gathers them. A field whose vectors cannot form a matrix is listed with the reason in place
of a dtype. Other values are skipped.

Only vectors are written: fields sorted by name, as nested documents if a name has dots.
`strict` accepts only files of that form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import prefix_sums
from tensorglot.containers.canonical import check_canonical
from tensorglot.containers.table import Container, Fault, ReadOptions, WriteOptions, unsupported_dtype
from tensorglot.dynd.schema import check_void
from tensorglot.errors import InputError, LimitError, UnsupportedError
from tensorglot.memory import cut
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import UNKNOWN, Index
from tensorglot.model.payload import (
    PIECE_NBYTES,
    Buffer,
    Chunk,
    Codec,
    Encoded,
    Source,
    Undecodable,
    as_bytes,
    read_pieces,
)
from tensorglot.wire.bson import path_bytes, pieces
from tensorglot.wire.bson_fields import Fields, scan
from tensorglot.wire.bson_template import Tree, add_vector, stride, template, weave
from tensorglot.wire.bson_vector import HEAD_NBYTES, KINDS, Row, gather
from tensorglot.wire.gzipped import HEADER_NBYTES, is_gzip, reader

__all__ = ["CONTAINER"]

DTYPES: dict[int, str] = {0x03: "int8", 0x27: "float32", 0x10: "bool"}
_KIND_OF = {DTYPES[kind.code]: kind for kind in KINDS}

_SPARSE = 4
"""Rows that fill less than a quarter of the range they span are read one by one."""


def _width(row: Row) -> int:
    """Returns the decoded size of a row; one byte per bit for packed_bit."""
    return row.count if row.kind.name == "packed_bit" else row.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class _Scattered:
    """The codec of one field: gathers rows at `begins`, each after its two-byte head."""

    row: Row
    begins: NDArray[np.int64]
    inflated: memoryview | None
    """The decompressed documents, if the file is gzip."""
    name: str = "bson"

    @property
    def _bits(self) -> bool:
        return self.row.kind.name == "packed_bit"

    @property
    def width(self) -> int:
        return _width(self.row)

    def decode_into(self, payload: Encoded, offset: int, out: memoryview) -> None:
        if not len(out):
            return
        step = max(1, PIECE_NBYTES // self.width)
        end = offset + len(out)
        for first in range(offset // self.width, -(-end // self.width), step):
            last = min(first + step, -(-end // self.width))
            begin = first * self.width
            whole = begin >= offset and last * self.width <= end and not self._bits
            if whole:  # rows go directly to their places; partial rows and packed bits are decoded apart
                self._rows_into(payload.source, first, last, out[begin - offset : last * self.width - offset])
                continue
            low, high = max(begin, offset), min(last * self.width, end)
            out[low - offset : high - offset] = self._decoded(payload.source, first, last)[low - begin : high - begin]

    def chunks(self, payload: Encoded) -> Iterator[Buffer]:
        step = max(1, PIECE_NBYTES // max(1, self.width)) * self.width
        return read_pieces(payload, max(1, step))

    def _decoded(self, source: Source, first: int, last: int) -> memoryview:
        stored = np.empty((last - first, self.row.nbytes), np.uint8)
        self._rows_into(source, first, last, as_bytes(stored))
        return as_bytes(np.unpackbits(stored, axis=1, count=self.row.count) if self._bits else stored)

    def _rows_into(self, source: Source, first: int, last: int, out: memoryview) -> None:
        """Copies the stored bytes of rows, without their heads."""
        begins = self.begins[first:last]
        memory = source.view(0, source.size) if self.inflated is None else self.inflated
        if memory is not None:
            gather(memory, begins, self.row, out)
            return
        nbytes = self.row.nbytes
        start = 0
        while start < len(begins):
            base = int(begins[start])
            stop = max(start + 1, int(np.searchsorted(begins, base + PIECE_NBYTES - HEAD_NBYTES - nbytes, "right")))
            stretch = int(begins[stop - 1]) + HEAD_NBYTES + nbytes - base
            target = out[start * nbytes : stop * nbytes]
            if stretch > _SPARSE * len(target):
                for i, begin in enumerate(begins[start:stop].tolist()):
                    source.read_into(begin + HEAD_NBYTES, target[i * nbytes : (i + 1) * nbytes])
            else:
                scratch = memoryview(bytearray(stretch))
                source.read_into(base, scratch)
                gather(scratch, begins[start:stop] - base, self.row, target)
            start = stop


@dataclass(frozen=True, slots=True)
class _Refused(Undecodable):
    """The codec of a field that cannot be one matrix."""

    trouble: str
    name: str = "bson"

    def refuse(self, payload: Encoded) -> UnsupportedError:
        return UnsupportedError(self.trouble, rule="bson.field", tensor=payload.tensor, offset=payload.begin)


def read(source: Source, options: ReadOptions) -> Index:
    inflated = bytearray() if is_gzip(source.read_bytes(0, min(source.size, HEADER_NBYTES))) else None
    limits = options.limits
    found = scan(_documents(source, inflated, limits.gzip_ratio), limits)
    longest = max(found.names, key=len, default="")
    if len(longest.encode()) > limits.name_nbytes:
        raise LimitError(
            f"field path longer than Limits.name_nbytes ({limits.name_nbytes})", rule="bson.limit.name", tensor=longest
        )
    index = _index(found, None if inflated is None else memoryview(inflated))
    if options.strict:
        check_canonical(source, write(Archive(index, source), WriteOptions("1.1")), "bson.strict")
    return index


def _documents(source: Source, inflated: bytearray | None, ratio: int) -> Iterator[tuple[int, memoryview]]:
    """Yields the pieces to scan. The pieces of a compressed file are also appended to `inflated`."""
    shared = source.view(0, source.size) if inflated is None else None
    if shared is not None:
        yield 0, shared
        return
    room = min(PIECE_NBYTES, (source.size if inflated is None else 8 * source.size) + 1)
    for start, piece in pieces(reader(source.size, source.read_into, ratio), room):
        if inflated is not None:
            inflated += piece
        yield start, piece


class _Codecs(Mapping[int, Codec]):
    """The codec of each field, created on demand."""

    def __init__(self, found: Fields, inflated: memoryview | None) -> None:
        self._found = found
        self._inflated = inflated

    def __getitem__(self, field: int) -> Codec:
        row = self._found.row_of(field)
        trouble = self._found.troubles.get(field)
        if row is None or trouble is not None:
            return _Refused(trouble or "")
        return _Scattered(row, self._found.begins_of(field), self._inflated)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._found.names)


def _index(found: Fields, inflated: memoryview | None) -> Index:
    valid = [row if isinstance(row, Row) else None for row in found.heads]
    codes = np.array([UNKNOWN if row is None else BY_NAME[DTYPES[row.kind.code]].code for row in valid], np.uint8)
    elements = np.array([0 if row is None else row.count for row in valid], np.int64)[found.head]
    stored = np.array([0 if row is None else HEAD_NBYTES + row.nbytes for row in valid], np.int64)[found.head]
    widths = np.array([0 if row is None else _width(row) for row in valid], np.int64)[found.head]
    troubled = np.zeros(len(found.names), np.bool_)
    troubled[list(found.troubles)] = True
    counts = np.diff(found.offsets)
    dim_offsets = prefix_sums(np.where(troubled, 1, 2))
    dims = np.empty(int(dim_offsets[-1]), np.int64)
    dims[dim_offsets[:-1]] = np.where(troubled, counts, found.documents)
    dims[dim_offsets[1:][~troubled] - 1] = elements[~troubled]
    return Index(
        format="bson@1.1",
        names=found.names,
        dtypes=np.where(troubled, UNKNOWN, codes[found.head]).astype(np.uint8),
        dims=dims,
        dim_offsets=dim_offsets,
        begins=found.begins[found.offsets[:-1]],
        ends=found.begins[found.offsets[1:] - 1] + stored,
        codecs=_Codecs(found, inflated),
        decoded_nbytes=dict(enumerate(np.where(troubled, 0, found.documents * widths).tolist())),
        unknown_dtypes=found.troubles,
    )


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    rows = {name: _row(index, i) for i, name in enumerate(index.names)}
    if not rows:
        return
    count = index.shape(0)[0]
    for i, name in enumerate(index.names):
        if index.shape(i)[0] != count:
            raise UnsupportedError(
                f"all tensors need the same number of rows: found {index.shape(i)[0]}, '{index.names[0]}' has {count}",
                rule="bson.write.rows",
                tensor=name,
            )
    if not any(row.nbytes for row in rows.values()):
        check_void((count, 0), index.names[0])
    tree: Tree = {}
    for name in sorted(rows, key=str.encode):
        add_vector(tree, name, rows[name])
    parts = template(tree)
    step = max(1, PIECE_NBYTES // stride(parts))
    for first, size in cut(count, step):
        yield weave(size, parts, {name: _column(archive, name, first, first + size) for name in rows})


def _row(index: Index, i: int) -> Row:
    """Returns the row that the vectors of a tensor share."""
    dtype, shape, name = index.dtype(i), index.shape(i), index.names[i]
    kind = None if dtype is None else _KIND_OF.get(dtype.name)
    if kind is None:
        raise unsupported_dtype("bson", index, i)
    fault = _shape_fault(shape)
    if fault is not None:
        raise fault.error("bson", name)
    if kind.name == "packed_bit":
        return Row(kind, -shape[1] % 8, (shape[1] + 7) // 8)
    return Row(kind, 0, shape[1] * kind.itemsize)


def find_fault(name: str, shape: tuple[int, ...], dtype: DType | None, version: str) -> Fault | None:
    """Why a tensor cannot be written."""
    try:
        path_bytes(name)
    except InputError as error:
        return Fault("name", error.message)
    return _shape_fault(shape)


def _shape_fault(shape: tuple[int, ...]) -> Fault | None:
    if len(shape) != 2 or shape[0] == 0:
        return Fault("shape", f"BSON needs a matrix with at least one row, found shape {list(shape)}")
    return None


def _column(archive: Archive, name: str, first: int, last: int) -> memoryview:
    values = archive[name][first:last]
    if values.dtype == np.bool_:
        return as_bytes(np.packbits(values, axis=1))
    return as_bytes(np.ascontiguousarray(values, values.dtype.newbyteorder("<")))


CONTAINER = Container(DTYPES, read, write, tensor_fault=find_fault)
