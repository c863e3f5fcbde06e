"""An index that is made one tensor at a time, for formats that say little of each.

Rows are collected in lists and become columns at the end. Limits are checked as they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tensorglot.errors import LimitError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import DType
from tensorglot.model.index import UNKNOWN, Index, Layout, Note, shape_columns
from tensorglot.model.payload import Codec

__all__ = ["Rows"]


class Rows:
    """Tensors of one part each, as they come in."""

    def __init__(self, limits: Limits, rule: str) -> None:
        self._limits = limits
        self._rule = rule
        self.names: list[str] = []
        self._dtypes: list[int] = []
        self._shapes: list[tuple[int, ...]] = []
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._checksums: list[str | None] = []
        self._codecs: dict[int, Codec] = {}
        self._decoded: dict[int, int] = {}
        self._big_endian: set[int] = set()
        self._unknown: dict[int, str] = {}
        self._layouts: dict[int, Layout] = {}

    def add(
        self,
        name: str,
        dtype: DType | str,
        shape: tuple[int, ...],
        begin: int,
        end: int,
        *,
        codec: Codec | None = None,
        nbytes: int = 0,
        big_endian: bool = False,
        checksum: str | None = None,
        layout: Layout | None = None,
    ) -> None:
        """One tensor. A dtype that is text is one that we do not know; `nbytes` is what the codec decodes to."""
        row = len(self.names)
        if row >= self._limits.tensors_or():
            raise LimitError(
                "more tensors than Limits.tensors allows", rule=f"{self._rule}.limit.tensors", offset=begin
            )
        if len(name.encode()) > self._limits.name_nbytes:
            raise LimitError(
                "a name longer than Limits.name_nbytes allows", rule=f"{self._rule}.limit.name", offset=begin
            )
        self.names.append(name)
        self._dtypes.append(UNKNOWN if isinstance(dtype, str) else dtype.code)
        self._shapes.append(shape)
        self._begins.append(begin)
        self._ends.append(end)
        self._checksums.append(checksum)
        if isinstance(dtype, str):
            self._unknown[row] = dtype
        if codec is not None:
            self._codecs[row] = codec
            self._decoded[row] = nbytes
        if big_endian:
            self._big_endian.add(row)
        if layout is not None:
            self._layouts[row] = layout

    def index(self, format: str, metadata: Mapping[str, Any] | None = None, notes: Sequence[Note] = ()) -> Index:
        dims, dim_offsets = shape_columns(self._shapes)
        return Index(
            format=format,
            names=self.names,
            dtypes=np.array(self._dtypes, np.uint8),
            dims=dims,
            dim_offsets=dim_offsets,
            begins=np.array(self._begins, np.int64),
            ends=np.array(self._ends, np.int64),
            metadata=metadata,
            layouts=self._layouts,
            checksums=self._checksums if any(self._checksums) else None,
            checksums_decoded=True,
            codecs=self._codecs,
            decoded_nbytes=self._decoded,
            big_endian=frozenset(self._big_endian),
            unknown_dtypes=self._unknown,
            notes=notes,
        )
