"""Builds an index one tensor at a time, for readers of simple formats and for values in memory.

Rows are collected in a list and become columns at the end. Limits are checked when a
tensor is added. An array that a file stores as NumPy does in memory (Fortran order, one
byte for each sub-byte element) becomes an encoded row: see `add_array`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import LimitError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import DType
from tensorglot.model.index import UNKNOWN, AnyLayout, Index, Layout, Note, shape_columns
from tensorglot.model.payload import Codec, Payload, Source
from tensorglot.model.strided import Strided
from tensorglot.model.subbyte import UnpackedSubByte
from tensorglot.model.tensor import Part, Tensor

__all__ = ["IndexBuilder", "Row"]


@dataclass(slots=True, kw_only=True)  # not frozen: creating one would take three times as long
class Row:
    """One part of a tensor, at a span of the source or with a payload."""

    dtype: DType | str
    """A str is the name of an unknown element type."""
    shape: tuple[int, ...]
    begin: int = 0
    end: int = 0
    part: str = "data"
    payload: Payload | NDArray[Any] | None = None
    codec: Codec | None = None
    nbytes: int = 0
    """Decoded bytes, if there is a codec."""
    big_endian: bool = False
    checksum: str | None = None
    checksum_decoded: bool = True
    source: Source | None = None
    """The file of the row, if that is not the index's."""

    @classmethod
    def of(cls, name: str, part: Part) -> Row:
        """The row of a part, wherever its payload is."""
        return cls(
            dtype=part.dtype or part.unknown_dtype or "",
            shape=part.shape,
            end=part.payload.nbytes,
            part=name,
            payload=part.payload,
            big_endian=part.big_endian,
            checksum=part.checksum,
            checksum_decoded=part.checksum_decoded,
        )


class IndexBuilder:
    """Collects tensors in the order that they are added."""

    def __init__(self, limits: Limits, rule: str) -> None:
        """`rule` is the prefix of rule names: the name of the format."""
        self._limits = limits
        self._most = limits.tensors_or()
        self._rule = rule
        self.names: list[str] = []
        self._rows: list[Row] = []
        self._first_rows: list[int] = [0]
        self._layouts: dict[int, AnyLayout] = {}
        self._attributes: dict[int, Mapping[str, Any]] = {}

    def add(
        self,
        name: str,
        *rows: Row,
        layout: AnyLayout | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a tensor of one row or several."""
        position, offset = len(self.names), rows[0].begin
        if position >= self._most:
            raise LimitError(
                f"more than {self._most} tensors (Limits.tensors)",
                rule=f"{self._rule}.limit.tensors",
                offset=offset,
            )
        most = self._limits.name_nbytes
        if 4 * len(name) > most and len(name.encode()) > most:
            raise LimitError(
                f"a tensor name has more than {most} bytes (Limits.name_nbytes)",
                rule=f"{self._rule}.limit.name",
                offset=offset,
            )
        self.names.append(name)
        self._rows += rows
        self._first_rows.append(len(self._rows))
        if layout is not None:
            self._layouts[position] = layout
        if attributes:
            self._attributes[position] = attributes

    def add_tensor(self, tensor: Tensor) -> None:
        """Adds a tensor in memory, or of another archive."""
        rows = (Row.of(name, part) for name, part in tensor.parts.items())
        layout = None if tensor.declared is None else Layout(tensor.layout, tensor.declared)
        self.add(tensor.name, *rows, layout=layout, attributes=tensor.attributes)

    def add_array(
        self,
        name: str,
        dtype: DType | str,
        itemsize: int,
        shape: tuple[int, ...],
        span: tuple[int, int],
        *,
        fortran_order: bool,
        big_endian: bool,
        codec: Codec | None = None,
        checksum: str | None = None,
    ) -> None:
        """Adds an array that is stored as NumPy has it in memory; `checksum` covers the bytes that `codec` decodes."""
        count = math.prod(shape)
        row = Row(
            dtype=dtype,
            shape=shape,
            begin=span[0],
            end=span[1],
            codec=codec,
            nbytes=count * itemsize,
            checksum=checksum,
        )
        if isinstance(dtype, DType):  # elements of unknown type are kept as stored, whatever their order
            if fortran_order:
                strides = tuple(accumulate(shape[:-1], operator.mul, initial=itemsize)) if shape else ()
                strided = Strided(shape, strides, itemsize, codec)
                codec = codec if strided.in_order else strided
            if dtype.packed:
                codec = UnpackedSubByte(dtype, count, codec)
            row = replace(row, codec=codec, nbytes=dtype.nbytes(count), big_endian=big_endian)
        self.add(name, row)

    def index(self, format: str, metadata: Mapping[str, Any] | None = None, notes: Sequence[Note] = ()) -> Index:
        """The tensors so far, as columns."""
        rows = self._rows
        dims, dim_offsets = shape_columns([row.shape for row in rows])
        several = len(rows) != len(self.names) or bool(self._layouts)
        checked = any(row.checksum is not None for row in rows)
        encoded = {at: row.codec for at, row in enumerate(rows) if row.codec is not None}
        return Index(
            format=format,
            names=self.names,
            dtypes=np.array([UNKNOWN if isinstance(row.dtype, str) else row.dtype.code for row in rows], np.uint8),
            dims=dims,
            dim_offsets=dim_offsets,
            begins=np.array([row.begin for row in rows], np.int64),
            ends=np.array([row.end for row in rows], np.int64),
            metadata=metadata,
            payloads=[row.payload for row in rows] if any(row.payload is not None for row in rows) else None,
            first_rows=np.array(self._first_rows, np.int64) if several else None,
            part_names=[row.part for row in rows] if several else None,
            layouts=self._layouts,
            attributes=self._attributes,
            checksums=[row.checksum for row in rows] if checked else None,
            checksums_decoded=np.array([row.checksum_decoded for row in rows], np.bool_) if checked else None,
            codecs=encoded,
            decoded_nbytes={at: rows[at].nbytes for at in encoded},
            big_endian=frozenset(at for at, row in enumerate(rows) if row.big_endian),
            unknown_dtypes={at: row.dtype for at, row in enumerate(rows) if isinstance(row.dtype, str)},
            sources={at: row.source for at, row in enumerate(rows) if row.source is not None},
            notes=notes,
        )
