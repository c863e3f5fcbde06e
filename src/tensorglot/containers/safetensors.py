"""safetensors: a length, a JSON header, the tensors back to back.

The header is an object of tensors, with an optional object of strings called
`__metadata__`. Tensors fill the data exactly: no holes, no overlaps, no trailing bytes.
A writer orders tensors by dtype, descending in the order of DTYPES, then by name, so
that every tensor is aligned; a reader accepts any order unless it is strict. The bytes
written are those of the `safetensors` package, with metadata keys sorted.

    file   = u64 N | header of N bytes | data
    header = {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}, then spaces
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from json.encoder import encode_basestring

import numpy as np
from numpy.typing import NDArray

from tensorglot.containers.canonical import first_difference
from tensorglot.containers.table import Container, Fault, ReadOptions, WriteOptions, check_header, unsupported_dtype
from tensorglot.errors import FormatError, LimitError, TruncatedError
from tensorglot.kernels import encode_headers
from tensorglot.kernels import safetensors as kernel
from tensorglot.model.archive import Archive
from tensorglot.model.dtypes import BY_NAME, DType
from tensorglot.model.index import Index, take_shapes
from tensorglot.model.names import Names
from tensorglot.model.payload import Chunk, Source
from tensorglot.wire.prefixed import check_data_end, join_texts, read_header, writer_order

__all__ = ["CONTAINER"]

DTYPES: dict[str, str] = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn",
    "F6_E2M3": "float6_e2m3fn",
    "F6_E3M2": "float6_e3m2fn",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
"""Tensors are written in descending order of this table."""

METADATA = "__metadata__"

_CODES: dict[bytes, int] = {name.encode(): code for code, name in enumerate(DTYPES)}
_BITS = bytes(BY_NAME[name].bits for name in DTYPES.values())
_OUR_CODE = np.array([BY_NAME[name].code for name in DTYPES.values()], np.uint8)
_THEIR_CODE = np.full(256, -1, np.int16)
_THEIR_CODE[_OUR_CODE] = range(len(DTYPES))

_FAULTS: dict[int, tuple[type[FormatError], str, str]] = {
    kernel.HEADER_END: (TruncatedError, "header.end", "the header ends inside a value"),
    kernel.SYNTAX: (FormatError, "json.syntax", "invalid JSON, or not a safetensors header"),
    kernel.NUMBER: (FormatError, "json.number", "not an integer from 0 to 2**63 - 1"),
    kernel.CONTROL: (FormatError, "json.control", "unescaped control character in a string"),
    kernel.ESCAPE: (FormatError, "json.escape", "invalid JSON escape"),
    kernel.SURROGATE: (FormatError, "json.surrogate", "unpaired surrogate in a string"),
    kernel.UTF8: (FormatError, "json.utf8", "invalid UTF-8 in a string"),
    kernel.FIELD: (FormatError, "field.name", "unknown field (known: dtype, shape, data_offsets)"),
    kernel.FIELD_TWICE: (FormatError, "field.duplicate", "duplicate field"),
    kernel.FIELD_MISSING: (FormatError, "field.missing", "dtype, shape or data_offsets is missing"),
    kernel.DTYPE: (FormatError, "dtype", f"unknown dtype (known: {', '.join(DTYPES)})"),
    kernel.DIMS: (FormatError, "shape.product", "the tensor would have 2**63 bits or more"),
    kernel.SIZE: (FormatError, "offsets.size", "the offsets do not match the size that dtype and shape give"),
    kernel.METADATA: (FormatError, "metadata.text", "__metadata__ is not an object of strings"),
    kernel.METADATA_TWICE: (FormatError, "metadata.duplicate", "duplicate __metadata__"),
    kernel.KEY_TWICE: (FormatError, "metadata.duplicate", "duplicate metadata key"),
    kernel.PADDING: (FormatError, "padding.byte", "bytes other than spaces after the JSON object"),
    kernel.LIMIT_TENSORS: (LimitError, "limit.tensors", "more than {tensors} tensors (Limits.tensors)"),
    kernel.LIMIT_RANK: (LimitError, "limit.rank", "more than {rank} dimensions (Limits.rank)"),
    kernel.LIMIT_NAME: (LimitError, "limit.name", "a name of more than {name_nbytes} bytes (Limits.name_nbytes)"),
}


def read(source: Source, options: ReadOptions) -> Index:
    header = _header(source, options)
    limits = options.limits
    fault, position, row, metadata, codes, dims, dim_offsets, begins, ends, named = kernel.scan(
        header, _CODES, _BITS, limits.tensors_or(), limits.rank, limits.name_nbytes
    )
    names = Names(*named)
    if fault:
        kind, rule, message = _FAULTS[fault]
        name = names[row] if row >= 0 else None
        message = limits.fill_in(message)
        raise kind(message, rule=f"safetensors.{rule}", offset=8 + position, tensor=name)
    names.refuse_duplicates("safetensors.name.duplicate", 8, len(header))
    data = 8 + len(header)
    index = Index(
        format="safetensors@1",
        names=names,
        dtypes=_OUR_CODE[codes],
        dims=dims,
        dim_offsets=dim_offsets,
        begins=begins + data,
        ends=ends + data,
        metadata=metadata,
    )
    _check_covered(index, data, source.size)
    if options.strict:
        _check_canonical(header, index)
    return index


def _header(source: Source, options: ReadOptions) -> bytes:
    header = read_header(
        source.read_bytes, source.size, head=options.head, most=options.limits.header_or(), rule="safetensors"
    )
    if header[:1] != b"{":
        raise FormatError("the header does not begin with '{'", rule="safetensors.header.start", offset=8)
    return header


def _check_covered(index: Index, data: int, size: int) -> None:
    """Checks that tensors are contiguous and the last one ends the file."""
    order = np.lexsort((index.ends, index.begins))
    begins, ends = index.begins[order], index.ends[order]
    before = np.empty_like(ends)
    before[:1] = data
    before[1:] = ends[:-1]
    wrong = np.flatnonzero(begins != before)
    if wrong.size:
        at = int(wrong[0])
        what = "overlap" if begins[at] < before[at] else "hole"
        raise FormatError(
            f"the tensor does not begin where the one before it ends: {what}",
            rule=f"safetensors.offsets.{what}",
            offset=int(begins[at]),
            tensor=index.names[int(order[at])],
        )
    check_data_end(ends, data, size, rule="safetensors", name=lambda row: index.names[int(order[row])])


def _check_canonical(header: bytes, index: Index) -> None:
    """Checks that the header is identical to the one that `write` would produce."""
    order, codes = _order(index)
    ours = _encode(index, order, codes)
    if header != ours:
        raise FormatError(
            "the header is not canonical (order of tensors, keys or spacing)",
            rule="safetensors.strict.header",
            offset=8 + first_difference(header, ours),
        )


def write(archive: Archive, options: WriteOptions) -> Iterator[Chunk]:
    index = archive.index
    order, codes = _order(index)
    _check_writable(index, codes)
    header = _encode(index, order, codes)
    check_header(len(header), "safetensors")
    yield len(header).to_bytes(8, "little")
    yield header
    yield from archive.chunks(order)


def _order(index: Index) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Returns rows in the order of writing, and the dtype code of each row, -1 if unsupported."""
    codes = _THEIR_CODE[index.dtypes]
    return writer_order(codes, index.names), codes


