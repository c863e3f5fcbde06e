"""What differs between two files, tensor by tensor, and where inside each.

`tg.diff` decides what a change is. Here the tensors whose values changed are read once
more, side by side, into two grids: the share of the elements that changed in each block,
and the largest difference in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, UnsupportedError
from tensorglot.model.archive import Archive
from tensorglot.model.tensor import Part, Tensor
from tensorglot.operations._dequantize import values_by_part
from tensorglot.operations._jsonable import jsonable
from tensorglot.operations.diff import Change, Diff
from tensorglot.operations.listing import entries
from tensorglot.report.data import magnitudes
from tensorglot.report.grid import Grid, GridShape, encode_plane

__all__ = ["by_tensor", "change_card", "in_short", "index_changes", "summarize_changes"]

_BLOCK_COUNT = 1 << 17


def by_tensor(diff: Diff) -> dict[str, list[Change]]:
    """The changes of each tensor that has any."""
    found: dict[str, list[Change]] = {}
    for change in diff.changes:
        if change.tensor is not None:
            found.setdefault(change.tensor, []).append(change)
    return found


def summarize_changes(diff: Diff) -> dict[str, Any]:
    """The whole comparison in a few numbers; tensors are in their cards."""
    return {
        "tensors": diff.tensors,
        "equal": diff.equal,
        "metadata": [change.to_dict() for change in diff.changes if change.tensor is None],
    }


def in_short(changes: list[Change]) -> list[Any]:
    """The kinds of a tensor's changes, and the largest share of elements that changed."""
    shares = [change.values.share for change in changes if change.values is not None]
    return [sorted({change.kind for change in changes}), max(shares, default=None)]


def index_changes(one: Archive, two: Archive, names: list[str]) -> dict[int, list[Any]]:
    """The changes that the indexes show, by the position of the name: added, removed, another shape or type."""
    old, new = ({entry.name: entry for entry in entries(archive)} for archive in (one, two))
    found: dict[int, list[Any]] = {}
    for i, name in enumerate(names):
        if name not in old or name not in new:
            found[i] = [["added" if name in new else "removed"], None]
        elif old[name].layout == new[name].layout == "dense":
            pairs = {"shape": (old[name].shape, new[name].shape), "type": (old[name].dtype, new[name].dtype)}
            kinds = [kind for kind, (before, after) in pairs.items() if before != after]
            if kinds:
                found[i] = [kinds, None]
    return found


def change_card(changes: list[Change], one: Archive, two: Archive, cells: int) -> list[dict[str, Any]]:
    """The changes of one tensor; changes of values say where in the tensor they are."""
    return [
        {**jsonable(change.to_dict()), "text": change.what, "where": _where(change, one, two, cells)}
        for change in changes
    ]


def _where(change: Change, one: Archive, two: Archive, cells: int) -> dict[str, Any] | None:
    if change.kind != "values" or change.tensor is None or change.values is None:
        return None
    part = change.key or "data"
    x, y = (_values(archive[change.tensor], part) for archive in (one, two))
    try:
        return _compare_blocks(x, y, cells)
    except (FormatError, UnsupportedError):  # the card of the tensor shows the error
        return None


def _values(tensor: Tensor, part: str) -> tuple[Part, Iterator[NDArray[Any]]]:
    return next((about, values) for name, about, values in values_by_part(tensor, _BLOCK_COUNT) if name == part)


def _compare_blocks(
    x: tuple[Part, Iterator[NDArray[Any]]], y: tuple[Part, Iterator[NDArray[Any]]], cells: int
) -> dict[str, Any] | None:
    (part, ones), (_, twos) = x, y
    if not math.prod(part.shape):
        return None
    shape = GridShape.of(part.shape, cells)
    share, distance = Grid(shape), Grid(shape)
    for changed, apart in _differences(ones, twos):
        share.add(changed)
        distance.add(apart)
    return {
        **shape.to_dict(),
        "share": encode_plane(share.mean),
        "distance": encode_plane(np.where(distance.finite > 0, distance.high, np.nan)),
    }


def _differences(
    ones: Iterator[NDArray[Any]], twos: Iterator[NDArray[Any]]
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """For each block of elements: 1 for each pair that differs, else 0; and the absolute differences."""
    for one, two in zip(ones, twos, strict=True):
        if one.dtype != two.dtype:
            one, two = one.astype(np.float64), two.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            changed = np.asarray((one != two) & ~(_is_nan(one) & _is_nan(two)))
            if one.dtype.kind == "c":
                apart = np.abs(one.astype(np.complex128) - two.astype(np.complex128))
            else:
                apart = np.abs(magnitudes(one) - magnitudes(two))
        yield changed.astype(np.float64), np.where(changed, apart, 0.0)


def _is_nan(values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(values != values)  # integers of ml_dtypes have no isnan
