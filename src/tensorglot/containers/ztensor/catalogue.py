"""The tensors of an index of any version, with our dtypes and layouts; each row of a tensor is a blob.

A reader fills the catalogue from the columns of a scan, `rules` checks it once, and then it
becomes the index of an archive. Only tensors that are not dense, and rows of unknown dtypes
or encodings, are handled one by one in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import complement, prefix_sums
from tensorglot.containers.ztensor.codecs import Opaque
from tensorglot.containers.ztensor.constants import IN_PART
from tensorglot.containers.ztensor.lazy import Attributes, texts_at
from tensorglot.containers.ztensor.scan import NOTHING, Scanned
from tensorglot.errors import LimitError
from tensorglot.limits import DEFAULT
from tensorglot.model.dtypes import BY_NAME, TABLE, DType
from tensorglot.model.index import UNKNOWN, AnyLayout, Index, RowLayout, take_shapes
from tensorglot.model.layouts import LAYOUTS, MX, QUANT_GROUP, Piece, arrange
from tensorglot.model.names import Names
from tensorglot.model.nonzero_bools import AnyNonZero
from tensorglot.model.payload import Codec, Source
from tensorglot.model.tensor import NESTED, TYPE_ATTRIBUTE
from tensorglot.model.types.rows import Rows, read_rows
from tensorglot.wire.cbor import Cursor

__all__ = ["OPAQUE", "RAW", "ZSTD", "Catalogue", "splice_dims"]

RAW, ZSTD, OPAQUE = range(3)
"""How a blob is encoded. OPAQUE: in a way that we cannot decode, so that it can only be copied."""

KEPT_NBYTES = 1 << 20
"""Of a larger index, what is needed later is copied: CBOR and columns of its scan take four times as much memory."""
ATTRIBUTES_NBYTES = 64 << 10
"""Limit for quantized and nested tensors, whose attributes are decoded when the file is opened."""


@dataclass(slots=True, kw_only=True)
class Catalogue:
    """Tensors, dense unless they are in `layouts`, and their rows."""

    data: bytes
    """The CBOR of the index. Names are spans of it; positions of other texts and maps are positions in it."""
    base: int
    """Offset of the index in the file."""

    name_begins: NDArray[np.int64]
    name_ends: NDArray[np.int64]
    places: NDArray[np.int64]
    """Position of the description of each tensor."""
    counts: NDArray[np.int64]
    """Number of elements; -1 if the product of the dimensions other than 0 is 2**63 or more."""
    dims: NDArray[np.int64]
    dim_offsets: NDArray[np.int64]
    first_rows: NDArray[np.int64] | None = None
    """Tensor i has the rows first_rows[i] to first_rows[i + 1]. None: tensor i has row i."""
    layouts: dict[int, str] = field(default_factory=dict)
    attributes: dict[int, int] = field(default_factory=dict)
    """Position of the attributes by tensor."""

    row_places: NDArray[np.int64]
    dtypes: NDArray[np.uint8]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """Sizes as stored."""
    encodings: NDArray[np.uint8]
    nbytes: NDArray[np.int64]
    """Decoded sizes, -1 if the index does not have them."""
    checksums: NDArray[np.int64]
    """Positions of texts, 0 if absent."""
    big_endian: NDArray[np.bool_] | None = None
    parts: dict[int, str] = field(default_factory=dict)
    """Names of parts other than `data`, by row."""
    unknown_dtypes: dict[int, str] = field(default_factory=dict)
    unknown_encodings: dict[int, str] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Scanned, **columns: Any) -> Catalogue:
        """The tensors of a scan; `columns` are the other fields."""
        tensors, rows = found.records, found.records if found.parts.record is NOTHING else found.parts
        name_begins, name_ends = tensors.numbers["name"]
        counts, dim_ends = tensors.numbers["shape"]
        dim_offsets = np.zeros(tensors.rows + 1, np.int64)
        dim_offsets[1:] = dim_ends
        return cls(
            data=found.data,
            base=found.base,
            name_begins=name_begins,
            name_ends=name_ends,
            places=tensors.places,
            counts=counts,
            dims=found.dims,
            dim_offsets=dim_offsets,
            row_places=rows.places,
            **columns,
        )

    @property
    def names(self) -> Names:
        return Names(self.data, self.name_begins, self.name_ends)

    def name(self, tensor: int) -> str:
        return self.data[int(self.name_begins[tensor]) : int(self.name_ends[tensor])].decode()

    def tensor_of(self, row: int) -> int:
        return row if self.first_rows is None else int(np.searchsorted(self.first_rows, row, side="right")) - 1

    def rows(self, tensor: int) -> range:
        """The rows of a tensor, where a tensor may have several."""
        assert self.first_rows is not None  # noqa: S101
        return range(*self.first_rows[tensor : tensor + 2].tolist())

    def shape(self, tensor: int) -> tuple[int, ...]:
        return tuple(self.dims[slice(*self.dim_offsets[tensor : tensor + 2].tolist())].tolist())

    def dtype(self, row: int) -> DType | None:
        code = int(self.dtypes[row])
        return None if code == UNKNOWN else TABLE[code]

    def to_index(
        self,
        format: str,
        codec: Codec,
        metadata: Mapping[str, Any] | None,
        *,
        checksums_decoded: bool = False,
        hidden: Mapping[str, str | None] | None = None,
        any_nonzero: bool = False,
    ) -> Index:
        """The index of an archive.

        `codec` decodes ZSTD blobs, `hidden` are fields that are not attributes, and with
        `any_nonzero` every bool byte other than 0 is true.
        """
        layouts, shapes = self._arrange()
        dims, dim_offsets, part_names = self.dims, self.dim_offsets, None
        if layouts:
            assert self.first_rows is not None  # noqa: S101
            taken = np.full(len(self.dtypes), -1, np.int64)
            dense = complement(list(layouts), len(self.places))
            taken[self.first_rows[dense]] = dense
            dims, dim_offsets = splice_dims(self.dims, self.dim_offsets, taken, shapes)
            part_names = [self.parts.get(row, "data") for row in range(len(self.dtypes))]
        codecs = dict.fromkeys((self.encodings == ZSTD).nonzero()[0].tolist(), codec)
        if any_nonzero:
            bools = (self.dtypes == BY_NAME["bool"].code) & (self.encodings != OPAQUE)
            codecs |= {row: AnyNonZero(codecs.get(row)) for row in bools.nonzero()[0].tolist()}
        codecs |= {row: Opaque(name) for row, name in self.unknown_encodings.items()}
        large = len(self.data) > KEPT_NBYTES
        return Index(
            format=format,
            names=self.names.compact() if large else self.names,
            dtypes=self.dtypes,
            dims=dims,
            dim_offsets=dim_offsets,
            begins=self.begins.copy() if large else self.begins,
            ends=self.begins + self.sizes,
            metadata=metadata,
            first_rows=self.first_rows if layouts else None,
            part_names=part_names,
            layouts=layouts,
            attributes=Attributes(self.data, self.attributes, self.places, hidden or {}) if self.attributes else {},
            checksums=texts_at(self.data, self.checksums, copy=large) if np.count_nonzero(self.checksums) else None,
            checksums_decoded=np.ones(len(self.dtypes), np.bool_) if checksums_decoded else None,
            codecs=codecs,
            decoded_nbytes={row: int(self.nbytes[row]) for row in codecs},
            big_endian=frozenset() if self.big_endian is None else frozenset(self.big_endian.nonzero()[0].tolist()),
            unknown_dtypes=self.unknown_dtypes,
            sources=self.sources,
        )

    def _arrange(self) -> tuple[dict[int, AnyLayout], dict[int, tuple[int, ...]]]:
        """Returns the layouts of tensors that are not dense, and the shapes of their rows."""
        layouts: dict[int, AnyLayout] = {}
        shapes: dict[int, tuple[int, ...]] = {}
        if self.first_rows is None:
            return layouts, shapes
        tensors = np.fromiter(self.layouts, np.int64, len(self.layouts))
        names = [self.name(tensor) for tensor in self.layouts]
        attributes = {
            tensor: self._layout_attributes(tensor, layout, name)
            for (tensor, layout), name in zip(self.layouts.items(), names, strict=True)
        }
        types = self._nested_types(attributes)
        dims, dim_ends = (column.tolist() for column in take_shapes(self.dims, self.dim_offsets, tensors))
        first_rows, places = (column[tensors].tolist() for column in (self.first_rows, self.places))
        ends = self.first_rows[tensors + 1].tolist()
        for i, (tensor, layout) in enumerate(self.layouts.items()):
            pieces = self._pieces(first_rows[i], ends[i], in_bytes=layout not in LAYOUTS)
            shape = tuple(dims[dim_ends[i] : dim_ends[i + 1]])
            offset = self.base + places[i]
            arranged = arrange(layout, shape, pieces, attributes[tensor], names[i], offset, types.get(tensor))
            layouts[tensor] = arranged.layout
            for row, part in enumerate(pieces, first_rows[i]):
                shapes[row] = arranged.shapes[part]
        return layouts, shapes

    def _pieces(self, first: int, end: int, *, in_bytes: bool) -> dict[str, Piece]:
        """The parts in some rows; with `in_bytes`, those that are not a whole number of elements are bytes."""
        pieces = {}
        columns = self.dtypes[first:end].tolist(), self.nbytes[first:end].tolist()
        for row, (code, nbytes) in enumerate(zip(*columns, strict=True), first):
            dtype = None if code == UNKNOWN else TABLE[code]
            if in_bytes and dtype is not None and nbytes * 8 % dtype.bits:
                self.dtypes[row] = UNKNOWN
                self.unknown_dtypes[row] = f"{dtype.name}{IN_PART}"
                dtype = None
            pieces[self.parts.get(row, "data")] = Piece(dtype, nbytes)
        return pieces

    def _nested_types(self, attributes: Mapping[int, Mapping[str, Any]]) -> dict[int, RowLayout]:
        """The types of nested tensors, read at once, up to the first that is not canonical: `arrange` refuses that."""
        texts = {
            tensor: text
            for tensor, layout in self.layouts.items()
            if layout == NESTED and isinstance(text := attributes[tensor].get(TYPE_ATTRIBUTE), str)
        }
        if not texts or max(map(len, texts.values())) > DEFAULT.type_nbytes:
            return {}
        found = read_rows(list(texts.values()), DEFAULT)
        rows, count = (found, len(texts)) if isinstance(found, Rows) else (found.rows, found.text)
        roots = islice(zip(texts, rows.roots.tolist(), strict=False), count)
        return {tensor: RowLayout(NESTED, rows, root) for tensor, root in roots}

    def _layout_attributes(self, tensor: int, layout: str, name: str) -> dict[str, Any]:
        """Decodes the attributes if they describe the parts of the layout."""
        begin = self.attributes.get(tensor)
        if begin is None or layout not in (QUANT_GROUP, MX, NESTED):
            return {}
        if Cursor(self.data, pos=begin).skip()[1] - begin > ATTRIBUTES_NBYTES:
            message = f"attributes of a {layout} tensor exceed {ATTRIBUTES_NBYTES} bytes"
            raise LimitError(message, rule="ztensor.limit.attributes", tensor=name, offset=self.base + begin)
        attributes: dict[str, Any] = Cursor(self.data, pos=begin).value()
        return attributes


def splice_dims(
    dims: NDArray[np.int64],
    dim_offsets: NDArray[np.int64],
    taken: NDArray[np.int64],
    given: Mapping[int, tuple[int, ...]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Columns of shapes: position i has the old shape at `taken[i]`, or where that is -1 the new one in `given`."""
    old = taken >= 0
    ranks = np.zeros(len(taken), np.int64)
    ranks[old] = np.diff(dim_offsets)[taken[old]]
    new = sorted(given)
    ranks[new] = [len(given[position]) for position in new]
    offsets, from_old = prefix_sums(ranks), np.repeat(old, ranks)
    out = np.zeros(int(offsets[-1]), np.int64)
    out[from_old] = take_shapes(dims, dim_offsets, taken[old])[0]
    out[~from_old] = list(chain.from_iterable(given[position] for position in new))
    return out, offsets
