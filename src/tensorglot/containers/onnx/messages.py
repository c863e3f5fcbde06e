"""The messages of an ONNX file that describe tensors; all others are skipped without being read.

A field that may occur once and occurs twice is refused: decoders of Protocol Buffers
take the last one, or merge both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tensorglot.errors import FormatError, LimitError, UnsupportedError
from tensorglot.kernels.protobuf import scan_tensors
from tensorglot.limits import Limits
from tensorglot.model.payload import Source
from tensorglot.wire.protobuf import BYTES, VARINT, Field, Reader, signed

__all__ = ["DATA_FIELDS", "DTYPES", "Initializer", "Initializers", "Model", "SparseInitializers", "read_model"]

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
_WANTED = sum(1 << number for number in (*_PROPERTIES, _GRAPH, _OPSET, _PROPERTY))
_OF_TENSORS = sum(1 << number for number in (1, 2, 3, 8, 13, 14, *DATA_FIELDS))
_MAX_OPSETS = 1000
"""Operator sets of a model: there is one for each domain, and the largest models have a dozen."""


@dataclass(slots=True)
class Initializer:
    """The description of a tensor."""

    at: int
    """Offset of the message."""
    name: str = ""
    type: int = 0
    shape: list[int] = field(default_factory=list)
    data: str = ""
    """The field that has the values."""
    begin: int = 0
    end: int = 0
    external: dict[str, str] | None = None
    """Where the values are in another file: location, offset, length."""


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
    """Where the values are of tensors whose values are in other files, by position."""
    unusual: dict[int, Initializer] = field(default_factory=dict)
    """Tensors that columns cannot describe, by position; the columns have only their names, types and shapes."""

    def add(self, tensor: Initializer) -> None:
        """Adds an unusual one."""
        self.unusual[len(self.names)] = tensor
        row = (tensor.at, tensor.name, tensor.type, len(tensor.shape), 0, 0, 0, 0)
        for column, entry in zip(self.columns(), row, strict=False):
            column.append(entry)
        self.dims.extend(tensor.shape)

    def describe(self, position: int, first: int) -> Initializer:
        """The description of one tensor, whose dimensions begin at `first`."""
        return Initializer(
            self.at[position],
            self.names[position],
            self.types[position],
            self.dims[first : first + self.ranks[position]],
            DATA_FIELDS.get(self.fields[position], ""),
            self.begins[position],
            self.ends[position],
            self.external.get(position),
        )

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


class _Once:
    """Refuses a duplicate field."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def check(self, number: int, offset: int) -> None:
        if number in self._seen:
            raise FormatError(f"duplicate field {number} in a message", rule="onnx.field.twice", offset=offset)
        self._seen.add(number)


def read_model(source: Source, limits: Limits) -> Model:
    reader = Reader(source.read_bytes, source.size, limits.header_or(), "onnx")
    metadata: dict[str, Any] = {}
    properties: dict[str, str] = {}
    graph: Field | None = None
    opsets = 0
    once = _Once()
    for found in reader.fields(0, source.size, _WANTED, _PROPERTY, properties):
        if found.number in _PROPERTIES or found.number == _GRAPH:
            once.check(found.number, found.begin)
        if found.number in _PROPERTIES:
            number = found.number in (1, 5)
            _require(found, VARINT if number else BYTES)
            metadata[f"onnx.{_PROPERTIES[found.number]}"] = str(signed(found.value)) if number else reader.text(found)
        elif found.number == _GRAPH:
            _require(found, BYTES)
            graph = found
        elif found.number == _OPSET:
            _require(found, BYTES)
            opsets += 1
            if opsets > _MAX_OPSETS:
                raise LimitError(f"more than {_MAX_OPSETS} operator sets", rule="onnx.limit.opsets", offset=found.begin)
            domain, version = _opset(reader, found)
            metadata[f"onnx.opset.{domain or 'ai.onnx'}"] = str(version)
        else:
            key, value = _entry(reader, found)
            if key in properties:
                raise FormatError("duplicate metadata key", rule="onnx.metadata.duplicate", offset=found.begin)
            properties[key] = value
    if graph is None:
        raise FormatError("not an ONNX model: it has no graph", rule="onnx.graph", offset=0)
    if not metadata.keys().isdisjoint(properties):
        raise FormatError("duplicate metadata key", rule="onnx.metadata.duplicate", offset=0)
    tensors, sparse = _graph(reader, graph, limits)
    return Model(metadata | properties, tensors, sparse)


def _graph(reader: Reader, graph: Field, limits: Limits) -> tuple[Initializers, SparseInitializers]:
    tensors, sparse = Initializers(), SparseInitializers()
    most, position = limits.tensors_or(), graph.begin
    while position < graph.end:
        window, begin = reader.window(position)
        position, reader.left = scan_tensors(
            window, begin, position, graph.end, reader.left, most, limits.rank, tensors.columns(), tensors.external,
            sparse.columns(),
        )  # fmt: skip
        if position >= min(begin + len(window), graph.end):
            continue
        found = reader.field(position, graph.end)
        position = found.end
        if found.number not in (5, 15):
            continue
        _require(found, BYTES)
        if len(tensors.at) + len(sparse.at) >= most:
            raise LimitError("more initializers than Limits.tensors", rule="onnx.limit.tensors", offset=found.begin)
        if found.number == 5:
            tensors.add(_tensor(reader, found, limits.rank))
        else:
            _add_sparse(reader, found, limits.rank, sparse)
    _check_names([*tensors.names, *sparse.values.names], [*tensors.at, *sparse.at], limits)
    return tensors, sparse


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


