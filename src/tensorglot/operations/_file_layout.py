"""The layout of a file before any tensor is read: the bytes between the rows, and the place of each row.

For formats that store rows as they are (`Container.raw_rows`, `Container.rows_first`). Their
writer runs over an archive whose rows are places; workers fill these in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import Format, RowsFirst, WriteOptions
from tensorglot.io.local import BufferSource
from tensorglot.model.archive import Archive
from tensorglot.model.index import Index
from tensorglot.model.payload import Chunk, as_bytes, buffers

__all__ = ["RowPlace", "file_layout", "rows_layout"]


class RowPlace(bytes):
    """Stands for the bytes of a row among the chunks of a writer, which passes it on like any other bytes."""

    row: int
    nbytes: int

    @classmethod
    def of(cls, row: int, nbytes: int) -> RowPlace:
        place = cls()
        place.row, place.nbytes = row, nbytes
        return place


class _Places(Archive):
    """An archive whose rows are places, for a writer that does not look at them."""

    def chunks(self, rows: NDArray[np.int64], pads: Sequence[bytes] | None = None) -> Iterator[Chunk]:
        for i, row in enumerate(rows.tolist()):
            if pads is not None:
                yield pads[i]
            yield RowPlace.of(row, int(self.index.nbytes[row]))


def file_layout(archive: Archive, spec: Format, settled: WriteOptions) -> Iterator[RowPlace | memoryview]:
    """The file from its first byte to its last."""
    return _laid_out(spec.write(_Places(archive.index, archive.source, limits=archive.limits), settled))


def rows_layout(index: Index, spec: Format, settled: WriteOptions) -> RowsFirst | None:
    """The file of a format whose index follows the rows; None if the places depend on values (compression)."""
    if spec.container.rows_first is None:
        return None
    found = spec.container.rows_first(_Places(index, BufferSource(b"")), settled)
    return None if found is None else found._replace(chunks=_laid_out(found.chunks))


def _laid_out(chunks: Iterator[Chunk]) -> Iterator[RowPlace | memoryview]:
    for chunk in chunks:
        if isinstance(chunk, RowPlace):
            yield chunk
        else:
            yield from map(as_bytes, buffers([chunk]))