def _check_writable(index: Index, codes: NDArray[np.int16]) -> None:
    if (codes < 0).any():
        raise unsupported_dtype("safetensors", index, int((codes < 0).argmax()))
    suspects = np.flatnonzero(np.frombuffer(_BITS, np.uint8)[codes] % 8).tolist()
    if METADATA in index.names:
        suspects.append(list(index.names).index(METADATA))
    for row in suspects:
        fault = find_fault(index.names[row], index.shape(row), index.dtype(row), "1")
        if fault is not None:
            raise fault.error("safetensors", index.names[row])


def find_fault(name: str, shape: tuple[int, ...], dtype: DType | None, version: str) -> Fault | None:
    """Why a tensor cannot be written."""
    if name == METADATA:
        return Fault("name", "safetensors reserves this name for metadata")
    if dtype is not None and dtype.bits % 8 and math.prod(shape) * dtype.bits % 8:
        return Fault("packed", f"safetensors needs whole bytes: the elements of {dtype.name} do not fill the last byte")
    return None


def _encode(index: Index, order: NDArray[np.int64], codes: NDArray[np.int16]) -> bytearray:
    """Encodes the header with its padding."""
    quote = encode_basestring
    metadata = b""
    if index.metadata is not None:
        pairs = ",".join(f"{quote(key)}:{quote(value)}" for key, value in sorted(index.metadata.items()))
        metadata = f'"{METADATA}":{{{pairs}}}'.encode()
    joined, offsets = join_texts(list(map(quote, map(index.names.__getitem__, order.tolist()))))
    dtypes, dtype_offsets = join_texts(list(DTYPES))
    dims, dim_offsets = take_shapes(index.dims, index.dim_offsets, order)
    return encode_headers.safetensors(
        metadata,
        joined,
        offsets,
        codes[order].astype(np.uint8).tobytes(),
        dtypes,
        dtype_offsets,
        dims,
        dim_offsets,
        np.cumsum(index.nbytes[order]),
    )


CONTAINER = Container(DTYPES, read, write, tensor_fault=find_fault, raw_rows=True)
