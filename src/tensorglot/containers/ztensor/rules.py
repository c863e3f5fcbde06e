"""The rules of an index, each checked in one place for all tensors or rows at once: names, shapes, sizes, offsets.

The reader of a version calls the rules of that version. The error names the first tensor
that breaks a rule, and the byte where it is described. Most files have few tensors, so the
fixed cost of a NumPy call matters: `count_nonzero` takes a fifth of the time of `any`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.arrays import complement
from tensorglot.containers.ztensor.catalogue import RAW, ZSTD, Catalogue
from tensorglot.containers.ztensor.constants import INDEX_NBYTES
from tensorglot.errors import FormatError, LimitError, TruncatedError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import UNKNOWN, first_overlap
from tensorglot.model.payload import Source

__all__ = [
    "COUNT_RULE",
    "SIZE_END",
    "Region",
    "check_dense",
    "check_index_nbytes",
    "check_limits",
    "check_places",
    "check_sizes",
    "check_unique",
    "read_index",
    "refuse_row",
    "refuse_tensor",
]

SIZE_END = 1 << 63
COUNT_RULE = "ztensor.limit.tensors"
EXPANSION = 1 << 15
"""The largest compression ratio of zstd: a run of 128 KiB takes four bytes."""

_BITS = np.ones(256, np.int64)
_BITS[: len(TABLE)] = [dtype.bits for dtype in TABLE]
_COUNTS_MAX = (SIZE_END - 8) // _BITS
"""Elements that fit in 2**63 bytes, by dtype code."""


@dataclass(frozen=True, slots=True)
class Region:
    """The span of a file that blobs may use."""

    alignment: int
    """A power of two."""
    first: int
    """Lowest offset of a blob that is not empty."""
    end: int
    """Offset of the index or of the footer, where blobs must have ended."""
    size: int
    """Size of the file."""
    least: int = 0
    """Lowest offset of an empty blob."""


def check_index_nbytes(nbytes: int, offset: int, limits: Limits) -> None:
    """Checks the size of an index against the limit; `offset` is where the file states that size."""
    limits.check_header(nbytes, "an index", rule="ztensor.limit.index", offset=offset, default=INDEX_NBYTES)


def read_index(source: Source, end: int, limits: Limits) -> tuple[bytes, int]:
    """Reads the index of 0.1 and 1.x, which ends at `end`, before its size as a u64; returns also its offset."""
    if source.size < 16:
        raise TruncatedError(f"file truncated: needs 16 bytes, has {source.size}", rule="ztensor.size", offset=0)
    nbytes = int.from_bytes(source.read_bytes(end, 8), "little")
    if nbytes > end - 8 or (nbytes == 0 and end > 8):
        raise TruncatedError(
            "file truncated or damaged: the last 8 bytes are not the size of an index",
            rule="ztensor.index.size",
            offset=end,
        )
    check_index_nbytes(nbytes, end, limits)
    return source.read_bytes(end - nbytes, nbytes), end - nbytes


def check_unique(catalogue: Catalogue) -> None:
    """Checks for duplicate names. For names that are keys of a map, the validation of the CBOR has done so."""
    twice = catalogue.names.first_duplicate()
    if twice is not None:
        raise _refusal(catalogue, "ztensor.name.duplicate", "duplicate tensor name", catalogue.places[twice], twice)


def check_limits(catalogue: Catalogue, limits: Limits) -> None:
    """Checks the lengths of names and the ranks of shapes."""
    long = catalogue.name_ends - catalogue.name_begins > limits.name_nbytes
    message = f"name longer than Limits.name_nbytes ({limits.name_nbytes})"
    refuse_tensor(catalogue, long, "ztensor.limit.name", message, LimitError)
    deep = catalogue.dim_offsets[1:] - catalogue.dim_offsets[:-1] > limits.rank
    message = f"more dimensions than Limits.rank ({limits.rank})"
    refuse_tensor(catalogue, deep, "ztensor.limit.rank", message, LimitError)


def check_dense(catalogue: Catalogue) -> None:
    """Checks that every dense tensor has one part, `data`."""
    if not catalogue.parts and catalogue.first_rows is None:
        return
    broken = np.zeros(len(catalogue.dtypes), np.bool_)
    broken[list(catalogue.parts)] = True
    if catalogue.first_rows is not None:
        counts = np.diff(catalogue.first_rows)
        dense = np.ones(len(counts), np.bool_)
        dense[list(catalogue.layouts)] = False
        broken = (broken | np.repeat(counts > 1, counts)) & np.repeat(dense, counts)
    refuse_row(catalogue, broken, "layout.parts", "a dense tensor must have one part, 'data'")


def check_sizes(catalogue: Catalogue) -> None:
    """Checks that dtype and shape of every dense tensor match its size; fills in sizes that the index does not have."""
    overflow = "the tensor would have 2**63 bytes or more"
    refuse_tensor(catalogue, catalogue.counts < 0, "ztensor.shape.product", overflow)
    sizes, nbytes = catalogue.sizes, catalogue.nbytes
    outside = (sizes >= SIZE_END - 1 - catalogue.begins) | (nbytes == SIZE_END - 1)
    refuse_row(catalogue, outside, "ztensor.blob.bounds", "the blob ends at byte 2**63 or later")
    counts, dense = catalogue.counts, catalogue.dtypes != UNKNOWN
    if catalogue.first_rows is not None:
        tensors = complement(list(catalogue.layouts), len(counts))
        counts, is_dense = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.bool_)
        counts[catalogue.first_rows[tensors]] = catalogue.counts[tensors]
        is_dense[catalogue.first_rows[tensors]] = True
        dense &= is_dense
    bits = _BITS[catalogue.dtypes]
    refuse_row(catalogue, dense & (counts > _COUNTS_MAX[catalogue.dtypes]), "ztensor.shape.product", overflow)
    expected = (counts * bits + 7) >> 3
    stored = catalogue.encodings == RAW
    if np.count_nonzero(stored) == len(stored):
        nbytes = sizes
    else:
        nbytes = np.where(stored, sizes, np.where(nbytes >= 0, nbytes, np.where(dense, expected, sizes)))
    wrong = dense & (nbytes != expected)
    if np.count_nonzero(wrong):
        row = int(wrong.argmax())
        message = f"dtype and shape need {expected[row]} bytes, the blob has {nbytes[row]}"
        refuse_row(catalogue, wrong, "ztensor.blob.size", message)
    if nbytes is not sizes:
        small = (catalogue.encodings == ZSTD) & (nbytes // EXPANSION > sizes)
        refuse_row(catalogue, small, "ztensor.blob.expansion", "the blob is too small to decode to the declared size")
    catalogue.nbytes = nbytes


def check_places(
    catalogue: Catalogue,
    region: Region,
    rows: NDArray[np.int64] | None = None,
    others: Sequence[tuple[int, int]] = (),
) -> None:
    """Checks that blobs are aligned, inside their region, and disjoint or equal.

    Checks all rows, or those given; the spans of `others` are blobs, too.
    """
    begins, sizes = catalogue.begins, catalogue.sizes
    if rows is not None:
        begins, sizes = begins[rows], sizes[rows]
    ends = begins + sizes
    if others:
        begins, ends = (np.concatenate(pair) for pair in zip((begins, ends), zip(*others, strict=True), strict=True))

    def refuse(broken: NDArray[np.bool_], rule: str, message: str, kind: type[FormatError] = FormatError) -> None:
        if np.count_nonzero(broken):
            at = int(broken.argmax())
            if at >= len(sizes):
                raise kind(message, rule=rule, offset=catalogue.base)
            row = at if rows is None else int(rows[at])
            raise _refusal(catalogue, rule, message, catalogue.row_places[row], catalogue.tensor_of(row), kind)

    refuse(
        ((begins & (region.alignment - 1)) != 0) | (begins < region.least),
        "ztensor.blob.alignment",
        f"the blob must begin at a multiple of {region.alignment}, at {region.least} or later",
    )
    refuse((begins < region.first) & (ends > begins), "ztensor.blob.magic", "the blob overlaps the magic number")
    beyond = ends > region.end
    if np.count_nonzero(beyond):
        needed = int(ends.max())
        message = f"file truncated: needs {needed} bytes, has {region.size}"
        refuse(ends > region.size, "ztensor.blob.end", message, TruncatedError)
        refuse(beyond, "ztensor.blob.index", "the blob overlaps the index")
    overlap = first_overlap(begins, ends)
    if overlap is not None:
        refuse(np.arange(len(begins)) == overlap[1], "ztensor.blob.overlap", "the blob overlaps another")


def refuse_row(catalogue: Catalogue, broken: NDArray[np.bool_], rule: str, message: str) -> None:
    """Raises an error for the first row that breaks a rule."""
    if np.count_nonzero(broken):
        row = int(broken.argmax())
        raise _refusal(catalogue, rule, message, catalogue.row_places[row], catalogue.tensor_of(row))


def refuse_tensor(
    catalogue: Catalogue, broken: NDArray[np.bool_], rule: str, message: str, kind: type[FormatError] = FormatError
) -> None:
    if np.count_nonzero(broken):
        tensor = int(broken.argmax())
        raise _refusal(catalogue, rule, message, catalogue.places[tensor], tensor, kind)


def _refusal(
    catalogue: Catalogue, rule: str, message: str, place: np.int64, tensor: int, kind: type[FormatError] = FormatError
) -> FormatError:
    return kind(message, rule=rule, offset=catalogue.base + int(place), tensor=catalogue.name(tensor))
