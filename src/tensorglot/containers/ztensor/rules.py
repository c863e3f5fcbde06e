"""The rules that an index obeys, each at one place, for all tensors or rows at once.

Names, shapes, sizes and places; which of them a version has, it says when it calls.
The first tensor or row that breaks a rule is named, with the byte that describes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.ztensor.catalogue import RAW, ZSTD, Catalogue
from tensorglot.containers.ztensor.constants import INDEX_NBYTES
from tensorglot.errors import FormatError, LimitError, TruncatedError
from tensorglot.limits import Limits
from tensorglot.model.dtypes import TABLE
from tensorglot.model.index import UNKNOWN, first_overlap

__all__ = [
    "SIZE_END",
    "Region",
    "check_count",
    "check_dense",
    "check_index_nbytes",
    "check_names",
    "check_places",
    "check_products",
    "check_ranks",
    "check_sizes",
    "check_unique",
    "refuse_row",
]

SIZE_END = 1 << 63
EXPANSION = 1 << 15
"""No byte of zstd becomes more than this many: a run of 128 KiB takes four."""

_BITS = np.ones(256, np.int64)
_BITS[: len(TABLE)] = [dtype.bits for dtype in TABLE]


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of a file that blobs may take."""

    alignment: int
    first: int
    """Where the first blob can begin. Empty ones may begin before, …"""
    end: int
    """Where the index begins, or the footer."""
    size: int
    """Of the file."""
    least: int = 0
    """… but not before this."""


def check_index_nbytes(nbytes: int, offset: int, limits: Limits) -> None:
    """`offset` is where the file says the size of its index."""
    if nbytes > limits.header_or(INDEX_NBYTES):
        raise LimitError(
            f"an index of {nbytes} bytes is beyond Limits.header_nbytes", rule="ztensor.limit.index", offset=offset
        )


def check_count(count: int, offset: int, limits: Limits) -> None:
    if count > limits.tensors_or():
        raise LimitError(
            f"{count} tensors, more than Limits.tensors allows", rule="ztensor.limit.tensors", offset=offset
        )


def check_names(catalogue: Catalogue, limits: Limits) -> None:
    nbytes = catalogue.name_ends - catalogue.name_begins
    _refuse_tensor(
        catalogue,
        nbytes > limits.name_nbytes,
        "ztensor.limit.name",
        "a name longer than Limits.name_nbytes allows",
        LimitError,
    )


def check_unique(catalogue: Catalogue) -> None:
    """No name stands twice. Where names are keys of a map, CBOR says so already."""
    twice = catalogue.names.first_duplicate()
    if twice is not None:
        raise _refusal(catalogue, "ztensor.name.duplicate", "two tensors of one name", catalogue.places[twice], twice)


def check_ranks(catalogue: Catalogue, limits: Limits, rank: int | None = None) -> None:
    """`rank` is the most that the version allows."""
    ranks = np.diff(catalogue.dim_offsets)
    if rank is not None:
        _refuse_tensor(catalogue, ranks > rank, "ztensor.shape.rank", f"more than {rank} dimensions")
    _refuse_tensor(
        catalogue, ranks > limits.rank, "ztensor.limit.rank", "more dimensions than Limits.rank allows", LimitError
    )


def check_products(catalogue: Catalogue) -> None:
    _refuse_tensor(
        catalogue, catalogue.counts < 0, "ztensor.shape.product", "the product of the dimensions passes 2**63"
    )


def check_dense(catalogue: Catalogue) -> None:
    """A dense tensor is one part, data."""
    broken = np.zeros(len(catalogue.dtypes), np.bool_)
    broken[list(catalogue.parts)] = True
    if catalogue.first_rows is not None:
        counts = np.diff(catalogue.first_rows)
        dense = np.ones(len(counts), np.bool_)
        dense[list(catalogue.layouts)] = False
        broken = (broken | np.repeat(counts > 1, counts)) & np.repeat(dense, counts)
    refuse_row(catalogue, broken, "layout.parts", "a dense tensor has one part, data")


