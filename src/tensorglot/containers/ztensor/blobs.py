"""Where blobs may be: aligned, inside their region, each apart from the others or exactly another one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.errors import FormatError, TruncatedError
from tensorglot.model.index import first_overlap

__all__ = ["Label", "Region", "check_blobs", "refuse_first"]

Label = Callable[[int], tuple[str | None, int]]
"""The tensor and the position in the file of whatever described a blob."""


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of a file that blobs may take."""

    alignment: int
    first: int
    """Where the first blob can begin."""
    end: int
    """Where the index begins, or the footer."""
    size: int
    """Of the file."""


def check_blobs(begins: NDArray[np.int64], ends: NDArray[np.int64], region: Region, label: Label) -> None:
    refuse_first(
        begins % region.alignment != 0,
        label,
        "ztensor.blob.alignment",
        f"a blob that begins at no multiple of {region.alignment}",
    )
    refuse_first(
        (begins < region.first) & (ends > begins), label, "ztensor.blob.magic", "a blob that begins in the magic number"
    )
    refuse_first(ends > region.size, label, "ztensor.blob.end", "a blob that ends after the file", TruncatedError)
    refuse_first(ends > region.end, label, "ztensor.blob.index", "a blob that runs into the index")
    overlap = first_overlap(begins, ends)
    if overlap is not None:
        name, position = label(overlap[1])
        raise FormatError("a blob that overlaps another", rule="ztensor.blob.overlap", offset=position, tensor=name)


def refuse_first(
    broken: NDArray[np.bool_], label: Label, rule: str, message: str, kind: type[FormatError] = FormatError
) -> None:
    """Refuses the file for the first row that breaks a rule."""
    if broken.any():
        name, position = label(int(broken.argmax()))
        raise kind(message, rule=rule, offset=position, tensor=name)