def _require(found: Field, kind: int) -> None:
    if found.kind != kind:
        raise FormatError(
            f"field {found.number} has wire type {found.kind}, expected {kind}", rule="onnx.field", offset=found.begin
        )


def _opset(reader: Reader, message: Field) -> tuple[str, int]:
    domain, version = "", 0
    once = _Once()
    for found in reader.fields(message.begin, message.end):
        once.check(found.number, found.begin)
        if found.number == 1:
            _require(found, BYTES)
            domain = reader.text(found)
        elif found.number == 2:
            _require(found, VARINT)
            version = signed(found.value)
    return domain, version


def _entry(reader: Reader, message: Field) -> tuple[str, str]:
    """A key and its value."""
    _require(message, BYTES)
    texts = {1: "", 2: ""}
    once = _Once()
    for found in reader.fields(message.begin, message.end):
        if found.number in texts:
            once.check(found.number, found.begin)
            _require(found, BYTES)
            texts[found.number] = reader.text(found)
    return texts[1], texts[2]


def _tensor(reader: Reader, message: Field, max_rank: int) -> Initializer:
    tensor = Initializer(message.begin)
    location = 0
    once = _Once()
    entries: dict[str, str] = {}
    for found in reader.fields(message.begin, message.end, _OF_TENSORS, 13, entries):
        if found.number == 1:
            tensor.shape += _dims(reader, found, len(tensor.shape), max_rank)
        elif found.number == 13:
            key, value = _entry(reader, found)
            if key in entries:
                raise FormatError("duplicate key", rule="onnx.external.duplicate", offset=found.begin)
            entries[key] = value
        elif found.number in DATA_FIELDS:
            _add_data(tensor, found)
        elif found.number in (2, 8, 14):
            once.check(found.number, found.begin)
            _require(found, BYTES if found.number == 8 else VARINT)
            if found.number == 2:
                tensor.type = found.value
            elif found.number == 8:
                tensor.name = reader.text(found)
            else:
                location = found.value
        elif found.number == 3:
            raise UnsupportedError(
                "tensors in segments are not supported", rule="onnx.tensor.segment", offset=found.begin
            )
    if location not in (0, 1):
        raise FormatError(f"unknown data_location {location}", rule="onnx.external.location", offset=message.begin)
    if location:
        if tensor.data:
            raise FormatError("values both inline and external", rule="onnx.data.twice", offset=message.begin)
        tensor.external = entries
    _check_count(tensor)
    return tensor


def _dims(reader: Reader, found: Field, have: int, max_rank: int) -> list[int]:
    if found.kind != VARINT:
        _require(found, BYTES)
    if found.kind == BYTES and have + (found.end - found.begin) // 10 > max_rank:
        raise LimitError("more dimensions than Limits.rank", rule="onnx.limit.rank", offset=found.begin)
    sizes = list(map(signed, reader.varints(found)))
    if have + len(sizes) > max_rank:
        raise LimitError("more dimensions than Limits.rank", rule="onnx.limit.rank", offset=found.begin)
    if min(sizes, default=0) < 0:
        raise FormatError("a negative dimension", rule="onnx.shape", offset=found.begin)
    return sizes


def _check_count(tensor: Initializer) -> None:
    if math.prod(size for size in tensor.shape if size) >= 1 << 60:
        raise FormatError("the tensor would have 2**60 elements or more", rule="onnx.shape", offset=tensor.at)


def _add_data(tensor: Initializer, found: Field) -> None:
    name = DATA_FIELDS[found.number]
    if name == "string_data":
        _require(found, BYTES)
    else:
        if tensor.data == name:
            raise UnsupportedError(
                f"{name} in several pieces is not supported", rule="onnx.data.pieces", offset=found.begin
            )
        if found.kind != BYTES:
            raise UnsupportedError(f"{name} must be packed", rule="onnx.data.pieces", offset=found.begin)
    if tensor.data not in ("", name):
        raise FormatError(f"values both in {tensor.data} and in {name}", rule="onnx.data.twice", offset=found.begin)
    begin = tensor.begin if tensor.data else found.begin
    tensor.data, tensor.begin, tensor.end = name, begin, found.end


def _add_sparse(reader: Reader, message: Field, max_rank: int, sparse: SparseInitializers) -> None:
    parts: dict[int, Initializer] = {}
    shape: list[int] = []
    for found in reader.fields(message.begin, message.end):
        if found.number in (1, 2):
            _require(found, BYTES)
            if found.number in parts:
                raise FormatError("duplicate field in a sparse tensor", rule="onnx.field.twice", offset=found.begin)
            parts[found.number] = _tensor(reader, found, max_rank)
        elif found.number == 3:
            shape += _dims(reader, found, len(shape), max_rank)
    if len(parts) < 2:
        raise FormatError("a sparse tensor needs values and indices", rule="onnx.sparse", offset=message.begin)
    if math.prod(size for size in shape if size) >= 1 << 63:
        raise FormatError("a sparse tensor would have 2**63 elements or more", rule="onnx.sparse", offset=message.begin)
    sparse.values.add(parts[1])
    sparse.indices.add(parts[2])
    sparse.at.append(message.begin)
    sparse.ranks.append(len(shape))
    sparse.counts.append(math.prod(shape))
    sparse.dims.extend(shape)
    sparse.largest.append(None)
