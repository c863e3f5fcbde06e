"""BinTensors: a length, a bincode header, the tensors back to back.

Two layouts exist and the file does not say which. Layout 0 is the published
document: the tensors without names, then a map from name to position. Layout 1 puts
each name before its tensor. A header is parsed under both; exactly one must be valid.
Both layouts order tensors by dtype code descending, then by name, so that every tensor
is aligned; a reader accepts another order unless it is strict.

    file   = u64 N | header of N bytes | data
    header = metadata, tensors, … then 0 to 7 spaces up to a multiple of 8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import lt

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.canonical import first_difference
from tensorglot.containers.table import Container, ReadOptions, WriteOptions, check_header, unsupported_dtype
from tensorglot.errors import AmbiguousFormat, FormatError, Hint, LimitError, TruncatedError, UnsupportedError
from tensorglot.kernels import bintensors as kernel
from tensorglot.kernels import encode_headers
from tensorglot.limits import DEFAULT, Limits
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME
from tensorglot.model.index import Index, take_shapes
from tensorglot.model.names import Names
from tensorglot.model.payload import Chunk, Source
from tensorglot.tuples import NamedTuple
from tensorglot.wire.prefixed import check_data_end, join_texts, read_header, writer_order

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
"""Limit of the reference implementation, which it derives from memory sizes."""

_LAYOUTS = ("0", "1")
_ITEMSIZES = bytes(BY_NAME[name].bits // 8 for name in DTYPES.values())
_OUR_CODES = bytes(BY_NAME[name].code for name in DTYPES.values())
_THEIR_CODE = np.full(256, -1, np.int16)
_THEIR_CODE[list(_OUR_CODES)] = range(len(DTYPES))

_FAULTS: dict[int, tuple[type[FormatError], str, str]] = {
    kernel.HEADER_END: (TruncatedError, "header.end", "the header ends inside a value"),
    kernel.VARINT_TAG: (FormatError, "varint.tag", "varint of more than 64 bits (tag 254 or 255)"),
    kernel.VARINT_LONG: (FormatError, "varint.minimal", "varint is not in its shortest form"),
    kernel.OPTION_TAG: (FormatError, "metadata.tag", "the metadata tag is neither 0 nor 1"),
    kernel.METADATA_DUPLICATE: (FormatError, "metadata.duplicate", "duplicate metadata key"),
    kernel.UTF8: (FormatError, "text.utf8", "invalid UTF-8 in a string"),
    kernel.DTYPE: (FormatError, "dtype", f"unknown dtype code (known: 0 to {len(DTYPES) - 1})"),
    kernel.COUNT: (FormatError, "count", "count exceeds what the rest of the header can hold"),
    kernel.LIMIT_TENSORS: (LimitError, "limit.tensors", "more than {tensors} tensors (Limits.tensors)"),
    kernel.LIMIT_RANK: (LimitError, "limit.rank", "more than {rank} dimensions (Limits.rank)"),
    kernel.LIMIT_NAME: (LimitError, "limit.name", "a name of more than {name_nbytes} bytes (Limits.name_nbytes)"),
    kernel.DIMS: (FormatError, "shape.product", "the tensor would have 2**63 bytes or more"),
    kernel.SIZE: (FormatError, "offsets.size", "the offsets do not match the size that dtype and shape give"),
    kernel.OFFSETS: (FormatError, "offsets.contiguous", "the tensor does not begin where the one before it ends"),
    kernel.PADDING_BYTE: (FormatError, "padding.byte", "a padding byte is not a space"),
    kernel.PADDING_LENGTH: (FormatError, "padding.length", "more than 7 bytes of padding at the end of the header"),
    kernel.MAP_COUNT: (FormatError, "map.count", "the index map does not have one entry for each tensor"),
    kernel.MAP_RANGE: (FormatError, "map.range", "the index map refers to a tensor that does not exist"),
    kernel.MAP_ALIAS: (FormatError, "map.alias", "the index map has two names for one tensor"),
}


class Fault(NamedTuple):
    """Why a header is not valid in a layout."""

    code: int
    position: int
    tensor: str | None
    broken: int
    """Number of values that break a rule; -1 if the fields do not end where the header does."""


class Contents(NamedTuple):
    """What a valid header has."""

    metadata: dict[str, str] | None
    dtypes: NDArray[np.uint8]
    dims: NDArray[np.int64]
    dim_offsets: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    name_begins: NDArray[np.int64]
    name_ends: NDArray[np.int64]

    def names(self, header: bytes) -> Names:
        return Names(header, self.name_begins, self.name_ends)


def _scan(header: bytes, layout: str, limits: Limits, thorough: bool = False) -> Fault | Contents:
    most = limits.tensors_or(TENSORS_MAX)
    code, position, tensor, broken, contents = kernel.scan(
        header, int(layout), _ITEMSIZES, _OUR_CODES, most, limits.rank, limits.name_nbytes, thorough
    )
    return Fault(code, position, tensor, broken) if contents is None else Contents._make(contents)


def read(source: Source, options: ReadOptions) -> Index:
    limits = options.limits
    header = read_header(
        source.read_bytes, source.size, head=options.head, most=limits.header_or(), rule="bintensors", multiple=8
    )
    layouts = _LAYOUTS if options.version is None else (options.version,)
    scans = [(layout, _scan(header, layout, limits)) for layout in layouts]
    fitting = [(layout, scan) for layout, scan in scans if isinstance(scan, Contents)]
    if len(fitting) == 1:
        return _index(header, *fitting[0], source.size, options)
    if fitting:
        return _choose([partial(_index, header, layout, scan, source.size, options) for layout, scan in fitting])
    faults = [scan for _, scan in scans if isinstance(scan, Fault)]
    if all(_FAULTS[fault.code][1].startswith("metadata") for fault in faults):
        raise _refusal(faults[0], limits)  # metadata is the same in both layouts
    thorough = [_scan(header, layout, limits, thorough=True) for layout in layouts]
    raise _likeliest([fault for fault in thorough if isinstance(fault, Fault)], limits)


def _choose(candidates: Sequence[Callable[[], Index]]) -> Index:
    """Chooses between two layouts that are valid for the header: one must fail the other checks."""
    accepted: list[Index] = []
    refused: list[FormatError] = []
    for candidate in candidates:
        try:
            accepted.append(candidate())
        except FormatError as error:
            refused.append(error)
    if not accepted:
        raise _explain(sorted(refused, key=lambda error: error.offset or 0))
    if len(accepted) > 1:
        raise AmbiguousFormat(
            "valid in both layouts, with different contents",
            rule="bintensors.layout",
            offset=8,
            hint=Hint(
                "pass format='bintensors@0' or 'bintensors@1'",
                "pass bintensors@0 or bintensors@1 to --format (convert: --from)",
            ),
        )
    return accepted[0]


def _refusal(fault: Fault, limits: Limits) -> FormatError:
    kind, rule, message = _FAULTS[fault.code]
    message = limits.fill_in(message, TENSORS_MAX)
    return kind(message, rule=f"bintensors.{rule}", offset=8 + fault.position, tensor=fault.tensor)


def _likeliest(faults: Sequence[Fault], limits: Limits) -> FormatError:
    """Returns the error under the layout that the file most likely has.

    That is one whose fields end where the header does, with the fewest broken rules; else
    the one that is valid for longer; of two equals, a limit that the caller can raise.
    """

    def likelihood(fault: Fault) -> tuple[bool, int, int, bool]:
        return fault.broken >= 0, -fault.broken, fault.position, issubclass(_FAULTS[fault.code][0], LimitError)

    return _explain([_refusal(fault, limits) for fault in sorted(faults, key=likelihood)])


def _explain(refused: Sequence[FormatError]) -> FormatError:
    """Returns the last error, with the message of the other appended."""
    *others, best = refused
    for other in others:
        if other.rule != best.rule:
            best.message += f"; in the other layout: {other.message} at byte {other.offset}"
    return best


def _index(header: bytes, layout: str, scan: Contents, size: int, options: ReadOptions) -> Index:
    names, data = scan.names(header), 8 + len(header)
    check_data_end(scan.ends, data, size, rule="bintensors", name=names.__getitem__)
    names.refuse_duplicates("bintensors.name.duplicate", 8, len(header))
    if options.strict:
        codes = _THEIR_CODE[scan.dtypes]
        _check_order(codes, names)
        ours = _encode(layout, scan.metadata, names, codes, scan.dims, scan.dim_offsets, scan.ends - data)
        if header != ours:  # with equal contents, only the order of keys can differ
            offset = 8 + first_difference(header, ours)
            raise FormatError("metadata keys or names are not sorted", rule="bintensors.strict.sorted", offset=offset)
    return Index(
        format=f"bintensors@{layout}",
        names=names,
        dtypes=scan.dtypes,
        dims=scan.dims,
        dim_offsets=scan.dim_offsets,
        begins=scan.begins,
        ends=scan.ends,
        metadata=scan.metadata,
    )


def _check_order(codes: NDArray[np.int16], names: Names) -> None:
    place = np.empty(len(codes), np.int64)
    place[writer_order(codes, names)] = range(len(codes))
    wrong = np.flatnonzero(place[1:] < place[:-1]) + 1
    if wrong.size:
        row = int(wrong[0])
        raise FormatError(
            "tensors are not in canonical order (dtype code descending, then name)",
            rule="bintensors.strict.order",
            offset=8 + names.offset(row),
            tensor=names[row],
        )


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    codes = _codes(index)
    order = writer_order(codes, index.names)
    names = list(map(index.names.__getitem__, order.tolist()))
    dims, dim_offsets = take_shapes(index.dims, index.dim_offsets, order)
    ends = np.cumsum(index.nbytes[order])
    header = _encode(options.version, index.metadata, names, codes[order], dims, dim_offsets, ends)
    check_header(len(header), "bintensors")
    _check_unambiguous(bytes(header), options.version, ends)
    yield len(header).to_bytes(8, "little")
    yield header
    yield from archive.chunks(order)


def _check_unambiguous(header: bytes, layout: str, ends: NDArray[np.int64]) -> None:
    """Refuses a header that could also be one of the other layout: it could not be opened again."""
    (other,) = set(_LAYOUTS) - {layout}
    scan = _scan(header, other, DEFAULT)
    if not isinstance(scan, Fault) and (scan.ends[-1:] - 8 - len(header)).tolist() == ends[-1:].tolist():
        raise UnsupportedError(
            f"the header would also be valid in layout {other}, with other tensors; write bintensors@{other}",
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
    joined, offsets = join_texts(names)
    by_name = _order_by_name(names) if layout == "0" else np.empty(0, np.int64)
    return encode_headers.bintensors(
        int(layout), texts, joined, offsets, codes.astype(np.uint8).tobytes(), dims, dim_offsets, ends, by_name
    )


def _order_by_name(names: Sequence[str]) -> NDArray[np.int64]:
    # Names of tensors of one dtype are in order already; to see that takes a third of the instructions of sorting.
    if all(map(lt, names, names[1:])):
        return np.arange(len(names))
    return np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)


def _codes(index: Index) -> NDArray[np.int16]:
    """Returns the format's dtype code of every row, or raises UnsupportedError."""
    codes = _THEIR_CODE[index.dtypes]
    if (codes < 0).any():
        raise unsupported_dtype("bintensors", index, int((codes < 0).argmax()))
    return codes


CONTAINER = Container(DTYPES, read, write, raw_rows=True, tensors_max=TENSORS_MAX)
