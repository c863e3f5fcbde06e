"""BinTensors: a length, a bincode header, the tensors back to back.

Two layouts exist and the file does not say which. Layout 0 is the published
document: the tensors without names, then a map from name to position. Layout 1 puts
each name before its tensor. A header is parsed strictly under each; exactly one must
fit. Both layouts order tensors by dtype code descending, then by name, so that every
tensor is aligned; a reader accepts another order unless it is strict.

    file   = u64 N | header of N bytes | data
    header = metadata, tensors, … then 0 to 7 spaces up to a multiple of 8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.table import Container, ReadOptions, WriteOptions, check_header
from tensorglot.errors import AmbiguousFormat, FormatError, LimitError, TruncatedError, UnsupportedError
from tensorglot.kernels import bintensors as kernel
from tensorglot.limits import DEFAULT
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index, permuted
from tensorglot.model.names import Names
from tensorglot.model.payload import Chunk, Source
from tensorglot.wire.prefixed import read_header

__all__ = ["CONTAINER"]

DTYPES: dict[int, str] = dict(
    enumerate(
        (
            "bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "int16", "uint16", "float16", "bfloat16",
            "int32", "uint32", "float32", "float64", "int64", "uint64",
        )
    )
)  # fmt: skip

TENSORS_MAX = 1_388_888
"""The reference implementation charges its limit in memory sizes, and stops here."""

_LAYOUTS = ("0", "1")
_ITEMSIZES = bytes(BY_NAME[name].bits // 8 for name in DTYPES.values())
_OUR_CODE = np.array([BY_NAME[name].code for name in DTYPES.values()], np.uint8)
_THEIR_CODE = np.full(256, -1, np.int16)
_THEIR_CODE[_OUR_CODE] = range(len(DTYPES))

_FAULTS: dict[int, tuple[type[FormatError], str, str]] = {
    kernel.HEADER_END: (TruncatedError, "header.end", "the header ends inside a value"),
    kernel.VARINT_TAG: (FormatError, "varint.tag", "a varint of more than 64 bits"),
    kernel.VARINT_LONG: (FormatError, "varint.minimal", "a varint longer than its value needs"),
    kernel.OPTION_TAG: (FormatError, "metadata.tag", "the metadata tag is neither 0 nor 1"),
    kernel.METADATA_DUPLICATE: (FormatError, "metadata.duplicate", "a metadata key stands twice"),
    kernel.UTF8: (FormatError, "text.utf8", "a string is not UTF-8"),
    kernel.DTYPE: (FormatError, "dtype", f"a dtype code above {len(DTYPES) - 1}"),
    kernel.COUNT: (FormatError, "count", "a count of more items than the header has bytes for"),
    kernel.LIMIT_TENSORS: (LimitError, "limit.tensors", "more tensors than Limits.tensors allows"),
    kernel.LIMIT_RANK: (LimitError, "limit.rank", "more dimensions than Limits.rank allows"),
    kernel.LIMIT_NAME: (LimitError, "limit.name", "a name longer than Limits.name_nbytes allows"),
    kernel.DIMS: (FormatError, "shape.product", "the product of the dimensions passes 2**63"),
    kernel.SIZE: (FormatError, "offsets.size", "the offsets do not span what dtype and shape ask for"),
    kernel.OFFSETS: (FormatError, "offsets.contiguous", "the tensor does not begin where the one before it ends"),
    kernel.PADDING_BYTE: (FormatError, "padding.byte", "a padding byte is not a space"),
    kernel.PADDING_LENGTH: (FormatError, "padding.length", "bytes hide between the header's last value and the data"),
    kernel.MAP_COUNT: (FormatError, "map.count", "the index map has not one name for each tensor"),
    kernel.MAP_RANGE: (FormatError, "map.range", "the index map points past the last tensor"),
    kernel.MAP_ALIAS: (FormatError, "map.alias", "the index map has two names for one tensor"),
}


class Scan(NamedTuple):
    """What the kernel found in a header."""

    fault: int
    position: int
    tensor: int
    metadata: dict[str, str] | None
    codes: NDArray[np.uint8]
    dims: NDArray[np.int64]
    dim_offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    names: tuple[NDArray[np.int64], NDArray[np.int64]]


def read(source: Source, options: ReadOptions) -> Index:
    header = read_header(source.read_bytes, source.size, most=options.limits.header_or(), rule="bintensors", multiple=8)
    limits = options.limits
    bounds = (limits.tensors_or(TENSORS_MAX), limits.rank, limits.name_nbytes)
    layouts = _LAYOUTS if options.version is None else (options.version,)
    scans = {layout: Scan(*kernel.scan(header, int(layout), _ITEMSIZES, *bounds)) for layout in layouts}
    fitting = [layout for layout in layouts if not scans[layout].fault]
    if not fitting:
        raise _furthest([_refusal(header, scan) for scan in scans.values()])
    if len(fitting) == 1:
        return _index(header, fitting[0], scans[fitting[0]], source.size, options)
    return _only_one([partial(_index, header, layout, scans[layout], source.size, options) for layout in fitting])


def _only_one(candidates: Sequence[Callable[[], Index]]) -> Index:
    """Two layouts fit the header: one of them must fail the other checks, or the file means two things."""
    accepted: list[Index] = []
    refused: list[FormatError] = []
    for candidate in candidates:
        try:
            accepted.append(candidate())
        except FormatError as error:
            refused.append(error)
    if not accepted:
        raise _furthest(refused)
    if len(accepted) > 1:
        raise AmbiguousFormat(
            "valid in both layouts, with different contents: name format='bintensors@0' or 'bintensors@1'",
            rule="bintensors.layout",
            offset=8,
        )
    return accepted[0]


def _refusal(header: bytes, scan: Scan) -> FormatError:
    kind, rule, message = _FAULTS[scan.fault]
    names = Names(header, *scan.names)
    known = scan.tensor >= 0 and names.offset(scan.tensor) >= 0
    return kind(
        message,
        rule=f"bintensors.{rule}",
        offset=8 + scan.position,
        tensor=names[scan.tensor] if known else None,
    )


def _furthest(refused: Sequence[FormatError]) -> FormatError:
    """The refusal of the layout that fits longer, most likely the file's own.

    Of two equals the one to act on: a limit, then anything but an end, which is where a
    wrong length of the other layout leads.
    """

    def weight(error: FormatError) -> tuple[int, bool, bool]:
        return error.offset or 0, isinstance(error, LimitError), not isinstance(error, TruncatedError)

    *others, best = sorted(refused, key=weight)
    for other in others:
        if other.rule != best.rule:
            best.message += f"; as the other layout, {other.message} at byte {other.offset}"
    return best


def _index(header: bytes, layout: str, scan: Scan, size: int, options: ReadOptions) -> Index:
    names, ends = Names(header, *scan.names), scan.ends
    data = 8 + len(header)
    end = int(ends[-1]) if len(ends) else 0
    if data + end > size:
        raise TruncatedError(
            f"the tensors end at byte {data + end} of a file of {size}",
            rule="bintensors.data.end",
            offset=size,
            tensor=names[int(np.searchsorted(ends, size - data, side="right"))],
        )
    if data + end < size:
        raise FormatError("bytes behind the last tensor", rule="bintensors.data.trailing", offset=data + end)
    twice = names.first_duplicate()
    if twice is not None:
        raise FormatError(
            "two tensors of one name",
            rule="bintensors.name.duplicate",
            offset=8 + names.offset(twice),
            tensor=names[twice],
        )
    if options.strict:
        _check_order(scan.codes, names)
        ours = _encode(layout, scan.metadata, names, scan.codes, scan.dims, scan.dim_offsets, ends)
        _check_sorted(header, ours)
    ends += data
    begins = np.empty_like(ends)
    begins[:1] = data
    begins[1:] = ends[:-1]
    return Index(
        format=f"bintensors@{layout}",
        names=names,
        dtypes=_OUR_CODE.take(scan.codes),
        dims=scan.dims,
        dim_offsets=scan.dim_offsets,
        begins=begins,
        ends=ends,
        metadata=scan.metadata,
    )


def _check_order(codes: NDArray[np.uint8], names: Names) -> None:
    keys = zip((-codes.astype(np.int16)).tolist(), names, strict=True)
    for i, (one, two) in enumerate(pairwise(keys), 1):
        if one > two:
            raise FormatError(
                "tensors are not in the writer's order",
                rule="bintensors.strict.order",
                offset=8 + names.offset(i),
                tensor=names[i],
            )


def _check_sorted(header: bytes, ours: bytearray) -> None:
    """One byte string for a value: with the same contents, only the order of keys can still differ."""
    if header != ours:
        differs = next(i for i, (one, two) in enumerate(zip(header, ours, strict=True)) if one != two)
        raise FormatError("keys are not sorted", rule="bintensors.strict.sorted", offset=8 + differs)


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    codes = _codes(index)
    by_name = np.array(sorted(range(len(codes)), key=index.names.__getitem__), np.int64)
    order = by_name[np.argsort(-codes[by_name], kind="stable")]
    names = [index.names[row] for row in order.tolist()]
    dims, dim_offsets = permuted(index.dims, index.dim_offsets, order)
    ends = np.cumsum(index.nbytes[order])
    header = _encode(options.version, index.metadata, names, codes[order], dims, dim_offsets, ends)
    check_header(len(header), "bintensors")
    _check_unambiguous(bytes(header), options.version, ends)
    yield len(header).to_bytes(8, "little")
    yield header
    yield from archive.chunks(order)


def _check_unambiguous(header: bytes, layout: str, ends: NDArray[np.int64]) -> None:
    """What is saved can be opened again: few headers are valid in the other layout, too, and those are refused."""
    (other,) = set(_LAYOUTS) - {layout}
    bounds = (DEFAULT.tensors_or(TENSORS_MAX), DEFAULT.rank, DEFAULT.name_nbytes)
    scan = Scan(*kernel.scan(header, int(other), _ITEMSIZES, *bounds))
    if scan.fault or scan.ends[-1:].tolist() != ends[-1:].tolist():
        return
    if Names(header, *scan.names).first_duplicate() is None:
        raise UnsupportedError(
            f"the same bytes hold other tensors in layout {other}, and no reader could tell: write bintensors@{other}",
            rule="bintensors.write.ambiguous",
        )


def _encode(
    layout: str,
    metadata: Mapping[str, str] | None,
    names: Sequence[str],
    codes: NDArray[np.integer],
    dims: NDArray[np.int64],
    dim_offsets: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> bytearray:
    texts = None if metadata is None else [text.encode() for pair in sorted(metadata.items()) for text in pair]
    whole = "".join(names)
    lengths = map(len, names) if whole.isascii() else (len(name.encode()) for name in names)
    offsets = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(names)), out=offsets[1:])
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__) if layout == "0" else (), np.int64)
    return kernel.encode(
        int(layout), texts, whole.encode(), offsets, codes.astype(np.uint8).tobytes(), dims, dim_offsets, ends, by_name
    )


def _codes(index: Index) -> NDArray[np.int16]:
    """The format's code of every row, or a refusal that names the tensor and its type."""
    codes = _THEIR_CODE[index.dtypes]
    missing = np.flatnonzero(codes < 0)
    if missing.size:
        row = int(missing[0])
        raise UnsupportedError(
            f"BinTensors has no {index.dtype_name(row)}", rule="bintensors.write.dtype", tensor=index.names[row]
        )
    return codes


CONTAINER = Container(DTYPES, read, write, tensors_max=TENSORS_MAX)
