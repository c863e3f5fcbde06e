"""The messages of an ONNX file that describe tensors; all others are skipped without being read.

A field that may occur once and occurs twice is refused: decoders of Protocol Buffers
take the last one, or merge both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorglot.errors import FormatError, LimitError, TruncatedError, UnsupportedError
from tensorglot.kernels import protobuf as kernel
from tensorglot.limits import Limits
from tensorglot.model.payload import Source
from tensorglot.tuples import NamedTuple

__all__ = ["DATA_FIELDS", "DTYPES", "Initializers", "Model", "SparseInitializers", "read_model"]

DTYPES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
"""Our element types by the numbers of TensorProto.DataType; 8 is text, which is listed without its values."""

DATA_FIELDS = {4: "float_data", 5: "int32_data", 6: "string_data", 7: "int64_data", 9: "raw_data", 10: "double_data",
               11: "uint64_data"}  # fmt: skip
"""Fields of a tensor that have its values."""
_PROPERTIES = {1: "ir_version", 2: "producer_name", 3: "producer_version", 4: "domain", 5: "model_version",
               6: "doc_string"}  # fmt: skip
_GRAPH, _OPSET, _PROPERTY = 7, 8, 14
_WANTED = sum(1 << number for number in (*_PROPERTIES, _GRAPH, _OPSET))
_ALL = (1 << 64) - 1
VARINT, BYTES = 0, 2
_MAX_OPSETS = 1000
"""Operator sets of a model: there is one for each domain, and the largest models have a dozen."""


@dataclass(frozen=True, slots=True)
class Initializers:
    """The descriptions of dense tensors, in columns."""

    at: list[int] = field(default_factory=list)
    """Offset of the message."""
    names: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Numbers of elements."""
    fields: list[int] = field(default_factory=list)
    """The number of the field that has the values; 0 for none."""
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    dims: list[int] = field(default_factory=list)
    external: dict[int, dict[str, str]] = field(default_factory=dict)
    """Where the values are of tensors whose values are in other files, by position: location, offset, length."""

    def columns(self) -> tuple[list[Any], ...]:
        return (
            self.at, self.names, self.types, self.ranks, self.counts, self.fields, self.begins, self.ends, self.dims,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SparseInitializers:
    """The descriptions of sparse tensors, in columns; the names are those of the values."""

    values: Initializers = field(default_factory=Initializers)
    indices: Initializers = field(default_factory=Initializers)
    at: list[int] = field(default_factory=list)
    """Offset of the message."""
    ranks: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    """Numbers of elements, zeros included."""
    dims: list[int] = field(default_factory=list)
    largest: list[int | None] = field(default_factory=list)
    """The largest index, -1 if there is none, None if the indices have not been read."""

    def columns(self) -> tuple[Any, ...]:
        return (
            self.values.columns(), self.values.external, self.indices.columns(), self.indices.external,
            self.at, self.ranks, self.counts, self.dims, self.largest,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    metadata: dict[str, Any]
    tensors: Initializers
    sparse: SparseInitializers


class _Field(NamedTuple):
    """A field of a message."""

    number: int
    kind: int
    value: int
    """Value of a varint."""
    begin: int
    end: int
    """The span of the contents."""


_FAULTS: dict[int, tuple[type[FormatError | UnsupportedError], str, str]] = {
    kernel.LIMIT: (LimitError, "limit.header", "header exceeds Limits.header_nbytes"),
    kernel.TRUNCATED: (TruncatedError, "end", "file truncated: needs {} bytes, has {}"),
    kernel.SPAN: (FormatError, "span", "a field ends beyond its message"),
    kernel.VARINT: (FormatError, "varint", "a varint of more than 10 bytes"),
    kernel.WIRE: (FormatError, "wire", "unknown wire type {}"),
    kernel.NUMBER: (FormatError, "wire", "a field must have a number"),
    kernel.KIND: (FormatError, "field", "field {} has wire type {}, expected {}"),
    kernel.UTF8: (FormatError, "utf8", "invalid UTF-8"),
    kernel.PACKED: (FormatError, "varint", "invalid packed integers"),
    kernel.TWICE: (FormatError, "field.twice", "duplicate field {} in a message"),
    kernel.PROPERTY_TWICE: (FormatError, "metadata.duplicate", "duplicate metadata key"),
    kernel.ENTRY_TWICE: (FormatError, "external.duplicate", "duplicate key"),
    kernel.TENSORS: (LimitError, "limit.tensors", "more initializers than Limits.tensors"),
    kernel.RANK: (LimitError, "limit.rank", "more dimensions than Limits.rank"),
    kernel.NEGATIVE: (FormatError, "shape", "a negative dimension"),
    kernel.COUNT: (FormatError, "shape", "the tensor would have 2**60 elements or more"),
    kernel.SEGMENT: (UnsupportedError, "tensor.segment", "tensors in segments are not supported"),
    kernel.PIECES: (UnsupportedError, "data.pieces", "{} in several pieces is not supported"),
    kernel.UNPACKED: (UnsupportedError, "data.pieces", "{} must be packed"),
    kernel.BOTH: (FormatError, "data.twice", "values both in {} and in {}"),
    kernel.LOCATION: (FormatError, "external.location", "unknown data_location {}"),
    kernel.INLINE: (FormatError, "data.twice", "values both inline and external"),
    kernel.PART_TWICE: (FormatError, "field.twice", "duplicate field in a sparse tensor"),
    kernel.PARTS: (FormatError, "sparse", "a sparse tensor needs values and indices"),
    kernel.SPARSE_COUNT: (FormatError, "sparse", "a sparse tensor would have 2**63 elements or more"),
}
_OF_DATA = (kernel.PIECES, kernel.UNPACKED, kernel.BOTH)
"""Faults of fields that have values, which are called by their names."""


def _refusal(fault: int, place: int, *detail: Any) -> FormatError | UnsupportedError:
    kind, rule, message = _FAULTS[fault]
    said = [DATA_FIELDS[number] for number in detail] if fault in _OF_DATA else detail
    return kind(message.format(*said), rule=f"onnx.{rule}", offset=place)


def _check(reader: kernel.Reader) -> None:
    fault, place, detail = reader.failure()
    if fault:
        raise _refusal(fault, place, *detail)


def _fields(
    reader: kernel.Reader, begin: int, end: int, wanted: int, pair: int = 0, pairs: dict[str, str] | None = None
) -> Iterator[_Field]:
    """The fields of a message whose numbers are bits of `wanted`; those of the number `pair` are added to `pairs`."""
    while (found := reader.next(begin, end, wanted, pair, pairs)) is not None:
        yield _Field(*found)
        begin = found[-1]
    _check(reader)


def _text(reader: kernel.Reader) -> str:
    """The contents of the field that was read last."""
    found: str = reader.text()
    _check(reader)
    return found


def _signed(value: int) -> int:
    """Interprets an unsigned 64-bit number as two's complement."""
    return value - (1 << 64) if value >> 63 else value


def read_model(source: Source, limits: Limits) -> Model:
    reader = kernel.Reader(source.read_bytes, source.size, limits.header_or())
    metadata: dict[str, Any] = {}
    properties: dict[str, str] = {}
    graph: _Field | None = None
    opsets = 0
    seen: set[int] = set()
    for found in _fields(reader, 0, source.size, _WANTED, _PROPERTY, properties):
        if found.number != _OPSET:
            _check_once(found, seen)
        integer = found.number in (1, 5)
        _require(found, VARINT if integer else BYTES)
        if found.number in _PROPERTIES:
            metadata[f"onnx.{_PROPERTIES[found.number]}"] = str(_signed(found.value)) if integer else _text(reader)
        elif found.number == _GRAPH:
            graph = found
        else:
            opsets += 1
            if opsets > _MAX_OPSETS:
                raise LimitError(f"more than {_MAX_OPSETS} operator sets", rule="onnx.limit.opsets", offset=found.begin)
            domain, version = _opset(reader, found)
            metadata[f"onnx.opset.{domain or 'ai.onnx'}"] = str(version)
    if graph is None:
        raise FormatError("not an ONNX model: it has no graph", rule="onnx.graph", offset=0)
    if not metadata.keys().isdisjoint(properties):
        raise _refusal(kernel.PROPERTY_TWICE, 0)
    tensors, sparse = Initializers(), SparseInitializers()
    reader.tensors(
        graph.begin, graph.end, limits.tensors_or(), limits.rank, tensors.columns(), tensors.external, sparse.columns()
    )
    _check(reader)
    _check_names([*tensors.names, *sparse.values.names], [*tensors.at, *sparse.at], limits)
    return Model(metadata | properties, tensors, sparse)


def _check_names(names: list[str], offsets: list[int], limits: Limits) -> None:
    if len(set(names)) < len(names):
        at = next(at for at, name in enumerate(names) if names.index(name) < at)
        message = "duplicate initializer name"
        raise FormatError(message, rule="onnx.name.duplicate", offset=offsets[at], tensor=names[at])
    for at, name in enumerate(names):
        if 4 * len(name) > limits.name_nbytes and len(name.encode()) > limits.name_nbytes:
            raise LimitError(
                f"a tensor name has more than {limits.name_nbytes} bytes (Limits.name_nbytes)",
                rule="onnx.limit.name",
                offset=offsets[at],
            )


def _check_once(found: _Field, seen: set[int]) -> None:
    if found.number in seen:
        raise _refusal(kernel.TWICE, found.begin, found.number)
    seen.add(found.number)


def _require(found: _Field, kind: int) -> None:
    if found.kind != kind:
        raise _refusal(kernel.KIND, found.begin, found.number, found.kind, kind)


def _opset(reader: kernel.Reader, message: _Field) -> tuple[str, int]:
    domain, version = "", 0
    seen: set[int] = set()
    for found in _fields(reader, message.begin, message.end, _ALL):
        _check_once(found, seen)
        if found.number == 1:
            _require(found, BYTES)
            domain = _text(reader)
        elif found.number == 2:
            _require(found, VARINT)
            version = _signed(found.value)
    return domain, version
