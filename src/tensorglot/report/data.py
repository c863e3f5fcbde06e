"""The numbers of a page: the index of a file as columns, and a card for each tensor.

The columns are small, in the page from the start, and enough for summary, map, tree and
list. A card has the statistics of one tensor, read in one pass and bounded memory; a
report has all of them, a viewer computes each when it is opened. Both are plain values
for JSON. Knows nothing of HTML.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import dtype_of
from tensorglot.model.index import Index
from tensorglot.model.payload import Scattered, Source
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._dequantize import values_by_part
from tensorglot.operations._distribution import Distribution, Tally, as_float64
from tensorglot.operations._jsonable import jsonable
from tensorglot.operations.listing import Entry, entries, summarize
from tensorglot.report.grid import Grid, GridShape, encode_plane

__all__ = ["QUANTILES", "card", "cells_for", "describe", "magnitudes", "spark"]

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_BINS = range(8, 61)
"""Least and most bins of a histogram."""
_SPARK_BINS = 20
_BLOCK_COUNT = 1 << 17
_CELLS = range(256, 4097)
"""Least and most cells of a heat map."""
_HEAT_NBYTES = 8 << 20
"""Size of all heat maps of a report together, unless that leaves them fewer cells than the least."""
_CELL_NBYTES = 8
"""Three planes of 16 bits, in base64."""
_NO_SPANS: list[list[int]] = [[], [], [], []]


def cells_for(tensors: int) -> int:
    """Cells of each heat map in a report of so many tensors."""
    return min(max(_HEAT_NBYTES // _CELL_NBYTES // max(1, tensors), _CELLS[0]), _CELLS[-1])


def describe(archive: Archive, path: str) -> dict[str, Any]:
    """The file as columns with an entry for each tensor, and as spans with an entry for each part at a known place."""
    rows = entries(archive)
    summary = summarize(archive).to_dict() if archive.format != "memory" else {"format": "memory"}
    virtual = summary.get("checked_by") == "block"  # a commit: its blocks are in packs, in another order
    return {
        "path": path,
        "summary": summary,
        "metadata": jsonable(archive.metadata),
        "notes": [note.message for note in archive.notes],
        "names": [row.name for row in rows],
        "shapes": [list(row.shape) for row in rows],
        "nbytes": [row.nbytes for row in rows],
        "stored": [row.stored_nbytes for row in rows],
        "offsets": [None if virtual or row.encoding == "joined" else row.offset for row in rows],
        **{key: _table([getattr(row, key) for row in rows]) for key in ("dtype", "encoding", "layout")},
        "checksum": _table([_kind(row) for row in rows]),
        **({"files": [], "spans": _NO_SPANS} if virtual else _spans(archive)),
    }


def _kind(row: Entry) -> str | None:
    """The algorithm of the checksum, such as `crc32c`, without the digest."""
    return None if row.checksum is None else row.checksum.partition(":")[0]


def _table(values: Sequence[str | None]) -> dict[str, Any]:
    """Distinct values, and for each entry its position among them."""
    places = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return {"values": list(places), "codes": [places[value] for value in values]}


def _spans(archive: Archive) -> dict[str, Any]:
    """Where the parts are: begin and end in one of the files, and the tensor that they belong to."""
    index = archive.index
    files: dict[tuple[int, str | None], int] = {}
    sizes: dict[tuple[int, str | None], int] = {}
    described: list[dict[str, Any]] = []
    spans: list[tuple[int, int, int, int]] = []
    begins, ends = index.begins.tolist(), index.ends.tolist()
    for tensor in range(len(index.names)):
        for row in index.rows(tensor):
            source = index.sources.get(row, archive.source)
            if source is None or (index.payloads is not None and index.payloads[row] is not None):
                continue
            for member, begin, end in _places(index, row, source, begins[row], ends[row]):
                key = (id(source), member)
                if key not in files:
                    files[key] = len(files)
                    if member is not None and key not in sizes:  # all of a directory at once
                        sizes |= {(id(source), name): size for name, size, _ in getattr(source, "members", list)()}
                    path, nbytes = (
                        (getattr(source, "path", None), source.size) if member is None else (member, sizes[key])
                    )
                    described.append({"path": path, "nbytes": nbytes})
                spans.append((begin, end, tensor, files[key]))
    return {"files": described, "spans": [list(column) for column in zip(*spans, strict=True)] or _NO_SPANS}


def _places(index: Index, row: int, source: Source, begin: int, end: int) -> list[tuple[str | None, int, int]]:
    """File, begin and end of a row: one span of its source, or the pieces in the files of a directory."""
    codec = index.codecs.get(row)
    if codec is None or not isinstance(codec, Scattered):  # a protocol: the check takes as long as the rest of a row
        return [(None, begin, end)]
    try:
        return list(codec.places(source))
    except FormatError:  # the card of the tensor shows the error
        return []


def card(tensor: Tensor, cells: int) -> dict[str, Any]:
    """All that the page shows of one tensor. A part that cannot be read says why."""
    return {
        "type": str(tensor.type),
        "attributes": jsonable(tensor.attributes),
        "parts": [
            {"name": name, **_part(tensor.name, part, values, cells)}
            for name, part, values in values_by_part(tensor, _BLOCK_COUNT)
        ],
    }


def _part(tensor: str, part: Part, values: Iterable[NDArray[Any]], cells: int) -> dict[str, Any]:
    about = {
        "dtype": part.dtype_name,
        "shape": list(part.shape),
        "nbytes": part.nbytes,
        "offset": part.offset,
        "encoding": part.encoding,
        "checksum": part.checksum,
        "count": math.prod(part.shape),
    }
    try:
        return {**about, **_numbers(part, values, cells)}
    except UnsupportedError as error:
        return {**about, "unsupported": error.message}
    except FormatError as error:
        error.tensor = tensor
        return {**about, "problem": error.describe()}


def _numbers(part: Part, values: Iterable[NDArray[Any]], cells: int) -> dict[str, Any]:
    tally = Tally(Distribution())
    count = math.prod(part.shape)
    grid = Grid(GridShape.of(part.shape, cells)) if count else None
    for block in values:
        tally.add(block)
        if grid is not None:
            grid.add(magnitudes(block))
    distribution = tally.distribution
    assert distribution is not None  # noqa: S101
    edges, counts = distribution.histogram(_bins(distribution))
    names = ("zeros", "nan", "inf", "min", "max", "mean", "std", "norm", "norm1")
    return {
        **{name: jsonable(getattr(tally, name)) for name in names},
        "quantiles": jsonable(distribution.quantiles(QUANTILES)),
        "exact": distribution.exact,
        "histogram": {"low": edges[0], "high": edges[-1], "counts": counts} if counts else None,
        "grid": None if grid is None else _encode(grid),
    }


def _bins(distribution: Distribution) -> int:
    """Fewer bins for few values, by the square-root rule. Integers of a small range have a bin each in any case."""
    if distribution.whole:
        return _BINS[-1]
    return min(max(math.isqrt(distribution.count), _BINS[0]), _BINS[-1])


def magnitudes(block: NDArray[Any]) -> NDArray[np.float64]:
    """Real numbers as they are, complex ones as their absolute values."""
    with np.errstate(invalid="ignore", over="ignore"):
        if block.dtype.kind == "c":
            return np.abs(block.astype(np.complex128))
        return as_float64(block, dtype_of(block.dtype))


def _encode(grid: Grid) -> dict[str, Any]:
    shape = grid.shape
    # With one element in each cell, minimum and maximum are the mean.
    single = (shape.rows, shape.columns) == (shape.cell_rows, shape.cell_columns)
    return {
        **shape.to_dict(),
        "mean": encode_plane(grid.mean),
        "min": None if single else encode_plane(np.where(grid.finite > 0, grid.low, np.nan)),
        "max": None if single else encode_plane(np.where(grid.finite > 0, grid.high, np.nan)),
        "other": encode_plane(grid.other.astype(np.float64)) if grid.other.any() else None,
    }


def spark(card: dict[str, Any]) -> str | None:
    """The histogram of the first part in a few digits: `0013798631000`; None without a histogram."""
    for part in card["parts"][:1]:
        histogram = part.get("histogram")
        if not histogram:
            break
        if len(histogram["counts"]) == 1:  # one value: a bar in the middle, as in the card
            return f"{'9':0^{_SPARK_BINS + 1}}"
        counts = np.array(histogram["counts"], np.int64)
        bins = min(len(counts), _SPARK_BINS)
        starts = np.arange(bins) * len(counts) // bins
        heights = np.add.reduceat(counts, starts) / np.diff(starts, append=len(counts))
        return "".join(str(min(9, math.ceil(height))) for height in (9 * heights / heights.max()).tolist())
    return None