def check_sizes(catalogue: Catalogue) -> None:
    """Every dense tensor has as many bytes as its dtype and shape ask for. Says how many, where the index does not."""
    sizes, nbytes = catalogue.sizes, catalogue.nbytes
    outside = (sizes >= SIZE_END - 1 - catalogue.begins) | (nbytes == SIZE_END - 1)
    refuse_row(catalogue, outside, "ztensor.blob.bounds", "a blob beyond 2**63")
    counts, dense = catalogue.counts, catalogue.dtypes != UNKNOWN
    if catalogue.first_rows is not None:
        tensors = np.setdiff1d(np.arange(len(counts)), list(catalogue.layouts))
        counts, is_dense = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.bool_)
        counts[catalogue.first_rows[tensors]] = catalogue.counts[tensors]
        is_dense[catalogue.first_rows[tensors]] = True
        dense &= is_dense
    bits = _BITS[catalogue.dtypes]
    refuse_row(catalogue, dense & (counts > (SIZE_END - 8) // bits), "ztensor.shape.product", "more bytes than 2**63")
    expected = (counts * bits + 7) >> 3
    stored = catalogue.encodings == RAW
    if stored.all():
        nbytes = sizes
    else:
        nbytes = np.where(stored, sizes, np.where(nbytes >= 0, nbytes, np.where(dense, expected, sizes)))
    refuse_row(
        catalogue,
        dense & (nbytes != expected),
        "ztensor.blob.size",
        "the blob has not the size that dtype and shape ask for",
    )
    if nbytes is not sizes:
        small = (catalogue.encodings == ZSTD) & (nbytes // EXPANSION > sizes)
        refuse_row(
            catalogue, small, "ztensor.blob.expansion", "a blob that cannot hold as much as dtype and shape ask for"
        )
    catalogue.nbytes = nbytes


def check_places(
    catalogue: Catalogue,
    region: Region,
    rows: NDArray[np.int64] | None = None,
    others: Sequence[tuple[int, int]] = (),
) -> None:
    """Blobs are aligned, inside their region, and each apart from the others or exactly another one.

    Of all rows, or of those given; the spans of `others` are blobs, too.
    """
    begins, sizes = catalogue.begins, catalogue.sizes
    if rows is not None:
        begins, sizes = begins[rows], sizes[rows]
    ends = begins + sizes
    for begin, end in others:
        begins, ends = np.append(begins, begin), np.append(ends, end)

    def refuse(broken: NDArray[np.bool_], rule: str, message: str, kind: type[FormatError] = FormatError) -> None:
        if broken.any():
            at = int(broken.argmax())
            if at >= len(sizes):
                raise kind(message, rule=rule, offset=catalogue.base)
            row = at if rows is None else int(rows[at])
            raise _refusal(catalogue, rule, message, catalogue.row_places[row], catalogue.tensor_of(row), kind)

    refuse(
        (begins % region.alignment != 0) | (begins < region.least),
        "ztensor.blob.alignment",
        f"a blob that begins at no multiple of {region.alignment} from {region.least} on",
    )
    refuse((begins < region.first) & (ends > begins), "ztensor.blob.magic", "a blob that begins in the magic number")
    refuse(
        ends > region.size,
        "ztensor.blob.end",
        f"file truncated: needs {int(ends.max(initial=0))} bytes, has {region.size}",
        TruncatedError,
    )
    refuse(ends > region.end, "ztensor.blob.index", "a blob that runs into the index")
    overlap = first_overlap(begins, ends)
    if overlap is not None:
        refuse(np.arange(len(begins)) == overlap[1], "ztensor.blob.overlap", "a blob that overlaps another")


def refuse_row(
    catalogue: Catalogue, broken: NDArray[np.bool_], rule: str, message: str, kind: type[FormatError] = FormatError
) -> None:
    """Refuses the file for the first row that breaks a rule."""
    if broken.any():
        row = int(broken.argmax())
        raise _refusal(catalogue, rule, message, catalogue.row_places[row], catalogue.tensor_of(row), kind)


def _refuse_tensor(
    catalogue: Catalogue, broken: NDArray[np.bool_], rule: str, message: str, kind: type[FormatError] = FormatError
) -> None:
    if broken.any():
        tensor = int(broken.argmax())
        raise _refusal(catalogue, rule, message, catalogue.places[tensor], tensor, kind)


def _refusal(
    catalogue: Catalogue, rule: str, message: str, place: np.int64, tensor: int, kind: type[FormatError] = FormatError
) -> FormatError:
    return kind(message, rule=rule, offset=catalogue.base + int(place), tensor=catalogue.name(tensor))
